"""Decides which timings are valid, with the reasons and their figures if one is not.

The questions about a timing, in their order: did other trials run on its devices, did all of its GPUs train, were the
samples of a step counted, was the window long enough, was it disturbed from outside, and is it much slower than other
seeds of its cell, which agree? The first one that is answered badly is the `Fault`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from orchestrator.store.grouping_keys import same_steps
from orchestrator.store.record import TrialRecord
from orchestrator.store.trial_metrics import metric_value
from orchestrator.telemetry.gpu import POWER_CAP
from sweeps.status import Status
from sweeps.trial import FEWEST_WINDOW_STEPS, SHORTEST_WINDOW_S

FOREIGN_CPU = 0.05
"""Fraction of the time of a rank's cores; processes of the gang, the driver and Ray are not foreign.

On a GPU the limit is divided by the share of a step that is not the GPU's own work: only that can become longer.
"""
SLOW_CLOCK = 0.95  # fraction of the device's median clock over all windows
SWAPPED_PAGES = 256  # a megabyte on most machines: any kernel swaps less than that now and then

TOO_SHORT = f"timed window below {SHORTEST_WINDOW_S:g} s or {FEWEST_WINDOW_STEPS} steps"


class Fault(StrEnum):
    """Why a timing is invalid, ordered by what has to change first."""

    TOO_FEW_WORKERS = "too_few_workers"  # fewer processes or GPUs trained than the trial has
    ASSUMED_SAMPLES = "assumed_samples"
    """The samples of a step were not counted: the trial's batch, which the script may ignore, stands for them."""
    TOO_SHORT = "too_short"
    SHARED = "shared"
    SEVERAL_MODELS = "several_models"  # for a cell: its seeds ran on different device models
    DISTURBED = "disturbed"  # disturbed from outside: repetition can remove this fault and the next one only
    STRAGGLER = "straggler"
    """Much slower than other seeds of its cell, which agree. Such a seed would dominate the mean of few."""


FAULTS: Mapping[Fault, tuple[str, str]] = {
    Fault.TOO_FEW_WORKERS: (
        "of too few workers",
        "Have the command train with one process for each GPU (docs/how-to/several-gpus.md)",
    ),
    Fault.ASSUMED_SAMPLES: (
        "of assumed samples",
        "Declare trainable.samples_per_epoch, or mark the steps (docs/how-to/command.md)",
    ),
    Fault.TOO_SHORT: ("too short", "Make trials longer (budget.epochs)"),
    Fault.SHARED: ("on shared devices", "Give each trial its own devices (resources.timing)"),
    Fault.SEVERAL_MODELS: ("on several device models", "Choose one device model (cluster.gpu_type)"),
    Fault.DISTURBED: ("disturbed", "Stop other programs, then time again with mode=settle"),
    Fault.STRAGGLER: ("much slower than other seeds", "Stop other programs, then time again with mode=settle"),
}
"""Words for a timing with this fault, and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on the timing of an ok trial."""

    fault: Fault | None  # None if the timing is valid
    reasons: Sequence[str]  # for people, with figures


VALID = Judgement(fault=None, reasons=())


def with_reasons(faults: str, judgement: Judgement) -> str:
    """Return these words for faults with the judgement's reasons, if it has any: `disturbed (others took 40% …)`."""
    return f"{faults} ({'; '.join(judgement.reasons)})" if judgement.reasons else faults


def judgements_of(records: Sequence[TrialRecord]) -> dict[str, Judgement]:
    """The judgement of each ok trial, by its id; based on metrics, so that records of all versions are judged alike."""
    by_trial = disturbances(records)
    # Stragglers come last: whether a seed is one depends on which others are valid.
    judgements = {
        record.trial_id: _judgement(record, by_trial[record.trial_id])
        for record in records
        if record.status is Status.OK
    }
    return judgements | {trial_id: OUTVOTED for trial_id in _outvoted(records, judgements)}


