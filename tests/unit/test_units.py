"""The systemd unit of the live loop, read again by systemd's own program where it is there."""

from __future__ import annotations

import configparser
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swiftqueue.cli.app import app
from swiftqueue.infra.local.units import write_unit


def test_the_unit_starts_the_loop_at_boot_and_bounds_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "100% mine"))
    monkeypatch.setenv("SWIFTQUEUE_DOWN", "a token of the make that asked")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a key")
    result = CliRunner().invoke(app, ["units", "--memory", "12G", "--every", "60"])
    assert result.exit_code == 0, result.output
    path = tmp_path / "config/systemd/user/swiftqueue.service"
    assert str(path) in result.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(text)
    assert unit["Service"]["MemoryMax"] == "12G"
    assert unit["Service"]["OOMPolicy"] == "continue"  # the keeper starts what was killed for memory
    assert unit["Service"]["ExecStart"].endswith('/swiftqueue" up --live --foreground "--every" "60"')
    # The keeper is the main process: it is started again unless `down` ended it, and takes no part along.
    kept = {"Type": "notify", "Restart": "always", "RestartPreventExitStatus": "0", "KillMode": "process"}
    assert {name: unit["Service"][name] for name in kept} == kept
    assert int(unit["Service"]["WatchdogSec"]) > 10
    assert unit["Service"]["ExecStop"].endswith('/swiftqueue" down')
    assert unit["Install"]["WantedBy"] == "default.target"
    assert f'Environment="SWIFTQUEUE_STATE={tmp_path}/100%% mine"' in text
    assert 'Environment="AWS_SECRET_ACCESS_KEY=a key"' in text
    assert "SWIFTQUEUE_DOWN" not in text
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze here, which reads units as systemd does")
    done = subprocess.run(
        [program, "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert complaints == [], done.stderr


@pytest.mark.parametrize("memory", ["", "lots", "-1G", "0", "101%", "12G\nExecStart=/bin/sh"])
def test_an_amount_of_memory_that_is_none_is_named(memory: str) -> None:
    with pytest.raises(ValueError, match=r"--memory .* must be as 12G, or as 75%"):
        write_unit(memory, [])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--every", "-5"], "--every -5.0: must be above 0"),
        (["--bed", "--speed", "2"], "--speed: --bed replays no trace"),
    ],
)
def test_what_up_would_refuse_at_boot_is_refused_at_once(
    options: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for command in (["units"], ["up", "--live"]):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code != 0
        assert line in f"{result.output} {result.exception}"
    assert not list(tmp_path.rglob("*.service"))


def test_what_a_unit_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="a systemd unit cannot hold this"):
        write_unit("75%", ["--trace", "a\nExecStart=/bin/sh"])
    assert not list(tmp_path.rglob("*.service"))
