"""Define and store networks: their base, artifact, ONNX form, and the scaling of inputs and target.

A network takes raw windows, events or queries and gives microseconds. Nothing here reads data or trains.
"""
