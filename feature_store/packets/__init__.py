"""Turn traces into packet tables: decode captures, match data with ACKs, write Parquet."""
