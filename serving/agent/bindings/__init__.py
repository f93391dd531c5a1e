"""`swiftqueue.h` for programs that send, the same calls for Python, and the controller for Python."""
