"""Scores of forecasts: walk-forward predictions of every method, their figures, and the report.

`predictions` predicts, `metrics` defines the scores, `evaluation` applies them; the rest shows the outcome.
"""
