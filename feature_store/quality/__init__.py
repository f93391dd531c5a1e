"""Whether data is what it should be: Great Expectations suites and the shift of the inputs."""
