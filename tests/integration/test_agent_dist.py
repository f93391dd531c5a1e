"""The agent as a Debian package and as a tar: installed into a root of its own, and run from there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_program import needs_agent
from waiting import wait_until

from swiftqueue.serving.agent.bindings.agent_link import AgentLink, LinkPacket

pytestmark = [
    pytest.mark.slow,
    needs_agent,
    pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="dpkg-dev is not installed"),
]
SOON_NS = 5_000_000_000


@pytest.fixture(scope="module")
def made(project: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The package and the tar."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([project / "infra/setup/agent_dist.sh", out], check=True, capture_output=True)
    (package,), (tar,) = out.glob("*.deb"), out.glob("*.tar.gz")
    return package, tar


@pytest.fixture(scope="module")
def root(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root into which dpkg installed the package; the libraries are those of this machine."""
    folder = tmp_path_factory.mktemp("root")
    state = folder / "var/lib/dpkg"
    for name in ("info", "updates", "triggers"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    install = [
        "dpkg",
        f"--root={folder}",
        "--force-depends",
        "--force-not-root",
        "--log=/dev/null",
        "-i",
        made[0],
    ]
    ran = subprocess.run(install, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def field(package: Path, name: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_it_has_the_version_and_names_what_it_needs(project: Path, made: tuple[Path, Path]) -> None:
    package, tar = made
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert field(package, "Version") == about["version"]
    needs = {one.split()[0] for one in field(package, "Depends").split(", ")}
    assert needs >= {"libc6", "libstdc++6"}
    assert any(one.startswith("libgrpc++") for one in needs)
    assert re.search(r"commit [0-9a-f]{12}", field(package, "Description"))
    assert tar.stem == f"{package.stem}.tar"


def test_both_hold_the_same_files(made: tuple[Path, Path], root: Path) -> None:
    with tarfile.open(made[1]) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar if one.isfile()}  # type: ignore[union-attr]
    assert {name.removeprefix("./") for name in files} == {
        *("usr/bin/swiftqueue-agent", "usr/lib/systemd/system/swiftqueue-agent.service"),
        *("etc/default/swiftqueue-agent", "usr/share/doc/swiftqueue-agent/copyright"),
    }
    for name, content in files.items():
        assert hashlib.sha256((root / name).read_bytes()).digest() == hashlib.sha256(content).digest(), name


def test_the_units_options_are_the_agents(root: Path) -> None:
    known = subprocess.run(
        [root / "usr/bin/swiftqueue-agent", "--help"], capture_output=True, text=True, check=True
    ).stdout
    text = (root / "usr/lib/systemd/system/swiftqueue-agent.service").read_text()
    text += (root / "etc/default/swiftqueue-agent").read_text()
    options = set(re.findall(r" (--[a-z-]+)", text)) - {"--help"}
    assert options >= {"--listen", "--server"}
    assert {option for option in options if f"{option} " not in known} == set()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(root: Path) -> None:
    unit = root / "usr/lib/systemd/system/swiftqueue-agent.service"
    for target in ("sysinit", "basic", "network", "shutdown"):  # systemd's own package brings them
        unit.with_name(f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in ran.stderr.splitlines() if "swiftqueue-agent.service" in line]
    assert own == []


def test_the_installed_agent_decides(root: Path, make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    command = [root / "usr/bin/swiftqueue-agent", "--listen", path, "--local", make_artifact(1)]
    with subprocess.Popen(command, cwd="/", env={"PATH": os.environ["PATH"]}) as agent:
        try:
            wait_until(path.exists, "the agent listens at no socket")
            with AgentLink(str(path), "dist") as link:
                found = []

                def decided() -> bool:
                    found.extend(filter(None, [link.next(0.1)]))
                    return bool(found)

                def asked() -> bool:
                    """It is not before the agent has said hello."""
                    link.next(0.1)
                    return link.ask(0, [LinkPacket(1228)] * 8, time.monotonic_ns() + SOON_NS)

                wait_until(asked, "the agent says no hello")
                wait_until(decided, "no decision came")
            assert found[0].first_packet == 0
            assert len(found[0].queues) == 8
        finally:
            agent.terminate()
