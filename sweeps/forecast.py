"""Forecasts of cells: memory, speed and length of a trial before it runs, from rehearsals of a few cells.

A rehearsal (`trainables.supervised.rehearsal`) takes a few real steps. Cells of one kind differ only in the samples
of a pass, the micro-batch. `Rehearsals` says which of them to rehearse, and derives the figures of the others:

- A peak of memory is a line in the micro-batch, or flat, for each part of a trial; the largest part is the peak.
- So is the device's time for a step. A step also takes the host some time, whatever its micro-batch.
- Communication, which a rehearsal without the other ranks leaves out, follows from the bytes that the layout sends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sweeps.identity import digest
from sweeps.lr_rule import RULES
from sweeps.status import Status
from sweeps.trial import TrialSpec

ALONE = "alone"
"""The rendezvous of a rank that rehearses without the others: collectives do nothing, tensors have their real sizes."""

REHEARSED, SHIPPED, SHAPES = "rehearsal", "shipped", "shapes"
"""Sources of forecasts: rehearsals on a machine like this one, shipped ones of another machine, and shapes alone."""
SHAPES_OF = "shapes_of"
"""The key of the config that names the GPU of a rehearsal from shapes."""

_SHORT_OF = ("budget", "schedule", "report")
"""Config sections that change the length of a training, and neither its memory nor the time of a step."""
_OF_LENGTH = (
    *("lr", "reference_batch_size", "probe", "repetition"),
    *("branch_tokens", "branch_window_tokens", "branch_base", "branch_points"),
    *("window_s", "window_steps", "warmup_s", "warmup_steps"),
)
_OFF: tuple[Any, ...] = (None, False, "off", "", [], {})  # values of keys that are not used


def kind_of(trial: TrialSpec) -> str:
    """Return a key that is equal for trials whose figures follow from each other's rehearsals."""
    # A key that a later version adds makes no other kind where it is off.
    config = {
        f"{section}.{key}": value
        for section, values in trial.config.items()
        for key, value in (values if isinstance(values, Mapping) else {"": values}).items()
        if section not in _SHORT_OF and key not in _OF_LENGTH and value not in _OFF
    }
    # The rate itself changes neither memory nor time; a rule that measures during the training does.
    rule = RULES.get(trial.lr.rule)
    return digest(
        {
            "config": config,
            "layout": asdict(trial.layout),
            "rule": trial.lr.rule if rule and rule.in_training else "",
            "passes": trial.batch.grad_accum_steps,
            "device": trial.device,
            "gpus_per_rank": trial.gang.gpus_per_rank,
            "cpus_per_rank": trial.gang.cpus_per_rank,
        }
    )


def micro_batch(trial: TrialSpec) -> int:
    """Return the samples of a forward pass of the rank with the most."""
    return max(trial.batch.shares)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with the ends of its 90% interval."""

    value: float
    lo: float
    hi: float

    @staticmethod
    def within(value: float, share: float) -> Estimate:
        """Return an estimate that may be off by this share."""
        return Estimate(value=value, lo=value / (1 + share), hi=value * (1 + share))

    def times(self, factor: float) -> Estimate:
        """Return so many times the estimate."""
        return self.map(lambda value: value * factor)

    def plus(self, other: Estimate) -> Estimate:
        """Return the sum with an estimate that may be off at the same time."""
        return Estimate(value=self.value + other.value, lo=self.lo + other.lo, hi=self.hi + other.hi)

    def over(self, other: Estimate) -> Estimate:
        """Return the ratio to an estimate that may be off at the same time."""
        return Estimate(value=self.value / other.value, lo=self.lo / other.hi, hi=self.hi / other.lo)

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Return a monotonic function of the estimate."""
        value, *ends = function(self.value), function(self.lo), function(self.hi)
        return Estimate(value=value, lo=min(ends), hi=max(ends))


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far a rehearsal's figure may be off, as a share, by how it is derived."""

    rehearsed: float  # at a micro-batch that was rehearsed
    between: float  # between two that were rehearsed
    beyond: float  # outside of what was rehearsed, or from a single rehearsal


