"""Forecast from the last W packets as one window: the paper's Transformer, a BiLSTM, boosted trees.

Read `windows.py` (their inputs), `network.py`, `training.py`, `forecaster.py`, `trees.py`, in this order.
"""
