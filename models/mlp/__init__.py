"""Forecast with linear layers on a query's inputs, the sender's state without the events behind it."""
