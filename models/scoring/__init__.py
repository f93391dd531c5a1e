"""How good a forecast is: walk-forward predictions of every method, their scores, and what a reader sees.

`predictions` predicts, `metrics` defines the scores, `evaluation` applies them; the rest shows the outcome.
"""
