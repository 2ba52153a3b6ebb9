"""From polls and lane counters to what an instance really has to do: others, KV demand, speed, means, rates."""
