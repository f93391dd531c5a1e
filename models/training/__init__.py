"""How a network learns: windows of `data/windows` cut by time, examples, loss, pre-training and fine-tuning.

Both are Ray Train jobs that resume where they were killed; a live round has a Ray actor, `warm_worker`.
"""
