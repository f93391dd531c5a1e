"""What every room uses and none owns: files written whole, settings, parameter sections, JSON, locks, Parquet."""
