"""Data by name. A family is a class whose fields are its config keys, with `files()` and `read(device)`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from trainables.data.dataset import DataError, Dataset, Samples, channel_statistics, content_hash
from trainables.registry import DATA, check_keys, choose

__all__ = ["DataError", "Dataset", "load"]

FileState = tuple[str, int, int]
"""Path, size in bytes, time of the last change in ns."""
KEPT = 2
"""Data sets that a process keeps for its next trials."""


class Family(Protocol):
    """Where a data set comes from."""

    def files(self) -> Sequence[Path]:
        """The files it is read from, after any download; DataError where they are absent."""

    def read(self, device: str) -> Samples:
        """Everything in memory; DataError where it cannot be read. Only made-up data use the device."""


def load(config: Mapping[str, Any], *, device: str = "cpu") -> Dataset:
    """The data set `config["name"]`.

    `config["subset"]` takes the first `train` and `test` images of a shuffle by `seed`; `config["mean"]` and
    `config["std"]` are those of the training images where they are null; `config["augment"]` is for the input pipeline.
    The other keys are the family's. A data set stays in memory for the process' later trials until its files change in
    size or time. All are on the CPU but synthetic data, which are made on `device`, and are not kept on a GPU.

    Raises DataError for data that are absent, corrupt or ill-formed, ValueError for unknown names and keys.
    """
    wanted = json.dumps({key: value for key, value in config.items() if key != "augment"}, sort_keys=True)
    place = device if config["name"] == "synthetic" else "cpu"
    read = _read if place == "cpu" else _read.__wrapped__
    try:
        return read(wanted, tuple(map(_state, _family(wanted).files())), place)
    except DataError as error:
        raise DataError(f"data {config['name']!r}: {error}") from error


@functools.lru_cache(maxsize=KEPT)
def _read(wanted: str, states: tuple[FileState, ...], device: str) -> Dataset:
    config = json.loads(wanted)
    subset = config.get("subset") or {}
    check_keys(_take, subset, subject=f"subset of data {config['name']!r}", given=("samples",))
    samples = _take(_family(wanted).read(device), **subset)
    mean, std = channel_statistics(samples.train_x)
    return Dataset(
        **samples._asdict(),
        mean=tuple(config.get("mean") or mean),
        std=tuple(config.get("std") or std),
        version=f"{config['name']}-{content_hash(samples)}",
    )


def _state(path: Path) -> FileState:
    found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns


def _family(wanted: str) -> Family:
    config = json.loads(wanted)
    options = {key: value for key, value in config.items() if key not in ("name", "subset", "mean", "std")}
    factory = choose(DATA, config["name"], subject="data")
    check_keys(factory, options, subject=f"data {config['name']!r}", given=())
    family: Family = factory(**options)
    return family


def _take(samples: Samples, *, train: int | None = None, test: int | None = None, seed: int = 0) -> Samples:
    train_x, train_y = _first(samples.train_x, samples.train_y, train, seed)
    test_x, test_y = _first(samples.test_x, samples.test_y, test, seed)
    return Samples(train_x, train_y, test_x, test_y, samples.num_classes)


def _first(x: torch.Tensor, y: torch.Tensor, count: int | None, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    if count is None:
        return x, y
    if not 0 < count <= len(x):
        raise DataError(f"a subset of {count} images is not between 1 and all {len(x)}")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count].to(x.device)
    return x[order], y[order]
