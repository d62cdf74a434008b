"""Figures of a trial from the counts of its processes: who trained, how fast, and on how many samples."""

import os

import pytest

from sweeps.trial import FEWEST_WARMUP_STEPS, SHORTEST_WARMUP_S
from trainables.command.hook.sweep_counts import WARMUP_S, WARMUP_STEPS, Counts, Tally
from trainables.command.hook_files import FOLDER, Adapter


def counts(rank, world=2, *, steps=100, seconds=None, **other):
    """The counts of a process that takes a step of 8 samples each 0.1 s."""
    counts = Counts()
    tallies = {name: Tally(steps, steps * 0.1 if seconds is None else seconds, steps * 8) for name in TALLIES}
    given = {
        "at_s": 50.0,
        "cpu_s": 50.0,
        "epoch": 3,
        "completed": 2 * steps // 3,
        "rates": [[1, 0.1]],
        "connected": world > 1,
    }
    vars(counts).update(given | tallies | {"rank": rank, "world": world} | other)
    return counts


def adapter_of(folder, *processes):
    """The adapter of processes that were idle when it looked first."""
    adapter = Adapter(folder / FOLDER)
    for began in (True, False):
        for pid, process in enumerate(processes):
            seen = counts(process.rank, process.world, cpu_s=0.0, at_s=0.0) if began else process
            (adapter.folder / f"{pid}.json").write_text(seen.to_json())
        adapter.look(now=True)
    return adapter


TALLIES = ("whole", "warm", "later")
NO_LOADER = {name: Tally(100, 10.0) for name in TALLIES}
ABSENT = object()


def test_counts_are_the_same_on_both_sides():
    written = counts(1, gpus=["a"], framework="lightning", weights=0.5)
    assert Counts.of_json(written.to_json()).to_json() == written.to_json()


@pytest.mark.parametrize(
    ("processes", "replicas", "workers"),
    [
        ([counts(0), counts(1)], 2, 2),
        ([counts(0), counts(1, steps=20)], 2, 1),  # a rank that stopped taking steps
        ([counts(0), counts(1, steps=60, at_s=10.0)], 2, 1),  # a rank that died
        ([counts(0), counts(1, at_s=40.0)], 2, 2),  # a busy machine: the same last step, ten seconds later
        ([counts(0)], 2, 1),
        ([counts(0, gpus=["a"]), counts(1, gpus=["a"])], 2, 1),  # both ranks on one GPU
        ([counts(0, gpus=["a"]), counts(1, gpus=["b"])], 2, 2),
        ([counts(0, 1, gpus=["a", "b"])], 2, 2),  # DataParallel
        ([counts(0, 1, gpus=["a"])], 2, 1),
        ([counts(0, 1), counts(0, 1)], 2, 1),
        ([counts(0, 1, connected=True), counts(0, 1, connected=True)], 2, 2),  # Horovod, shared memory
        ([counts(0, 1, connected=True, at_s=40.0), counts(0, 1, connected=True)], 2, 2),
        ([counts(0, weights=0.0), counts(1, weights=1.0)], 1, 2),  # parts of a model
        ([counts(0, weights=0.0), counts(1, weights=1.0)], 2, 1),  # no gradients are exchanged
        ([counts(0, content=3.0), counts(1, content=3.0)], 1, 2),  # tensor parallelism
        ([counts(0, content=3.0), counts(1, content=3.0)], 2, 1),  # shards without a distributed sampler
        ([counts(0, content=3.0), counts(1, content=4.0)], 2, 2),
        ([], 1, None),
    ],
)
def test_workers_are_the_processes_that_train_together(processes, replicas, workers, tmp_path):
    count, why = adapter_of(tmp_path, *processes).training().workers(2, cores=2, replicas=replicas)
    assert count == workers and bool(why) is (workers == 1)


@pytest.mark.parametrize(
    ("processes", "global_batch_size", "figures"),
    [
        # As nanoGPT: in rank 0 the evaluation does not count, and rank 1 waits 10 s for it.
        ([counts(0, seconds=10.0), counts(1, seconds=20.0)], 16, {"step_s": 0.1, "samples_per_s": 160}),
        # An earlier training by the same command.
        ([counts(0, at_s=9.0), counts(1, at_s=9.0), counts(0), counts(1)], 16, {"samples": 1600}),
        # Ranks of tensor parallelism share their samples.
        ([counts(0, content=3.0), counts(1, content=3.0)], 8, {"samples": 800, "samples_per_s": 80}),
        # Without a loader, a step has the global batch.
        ([counts(0, 1, **NO_LOADER)], 20, {"samples": 2000, "samples_per_s": 200, "rate_source": "assumed"}),
        # The rows of the model's inputs are samples if they are as many as the batch.
        ([counts(0, 1, is_input=True)], 8, {"samples_per_s": 80, "rate_source": "counted"}),
        ([counts(0, 1, is_input=True)], 32, {"samples_per_s": 320, "rate_source": "assumed"}),
        ([counts(0, 1, **NO_LOADER)], None, {"samples": ABSENT, "samples_per_s": ABSENT, "steps": 100}),
        # It ended within its warm-up.
        ([counts(0, 1, warm=Tally(), later=Tally())], 8, {"samples": 800, "window_steps": 0, "samples_per_s": ABSENT}),
    ],
)
def test_figures_are_those_of_distinct_samples(processes, global_batch_size, figures, tmp_path):
    counted = adapter_of(tmp_path, *processes).training().figures(global_batch_size)
    assert {name: counted.get(name, ABSENT) for name in figures} == {
        name: value if isinstance(value, str) else pytest.approx(value) for name, value in figures.items()
    }


