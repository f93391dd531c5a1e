"""How many packets of a flow may wait: LFQ's network and its files, and its gate (docs/LABORATORY.md)."""
