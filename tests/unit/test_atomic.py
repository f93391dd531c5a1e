"""Folders and files appear whole or not at all, at whatever instant their writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from swiftqueue.common import atomic
from swiftqueue.common.atomic import new_file, new_folder, write_durably, write_file

WRITER = """
import sys
from pathlib import Path
from swiftqueue.common.atomic import new_folder
print("ready", flush=True)
number = 0
while True:
    number += 1
    with new_folder(Path(sys.argv[1])) as folder:
        for name in "abcdefgh":
            (folder / name).write_text(str(number))
"""


def contents(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_is_replaced_whole_and_kept_after_an_error(
    tmp_path: Path, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:  # as on a file system that cannot: an unknown flag is answered EINVAL
        monkeypatch.setattr(atomic, "RENAME_EXCHANGE", 1 << 20)
    target = tmp_path / "deep" / "result"
    for number in range(3):
        with new_folder(target) as folder:
            assert list(folder.iterdir()) == []
            (folder / str(number)).write_text("whole")
        assert [p.name for p in target.iterdir()] == [str(number)]
    with pytest.raises(FileNotFoundError), new_folder(target) as folder:
        (folder / "half").write_text((folder / "none").read_text())
    assert [p.name for p in target.iterdir()] == ["2"]
    assert [p.name for p in target.parent.iterdir()] == ["result"]


@pytest.mark.slow
def test_a_reader_never_misses_a_folder_that_is_replaced(tmp_path: Path) -> None:
    target, missing, done = tmp_path / "result", [], threading.Event()
    with new_folder(target):
        pass

    def read() -> None:
        while not done.is_set():
            if not os.path.isdir(target):
                missing.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        with new_folder(target) as folder:
            (folder / "file").touch()
    done.set()
    reader.join()
    assert missing == []


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_one_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "result"
    for kill in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        while not target.is_dir():
            assert writer.poll() is None
        try:
            writer.wait(0.002 * kill)  # another instant each time
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert len(list(target.iterdir())) == 8
        assert len(contents(target)) == 1
    with new_folder(target) as folder:
        (folder / "a").write_text("after")
    assert contents(target) == {"after"}
    assert [p.name for p in tmp_path.iterdir()] == ["result"]


def test_a_file_is_written_whole_in_a_folder_that_is_made(tmp_path: Path) -> None:
    write_file(tmp_path / "new" / "file", "one")
    write_file(tmp_path / "new" / "file", b"two")
    assert (tmp_path / "new" / "file").read_text() == "two"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"whole", mode=0o600)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / ".file.partial").write_text("of a writer that was killed")
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "file") as partial:
        partial.write_text((partial if partial.exists() else tmp_path / "none").read_text())
    assert (tmp_path / "file").read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
