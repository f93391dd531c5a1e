"""A headless Chromium for tests, driven by its DevTools protocol; it notes what goes wrong in a page."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from waiting import LIMIT_S, wait_until
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """A page of a browser: what it asks for and complains about is kept in `requests` and `complaints`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=LIMIT_S))
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                found: dict[str, Any] = said["result"]
                return found
            self._note(said.get("method", ""), said.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(json.dumps(params["entry"]))

    def open(self, url: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=url)
        wait_until(lambda: self.run("document.readyState") == "complete", f"{url} is not loaded")

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript gives."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """Return the text that is shown in an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str, code: int) -> None:
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def scheme(self, name: str) -> None:
        """Take `light` or `dark` as what the user prefers."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Take a screen of so many CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def picture(self) -> bytes:
        """Return a screenshot of the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


def keep(shown: Browser, name: str) -> None:
    """Write a picture of the page into the folder of SWIFTQUEUE_TEST_PICTURES, for a look at it."""
    picture = shown.picture()
    assert picture.startswith(b"\x89PNG")
    if folder := os.environ.get("SWIFTQUEUE_TEST_PICTURES"):
        Path(folder, f"page-{name}.png").write_bytes(picture)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Give a page of a new headless browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium here; Debian: apt-get install chromium, or make setup-tests")
    with contextlib.ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        command = [
            CHROMIUM,
            *("--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}", "--disable-gpu"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--no-proxy-server"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        ours = os.environ | {"TMPDIR": str(profile)}  # its temporary files go with the profile
        process = stack.enter_context(
            subprocess.Popen(command, env=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(_end, process.pid)
        told = profile / "DevToolsActivePort"
        wait_until(
            lambda: process.poll() is not None or (told.is_file() and "\n" in told.read_text()),
            "chromium does not start",
        )
        assert process.poll() is None, f"chromium ended with code {process.returncode}"
        port = told.read_text().split("\n")[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
            [page] = [one for one in json.load(answer) if one["type"] == "page"]
        address = page["webSocketDebuggerUrl"]
        yield Browser(stack.enter_context(connect(address, max_size=None, open_timeout=LIMIT_S)))


def _end(pid: int) -> None:
    """End a browser with all its processes."""
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        family = [*leader.children(recursive=True), leader]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        deadline_s = time.monotonic() + 10
        while any(one.is_running() and one.status() != "zombie" for one in family[:-1]):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
