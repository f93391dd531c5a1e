"""Benchmarks: each figure is a ratio against a named reference measured in the same run."""
