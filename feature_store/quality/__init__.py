"""Check data: Great Expectations suites, the shift of the inputs, impossible claims."""
