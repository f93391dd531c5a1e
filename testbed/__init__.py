"""The test bed: a real kernel's packets through a router of our own; `host` is its Python."""