MEMORY = Accuracy(rehearsed=0.01, between=0.025, beyond=0.06)
TIME = Accuracy(rehearsed=0.03, between=0.08, beyond=0.5)
FASTER, SLOWER = 0.7, 1.6
"""How long the host may take to launch a step in another process, at least and at most, as a multiple of the rehearsed
time: 0.70 to 1.86 in 20 cells on H100 and H200. A 90% interval leaves out the slowest."""
HOST_BOUND = 1.1  # a step is bound by the host's launches if it takes this many times as long as the device alone
MEMORY_OF_SHAPES = Accuracy(rehearsed=0.08, between=0.1, beyond=0.15)
TIME_OF_SHAPES = Accuracy(rehearsed=0.5, between=0.5, beyond=0.8)
COMPILED = 0.5
"""The least share of memory and time that a compiler leaves of what shapes tell."""
TIME_ON_CPU = Accuracy(rehearsed=0.25, between=0.3, beyond=1.0)
"""Other programs use cores, and clocks follow the temperature."""
ELSEWHERE = 0.7  # the share that is added for a rehearsal on another machine
BESIDE = 1.0
"""The share by which the time outside the training may be off: the start of processes, checkpoints and files are not
rehearsed."""
WARMUPS = 1.5  # warm-ups last longer than their least length, until the pace is steady

LINK_GB_S = 250.0  # bandwidth between GPUs of a node with NVLink, as all-reduces of 100 MB and more measure it
HIDDEN, EXPOSED, SLOWED = 0.1, 0.4, 3.0
"""How much longer overlapping communication makes a step, as a multiple of its duration: at least, usually and at most.
A backward pass hides it, but its kernels run more slowly beside it. 13 layouts on four H100 and H200 had 0.28 to 0.71,
and two 1.9 and 2.5."""
TENSOR = 0.2  # how much longer tensor parallelism makes a step, as a share of it; 0.17 was measured for one layout

BESIDE_GB = 1.0
"""The most that a process holds outside of torch's allocator: the CUDA context, NCCL's buffers, memory of libraries."""

PARTS = ("setup_gb", "passes_gb", "update_gb", "evaluation_gb")  # peaks of the parts of a trial, the evaluation last
HELD = ("parameters_gb", "gradients_gb", "optimizer_gb")  # what a rank holds all the time


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The figures of one rehearsal."""

    kind: str
    micro_batch: int
    status: Status
    note: str = ""
    took_s: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)  # those of `trainables.supervised.rehearsal`
    source: str = REHEARSED

    def scaled(self, factor: float) -> Rehearsal:
        """Return the rehearsal for a machine on which everything takes so many times as long."""
        seconds = {name: value * factor for name, value in self.figures.items() if name.endswith("_s")}
        return replace(self, figures={**self.figures, **seconds}, source=SHIPPED)

    @staticmethod
    def of(trial: TrialSpec, answer: Mapping[str, Any], source: str = REHEARSED) -> Rehearsal:
        """Return the rehearsal of a trial from the answer of the process that rehearsed it."""
        return Rehearsal(
            kind=kind_of(trial),
            micro_batch=micro_batch(trial),
            status=Status(answer["status"]),
            note=answer["note"],
            took_s=answer["took_s"],
            figures=answer["figures"],
            source=source,
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> Rehearsal:
        """Return the rehearsal that a file holds. Raises ValueError, KeyError or TypeError."""
        return Rehearsal(**{**values, "status": Status(values["status"])})


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast of a trial's memory, speed and length."""

    fits: str  # yes, no or unsure
    why: str = ""  # the figures that say so, unless it fits
    peak_memory_gb: Estimate | None = None  # the peak of a rank's GPU; None on CPUs
    parts_gb: Mapping[str, float] = field(default_factory=dict)
    """Parts of the peak: parameters, gradients, optimizer, and activations, which stand for all the rest."""
    step_s: Estimate | None = None
    communication_s: float = 0.0  # the part of a step that waits for other ranks
    samples_per_s: Estimate | None = None
    train_s: Estimate | None = None  # seconds of the training, without evaluation
    duration_s: Estimate | None = None  # seconds of the whole trial
    target_s: Estimate | None = None  # seconds of training until the target
    source: str = REHEARSED

    def figures(self) -> dict[str, Any]:
        """Return what a trial measures, too, as JSON values: estimates by the names of its figures."""
        estimates = {
            "peak_memory_gb": self.peak_memory_gb,
            "samples_per_s": self.samples_per_s,
            "train_s": self.train_s,
            "wall_s": self.duration_s,
        }
        return {"fits": self.fits} | {name: asdict(estimate) for name, estimate in estimates.items() if estimate}


