"""Forecasts of a TCP connection's rate from its first ACKs: flows, predictors, networks, their study."""
