"""Results in an object store (S3, Google Cloud Storage, …): fetched into a local folder, and copied back during a run.

A store only accepts whole files, while the journal needs a disk that appends and syncs. So a sweep works in a folder,
and the store has a copy that is at most EVERY_S plus the time of a copy old: if the machine is lost, so is what ended
since then. The copied journal never mentions files that are not in the store yet.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.store.results_folder import ResultsFolder
from sweeps.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "file")  # the supported schemes of store URIs

_CHUNK = 1 << 20

EVERY_S = 20.0  # how often to copy what is new while trials run

PATIENCE_S = 120.0
"""How long the store may take nothing of the last copy: one that hangs must not keep the sweep from its end."""

_UNKNOWN = (-1, -1)  # state of a file in the store that may differ from the local one


def is_uri(place: str) -> bool:
    """Return whether results go to a store rather than to a folder."""
    return "://" in place


def uri_errors(place: str) -> list[str]:
    """A line if the place is a URI with an unknown scheme."""
    scheme = urlsplit(place).scheme
    known = ", ".join(f"{scheme}://…" for scheme in SCHEMES)
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
        files = {info.path.removeprefix(f"{self._root}/"): (info.size, info.mtime.timestamp()) for info in infos}
        return {
            name: size_and_time for name, size_and_time in files.items() if not {"", ".", ".."} & set(name.split("/"))
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


class Copying:
    """Context manager that copies. Raises ConfigError if the store cannot be reached or holds other results."""

    def __init__(self, uri: str, folder: ResultsFolder, console: Console) -> None:
        self._uri, self._folder, self._console = uri, folder, console
        self._cloud = Cloud(uri, folder.root.name)
        self._not_copied = {folder.lock.name, folder.owner.name, folder.journal.name}
        self._there: dict[str, tuple[int, int]] = {}
        self._journal_bytes = 0
        self._moved_s = 0.0  # when the store last took something, on a monotonic clock
        self._failure: Exception | None = None
        self._over = threading.Event()
        self._copier = threading.Thread(target=self._copy_now_and_then, daemon=True, name="copying")

    def __enter__(self) -> Copying:
        try:
            self._fetch()
        except OSError as error:
            raise ConfigError([f"results_dir={self._uri}: {error}"]) from error
        self._copier.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The last copy has the full patience, however long ago the one before it was.
        self._over.set()
        self._moved_s = time.monotonic()
        while self._copier.is_alive() and time.monotonic() - self._moved_s < PATIENCE_S:
            self._copier.join(min(1.0, PATIENCE_S))  # in short, for a signal to be heard meanwhile
        stuck = f"it has accepted no data for {PATIENCE_S:g} s" if self._copier.is_alive() else ""
        if failure := stuck or self._failure:
            message = f"{self._uri} is not up to date: {failure}; the same command tries again"
            self._console.print(message, style="red", markup=False, soft_wrap=True)

    def _fetch(self) -> None:
        """Fetch the store's results unless the local ones are newer. Raises ConfigError if the journals diverge."""
        journal, files = self._folder.journal, self._cloud.files()
        there = self._cloud.read(journal.name) if journal.name in files else b""
        # A driver that was killed may have left half a record here, which was never copied.
        here = _whole_lines(journal)
        if not here.startswith(there) and not there.startswith(here):
            raise ConfigError(
                [
                    f"results_dir={self._uri} and {self._folder.root} hold results of different runs: "
                    "choose another results_dir or local_results_dir, or move one of them away"
                ]
            )
        # A journal only grows, so that its length says whether the store has all of it.
        self._journal_bytes = len(there)
        if len(there) > len(here):
            for name in sorted(set(files) - self._not_copied):
                self._cloud.fetch(name, self._folder.root / name)
            self._cloud.fetch(journal.name, journal)
        # Copied once more unless size and time agree: a copy too many costs time, one too few costs results.
        self._there = {name: _UNKNOWN for name in files if name not in self._not_copied}
        for name, path in self._files():
            stat = path.stat()
            if files.get(name, (-1, 0.0))[0] == stat.st_size and files[name][1] >= stat.st_mtime:
                self._there[name] = (stat.st_size, stat.st_mtime_ns)

    def _copy_now_and_then(self) -> None:
        while not self._over.wait(EVERY_S):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        """Copy what is new; the journal last, as it was at the beginning of the copy."""
        try:
            journal = _whole_lines(self._folder.journal)
            if self._journal_bytes and not journal:  # what is in the store may be all that is left
                raise FileNotFoundError(f"{self._folder.root} was moved or deleted")
            # Files come before the journal, which must never name one that is not in the store.
            for name, path in self._files():
                self._put(name, path)
            # Checkpoints are by far the largest files, and nothing will read them.
            for name in [name for name in self._there if self._is_over(name)]:
                self._cloud.remove(name)
                del self._there[name]
            if len(journal) != self._journal_bytes:
                self._cloud.write(self._folder.journal.name, journal)
                self._journal_bytes = len(journal)
        except Exception as error:  # in its thread: reported at the end
            self._failure = error
        else:
            self._failure = None

    def _put(self, name: str, path: Path) -> None:
        try:
            stat = path.stat()
        except FileNotFoundError:  # a checkpoint whose trial has ended
            return
        state = (stat.st_size, stat.st_mtime_ns)
        if self._there.get(name) != state:
            self._cloud.put(name, path)
            self._there[name] = state
            self._moved_s = time.monotonic()

    def _is_over(self, name: str) -> bool:
        """Return whether this is a checkpoint whose trial has ended; other files missing here are kept in the store."""
        path = self._folder.root / name
        holds_checkpoints = path.parent.name == "checkpoint" or path.parent.name.startswith("branch-")
        return holds_checkpoints and not path.exists() and path.parent.parent.is_dir()

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Every file of the results, with its name in the store, except links and half-written files."""
        for folder, _, names in os.walk(self._folder.root):
            for name in names:
                path = Path(folder) / name
                relative = path.relative_to(self._folder.root).as_posix()
                if relative not in self._not_copied and not name.endswith(".aside") and not path.is_symlink():
                    yield relative, path


def _whole_lines(journal: Path) -> bytes:
    """The journal's complete lines; a partial last line is left out."""
    data = journal.read_bytes() if journal.is_file() else b""
    return data[: data.rfind(b"\n") + 1]
