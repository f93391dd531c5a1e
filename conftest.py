"""Fixtures shared by all tests, those of the studies too.

Real services only: what cannot start is an error, not a mock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hypothesis
import pytest
from mutants import ALL
from sampled import is_sampled

from swiftqueue.common import local_ray, usage_reporting

usage_reporting.switch_off()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models train 2-4 times faster so
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of this run; its child processes have it too
os.environ.update(local_ray.ALONE)  # some test may import Ray before another starts it, and Ray reads it then

if ALL:
    os.environ.setdefault("PYTEST_TIMEOUT", "14400")  # a million mutants take longer than any hang is worth

# A test's time is no property of what it tests, and a busy machine takes ten times as long. Each `make test`
# draws the same examples, so that a change fails by what it changed; `make test-all` draws new ones.
hypothesis.settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not ALL,
)
hypothesis.settings.load_profile("project")

PROJECT = Path(__file__).resolve().parent
CAPTURES = PROJECT.parent / "shared" / "data"


pytest_plugins = ["served_stack"]
LONG_ONE_IN = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        choices=("all", "some"),
        default="all",
        help="run all tests marked `long` (default), or a fixed one in ten of them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long") == "all":
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        long = item.get_closest_marker("long")
        # Those that share what is dear about them are drawn together, by the name given to the mark.
        is_run = long is None or is_sampled(long.args[0] if long.args else item.nodeid, LONG_ONE_IN)
        (kept if is_run else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


FAILURES = os.environ.get("SWIFTQUEUE_TEST_FAILURES")  # a file: what failed, and last the test under way


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(f"in {nodeid}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note(f"FAILED {report.nodeid} ({report.when})")


def _note(line: str) -> None:
    """Write a line down at once: where the interpreter crashes, pytest names nothing.

    Of several processes (xdist) the one that hands out the tests writes.
    """
    if FAILURES and "PYTEST_XDIST_WORKER" not in os.environ:
        path = Path(FAILURES)
        kept = (
            [old for old in path.read_text().splitlines() if old.startswith("FAILED")]
            if path.exists()
            else []
        )
        path.write_text("\n".join([*kept, line]) + "\n")


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root folder."""
    return PROJECT


@pytest.fixture(scope="session")
def captures() -> Path:
    """Folder of real captures that lies beside a checkout; never part of the project."""
    if not CAPTURES.is_dir():
        pytest.skip(f"the folder of real captures {CAPTURES} is not beside this checkout")
    return CAPTURES


@pytest.fixture
def kernels_controls_alone() -> Iterator[None]:
    """The kernel registers each congestion control of the test bed once: no other test does meanwhile."""
    with (Path(tempfile.gettempdir()) / "swiftqueue-tests-controls.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray cluster for the whole test session (start-up costs 10-20 s)."""
    with local_ray.ray_cluster(workers=2):
        yield


@pytest.fixture(scope="session")
def make_artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Untrained artifacts of the event stream, by seed and the head's; `onnx` adds the exported network.

    Windows have 8 + 64 rows a layer. `levels` are of quantiles. The engine computes width 64 only, so another
    one is served by the Python backend.
    """
    import torch
    from toy_world import scaled_inputs

    from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.networks.scaling import TargetScaling

    root = tmp_path_factory.mktemp("artifacts")
    exported: dict[tuple[int, float, int], Path] = {}

    def make(
        seed: int,
        head: int = 0,
        *,
        onnx: bool = False,
        layers: int = 2,
        shift: float = 9.0,
        width: int = 64,
        levels: Sequence[float] = (),
    ) -> Path:
        folder = root / f"{seed}-{head}-{layers}-{shift}-{width}-{len(levels)}"
        if not folder.exists():
            torch.manual_seed(seed)
            sizes = EventArchitecture(layers=layers, width=width)
            model = EventPredictor(*scaled_inputs(), TargetScaling("log", shift, 0.5), sizes, levels)
            torch.manual_seed(1000 + head)
            for parameter in model.head.parameters():
                torch.nn.init.normal_(parameter, std=0.1)
            protocol = {"name": "short", "pretrain_s": 5, "finetune_s": 1, "test_s": 2}
            artifact.save(folder, model.eval(), protocol)
        if onnx:
            _export(folder, exported.setdefault((layers, shift, width), folder))
        return folder

    return make


def _export(folder: Path, first: Path) -> None:
    """Write an artifact's network: that of the first one of its sizes, with other weights.

    It is what an export gives, bit for bit, in hundredths of a second instead of six seconds.
    """
    import onnx

    from swiftqueue.models.networks import artifact, onnx_head

    if (folder / "model.onnx").exists():
        return
    if folder != first:
        network = onnx.load(str(first / "model.onnx"))
        before, after = (
            {k: v.numpy() for k, v in artifact.load(f).model.state_dict().items()} for f in (first, folder)
        )
        changed = {name: value for name, value in before.items() if (value != after[name]).any()}
        if onnx_head.put_head(network, changed, after):
            onnx.save(network, str(folder / "model.onnx"))
            return
    artifact.export_onnx(folder)
