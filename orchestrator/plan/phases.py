"""`sweep.phases`: short probes of every speed, then training of only those cells that can still be recommended.

`Prospects` says which cells these are, by the probes (speeds) and by `decision.midway.Midway` (results so far).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.config.request import Request
from orchestrator.decision.midway import Midway
from orchestrator.statistics import margins
from orchestrator.store.grouping_keys import same_speed
from orchestrator.store.record import PHASES, TrialOutcome, TrialRecord
from sweeps.axes import is_number
from sweeps.identity import equivalent_cells
from sweeps.lr_rule import plainness
from sweeps.probe import probe_of
from sweeps.status import Status
from sweeps.trial import TrialSpec, samples_in


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """The cells that may still be recommended in the middle of a sweep. Cells are given by their ids."""

    baseline: str = ""  # the cell at the reference batch, which is trained first; empty if there is none
    first_bound: float | None = None
    """The validation accuracy of a cell's first seed below which it need not be tested and timed, if any."""
    first_bounds: Mapping[int, float] = field(default_factory=dict)
    """The same by seed, for the seeds that the baseline has, which hold out the same samples."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """{cell that may still win: validation accuracy of its next seed below which it is out}; without the baseline."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """The objective as predicted by the probes, up to a common factor; without cells whose probe has no figures."""
    trained: frozenset[str] = frozenset()
    chosen: str = ""  # the best cell so far; empty if there is none
    answer: str = ""  # the label of the best cell, or why there is none
    may_still_win: frozenset[str] = frozenset()
    """The trained cells that the whole sweep may still choose; empty once the choice is sure."""
    ruled_out: Mapping[str, Status] = field(default_factory=dict)
    """Cells that cannot be recommended because of how one of their seeds ended."""
    equivalent_cells: Mapping[str, str] = field(default_factory=dict)
    """{cell: another one with the same training}; only one of the two is trained."""

    def bound(self, cell_id: str, seed: int) -> float | None:
        """Return the validation accuracy below which this seed of the cell need not be tested and timed, if any."""
        if cell_id in self.trained or self.first_bound is None:
            return self.bounds.get(cell_id)
        return self.first_bounds.get(seed, self.first_bound)

    @staticmethod
    def of(
        request: Request,
        planned: Sequence[TrialSpec],
        ends: Mapping[str, TrialRecord],
        probed: Mapping[str, Mapping[str, Any]],
    ) -> Prospects:
        """Derive the prospects from the ends of planned trials and the figures of probes."""
        known = [record for record in ends.values() if record.ran]
        # A cell has the worst status of its seeds, and only an ok cell can be chosen in the end.
        ruled_out = {record.cell_id: record.status for record in known if record.status is not Status.OK}
        plain = sorted(planned, key=lambda trial: (*plainness(trial.lr.rule, trial.lr.multiplier), trial.gpus))
        trained = frozenset(record.cell_id for record in known)
        # The cell that will be the baseline, as far as that does not depend on accuracies.
        reference = request.reference_batch_size
        baseline = next((trial.cell_id for trial in plain if trial.batch.global_batch_size == reference), "")
        without_results = Prospects(
            baseline=baseline,
            levels=_levels(request, planned, probed),
            trained=trained,
            answer="no cell is ok",
            ruled_out=ruled_out,
            equivalent_cells=equivalent_cells(
                sorted(plain, key=lambda trial: (trial.cell_id != baseline, trial.cell_id not in trained))
            ),
        )
        ok = [record for record in known if record.cell_id not in ruled_out]
        known_ids = {record.trial_id for record in known}
        seeds_left = Counter(trial.cell_id for trial in planned if trial.trial_id not in known_ids)
        return _with_results(without_results, request, ok, seeds_left) if ok else without_results


def _levels(
    request: Request, planned: Iterable[TrialSpec], probed: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Return the predicted objective of each cell; empty if the objective does not follow from throughput."""
    if request.settings.report.objective == "energy" or request.target is not None:
        return {}
    # Without a target all cells do the same work, so that seconds per unit of work order them as the objective does.
    by_cost = request.settings.report.objective == "cost"
    levels: dict[str, float] = {}
    for trial in planned:
        seconds = _seconds(trial, probed.get(same_speed(trial.axes), {}))
        if seconds is not None:
            levels[trial.cell_id] = seconds * (trial.gpus_held if by_cost else 1)
    return levels


def _seconds(trial: TrialSpec, probe: Mapping[str, Any]) -> float | None:
    """Return the seconds of one epoch, sample, token or step, as the budget is given; None if the probe lacks it."""
    unit = next(iter(trial.length), "samples")
    samples_per_s = probe.get("samples_per_s")
    # Every cell takes the seconds of a budget in seconds, and so a probe cannot tell which is better.
    if not samples_per_s or unit == "seconds":
        return None
    if unit == "epochs":  # their samples are unknown here
        epoch_s: float | None = probe.get("epoch_s")
        return epoch_s
    length, batch_size = probe.get("sequence_length"), trial.batch.global_batch_size
    samples = samples_in(unit, epoch_samples=math.nan, batch_size=batch_size, sequence_length=length)
    return samples / float(samples_per_s)


