"""Checks of a language model's config and of its texts before anything starts; they need no torch.

Heads must divide the width, tokens must be in the model's vocabulary, and sequences must fill the largest batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.axes import is_number, is_whole
from trainables.context import RequestError
from trainables.file_facts import kept
from trainables.tokens import (
    Corpus,
    Text,
    TokenError,
    TokenFiles,
    heads_error,
    json_object,
    mapped,
    source_of,
    transformers_config,
)

FEW_STEPS = 10  # in a warm-up of the learning rate, as a rule


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
    batches = _global_batches(config)
    largest = max(batches, default=1)
    if sequences < largest:
        wanted = f"global_batch_size={largest}" if batches else "one"
        tokens = sum(map(len, corpus.train))
        yield f"{tokens:,} tokens are {sequences:,} training sequences of {length}, fewer than {wanted}"
    elif corpus.epoch_tokens and corpus.epoch_tokens // length < largest:
        batch = f"global_batch_size={largest} × {length}" if batches else f"one sequence of {length}"
        needed = f"set data.epoch_tokens={largest * length} or more"
        yield f"data.epoch_tokens={corpus.epoch_tokens} is fewer than {batch} tokens: {needed}"


def few_steps(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark if the budget in tokens is only a few steps of the largest batch."""
    data, model = config.get("data") or {}, config.get("model") or {}
    length = data.get("sequence_length") or model.get("sequence_length")
    tokens, batches = (config.get("budget") or {}).get("tokens"), _global_batches(config)
    if not (is_number(tokens) and is_whole(length) and batches):
        return
    steps = math.ceil(tokens / (max(batches) * length))
    if steps < FEW_STEPS:
        batch = f"{max(batches)} × {length:,} tokens"
        yield f"budget.tokens={tokens} is {steps} optimizer steps of {batch}: losses after so few say nothing"


def _global_batches(config: Mapping[str, Any]) -> list[int]:
    axis = ((config.get("sweep") or {}).get("axes") or {}).get("global_batch_size")
    return [value for value in axis if is_whole(value)] if isinstance(axis, list) else []


def _size_of(tokenizer: str) -> int:
    """Return one more than the largest id of a tokenizer's file. Raises RequestError if it is none."""
    file = Path(tokenizer).expanduser()
    vocabulary = _vocabulary_of(file)
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else list(range(len(vocabulary)))
    try:
        ids += [token["id"] for token in json_object(file).get("added_tokens") or ()]
        return 1 + max(map(int, ids))
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise RequestError(f"{file} is not the file of a tokenizer: {error!r}") from error


def _vocabulary_of(file: Path) -> Mapping[str, Any] | list[Any]:
    """Return {token: id}, or the list of tokens, of a tokenizer's file. Raises RequestError if it has neither."""
    model = json_object(file).get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping | list):
        raise RequestError(f"{file} is not the file of a tokenizer: it has no vocabulary")
    return vocabulary
