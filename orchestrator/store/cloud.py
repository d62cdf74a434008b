"""A folder in an object store (S3, Google Cloud Storage, …), which only accepts whole files."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from sweeps.errors import ConfigError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "file")
"""The supported schemes of store URIs."""

_CHUNK = 1 << 20


def is_uri(place: str) -> bool:
    """Return whether results go to a store rather than to a folder."""
    return "://" in place


def uri_errors(place: str) -> list[str]:
    """A line if the place is a URI with an unknown scheme."""
    scheme = urlsplit(place).scheme
    known = ", ".join(f"{each}://…" for each in SCHEMES)
    return [f"results_dir must be a folder, or one of {known}, not {place!r}"] if scheme not in SCHEMES else []


class Cloud:
    """A folder's files, named relative to it, with `/`. Methods raise OSError if the store refuses."""

    def __init__(self, uri: str, folder: str) -> None:
        """The folder below the URI. Raises ConfigError for a URI that pyarrow cannot use."""
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem

        try:
            self._store, root = FileSystem.from_uri(uri)
        except (ArrowException, OSError) as error:
            raise ConfigError([f"results_dir={uri}: {error}"]) from error
        self._root = PurePosixPath(root) / folder

    def files(self) -> dict[str, tuple[int, float]]:
        """Size in bytes and time of last change by name; unsafe names are left out."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(str(self._root), recursive=True, allow_not_found=True)
        infos = [info for info in self._store.get_file_info(selector) if info.type == FileType.File]
        found = {info.path.removeprefix(f"{self._root}/"): (info.size, info.mtime.timestamp()) for info in infos}
        return {
            name: size_and_time for name, size_and_time in found.items() if not {"", ".", ".."} & set(name.split("/"))
        }

    def read(self, name: str) -> bytes:
        """The contents of a file, which must fit into memory."""
        with self._store.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def fetch(self, name: str, path: Path) -> None:
        """Download the file; it appears as a whole or not at all."""
        aside = path.with_name(f".{path.name}.aside")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._store.open_input_stream(self._path(name)) as stream, aside.open("wb") as file:
            shutil.copyfileobj(stream, file, _CHUNK)
        aside.replace(path)

    def put(self, name: str, path: Path) -> None:
        """Upload the file."""
        with path.open("rb") as file, self._writing(name) as stream:
            shutil.copyfileobj(file, stream, _CHUNK)

    def write(self, name: str, data: bytes) -> None:
        """Write these bytes to a file in the store."""
        with self._writing(name) as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        """Delete the file."""
        self._store.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return str(self._root / name)

    def _writing(self, name: str) -> Any:
        if self._store.type_name == "local":  # object stores have no folders
            self._store.create_dir(str(self._root / PurePosixPath(name).parent), recursive=True)
        return self._store.open_output_stream(self._path(name))
