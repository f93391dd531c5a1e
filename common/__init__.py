"""Functions that every room uses: atomic files, settings, parameter sections, JSON, locks and Parquet."""
