"""Texts as tokens: memory-mapped .bin files of nanoGPT and llm.c, and folders of text as bytes or by a tokenizer.

A source returns a `Corpus`, whose files are cut into sequences that do not overlap. This module needs no torch: the
orchestrator finds files with it before anything starts.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.axes import flat
from trainables.component_registry import DATA, TEXTS
from trainables.context import RequestError

if TYPE_CHECKING:
    import numpy.typing as npt

    Tokens = npt.NDArray[Any]
else:
    Tokens = Any  # numpy is imported where texts are read, because a plan without texts does without it
"""The tokens of a file: whole numbers of at least 0."""

HEADER_BYTES = 1024
HEADERS: Mapping[tuple[int, int], str] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""{the first two int32 of a file of llm.c: the type of the tokens after the header}"""
TYPES = ("uint16", "uint32")


class TokenError(ValueError):
    """Tokens are missing or malformed; the message is one line with the numbers."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The numbers of tokens that a config of texts sets; None where it sets none."""

    sequence_length: int | None = None  # tokens of a sequence; None: the model's
    epoch_tokens: int | None = None  # training tokens that count as an epoch; None: all
    validation_tokens: int | None = None  # the most tokens to validate on; None: all

    def lengths(self) -> dict[str, Any]:
        """Return the numbers as keyword arguments."""
        return {field.name: getattr(self, field.name) for field in fields(Lengths)}


@dataclass(frozen=True, kw_only=True)
class Corpus(Lengths):
    """Texts as tokens, file by file."""

    train: tuple[Tokens, ...]
    validation: tuple[Tokens, ...] = ()  # empty: sequences of the training texts are held out
    test: tuple[Tokens, ...] = ()
    bytes_per_token: float | None = None

    @functools.cached_property
    def vocabulary(self) -> int:
        """One more than the largest token; reads all files."""
        files = (*self.train, *self.validation, *self.test)
        return 1 + max(int(tokens.max()) for tokens in files if len(tokens))


_HELD_OUT = re.compile(r"(?<![a-z])(test|e?val|valid|validation)(?![a-z])", re.IGNORECASE)
"""Names with one of these words are not for training."""


@dataclass(frozen=True, kw_only=True)
class TokenFiles(Lengths):
    """A .bin file, or a folder with files whose names contain `train`, and perhaps `val` and `test`.

    Tokens are plain uint16 as nanoGPT writes them, `dtype`, or what the header of llm.c says.
    """

    path: str
    dtype: str = "uint16"
    bytes_per_token: float | None = None

    def files(self) -> Sequence[Path]:
        """Return all files. Raises TokenError if there are none for training."""
        return [path for kind in self._kinds() for path in kind]

    def read(self, device: str) -> Corpus:
        """Map the files into memory; nothing is read yet."""
        train, validation, test = (tuple(mapped(path, self.dtype) for path in kind) for kind in self._kinds())
        parts: dict[str, Any] = {"train": train, "validation": validation, "test": test}
        return Corpus(**parts, bytes_per_token=self.bytes_per_token, **self.lengths())

    def _kinds(self) -> list[list[Path]]:
        """Return the files for training, validation and test.

        Raises TokenError if there is none for training, or a name does not tell: `latest_train`, `trainval`.
        """
        path = Path(self.path).expanduser().resolve()
        if path.is_file():
            return [[path], [], []]
        files = sorted(path.glob("*.bin"))
        # Names may match twice, such as val_test.bin: the most special kind wins, and training never sees it.
        test = [file for file in files if "test" in file.stem]
        validation = [file for file in files if "val" in file.stem and file not in test]
        for file in (*test, *validation):
            if "train" in file.stem and not _HELD_OUT.search(file.stem):
                kind = "test" if file in test else "val"
                raise TokenError(f"{file} is named for both train and {kind}: rename it, or leave it out of the folder")
        train = [file for file in files if "train" in file.stem and file not in (*test, *validation)]
        if not train:
            raise TokenError(
                f"there is no file {path}: set data.path to a .bin file, or a folder with train.bin and val.bin"
            )
        return [train, validation, test]


def mapped(path: Path, dtype: str = "uint16") -> Tokens:
    """Map a .bin file of tokens into memory. Raises TokenError if its size does not fit."""
    import numpy as np

    if dtype not in TYPES:
        raise TokenError(f"data.dtype={dtype!r} is not one of {', '.join(TYPES)}")
    # A file of llm.c begins with a magic number, a version and the number of tokens; nanoGPT's have no header.
    header = [int(number) for number in np.fromfile(path, dtype="<i4", count=3)]
    typed = HEADERS.get((header[0], header[1])) if len(header) == 3 else None
    offset, number_type = (HEADER_BYTES, np.dtype(typed)) if typed else (0, np.dtype(dtype))
    size = path.stat().st_size - offset
    count, rest = divmod(size, number_type.itemsize)
    if rest:
        raise TokenError(
            f"{path} has {size:,} bytes of tokens, no multiple of {number_type.itemsize} ({number_type.name})"
        )
    if typed and count != header[2]:
        raise TokenError(f"{path} has {count:,} tokens, but its header says {header[2]:,}")
    if not count:
        raise TokenError(f"{path} has no tokens")
    # Mapped, not read: all ranks of a host share the pages, and a file may be larger than memory.
    tokens: Tokens = np.asarray(np.memmap(path, dtype=number_type, mode="r", offset=offset, shape=(count,)))
    return tokens


