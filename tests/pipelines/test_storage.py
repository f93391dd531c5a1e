"""The storage that nodes of a cluster share: a real S3-compatible server (moto's)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import s3_server

from swiftqueue.common.settings import settings, variable
from swiftqueue.common.storage import Storage, storage
from swiftqueue.infra.local.processes import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A place in a bucket of a server on a free loopback port, as the settings say."""
    with s3_server("nodes") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(variable("storage"), "s3://nodes/work/")
        found = storage()
        assert found is not None
        yield found


def test_files_and_folders_travel_whole_and_are_removed(place: Storage, tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "below").mkdir(parents=True)
    (given / "below" / "large").write_bytes(bytes(range(256)) * 40_000)
    (given / "empty").write_bytes(b"")
    place.at("folder").put(given)
    place.at("file").put(given / "below" / "large")

    stale = tmp_path / "came" / "folder"
    stale.mkdir(parents=True)
    (stale / "old").touch()
    came = place.at("folder").get(stale)
    assert {path.relative_to(came): path.read_bytes() for path in came.rglob("*") if path.is_file()} == {
        path.relative_to(given): path.read_bytes() for path in given.rglob("*") if path.is_file()
    }
    file = place.at("file").get(tmp_path / "came" / "deep" / "file")
    assert file.read_bytes() == (given / "below" / "large").read_bytes()

    place.at("folder").remove()
    place.at("folder").remove()
    with pytest.raises(FileNotFoundError, match="s3://nodes/work/folder: there is no object"):
        place.at("folder").get(stale)
    assert came.is_dir(), "what was there stays"
    place.at("file").remove()
    with pytest.raises(FileNotFoundError):
        place.at("file").get(file)


@pytest.mark.long
def test_a_storage_that_does_not_answer_is_named(
    place: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConnectionError, match=r"SWIFTQUEUE_STORAGE, s3://no-such-bucket/x: .*bucket"):
        Storage("s3://no-such-bucket/x").put(tmp_path / "file")
    (port,) = free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match="SWIFTQUEUE_STORAGE, s3://nodes/work: "):
        place.get(tmp_path / "file")


def test_what_names_no_bucket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("storage"), "/mnt/share")
    with pytest.raises(ValueError, match=r"SWIFTQUEUE_STORAGE=.*: it must be of the form s3://BUCKET/PATH"):
        settings()
