"""Texts as tokens: memory-mapped .bin files of nanoGPT and llm.c, and folders of text as bytes or by a tokenizer.

A source returns a `Corpus`, whose files are cut into sequences that do not overlap. This module needs no torch: the
orchestrator checks files with it before anything starts.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeps.axes import flat
from trainables.context import RequestError
from trainables.file_facts import kept
from trainables.registry import DATA, TEXTS

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


_OF_TEST = re.compile(r"(?<![a-z])test(?![a-z])", re.IGNORECASE)
_OF_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid(ation)?)(?![a-z])", re.IGNORECASE)
"""Whole words: `latest_train` is no test, and `retrieval-train` no validation."""


@dataclass(frozen=True, kw_only=True)
class TokenFiles(Lengths):
    """A .bin file, or a folder with files whose names contain `train`, and perhaps the words `val` and `test`.

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
        """Return the files for training, validation and test."""
        path = Path(self.path).expanduser().resolve()
        if path.is_file():
            return [[path], [], []]
        files = sorted(path.glob("*.bin"))
        # Names may match twice, such as val_test.bin: the most special kind wins, and training never sees it.
        test = [file for file in files if _OF_TEST.search(file.stem)]
        validation = [file for file in files if _OF_VALIDATION.search(file.stem) and file not in test]
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


def shape_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors of a language model's numbers, which show without data."""
    model, data = config.get("model") or {}, config.get("data") or {}
    sizes: dict[str, Any] = {key: model.get(key) for key in ("width", "heads", "kv_heads")}
    if str(model.get("name")) in ("gpt", "llama") and all(isinstance(sizes[key], int) for key in ("width", "heads")):
        if message := heads_error(**sizes):
            yield message
    longest, wanted = model.get("sequence_length"), data.get("sequence_length")
    if isinstance(longest, int) and isinstance(wanted, int) and wanted > longest:
        yield f"data.sequence_length={wanted} is beyond model.sequence_length={longest}"
    if model.get("name") == "hf":
        try:
            known = transformers_config(model)
        except (RequestError, KeyError, OSError, ValueError):  # other checks say so, where the trials run
            return
        positions = known.get("max_position_embeddings", known.get("n_positions"))
        if isinstance(longest, int) and isinstance(positions, int) and longest > positions:
            yield (
                f"model.sequence_length={longest} is beyond the {positions} positions of model.path={model['path']}:"
                f" write model.sequence_length={positions} or less"
            )


def heads_error(*, width: int, heads: int, kv_heads: int | None) -> str:
    """Return an error, with the numbers, if the heads do not divide the width or the groups the heads; else empty."""
    if width % heads:
        return f"model.heads={heads} does not divide model.width={width}"
    return f"model.kv_heads={kv_heads} does not divide model.heads={heads}" if heads % (kv_heads or heads) else ""


def tensor_errors(model: Mapping[str, Any], degree: int) -> Iterator[str]:
    """Yield an error for each number of heads, or width of a feed-forward layer, that `degree` ranks cannot divide."""
    sizes, prefix = model, "model."
    if model.get("name") == "hf":
        try:
            sizes, prefix = transformers_config(model), f"config.json of {model['path']}: "
        except (RequestError, KeyError):  # other checks say so
            return
    # The names of this package's models, then those of transformers.
    for key in ("heads", "kv_heads", "hidden", "num_attention_heads", "num_key_value_heads", "intermediate_size"):
        size = sizes.get(key)
        if isinstance(size, int) and size % degree:
            yield (
                f"{prefix}{key}={size} is not a multiple of tensor_parallel={degree}:"
                f" 'sweep.exclude=[{{tensor_parallel: {degree}, …}}]' leaves the combination out"
            )


