"""The models that drive runs: trained on exploration traces, found for judging, tuned while a run goes on.

The training itself is the project's own stages.
"""
