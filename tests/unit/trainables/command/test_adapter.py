"""The hook in a command's processes: who trained, how fast, and on how many samples. Real processes with torch."""

import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeps.layout import Layout
from sweeps.trial import Batch
from trainables.command.adapter import HOOK, Adapter
from trainables.command.hook.sweep_counts import Counts, Tally
from trainables.command.process_tree import CpuTimes
from trainables.command.training import train
from trainables.context import Context, UntrainedError

SCRIPT = """
import os, sys, time, json, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
group = "RANK" in os.environ and "alone" not in sys.argv
if group:
    dist.init_process_group("gloo")
rank, world = (dist.get_rank(), dist.get_world_size()) if group else (0, 1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
trained = torch.nn.parallel.DistributedDataParallel(model) if group and "apart" not in sys.argv else model
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["SWEEP_LR"]))
data = TensorDataset(torch.randn(250, 64), torch.randint(0, 2, (250,)))
is_divided = group and "same" not in sys.argv
sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=False) if is_divided else None
batch = int(os.environ["SWEEP_DEVICE_BATCH_SIZE"])
def pairs(rows):
    return tuple(map(torch.stack, zip(*rows, *rows)))
workers = dict(num_workers=2, persistent_workers="kept" in sys.argv) if "workers" in sys.argv else {}
loader = DataLoader(data, batch, sampler=sampler, collate_fn=pairs if "pairs" in sys.argv else None, **workers)
held_out = DataLoader(data, 50)
frozen = torch.nn.Sequential(torch.nn.Linear(64, 64))
spent = counted = 0
for epoch in range(4):
    model.train()
    last = None
    for x, y in loader:
        optimizer.zero_grad()
        if "frozen" in sys.argv:
            frozen.eval()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        if "slow" in sys.argv:
            time.sleep(0.01)
        optimizer.step()
        now = time.perf_counter()
        if last is not None and epoch:
            spent, counted = spent + now - last, counted + 1
        last = now
        if "prints" in sys.argv:
            print("iter 1: loss 0.5, time 1.00ms, mfu 1.00%")
        if "dies" in sys.argv and rank and epoch == 2:
            os._exit(0)
    if "master" in sys.argv and rank:
        continue
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
            time.sleep(1 if "master" in sys.argv else 0.05 if "slow" in sys.argv else 0)
time.sleep(3 if "lingers" in sys.argv and rank == 0 else 0)
if rank == 0:
    print(json.dumps({"truth": spent / counted}), flush=True)
"""
TORCHRUN = "{python} -m torch.distributed.run --nproc_per_node={gpus} --master_port={port} train.py"


def run(folder: Path, argv: str | Sequence[str], *, gpus: int = 2, batch: int = 10, **settings: Any) -> Context:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "trial").mkdir(exist_ok=True)
    batches = Batch(global_batch_size=gpus * batch, shares=(gpus * batch,), parts_per_rank=gpus)
    told = Context.alone(
        trial_dir=folder / "trial",
        batch=batches,
        layout=Layout(strategy="own_ranks", replicas=gpus),
        threads=2,
        lr=0.01,
    )
    section = {"argv": argv, "source_dir": str(folder), "metrics": {"truth": None, "loss": None}} | settings
    train({"trainable": section, "budget": {"epochs": 4}}, told)
    return told


def test_steps_are_timed_without_evaluation_and_first_epoch(tmp_path: Path) -> None:
    told = run(tmp_path, "{python} train.py slow", gpus=1, batch=10, tokens_per_sample=64)
    found = told.metrics
    assert found["tokens_per_s"] == pytest.approx(64 * found["samples_per_s"])
    assert found["step_s"] == pytest.approx(found["truth"], rel=0.5)  # on a busy machine; evaluation would double it
    assert (found["steps"], found["samples"]) == (100, 1000) and found["window_steps"] > 50
    assert found["samples_per_s"] == pytest.approx(10 / found["step_s"]) and "workers" not in found
    assert told.remarks == []


def test_a_frozen_part_of_a_model_is_no_evaluation(tmp_path: Path) -> None:
    """Its `eval` in each step would otherwise leave out half of the steps, and wait for the GPU in them."""
    found = run(tmp_path, "{python} train.py slow frozen", gpus=1, batch=10).metrics
    assert (found["steps"], found["samples"]) == (100, 1000) and found["window_steps"] > 50


