"""What the agent reads and writes: frames, sockets, its log, its page and its metrics."""
