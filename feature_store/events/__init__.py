"""Compute a model's inputs: a sender's events and the windows over them, defined once, in C++."""
