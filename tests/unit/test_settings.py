"""Settings: read from the environment when they are asked for, refused by name, all of them on their page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.settings import Settings, reference, settings, variable

PORTS = [name for name, kind in Settings.__annotations__.items() if "Port" in kind]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)


def test_the_reference_page_is_current(project: Path) -> None:
    page = reference()
    again = "run: python -m swiftqueue.common.settings > docs/SETTINGS.md"
    assert (project / "docs/SETTINGS.md").read_text() == page, again
    for name, field in Settings.model_fields.items():
        assert (field.description or "").endswith("."), name
        assert f"- **`{variable(name)}`**: " in page


def test_each_call_has_what_the_environment_says_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings() == Settings.model_construct()
    for name in ("state", "mlflow_tracking_uri", "ray_address", "triton_grpc"):
        monkeypatch.setenv(variable(name), "7")
        assert str(getattr(settings(), name)) == "7"
        monkeypatch.setenv(variable(name), "")  # as good as none
        assert getattr(settings(), name) == Settings.model_fields[name].default


def test_variables_are_named_after_their_settings_and_others_as_their_owners_do() -> None:
    assert variable("triton_grpc") == "SWIFTQUEUE_TRITON_GRPC"
    assert variable("ray_address") == "RAY_ADDRESS"
    with pytest.raises(KeyError):
        variable("triton_grcp")


@pytest.mark.parametrize("name", PORTS)
@pytest.mark.parametrize("text", ["eighty", "0", "65536", "-1", "8001.5"])
def test_a_port_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(variable(name), text)
    with pytest.raises(ValueError, match="must be") as raised:
        settings()
    port = "a whole number from 1, at most 65535"
    assert str(raised.value) == f"{variable(name)}={text!r}: it must be {port}"


def test_other_values_that_cannot_be_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text, values in (
        ("metrics_address", "localhost", "an IPv4 address"),
        ("ingest_replicas", "65", "a whole number from 1, at most 64"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable(name), text)
            with pytest.raises(ValueError, match=f"{variable(name)}='{text}': it must be {values}$"):
                settings()
    assert len(PORTS) == 10


@pytest.mark.slow
def test_a_program_says_it_in_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"SWIFTQUEUE_STATE": str(tmp_path), "SWIFTQUEUE_RAY_PORT": "none"}
    done = subprocess.run([SWIFTQUEUE, "down"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = "swiftqueue: SWIFTQUEUE_RAY_PORT='none': it must be a whole number from 1, at most 65535\n"
    assert (done.stdout, done.stderr) == ("", line)
    assert not list(tmp_path.iterdir())
