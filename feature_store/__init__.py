"""Packets and windows: from a trace, or live telemetry, to what the model sees."""
