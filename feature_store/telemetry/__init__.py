"""Store live telemetry: batches of events, their write-ahead log, and its compaction to packet tables."""
