"""The routing bench in virtual time: machines, traffic and policies, and nothing in it waits or looks at a clock."""
