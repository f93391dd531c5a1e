"""The sending library for C and Python."""
