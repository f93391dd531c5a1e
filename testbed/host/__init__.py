"""The test bed from Python: what this machine can do, the marker of TCP packets, runs over the router.

It starts the programs that `testbed/` builds (docs/TESTBED.md).
"""
