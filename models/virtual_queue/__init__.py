"""The virtual queue: a rule of four numbers a queue, which every model has to beat."""
