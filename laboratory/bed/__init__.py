"""The kernel test bed from Python: what this machine can do, the marker of TCP packets, runs over the router.

Its programs lie in `testbed/` and are started, never imported (docs/TESTBED.md).
"""
