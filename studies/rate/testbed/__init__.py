"""A kernel's flows: collected, told their forecasts, and timed."""
