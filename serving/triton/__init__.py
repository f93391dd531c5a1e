"""Triton's side: its repository and configuration, its servers and what they accept, our native backend."""