class Rehearsals:
    """The rehearsals of a sweep, by the kind of their trials."""

    def __init__(self, rehearsals: Iterable[Rehearsal] = ()) -> None:
        self._by_kind: dict[str, dict[int, Rehearsal]] = {}
        for rehearsal in rehearsals:
            self.add(rehearsal)

    def add(self, rehearsal: Rehearsal) -> None:
        """Add a rehearsal; it replaces an earlier one of the same micro-batch."""
        self._by_kind.setdefault(rehearsal.kind, {})[rehearsal.micro_batch] = rehearsal

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def __iter__(self) -> Iterator[Rehearsal]:
        return (rehearsal for same in self._by_kind.values() for rehearsal in same.values())

    def next(self, trials: Sequence[TrialSpec]) -> TrialSpec | None:
        """Return the trial to rehearse next, so that the figures of all these trials are known; None at the end."""
        by_kind: dict[str, dict[int, TrialSpec]] = {}
        for trial in trials:
            by_kind.setdefault(kind_of(trial), {}).setdefault(micro_batch(trial), trial)
        for kind, alike in by_kind.items():
            size = _next_size(sorted(alike), self._by_kind.get(kind, {}))
            if size is not None:
                return alike[size]
        return None

    def forecast(self, trial: TrialSpec, between_nodes: Network | None = None) -> Forecast | None:
        """Return the forecast of a trial; None if no trial of its kind was rehearsed."""
        same = self._by_kind.get(kind_of(trial), {})
        ok = {size: same[size].figures for size in sorted(same) if same[size].status is Status.OK}
        size = micro_batch(trial)
        failed = [lacking for lacking, rehearsal in same.items() if rehearsal.status is Status.OOM]
        # Memory grows with the micro-batch: what failed at a smaller one fails here, too.
        if not ok:
            is_short = bool(failed) and size >= min(failed)
            return Forecast(fits="no", why=same[min(failed)].note) if is_short else None
        curve = MicroBatchCurve(ok)
        source = next(iter(same.values())).source
        memory = _memory(curve, size, MEMORY_OF_SHAPES if source == SHAPES else MEMORY)
        if memory and _is_compiled_unseen(trial, source):
            memory = replace(memory, lo=COMPILED * memory.lo)
        forecast = _times(trial, curve, size, source, between_nodes or Network())
        if memory is None:
            return forecast
        device_gb = next(iter(ok.values()))["device_gb"]
        fits, why = _fits(memory, device_gb, is_short=any(lacking <= size for lacking in failed))
        parts = {name.removesuffix("_gb"): curve.at(name, size) for name in HELD}
        # The peak is interpolated separately from its parts, and may fall below their sum by a rounding error.
        parts["activations"] = max(0.0, memory.value - sum(parts.values()))
        return replace(forecast, fits=fits, why=why, peak_memory_gb=memory, parts_gb=parts)


