"""Limit the packets of a flow that may wait: LFQ's network, its files and its gate (docs/LABORATORY.md)."""
