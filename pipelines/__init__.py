"""One module per DVC stage, each a pure function and a thin main."""
