"""The benches, made short: every figure stands beside its reference, and its ratio says who is better.

How fast is for `swiftqueue bench` to judge: a test runs beside others. `make test` tries at most one of
them, chosen by the commit; `make test-all` tries all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sampled
import toy_world

from swiftqueue.benchmarks import (
    finetune,
    inference,
    ingest,
    linerate,
    live,
    pretrain,
    rows,
    serving,
    swap,
)
from swiftqueue.common.settings import variable

pytestmark = [pytest.mark.slow, pytest.mark.long]
BENCHES = (
    *("inference", "finetune", "pretrain", "ingest"),
    *("live", "serving", "swap", "linerate"),
)
LESS_IS_BETTER = ("ns", "us", "ms", "s", "cores", "GB", "ppm")
tried = partial(sampled.tried, cases=BENCHES, count=1)


def check(found: list[rows.Row]) -> None:
    """Every row has a figure, a reference with a name, and a ratio above 1 where ours is better."""
    for row in found:
        assert 0 < row.ours < math.inf, row
        assert 0 < row.reference < math.inf, row
        assert row.reference_name, row
        better = row.reference / row.ours if row.unit in LESS_IS_BETTER else row.ours / row.reference
        assert row.ratio == pytest.approx(better), row


@pytest.fixture
def set_to(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set constants of a bench."""

    def change(bench: object, **values: object) -> None:
        for name, value in values.items():
            monkeypatch.setattr(bench, name, value)

    return change


@tried("inference")
def test_inference() -> None:
    found = inference.measure(rounds=1)
    check(found)
    assert {row.rounds for row in found} == {1}
    names = " ".join(row.name for row in found)
    for figure in (
        f"share of the core's peak, {inference.BATCH}",
        f"share of the core's peak, {inference.WINDOW}",
        "encoder features",
        "head swap",
    ):
        assert figure in names
    for what, both in ((inference.BATCH, ", both queues"), (inference.WINDOW, "")):
        references = {row.reference_name for row in found if row.name.startswith(what)}
        assert {f"PyTorch{both}", f"ONNX Runtime{both}"} <= references


@tried("finetune")
def test_finetune(set_to: Callable[..., None]) -> None:
    set_to(finetune, PACKETS=9600, DECISIONS=1200, REFERENCE_BATCHES=1, ENCODED=2000)
    head, encoding = found = finetune.measure(rounds=1)
    check(found)
    assert "9,600 packets = 1,200 decisions" in head.name
    assert "2,000 packets" in encoding.name


