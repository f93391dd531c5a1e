"""Keep versions of models: the MLflow registry, the lineage of a version, and the gate that it must pass.

Nothing here trains or serves; `pipelines/register.py` adds versions and `serving/` takes them.
"""
