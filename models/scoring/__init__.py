"""Score forecasts: walk-forward predictions of every method, their figures, and the report.

`predictions` holds them, `metrics` defines the scores, `evaluation` applies them, and the rest shows the
outcome.
"""
