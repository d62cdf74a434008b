"""What is wrong with a config of the project's own training that shows before anything is imported to compute with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainables.context import RequestError
from trainables.data_place import absent
from trainables.families import DATA, FAMILIES, MODELS, OF_PIXELS, SCHEDULES
from trainables.number import is_number, is_whole
from trainables.optimizers import schedules
from trainables.optimizers.growth import Growth
from trainables.options import check_options, path_of
from trainables.signature import written_signature
from trainables.supervised.settings import Settings
from trainables.whereabouts import not_here, runs_here

HANDED = {"model": ("input_shape", "num_classes"), "data": (), "optimizer": ("params", "lr"), "schedule": ("progress",)}
"""What a factory is given besides its section's keys, …"""
APART = {
    "model": ("name", "batch_norm"),
    "data": ("name", "subset", "mean", "std", "augment"),
    "optimizer": ("name", "lr"),
    "schedule": ("name",),
}
"""… and keys of the section that are not for the factory."""


def mistakes(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for each; a trial finds what only its data and its device can tell."""
    try:
        Settings.of(config["trainable"])
    except ValueError as error:
        yield str(error)
    except TypeError as error:
        yield f"trainable: a value has the wrong type: {error}"
    yield from _names(config)
    yield from _own_keys(config)
    yield from _labels(config.get("model") or {}, config.get("data") or {})
    yield from _subset(config.get("data") or {})
    yield from _statistics(config.get("data") or {})
    yield from _loader(config["trainable"])
    if runs_here(config):
        yield from absent(config.get("data") or {})
    try:
        growth = Growth.of(config["schedule"])
        _try_out(config["schedule"])
    except (ValueError, KeyError, TypeError) as error:
        yield f"schedule: {error}"
        return
    if mistake := growth.why_not(config.get("budget") or {}):
        yield mistake


def remarks(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for data that are not on this machine, where only a plan is made here."""
    if not runs_here(config):
        yield from not_here(config, absent(config.get("data") or {}))


def _subset(data: Mapping[str, Any]) -> Iterator[str]:
    subset = data.get("subset") or {}
    if not isinstance(subset, Mapping):
        if data.get("name") in DATA:
            return  # whose keys the orchestrator compares with those of the shipped file
        yield f"data.subset must be {{train: …, test: …, seed: …}}, numbers of images and a seed, not {subset!r}"
        return
    for key, least in (("train", 1), ("test", 1), ("seed", 0)):
        count = subset.get(key)
        if count is not None and not (is_whole(count) and count >= least):
            yield f"data.subset.{key} must be a whole number of at least {least}, not {count!r}"


def _statistics(data: Mapping[str, Any]) -> Iterator[str]:
    for key in ("mean", "std"):
        given = data.get(key)
        if given is not None and not (isinstance(given, list) and given and all(map(is_number, given))):
            yield f"data.{key} must be null or a list with a number for each channel, not {given!r}"
        elif key == "std" and given is not None and min(given) <= 0:
            yield f"data.std must be above 0 for each channel, which it divides, not {given!r}"


def _loader(trainable: Mapping[str, Any]) -> Iterator[str]:
    loader = trainable.get("loader") or {}
    if not isinstance(loader, Mapping):
        yield f"trainable.loader must be a section with workers, prefetch, pin_memory, not {loader!r}"
        return
    for key, least in (("workers", 0), ("prefetch", 1)):
        if key in loader and not (is_whole(loader[key]) and loader[key] >= least):
            yield f"trainable.loader.{key} must be a whole number of at least {least}, not {loader[key]!r}"


def _labels(model: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[str]:
    """Of a model and a data set of ours, one of which is about images, and the other about their pixels."""
    name, source = str(model.get("name")), str(data.get("name"))
    if name not in MODELS or source not in DATA or name == "torchvision":
        return
    of_pixels = source == "segmentation" or bool(data.get("dense"))
    if name in OF_PIXELS and not of_pixels:
        remedy = "data=segmentation, or data=synthetic data.dense=true"
        yield f"model {name!r} predicts a label for every pixel, but data {source!r} has one per image: use {remedy}"
    if name not in OF_PIXELS and of_pixels:
        remedy = f"use model={' or '.join(OF_PIXELS)}"
        yield f"model {name!r} predicts one label per image, but data {source!r} has one for every pixel: {remedy}"


def _try_out(schedule: Mapping[str, Any]) -> None:
    """Raise what a schedule of ours raises for its values; somebody's own is not imported to be looked at."""
    if schedule["name"] in SCHEDULES:
        schedules.resolve(schedule)(0.0, 1.0)


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    for section, families in FAMILIES.items():
        try:
            path_of(families, config[section]["name"], subject=section)
        except (ValueError, KeyError, TypeError) as error:
            yield str(error) if isinstance(error, ValueError) else f"{section}.name is not set"


def _own_keys(config: Mapping[str, Any]) -> Iterator[str]:
    """Of somebody's own factories, which mostly stand in the place of a shipped choice with keys of its own."""
    for section, given in HANDED.items():
        name = str((config.get(section) or {}).get("name"))
        signature = written_signature(name) if ":" in name else None
        if signature is None:
            continue
        options = {key: value for key, value in config[section].items() if key not in APART[section]}
        try:
            check_options(signature, options, subject=f"{section} {name!r}", given=given)
        except RequestError as error:
            yield str(error)
