"""Forecast with boosted trees on a query's inputs."""
