"""What part of a GPU packed trials hold, by what those of their size have taken."""

from dataclasses import replace

import pytest

from orchestrator.plan.memory_share import MemoryShares
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
