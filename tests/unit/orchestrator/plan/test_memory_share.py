"""What part of a GPU packed trials hold, by what those of their size have taken."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.backends.agenda import Agenda
from orchestrator.journal.line import Kind
from orchestrator.journal.outcome import Outcome
from orchestrator.journal.record import TrialRecord
from orchestrator.journal.spending import spent_gpu_s
from orchestrator.plan.memory_share import MemoryShares
from orchestrator.plan.plan import Plan
from orchestrator.plan.printout import rows
from orchestrator.scheduling.node import Node
from sweeps.probe import probe_of
from sweeps.status import Status
from tests.contract.trials import trial


def packed(gpus=0.25, batch=32, **changes):
    one = trial("one", "", timing="shared", trainable={"probe": {"budget": {"steps": 10}}})
    axes = {"gpus": gpus, "device_batch_size": batch, "model": "cnn", "seed": 3}
    shape = replace(one.gang, gpus_per_rank=gpus)
    shares = replace(one.batch, global_batch_size=batch, shares=(batch,))
    return replace(one, device="cuda", gpus=gpus, gang=shape, batch=shares, axes=axes, **changes)


def took(record_of, gb, batch=32, gpus=1.0, model="cnn", **fields):
    metrics = {} if gb is None else {"reserved_memory_gb": gb, "device_memory_gb": 80.0}
    return record_of(gpus, batch=batch, axes={"model": model}, metrics=metrics, **fields)


def held(ends, asked, probes=()):
    return MemoryShares.of(ends, probes).placed(asked).gang.gpus_per_rank


@pytest.mark.parametrize(("gb", "share"), [(2.0, 0.25), (30.0, 0.45), (79.0, 1.0), (None, 0.25)])
def test_as_much_as_was_asked_for_or_as_is_needed(record_of, gb, share):
    assert held([took(record_of, gb)], packed()) == share  # a trainable that does not tell is believed


def test_all_of_a_gpu_until_the_size_is_known(record_of):
    assert held([], packed()) == 1.0
    assert held([took(record_of, 2.0, batch=64), took(record_of, 2.0, model="mlp")], packed()) == 1.0
    assert held([took(record_of, None, status=Status.SKIPPED, skipped_by="budget")], packed()) == 1.0
    assert held([took(record_of, None, status=Status.OOM), took(record_of, 2.0)], packed()) == 1.0


def test_the_largest_of_several_counts_and_probes_as_well(record_of):
    asked = packed()
    key = "(32, [('model', 'cnn')])"
    probe = {"size": key, "status": "ok", "reserved_memory_gb": 40.0, "device_memory_gb": 80.0}
    ends = [took(record_of, 30.0), took(record_of, None), took(record_of, 20.0, gpus=2.0)]
    assert held(ends, asked) == 0.45 and held(ends, asked, [probe]) == 0.6
    assert MemoryShares.of(ends).unknown([asked, packed(batch=64), packed(batch=64)]) == [packed(batch=64)]


def test_a_probe_has_the_gpu_to_itself_and_who_is_timed_is_left_alone(record_of):
    known = [took(record_of, 2.0)]
    assert held(known, probe_of(packed())) == 1.0
    assert held([], replace(packed(), timing="device")) == 0.25 and held([], packed(gpus=1.0)) == 1.0
    assert not MemoryShares.of([]).unknown([replace(packed(), device="cpu")])


def test_gpu_hours_count_what_is_held(record_of):
    """A packed trial costs what its memory keeps from others, a timed part of a GPU all of it."""
    known = MemoryShares.of([took(record_of, 30.0)])
    assert known.foreseen(packed()).gpus_held == 0.45 and known.foreseen(packed(batch=64)).gpus_held == 0.25
    assert replace(packed(), timing="device").gpus_held == 1.0
    assert replace(packed(), device="cpu").gpus_held == 0.25
    pair = replace(packed().gang, ranks=2, gpus_per_rank=2.0)
    assert replace(packed(), gpus=4, timing="device", gang=pair).gpus_held == 4.0


def test_a_budget_and_a_forecast_count_what_is_held(record_of):
    placed = MemoryShares.of([took(record_of, 30.0)]).placed(packed())
    agenda = Agenda([placed])
    agenda.on([Node(name="a", cpus=8, gpus=1)], 0.0)
    assert agenda.next(0.0) is not None and agenda.gpu_s(100.0) == 45.0
    end = TrialRecord.of(placed, Outcome(status=Status.OK, wall_s=100.0), attempt=1, finished_at="")
    older = {name: value for name, value in end.to_json().items() if name != "gpus_held"}
    values = (end.to_json(), older, {"gpus": 0.25, "gpus_held": 1.0, "wall_s": 10.0})
    kinds = (Kind.FINISHED, Kind.FINISHED, Kind.PROBED)
    journal = [SimpleNamespace(kind=kind, value=value) for kind, value in zip(kinds, values, strict=True)]
    assert spent_gpu_s(journal) == 45.0 + 25.0 + 10.0
    again = replace(packed(), trial_id="another", seed=4)
    plan = Plan.of([again], {end.trial_id: end}, [Node(name="a", cpus=8, gpus=1)])
    assert rows(plan)[0]["gpus_held"] == 0.25  # nothing told of its memory
    told = replace(end, metrics={"reserved_memory_gb": 30.0, "device_memory_gb": 80.0})
    plan = Plan.of([again], {end.trial_id: told}, [Node(name="a", cpus=8, gpus=1)])
    assert rows(plan)[0]["gpus_held"] == 0.45 and plan.forecast.gpu_hours == pytest.approx(0.45 * 100 / 3600)
