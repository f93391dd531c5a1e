"""Networks, a file each, and how they are stored: artifact, ONNX form, the scaling of inputs and target.

A network takes raw windows, events or queries and gives microseconds;
nothing here reads data or trains.
"""
