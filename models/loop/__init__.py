"""Networks that the loop trains, judges, registers and serves: a file each, found by its name.

`architecture.name` of params.yaml is the file's name, with hyphens.
"""
