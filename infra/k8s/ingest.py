"""The ingest as Ray Serve on a cluster builds it (`import_path` in ray.yaml): one pod, several replicas.

The pod's volume is the folder of their metrics and of what they store.
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
    from feature_store.telemetry.log import check_format
    from serving.ingest.app import application
    from serving.ingest.server import keep, limits, replicas_log, telemetry_dir

    root = telemetry_dir()
    check_format(root)
    return application(
        root,
        replicas_log(),
        replicas=int(settings["replicas"]),
        keep=keep(),
        limits=limits(),
        cpus=1.0,
    )
