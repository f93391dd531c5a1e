"""Telemetry ingest: senders' events over HTTP into the feature store, once (docs/TELEMETRY.md)."""
