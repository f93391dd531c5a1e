"""Forecasters: anything that predicts when packets about to be sent will have been acknowledged.

All go through one door, `forecaster.py`: packets in, microseconds out. A file here adds one, or a family;
so does a folder beside this one whose `forecaster.py` has `FORECASTERS`.
"""
