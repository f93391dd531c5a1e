"""Predictor, baselines, scores, artifact format and registry."""
