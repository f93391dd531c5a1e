"""S3-compatible storage, where programs that share no folder hand each other files (SWIFTQUEUE_STORAGE)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.atomic import new_file, new_folder
from common.settings import settings, variable


def storage() -> Storage | None:
    """The storage that the setting names, if it does."""
    uri = settings().storage
    return Storage(uri.rstrip("/")) if uri else None


@dataclass(frozen=True)
class Storage:
    """A place in a bucket. Whoever uses it has its key and its address (AWS_*, AWS_ENDPOINT_URL).

    Raises:
        ConnectionError: of each method: the storage does not answer, or refuses.
    """

    uri: str  # s3://BUCKET/PATH

    def at(self, name: str) -> Storage:
        """A place below this one."""
        return Storage(f"{self.uri}/{name}")

    def put(self, source: Path) -> None:
        """Have here what is in a folder, or a file; what else is here stays.

        Many objects do not come at once: tell nobody of them before this returns.
        """
        from pyarrow.fs import copy_files

        with self._named():
            copy_files(str(source.absolute()), self.uri)

    def get(self, target: Path) -> Path:
        """Make a folder or file of what is here, whole or not at all, in the place of what was there.

        Raises:
            FileNotFoundError: nothing is here.
        """
        from pyarrow.fs import FileSystem, FileType, copy_files

        with self._named():
            files, path = FileSystem.from_uri(self.uri)
            kind = files.get_file_info(path).type
        if kind == FileType.NotFound:
            raise FileNotFoundError(f"{self.uri}: nothing is there")
        target.parent.mkdir(parents=True, exist_ok=True)
        with (new_folder if kind == FileType.Directory else new_file)(target) as partial, self._named():
            copy_files(self.uri, str(partial.absolute()))
        return target

    def remove(self) -> None:
        """Remove all that is here."""
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
