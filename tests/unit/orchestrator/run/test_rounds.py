"""The order of a sweep's rounds, with a session that only takes notes."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.plan import phases
from orchestrator.plan.forecasts import Forecasts
from orchestrator.plan.phases import Prospects
from orchestrator.plan.plan import Plan
from orchestrator.run import round_sources
from orchestrator.run.rounds import Rounds, SharedTimings
from orchestrator.schedule.cluster import Footprint, Node, Placement
from orchestrator.schedule.scheduler import Start
from orchestrator.store.record import TrialOutcome
from sweeps.branch import BRANCH_TOKENS, base_of, point_of
from sweeps.rank_exit import Cause
from sweeps.rerun_selection import Rerun
from sweeps.status import Status
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.plan.planned import ended
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request
from tests.unit.sweeps.setups import setup

NODES = (Node(name="a", cpus=1, gpus=1),)
TRIALS = trials(Sweep(name="s", axes={"device_batch_size": [8, 16], "seed": [0, 1, 2]}), lambda axes: setup())
PROBE = replace(TRIALS[0], trial_id="probe")


class Notes:
    def __init__(self):
        self.told, self.stopped = [], False
        self.dropped, self.gone = [], []

    def stopping(self):
        return self.stopped

    def left_out(self, ends):
        self.told += [(trial.seed, outcome.skipped_by) for trial, outcome in ends]

    def dequeued(self, trials):
        self.gone += trials

    def queued(self, shares_s, why):
        self.told.append((why.partition(":")[0], len(shares_s)))
        self.why = why

    def drop_branch_point(self, branch):
        self.dropped.append(point_of(branch))


class BegunRounds(Rounds):
    """Rounds whose first one is known, as the driver asks for it before there is a queue."""

    def __init__(self, *given):
        super().__init__(*given)
        self.first = self.next(())


class Nothing:
    """A history without ends, or with these."""

    def __init__(self, ends=None):
        self.ends = {} if ends is None else ends
        self.running = set()
        self.probes, self.repeated = {}, set()


def made(
    monkeypatch,
    *,
    asked=(),
    disturbed=(),
    wait_s=0.0,
    phased=True,
    early_stop=None,
    ends=None,
    planned_ends=None,
    trials=TRIALS,
    rerun="none",
):
    """Rounds whose phases ask for these trials, one round after the other, with these disturbed timings."""
    rounds_of = iter(asked)
    monkeypatch.setattr(phases, "probes", lambda trials, probed: [PROBE])
    monkeypatch.setattr(phases, "next_trials", lambda waiting, prospects: next(rounds_of, []))
    monkeypatch.setattr(round_sources.Prospects, "of", lambda *_: Prospects(answer="that"))
    monkeypatch.setattr(round_sources, "to_repeat", lambda *_: list(disturbed))
    asked_for = request(phases=phased, wait_s=wait_s, rerun_invalid=0.1, rerun=rerun, early_stop=early_stop)
    notes = Notes()
    forecasts = Forecasts(settings=asked_for.settings)
    plan = Plan.of(trials, planned_ends or {}, NODES, Rerun.of(rerun), forecasts=forecasts)
    return BegunRounds(asked_for, plan, notes, Nothing(ends)), notes


def test_order_is_probes_phases_disturbed_timings_then_skips(monkeypatch):
    source, notes = made(monkeypatch, asked=[TRIALS[:2], TRIALS[2:3]], disturbed=TRIALS[:1])
    assert source.first == [PROBE] and not notes.told
    assert [source.next([]), source.next([])] == [TRIALS[:2], TRIALS[2:3]]
    assert source.next([]) == TRIALS[:1]
    assert notes.told == [("disturbed or doubtful", 1)]
    assert not source.next([])
    assert notes.told[1:] == [(spec.seed, "phases") for spec in TRIALS[3:]]


def test_phases_are_evaluated_again_after_repetitions(monkeypatch):
    source, notes = made(monkeypatch, asked=[TRIALS[:2], [], TRIALS[2:3]], disturbed=TRIALS[:1])
    assert [source.next([]), source.next([]), source.next([])] == [TRIALS[:2], TRIALS[:1], TRIALS[2:3]]
    assert not source.next([]) and [told for _, told in notes.told] == [1, *["phases"] * 3]


def test_trials_left_out_of_a_rerun_are_not_timed_again(monkeypatch):
    before = {spec.trial_id: ended(spec) for spec in TRIALS[:2]}
    now = {**before, TRIALS[1].trial_id: replace(before[TRIALS[1].trial_id], attempt=2)}
    source, _ = made(monkeypatch, phased=False, ends=before, planned_ends=before, rerun="all")
    ran = []
    monkeypatch.setattr(round_sources, "to_repeat", lambda trials, *_: ran.extend(trials) or [])
    monkeypatch.setattr(source, "_history", Nothing(now))
    source.next([(TRIALS[0], SimpleNamespace(skipped_by="budget"))])
    assert TRIALS[1] in ran and TRIALS[0] not in ran


def test_a_driver_repeats_a_disturbed_timing_only_once(monkeypatch):
    source, notes = made(monkeypatch, phased=False, disturbed=TRIALS[:1])
    assert len(source.first) == 6
    assert source.next([(TRIALS[5], SimpleNamespace(skipped_by="budget"))]) == TRIALS[:1] and source.next([]) == []
    assert notes.told == [(TRIALS[5].seed, "budget"), ("disturbed or doubtful", 1)]


def test_finished_sweep_repeats_the_remaining_disturbed_timings(monkeypatch):
    source, notes = made(
        monkeypatch, phased=False, disturbed=TRIALS[:1], planned_ends={spec.trial_id: ended(spec) for spec in TRIALS}
    )
    assert source.first == TRIALS[:1] and notes.told == [("disturbed or doubtful", 1)]
    assert not source.next([])


def test_after_a_signal_there_is_no_other_round(monkeypatch):
    source, notes = made(monkeypatch, asked=[TRIALS[:1]], disturbed=TRIALS[:1])
    notes.stopped = True
    assert not source.next([]) and not notes.told


def stopped_early(trials):
    return {spec.trial_id: replace(ended(spec, Status.SKIPPED), skipped_by="early_stop") for spec in trials}


def test_early_stopped_trials_run_again_only_without_early_stop(monkeypatch):
    ends = stopped_early(TRIALS[:1])
    for early_stop, first in (("asha", TRIALS[1:]), (None, TRIALS)):
        source, _ = made(monkeypatch, phased=False, early_stop=early_stop, planned_ends=ends)
        assert {spec.trial_id for spec in source.first} == {spec.trial_id for spec in first}


def test_trials_stopped_early_stay_skipped_when_the_sweep_continues(monkeypatch):
    """A record of another reason would hide the early stop, and the trial would train again."""
    source, notes = made(monkeypatch, planned_ends=stopped_early(TRIALS[:1]))
    assert not source.next([])
    assert sorted(notes.told) == sorted((spec.seed, "phases") for spec in TRIALS[1:])


def test_trials_named_in_a_rerun_run_first_despite_phases(monkeypatch):
    ends = stopped_early(TRIALS[3:5])
    source, notes = made(monkeypatch, ends=ends, planned_ends=ends, rerun=[TRIALS[4].trial_id])
    assert source.first == [TRIALS[4], PROBE]  # the named trial and a probe for the others
    assert not source.next([])
    assert sorted(notes.told) == sorted((spec.seed, "phases") for spec in (*TRIALS[:3], TRIALS[5]))


def test_phases_ignore_earlier_results_of_trials_to_rerun(monkeypatch):
    """Otherwise the cell would count as known or excluded, and the trial would be skipped."""
    told = []
    source, _ = made(monkeypatch, asked=[TRIALS[:1], []])
    ends = {spec.trial_id: ended(spec) for spec in TRIALS}
    monkeypatch.setattr(source, "_history", Nothing(ends))
    monkeypatch.setattr(round_sources.Prospects, "of", lambda *given: told.append(set(given[2])) or Prospects())
    source.next([])
    source.next([])
    assert told[:2] == [set(), {TRIALS[0].trial_id}]


def test_trials_that_share_gpus_are_measured_alone_first(monkeypatch):
    packed = [
        replace(spec, device="cuda", timing="shared", gpus=0.25, gang=replace(spec.gang, gpus_per_rank=0.25))
        for spec in TRIALS
    ]
    ends = {}
    source, _ = made(monkeypatch, trials=packed, phased=False, ends=ends)
    assert sorted((spec.batch.device_batch_size, spec.gang.gpus_per_rank) for spec in source.first) == [(8, 1), (16, 1)]
    for spec in source.first:
        metrics = {"reserved_memory_gb": {8: 10.0, 16: 30.0}[spec.batch.device_batch_size], "device_memory_gb": 80.0}
        ended = record_of(0.25, spec.seed, batch=spec.batch.device_batch_size, metrics=metrics)
        ends[spec.trial_id] = replace(ended, axes=spec.axes)
    held = {(spec.batch.device_batch_size, spec.gang.gpus_per_rank) for spec in source.next([])}
    assert held == {(8, 0.25), (16, 0.45)}  # 1.2 × 30 / 80
    assert source.next([]) == []


def settling(speeds, ends):
    """Rounds of mode=settle over these trials' records; speeds are by batch and seed."""

    def further(trial, seeds):
        return trials(
            Sweep(name="s", axes={**{a: [v] for a, v in trial.axes.items()}, "seed": seeds}), lambda _: setup()
        )

    def run(new):
        for trial in new:
            batch = trial.batch.device_batch_size
            metrics = {"samples_per_s": speeds[batch][trial.seed], "samples": 6000, "val_accuracy": 0.9}
            record = record_of(1, trial.seed, batch=batch, metrics=metrics)
            ends[trial.trial_id] = replace(record, trial_id=trial.trial_id, cell_id=trial.cell_id, axes=trial.axes)

    first = [trial for trial in TRIALS if trial.seed == 0]
    run(first)
    notes = Notes()
    asked = request(phases=False, reference_batch_size=8)
    planned = Plan.of(first, ends, NODES)
    return BegunRounds(asked, planned, notes, Nothing(ends), further), notes, run


