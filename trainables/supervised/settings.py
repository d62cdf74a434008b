"""The `trainable` section of the config, as `trainables.supervised.training` reads it.

What is wrong with a config of the project's own training that shows before anything is imported to compute with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainables.availability import absent, not_here, runs_here
from trainables.context import RequestError
from trainables.optimizers import schedules
from trainables.optimizers.schedules import Growth
from trainables.registry import (
    DATA,
    FAMILIES,
    MODELS,
    OF_PIXELS,
    SCHEDULES,
    check_options,
    is_number,
    is_whole,
    path_of,
    written_signature,
)

CHOICES = {
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp64"),
    "compile": ("off", "default", "max-autotune"),
    "cuda_graph": ("off", "on"),
    "micro_batch": ("off", "auto"),
    "memory_format": ("contiguous", "channels_last"),
    "input": ("resident", "loader", "shared_loader", "same_batch"),
    "exchange": ("full", "bf16"),
    "checkpoint": ("off", "epochs"),
}

LEAST = {
    "eval_batch_size": 1,
    "window_steps": 1,
    "window_s": 0,
    "warmup_steps": 0,
    "warmup_s": 0,
    "checkpoint_every_s": 0,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train, evaluate and time. Raises ValueError naming the valid choices."""

    precision: str = "fp32"
    """fp32, tf32, bf16, fp16 or fp64: see `trainables.step.training_step`."""
    input: str = "resident"
    """resident: the training set lies on the device and is augmented there; loader: every rank has worker processes
    that load and augment; shared_loader: rank 0 alone has them, and feeds the others; same_batch: and all ranks the
    same samples."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Of the loaders: see `trainables.inputs.loaders.Workers`."""
    slow_down: Mapping[str, float] | None = None
    """`rank` and `factor`: passes of this rank, where there is one, take that many times as long, on purpose."""
    compile: str = "off"
    """off, default or max-autotune: torch.compile of the model, for fixed shapes."""
    compile_fallback: bool = False
    """Whether a model that cannot be compiled is trained all the same; else the trial fails."""
    cuda_graph: str = "off"
    """off, or on: the whole optimizer step is captured once and replayed, for steps shorter than their launches."""
    micro_batch: str = "off"
    """off, or auto: shares that do not fit into memory are taken in several passes, as few as fit on every rank; what
    is evaluated at once is halved until it fits."""
    exchange: str = "full"
    """full: gradients travel between ranks as they are; bf16: rounded to 8 significant bits, half as long."""
    memory_format: str = "contiguous"
    """contiguous (N×C×H×W) or channels_last, which tensor cores prefer."""
    noise_scale: bool = False
    """Whether the gradient noise scale is estimated, where a step has several ranks or passes."""
    label_smoothing: float = 0.0
    """The share of a target that training spreads evenly over all classes; evaluation does not."""
    eval_mirrored: bool = False
    """Whether an image is judged by the mean logits of itself and its mirror image."""
    val_fraction: float = 0.1
    """Of the training set, held out by the trial's seed; 0 measures no `val_accuracy`."""
    target_accuracy: float | None = None
    """`val_accuracy` whose first reaching `time_to_target_s` measures."""
    give_up_below: float | None = None
    """`val_accuracy` after the training below which nothing further is looked at, nor timed: the orchestrator's."""
    only_timed: bool = False
    """Whether the training goes only as far as its timing needs, and nothing is looked at but that."""
    eval_batch_size: int = 1024
    """Samples a rank evaluates at once; changes no figure."""
    window_s: float = 2.0
    """Seconds of steady state that throughput is measured over, at least."""
    window_steps: int = 50
    """Optimizer steps of the same, at least."""
    warmup_steps: int = 10
    """Steps that pass untimed before a window that follows the training, at least …"""
    warmup_s: float = 0.3
    """… and seconds, and then until the pace has settled: see `trainables.clock.Warmup`."""

    checkpoint: str = "epochs"
    """off, or epochs: what an interrupted trial goes on from is kept at epochs' ends, and where it is asked to stop."""
    checkpoint_every_s: float = 30.0
    """Seconds of training between two of them, at least; more where writing takes longer than a hundredth of it."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """The settings among the section's keys; the others are the orchestrator's."""
        return Settings(**{each.name: config[each.name] for each in fields(Settings) if each.name in config})

    def slowed_down(self, rank: int) -> float:
        """How many times as long this rank's passes are to take."""
        return self.slow_down["factor"] if self.slow_down and self.slow_down["rank"] == rank else 1.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"trainable.{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        slow = self.slow_down
        if slow is not None and (set(slow) != {"rank", "factor"} or slow["factor"] < 1 or slow["rank"] < 0):
            raise ValueError(f"trainable.slow_down={dict(slow)} is not a rank, and a factor of at least 1")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"trainable.val_fraction={self.val_fraction} is not a share of the training set below 1")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"trainable.label_smoothing={self.label_smoothing} is not a share below 1")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise ValueError(f"trainable.target_accuracy={self.target_accuracy} is not a share of 1, such as 0.9")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"trainable.{name}={getattr(self, name)} is not at least {least}")


HANDED = {"model": ("input_shape", "num_classes"), "data": (), "optimizer": ("params", "lr"), "schedule": ("progress",)}
"""What a factory is given besides its section's keys, …"""
APART = {
    "model": ("name", "batch_norm"),
    "data": ("name", "subset", "mean", "std", "augment"),
    "optimizer": ("name", "lr"),
    "schedule": ("name",),
}
"""… and keys of the section that are not for the factory."""


def errors(config: Mapping[str, Any]) -> Iterator[str]:
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
    if message := growth.why_not(config.get("budget") or {}):
        yield message


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
