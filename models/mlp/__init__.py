"""Linear layers on a query's inputs: what the sender's state says, without the events behind it."""
