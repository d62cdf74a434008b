"""Rehearsals of cells: which are needed, and the memory and the time that they tell of a trial before it runs.

A rehearsal (`trainables.supervised.rehearsal`) takes a few real steps. Cells of one kind differ only in the samples
of a pass, the micro-batch. `Rehearsals` says which of them to rehearse, and derives the figures of the others:

- A peak of memory is a line in the micro-batch, or flat, for each part of a trial; the largest part is the peak.
- So is the device's time for a step. A step also takes the host some time, whatever its micro-batch.
- Communication, which a rehearsal without the other ranks leaves out, follows from the bytes that the layout sends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.plan.estimates import (
    DISTURBED,
    REHEARSED,
    SHAPES,
    SHIPPED,
    Estimate,
    Forecast,
    Network,
    beside_training_s,
    communication,
    of_step,
    training_s,
)
from orchestrator.plan.forecast_accuracy import (
    COMPILED,
    ELSEWHERE,
    FASTER,
    HOST_BOUND,
    MEMORY,
    MEMORY_OF_SHAPES,
    SLOWER,
    TIME,
    TIME_OF_SHAPES,
    TIME_ON_CPU,
    Accuracy,
)
from sweeps.gpus import BESIDE_GB
from sweeps.identity import digest
from sweeps.lr_rule import RULES
from sweeps.status import Status
from sweeps.trial import TrialSpec

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


class Rehearsals:
    """The rehearsals of a sweep, by the kind of their trials."""

    def __init__(self, rehearsals: Iterable[Rehearsal] = ()) -> None:
        self._by_kind: dict[str, dict[int, Rehearsal]] = {}
        for rehearsal in rehearsals:
            self.add(rehearsal)

    def add(self, rehearsal: Rehearsal) -> None:
        """Add a rehearsal; it replaces an earlier one of the same micro-batch."""
        self._by_kind.setdefault(rehearsal.kind, {})[rehearsal.micro_batch] = rehearsal

    def replaced_by(self, others: Rehearsals) -> Rehearsals:
        """Return these rehearsals, with the others in place of those of the same kinds."""
        kept = (rehearsal for rehearsal in self if rehearsal.kind not in others._by_kind)
        return Rehearsals([*kept, *others])

    @property
    def undisturbed(self) -> Rehearsals:
        """The rehearsals that need not be repeated."""
        return Rehearsals(rehearsal for rehearsal in self if rehearsal.source != DISTURBED)

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def __iter__(self) -> Iterator[Rehearsal]:
        return (rehearsal for same in self._by_kind.values() for rehearsal in same.values())

    def next(self, trials: Sequence[TrialSpec]) -> TrialSpec | None:
        """Return the trial to rehearse next, so that the figures of all these trials are known; None at the end."""
        by_kind: dict[str, dict[int, TrialSpec]] = {}
        for trial in trials:
            if self.more_than_samples(trial):
                continue
            by_kind.setdefault(kind_of(trial), {}).setdefault(micro_batch(trial), trial)
        for kind, alike in by_kind.items():
            size = _next_size(sorted(alike), self._by_kind.get(kind, {}))
            if size is not None:
                return alike[size]
        return None

    def forecast(self, trial: TrialSpec, between_nodes: Network | None = None) -> Forecast | None:
        """Return the forecast of a trial; None if no trial of its kind was rehearsed."""
        size, same = micro_batch(trial), self._by_kind.get(kind_of(trial), {})
        sources = [rehearsal.source for rehearsal in same.values()]
        source = DISTURBED if DISTURBED in sources else next(iter(sources), REHEARSED)
        if why := self.more_than_samples(trial):
            return Forecast(fits="no", why=why, source=source)
        # Memory grows with the micro-batch: what failed at a smaller one fails here, too.
        too_large = [other for other in sorted(same) if other <= size and same[other].status is Status.OOM]
        ok = {other: same[other].figures for other in sorted(same) if same[other].status is Status.OK}
        if not ok:
            return Forecast(fits="no", why=same[too_large[0]].note, source=source) if too_large else None
        curve = MicroBatchCurve(ok)
        forecast = _times(trial, curve, size, source, between_nodes or Network())
        memory = _memory(trial, curve, size, source)
        if memory is None:
            return forecast
        fits, why = _fits(memory, curve.first["device_gb"], is_short=bool(too_large))
        return replace(forecast, fits=fits, why=why, peak_memory_gb=memory, parts_gb=_parts_gb(curve, size, memory))

    def more_than_samples(self, trial: TrialSpec) -> str:
        """Return why a trial cannot run if its batch has more samples than the training data; empty otherwise."""
        for rehearsal in self._by_kind.get(kind_of(trial), {}).values():
            samples = rehearsal.figures.get("epoch_samples", math.inf)
            if trial.batch.global_batch_size > samples:
                batch = f"global_batch_size={trial.batch.global_batch_size}"
                return f"{batch} is more than the {samples:,} training samples"
        return ""


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
        if not self._sizes[left] <= size <= self._sizes[right]:
            slope = max(0.0, slope)  # noise on a flat curve may fall, and would reach 0
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


def _memory(trial: TrialSpec, curve: MicroBatchCurve, size: int, source: str) -> Estimate | None:
    """Return the peak of a rank's GPU in GB; None on CPUs."""
    if "passes_gb" not in curve.first:
        return None
    *of_training, least_gb = (curve.at(part, size) for part in PARTS)
    most_gb = least_gb
    if not curve.first.get("sequence_length"):
        # Images are evaluated in the same batches by all trials, the first of which tries cuDNN's algorithms.
        least_gb, most_gb = curve.least(PARTS[-1]), curve.most(PARTS[-1])
    error = curve.error(MEMORY_OF_SHAPES if source == SHAPES else MEMORY, size)
    peak_gb = max(*of_training, most_gb)
    lo_gb = max(*of_training, least_gb) / (1 + error)
    if _is_compiled_unseen(trial, source):
        lo_gb *= COMPILED
    return Estimate(value=peak_gb, lo=lo_gb, hi=peak_gb * (1 + error))


def _parts_gb(curve: MicroBatchCurve, size: int, peak_gb: Estimate) -> dict[str, float]:
    """Return what a rank holds all the time, and `activations`, the rest of the peak."""
    parts_gb = {name.removesuffix("_gb"): curve.at(name, size) for name in HELD}
    # The peak is interpolated separately from its parts, and may fall below their sum by a rounding error.
    return parts_gb | {"activations": max(0.0, peak_gb.value - sum(parts_gb.values()))}


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
    beside_s = starts_s + beside_training_s(trial, curve.first, step.value, training.value)
    forecast = of_step(trial, step, training, beside_s)
    return replace(forecast, communication_s=waits.value, source=source)
