"""Asking every instance for its load: when (schedule), how (fetch), what it means (health), the loop (poller)."""
