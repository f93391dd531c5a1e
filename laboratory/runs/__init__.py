"""From a scenario's cells to rows of the results: resolved runs, their execution, and what is kept of them.

A run is named by the hash of all that its result depends on, so none is simulated twice.
"""
