"""Whether the virtual queue's forecast helps the event stream as an input, or as its anchor."""
