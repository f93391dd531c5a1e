"""What forecasts latency: `networks`, their `training`, their `scoring` and the `registry` of versions.

The files beside them are of the rooms together: sections of parameters, locks, logs of
one object a line, programs and their errors.
"""
