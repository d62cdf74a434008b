"""The plan: the sweep's trials compared with the journal, and with the GPUs and memory of the nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.backends.backend_choice import A_NODE, check_reachable, first_nodes, known_nodes, make_backend
from orchestrator.config.checked_sweep import CheckedSweep
from orchestrator.config.commands import command
from orchestrator.config.request import Request
from orchestrator.plan.forecasts import NO_FORECASTS, Forecasts, shipped, stored
from orchestrator.plan.journal_forecasts import Measured
from orchestrator.schedule.cluster import Node, why_infeasible
from orchestrator.schedule.simulation import Timetable
from orchestrator.store.grouping_keys import same_memory
from orchestrator.store.history import Durations
from orchestrator.store.record import EARLY_STOP, TrialRecord
from orchestrator.store.results import history_in
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.trial_metrics import metric_value
from sweeps.branch import base_of, point_of
from sweeps.errors import ConfigError
from sweeps.identity import equivalent_cells
from sweeps.rerun_selection import NO_RERUN, Rerun
from sweeps.status import Status
from sweeps.trial import TrialSpec

SPARE = 1.2
"""The allocator's blocks may fit less well the next time, and with too little memory the trial would end as `oom`."""

MEMORY_METRICS = ("reserved_memory_gb", "device_memory_gb")
"""Metrics of a rank: its own peak memory, and that of the whole device."""


def is_packed(trial: TrialSpec) -> bool:
    """Return whether the config lets the trial share its GPU with other trials."""
    return trial.timing == "shared" and trial.device == "cuda" and 0 < trial.gpus < 1


@dataclass(frozen=True, kw_only=True)
class GpuFractions:
    """The fraction of a device that trials of each size need; NaN if one has ended without reporting it."""

    needs: Mapping[str, float]

    @staticmethod
    def of(ends: Iterable[TrialRecord], probes: Iterable[Mapping[str, Any]] = ()) -> GpuFractions:
        """Derive the fractions from the trials and probes that ran."""
        needs: dict[str, float] = {}
        ran = [
            (same_memory(end.axes, end.device_batch_size), end.status, end.metrics)
            for end in ends
            if end.device == "cuda" and end.ran
        ]
        tried = [(probe["size"], Status(probe["status"]), probe) for probe in probes if "size" in probe]
        for key, status, figures in [*ran, *tried]:
            reserved_gb, device_gb = (metric_value(figures, name) for name in MEMORY_METRICS)
            fraction = SPARE * reserved_gb / device_gb if reserved_gb is not None and device_gb else math.nan
            if status is Status.OOM:
                fraction = 1.0  # the next attempt gets the whole device
            needs[key] = fraction if math.isnan(needs.get(key, math.nan)) else max(needs[key], fraction)
        return GpuFractions(needs=needs)

    def unknown(self, trials: Iterable[TrialSpec]) -> list[TrialSpec]:
        """Return one packed trial of every size that has not run yet."""
        by_size = {_size(trial): trial for trial in reversed(list(trials)) if is_packed(trial)}
        return [trial for key, trial in by_size.items() if key not in self.needs]

    def placed(self, trial: TrialSpec) -> TrialSpec:
        """Return the trial with the fraction of a GPU that it will hold: a whole one until its memory is known."""
        if not is_packed(trial):
            return trial
        # A probe or a repetition measures the trial: it must not share its GPU.
        need = 1.0 if trial.measures else self.needs.get(_size(trial), 1.0)
        held = min(1.0, max(trial.gpus, 0.0 if math.isnan(need) else math.ceil(need * 100) / 100))
        return replace(trial, gang=replace(trial.gang, gpus_per_rank=held))

    def foreseen(self, trial: TrialSpec) -> TrialSpec:
        """Return the trial as a timetable takes it: with the configured fraction until its memory is known."""
        return self.placed(trial) if _size(trial) in self.needs else trial


