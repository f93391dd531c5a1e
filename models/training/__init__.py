"""Train networks: protocols, loss, training over queries, tuning of the head, calibration.

Pre-training and tuning are Ray Train jobs that resume where they were killed. A live round has a Ray actor,
`warm_worker`.
"""