@pytest.mark.slow
def test_all_times_of_a_preset_come_from_the_counted_steps(tmp_path: Path) -> None:
    """The printed time is 1 ms, a tenth of a step's."""
    settings = {"metrics": "nanogpt", "tokens_per_sample": 64}
    found = run(tmp_path, "{python} train.py slow prints", gpus=1, **settings).metrics
    assert found["loss"] == 0.5 and found["step_s"] > 0.01
    assert found["tokens_per_s"] == pytest.approx(64 * 10 / found["step_s"])


@pytest.mark.slow
def test_time_in_which_ranks_wait_for_an_evaluation_of_one_does_not_count(tmp_path: Path) -> None:
    found = run(tmp_path, f"{TORCHRUN} slow master", batch=2).metrics
    assert found["workers"] == 2 and found["window_steps"] > 50
    assert found["step_s"] == pytest.approx(found["truth"], rel=0.5)


@pytest.mark.slow
def test_smaller_last_batches_count_with_their_samples(tmp_path: Path) -> None:
    """Four steps of 80, 80, 80 and 10."""
    found = run(tmp_path, "{python} train.py slow", gpus=1, batch=80).metrics
    assert (found["steps"], found["samples"]) == (16, 1000)
    assert found["samples_per_s"] == pytest.approx(62.5 / found["step_s"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "workers", "workers kept"])
def test_a_pair_of_rows_is_one_sample(how: str, tmp_path: Path) -> None:
    told = run(tmp_path, f"{{python}} train.py slow pairs {how}", gpus=1, batch=80)
    assert (told.metrics["steps"], told.metrics["samples"], told.remarks) == (16, 1000, [])
    assert "epoch_s" in told.metrics  # an iterator that workers keep alive begins anew


WRONG = {
    "flags of the launcher forgotten": "{python} train.py slow",
    "loaders are no workers": "{python} train.py slow workers",
    "one rank of a group": "{python} -m torch.distributed.run --nproc_per_node=1 --master_port={port} train.py slow",
    "two ranks, each by itself": f"{TORCHRUN} slow alone",
    "the launcher's own variable ignored": ["bash", "-c", "WORLD={gpus} {python} {source_dir}/train.py slow"],
}


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(argv, id=name, marks=[pytest.mark.slow] * (place > 0))
        for place, (name, argv) in enumerate(WRONG.items())
    ],
)
def test_too_few_processes_are_noticed(argv: str | Sequence[str], tmp_path: Path) -> None:
    told = run(tmp_path, argv)
    assert told.metrics["workers"] == 1 and len(told.remarks) >= 1


@pytest.mark.slow
def test_a_process_group_of_all_ranks_is_right(tmp_path: Path) -> None:
    told = run(tmp_path, f"{TORCHRUN} slow workers")
    assert told.metrics["workers"] == 2 and told.remarks == []
    assert (told.metrics["steps"], told.metrics["samples"]) == (52, 1000)


@pytest.mark.slow
def test_ranks_that_exchange_no_gradients_are_one_worker(tmp_path: Path) -> None:
    told = run(tmp_path, f"{TORCHRUN} slow apart")
    assert told.metrics["workers"] == 1 and "different weights" in told.remarks[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["same", "same apart"])
def test_ranks_with_the_same_samples_are_one_worker(how: str, tmp_path: Path) -> None:
    """Without a distributed sampler; apart, their weights are the same, too."""
    told = run(tmp_path, f"{TORCHRUN} slow {how}")
    assert told.metrics["workers"] == 1 and "same samples" in told.remarks[0]
    assert (told.metrics["steps"], told.metrics["samples"]) == (100, 1000)


@pytest.mark.slow
def test_a_rank_may_work_alone_after_the_training(tmp_path: Path) -> None:
    assert run(tmp_path, f"{TORCHRUN} slow lingers").metrics["workers"] == 2


def test_values_that_the_training_did_not_use_are_remarked(tmp_path: Path) -> None:
    told = run(tmp_path, "{python} train.py", gpus=1, env={"SWEEP_LR": "0.3", "SWEEP_DEVICE_BATCH_SIZE": "50"})
    batch, lr = (each for each in told.remarks if "epoch" not in each)
    assert "50 samples" in batch and "0.3" in lr


