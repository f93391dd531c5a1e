"""The telemetry ingest: senders' events over HTTP into the feature store, each once (docs/TELEMETRY.md)."""
