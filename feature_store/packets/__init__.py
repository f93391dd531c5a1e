"""Traces to packet tables: captures decoded, data matched with ACKs, Parquet written."""
