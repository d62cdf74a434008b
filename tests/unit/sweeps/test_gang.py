import pytest

from sweeps.gang import gang


def made(gpus, strategy="auto", device="cuda", per_worker=None):
    held = gang(
        gpus, strategy=strategy, device=device, gpus_per_worker=per_worker, cpus_per_worker=None, cores_per_gpu=16
    )
    return held.ranks, held.gpus_per_rank


@pytest.mark.parametrize(
    ("asked", "ranks", "each"),
    [
        ({"gpus": 1}, 1, 1),
        ({"gpus": 4}, 4, 1),
        ({"gpus": 0.25}, 1, 0.25),
        ({"gpus": 0.25, "per_worker": 0.25}, 1, 0.25),
        ({"gpus": 4, "per_worker": 2}, 2, 2),
        ({"gpus": 4, "strategy": "data_parallel"}, 1, 4),
        ({"gpus": 2, "device": "cpu"}, 2, 0),
        ({"gpus": 4, "strategy": "own_ranks"}, 1, 4),
        ({"gpus": 0.5, "strategy": "own_ranks"}, 1, 0.5),
        ({"gpus": 4, "strategy": "own_ranks", "device": "cpu"}, 1, 0),
    ],
)
def test_gpus_are_ranks_times_gpus_a_rank(asked, ranks, each):
    assert made(**asked) == (ranks, each)


@pytest.mark.parametrize(("gpus", "strategy", "cores"), [(1, "auto", 16), (0.25, "auto", 4), (2, "data_parallel", 32)])
def test_a_rank_has_its_gpus_share_of_the_cores(gpus, strategy, cores):
    held = gang(gpus, strategy=strategy, device="cuda", gpus_per_worker=None, cpus_per_worker=None, cores_per_gpu=16)
    assert held.cpus_per_rank == cores


def test_without_gpus_a_command_has_the_cores_of_all_the_processes_that_it_starts():
    held = gang(3, strategy="own_ranks", device="cpu", gpus_per_worker=None, cpus_per_worker=2, cores_per_gpu=1)
    assert (held.ranks, held.cpus_per_rank, held.devices_per_rank) == (1, 6, 3)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"gpus": 0}, "above 0"),
        ({"gpus": -1}, "above 0"),
        ({"gpus": "two"}, "above 0"),
        ({"gpus": True}, "above 0"),
        ({"gpus": 1, "per_worker": 0.25}, "several ranks on one GPU"),
        ({"gpus": 3, "per_worker": 2}, "not a whole number of workers"),
        ({"gpus": 1.5, "strategy": "data_parallel"}, "neither a fraction of one GPU"),
        ({"gpus": 0.5, "device": "cpu"}, "machine without GPUs"),
        ({"gpus": 0.5, "device": "cpu", "strategy": "own_ranks"}, "machine without GPUs"),
        ({"gpus": 2, "device": "cpu", "strategy": "data_parallel"}, "there are none here: use ddp"),
        ({"gpus": 4, "strategy": "data_parallel", "per_worker": 1}, "one process"),
        ({"gpus": 2, "strategy": "single"}, "one process on one device"),
    ],
)
def test_what_is_no_gang(asked, told):
    with pytest.raises(ValueError, match=told):
        made(**asked)


@pytest.mark.parametrize(("asked", "cores"), [(None, 1), (3, 3)])
def test_without_gpus_a_rank_has_one_core_or_what_was_asked_for(asked, cores):
    held = gang(2, strategy="auto", device="cpu", gpus_per_worker=None, cpus_per_worker=asked, cores_per_gpu=16)
    assert (held.ranks, held.cpus_per_rank) == (2, cores)