def test_settling_adds_seeds_until_the_verdict_is_clear():
    speeds = {8: [100.0 + seed for seed in range(30)], 16: [200.0 + seed for seed in range(30)]}
    source, notes, run = settling(speeds, {})
    assert sorted((spec.batch.device_batch_size, spec.seed) for spec in source.first) == [
        *((8, 1), (8, 2), (16, 1), (16, 2))
    ]
    assert notes.told == [("undecided", 4)] and "of 1×16 none, 1×8 none (baseline)" in notes.why
    run(source.first)
    assert not source.next([])
    assert len(source.planned.trials) == 6


def test_settling_at_most_doubles_the_seeds_and_ends():
    """Two equal cells whose speeds vary: no number of seeds separates them."""
    chance = random.Random(1)
    speeds = {batch: [100 * math.exp(chance.gauss(0, 0.1)) for _ in range(40)] for batch in (8, 16)}
    source, notes, run = settling(speeds, {})
    counts, new = [], source.first
    while new and len(counts) < 20:
        run(new)
        counts.append(len(source.planned.trials))
        new = source.next([])
    assert counts[0] == 6 and all(later <= 2 * count for count, later in zip(counts, counts[1:], strict=False))
    assert not new and counts[-1] <= 60


def test_a_further_seed_beyond_the_budget_has_no_row():
    source, notes, _ = settling({8: [100.0] * 9, 16: [101.0] * 9}, {})
    budget = TrialOutcome(note="sweep.budget.wall_s=1 was used up", wall_s=0.0, skipped_by="budget")
    assert not source.next([(trial, budget) for trial in source.first])
    assert notes.told == [("undecided", 4)] and notes.gone == source.first and "wall_s=1" in source.unsettled
    assert len(source.planned.trials) == 2


