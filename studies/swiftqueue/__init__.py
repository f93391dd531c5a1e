"""`swiftqueue paper`: the SwiftQueue paper (arXiv 2410.06112) exhibit by exhibit, each with a verdict.

An exhibit asks for rows: a forecaster, trained with a seed on a trace of that seed. `exhibits.py` says which,
`rows.py` computes one, `run.py` those that are missing, `verdicts.py` says what they answer.
"""