def content_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield errors of texts that are on this machine, with the numbers; reads all of a .bin file once."""
    data, model = config.get("data") or {}, config.get("model") or {}
    subject = f"data {data.get('name')!r}"
    length = data.get("sequence_length") or model.get("sequence_length")
    try:
        source = source_of(data)
        if source is None:
            return
        vocabulary, place = model.get("vocabulary"), f"model.vocabulary={model.get('vocabulary')}"
        if model.get("name") == "hf" and model.get("path") != "???":
            known = transformers_config(model)
            vocabulary, place = known.get("vocab_size"), f"the {known.get('vocab_size')} of model.path={model['path']}"
            yield from _tokenizer_errors(model, known, source)
        # A token beyond the vocabulary would end a GPU trial with an assertion of the device, without the number.
        sizes = _vocabularies(source).items()
        beyond = [(path, size) for path, size in sizes if isinstance(vocabulary, int) and size > vocabulary]
        for path, size in beyond:
            yield f"{subject}: {path} has tokens up to {size - 1}, beyond {place}"
        # The number of sequences means nothing if the tokens are of another vocabulary.
        if not beyond and isinstance(length, int):
            yield from _count_errors(source.read("cpu"), length, config)
    except RequestError as error:
        yield str(error)
    except (TokenError, OSError, ValueError) as error:
        yield f"{subject}: {error}"


def _vocabularies(source: TokenFiles | Text) -> dict[Path, int]:
    """Return {file: one more than its largest token}; of a text, the file is its tokenizer's."""
    if isinstance(source, Text):
        return {Path(source.tokenizer): _size_of(source.tokenizer)} if source.tokenizer else {Path("bytes"): 256}
    dtype = source.dtype
    return {
        path: 1 + kept(path, f"largest {dtype}", lambda path: int(mapped(path, dtype).max())) for path in source.files()
    }


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
    values = _json_object(folder / "config.json") | dict(changed)
    # `owner/name` is a program of a hub, which transformers would download and run.
    for key, value in flat(values):
        if "implementation" in key and isinstance(value, str) and not value.isidentifier():
            raise RequestError(f"model.path={model['path']}: {key}={value!r} must be a single word, such as sdpa")
    return values


def _json_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, which may be a stranger's. Raises RequestError for anything else."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RequestError(f"{file} is not a JSON object")
    return content


def _tokenizer_errors(model: Mapping[str, Any], known: Mapping[str, Any], source: TokenFiles | Text) -> Iterator[str]:
    """Yield errors of texts in other tokens than the model's."""
    if not isinstance(source, Text):
        return
    own, is_trained = Path(model["path"]).expanduser() / "tokenizer.json", model.get("pretrained") is not False
    vocabulary = known.get("vocab_size")
    if source.tokenizer is None and (own.is_file() or (is_trained and vocabulary != 256)):
        wanted = own if own.is_file() else "the tokenizer.json that it was trained with"
        yield f"data 'text' reads bytes, and the model's vocabulary is {vocabulary}: set data.tokenizer={wanted}"
    elif source.tokenizer is not None and is_trained and own.is_file():
        given, right = (_vocabulary_of(file) for file in (Path(source.tokenizer).expanduser(), own))
        if given != right:
            yield f"data.tokenizer={source.tokenizer} has other tokens than the model was trained with: use {own}"


def _count_errors(corpus: Corpus, length: int, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error if the training sequences, or those of an epoch, are fewer than the largest batch."""
    sequences = sum(max(0, len(tokens) - 1) // length for tokens in corpus.train)
    if not corpus.validation:
        held_out = round(sequences * (config.get("trainable") or {}).get("val_fraction", 0.1))
        # As the training splits them: the check must agree to the last sequence, since batches may equal the data.
        most = held_out if corpus.validation_tokens is None else max(1, corpus.validation_tokens // length)
        sequences -= min(held_out, most)
    axis = ((config.get("sweep") or {}).get("axes") or {}).get("global_batch_size")
    batches = [value for value in axis if isinstance(value, int)] if isinstance(axis, list) else []
    largest = max(batches, default=1)
    if sequences < largest:
        wanted = f"global_batch_size={largest}" if batches else "one"
        tokens = sum(map(len, corpus.train))
        yield f"{tokens:,} tokens are {sequences:,} training sequences of {length}, fewer than {wanted}"
    elif corpus.epoch_tokens and corpus.epoch_tokens // length < largest:
        batch = f"global_batch_size={largest} × {length}" if batches else f"one sequence of {length}"
        yield f"data.epoch_tokens={corpus.epoch_tokens} is fewer than {batch} tokens"


def _size_of(tokenizer: str) -> int:
    """Return one more than the largest id of a tokenizer's file. Raises RequestError if it is none."""
    file = Path(tokenizer).expanduser()
    vocabulary = _vocabulary_of(file)
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else list(range(len(vocabulary)))
    try:
        ids += [token["id"] for token in _json_object(file).get("added_tokens") or ()]
        return 1 + max(map(int, ids))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise RequestError(f"{file} is not the file of a tokenizer: {error!r}") from error


def _vocabulary_of(file: Path) -> Mapping[str, Any] | list[Any]:
    """Return {token: id}, or the list of tokens, of a tokenizer's file. Raises RequestError if it has neither."""
    model = _json_object(file).get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping | list):
        raise RequestError(f"{file} is not the file of a tokenizer: it has no vocabulary")
    return vocabulary