def disturbances(records: Sequence[TrialRecord]) -> dict[str, list[str]]:
    """For each ok trial, only the disturbances from outside, which need not recur."""
    clocks = _median_clocks(records)
    return {
        record.trial_id: _against(record, clocks.get(_device(record))) if record.timing != "shared" else []
        for record in records
        if record.status is Status.OK
    }


def why_discarded(record: TrialRecord, ends: Mapping[str, TrialRecord]) -> str:
    """Return why the timing of this attempt does not replace that of its trial's end; empty if it does.

    A repetition must have measured everything that it replaces, validly. A rerun is a new training with its own
    timing; only a disturbed timing is discarded, in favour of a valid one that is comparable.
    """
    end = ends.get(record.measures or record.trial_id)
    if end is None or record.status is not Status.OK or end.status is not Status.OK:
        return ""
    # The clocks of other trials on the device tell whether this one's was slow.
    others = [other for other in ends.values() if other.trial_id != end.trial_id]
    same = _comparable(record.provenance, end.provenance)
    if record.measures:
        if not same:
            return "it ran on other hardware, or with other software"
        needed = [name for name in _SPEEDS if name in end.metrics] or ["train_s"]
        if missing := [name for name in needed if name not in record.metrics or not record.has_timing(name)]:
            return f"it did not measure {', '.join(missing)}"
        judgement = judgements_of([end.timed_by(record), *others])[end.trial_id]
        return "; ".join(judgement.reasons) if judgement.fault else ""
    # Each of the two attempts is judged among the other trials, never beside its twin.
    now, before = (judgements_of([*others, other])[other.trial_id] for other in (record, end))
    return "; ".join(now.reasons) if same and not before.fault and now.fault is Fault.DISTURBED else ""


_SPEEDS = ("samples_per_s", "epoch_s", "window_s")
_HARDWARE_AND_SOFTWARE = ("device_model", "driver", "cuda", "cudnn", "nccl", "torch")


def _comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether hardware and software of these provenances are the same, as far as both say."""
    return all(one[name] == other[name] for name in _HARDWARE_AND_SOFTWARE if name in one and name in other)


SUPERLINEAR = 1.1
"""An efficiency above this is measured again, because a slow baseline is a likelier cause than a fast cell."""


def superlinear(records: Sequence[TrialRecord]) -> set[str]:
    """Return the trials whose speed per GPU is more than SUPERLINEAR times that of the same training on fewer GPUs.

    The same training has the same seed, device and axes, and the same batch, global or per GPU.
    """
    alike: dict[tuple[str, ...], list[tuple[TrialRecord, float]]] = {}
    for record in records:
        rate = metric_value(record.metrics, "samples_per_s")
        # A speed that was taken over from another trial is no second measurement.
        if record.status is not Status.OK or record.timed_with or not rate:
            continue
        others = {axis: value for axis, value in record.axes.items() if axis not in _OF_SPEED}
        for side in ("device_batch_size", "global_batch_size"):
            key = (side, getattr(record, side), record.lr_rule, record.lr_multiplier, _device(record), others)
            alike.setdefault(tuple(map(str, key)), []).append((record, rate))
    fast = set()
    for group in alike.values():
        fewest, rate_of_fewest = min(group, key=lambda timed: timed[0].gpus)
        least = SUPERLINEAR * rate_of_fewest / fewest.gpus
        fast |= {record.trial_id for record, rate in group if record.gpus > fewest.gpus and rate / record.gpus > least}
    return fast


_OF_SPEED = ("gpus", "device_batch_size", "global_batch_size", "lr_rule", "lr_multiplier")
"""Axes in which the two trials may differ, or that the key of their group has in another form; `seed` is an axis."""


def needs_repetition(ends: Mapping[str, TrialRecord]) -> set[str]:
    """Return the trials whose last timing was disturbed, is slow, or is superlinear, so that a repetition can tell."""
    # Rows with the timing of another trial follow when that one is repeated.
    own = [end for end in ends.values() if not end.timed_with]
    faults = {trial_id: judgement.fault for trial_id, judgement in judgements_of(own).items()}
    slow = {trial_id for trial_id in slow_timings(own) if faults[trial_id] in (None, Fault.STRAGGLER)}
    too_fast = {trial_id for trial_id in superlinear(own) if faults[trial_id] is None}
    disturbed_now = {trial_id for trial_id, fault in faults.items() if fault is Fault.DISTURBED}
    return slow | too_fast | disturbed_now | {end.trial_id for end in own if end.disturbed}


SLOWER = 1.3  # a straggler takes at least this many times the median
FEWEST_ALIKE = 3  # with two trials, either may be the slow one


def slow_timings(records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return by ok trial how many times as long it took as the median of trials with the same steps, if SLOWER or more.

    The same steps are those of all seeds of a cell, and of other cells that differ only in the rate (`same_steps`).
    """
    ok = [record for record in records if record.status is Status.OK]
    rates: dict[str, list[float]] = {}
    for record in ok:
        if (rate := metric_value(record.metrics, "samples_per_s")) and not record.timed_with:
            rates.setdefault(same_steps(record), []).append(rate)
    # A median of two would call either of them slow.
    medians = {steps: median(alike) for steps, alike in rates.items() if len(alike) >= FEWEST_ALIKE}
    times = {}
    for record in ok:
        rate, usual = metric_value(record.metrics, "samples_per_s"), medians.get(same_steps(record))
        if rate and usual and usual >= SLOWER * rate:
            times[record.trial_id] = usual / rate
    return times


