"""SwiftQueue as a library (`swiftqueue.api`) and as a command (`swiftqueue.cli`)."""

from swiftqueue.api import Model, load_model, plot, read_capture

__all__ = ["Model", "load_model", "plot", "read_capture"]
