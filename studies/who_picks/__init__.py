"""Who should pick a packet's queue: a router's rule, a sender, or nobody."""