@dataclass(frozen=True, kw_only=True)
class Text(Lengths):
    """A file or a folder of texts in the order of their names, as bytes or by a file of the `tokenizers` package.

    Without a path: the sources of Python's standard library, without its tests. Texts are joined by a zero byte, or a
    tokenizer's `<|endoftext|>` if it has one.
    """

    path: str | None = None
    pattern: str = "*"
    tokenizer: str | None = None

    def files(self) -> Sequence[Path]:
        """Return all texts, and the tokenizer."""
        return [*self._texts(), *([Path(self.tokenizer).expanduser().resolve()] if self.tokenizer else [])]

    def read(self, device: str) -> Corpus:
        """Read everything into memory."""
        import numpy as np

        texts = [path.read_bytes() for path in self._texts()]
        whole = b"\0".join(texts)
        tokens = self._tokenized(texts) if self.tokenizer else np.frombuffer(whole, dtype=np.uint8)
        if not len(tokens):
            raise TokenError(f"{self.path} has no text")
        return Corpus(train=(tokens,), bytes_per_token=len(whole) / len(tokens), **self.lengths())

    def _texts(self) -> list[Path]:
        if self.path is None:
            return standard_library()
        path = Path(self.path).expanduser().resolve()
        files = [path] if path.is_file() else sorted(file for file in path.rglob(self.pattern) if file.is_file())
        if not files:
            raise TokenError(f"there is no file {self.pattern} in {path}: set data.path to a text or a folder of texts")
        return files

    def _tokenized(self, texts: Sequence[bytes]) -> Tokens:
        import numpy as np

        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise TokenError("data.tokenizer needs a further package: pip install tokenizers") from error
        try:
            tokenizer: Any = Tokenizer.from_file(str(Path(self.tokenizer or "").expanduser()))
        except Exception as error:  # the package raises nothing more special
            raise TokenError(f"data.tokenizer={self.tokenizer} cannot be read: {error}") from error
        # Without a mark between them, a model would learn to continue one text with the next.
        end = tokenizer.token_to_id("<|endoftext|>")
        parts: list[int] = []
        for encoded in tokenizer.encode_batch([text.decode(errors="replace") for text in texts]):
            parts += encoded.ids + ([end] if end is not None else [])
        return np.array(parts, dtype=np.uint32)


_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}


@functools.cache
def standard_library() -> list[Path]:
    """Return the sources of Python's standard library, sorted by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in root.rglob("*.py") if not _LEFT_OUT & set(file.relative_to(root).parts[:-1])]
    return sorted(files, key=lambda file: file.relative_to(root).as_posix())


def source_of(data: Mapping[str, Any]) -> TokenFiles | Text | None:
    """Return the source of a config section; None for other data, and for keys that the source does not take."""
    if data.get("name") not in TEXTS:
        return None
    source: type[TokenFiles] | type[Text] = pkgutil.resolve_name(DATA[str(data["name"])])
    try:
        return source(**{key: value for key, value in data.items() if key != "name"})
    except TypeError:  # an unknown key is reported elsewhere
        return None


def files_of(data: Mapping[str, Any]) -> Sequence[Path] | None:
    """Return the files of a config section, empty where they are missing; None for data that are not texts."""
    if data.get("name") not in TEXTS:
        return None
    try:
        source = source_of(data)
        return source.files() if source else []
    except (TokenError, OSError):
        return []


def heads_error(*, width: int, heads: int, kv_heads: int | None) -> str:
    """Return an error, with the numbers, if the heads do not divide the width or the groups the heads; else empty."""
    if width % heads:
        return f"model.heads={heads} does not divide model.width={width}"
    return f"model.kv_heads={kv_heads} does not divide model.heads={heads}" if heads % (kv_heads or heads) else ""


def transformers_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of the folder that model=hf builds from, with `model["config"]`. Raises RequestError."""
    if not isinstance(model["path"], str):
        raise RequestError(f"model.path={model['path']!r} is not a folder")
    folder = Path(model["path"]).expanduser()
    if not (folder / "config.json").is_file():
        raise RequestError(f"model.path={model['path']}: there is no config.json in {folder.resolve()}")
    changed = model.get("config") or {}
    if not isinstance(changed, Mapping):
        raise RequestError(f"model.config must be a section, not {changed!r}")
    values = json_object(folder / "config.json") | dict(changed)
    # `owner/name` is a program of a hub, which transformers would download and run.
    for key, value in flat(values):
        if "implementation" in key and isinstance(value, str) and not value.isidentifier():
            raise RequestError(f"model.path={model['path']}: {key}={value!r} must be a single word, such as sdpa")
    return values


def json_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, which may be a stranger's. Raises RequestError for anything else."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RequestError(f"{file} is not a JSON object")
    return content