def test_without_the_hook_nothing_is_counted(tmp_path: Path) -> None:
    found = run(tmp_path, "{python} train.py", gpus=1, adapter="off").metrics
    assert "steps" not in found and not (tmp_path / "trial/hook").exists()


def test_another_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True")
    told = run(tmp_path, ["{python}", "-c", "import sys; print('{{\"truth\": %d}}' % sys.mine)"], gpus=1)
    assert told.metrics["truth"] == 1


@pytest.mark.parametrize("name", ["sitecustomize", "sweep_counts", "sweep_frameworks", "sweep_step"])
def test_the_hook_needs_only_python_3_9(name: str) -> None:
    import ast

    tree = ast.parse((HOOK / f"{name}.py").read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= {
        *sys.stdlib_module_names,
        "sitecustomize",
        "sweep_counts",
        "sweep_frameworks",
    }


def loaded_hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the hook as a module that watches nothing."""
    spec = importlib.util.spec_from_file_location("hook_for_test", HOOK / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    monkeypatch.setenv("SWEEP_HOOK", "")
    monkeypatch.syspath_prepend(HOOK)
    spec.loader.exec_module(hook)
    return hook


class Clock:
    """A clock that tests set."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    time = process_time = perf_counter


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    loaded = loaded_hook(monkeypatch)
    monkeypatch.setattr(loaded, "time", Clock())
    monkeypatch.setattr(loaded.Training, "write", lambda self: None)
    return loaded


def optimizer_of(*modules: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([weights for module in modules for weights in module.parameters()], lr=0.1)


def run_epoch(hook: Any, training: Any, optimizer: torch.optim.Optimizer, steps: int, *, start_s: float = 0.0) -> None:
    """Take steps of 0.1 s on batches of 4 samples from a new loader, which takes `start_s` to start."""
    loader = SimpleNamespace(_dataset=range(4 * steps))
    training.begin(loader)
    hook.time.now_s += start_s
    for _ in range(steps):
        hook.time.now_s += 0.1
        training.batch(loader, torch.zeros(4, 2), 4)
        training.step(optimizer)


def test_the_start_of_a_loader_is_training_and_an_evaluation_is_not(hook: Any) -> None:
    training, module = hook.Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = optimizer_of(module)
    for _ in range(3):
        run_epoch(hook, training, optimizer, 10, start_s=1.0)
        hook.time.now_s += 0.3  # the end of the loader's workers
        module.eval()
        training.evaluation(module)
        hook.time.now_s += 7.0
        module.train()
    later = training.counts.later
    assert (later.steps, later.samples) == (20, 80) and later.seconds == pytest.approx(2 * (1.0 + 10 * 0.1 + 0.3))
    assert (training.counts.epoch, training.counts.dataset) == (3, 40)


@pytest.mark.parametrize(("frozen", "seconds"), [(True, 40 * 0.6), (False, 40 * 0.1)])
def test_epochs_of_one_step_are_no_frozen_part(hook: Any, frozen: bool, seconds: float) -> None:
    """A part that is frozen does not train at the steps, either."""
    training, module = hook.Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = optimizer_of(module)
    for _ in range(60):
        run_epoch(hook, training, optimizer, 1)
        module.eval()
        training.evaluation(module)
        hook.time.now_s += 0.5
        module.train(not frozen)
    # The first evaluations cannot be told from a frozen part.
    assert training.counts.later.step_s == pytest.approx(seconds / 40, rel=0.2)


def test_a_pass_without_gradients_is_an_evaluation(hook: Any) -> None:
    training, module = hook.Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = optimizer_of(module)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2))
    run_epoch(hook, training, optimizer, 2)
    for called, is_evaluation in ((other, False), (module, True)):
        training.await_forward()
        with torch.no_grad():
            called(torch.zeros(1, 2))
        assert training.paused is is_evaluation and training.watch is None


def test_optimizers_of_one_model_are_one_training(hook: Any) -> None:
    body, head, finder = (torch.nn.Linear(2, 2) for _ in range(3))
    training = hook.Training()
    run_epoch(hook, training, optimizer_of(finder), 5)  # a search for the learning rate
    run_epoch(hook, training, optimizer_of(head), 10)
    run_epoch(hook, training, optimizer_of(body, head), 10)
    assert [counts.whole.steps for counts in (*training.others, training.counts)] == [5, 20]
    assert training.counts.further_steps == 10 and training.counts.whole.samples == 80


