"""A model's inputs: a sender's events and the windows that are views of them, defined once, in C++."""
