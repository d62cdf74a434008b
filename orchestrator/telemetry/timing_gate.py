"""Which timings count: whatever spoils one is a reason, told with its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from orchestrator.journal.outcome import figure
from orchestrator.journal.record import TrialRecord
from orchestrator.telemetry.gpu import POWER_CAP
from sweeps.status import Status

SHORTEST_WINDOW_S = 2.0
FEWEST_WINDOW_STEPS = 50
FOREIGN_CPU = 0.05
"""Of the time of the cores that a rank may use; the gang's own processes, the driver's and Ray's are not foreign."""
SLOW_CLOCK = 0.95
"""Of the device's median over all windows."""
SWAPPED_PAGES = 256
"""A megabyte on most machines: below it is what any kernel does now and then."""


class Fault(StrEnum):
    """Of a timing that does not count, what has to change first; in the order of that."""

    TOO_SHORT = "too_short"
    SHARED = "shared"
    SEVERAL_MODELS = "several_models"
    """Of a cell: its seeds ran on different device models."""
    DISTURBED = "disturbed"
    """From outside: the only one that a repetition mends."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Of the timing of an ok trial."""

    fault: Fault | None
    """None: it is valid."""
    reasons: Sequence[str]
    """With their figures, for people."""


def judged(records: Sequence[TrialRecord]) -> dict[str, Judgement]:
    """For each ok trial, by its identity; from its metrics, so that records of all versions are judged alike."""
    disturbances = disturbed(records)
    return {
        record.trial_id: _judgement(record, disturbances[record.trial_id])
        for record in records
        if record.status is Status.OK
    }


def disturbed(records: Sequence[TrialRecord]) -> dict[str, list[str]]:
    """The same, but only what came from outside, and need not come again."""
    clocks = _median_clocks(records)
    return {
        record.trial_id: _against(record.metrics, clocks.get(_device(record))) if record.timing != "shared" else []
        for record in records
        if record.status is Status.OK
    }


def _judgement(record: TrialRecord, disturbances: Sequence[str]) -> Judgement:
    if record.timing == "shared":
        return Judgement(fault=Fault.SHARED, reasons=["timing shared: other trials ran on the same devices"])
    if _is_short(figure(record.metrics, "window_s"), figure(record.metrics, "window_steps")):
        reason = f"timed window below {SHORTEST_WINDOW_S:g} s or {FEWEST_WINDOW_STEPS} steps"
        return Judgement(fault=Fault.TOO_SHORT, reasons=[reason, *disturbances])
    return Judgement(fault=Fault.DISTURBED if disturbances else None, reasons=disturbances)


def _against(metrics: Mapping[str, Any], median_clock_mhz: float | None) -> list[str]:
    reasons = (
        _foreign_cpu(metrics),
        _more_than(metrics, "foreign_gpu_processes", 0, "{:.0f} foreign processes on the GPUs"),
        _more_than(metrics, "throttled_periods", 0, "the CPU quota ran out in {:.0f} periods"),
        _more_than(metrics, "swapped_pages", SWAPPED_PAGES, "{:.0f} pages were swapped"),
        _throttled(metrics),
        _slow_clock(metrics, median_clock_mhz),
    )
    return list(filter(None, reasons))


def _is_short(seconds: float | None, steps: float | None) -> bool:
    """A trainable that tells of no window is taken at its word."""
    return (seconds is not None and seconds < SHORTEST_WINDOW_S) or (steps is not None and steps < FEWEST_WINDOW_STEPS)


def _foreign_cpu(metrics: Mapping[str, Any]) -> str:
    reason, by = _more_than(metrics, "foreign_cpu", FOREIGN_CPU, "others took {:.0%} of the cores' time"), ""
    if reason and metrics.get("foreign_cpu_by"):
        by = f", most of it {metrics['foreign_cpu_by']}"
    return reason + by


def _more_than(metrics: Mapping[str, Any], name: str, limit: float, text: str) -> str:
    value = figure(metrics, name)
    return text.format(value) if value is not None and value > limit else ""


def _throttled(metrics: Mapping[str, Any]) -> str:
    reasons = [each for each in str(metrics.get("throttle_reasons") or "").split(", ") if each not in ("", POWER_CAP)]
    return f"throttled: {', '.join(reasons)}" if reasons else ""


def _slow_clock(metrics: Mapping[str, Any], median_mhz: float | None) -> str:
    """A device at its power limit clocks lower for heavier work: that is how it runs, and no disturbance."""
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
    return {device: median(found) for device, found in clocks.items()}


def _timed_clock(metrics: Mapping[str, Any]) -> float | None:
    """Of the timed part; a trial that names none has a mean over its whole time, in which the device also idles.

    Where the timed part was seen it was also seen what others took of the cores.
    """
    return figure(metrics, "sm_clock_mhz") if "foreign_cpu" in metrics else None


def _device(record: TrialRecord) -> tuple[Any, ...]:
    return record.machine, str(record.provenance.get("device_model"))
