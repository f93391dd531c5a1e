"""`rate follow --keep` keeps records as the loader writes them; a kernel's are in integration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from rate_flows import samples_of

from swiftqueue.common.lock import LockHeldError
from swiftqueue.studies.rate.samples.definition import HORIZONS, LARGEST_RATE, MOST_SAMPLES, NAMES
from swiftqueue.studies.rate.samples.tables import KERNEL, paths_in, read_path, source_of
from swiftqueue.studies.rate.testbed import kept as rate_kept
from swiftqueue.studies.rate.testbed.flows import RECORD
from swiftqueue.studies.rate.testbed.kept import Keeper, keeping

S = 10**9


def flow(number: int, acks: int, since_s: float = 0.0) -> NDArray[Any]:
    """Records of a flow of 10 Mbit/s, of which each ACK delivers a packet."""
    records = np.zeros(acks, RECORD)
    records["flow"], records["number"] = number, np.arange(acks)
    records["since_ns"], records["receiver"] = int(since_s * S), 7 + number % 2
    records["fields"] = [list(row.values()) for row in samples_of(1.25e6, 20_000, acks)]
    return records


def write(folder: Path, number: int, records: Sequence[NDArray[Any]]) -> None:
    """One of the loader's files."""
    np.concatenate([np.empty(0, RECORD), *records]).tofile(folder / f"{number:08d}")


def flows_in(folder: Path) -> list[int]:
    """How many flows each path has."""
    return [len(read_path(folder, name)[1]) for name in paths_in(folder)]


def test_flows_become_a_path_once_enough_are_complete(tmp_path: Path) -> None:
    with keeping(tmp_path, 2) as keeper:
        first, second, later = (flow(number, HORIZONS[-1], number) for number in range(3))
        write(keeper.records, 0, [first, second[:1000]])
        write(keeper.records, 1, [second[1000:1900]])
        keeper.turn()
        assert not list(tmp_path.glob("path=*"))  # the last file has the rest of the second
        write(keeper.records, 1, [second[1000:], later[:100]])
        write(keeper.records, 2, [])
        keeper.turn()
        assert flows_in(tmp_path) == [2]
        (name,) = paths_in(tmp_path)
        samples, flows = read_path(tmp_path, name)
        assert samples["sample"].to_list() == 2 * list(range(MOST_SAMPLES))
        assert samples.row(0)[2:] == tuple(first["fields"][0])
        assert flows["receiver"].to_list() == [0, 1]
        assert flows["started_ns"].to_list() == [0, S]
        assert flows["rate_2000_bytes_per_s"].to_list() == 2 * [first["fields"][-1, NAMES.index("bbr_bw")]]
        write(keeper.records, 3, [later[100:300]])
    assert flows_in(tmp_path) == [2, 1]  # flows before the end, the flow's begin put aside among them
    assert read_path(tmp_path, list(paths_in(tmp_path))[1])[1]["samples"].to_list() == [300]
    assert (keeper.flows, keeper.paths) == (3, 2)
    assert not list((tmp_path / rate_kept.PARTS).iterdir())
    assert {source_of(about) for about in paths_in(tmp_path).values()} == {KERNEL}


def test_a_silent_flow_has_ended_and_one_that_is_short_or_lacks_a_record_is_left_out(tmp_path: Path) -> None:
    with keeping(tmp_path, 2) as keeper:
        gap = np.delete(flow(2, 400), 100)
        write(keeper.records, 0, [flow(0, 500), flow(1, MOST_SAMPLES - 1), gap, flow(3, 200, since_s=50)])
        write(keeper.records, 1, [])
        keeper.turn()
        assert not list(tmp_path.glob("path=*"))  # a minute has not passed
        write(keeper.records, 1, [flow(4, 100, since_s=120), flow(2, 500)[400:]])
        write(keeper.records, 2, [])
        keeper.turn()
        assert flows_in(tmp_path) == [2]
        (name,) = paths_in(tmp_path)
        assert read_path(tmp_path, name)[1]["samples"].to_list() == [500, 200]
    assert flows_in(tmp_path) == [2, 1]


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_killed_one_left_becomes_a_path_and_none_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    killed = Keeper(tmp_path, 2)
    write(killed.records, 0, [flow(0, HORIZONS[-1]), flow(1, HORIZONS[-1]), flow(2, 300)])
    write(killed.records, 1, [flow(2, 500)[300:]])
    with (killed.records / "00000001").open("ab") as cut:
        cut.write(b"half a record")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # when the path is there, and the records are, too
        patched.setattr(Keeper, "_put_aside", dies)
        with pytest.raises(KeyboardInterrupt):
            killed.turn(ended=ended)
    assert flows_in(tmp_path) == [3 if ended else 2]
    (killed.records / ".00000001.partial").write_bytes(b"of a writer that was killed")
    assert (Keeper(tmp_path, 2).paths, flows_in(tmp_path)) == ((0, [3]) if ended else (1, [2, 1]))
    assert not killed.records.exists()


def test_where_nothing_can_be_written_the_samples_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise pl.exceptions.ComputeError("No space left on device")

    keeper = Keeper(tmp_path, 1)
    for number in range(2):
        write(keeper.records, number, [flow(number, HORIZONS[-1])])
    with monkeypatch.context() as patched:
        patched.setattr(rate_kept, "write_path", full)
        with pytest.raises(OSError, match=r"path followed-.* cannot be written: No space left"):
            keeper.turn()
    keeper.turn()
    assert flows_in(tmp_path) == [1]


def test_a_flow_too_fast_to_be_is_left_out(tmp_path: Path) -> None:
    wild = flow(0, 100)
    wild["fields"][50, NAMES.index("bbr_bw")] = LARGEST_RATE
    with keeping(tmp_path, 1) as keeper:
        write(keeper.records, 0, [wild, flow(1, 100)])
    assert flows_in(tmp_path) == [1]


def test_the_oldest_paths_go_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_kept, "MOST_PATHS", 2)
    with keeping(tmp_path, 1) as keeper:
        for number in range(5):
            write(keeper.records, number, [flow(number, HORIZONS[-1], number)])
            write(keeper.records, number + 1, [])
            keeper.turn()
            if number == 0:
                os.rename(next(tmp_path.glob("path=followed-*")), tmp_path / "path=a")
    assert sorted(place.name[-8:] for place in tmp_path.glob("path=*")) == ["00000003", "00000004", "path=a"]


def test_one_alone_keeps_flows_in_a_folder(tmp_path: Path) -> None:
    with (
        keeping(tmp_path, 1),
        pytest.raises(
            LockHeldError, match=r"\.lock: `swiftqueue rate follow` \(pid \d+\) has held this lock"
        ),
        keeping(tmp_path, 1),
    ):
        pass
