"""The L4S laboratory: what choosing the queue packet by packet gains, in runs beside their controls.

`swiftqueue lab` is its face; it starts the programs of `simulation/` and never imports them.
"""
