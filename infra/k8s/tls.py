"""A TLS proxy before the ingest, in its pod: senders' tokens cross the network inside TLS.

    python -m swiftqueue.infra.k8s.tls --listen 0.0.0.0:8443 --to 127.0.0.1:8000 \
        --certificate tls.crt --key tls.key

Serve's own proxy stays in clear, because KubeRay asks it for its health that way. The decrypted bytes are
passed on unchanged. After a renewal the next client that connects sees the new certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Annotated, Final

import typer

from swiftqueue.common import program

MOST: Final = 1024  # connections at once
HANDSHAKE_S: Final = 10.0
READ_BYTES: Final = 1 << 16


class Certificates:
    """The server's certificate, which is read again whenever its files change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the certificate and its key.

        Raises:
            OSError: a file cannot be read, or certificate and key do not fit each other.
        """
        self._certificate, self._key = certificate, key
        self._read: tuple[int, int] | None = None
        self.context = self._look()

    def _look(self) -> ssl.SSLContext:
        found = self._certificate.stat().st_mtime_ns, self._key.stat().st_mtime_ns
        if found != self._read:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._certificate, self._key)
            context.sni_callback = self._greet
            self.context, self._read = context, found
        return self.context

    def _greet(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):  # a half-finished renewal: the previous certificate stays
            connection.context = self._look()


async def serve(
    listen: tuple[str, int], to: tuple[str, int], certificates: Certificates, most: int = MOST
) -> asyncio.base_events.Server:
    """Accept connections and return. At most `most` connections are open at once; further ones are closed.

    Raises:
        OSError: the port is taken.
    """
    places = asyncio.Semaphore(most)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if places.locked():
            writer.close()
            return
        async with places:
            with contextlib.suppress(OSError):  # either side may end at any time
                inner_reader, inner_writer = await asyncio.open_connection(*to)
                ways = [_pass(reader, inner_writer), _pass(inner_reader, writer)]
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                inner_writer.close()
            writer.close()

    return await asyncio.start_server(
        one, *listen, ssl=certificates.context, ssl_handshake_timeout=HANDSHAKE_S
    )


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(
    listen: Annotated[str, typer.Option(help="HOST:PORT")],
    to: Annotated[str, typer.Option(help="HOST:PORT of the server that speaks without TLS")],
    certificate: Annotated[Path, typer.Option(help="PEM file of the certificate and its chain")],
    key: Annotated[Path, typer.Option(help="PEM file")],
) -> None:
    """Speak TLS in front of a server without TLS, until SIGTERM."""

    async def run() -> None:
        async with await serve(_address(listen), _address(to), Certificates(certificate, key)) as server:
            await server.serve_forever()

    asyncio.run(run())


if __name__ == "__main__":
    program.run("tls", main)
