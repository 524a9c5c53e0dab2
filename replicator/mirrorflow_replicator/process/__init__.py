"""What each of our processes sets up first: memory, logging, clock, the watch for its parent's end."""