OUTVOTED = Judgement(fault=Fault.STRAGGLER, reasons=())
"""The judgement of a straggler; `analysis.trials.stragglers` has its figures."""
AGREEING = 5
"""A straggler's timing does not count if it is further from the other seeds of its cell, at least two, than this
multiple of what these differ by, in logarithms (Dixon, "Processing data for outliers", Biometrics 9, 1953)."""


def _outvoted(records: Sequence[TrialRecord], judgements: Mapping[str, Judgement]) -> set[str]:
    """Return the stragglers whose timing has no other fault, and against which other seeds of their cell agree."""
    slow = slow_timings(records)
    valid = [record for record in records if record.trial_id in judgements and not judgements[record.trial_id].fault]
    rates: dict[str, list[float]] = {}
    for record in valid:
        rate = metric_value(record.metrics, "samples_per_s")
        if rate and record.trial_id not in slow:
            rates.setdefault(record.cell_id, []).append(rate)
    outvoted = set()
    for record in valid:
        others = rates.get(record.cell_id, [])
        # One other seed cannot tell which of the two is the slow one.
        if record.trial_id not in slow or len(others) < 2:
            continue
        distance = math.log(min(others) / record.metrics["samples_per_s"])
        if distance > AGREEING * math.log(max(others) / min(others)):
            outvoted.add(record.trial_id)
    return outvoted


def _judgement(record: TrialRecord, disturbances: Sequence[str]) -> Judgement:
    if record.timing == "shared":
        return Judgement(fault=Fault.SHARED, reasons=["timing shared: other trials ran on the same devices"])
    if reason := _too_few_workers(record):
        return Judgement(fault=Fault.TOO_FEW_WORKERS, reasons=[reason, *disturbances])
    if record.metrics.get("rate_source") == "assumed" and "samples_per_s" in record.metrics:
        reason = "samples/s assumes the trial's batch: no loader of PyTorch or input of the model tells the samples"
        return Judgement(fault=Fault.ASSUMED_SAMPLES, reasons=[reason, *disturbances])
    if _is_short(record):
        return Judgement(fault=Fault.TOO_SHORT, reasons=[TOO_SHORT, *disturbances])
    return Judgement(fault=Fault.DISTURBED if disturbances else None, reasons=disturbances)


def _against(record: TrialRecord, median_clock_mhz: float | None) -> list[str]:
    metrics = record.metrics
    reasons = (
        _foreign_cpu(metrics, 1.0 if record.device == "cpu" else _waiting_share(metrics)),
        _more_than(metrics, "foreign_gpu_processes", 0, "other programs on the GPUs: {:.0f}"),
        _more_than(metrics, "throttled_periods", 0, "the CPU quota ran out in {:.0f} periods"),
        _more_than(metrics, "swapped_pages", SWAPPED_PAGES, "{:.0f} pages were swapped"),
        _throttled(metrics),
        _slow_clock(metrics, median_clock_mhz),
    )
    return list(filter(None, reasons))


