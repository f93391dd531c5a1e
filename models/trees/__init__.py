"""Boosted trees on a query's inputs."""
