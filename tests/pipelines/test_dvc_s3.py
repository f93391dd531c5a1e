"""Traces through an S3 remote: a real S3-compatible server (moto's), the commands of docs/TRACES.md."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from s3_server import s3_server

from swiftqueue.pipelines.experiments.dvc_command import call_dvc

pytestmark = pytest.mark.slow


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an S3-compatible server on a free loopback port, with a bucket `traces`."""
    with s3_server("traces") as environment:
        for name, value in environment.items():
            if name != "AWS_ENDPOINT_URL":  # DVC is told it, as docs/TRACES.md says
                monkeypatch.setenv(name, value)
        yield environment["AWS_ENDPOINT_URL"]


@pytest.mark.long
def test_a_trace_travels_through_s3(project: Path, endpoint: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    trace = root / "data/traces/office.pcap"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(bytes(range(256)) * 4096)
    original = trace.read_bytes()
    shutil.copytree(
        project / ".dvc", root / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local")
    )
    subprocess.run(["git", "init", "--quiet", root], check=True)

    # As docs/TRACES.md says
    call_dvc(["add", "data/traces/office.pcap"], root)
    call_dvc(["remote", "add", "--default", "store", "s3://traces/swiftqueue"], root)
    call_dvc(["remote", "modify", "store", "endpointurl", endpoint], root)
    call_dvc(["push"], root)
    stored = boto3.client("s3", endpoint_url=endpoint).list_objects_v2(Bucket="traces")["Contents"]
    assert [o["Size"] for o in stored] == [len(original)]

    # A colleague's clone: git brings the pointer, DVC the bytes.
    commit = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "commit",
        "--quiet",
        "-am",
        "trace",
    ]
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(commit, cwd=root, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", root, clone], check=True)
    assert not (clone / "data/traces/office.pcap").exists()
    call_dvc(["pull"], clone)
    assert (clone / "data/traces/office.pcap").read_bytes() == original

    # The cache is lost and the file too: both come back.
    shutil.rmtree(root / ".dvc/cache")
    trace.unlink()
    call_dvc(["pull"], root)
    assert trace.read_bytes() == original
