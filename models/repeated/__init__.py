"""Baselines that repeat a latency that the sender knows."""
