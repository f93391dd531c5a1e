"""Networks, a file each, and how one is kept: artifact, ONNX form, the scaling of inputs and target.

A network takes raw windows and gives microseconds (`event_transformer`, which no stage uses yet: events);
nothing here reads data or trains.
"""
