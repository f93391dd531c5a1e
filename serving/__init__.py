"""Triton model repository, deployment, sender client and queue controller."""