def _too_few_workers(record: TrialRecord) -> str:
    """Return the reason if a part of the trial's processes or GPUs did not train; empty if that is not known."""
    # A rank per GPU has answered for it. Only one rank with several GPUs leaves to be told from their load who trained.
    names = ("workers",) if record.ranks >= record.gpus else ("workers", "busy_gpus")
    counts = [metric_value(record.metrics, name) for name in names]
    known = [count for count in counts if count is not None]
    if not known or record.gpus <= 1 or min(known) >= record.gpus:
        return ""
    return f"{min(known):g} of {record.gpus:g} {'processes' if record.device == 'cpu' else 'GPUs'} trained"


def _is_short(record: TrialRecord) -> bool:
    """Return whether the window was too short. Without a window, the whole training is its upper limit."""
    metrics = record.metrics
    if not any(name in metrics for name in ("window_s", "window_steps", "samples_per_s", "epoch_s")):
        return False

    def is_below(name: str, instead: str, least: float) -> bool:
        value = metric_value(metrics, name if name in metrics else instead)
        return value is not None and value < least

    too_brief = is_below("window_s", "train_s", SHORTEST_WINDOW_S)
    return too_brief or is_below("window_steps", "steps", FEWEST_WINDOW_STEPS)


def _waiting_share(metrics: Mapping[str, Any]) -> float:
    """Return the share of a step in which the GPU waits for launches, data or other ranks; 1 if it is not known."""
    step_s, compute_s = metric_value(metrics, "step_s"), metric_value(metrics, "step_compute_s")
    return 1.0 if not step_s or compute_s is None else max(0.0, 1 - compute_s / step_s)


def _foreign_cpu(metrics: Mapping[str, Any], share: float) -> str:
    # A busy host cannot make the work of a GPU longer, only the launches and the loading beside it.
    limit = FOREIGN_CPU / share if share else math.inf
    reason = _more_than(metrics, "foreign_cpu", limit, "others took {:.0%} of the cores' time")
    busiest = metrics.get("foreign_cpu_by")
    return f"{reason}, most of it {busiest}" if reason and busiest else reason


def _more_than(metrics: Mapping[str, Any], name: str, limit: float, text: str) -> str:
    value = metric_value(metrics, name)
    return text.format(value) if value is not None and value > limit else ""


def _throttled(metrics: Mapping[str, Any]) -> str:
    reasons = [word for word in str(metrics.get("throttle_reasons") or "").split(", ") if word not in ("", POWER_CAP)]
    return f"throttled: {', '.join(reasons)}" if reasons else ""


def _slow_clock(metrics: Mapping[str, Any], median_mhz: float | None) -> str:
    """The reason if the clock was too low. At its power limit a device normally clocks lower for heavier work."""
    mhz = _timed_clock(metrics)
    if mhz is None or median_mhz is None or mhz >= SLOW_CLOCK * median_mhz:
        return ""
    if POWER_CAP in str(metrics.get("throttle_reasons")):
        return ""
    return f"clock {mhz:.0f} MHz, {1 - mhz / median_mhz:.0%} below the device's median"


def _median_clocks(records: Sequence[TrialRecord]) -> dict[tuple[Any, ...], float]:
    clocks: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        mhz = _timed_clock(record.metrics)
        if record.status is Status.OK and mhz is not None:
            clocks.setdefault(_device(record), []).append(mhz)
    return {device: median(readings_mhz) for device, readings_mhz in clocks.items()}


def _timed_clock(metrics: Mapping[str, Any]) -> float | None:
    """The mean clock in the timed part; None if the mean is over the whole trial, in which the device also idles.

    `foreign_cpu` is measured only if there is a timed part.
    """
    return metric_value(metrics, "sm_clock_mhz") if "foreign_cpu" in metrics else None


def _device(record: TrialRecord) -> tuple[Any, ...]:
    return record.machine, str(record.provenance.get("device_model"))