def test_settling_times_every_disturbed_trial_again_once():
    ends = {}
    source, notes, run = settling({8: [100.0] * 9, 16: [200.0] * 9}, ends)
    run(source.first)
    for key, row in ends.items():
        ends[key] = replace(row, metrics={**row.metrics, "foreign_cpu": 0.4})
    assert len(source.next([])) == 6
    assert not any(trial.measures for trial in source.next([]))


def starting(rule, *, gpus=1, batch=64, seed=0, node="a", measures=""):
    """Return the start of a trial under this rule on this node."""
    axes = {"gpus": [gpus], "device_batch_size": [batch], "lr_rule": [rule], "seed": [seed]}
    (one,) = trials(Sweep(name="s", axes=axes), lambda axes: setup())
    there = Node(name=node, cpus=2, gpus=0)
    return Start(
        trial=replace(one, measures=measures), placement=Placement(footprint=Footprint.of(one), held=()), nodes=(there,)
    )


def sharing(*starts, **metrics):
    """Return the timings that a driver shares after these trials have started and ended with these metrics."""
    history = Nothing()
    history.of = lambda key: SimpleNamespace(end=history.ends.get(key), running=key in history.running)
    timings = SharedTimings(history)
    for start in starts:
        assert timings.as_started(start) == start.trial
        history.ends[start.trial.trial_id] = replace(ended(start.trial), metrics=metrics)
    return timings, history


