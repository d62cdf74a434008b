"""Sweeps whose trials have random faults: whatever happens, no choice and no speed rests on a faulty measurement."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from orchestrator.decision.recommendation import CLEAR, SPEED_ONLY
from orchestrator.store.record import TrialRecord
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import decided
from tests.unit.orchestrator.records import record_of

SAMPLES, EPOCHS, MARGIN = 60_000, 8, 0.01

OF_TIMING: Mapping[str, Mapping[str, Any]] = {
    "disturbed": {"foreign_cpu": 0.88, "foreign_cpu_by": "bash"},
    "too short": {"window_s": 0.2, "window_steps": 9},
    "assumed": {"rate_source": "assumed"},
    "one worker": {"workers": 1},
    "throttled": {"throttle_reasons": "hw_thermal_slowdown"},
}
"""Metrics that make a timing invalid; one worker, only on several GPUs."""

OF_METRIC = {"missing": None, "nan": math.nan, "infinite": -math.inf}
OTHERS = ("shared", "short", "collapsed", "failed", "oom", "no rate", "one seed")
FAULTS = (*OF_TIMING, *OF_METRIC, *OTHERS)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A simulated trial: its record and its fault, if any."""

    record: TrialRecord
    fault: str

    @property
    def is_ok(self):
        return self.record.status is Status.OK

    @property
    def is_timed(self):
        """Return whether its speed is a measurement of all GPUs alone on their machine."""
        is_alone = self.fault == "one worker" and self.record.gpus == 1
        return self.is_ok and (is_alone or self.fault not in (*OF_TIMING, "shared", "no rate"))


