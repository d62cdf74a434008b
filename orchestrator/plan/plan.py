"""What would run: the sweep's trials against what the journal has and what the nodes can hold."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from orchestrator.backends.arrival import arrived
from orchestrator.backends.choice import check_reachable, known_nodes, make_backend
from orchestrator.config.request import Request
from orchestrator.journal.durations import Durations
from orchestrator.journal.history import ends_under
from orchestrator.journal.journal import replay
from orchestrator.journal.record import TrialRecord
from orchestrator.plan.forecast import Forecast
from orchestrator.plan.memory_share import MemoryShares
from orchestrator.storage.layout import Layout
from orchestrator.telemetry.machine import this_machine
from sweeps.feasibility import Node, why_infeasible
from sweeps.mistakes import MistakesError
from sweeps.order import in_order
from sweeps.simulation import Stay
from sweeps.trial import TrialSpec

TrialsOn = Callable[[Sequence[Node]], list[TrialSpec]]
"""Expands the sweep for these nodes; MistakesError if it cannot."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials of a sweep, in the order of their start, and what is to become of each."""

    trials: Sequence[TrialSpec]
    finished: Mapping[str, TrialRecord]
    """Terminal records of the journal that stand, by trial id."""
    infeasible: Mapping[str, str]
    """Why a trial cannot run on these nodes, by trial id."""
    nodes: Sequence[Node]
    durations: Durations = field(default_factory=Durations)
    shares: MemoryShares = field(default_factory=lambda: MemoryShares(needs={}))
    """Of GPUs, by what is known of those that ran."""
    seed_by_seed: bool = False
    """See `sweeps.order.stretches`."""

    @staticmethod
    def of(
        trials: Iterable[TrialSpec],
        records: Mapping[str, TrialRecord],
        nodes: Sequence[Node],
        rerun: str,
        *,
        seed_by_seed: bool = False,
    ) -> Plan:
        """The plan; `rerun` is `none`, `failed` (whatever is no result) or `all`."""
        durations = Durations(records.values())
        ordered = in_order(list(trials), durations.expected_s, seed_by_seed=seed_by_seed)
        ids = {trial.trial_id for trial in ordered}
        standing = {key: record for key, record in records.items() if key in ids and _stands(record, rerun)}
        reasons = {t.trial_id: why_infeasible(t.gang, nodes) for t in ordered if t.trial_id not in standing}
        infeasible = {key: reason for key, reason in reasons.items() if reason}
        return Plan(
            trials=ordered,
            finished=standing,
            infeasible=infeasible,
            nodes=nodes,
            durations=durations,
            shares=MemoryShares.of(records.values()),
            seed_by_seed=seed_by_seed,
        )

    @property
    def to_run(self) -> list[TrialSpec]:
        """The trials that are to start, in this order."""
        return [t for t in self.trials if t.trial_id not in self.finished and t.trial_id not in self.infeasible]

    def may_run(self, *, waits: bool) -> list[TrialSpec]:
        """The trials that are to start, and with `waits` those that have no room yet, behind them."""
        return [*self.to_run, *(trial for trial, _ in self.without_room if waits)]

    @property
    def without_room(self) -> list[tuple[TrialSpec, str]]:
        """The infeasible trials, each with its reason."""
        return [(t, self.infeasible[t.trial_id]) for t in self.trials if t.trial_id in self.infeasible]

    def expected_s(self, trial: TrialSpec) -> float | None:
        """How long the trial will take, from finished ones; None: unknown."""
        return self.durations.expected_s(trial)

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The schedule of the trials to run, simulated."""
        trials = [self.shares.foreseen(trial) for trial in self.to_run]
        return Forecast.of(trials, self.nodes, self.durations.expected_s, seed_by_seed=self.seed_by_seed)

    def rows(self) -> list[dict[str, Any]]:
        """One row a trial with JSON values: those to run, in the order of their starts, the infeasible, the ended."""
        starts = {stay.trial.trial_id: (place, stay) for place, stay in enumerate(self.forecast.stays, start=1)}
        others = [trial for trial, _ in self.without_room] + [t for t in self.trials if t.trial_id in self.finished]
        known = self.forecast.makespan_s is not None
        return [
            self._row(stay.trial)
            | {"order": place, "start_s": stay.start_s if known else None, "nodes": self._names(stay)}
            for place, stay in starts.values()
        ] + [self._row(trial) | {"order": None, "start_s": None, "nodes": []} for trial in others]

    def _names(self, stay: Stay) -> list[str]:
        return list(dict.fromkeys(self.nodes[number].name for number in stay.placement.nodes))

    def _row(self, trial: TrialSpec) -> dict[str, Any]:
        done = self.finished.get(trial.trial_id)
        state = (
            f"finished: {done.status}" if done else ("infeasible" if trial.trial_id in self.infeasible else "to run")
        )
        return {
            "trial_id": trial.trial_id,
            "state": state,
            "axes": dict(trial.axes),
            "gpus": trial.gpus,
            "gpus_held": trial.gpus_held,
            "ranks": trial.gang.ranks,
            "cpus_per_rank": trial.gang.cpus_per_rank,
            "device": trial.device,
            "timing": trial.timing,
            "global_batch_size": trial.batch.global_batch_size,
            "device_batch_size": trial.batch.device_batch_size,
            "lr": trial.lr.value,
            "expected_s": None if done else self.expected_s(trial),
            "note": self.infeasible.get(trial.trial_id, done.note if done else ""),
        }

    def told(self, form: str, price_per_gpu_hour: float | None) -> str:
        """The plan in one of the forms `table` and `json`."""
        return self.to_json(price_per_gpu_hour) if form == "json" else self.to_text(price_per_gpu_hour)

    def to_json(self, price_per_gpu_hour: float | None) -> str:
        """The plan as one JSON object."""
        forecast = self.forecast
        return json.dumps(
            {
                "trials": self.rows(),
                "to_run": len(self.to_run),
                "finished": len(self.finished),
                "infeasible": len(self.infeasible),
                "expected_gpu_hours": forecast.gpu_hours,
                "expected_makespan_s": forecast.makespan_s,
                "trials_of_unknown_duration": forecast.unknown,
                "expected_cost": None if price_per_gpu_hour is None else forecast.gpu_hours * price_per_gpu_hour,
                "nodes": [vars(node) for node in self.nodes],
            },
            indent=2,
        )

    def to_text(self, price_per_gpu_hour: float | None) -> str:
        """The plan as a table for people."""
        from tabulate import tabulate

        rows = [{"state": row["state"], **row["axes"]} | {key: row[key] for key in _SHOWN} for row in self.rows()]
        return "\n".join(
            [
                tabulate([_readable(row) for row in rows], headers="keys", tablefmt="simple"),
                "",
                f"{len(self.to_run)} trials to run, {len(self.finished)} finished, {len(self.infeasible)} infeasible"
                f" on {', '.join(describe(node) for node in self.nodes)}",
                f"expected: {self._expected(price_per_gpu_hour)}",
            ]
        )

    def _expected(self, price_per_gpu_hour: float | None) -> str:
        forecast = self.forecast
        hours, unknown, makespan_s = forecast.gpu_hours, forecast.unknown, forecast.makespan_s
        unit = "GPU" if any(trial.device == "cuda" for trial in self.trials) else "worker"
        known = [f"{hours:.2f} {unit}-hours"] if hours or not unknown else []
        if known and price_per_gpu_hour is not None:
            known.append(f"a cost of {hours * price_per_gpu_hour:.2f}")
        if makespan_s:
            known.append(f"an end after {timedelta(seconds=round(makespan_s))}")
        return ", ".join([*known, f"{unknown} trials of unknown duration"] if unknown else known)


def plan_now(request: Request, asked: Mapping[str, Any], trials_on: TrialsOn) -> Plan:
    """What would run now, starting nothing and writing nothing; only a cluster is asked what it has.

    Raises MistakesError where `results_dir` cannot be read.
    """
    nodes = _nodes(request)
    journal = Layout(request.results_dir).journal
    try:
        records = ends_under(replay(journal).records, asked) if journal.exists() else {}
    except OSError as error:
        raise MistakesError([f"results_dir={request.results_dir} cannot be read: {error.strerror}"]) from error
    return Plan.of(trials_on(nodes), records, nodes, request.rerun, seed_by_seed=request.limit.is_set)


def _nodes(request: Request) -> Sequence[Node]:
    found = None if request.address else known_nodes(request) or (this_machine(),)
    if found:
        return found
    check_reachable(request)
    backend = make_backend(request)
    try:
        return arrived(backend.nodes, replace(request, wait_s=0.0))  # a plan asks for no nodes, and so waits for none
    finally:
        backend.close()


_SHOWN = ("gpus", "global_batch_size", "lr", "start_s", "expected_s", "note")


def describe(node: Node) -> str:
    """`host: 8 CPUs, 2 × NVIDIA H200`."""
    gpus = f", {node.gpus:g} × {node.gpu_type or 'GPU'}" if node.gpus else ", no GPU"
    return f"{node.name}: {node.cpus:g} CPUs{gpus}"


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {key: _seconds(row[key]) if row["state"] == "to run" else "" for key in ("start_s", "expected_s")}
    return {**row, **times, "lr": f"{row['lr']:.4g}"}


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f}"


def _stands(record: TrialRecord, rerun: str) -> bool:
    """Whether the trial is not to be run again; what a rule of the sweep left out, it may let in now."""
    return record.status.stands(rerun) and not record.skipped_by
