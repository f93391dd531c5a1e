"""SwiftQueue as a library (`swiftqueue.api`), as a command (`swiftqueue.cli`), and its rooms.

Each room is a folder beside this one and is imported through this package, as `swiftqueue.models`: installed
beside other packages, the project takes one name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swiftqueue.api import Model, events, load_model, model_card, plot, read_capture, scores

__all__ = ["Model", "events", "load_model", "model_card", "plot", "read_capture", "scores"]


def __dir__() -> list[str]:
    """Return the names of the library, so that `help(swiftqueue)` lists them before they are loaded."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a function of the library when it is first asked for: each room is imported through here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swiftqueue import api

    return getattr(api, name)
