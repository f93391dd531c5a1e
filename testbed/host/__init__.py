"""The test bed from Python: checks of this machine, the marker of TCP packets, and runs over the router.

This package starts the programs that `testbed/` builds (docs/TESTBED.md).
"""