def _with_results(
    without_results: Prospects, request: Request, ok: Sequence[TrialRecord], seeds_left: Mapping[str, int]
) -> Prospects:
    """Add what the ok trials say; `seeds_left` has the number of further seeds of each cell."""
    # Only here, because it loads pandas, which a plan without results does not need.
    from orchestrator.decision.candidates import Contenders

    contenders = Contenders.among(request, ok)
    chosen, baseline = contenders.choice.favourite, contenders.measurements.baseline
    ids = [str(cell) for cell in contenders.cells["cell_id"]]
    midway = Midway(measurements=contenders.measurements, seeds_left=[seeds_left[cell] for cell in ids])
    rows = midway.may_still_win(chosen)
    bounds = {ids[row]: midway.bound(row) for row in rows}

    # A first seed is given up far below the baseline's same seed: its cell may still have better seeds.
    metric, distance = request.metric, margins.SHORT * request.settings.report.margin
    first_bound, first_bounds = None, dict[int, float]()
    if baseline is not None:
        first_bound = float(contenders.cells["score"][baseline]) - distance
        for record in ok:
            value = record.metrics.get(metric.name)
            if record.cell_id == ids[baseline] and is_number(value):
                first_bounds[record.seed] = metric.sign * float(value) - distance
    return replace(
        without_results,
        first_bound=first_bound,
        first_bounds=first_bounds,
        bounds={cell: bound for cell, bound in bounds.items() if bound is not None},
        chosen="" if chosen is None else ids[chosen],
        answer="no cell that can be chosen keeps the margin" if chosen is None else contenders.names[chosen],
        may_still_win=frozenset(ids[row] for row in rows),
    )


SLACK = 1.1
"""A cell cannot beat the best one if its probe is slower by more than this factor, which allows for short probes."""


def probes(trials: Iterable[TrialSpec], probed: Collection[str]) -> list[TrialSpec]:
    """Return one probe of each speed that has none yet; nothing if the trainable has no probes."""
    by_speed: dict[str, TrialSpec] = {}
    for trial in trials:
        probe = None if same_speed(trial.axes) in probed else probe_of(trial)
        if probe is not None:
            by_speed.setdefault(same_speed(trial.axes), probe)
    return list(by_speed.values())


def next_trials(waiting: Sequence[TrialSpec], prospects: Prospects) -> list[TrialSpec]:
    """Return the waiting trials that must run next to find the answer; none once it is known.

    All seeds of the baseline run first. Then one seed runs of every cell that may be faster than the best one so far,
    the fastest first, speed by speed. Then the cells that the whole sweep may still choose run, seed by seed. One of
    several equivalent cells is trained, for example of all rules at the reference batch.
    """
    waiting = [trial for trial in waiting if trial.cell_id not in prospects.equivalent_cells]
    # Every other cell is measured against the baseline: without it nothing can be ruled out.
    base = [trial for trial in waiting if trial.cell_id == prospects.baseline]
    if base:
        return base
    slowest = prospects.levels.get(prospects.chosen, math.inf) * SLACK
    fresh = _first_seeds(
        trial
        for trial in waiting
        if trial.cell_id not in prospects.trained and prospects.levels.get(trial.cell_id, 0.0) <= slowest
    )
    if fresh:
        # Without a probe's figures a cell has no level; such cells run first, since they may be the fastest.
        chosen = [trial for trial in fresh if trial.cell_id not in prospects.levels]
        if not chosen:
            fastest = same_speed(min(fresh, key=lambda trial: prospects.levels[trial.cell_id]).axes)
            chosen = [trial for trial in fresh if same_speed(trial.axes) == fastest]
        return [_bounded(trial, prospects) for trial in chosen]
    next_seeds = _first_seeds(trial for trial in waiting if trial.cell_id in prospects.may_still_win)
    return [_bounded(trial, prospects) for trial in next_seeds]


def skipped(trial: TrialSpec, prospects: Prospects) -> TrialOutcome:
    """Return the outcome of a trial that cannot change the recommendation."""
    if trial.cell_id in prospects.equivalent_cells:
        why = "the same training as that of a cell with a plainer rule or rate; see"
    elif trial.cell_id in prospects.ruled_out:
        why = f"a seed of this cell ended as {prospects.ruled_out[trial.cell_id]}, and so it cannot be"
    elif trial.cell_id in prospects.trained:
        why = "further seeds of this cell would not change"
    else:
        why = "by its probe this cell is slower than"
    note = f"sweep.phases: {why} the answer ({prospects.answer})"
    return TrialOutcome(note=note, wall_s=0.0, skipped_by=PHASES)


def _first_seeds(trials: Iterable[TrialSpec]) -> list[TrialSpec]:
    """Return the trial of the lowest seed of each cell."""
    first: dict[str, TrialSpec] = {}
    for trial in trials:
        if trial.cell_id not in first or trial.seed < first[trial.cell_id].seed:
            first[trial.cell_id] = trial
    return list(first.values())


def _bounded(trial: TrialSpec, prospects: Prospects) -> TrialSpec:
    """Return the trial with the accuracy below which it need not be timed."""
    bound = prospects.bound(trial.cell_id, trial.seed)
    if bound is None or not trial.settings.get("probe"):
        return trial
    return trial.with_settings(give_up_below=bound)
