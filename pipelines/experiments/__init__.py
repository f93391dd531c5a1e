"""Experiments beside the pipeline: new traces, studies of captures, and comparing and tuning forecasters."""
