"""LFQ: a fair queue whose limits a network has learned, trained and judged on single flows.

What a run is, how limits are learned from runs, and the table of 400 (docs/LABORATORY.md).
"""
