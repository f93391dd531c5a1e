"""Input and output of the agent: frames, sockets, its log, its page and its metrics."""
