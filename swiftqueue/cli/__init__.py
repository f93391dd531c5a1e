"""The command line: a file per group of commands, each a thin face of a function of its room."""
