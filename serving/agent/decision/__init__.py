"""Choosing the packets to move: a sender's knowledge, its questions, and the guard of other senders."""
