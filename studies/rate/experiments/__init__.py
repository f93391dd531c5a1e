"""Measure forecasts at work: fed back into BBR in ns-3, and exchanged with forecasts of latency."""
