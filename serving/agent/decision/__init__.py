"""Which packets are moved: what a sender knows, when it asks, and the guard of other senders."""
