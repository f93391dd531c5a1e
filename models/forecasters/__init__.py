"""Train, tune, compare and store forecasters, which predict packets' latencies before the packets are sent.

`forecaster.py` defines their one interface: packets in, microseconds out. A folder beside this one adds
forecasters by `FORECASTERS` in its `forecaster.py`.
"""
