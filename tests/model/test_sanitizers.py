"""The C++ parts pass the address and undefined-behaviour sanitizers, and their threads the thread sanitizer.

`make test` tries one of the two parts that compile quickly, and the agent's threads for seconds;
`make test-all` tries all five parts at length, with both sanitizers.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import mutants
import pytest
from sampled import tried

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local.native_backend import SOURCES
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.engine import LIBRARY
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.limits import limits_of
from swiftqueue.serving.triton.repository import ModelRepository

pytestmark = pytest.mark.slow
QUICK = ("window", "capture reader")
SANITIZERS = ("thread", "address")
minutes = pytest.mark.skipif(not mutants.ALL, reason="minutes of compilation: make test-all")


def sanitize(sources: Path, folder: Path, rounds: int) -> str:
    """Build a part with each sanitizer, run its stress program, and return the output."""
    return run_make(sources, "sanitize", folder, rounds)


def run_make(sources: Path, target: str, folder: Path, rounds: int) -> str:
    ran = subprocess.run(
        ["make", "-j2", target, f"ARTIFACT={folder}", f"ROUNDS={rounds}"],
        cwd=sources,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran.stdout


@pytest.mark.long
@tried("window", QUICK, 1)
def test_window(project: Path) -> None:
    """Random and hostile events."""
    make = ["make", "-C", "feature_store", "sanitize"]
    done = subprocess.run(make, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "40 senders, nothing found" in done.stdout


@tried("capture reader", QUICK, 1)
def test_capture_reader(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutated captures; the decoder stops at the first bad address or undefined operation."""
    monkeypatch.syspath_prepend(project / "tests" / "data")
    from test_extract_fuzz import TIMES, good_captures

    library = project / "feature_store" / "_build" / "libpcapdecode-asan.so"
    subprocess.run(["make", "-s", "-C", project / "feature_store", f"_build/{library.name}"], check=True)
    find = ["g++", "-print-file-name=libasan.so"]
    runtime = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    environment = {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks
    }
    taken, _ = mutants.survive(
        "test_extract_fuzz:feed_sanitized", good_captures(), 1_000 * TIMES, environment=environment
    )
    assert taken > 250 * TIMES


@minutes
def test_engine(make_artifact: Callable[..., Path]) -> None:
    """Hostile artifacts, windows and sessions; heads swapped under predictions."""
    said = sanitize(LIBRARY.parent.parent, make_artifact(1), 10_000)
    assert len(re.findall(r"of 10000 damaged artifacts refused", said)) == 1
    assert len(re.findall(r"^tensors: \d+ of 10000 files accepted", said, re.M)) == 1
    assert re.search(r"^portable: 200 calls of a session, [1-9]\d* refused", said, re.M)
    assert len(re.findall(r"^swap: 100 heads under \d+ predictions", said, re.M)) == 2


@minutes
def test_native_backend(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    """Hostile requests and versions, and versions swapped under predictions."""
    limits = limits_of(EVENTS.features)
    version = ModelRepository(tmp_path).stage(make_artifact(1, layers=1), limits, 1, Backend.NATIVE)
    said = sanitize(SOURCES, version, 5000)
    assert len(re.findall(r"^requests: \d+ of 500 answered", said, re.M)) == 1
    assert len(re.findall(r"^messages: \d+ of 5000 answered, \d+ resent", said, re.M)) == 1
    assert len(re.findall(r"^sessions: \d+ answers by three threads", said, re.M)) == 2
    assert len(re.findall(r"^limits: \d+ of 5000 damaged texts refused", said, re.M)) == 1
    assert len(re.findall(r"^config: \d+ of 5000 damaged texts refused", said, re.M)) == 1
    assert len(re.findall(r"^filled: 40 sessions, 10 where there is no more room", said, re.M)) == 2
    assert len(re.findall(r"^swap: 50 versions under \d+ predictions, one encoder", said, re.M)) == 2
    assert len(re.findall(r"^swap: 50 encoders under \d+ answers, no rows again", said, re.M)) == 2


@pytest.mark.skipif(agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built()))
@pytest.mark.parametrize(
    "sanitizer", [pytest.param(name, marks=tried(name, SANITIZERS, 1)) for name in SANITIZERS]
)
def test_agent_for_seconds(make_artifact: Callable[..., Path], sanitizer: str) -> None:
    """A few of all that `test_agent` tries: the decision loop, the socket, both engine threads, swaps."""
    said = run_make(
        agent_process.BINARY.parent.parent, f"sanitize_{sanitizer}", make_artifact(1, layers=1), 100
    )
    assert "beside: 1200 answers of two threads are those of one" in said
    assert "swapped under questions" in said


@minutes
@pytest.mark.skipif(agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built()))
def test_agent(make_artifact: Callable[..., Path]) -> None:
    """Hostile frames, streams and swaps; all of it is instrumented, the engine too."""
    sources = agent_process.BINARY.parent.parent
    said = sanitize(sources, make_artifact(1, layers=1), 10_000)
    for line in (
        "live: 10000 batches",
        "without an allocation",
        "ACKs without end hold up no sender",
        "streams refused",
        "good ones answered",
        "swapped under questions",
        "begun anew answers the same",
        "answers of two threads are those of one",
    ):
        assert said.count(line) == 2, said
    program = "../../tests/stress/stress_agent.cc"
    for sanitizer in SANITIZERS:
        linked = subprocess.run(
            ["make", "--no-print-directory", "-n", "-W", program, f"_build/stress_{sanitizer}"],
            cwd=sources,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        objects = [word.rpartition("/")[2] for word in linked.split() if word.endswith(".o")]
        assert f"{sanitizer}_engine.o" in objects
        assert all(name.startswith(f"{sanitizer}_") for name in objects), linked
