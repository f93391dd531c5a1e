"""Checks of data: Great Expectations suites and the shift of the inputs."""
