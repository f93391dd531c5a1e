"""Samples of a TCP connection: their one definition, and the tables of flows that are learned from."""
