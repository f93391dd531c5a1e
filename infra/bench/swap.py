"""A head swap every second under a client that asks 1,000 times a second, beside the same client in peace.

Triton serves the native backend; each swap is the whole of `serving.push.push`, as at the five-minute update:
load and check the artifact, try it under another name, compare it with PyTorch, load it beside the served
version, compare again. (The registry is not in it: fetching happens before Triton is touched.) The versions
differ in their heads alone. Stretches with and without swaps take turns, the C++ client asks on a fixed
schedule, and what is reported of its latencies is the median over the stretches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.bench.inference_references import TOKENS, make_model
from infra.bench.rows import Row
from infra.bench.served_models import build, served
from serving.endpoint import Triton
from serving.push import push
from serving.triton_repository import ModelRepository

RATE: Final = 1_000  # questions per second
SECONDS: Final = 12  # of a stretch: five rounds are a minute with swaps and a minute without
SWAP_S: Final = 1.0
ANCHOR: Final = "last_latency_flow_us"  # as in params.yaml
HEADS: Final = 4  # told apart by version number, so the same ones come round again

Figures = dict[str, float]  # of a stretch, as the client gives them


@dataclass
class Swaps:
    """What the pushing side did: each push's time, and why it ended early if it did."""

    seconds: list[float] = field(default_factory=list)
    failure: Exception | None = None


def measure(rounds: int) -> list[Row]:
    """Ask through `rounds` stretches without swaps and as many with them.

    Raises:
        OSError: the native backend or the C++ client is not built.
        RuntimeError: Triton does not start, or a push fails.
    """
    client = build("round_trip") / "round_trip"
    quiet, swapped = list[Figures](), list[Figures]()
    swaps = Swaps()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        heads = [_save_head(root / "artifacts" / str(i), i) for i in range(HEADS)]
        repository = ModelRepository(root)
        repository.embedded.mkdir()
        with served(root, ()) as address, Triton(address) as triton:
            version = 1
            push(heads[0], version, triton, repository, None)
            for _ in range(rounds):
                quiet.append(_ask(client, address))
                with _swapping(heads, version, triton, repository, swaps) as stop:
                    swapped.append(_ask(client, address))
                    stop.set()
                if swaps.failure:
                    raise RuntimeError(f"bench swap: a push failed: {swaps.failure}") from swaps.failure
                version = len(swaps.seconds) + 1
    return _rows(quiet, swapped, swaps.seconds, rounds)


def _save_head(folder: Path, seed: int) -> Path:
    """Save an artifact of the served form: the same encoder, another head."""
    import torch

    from feature_store.windows import schema_hash
    from models import artifact

    model = make_model("candidates", ANCHOR)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    artifact.save(folder, model, artifact.Description(TOKENS, schema_hash(), "acked"))
    return folder


@contextmanager
def _swapping(
    heads: list[Path], version: int, triton: Triton, repository: ModelRepository, swaps: Swaps
) -> Iterator[threading.Event]:
    """Push the next head every second, from a thread, until told to stop."""
    stop = threading.Event()

    def swap() -> None:
        current, due_s = version, time.monotonic() + SWAP_S
        while not stop.wait(max(0.0, due_s - time.monotonic())):
            begin_s = time.monotonic()
            try:
                push(heads[current % HEADS], current + 1, triton, repository, current)
            except (OSError, RuntimeError) as error:
                swaps.failure = error
                return
            swaps.seconds.append(time.monotonic() - begin_s)
            repository.remove(current)
            current, due_s = current + 1, due_s + SWAP_S

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def _ask(client: Path, address: str) -> Figures:
    """One stretch of questions, each a window of real tokens."""
    command = [str(client), "--server", address, "--rate", str(RATE), "--questions", str(RATE * SECONDS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * SECONDS)
    if ran.returncode:
        raise RuntimeError(f"bench swap: {ran.stderr.strip()}")
    found = json.loads(ran.stdout.splitlines()[-1])
    return {
        "answered": found["in_time"] / found["asked"],
        "versions": float(len(found["versions"])),
        **{name: float(found[name]) for name in ("p50_us", "p99_us", "gap_ms")},
    }


def _rows(quiet: list[Figures], swapped: list[Figures], pushes_s: list[float], rounds: int) -> list[Row]:
    def row(name: str, key: str, unit: str) -> Row:
        ours, theirs = (statistics.median(figures[key] for figures in side) for side in (swapped, quiet))
        return Row(name, ours, theirs, "without swaps", theirs / ours, unit, rounds)

    ours, theirs = (min(figures["answered"] for figures in side) for side in (swapped, quiet))
    made = len(pushes_s)
    return [
        Row("answered, worst stretch", ours, theirs, "without swaps", ours / theirs, "share", rounds),
        row(f"round trip at {RATE} questions/s, p50", "p50_us", "us"),
        row(f"round trip at {RATE} questions/s, p99", "p99_us", "us"),
        row("longest time without an answer", "gap_ms", "ms"),
        Row("swaps made", made, rounds * SECONDS, "one a second", made / (rounds * SECONDS), "", rounds),
        Row(
            "a push: check, try, load, compare",
            statistics.median(pushes_s) * 1e3,
            SWAP_S * 1e3,
            "time until the next one",
            SWAP_S / statistics.median(pushes_s),
            "ms",
            rounds,
        ),
    ]
