"""Texts as tokens: memory-mapped .bin files of nanoGPT and llm.c, and folders of text as bytes or by a tokenizer.

A source returns a `Corpus`, whose files are cut into sequences that do not overlap. This module needs no torch: the
orchestrator checks files with it before anything starts.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
"""The tokens of a file: whole numbers of at least 0."""

HEADER_BYTES = 1024
HEADERS: Mapping[tuple[int, int], Any] = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}
"""{the first two int32 of a file of llm.c: the type of the tokens after the header}"""
TYPES = {"uint16": np.uint16, "uint32": np.uint32}


class TokenError(ValueError):
    """Tokens are missing or malformed; the message is one line with the numbers."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Texts as tokens, file by file."""

    train: tuple[Tokens, ...]
    validation: tuple[Tokens, ...] = ()
    """Empty: sequences of the training texts are held out."""
    test: tuple[Tokens, ...] = ()
    sequence_length: int | None = None
    """Tokens of a sequence; None: the model's."""
    epoch_tokens: int | None = None
    """Training tokens that count as an epoch; None: all."""
    validation_tokens: int | None = None
    """The most tokens to validate on; None: all."""
    bytes_per_token: float | None = None

    @functools.cached_property
    def vocabulary(self) -> int:
        """One more than the largest token; reads all files."""
        return 1 + max(int(each.max()) for each in (*self.train, *self.validation, *self.test) if len(each))


@dataclass(frozen=True, kw_only=True)
class TokenFiles:
    """A .bin file, or a folder with files whose names contain `train`, and perhaps `val` and `test`.

    Tokens are plain uint16 as nanoGPT writes them, `dtype`, or what the header of llm.c says.
    """

    path: str
    dtype: str = "uint16"
    sequence_length: int | None = None
    epoch_tokens: int | None = None
    validation_tokens: int | None = None
    bytes_per_token: float | None = None

    def files(self) -> Sequence[Path]:
        """Return all files. Raises TokenError if there are none for training."""
        return [path for kind in self._kinds() for path in kind]

    def read(self, device: str) -> Corpus:
        """Map the files into memory; nothing is read yet."""
        train, validation, test = (tuple(mapped(path, self.dtype) for path in kind) for kind in self._kinds())
        return Corpus(
            train=train,
            validation=validation,
            test=test,
            sequence_length=self.sequence_length,
            epoch_tokens=self.epoch_tokens,
            validation_tokens=self.validation_tokens,
            bytes_per_token=self.bytes_per_token,
        )

    def _kinds(self) -> list[list[Path]]:
        """Return the files for training, validation and test."""
        path = Path(self.path).expanduser().resolve()
        if path.is_file():
            return [[path], [], []]
        found = sorted(path.glob("*.bin"))
        test = [each for each in found if "test" in each.stem]
        validation = [each for each in found if "val" in each.stem and each not in test]
        train = [each for each in found if "train" in each.stem and each not in (*test, *validation)]
        if not train:
            raise TokenError(
                f"there is no file {path}: set data.path to a .bin file, or a folder with train.bin and val.bin"
            )
        return [train, validation, test]


def mapped(path: Path, dtype: str = "uint16") -> Tokens:
    """Map a .bin file of tokens into memory. Raises TokenError if its size does not fit."""
    if dtype not in TYPES:
        raise TokenError(f"data.dtype={dtype!r} is not one of {', '.join(TYPES)}")
    size = path.stat().st_size
    start = np.fromfile(path, dtype="<i4", count=3)
    kind = HEADERS.get((int(start[0]), int(start[1]))) if len(start) == 3 else None
    begin, wide = (HEADER_BYTES, np.dtype(kind)) if kind else (0, np.dtype(TYPES[dtype]))
    if (size - begin) % wide.itemsize:
        raise TokenError(f"{path} has {size - begin:,} bytes of tokens, no multiple of {wide.itemsize} ({wide.name})")
    count = (size - begin) // wide.itemsize
    if kind and count != int(start[2]):
        raise TokenError(f"{path} has {count:,} tokens, but its header says {int(start[2]):,}")
    if not count:
        raise TokenError(f"{path} has no tokens")
    tokens: Tokens = np.asarray(np.memmap(path, dtype=wide, mode="r", offset=begin, shape=(count,)))
    return tokens


@dataclass(frozen=True, kw_only=True)
class Text:
    """A file or a folder of texts in the order of their names, as bytes or by a file of the `tokenizers` package.

    Without a path: the sources of Python's standard library, without its tests. Texts are joined by a zero byte, or a
    tokenizer's `<|endoftext|>` if it has one.
    """

    path: str | None = None
    pattern: str = "*"
    tokenizer: str | None = None
    sequence_length: int | None = None
    epoch_tokens: int | None = None
    validation_tokens: int | None = None

    def files(self) -> Sequence[Path]:
        """Return all texts, and the tokenizer."""
        return [*self._texts(), *([Path(self.tokenizer).expanduser().resolve()] if self.tokenizer else [])]

    def read(self, device: str) -> Corpus:
        """Read everything into memory."""
        texts = [path.read_bytes() for path in self._texts()]
        whole = b"\0".join(texts)
        tokens = self._tokenized(texts) if self.tokenizer else np.frombuffer(whole, dtype=np.uint8)
        if not len(tokens):
            raise TokenError(f"{self.path} has no text")
        return Corpus(
            train=(tokens,),
            sequence_length=self.sequence_length,
            epoch_tokens=self.epoch_tokens,
            validation_tokens=self.validation_tokens,
            bytes_per_token=len(whole) / len(tokens),
        )

    def _texts(self) -> list[Path]:
        if self.path is None:
            return standard_library()
        path = Path(self.path).expanduser().resolve()
        found = [path] if path.is_file() else sorted(each for each in path.rglob(self.pattern) if each.is_file())
        if not found:
            raise TokenError(f"there is no file {self.pattern} in {path}: set data.path to a text or a folder of texts")
        return found

    def _tokenized(self, texts: Sequence[bytes]) -> Tokens:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise TokenError("data.tokenizer needs a further package: pip install tokenizers") from error
        tokenizer: Any = Tokenizer.from_file(str(Path(self.tokenizer or "").expanduser()))
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
    found = [each for each in root.rglob("*.py") if not _LEFT_OUT & set(each.relative_to(root).parts[:-1])]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())