def timed_with(timings, start):
    return timings.as_started(start).config.get("trainable", {}).get("timed_with")


def test_timing_is_shared_between_rules_of_one_batch_and_seed():
    first = starting("none")
    timings, history = sharing(first, samples_per_s=100.0)
    assert timed_with(timings, starting("linear")) == timed_with(timings, starting("sqrt")) == first.trial.trial_id
    others = [starting("linear", seed=1), starting("linear", batch=32), starting("linear", gpus=2)]
    others += [starting("linear", node="b"), starting("lars"), starting("adascale"), starting("linear", measures="x")]
    assert not any(timed_with(timings, spec) for spec in [first, *others])
    history.running.add(first.trial.trial_id)
    assert timed_with(timings, starting("linear")) is None


@pytest.mark.parametrize(
    "metrics", [{}, {"samples_per_s": 100.0, "foreign_cpu": 0.5}, {"samples_per_s": 100.0, "window_s": 0.1}]
)
def test_invalid_timing_is_not_shared(metrics):
    timings, _ = sharing(starting("none"), **metrics)
    assert timed_with(timings, starting("linear")) is None


def test_disturbed_timing_is_that_of_a_valid_one_with_the_same_steps():
    starts = [starting(rule) for rule in ("none", "linear")] + [starting("none", batch=32)]
    timings, history = sharing(*starts, samples_per_s=100.0, foreign_cpu=0.5)
    assert timings.next((), history).timed_with == {}
    first, second, _ = (start.trial.trial_id for start in starts)
    history.ends[second] = replace(history.ends[second], metrics={"samples_per_s": 100.0})
    assert timings.next((), history).timed_with == {first: second}
    history.ends[first] = replace(history.ends[first], metrics={"samples_per_s": 99.0})
    assert timings.next((), history).timed_with == {}
    history.repeated = {first}
    assert timings.next((), history).timed_with == {second: first}


