"""Experiments beside the pipeline: new traces, a study of captures, forecasters compared and tuned."""
