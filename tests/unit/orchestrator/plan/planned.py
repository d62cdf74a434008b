"""A small planned sweep, records of its trials, and plans after some of them have ended."""

from dataclasses import replace

from orchestrator.plan.plan import Plan
from orchestrator.schedule.cluster import Node
from orchestrator.store.record import TrialOutcome, TrialRecord
from sweeps.rerun_selection import Rerun
from sweeps.status import Status
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.setups import setup

NODES = (Node(name="host", cpus=2, gpus=0),)
TRIALS = trials(Sweep(name="s", axes={"gpus": [1, 4], "device_batch_size": [8], "seed": [0, 1]}), lambda axes: setup())


def ended(trial, status=Status.OK, wall_s=3.0):
    outcome = TrialOutcome(wall_s=wall_s, note="" if status is Status.OK else "why")
    record = TrialRecord.of(trial, outcome, attempt=1, finished_at="2026-01-01T00:00:00+00:00")
    return replace(record, status=status)


def plan(*ends, rerun="none"):
    return Plan.of(TRIALS, {record.trial_id: record for record in ends}, NODES, Rerun.of(rerun))
