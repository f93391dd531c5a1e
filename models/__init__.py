"""Forecasts of latency: `networks`, their `training`, their `scoring` and the `registry` of versions.

Files beside them belong to several rooms.
"""
