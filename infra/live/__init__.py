"""The live loop: a fine-tuning round every few minutes on the telemetry that arrived (docs/LIVE.md)."""