@pytest.mark.parametrize("has_loader", [True, False])
def test_optimizers_that_step_together_take_one_step(hook: Any, has_loader: bool) -> None:
    training = hook.Training()
    generator, critic = optimizer_of(torch.nn.Linear(2, 2)), optimizer_of(torch.nn.Linear(2, 2))
    loader = SimpleNamespace(_dataset=range(40))
    for _ in range(10):
        if has_loader:
            training.batch(loader, torch.zeros(4, 2), 4)
        training.step(critic)
        training.step(generator)
    assert (training.counts.whole.steps, training.others) == (10, [])


def test_inputs_of_the_model_are_samples_without_a_loader(hook: Any) -> None:
    training, module = hook.Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = optimizer_of(module)
    for _ in range(10):
        for _ in range(2):  # gradients are accumulated
            module(torch.zeros(4, 2))
        training.step(optimizer)
    module(torch.zeros(40, 2))  # an evaluation with gradients
    for _ in range(2):
        module(torch.zeros(4, 2))
    training.step(optimizer)
    assert training.counts.is_input and training.counts.whole.samples == 88


def test_marked_steps_replace_counted_ones(hook: Any) -> None:
    training = hook.Training()
    run_epoch(hook, training, optimizer_of(torch.nn.Linear(2, 2)), 5)
    for _ in range(3):
        hook.time.now_s += 0.1
        training.mark(16, 0, 0.5)
    training.step(optimizer_of(torch.nn.Linear(2, 2)))
    assert (training.counts.whole.steps, training.counts.whole.samples) == (3, 48)


def test_an_evaluation_lasts_until_its_module_trains_again(monkeypatch: pytest.MonkeyPatch) -> None:
    training, module = loaded_hook(monkeypatch).Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert not training.is_evaluating()
    training.evaluation(module)
    module.eval()
    assert training.paused and training.is_evaluating()
    torch.nn.Sequential(module).train()  # of the model that contains it
    assert not training.is_evaluating() and training.paused


