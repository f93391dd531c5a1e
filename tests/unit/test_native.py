"""A library that is missing or stale: one line that says what to do, wherever it is met."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swiftqueue import feature_store
from swiftqueue.common import native
from swiftqueue.feature_store.events import event_library
from swiftqueue.feature_store.packets import pcaplib


def test_a_library_older_than_a_source_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "_build" / "old.so"
    library.parent.mkdir()
    # A wheel has no Makefile, and no sources that could be newer.
    (tmp_path / "Makefile").write_text("_build/old.so: always\n\tfalse\nalways:\n")
    library.write_bytes(b"")
    os.utime(library, (0, 0))
    with pytest.raises(native.NotBuiltError, match=r"old\.so is older than its sources: run `make setup`"):
        native.load(library, (str(feature_store.FOLDER / "events" / "event_stream.h"),), {})
    with pytest.raises(native.NotBuiltError, match=r"gone\.so is not built: run `make setup`"):
        native.load(tmp_path / "gone.so", (), {})


def test_both_libraries_load() -> None:
    assert native.load(pcaplib.LIBRARY, pcaplib.SOURCES, {}).sq_capture_new
    assert native.load(event_library.LIBRARY, event_library.SOURCES, {}).sq_event_schema


def test_an_import_that_meets_it_ends_in_one_line(tmp_path: Path) -> None:
    library = tmp_path / "gone.so"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib, sys; from swiftqueue.common.native import load; "
            "load(pathlib.Path(sys.argv[1]), (), {})",
            str(library),
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{library} is not built: run `make setup`\n"


@pytest.mark.parametrize(
    ("folder", "source", "headers"),
    [
        ("serving/engine", "engine.cc", "HEADERS"),
        ("serving/triton/native", "model.cc", "HEADERS"),
        ("serving/triton/identity", "identity.cc", "HEADERS"),
        ("serving/agent", "io/feed.cc", "HEADERS"),
        ("serving/agent", "bindings/swiftqueue.cc", "UDP_HEADERS"),
    ],
)
def test_make_knows_each_header_that_a_source_includes(
    project: Path, folder: str, source: str, headers: str
) -> None:
    """One that it does not know may change, and nothing is built anew."""

    def said(*command: str) -> set[Path]:
        ran = subprocess.run(command, cwd=project / folder, capture_output=True, text=True, check=True)
        words = ran.stdout.rpartition(":")[2].split()
        return {(project / folder / word).resolve() for word in words if word.endswith(".h")}

    known = said("make", "-s", f"--eval=show:; @echo $({headers})", "show")
    included = said("g++", "-std=c++20", "-MM", "-MG", f"-I{project}", source)
    assert {header for header in included if header.parent.name != "_build"} <= known
