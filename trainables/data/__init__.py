"""Data sets by name. A source is a class whose fields are its config keys, with `files()` and `read(device)`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from trainables.component_registry import check_keys, factory_of
from trainables.data.dataset import DataError, Dataset, Samples, channel_statistics, content_hash
from trainables.tokens import Corpus, Text, TokenError, TokenFiles

__all__ = ["DataError", "Dataset", "load"]

FileState = tuple[str, int, int]  # path, size in bytes, time of the last change in ns
MOST_KEPT = 2  # data sets that a process keeps for its next trials


class DataSource(Protocol):
    """A source of a data set: a download, a file, a generator."""

    def files(self) -> Sequence[Path]:
        """Return the files of the data set, after any download. Raises DataError if they are missing."""

    def read(self, device: str) -> Samples:
        """Read everything into memory. Raises DataError. Only synthetic data use the device."""


def load(config: Mapping[str, Any], *, device: str = "cpu") -> Dataset | Corpus:
    """Return the data set `config["name"]`: images with labels, or texts.

    `config["subset"]` takes the first `train` and `test` images of a shuffle by `seed`; null `config["mean"]` and
    `config["std"]` are computed from the training images; `config["augment"]` is for the input pipeline. The other keys
    are the source's. A data set stays in memory for later trials of the process until its files change in size or time.
    Data are on the CPU, except synthetic ones, which are made on `device` and not kept on a GPU.

    Raises DataError for missing, corrupt or malformed data, ValueError for unknown names and keys.
    """
    # Augmentation happens in the input pipeline, so that trials with other augmentations share the data.
    wanted = json.dumps({key: value for key, value in config.items() if key != "augment"}, sort_keys=True)
    place = device if config["name"] == "synthetic" else "cpu"
    # Data on a GPU would keep its memory from the next trial.
    read = _read if place == "cpu" else _read.__wrapped__
    try:
        files = [(str(path), path.stat()) for path in _source(wanted).files()]
        return read(wanted, tuple((path, status.st_size, status.st_mtime_ns) for path, status in files), place)
    except (DataError, TokenError) as error:
        raise DataError(f"data {config['name']!r}: {error}") from error


@functools.lru_cache(maxsize=MOST_KEPT)
def _read(wanted: str, states: tuple[FileState, ...], device: str) -> Dataset | Corpus:
    config = json.loads(wanted)
    source = _source(wanted)
    if isinstance(source, TokenFiles | Text):
        return source.read(device)
    subset = config.get("subset") or {}
    check_keys(_take, subset, subject=f"subset of data {config['name']!r}", given=("samples",))
    samples = _take(source.read(device), **subset)
    mean, std = channel_statistics(samples.train_x)
    return Dataset(
        **vars(samples),
        mean=tuple(config.get("mean") or mean),
        std=tuple(config.get("std") or std),
        version=f"{config['name']}-{content_hash(samples)}",
    )


def _source(wanted: str) -> DataSource | TokenFiles | Text:
    factory, options = factory_of("data", json.loads(wanted))
    source: DataSource | TokenFiles | Text = factory(**options)
    return source


def _take(samples: Samples, *, train: int | None = None, test: int | None = None, seed: int = 0) -> Samples:
    train_x, train_y = _first(samples.train_x, samples.train_y, train, seed)
    test_x, test_y = _first(samples.test_x, samples.test_y, test, seed)
    return Samples(train_x, train_y, test_x, test_y, samples.num_classes)


def _first(x: torch.Tensor, y: torch.Tensor, count: int | None, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count is None:
        return x, y
    if not 0 < count <= len(x):
        raise DataError(f"a subset of {count} images is not between 1 and all {len(x)}")
    # The first images of many sets are sorted by class.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count].to(x.device)
    return x[order], y[order]
