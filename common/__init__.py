"""The room below all others: files written whole, settings, parameter sections, JSON, locks, Parquet."""
