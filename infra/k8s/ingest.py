"""The ingest as Ray Serve on a cluster builds it (`import_path` in ray.yaml): one pod, several replicas.

The replicas share the folder of the metrics by process id, so they must be in one pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.serve import Application


def build(settings: dict[str, int]) -> Application:
    """Return the application.

    Args:
        settings: `args` of the application in ray.yaml; `replicas`: processes that take batches.
    """
    from feature_store.telemetry_compact import KEEP_MINUTES
    from serving.ingest.app import application
    from serving.ingest.server import replicas_log, telemetry_dir

    root = telemetry_dir()
    root.mkdir(parents=True, exist_ok=True)
    replicas = int(settings["replicas"])
    return application(root, replicas_log(), replicas=replicas, keep_minutes=KEEP_MINUTES, cpus=1.0)