def test_only_evaluations_change_a_method_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Module.train` calls all layers, and many programs call it in each step."""

    class Module:
        train, eval = torch.nn.Module.train, torch.nn.Module.eval

    loaded_hook(monkeypatch).watch_modes(SimpleNamespace(Module=Module))
    assert Module.train is torch.nn.Module.train and Module.eval is not torch.nn.Module.eval


def test_events_of_the_gpu_are_never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed in a loader's worker, which is a fork, an event of CUDA aborts the worker."""
    freed = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.records = 0

        def record(self) -> None:
            self.records += 1

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: "Event") -> float:
            return 250.0

        def __del__(self) -> None:
            freed.append(self)

    hook = loaded_hook(monkeypatch)
    gpu = hook.Gpu()
    gpu.cuda = lambda: SimpleNamespace(Event=Event, synchronize=lambda: None)
    began_s = gpu.synchronized()
    gpu.step()
    assert gpu.behind(began_s + 0.1) == pytest.approx(0.15) and gpu.behind(began_s + 0.3) == 0.0
    del gpu
    assert freed == []


def counts(rank: int, world: int = 2, *, steps: int = 100, seconds: float | None = None, **other: Any) -> Counts:
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


def adapter_of(folder: Path, *processes: Counts) -> Adapter:
    """The adapter of processes that were idle when it looked first."""
    adapter = Adapter(folder)
    for began in (True, False):
        for pid, each in enumerate(processes):
            seen = counts(each.rank, each.world, cpu_s=0.0, at_s=0.0) if began else each
            (adapter.folder / f"{pid}.json").write_text(seen.to_json())
        adapter.look(now=True)
    return adapter


TALLIES = ("whole", "warm", "later")
NO_LOADER = {name: Tally(100, 10.0) for name in TALLIES}
ABSENT = object()


def test_counts_are_the_same_on_both_sides() -> None:
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
def test_workers_are_the_processes_that_train_together(
    processes: list[Counts], replicas: int, workers: int | None, tmp_path: Path
) -> None:
    count, why = adapter_of(tmp_path, *processes).workers(2, cores=2, replicas=replicas)
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
    ],
)
def test_figures_are_those_of_distinct_samples(
    processes: list[Counts], global_batch_size: int | None, figures: dict[str, Any], tmp_path: Path
) -> None:
    counted = adapter_of(tmp_path, *processes).figures(global_batch_size)
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
        ({"further_steps": 50}, 0.1, ["50 of 100 steps"]),  # a second phase
        ({"further_steps": 1}, 0.1, []),
        ({"gradless": True}, 0.1, ["without gradients"]),
        ({"dataset": 280, "completed_samples": 528}, 0.1, ["264 of 280 samples"]),  # drop_last
        ({"dataset": 264, "completed_samples": 528}, 0.1, []),
    ],
)
def test_work_that_differs_from_the_trial_is_remarked(
    process: dict[str, Any], lr: float, parts: list[str], tmp_path: Path
) -> None:
    remarks = list(adapter_of(tmp_path, counts(0, 1, **process)).remarks(8, lr))
    assert len(remarks) == bool(parts) and all(part in remark for remark in remarks for part in parts)


def test_a_python_without_the_hook_is_noticed(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path, counts(0, 1))
    (adapter.folder / "7.started").touch()
    assert not adapter.is_absent({7: "python3.11", 8: "bash"})
    assert adapter.is_absent({7: "python3.11", 8: "python"})


def test_rates_are_those_of_the_start_the_middle_and_the_end(tmp_path: Path) -> None:
    rates = [[step, step / 100, 1.0] for step in range(4, 101, 4)]
    assert adapter_of(tmp_path, counts(0, 1, rates=rates)).rates == [[0.04, 1.0], [0.48, 1.0], [0.88, 1.0]]


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
def test_a_training_without_steps_is_noticed(
    processes: list[Counts], found_nothing: bool, untrained: bool, tmp_path: Path
) -> None:
    adapter = Adapter(tmp_path)
    for pid, each in enumerate(processes):
        (adapter.folder / f"{pid}.json").write_text(each.to_json())
    assert adapter.look(now=True) is any(each.whole.steps for each in processes)
    assert adapter.took_no_step(found_nothing=found_nothing) is untrained


@pytest.mark.parametrize("code", ["import torch; torch.optim.SGD([torch.zeros(1)], lr=0.1)", "import torch"])
def test_a_command_that_trains_nothing_fails(code: str, tmp_path: Path) -> None:
    with pytest.raises(UntrainedError):
        run(tmp_path, ["{python}", "-c", code], gpus=1)


BURN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def test_busy_processes_are_those_that_use_the_cpu(tmp_path: Path) -> None:
    import subprocess
    import time

    code = f"""
        import subprocess, sys
        burn = {BURN.format(seconds=20)!r}
        children = [subprocess.Popen([sys.executable, "-S", "-c", burn]) for _ in range(2)]
        children += [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(20)"])]
        for child in children: child.wait()
    """
    parent = subprocess.Popen([sys.executable, "-S", "-c", textwrap.dedent(code)])
    try:
        busy = CpuTimes()
        deadline = time.monotonic() + 15
        while len(busy.cores()) < 2 and time.monotonic() < deadline:
            busy.look(parent.pid, reported=True)
            time.sleep(0.1)
        assert len(busy.cores()) == 2
    finally:
        import psutil

        for process in [*psutil.Process(parent.pid).children(recursive=True), psutil.Process(parent.pid)]:
            process.kill()
        parent.wait()


def test_ranks_stop_at_the_same_later_step(tmp_path: Path) -> None:
    assert not adapter_of(tmp_path, counts(0)).ask_to_stop()  # no framework would look for it
    adapter = adapter_of(tmp_path, counts(0, framework="lightning"), counts(1, steps=101))
    assert adapter.ask_to_stop()
    assert 101 + 10 <= int((adapter.folder / "stop_at_step").read_text()) <= 101 + 20  # a second of steps


def test_a_command_that_can_stop_ends_by_itself(tmp_path: Path) -> None:
    from trainables.command import process, process_tree

    code = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)\nprint('saved')"
    command = process.Command(
        words=[sys.executable, "-S", "-c", code],
        environment={},
        cwd=tmp_path,
        stdout=tmp_path / "out",
        stderr=tmp_path / "err",
        timeout_s=None,
        grace_s=30.0,
    )

    def ask() -> bool:
        (tmp_path / "stop").touch()
        return True

    asked = iter([False, True])
    listener = process.Listener(on_line=lambda stream, line: None, should_stop=lambda **_: next(asked), ask_to_stop=ask)
    assert process.run(command, listener, process_tree.CpuTimes()).status is None
    assert (tmp_path / "out").read_text() == "saved\n"
