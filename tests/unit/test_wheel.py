"""The wheel: installed into an empty environment, away from the checkout, it reads a capture and predicts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
LIBRARIES = {  # those that Python loads, by the room that holds them
    "common": "libswiftqueue_door.so",
    "feature_store": "libpcapdecode.so",
    "models/networks": "libswiftqueue_attention.so",
    "serving/engine": "libswiftqueue_engine.so",
}
# Prints which module of another package each step loaded.
READ = """
import sys
import swiftqueue
before = set(sys.modules)
packets = swiftqueue.read_capture(sys.argv[1])
events = swiftqueue.events(packets)
print(swiftqueue.__file__, packets.height, events.height, sep="|")
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
PREDICT = """
import sys
import swiftqueue
forecasts = swiftqueue.load_model(sys.argv[2]).predict(swiftqueue.read_capture(sys.argv[1]))
print(swiftqueue.scores(forecasts)["packets"], swiftqueue.model_card(sys.argv[2]).network["band"])
"""


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy of the tracked files and of what is compiled already."""
    from test_tutorials import checkout

    source = checkout(project, tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("dist")
    build = [BIN / "uv", "build", "--wheel", "--offline", "--no-build-isolation"]
    ran = subprocess.run(
        [*build, "--python", sys.executable, "--out-dir", out, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel; other packages come from here, the checkout does not."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([BIN / "uv", "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin/python"
    install = [BIN / "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its .pth files are not read
    return python


def run(python: Path, code: str, folder: Path, *arguments: Path) -> list[str]:
    ran = subprocess.run(
        [python, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.slow
def test_it_holds_the_native_parts_and_the_licences_and_no_test(project: Path, wheel: Path) -> None:
    assert re.fullmatch(r"swiftqueue-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    for room, library in LIBRARIES.items():
        assert f"swiftqueue/{room}/_build/{library}" in names
    assert [name for name in names if "/tests/" in name or "asan" in name or "simulation/" in name[:20]] == []
    licences = [name for name in names if "/licenses/" in name]
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert len(licences) == len(about["license-files"]) > 1
    assert f"-{about['version']}-" in wheel.name


@pytest.mark.slow
def test_it_reads_a_capture_away_from_the_checkout(project: Path, installed: Path, tmp_path: Path) -> None:
    capture = shutil.copy(project / "tests/data/captures/ethernet_us_le.pcap", tmp_path)
    first, loaded = run(installed, READ, tmp_path, capture)
    file, packets, events = first.split("|")
    assert Path(file).is_relative_to(installed.parents[1])
    assert (int(packets), int(events)) == (8, 15)
    # What it needed is declared, or comes with what is declared.
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=]", one)[0] for one in about["dependencies"]}
    with_them = {"polars-runtime-32", "setuptools", "cloudpickle", "typing_extensions", "swiftqueue"}
    found = packages_distributions()
    used = {package for name in loaded.split() for package in found.get(name, [])}
    assert used <= declared | with_them


@pytest.mark.slow
def test_it_predicts_with_a_models_folder(project: Path, installed: Path, tmp_path: Path) -> None:
    capture = shutil.copy(project / "tests/data/captures/ethernet_us_le.pcap", tmp_path)
    model = project / "docs/laboratory/models/figure8/uncoupled"
    assert run(installed, PREDICT, tmp_path, capture, model) == ["5 64"]
