"""Forecast latency: `networks`, their `training`, their `scoring` and the `registry` of versions."""
