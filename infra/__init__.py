"""Command line, local servers and benchmarks."""