def trial_of(gpus, batch, seed, rate, accuracy, fault):
    metrics: dict[str, Any] = {"samples_per_s": rate, "samples": SAMPLES, "epochs": EPOCHS, "val_accuracy": accuracy}
    metrics |= {"window_s": 5.0, "window_steps": 600, "train_s": SAMPLES / rate, "steps": SAMPLES // (batch * gpus)}
    metrics |= OF_TIMING.get(fault, {})
    if fault in OF_METRIC:
        metrics["val_accuracy"] = OF_METRIC[fault]
    if fault == "short":
        metrics |= {name: metrics[name] / 2 for name in ("samples", "epochs", "train_s", "steps")}
    if fault == "collapsed":
        metrics["val_accuracy"] = 0.1
    if fault == "no rate":
        metrics = {"val_accuracy": accuracy}
    status = {"failed": Status.FAILED, "oom": Status.OOM}.get(fault, Status.OK)
    record = record_of(
        gpus,
        seed,
        status,
        batch=batch,
        metrics=metrics if status is Status.OK else {},
        timing="shared" if fault == "shared" else "device",
        budget={"epochs": EPOCHS},
        wall_s=SAMPLES / rate + 20,
    )
    return Trial(record=record, fault=fault)


def sweep_of(generator):
    """Return a random sweep, of which some trials, some cells or all trials have a fault."""
    counts = generator.choice([1, 2, 4], generator.integers(1, 4), replace=False)
    batches = generator.choice([32, 64, 128], generator.integers(1, 4), replace=False)
    seeds, share = generator.integers(1, 5), generator.choice([0.0, 0.1, 0.4, 0.9])
    everywhere = generator.choice(FAULTS) if generator.random() < 0.15 else ""
    economy, lost = generator.uniform(0.2, 0.9), generator.uniform(0, 0.008)
    trials = []
    for gpus in counts:
        for batch in batches:
            of_cell = str(generator.choice(FAULTS)) if generator.random() < share / 2 else ""
            for seed in range(1 if of_cell == "one seed" else seeds):
                # What is faulty looks better than what is not.
                fault = everywhere or of_cell or (generator.choice(FAULTS) if generator.random() < share else "")
                flatters = generator.uniform(1.0, 3.0) if fault else 1.0
                rate = 1000 * gpus**economy * (batch / 32) ** 0.3 * flatters * (1 + 0.003 * generator.standard_normal())
                accuracy = 0.9 - lost * math.log2(gpus * batch / 32) + 0.001 * generator.standard_normal()
                trials.append(trial_of(int(gpus), int(batch), seed, rate, accuracy, fault))
    return trials


def broken_promises(trials, recommendation):
    """Return what the recommendation states without a valid measurement."""
    if recommendation.cell_id is None:
        return [] if recommendation.verdict not in (CLEAR, SPEED_ONLY) else ["a verdict without a choice"]
    cells: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.is_ok:
            cells.setdefault(trial.record.cell_id, []).append(trial)
    chosen, broken = cells[recommendation.cell_id], []
    has_metric = any(trial.fault not in OF_METRIC for trial in trials if trial.is_ok)
    if not any(trial.is_timed for trial in chosen):
        broken.append("a choice without a valid timing")
    if has_metric and any(trial.fault in OF_METRIC for trial in chosen):
        broken.append("a choice without the metric where others have it")
    if not has_metric and recommendation.verdict == CLEAR:
        broken.append("CLEAR without a metric")
    unsound = {trial.record.cell_id for trial in trials if not trial.is_ok}
    candidates = [
        cell
        for cell_id, cell in cells.items()
        if cell_id not in unsound and any(t.is_timed for t in cell) and not any(t.fault in OF_METRIC for t in cell)
    ]
    is_short = any(trial.fault == "short" for trial in chosen)
    if is_short and not all(any(trial.fault == "short" for trial in cell) for cell in candidates):
        broken.append("a choice that did less than its work")
    is_collapsed = any(trial.fault == "collapsed" for trial in chosen)
    if recommendation.verdict == CLEAR and (len(chosen) < 3 or is_short or is_collapsed):
        broken.append("CLEAR over a faulty cell")
    if recommendation.common_baseline_id in (None, recommendation.cell_id) or recommendation.deciding_time != "time":
        return broken
    (headline,) = (remark for remark in (recommendation.headline, *recommendation.details) if remark.code == "use")
    gain = headline.values["gain"].value
    if math.isnan(gain):  # no speed is stated
        return broken
    baseline = cells[recommendation.common_baseline_id]
    if not any(trial.is_timed for trial in baseline):
        return [*broken, "a speed over a baseline without a valid timing"]
    slow = {is_baseline: stragglers(cell) for is_baseline, cell in ((False, chosen), (True, baseline))}
    told = {r.values["of_baseline"]: r.values["stragglers"] for r in recommendation.caveats if r.code == "straggler"}
    if told != {is_baseline: count for is_baseline, count in slow.items() if count}:
        broken.append(f"{told} stragglers instead of {slow}")
    own, of_baseline = (np.log(rates_of(cell)[slow[cell is baseline] :]).mean() for cell in (chosen, baseline))
    if not math.isclose(gain, math.exp(own - of_baseline), rel_tol=1e-6):
        broken.append(f"{gain:.3f}× instead of {math.exp(own - of_baseline):.3f}×")
    return broken


def rates_of(cell):
    """Return the valid rates of a cell's trials, the slowest first."""
    return sorted(trial.record.metrics["samples_per_s"] for trial in cell if trial.is_timed)


def stragglers(cell):
    """Return how many of the slowest valid rates do not count, because two or more other seeds agree.

    They are 1.3 times slower than the median, and five times as far from the other seeds as these are from each other.
    """
    all_rates = [trial.record.metrics["samples_per_s"] for trial in cell if "samples_per_s" in trial.record.metrics]
    usual = np.median(all_rates)
    slow, others = [], []
    for rate in rates_of(cell):
        (slow if usual >= 1.3 * rate else others).append(rate)
    if len(others) < 2:
        return 0
    apart = 5 * math.log(others[-1] / others[0])
    return sum(math.log(others[0] / rate) > apart for rate in slow)


HAS_STRAGGLER = 75


@pytest.mark.parametrize("numbers", [[8, 9, 10, HAS_STRAGGLER], pytest.param(range(11, 320), marks=pytest.mark.slow)])
def test_nothing_rests_on_a_faulty_measurement(numbers):
    broken, choices = {}, 0
    for number in numbers:
        trials = sweep_of(np.random.default_rng([number, 2026]))
        recommendation = decided([trial.record for trial in trials], margin=MARGIN, budget={"epochs": EPOCHS})
        choices += recommendation.cell_id is not None
        if promises := broken_promises(trials, recommendation):
            broken[number] = promises
    assert not broken and choices >= len(numbers) / 3
