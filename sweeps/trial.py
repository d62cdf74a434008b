"""One trial, as a plain value: everything that is decided before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from sweeps.axes import is_number
from sweeps.layout import Gang, Layout
from sweeps.lr_rule import LearningRate
from sweeps.printable import printable_line

SHORTEST_WINDOW_S, FEWEST_WINDOW_STEPS = 2.0, 50
"""The least length of a timed window: the default of trainables, and the limit below which a timing is not valid."""

FEWEST_WARMUP_STEPS, SHORTEST_WARMUP_S = 10, 0.3
"""The least untimed steps before a window, in number and length. The hook in commands has the same values."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How one optimizer step's samples are divided: global = Σ shares × grad_accum_steps."""

    global_batch_size: int
    grad_accum_steps: int = 1
    shares: tuple[int, ...]
    """Samples per forward pass, one number for each rank, or for each group of ranks with the same samples."""
    parts_per_rank: int = 1  # parts into which a rank divides its share evenly among devices that it drives itself

    @property
    def data_parallel_size(self) -> int:
        """Return the parts of the batch that are trained at the same time."""
        return len(self.shares) * self.parts_per_rank

    @property
    def device_batch_size(self) -> int:
        """The largest part, which has to fit into the memory of its devices."""
        # Rounded up: one of the devices has the rest of an uneven division.
        return math.ceil(max(self.shares) / self.parts_per_rank)


class Purpose(StrEnum):
    """The reason why a trial runs. Only `train` gives a row; the others measure another trial, `TrialSpec.measures`."""

    TRAIN = "train"
    PROBE = "probe"  # measures speed and memory before the other trial runs
    REPETITION = "repetition"  # trains the other trial once more, which has ended, to time it again
    WINDOW = "window"  # repeats no more than the timed window of the other trial


BUDGET_UNITS = ("epochs", "samples", "tokens", "steps", "seconds")  # a config sets one of these keys of `budget`


def samples_in(unit: str, *, epoch_samples: float, batch_size: int, sequence_length: int | None) -> float:
    """Return the samples of one epoch, sample, token or step; a sample of a language model is a sequence."""
    return {"epochs": epoch_samples, "samples": 1, "tokens": 1 / (sequence_length or 1), "steps": batch_size}[unit]


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial. `trial_id` covers everything that can change its result; `cell_id` the same without the seed."""

    trial_id: str
    cell_id: str
    sweep: str
    axes: Mapping[str, Any]  # the point of the grid as written, {axis: value}
    gpus: float
    gang: Gang
    device: str  # `cuda` or `cpu`; on `cpu`, `gpus` counts worker processes
    layout: Layout
    timing: str  # `device`, `exclusive` or `shared`
    batch: Batch
    lr: LearningRate
    seed: int
    trainable: str  # dotted path `package.module:function` of a function `(config, context) -> None`
    config: Mapping[str, Any]  # the resolved config sections a trainable may read; JSON values only
    purpose: Purpose = Purpose.TRAIN
    measures: str = ""  # the id of the trial that this one measures; empty for `train`

    @property
    def label(self) -> str:
        """A name for people: `batch_scaling/gpus=2,device_batch_size=128,lr_rule=linear,seed=0`."""
        return printable_line(f"{self.sweep}/" + ",".join(f"{axis}={value}" for axis, value in self.axes.items()))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The section `trainable` of its config."""
        return self.config.get("trainable") or {}

    def with_settings(self, **changed: Any) -> TrialSpec:
        """Return the trial with other values in the section `trainable`; its ids stay."""
        return replace(self, config={**self.config, "trainable": {**self.settings, **changed}})

    @property
    def length(self) -> dict[str, float]:
        """The amount that the section `budget` sets, by its unit: `{"epochs": 10}`; empty without a budget."""
        budget: Mapping[str, Any] = self.config.get("budget") or {}
        return {unit: amount for unit, amount in budget.items() if is_number(amount)}

    @property
    def memory_fraction(self) -> float | None:
        """The fraction of its GPU's memory that the rank may use on a shared device; None: no limit."""
        # A trial with the device to itself may use all of its memory, whatever fraction it asked for.
        fraction = self.gang.gpus_per_rank
        return fraction if self.timing == "shared" and 0 < fraction < 1 else None

    @property
    def gpus_held(self) -> float:
        """GPUs that the trial occupies, and so costs; worker processes on `cpu`.

        A timed trial occupies whole devices even if it asks for a fraction; a packed one occupies as much of a device
        as its memory was measured to need, which may be more than it asked for.
        """
        return self.gpus if self.device == "cpu" else self.gang.occupying(self.timing).gpus

    @property
    def columns(self) -> dict[str, Any]:
        """The trial as it was asked, under the names of its row's columns."""
        return {
            "trial_id": self.trial_id,
            "cell_id": self.cell_id,
            "sweep": self.sweep,
            "axes": dict(self.axes),
            "gpus": self.gpus,
            "gpus_held": self.gpus_held,
            "ranks": self.gang.ranks,
            "device": self.device,
            "strategy": self.layout.strategy,
            "timing": self.timing,
            "global_batch_size": self.batch.global_batch_size,
            "device_batch_size": self.batch.device_batch_size,
            "grad_accum_steps": self.batch.grad_accum_steps,
            "lr_rule": self.lr.rule,
            "lr_multiplier": self.lr.multiplier,
            "lr": self.lr.value,
            "seed": self.seed,
            "budget": self.length,
            "purpose": self.purpose,
            "measures": self.measures,
        }


ALONE = "alone"
"""The rendezvous of a rank that rehearses without the others: collectives do nothing, tensors have their real sizes."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """One rank's part in an attempt at a trial. A back end sends it to the rank's process."""

    trial: TrialSpec
    trial_dir: Path | None = None  # the trial's folder; None if nothing is kept
    driver_node: str = ""  # the id of the driver's node, where the folder of results exists; empty without a cluster
    rank: int = 0
    gang_id: str = ""
    """The same id for all trials of the same processes, so that a process group can serve several trials."""
    rendezvous: str | None = None  # `tcp://host:port` for the process group of this trial; None for a single rank
