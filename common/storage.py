"""S3-compatible storage through which programs without a shared folder exchange files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swiftqueue.common.atomic import new_file, new_folder
from swiftqueue.common.settings import settings, variable


def storage() -> Storage | None:
    """Return the storage that SWIFTQUEUE_STORAGE names, or None."""
    uri = settings().storage
    return Storage(uri.rstrip("/")) if uri else None


@dataclass(frozen=True)
class Storage:
    """A place in a bucket; its users need the bucket's key and address (AWS_*, AWS_ENDPOINT_URL).

    Raises:
        ConnectionError: in each method, if the storage does not answer, or refuses.
    """

    uri: str  # s3://BUCKET/PATH

    def at(self, name: str) -> Storage:
        """Return a place below this one."""
        return Storage(f"{self.uri}/{name}")

    def put(self, source: Path) -> None:
        """Upload the content of a folder, or a file; other objects here stay.

        Objects appear one by one: publish their place only after this returns.
        """
        from pyarrow.fs import copy_files

        with self._named():
            copy_files(str(source.absolute()), self.uri)

    def get(self, target: Path) -> Path:
        """Copy the objects here to a folder or file, replacing it atomically.

        Raises:
            FileNotFoundError: there is no object here.
        """
        from pyarrow.fs import FileSystem, FileType, copy_files

        with self._named():
            files, path = FileSystem.from_uri(self.uri)
            kind = files.get_file_info(path).type
        if kind == FileType.NotFound:
            raise FileNotFoundError(f"{self.uri}: there is no object")
        target.parent.mkdir(parents=True, exist_ok=True)
        with (new_folder if kind == FileType.Directory else new_file)(target) as partial, self._named():
            copy_files(self.uri, str(partial.absolute()))
        return target

    def remove(self) -> None:
        """Remove all objects here."""
        from pyarrow.fs import FileSystem, FileType

        with self._named():
            files, path = FileSystem.from_uri(self.uri)
            kind = files.get_file_info(path).type
            if kind == FileType.Directory:
                files.delete_dir(path)
            elif kind == FileType.File:
                files.delete_file(path)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = " ".join(str(error).split())
            raise ConnectionError(f"{variable('storage')}, {self.uri}: {reason}") from error