@tried("pretrain")
def test_pretrain(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv(variable("state"), str(tmp_path / "state"))
    packets = tmp_path / "packets"
    toy_world.write_table(packets, toy_world.bottleneck_table("t", 2.0, swing_ms=40))
    until, speed = found = pretrain.measure(rounds=1, packets=str(packets))
    check(found)
    assert "2,000 packets" in until.name
    assert speed.unit == "targets/s"
    assert not any((tmp_path / "state" / "ray").iterdir()), "no checkpoints stay"


@tried("ingest")
def test_replicas_promise_and_references_stand_beside_the_ingest(set_to: Callable[..., None]) -> None:
    events = ingest.BATCH_EVENTS
    set_to(ingest, ROUND_EVENTS=4 * ingest.SENDERS * events, REFERENCE_EVENTS=4 * events)
    promised, bare, parquet, more = found = ingest.measure(rounds=1)
    check(found)
    assert promised.name == bare.name == parquet.name
    assert "on one core" in promised.name
    assert (promised.reference, promised.reference_name) == (ingest.PROMISED, "promised at least")
    assert "by 2 replicas on " in more.name
    assert more.reference_name == "one replica, likewise"
    assert {row.unit for row in found} == {"events/s"}


@tried("live")
def test_a_round_is_timed_up_to_an_asking_clients_first_answer(
    project: Path, monkeypatch: pytest.MonkeyPatch, set_to: Callable[..., None]
) -> None:
    monkeypatch.chdir(project)
    # A head that learned from 6 s was once kept: 2 % worse than repeating a flow's last latency.
    set_to(live, TRAFFIC={"seeds": [1]}, LEARN_S=12.0, JUDGE_S=3.0, LEAD_IN_S=2.0, LEAST_DECISIONS=50)
    set_to(live, ROUND_S=40.0)
    monkeypatch.setenv(variable("rollback_after_s"), "5")
    found = live.measure(rounds=1)
    first, slowest, cold = found[:3]
    check(found[:3])
    assert first.name.startswith("trigger to the first answer of the new version, ")
    assert (first.reference, first.unit) == (live.PROMISED_S, "s")
    assert first.ours <= slowest.ours
    assert cold.ours == first.ours
    steps = {row.name.removeprefix("step "): row.ours for row in found if row.name.startswith("step ")}
    assert {"telemetry", "encode", "train", "register", "shadow", "push", "total"} <= set(steps)
    assert sum(seconds for step, seconds in steps.items() if step != "total") <= steps["total"]
    answered, look = found[-2:]
    assert answered.ours == 1, "every question was answered"
    assert 0.05 < look.ours < look.reference, "it was compared, between two rounds"


@tried("serving")
def test_round_trips_stand_beside_the_identity_model_and_what_went_before(
    serving_state: Path, set_to: Callable[..., None]
) -> None:
    set_to(serving, QUESTIONS=40, PYTHON_QUESTIONS=20, WARM_UP=5)
    found = serving.measure(rounds=1)
    check(found)
    names = [row.name for row in found]
    for figure in ("p50", "p99"):
        references = {row.reference_name for row in found if row.name == f"event stream, {figure}"}
        assert references == {"identity, p50", f"ONNX in the Python backend, Python client, {figure}"}
    for what in ("unix socket", "Python client"):
        assert any(what in name for name in names), names
    assert {row.unit for row in found} == {"us"}


@tried("swap")
def test_heads_are_swapped_under_a_client_without_an_unanswered_question(
    serving_state: Path, set_to: Callable[..., None]
) -> None:
    settings = (swap.SwapLoad(0.5, 1_000, 3), swap.SwapLoad(1.5, 500, 3))
    set_to(swap, SETTINGS=settings)
    found = {row.name: row for row in swap.measure(rounds=2)}
    check(list(found.values()))
    for setting in settings:
        answered = found[f"{setting}: answered, worst stretch"]
        assert (answered.ours, answered.reference) == (1, 1)
        seen = found[f"{setting}: swaps the client saw"].ours
        assert seen >= setting.swaps  # half of them, on a busy machine


@tried("linerate")
def test_batches_in_time_are_measured_through_triton_and_in_process(
    serving_state: Path, set_to: Callable[..., None]
) -> None:
    set_to(linerate, UNHURRIED_S=0.4, RATE_BPS=5e6, FLOWS=(1, 4), SENDER_BATCHES=200)
    set_to(linerate, LOWEST_BPS=1e6, HIGHEST_BPS=2e6, STEP=1.5)
    set_to(linerate, USUAL=linerate.Form(0.4, 0.2, (50_000, 100_000), (4,)))
    found = linerate.measure(rounds=1)
    in_time = [row for row in found if row.name.startswith("decided in time")]
    every_highest = [row for row in found if row.name.startswith("highest rate")]
    # The row of bf16 has a form of its own.
    highest = [row for row in every_highest if "bf16" not in row.name]
    lateness = [row for row in found if row.name.startswith("lateness of the load itself")]
    rounded = "amx_bf16" in Path("/proc/cpuinfo").read_text()  # no rows of bf16 on another processor
    assert [len(rows) for rows in (in_time, highest, lateness)] == [4, 2, 6]
    assert len(every_highest) == 2 + rounded
    assert all(0 < row.ours <= 1 for row in in_time), in_time
    assert all(0 <= row.ours < 2 for row in every_highest), every_highest
    for ahead in ("asked 50 ms ahead", "asked 100 ms ahead"):
        assert sum(f"{ahead}, 1 flow" in row.name for row in in_time) == 1
        assert sum(f"{ahead}, 4 flows" in row.name for row in [*in_time, *highest]) == 2
    # What a load says of itself stands right behind the row that it made.
    for row, beside in itertools.pairwise(found):
        if row in [*in_time, *highest]:
            assert beside in lateness
            assert row.name.partition("asked")[2] in beside.name
    unhurried = [row for row in found if row.name.startswith("packets decided in a second")]
    sender = [row for row in found if row.name.startswith("a sender pays for a packet")]
    assert (len(unhurried), len(sender)) == (1 + rounded, 4)
    check([*unhurried, *sender, *lateness])
    every, *parts = sender
    assert all(0 < part.ours < every.ours for part in parts)
    assert {row.unit for row in found} == {"share", "Mbit/s", "packets/s", "us", "ns"}
