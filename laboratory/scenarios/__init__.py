"""Scenario files, checked before anything is built or run.

The simulation program trusts the runs resolved from them.
"""
