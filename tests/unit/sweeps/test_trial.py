from dataclasses import replace

import pytest

from sweeps.layout import Gang
from sweeps.trial import Batch
from tests.unit.sweeps.setups import expanded

(TRIAL,) = expanded({"gpus": [3], "device_batch_size": [32]})


def gang(ranks=1, gpus_per_rank=1.0, **other):
    return Gang(ranks=ranks, gpus_per_rank=gpus_per_rank, cpus_per_rank=1, **other)


def on_gpus(held, *, timing="device"):
    return replace(TRIAL, device="cuda", timing=timing, gang=held, gpus=held.gpus)


@pytest.mark.parametrize(
    ("ranks", "types", "counts"),
    [
        (4, (), [(4, ())]),
        (4, ("A10",), [(4, ("A10",))]),
        (4, ("A10", "H200"), [(2, ("A10",)), (2, ("H200",))]),
        (3, ("A10", "H200"), [(2, ("A10",)), (1, ("H200",))]),
        (6, ("A10", "H200", "T4"), [(2, ("A10",)), (2, ("H200",)), (2, ("T4",))]),
    ],
)
def test_mixed_gpu_types_have_equally_many_ranks(ranks, types, counts):
    assert [(part.ranks, part.gpu_types) for part in gang(ranks, gpu_types=types).parts()] == counts


@pytest.mark.parametrize(
    ("held", "devices", "gpus"),
    [
        (gang(2), 1, 2.0),
        (gang(1, 4), 4, 4.0),
        (gang(1, 0.25), 1, 0.25),
        (gang(1, 0, workers_per_rank=3), 3, 0.0),
        (gang(2, 0), 1, 0.0),
    ],
)
def test_gang_counts_devices_and_gpus(held, devices, gpus):
    assert (held.devices_per_rank, held.gpus) == (devices, gpus)


def test_device_batch_size_is_the_largest_share_of_a_device():
    batch = Batch(global_batch_size=18, grad_accum_steps=2, shares=(2, 7), parts_per_rank=2)
    assert batch.device_batch_size == 4
    assert Batch(global_batch_size=9, grad_accum_steps=1, shares=(9,)).device_batch_size == 9


@pytest.mark.parametrize(
    ("held", "timing", "costs", "share"),
    [
        (gang(2, 1), "device", 2, None),
        (gang(1, 4), "device", 4, None),
        (gang(1, 0.25), "device", 1, None),  # others may not have the rest of it
        (gang(1, 0.25), "shared", 0.25, 0.25),
        (gang(1, 1), "shared", 1, None),
        (gang(3, 0.5), "shared", 1.5, 0.5),
    ],
)
def test_gpus_held_are_whole_devices_unless_shared(held, timing, costs, share):
    spec = on_gpus(held, timing=timing)
    assert (spec.gpus_held, spec.memory_fraction) == (costs, share)


def test_on_cpus_worker_processes_are_held():
    assert TRIAL.device == "cpu" and TRIAL.gpus_held == 3 and replace(TRIAL, timing="shared").memory_fraction is None