def _size(trial: TrialSpec) -> str:
    return same_memory(trial.axes, trial.batch.device_batch_size)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials of a sweep in grid order, and what happens to each."""

    trials: Sequence[TrialSpec]
    finished: Mapping[str, TrialRecord]  # effective terminal records of the journal, by trial id
    infeasible: Mapping[str, str]  # why a trial cannot run on these nodes, or does not fit, by trial id
    nodes: Sequence[Node]
    named: frozenset[str] = frozenset()  # ids of the trials that `rerun` names, and of bases that branches need again
    again: Mapping[str, int] = field(default_factory=dict)
    """The last attempt of each trial that runs again only because `rerun` names it."""
    durations: Durations = field(default_factory=Durations)
    gpu_fractions: GpuFractions = field(default_factory=lambda: GpuFractions(needs={}))
    """The fraction of a GPU that each trial holds, as measured by earlier trials."""
    forecasts: Forecasts = NO_FORECASTS
    too_large: frozenset[str] = frozenset()  # the infeasible trials that do not fit by their forecast
    changed: Sequence[str] = ()
    """The differences from the config and code of earlier results, which the plan leaves out."""
    spent_gpu_s: float = 0.0  # GPU-seconds of earlier drivers, which count for the budget of the sweep

    @staticmethod
    def of(
        trials: Sequence[TrialSpec],
        records: Mapping[str, TrialRecord],
        nodes: Sequence[Node],
        rerun: Rerun = NO_RERUN,
        lost_bases: frozenset[str] = frozenset(),
        forecasts: Forecasts = NO_FORECASTS,
    ) -> Plan:
        """Return the plan; with `rerun.word` `failed`, every trial without a result runs again, and `lost_bases`."""
        # A base whose checkpoint is gone runs again as if the user had named it.
        named = rerun.selected(trials) | lost_bases
        ids = {trial.trial_id for trial in trials}
        sweep = forecasts.settings.sweep
        # Without phases and early stopping the user wants every trial whole, also those stopped before.
        stops = bool(sweep.phases or sweep.early_stop)
        effective_records = {
            key: end for key, end in records.items() if key in ids - named and _stands(end, rerun.word, stops=stops)
        }
        # Many trials have the same gang, and to place one takes time on a large cluster.
        reasons = {gang: why_infeasible(gang, nodes) for gang in {trial.gang for trial in trials}}
        without = (trial for trial in trials if reasons[trial.gang] and trial.trial_id not in effective_records)
        infeasible = {trial.trial_id: reasons[trial.gang] for trial in without}
        may_fit = [trial for trial in trials if trial.trial_id not in {*effective_records, *infeasible}]
        too_large = {trial.trial_id: why for trial in may_fit if (why := forecasts.why_not(trial))}
        infeasible |= too_large
        may = ids - {*effective_records, *infeasible}
        return Plan(
            trials=trials,
            finished=effective_records,
            infeasible=infeasible,
            nodes=nodes,
            durations=Durations(records.values(), forecasts.duration_s),
            named=named,
            again={
                key: end.attempt
                for key, end in records.items()
                if key in may and _stands(end, NO_RERUN.word, stops=stops)
            },
            gpu_fractions=GpuFractions.of(records.values()),
            forecasts=forecasts,
            too_large=frozenset(too_large),
        )

    @staticmethod
    def of_sweep(checked: CheckedSweep, records: Mapping[str, TrialRecord], nodes: Sequence[Node]) -> Plan:
        """Return the plan of a sweep whose journal has these records.

        Trials that do not fit by the folder's forecasts are infeasible. Raises ConfigError.
        """
        request = checked.request
        folder, rerun = ResultsFolder(request.results_dir), request.rerun
        own = stored(folder.rehearsals_for(request.settings.shapes_of), nodes)
        rehearsals = shipped(nodes).replaced_by(own)
        measured = Measured(records=list(records.values()))
        forecasts = Forecasts(rehearsals=rehearsals, measured=measured, nodes=nodes, settings=request.settings)
        plan = Plan.of(checked.trials(nodes), records, nodes, rerun, forecasts=forecasts)
        # A finished base trains again if further branches start from a checkpoint of it that is gone. A base that runs
        # anyway saves its checkpoints.
        ran = {key for key, end in plan.finished.items() if end.status is Status.OK}
        lost_bases = {
            base_of(trial)
            for trial in plan.to_run
            if base_of(trial) in ran and not folder.branch_point(base_of(trial), point_of(trial) or 0).is_dir()
        }
        return Plan.of(plan.trials, records, nodes, rerun, frozenset(lost_bases), forecasts) if lost_bases else plan

    @property
    def to_run(self) -> list[TrialSpec]:
        """The trials to start; the trial queue decides in which order."""
        return [t for t in self.trials if t.trial_id not in self.finished and t.trial_id not in self.infeasible]

    def not_run_again(self, ends: Mapping[str, TrialRecord]) -> frozenset[str]:
        """Return the ids of the trials that `rerun` names and that have not begun again by these ends."""
        return frozenset(key for key, attempt in self.again.items() if ends[key].attempt == attempt)

    def may_run(self, *, waits: bool) -> list[TrialSpec]:
        """Return the trials to start, followed with `waits` by those that have no room yet."""
        waiting = (trial for trial, _ in self.without_room if trial.trial_id not in self.too_large)
        return [*self.to_run, *(waiting if waits else ())]

    @property
    def without_room(self) -> list[tuple[TrialSpec, str]]:
        """The infeasible trials, each with the reason."""
        return [(t, self.infeasible[t.trial_id]) for t in self.trials if t.trial_id in self.infeasible]

    @functools.cached_property
    def originals(self) -> Mapping[str, str]:
        """The first trial with the same training, by the id of each other one, which gets its result.

        With `sweep.phases` each of them trains: its timing decides what is left out.
        """
        if self.forecasts.settings.sweep.phases:
            return {}
        # At the reference batch most rules give the same training: it would be paid for once per rule.
        equivalent = equivalent_cells(self.trials)
        by_cell = {(trial.cell_id, trial.seed): trial.trial_id for trial in self.trials}
        originals: dict[str, str] = {}
        for trial in self.trials if equivalent else ():
            original = by_cell.get((equivalent.get(trial.cell_id, ""), trial.seed), "")
            # A trial that is named for a rerun trains again, unless its original does.
            if original and (original in self.named or trial.trial_id not in self.named):
                originals[trial.trial_id] = original
        return originals

    def expected_s(self, trial: TrialSpec) -> float | None:
        """Return the seconds that a trial takes; None if unknown."""
        seconds = self.durations.expected_s(trial)
        return 0.0 if trial.trial_id in self.originals and seconds is not None else seconds

    def shares_s_of(self, trials: Sequence[TrialSpec]) -> dict[str, float | None]:
        """Return by how many seconds each of these further trials makes the sweep longer; None if unknown."""
        fitting = [trial for trial in trials if not why_infeasible(trial.gang, self.nodes)]
        return Timetable.of(fitting, self.nodes, self.expected_s).shares_s_of(trials)

    @functools.cached_property
    def timetable(self) -> Timetable:
        """The schedule of the trials to run, simulated."""
        # A first trial of each size will hold a whole GPU, but most of the sweep runs at the configured fraction.
        trials = [self.gpu_fractions.foreseen(trial) for trial in self.to_run]
        return Timetable.of(trials, self.nodes, self.expected_s)


def plan_now(checked: CheckedSweep) -> Plan:
    """Return the plan of the sweep now; starts and writes nothing, but asks a cluster for its nodes.

    A forecast of other GPU counts is for nodes like those that ran the trials. Raises ConfigError if `results_dir`
    cannot be read.
    """
    request = checked.request
    history = history_in(ResultsFolder(request.results_dir), may_be_new=True)
    sweep = checked.with_outputs(history.outputs)
    fingerprint = sweep.fingerprint()
    if request.settings.extrapolates:
        ends = history.ends
        nodes = _nodes_of(ends, sweep)
    else:
        ends = history.ends_under(fingerprint)
        nodes = _nodes(request)
    planned = Plan.of_sweep(sweep, ends, nodes)
    changed = history.changes(fingerprint) if history.has_answers else ()
    return replace(planned, changed=changed, spent_gpu_s=history.spent_gpu_s)


def measuring_command(checked: CheckedSweep, overrides: Sequence[str]) -> str:
    """Return the command of a forecast of more GPUs that runs the sweep with these overrides instead."""
    dropped = ("mode=", "rerun=", "format=", "forecast.gpus=", "sweep.axes.gpus=")
    return command(checked.composition.arguments, overrides, dropped)


def _nodes_of(ends: Mapping[str, TrialRecord], checked: CheckedSweep) -> Sequence[Node]:
    """Return a node like those that ran the trials. Raises ConfigError if none ran."""
    request = checked.request
    records = [record for record in ends.values() if record.status is Status.OK]
    if not records:
        without = f"forecast.gpus extrapolates from trials that ran: {request.results_dir} has none"
        measuring = Measured().overrides_to_measure(checked.trials((A_NODE,)))
        raise ConfigError([f"{without}: write {measuring_command(checked, measuring)}"])
    largest = max(records, key=lambda record: record.gpus)
    if largest.device == "cpu":
        return (replace(A_NODE, gpus=0),)
    model = str(largest.provenance.get("device_model", ""))
    return (replace(A_NODE, gpus=request.settings.cluster.gpus_per_node or A_NODE.gpus, gpu_type=model),)


def _nodes(request: Request) -> Sequence[Node]:
    """Return the nodes that the request names; otherwise those that the back end has now."""
    known = known_nodes(request)
    if known is not None:
        return known
    check_reachable(request)
    backend = make_backend(request)
    try:
        # Planning requests no nodes, so it does not wait for any.
        return first_nodes(backend, request, 0.0)
    finally:
        backend.close()


def _stands(record: TrialRecord, word: str, *, stops: bool) -> bool:
    """Return whether the trial will not run again; a trial that a rule of the sweep skipped may run now.

    A trial that was stopped early stays so in a sweep that `stops` trials.
    """
    may_run_now = record.skipped_by and not (stops and record.skipped_by == EARLY_STOP)
    return record.status.stands(word) and not may_run_now
