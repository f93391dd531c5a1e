"""Forecast with the event stream: a causal Transformer over a sender's SEND and ACK events (docs/EVENTS.md).

Read `parameters`, `network`, `log`, `training`, `forecaster`, in this order.
"""
