"""`swiftqueue part page`: the live page of the loop, on loopback, for its own user.

Three things keep others out (docs/DOORS.md): the door closes connections of other users; what the page shows
is told only with the key (`var/secrets/page`); and a request must name this machine by its loopback address,
so that no site in the browser can take this page for its own (DNS rebinding).

The key comes in the address's fragment, which no browser sends, and the page hands it on in a header. A
cookie would do worse: a browser sends it to every port of this machine, those of other users too.
"""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import Final

from swiftqueue.common import page_server
from swiftqueue.common.heartbeat import Heartbeat
from swiftqueue.common.page_server import PageRequest, PageResponse
from swiftqueue.common.settings import settings
from swiftqueue.common.state import secret
from swiftqueue.infra.local import live_options
from swiftqueue.infra.local.parts import PAGE, end_when_told
from swiftqueue.infra.local.ports import LoopbackPort
from swiftqueue.infra.monitoring.page.view import LiveView
from swiftqueue.serving.triton.endpoint import LOOPBACK

ASSETS: Final = Path(__file__).resolve().parent / "assets"
TYPES: Final = {
    ".html": page_server.TEXT.replace("plain", "html"),
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEALTH, STATE = "/health", "/state.json"
HOST: Final = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")  # a tunnel may have another port
MOST_REQUEST_BYTES: Final = 16 << 10  # a browser sends along the cookies of this machine's other ports
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page:
    """The page's answers."""

    def __init__(self, view: LiveView, key: str) -> None:
        self._view, self._expected = view, f"Bearer {key}".encode()
        self._files = {
            f"/{path.relative_to(ASSETS)}": (path.read_bytes(), TYPES[path.suffix])
            for path in ASSETS.rglob("*")
            if path.suffix in TYPES
        }
        self._files["/"] = self._files["/index.html"]

    async def answer(self, request: PageRequest) -> PageResponse:
        """Answer one request."""
        if not HOST.fullmatch(request.headers.get("host", "")):
            return PageResponse(
                b"this page is at 127.0.0.1 alone\n", "421 Misdirected Request", headers=HEADERS
            )
        if request.path == HEALTH:
            return PageResponse(b"ok\n", headers=HEADERS)
        if request.path in self._files:
            body, content_type = self._files[request.path]
            return PageResponse(body, content_type=content_type, headers=HEADERS)
        if request.path != STATE:
            return PageResponse(b"there is no such page\n", "404 Not Found", headers=HEADERS)
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            asks = {**HEADERS, "WWW-Authenticate": "Bearer"}
            line = b"the key is missing: swiftqueue monitor page prints the address with it\n"
            return PageResponse(line, "401 Unauthorized", headers=asks)
        return PageResponse(self._view.content(), content_type="application/json", headers=HEADERS)


def main(port: LoopbackPort) -> None:
    """Serve the live page of the loop on loopback, until SIGTERM.

    Example: swiftqueue part page --port 9203
    """
    end_when_told()
    view = LiveView()
    page_server.serve(
        Page(view, secret(PAGE)).answer, LOOPBACK, port, name=PAGE, most_request_bytes=MOST_REQUEST_BYTES
    )
    view.run(Heartbeat(settings().heartbeat or live_options.heartbeat(PAGE)).beat)
