"""Training of networks: protocols, loss, training over queries, the head's tuning, calibration.

Pre-training and tuning are Ray Train jobs that resume where they were killed; a live round has a Ray actor,
`warm_worker`.
"""
