"""The ingest as Ray Serve builds it on a cluster (`import_path` in ray.yaml): one pod with several replicas.

The replicas keep their metrics and the telemetry store on the pod's volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.serve import Application


def build(settings: dict[str, int]) -> Application:
    """Return the application.

    Args:
        settings: `args` of the application in ray.yaml; `replicas` is the number of processes for batches.
    """
    from swiftqueue.feature_store.telemetry.log import check_format
    from swiftqueue.serving.ingest.app import application
    from swiftqueue.serving.ingest.server import keep, limits, replicas_log, telemetry_dir

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
