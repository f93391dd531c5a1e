"""Triton's side: its repository and configuration, its servers and their limits, our native backend."""