def test_identical_trainings_run_once(monkeypatch):
    axes = {"device_batch_size": [32, 64], "lr_rule": ["none", "linear"], "seed": [0, 1]}
    grid = trials(Sweep(name="s", axes=axes), lambda axes: setup())
    at_reference = [spec for spec in grid if spec.batch.device_batch_size == 32]
    originals = [spec for spec in at_reference if spec.lr.rule == "none"]
    copies = [spec for spec in at_reference if spec.lr.rule == "linear"]

    def copied(ends):
        rows = {spec.trial_id: ended(spec, status) for spec, status in zip(originals, ends, strict=True)}
        source, notes = made(monkeypatch, phased=False, trials=grid)
        assert {spec.trial_id for spec in source.first} == {e.trial_id for e in grid} - {e.trial_id for e in copies}
        notes.copied = lambda trial, row: notes.told.append((trial.trial_id, row.trial_id))
        history = Nothing(rows)
        results = {key: row if row.status is Status.OK else None for key, row in rows.items()}
        history.of = lambda trial_id: SimpleNamespace(result=results[trial_id])
        monkeypatch.setattr(source, "_history", history)
        return source.next([]), notes.told

    pairs = [(copy.trial_id, one.trial_id) for copy, one in zip(copies, originals, strict=True)]
    assert copied([Status.OK, Status.OK]) == ([], pairs)
    assert copied([Status.OK, Status.FAILED]) == ([copies[1]], pairs[:1])  # it may fare better


def test_named_trial_runs_even_if_its_training_is_known(monkeypatch):
    grid = trials(
        Sweep(name="s", axes={"device_batch_size": [32], "lr_rule": ["none", "linear"]}), lambda axes: setup()
    )
    before = {spec.trial_id: ended(spec) for spec in grid}
    rerun = {"lr_rule": "linear"}
    source, _ = made(monkeypatch, phased=False, trials=grid, ends=before, planned_ends=before, rerun=rerun)
    assert [spec.lr.rule for spec in source.first] == ["linear"]


def branching():
    """Two bases, and three branches of each at two points."""
    trials = []
    for seed in (0, 1):
        base, *branches = (
            replace(TRIALS[0], trial_id=f"{seed}-{index}", cell_id=f"{index}", seed=seed) for index in range(4)
        )
        settings = [
            {"branch_tokens": 8 * (1 + index // 2), "branch_base": base.trial_id, "number": index} for index in range(3)
        ]
        trials += [
            base,
            *(
                replace(spec, config={"trainable": own}, axes={BRANCH_TOKENS: own["branch_tokens"]})
                for spec, own in zip(branches, settings, strict=True)
            ),
        ]
    return trials


def ids(trials):
    return sorted(trial.trial_id for trial in trials)


def test_branches_run_once_all_bases_have_ended(monkeypatch):
    trials, ends = branching(), {}
    source, notes = made(monkeypatch, phased=False, trials=trials, ends=ends)
    assert ids(source.first) == ["0-0", "1-0"]
    ends |= {spec.trial_id: ended(spec) for spec in source.first}
    notes.dropped.clear()
    second = source.next([])
    assert ids(second) == ids(spec for spec in trials if base_of(spec)) and not notes.told
    for branch in sorted(second, key=lambda spec: spec.trial_id)[:3]:
        assert not notes.dropped or branch.trial_id == "0-3"
        source.ended(branch, TrialOutcome(cause=Cause.ERROR, note="", wall_s=1.0))
        source.ended(branch, TrialOutcome(note="", wall_s=1.0))
    assert notes.dropped == [8, 16]


def test_branches_of_a_failed_base_are_left_out_with_its_reason(monkeypatch):
    trials, ends = branching(), {}
    source, notes = made(monkeypatch, phased=False, trials=trials, ends=ends)
    ends |= {spec.trial_id: ended(spec, Status.FAILED if spec.seed else Status.OK) for spec in source.first}
    assert {spec.seed for spec in source.next([])} == {0}
    assert notes.told == [(1, "base")] * 3