@pytest.mark.parametrize(
    ("process", "lr", "parts"),
    [
        ({}, 0.1, []),
        ({}, 0.4, ["0.1", "0.4"]),
        ({"rates": [[1, 0.9, 0.0], [50, 0.05, 0.1], [100, 0.0, 0.0]]}, 0.1, []),  # biases in their warm-up
        ({"rates": [[1, 0.2], [100, 0.1]]}, 0.1, ["0.2"]),  # scaled twice
        ({"other_steps": 100}, 0.1, ["100 of 200 steps"]),  # a search for the learning rate
        ({"other_optimizer_steps": 50}, 0.1, ["50 of 100 steps"]),  # a second phase
        ({"other_optimizer_steps": 1}, 0.1, []),
        ({"gradless": True}, 0.1, ["without gradients"]),
        ({"dataset": 280, "completed_samples": 528}, 0.1, ["264 of 280 samples"]),  # drop_last
        ({"dataset": 264, "completed_samples": 528}, 0.1, []),
    ],
)
def test_work_that_differs_from_the_trial_is_remarked(process, lr, parts, tmp_path):
    remarks = list(adapter_of(tmp_path, counts(0, 1, **process)).training().remarks(8, lr))
    assert len(remarks) == bool(parts) and all(part in remark for remark in remarks for part in parts)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_checkpoint_of_all_trials_is_remarked(is_kept, tmp_path):
    checkpoint = tmp_path / "best.pt"
    if is_kept:
        checkpoint.touch()
    remarks = list(adapter_of(tmp_path, counts(0, 1, saved=str(checkpoint))).training().remarks(8, 0.1))
    assert [str(checkpoint) in remark for remark in remarks] == [True] * is_kept


def test_a_python_without_the_hook_is_noticed(tmp_path):
    adapter = adapter_of(tmp_path, counts(0, 1))
    (adapter.folder / "7.started").touch()
    assert not adapter.is_absent({7: "python3.11", 8: "bash"})
    assert adapter.is_absent({7: "python3.11", 8: "python"})


def test_rates_are_those_of_the_start_the_middle_and_the_end(tmp_path):
    rates = [[step, step / 100, 1.0] for step in range(4, 101, 4)]
    assert adapter_of(tmp_path, counts(0, 1, rates=rates)).training().rates == [[0.04, 1.0], [0.48, 1.0], [0.88, 1.0]]


@pytest.mark.parametrize(
    ("processes", "found_nothing", "untrained"),
    [
        ([counts(0, 1)], False, False),
        ([counts(0, 1, steps=0, optimizers=1)], False, True),  # no batch was left
        ([counts(0, 1, steps=0), counts(0, 1)], False, False),  # a launcher imports torch, too
        ([counts(0, 1, steps=0)], False, False),  # it may train without an optimizer of torch
        ([counts(0, 1, steps=0)], True, True),  # a script that never starts its training
        ([], True, False),  # a command in another language
    ],
)
def test_a_training_without_steps_is_noticed(processes, found_nothing, untrained, tmp_path):
    adapter = Adapter(tmp_path / FOLDER)
    for pid, process in enumerate(processes):
        (adapter.folder / f"{pid}.json").write_text(process.to_json())
    adapter.look(now=True)
    assert adapter.has_steps is any(process.whole.steps for process in processes)
    assert adapter.training().took_no_step(found_nothing=found_nothing) is untrained


def test_ranks_stop_at_the_same_later_step(tmp_path):
    assert adapter_of(tmp_path, counts(0)).last_step(nodes=1) is None  # no framework would look for it
    adapter = adapter_of(tmp_path, counts(0, framework="lightning"), counts(1, steps=101))
    step = adapter.last_step(nodes=1)
    assert 101 + 10 <= step <= 101 + 20  # a second of steps
    assert step + 10 <= adapter.last_step(nodes=2) <= step + 20  # counts of other nodes are older
    adapter.stop_at(step)
    assert (adapter.folder / "stop_at_step").read_text() == str(step)


def test_a_pipe_among_the_counts_is_not_read(tmp_path):
    adapter = adapter_of(tmp_path, counts(0))
    os.mkfifo(adapter.folder / "pipe.json")
    adapter.look(now=True)
    assert adapter.has_steps


def test_the_hook_warms_up_like_other_trainables():
    assert (WARMUP_STEPS, WARMUP_S) == (FEWEST_WARMUP_STEPS, SHORTEST_WARMUP_S)
