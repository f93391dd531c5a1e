"""What the keeper starts to heal a part, with the real Triton."""

from __future__ import annotations

import psutil
import pytest
from waiting import wait_until

from swiftqueue.infra.local import live_options, processes
from swiftqueue.infra.local.heal import Healing
from swiftqueue.serving.triton.endpoint import Triton

pytestmark = pytest.mark.slow


def test_a_killed_triton_serves_again_what_it_served_and_asks_no_registry(
    champion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look the champion up brings PyTorch and MLflow: 81 to 111 s on a busy machine."""
    live_options.write(live_options.LiveOptions("x", 1, 60, 30, 8))
    server = processes.running("triton")
    assert server is not None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # where nobody is
    psutil.Process(server.pid).kill()
    wait_until(lambda: processes.running("triton") is None)
    healing = Healing("triton", idle=False)
    failures: list[str | None] = []
    try:
        wait_until(lambda: failures.append(healing.outcome()) or failures[-1] is not None)
    finally:
        live_options.file().unlink()
    assert failures[-1] == ""
    with Triton() as triton:
        assert triton.served_version() == champion
    again = processes.running("triton")
    assert again is not None
    assert again != server
