"""From a registered version to a marked packet, and its telemetry back: engine, Triton, agent, ingest."""