def _next_size(sizes: Sequence[int], done: Mapping[int, Rehearsal]) -> int | None:
    """Return the micro-batch to rehearse next: the smallest, the largest that has memory, and one between of four."""
    smallest = sizes[0]
    if smallest not in done:
        return smallest
    if done[smallest].status is not Status.OK:  # larger ones would fail, too
        return None
    lacking = [size for size, rehearsal in done.items() if rehearsal.status is not Status.OK]
    fitting = [size for size in sizes if size < min(lacking, default=math.inf)]
    if fitting[-1] not in done:
        return fitting[-1]
    # Two points give a line, and a third one between them makes it accurate. For a single cell between, a rehearsal
    # would take as long as it saves.
    inner = fitting[1:-1]
    if len(inner) < 2 or any(size in done for size in inner):
        return None
    return inner[len(inner) // 2]


class MicroBatchCurve:
    """Figures of rehearsals as functions of the micro-batch: lines between them, and beyond the last two."""

    def __init__(self, rehearsed: Mapping[int, Mapping[str, Any]]) -> None:
        """`rehearsed` has the figures by micro-batch, in increasing order."""
        self._figures = rehearsed
        self._sizes = list(rehearsed)

    @property
    def first(self) -> Mapping[str, Any]:
        """The figures of the smallest micro-batch."""
        return self._figures[self._sizes[0]]

    def least(self, name: str) -> float:
        """Return the smallest value of a figure."""
        return min(float(figures[name]) for figures in self._figures.values())

    def most(self, name: str) -> float:
        """Return the largest value of a figure."""
        return max(float(figures[name]) for figures in self._figures.values())

    def at(self, name: str, size: float) -> float:
        """Return a figure, at least 0."""
        values = [float(self._figures[known][name]) for known in self._sizes]
        if len(values) == 1:
            return values[0]
        right = min(max(1, bisect_left(self._sizes, size)), len(values) - 1)
        left = right - 1
        # Beyond the last size the last two give the line; below the first, the first two.
        slope = (values[right] - values[left]) / (self._sizes[right] - self._sizes[left])
        return max(0.0, values[left] + slope * (size - self._sizes[left]))

    def step(self, size: int, error: float) -> Estimate:
        """Return the seconds of a step: the device's, which are off by `error` at most, or the host's if longer."""
        device_s, host_s = self.at("device_step_s", size), self._host_s(size)
        step_s = float(self._figures[size]["step_s"]) if size in self._figures else max(device_s, host_s)
        return Estimate(
            value=step_s,
            lo=max(device_s, FASTER * host_s) / (1 + error),
            hi=max(step_s, SLOWER * host_s) * (1 + error),
        )

    def _host_s(self, size: int) -> float:
        """Return the host's seconds to launch a step; 0 if no rehearsed step was bound by them."""
        bound = {
            known: figures
            for known, figures in self._figures.items()
            if figures["step_s"] > HOST_BOUND * figures["device_step_s"]
        }
        if not bound:
            return 0.0
        # Launches take as long for any micro-batch. Only the input may take longer for a larger one.
        return MicroBatchCurve(bound).at("step_s", min(max(size, min(bound)), max(bound)))

    def error(self, accuracy: Accuracy, size: int) -> float:
        """Return how far a figure may be off, as a share."""
        if size in self._figures:
            return accuracy.rehearsed
        return accuracy.between if self._sizes[0] < size < self._sizes[-1] else accuracy.beyond


def _is_compiled_unseen(trial: TrialSpec, source: str) -> bool:
    """Return whether a compiler will change figures that come from shapes."""
    return source == SHAPES and trial.config["trainable"].get("compile", "off") != "off"


def _memory(curve: MicroBatchCurve, size: int, accuracy: Accuracy) -> Estimate | None:
    if "passes_gb" not in curve.first:
        return None
    *of_training, least_gb = (curve.at(part, size) for part in PARTS)
    most_gb = least_gb
    if not curve.first.get("sequence_length"):
        # Images are evaluated in the same batches by all trials, the first of which tries cuDNN's algorithms.
        least_gb, most_gb = curve.least(PARTS[-1]), curve.most(PARTS[-1])
    error = curve.error(accuracy, size)
    peak_gb = max(*of_training, most_gb)
    return Estimate(value=peak_gb, lo=max(*of_training, least_gb) / (1 + error), hi=peak_gb * (1 + error))


def _fits(peak_gb: Estimate, device_gb: float, *, is_short: bool) -> tuple[str, str]:
    """Return whether a peak fits the device, and its figures if that is not sure."""
    # Torch's peak leaves out what the process holds beside its allocator.
    room_gb = device_gb - BESIDE_GB
    text = f"needs {peak_gb.value:.1f} GB ({peak_gb.lo:.1f} to {peak_gb.hi:.1f}) of {room_gb:.1f} GB"
    if is_short or peak_gb.lo > room_gb:
        return "no", text
    return ("yes", "") if peak_gb.hi <= room_gb else ("unsure", text)


def _times(trial: TrialSpec, curve: MicroBatchCurve, size: int, source: str, between_nodes: Network) -> Forecast:
    """Return the forecast of a trial's times. Whether it fits is not known."""
    accuracy = TIME_OF_SHAPES if source == SHAPES else TIME if trial.device == "cuda" else TIME_ON_CPU
    own = curve.step(size, curve.error(accuracy, size) + (ELSEWHERE if source == SHIPPED else 0.0))
    if _is_compiled_unseen(trial, source):
        own = replace(own, lo=COMPILED * own.lo)
    waits = communication(trial, curve.first).plus(between_nodes.exchange(curve.first["n_params"]))
    step = own.plus(waits)
    training = training_s(trial, curve.first, step)
    starts_s = curve.least("setup_s") + curve.least("first_step_s")  # later trials of a process start faster
    beside_s = starts_s + _beside_training_s(trial, curve.first, step.value, training.value)
    forecast = of_step(trial, step, training, beside_s)
    return replace(forecast, communication_s=waits.value, source=source)


def of_step(trial: TrialSpec, step: Estimate, training: Estimate | None, beside_s: float) -> Forecast:
    """Return the forecast that follows from the seconds of a step, of the training, and of what is beside it."""
    samples = trial.batch.global_batch_size
    beside = Estimate.within(beside_s, BESIDE)
    return Forecast(
        fits="unsure",
        step_s=step,
        samples_per_s=step.map(lambda step_s: samples / step_s),
        train_s=training,
        duration_s=training.plus(beside) if training else None,
    )


@dataclass(frozen=True, kw_only=True)
class Network:
    """The nodes of a trial, and the bandwidth between them."""

    nodes: int = 1
    bandwidth_gb_s: float = math.inf

    def exchange(self, n_params: float) -> Estimate:
        """Return how much longer the exchange of gradients between nodes makes a step, in seconds.

        A ring of M nodes sends 2 (M - 1) / M of the gradients in fp32. The backward pass may hide all of it.
        """
        seconds = 2 * (1 - 1 / self.nodes) * n_params * 4 / 1e9 / self.bandwidth_gb_s
        return Estimate(value=seconds, lo=0.0, hi=2 * seconds)


def communication(trial: TrialSpec, figures: Mapping[str, Any]) -> Estimate:
    """Return the seconds of a step that wait for other ranks, if the rehearsal had none.

    A ring sends (n - 1) / n of a tensor to gather or to reduce and scatter it, and both to reduce it to all of n ranks.
    With tensor parallelism the interval is wide, because activations are not counted.
    """
    if not figures.get("is_alone"):
        return Estimate(value=0.0, lo=0.0, hi=0.0)
    if trial.layout.tensor > 1:  # activations are exchanged within each layer, which nothing hides
        return Estimate(value=TENSOR * figures["step_s"], lo=0.0, hi=figures["step_s"])
    layout, passes = trial.layout, trial.batch.grad_accum_steps
    # Parameters that are not kept after the forward pass are gathered again for the backward pass.
    times = passes * (1 if layout.keeps_parameters else 2)
    sharded_gb = times * figures["gathered_gb"] + figures["exchanged_gb"] * (layout.shards > 1)
    replicated_gb = 2 * figures["exchanged_gb"] / layout.shards
    sent_gb = sharded_gb * (1 - 1 / layout.shards) + replicated_gb * (1 - 1 / layout.replicas)
    seconds = sent_gb / LINK_GB_S
    if not figures["overlaps"]:
        return Estimate(value=seconds, lo=seconds / 3, hi=seconds * 3)
    return Estimate(value=seconds * EXPOSED, lo=seconds * HIDDEN, hi=seconds * SLOWED)


def training_s(trial: TrialSpec, figures: Mapping[str, Any], step: Estimate) -> Estimate:
    """Return the seconds of the training; `figures` has `epoch_samples` and `sequence_length`."""
    [(unit, amount)] = trial.length.items()
    # A branch begins with another training's checkpoint, and trains only its window.
    if trial.settings.get("branch_base"):
        unit, amount = "tokens", trial.settings["branch_window_tokens"]
    if unit == "seconds":
        return Estimate(value=amount, lo=amount, hi=amount)
    tokens = figures.get("sequence_length") or 1
    samples = {"epochs": figures["epoch_samples"], "samples": 1, "tokens": 1 / tokens}
    steps = amount if unit == "steps" else math.ceil(amount * samples[unit] / trial.batch.global_batch_size)
    return step.times(steps)


def _beside_training_s(trial: TrialSpec, figures: Mapping[str, Any], step_s: float, train_s: float) -> float:
    """Return the seconds of a trial's evaluations, and of further steps for its timing."""
    epoch_s = figures["epoch_samples"] / trial.batch.global_batch_size * step_s
    evaluations = math.ceil(train_s / epoch_s) * figures["validation_s"] + figures["test_s"]
    window_s = max(trial.settings["window_s"], trial.settings["window_steps"] * step_s)
    # Two epochs that are long enough are timed within the training; otherwise further steps are timed after it.
    has_window = train_s >= 2 * epoch_s >= 2 * window_s
    warmup_s = max(trial.settings["warmup_s"], trial.settings["warmup_steps"] * step_s)
    timing_s = 0.0 if has_window else WARMUPS * warmup_s + window_s
    return float(evaluations + timing_s)
