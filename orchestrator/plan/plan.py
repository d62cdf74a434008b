"""The plan: the sweep's trials compared with the journal and with what fits on the nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.backends.arrival import arrived
from orchestrator.backends.choice import check_reachable, known_nodes, make_backend
from orchestrator.config.request import Request
from orchestrator.journal.durations import Durations
from orchestrator.journal.history import changed, ends_under, has_answers
from orchestrator.journal.journal import replay, terminal
from orchestrator.journal.record import TrialRecord
from orchestrator.plan.forecast import Forecast
from orchestrator.plan.memory_share import MemoryShares
from orchestrator.scheduling.node import Node, why_infeasible
from orchestrator.scheduling.order import in_order
from orchestrator.storage.layout import Layout
from sweeps.mistakes import MistakesError
from sweeps.rerun import NO_RERUN, Rerun
from sweeps.trial import TrialSpec

TrialsOn = Callable[[Sequence[Node]], list[TrialSpec]]
"""Expands the sweep for these nodes; MistakesError if it cannot."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All trials of a sweep in starting order, and what happens to each."""

    trials: Sequence[TrialSpec]
    finished: Mapping[str, TrialRecord]
    """Terminal records of the journal that stand, by trial id."""
    infeasible: Mapping[str, str]
    """Why a trial cannot run on these nodes, by trial id."""
    nodes: Sequence[Node]
    named: frozenset[str] = frozenset()
    """Ids of the trials that `rerun` names."""
    again: Mapping[str, int] = field(default_factory=dict)
    """By trial whose end would stand had `rerun` not asked for it: its last attempt."""
    durations: Durations = field(default_factory=Durations)
    shares: MemoryShares = field(default_factory=lambda: MemoryShares(needs={}))
    """The share of a GPU that each trial holds, from those that ran."""
    seed_by_seed: bool = False
    """See `orchestrator.scheduling.order.stretches`."""
    changed: Sequence[str] = ()
    """The differences from the config and code of earlier results, which the plan leaves out."""

    @staticmethod
    def of(
        trials: Iterable[TrialSpec],
        records: Mapping[str, TrialRecord],
        nodes: Sequence[Node],
        rerun: Rerun = NO_RERUN,
        *,
        seed_by_seed: bool = False,
    ) -> Plan:
        """The plan; with `rerun.word` `failed`, whatever is no result runs again."""
        durations = Durations(records.values())
        ordered = in_order(list(trials), durations.expected_s, seed_by_seed=seed_by_seed)
        named = rerun.pointed_at(ordered)
        ids = {trial.trial_id for trial in ordered}
        standing = {key: end for key, end in records.items() if key in ids - named and _stands(end, rerun.word)}
        reasons = {gang: why_infeasible(gang, nodes) for gang in {trial.gang for trial in ordered}}
        without = (trial for trial in ordered if reasons[trial.gang] and trial.trial_id not in standing)
        infeasible = {trial.trial_id: reasons[trial.gang] for trial in without}
        may = ids - {*standing, *infeasible}
        return Plan(
            trials=ordered,
            finished=standing,
            infeasible=infeasible,
            nodes=nodes,
            durations=durations,
            named=named,
            again={key: end.attempt for key, end in records.items() if key in may and _stands(end, NO_RERUN.word)},
            shares=MemoryShares.of(records.values()),
            seed_by_seed=seed_by_seed,
        )

    @property
    def to_run(self) -> list[TrialSpec]:
        """The trials to start, in this order."""
        return [t for t in self.trials if t.trial_id not in self.finished and t.trial_id not in self.infeasible]

    def not_run_again(self, ends: Mapping[str, TrialRecord]) -> frozenset[str]:
        """The ids of the trials that were asked for again, and by these ends have not begun since."""
        return frozenset(key for key, attempt in self.again.items() if ends[key].attempt == attempt)

    def may_run(self, *, waits: bool) -> list[TrialSpec]:
        """The trials that are to start, and with `waits` those that have no room yet, behind them."""
        return [*self.to_run, *(trial for trial, _ in self.without_room if waits)]

    @property
    def without_room(self) -> list[tuple[TrialSpec, str]]:
        """The infeasible trials, each with the reason."""
        return [(t, self.infeasible[t.trial_id]) for t in self.trials if t.trial_id in self.infeasible]

    def expected_s(self, trial: TrialSpec) -> float | None:
        """Expected seconds of the trial, from finished ones; None if unknown."""
        return self.durations.expected_s(trial)

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The schedule of the trials to run, simulated."""
        trials = [self.shares.foreseen(trial) for trial in self.to_run]
        return Forecast.of(trials, self.nodes, self.durations.expected_s, seed_by_seed=self.seed_by_seed)


def plan_now(request: Request, asked: Mapping[str, Any], trials_on: TrialsOn) -> Plan:
    """What would run now, starting nothing and writing nothing; only a cluster is asked what it has.

    Raises MistakesError where `results_dir` cannot be read.
    """
    nodes = _nodes(request)
    journal = Layout(request.results_dir).journal
    try:
        records = replay(journal).records if journal.exists() else ()
    except OSError as error:
        raise MistakesError([f"results_dir={request.results_dir} cannot be read: {error.strerror}"]) from error
    selection = request.selection
    ends, seed_by_seed = ends_under(records, asked), selection.limit.is_set
    planned = Plan.of(trials_on(nodes), ends, nodes, selection.rerun, seed_by_seed=seed_by_seed)
    changes = changed(records, asked)
    return replace(planned, changed=changes if changes and has_answers(terminal(records).values()) else ())


def _nodes(request: Request) -> Sequence[Node]:
    known = known_nodes(request)
    if known is not None:
        return known
    check_reachable(request)
    backend = make_backend(request)
    try:
        # Planning requests no nodes, so it does not wait for any.
        return arrived(backend.nodes, replace(request.cluster, wait_s=0.0))
    finally:
        backend.close()


def _stands(record: TrialRecord, word: str) -> bool:
    """Whether the trial will not run again; one that a rule of the sweep left out may be let in now."""
    return record.status.stands(word) and not record.skipped_by
