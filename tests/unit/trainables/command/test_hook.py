"""The hook in one process, with a clock that the tests set: steps, samples, evaluations and several trainings."""

import ast
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainables.command.hook_files import HOOK

MODULES = sorted(file.stem for file in HOOK.glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_the_hook_needs_only_python_3_9(name):
    tree = ast.parse((HOOK / f"{name}.py").read_text(), feature_version=(3, 9))
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, *MODULES}


def test_a_process_that_trains_nothing_loads_no_counts():
    """Every Python of a command loads the hook."""
    code = "import sys; print(*sorted(name for name in sys.modules if name.startswith('sweep_')))"
    environment = {"PYTHONPATH": str(HOOK), "SWEEP_HOOK": os.devnull}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sweep_files"]


def hook_module(name, monkeypatch):
    """Return a module of the hook, which watches nothing."""
    monkeypatch.setenv("SWEEP_HOOK", "")
    monkeypatch.syspath_prepend(HOOK)
    return importlib.import_module(name)


class Clock:
    """A clock that tests set."""

    now_s = 100.0

    def perf_counter(self):
        return self.now_s

    time = process_time = perf_counter


@pytest.fixture
def hook(monkeypatch):
    module, clock = hook_module("sweep_training", monkeypatch), Clock()
    for timed in ("sweep_training", "sweep_batches", "sweep_devices"):
        monkeypatch.setattr(hook_module(timed, monkeypatch), "time", clock)
    monkeypatch.setattr(module.Training, "write", lambda self: None)
    return module


def optimizer_of(*modules):
    return torch.optim.SGD([weights for module in modules for weights in module.parameters()], lr=0.1)


def run_epoch(hook, training, optimizer, steps, *, start_s=0.0):
    """Take steps of 0.1 s on batches of 4 samples from a new loader, which takes `start_s` to start."""
    loader = SimpleNamespace(_dataset=range(4 * steps))
    training.begin(loader)
    hook.time.now_s += start_s
    for _ in range(steps):
        hook.time.now_s += 0.1
        training.batch(loader, torch.zeros(4, 2), 4)
        training.step(optimizer)


def test_the_start_of_a_loader_is_training_and_an_evaluation_is_not(hook):
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
def test_epochs_of_one_step_are_no_frozen_part(hook, frozen, seconds):
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


def test_a_pass_without_gradients_is_an_evaluation(hook):
    training, module = hook.Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    optimizer = optimizer_of(module)
    other = torch.nn.Sequential(torch.nn.Linear(2, 2))
    run_epoch(hook, training, optimizer, 2)
    for called, is_evaluation in ((other, False), (module, True)):
        training.await_forward()
        with torch.no_grad():
            called(torch.zeros(1, 2))
        assert training.stopwatch.is_paused is is_evaluation and training.watch is None


def test_optimizers_of_one_model_are_one_training(hook):
    body, head, finder = (torch.nn.Linear(2, 2) for _ in range(3))
    training = hook.Training()
    run_epoch(hook, training, optimizer_of(finder), 5)  # a search for the learning rate
    run_epoch(hook, training, optimizer_of(head), 10)
    run_epoch(hook, training, optimizer_of(body, head), 10)
    assert [counts.whole.steps for counts in (*training.others, training.counts)] == [5, 20]
    assert training.counts.other_optimizer_steps == 10 and training.counts.whole.samples == 80
    assert training.counts.n_params == 2 * 2 + 2  # without those of the search


@pytest.mark.parametrize("is_marked", [True, False])
def test_each_training_has_its_place(hook, monkeypatch, is_marked):
    """Its rank and GPUs are noted at fewer and fewer steps."""
    placed: list[Any] = []
    monkeypatch.setattr(hook, "place", lambda counts, optimizer: placed.append(counts))
    training = hook.Training()
    finder, optimizer = (optimizer_of(torch.nn.Linear(2, 2)) for _ in range(2))
    run_epoch(hook, training, finder, 100)
    if is_marked:
        for _ in range(150):
            hook.time.now_s += 0.1
            training.mark(4, 0, None)
    else:
        run_epoch(hook, training, optimizer, 150)
    assert training.counts.whole.steps == 150 and training.counts in placed


@pytest.mark.parametrize("has_loader", [True, False])
def test_optimizers_that_step_together_take_one_step(hook, has_loader):
    training = hook.Training()
    generator, critic = optimizer_of(torch.nn.Linear(2, 2)), optimizer_of(torch.nn.Linear(2, 2))
    loader = SimpleNamespace(_dataset=range(40))
    for _ in range(10):
        if has_loader:
            training.batch(loader, torch.zeros(4, 2), 4)
        training.step(critic)
        training.step(generator)
    assert (training.counts.whole.steps, training.others) == (10, [])
    assert training.counts.n_params == 2 * (2 * 2 + 2)


def test_inputs_of_the_model_are_samples_without_a_loader(hook):
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


def test_marked_steps_replace_counted_ones(hook):
    training = hook.Training()
    run_epoch(hook, training, optimizer_of(torch.nn.Linear(2, 2)), 5)
    for _ in range(3):
        hook.time.now_s += 0.1
        training.mark(16, 0, 0.5)
    training.step(optimizer_of(torch.nn.Linear(2, 2)))
    assert (training.counts.whole.steps, training.counts.whole.samples) == (3, 48)


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("numbers_steps", [True, False])
def test_a_marked_step_belongs_to_its_epoch(hook, monkeypatch, first, numbers_steps):
    """The program numbers the epoch of each step, or tells after an epoch that it has ended."""
    marks, files = hook_module("sweep_step", monkeypatch), hook_module("sweep_files", monkeypatch)
    monkeypatch.setattr(files, "FOLDER", os.devnull)
    monkeypatch.setattr(hook_module("sweep_frameworks", monkeypatch), "emit_row", lambda *row: None)
    monkeypatch.setattr(hook, "TRAINING", hook.Training())
    marks.step(epoch=0, val_accuracy=0.1)  # before the training
    for epoch in range(first, first + 3):
        for _ in range(10):
            hook.time.now_s += 0.1
            marks.step(samples=4, epoch=epoch if numbers_steps else None)
        marks.step(epoch=epoch, val_accuracy=0.5)
    counts = hook.TRAINING.counts
    assert (counts.epoch, counts.completed, counts.completed_samples) == (3, 20, 80)
    assert counts.later.steps == 18  # an evaluation precedes the first step of an epoch, whose time is unknown


def test_the_wait_for_the_devices_counts_once(hook, monkeypatch):
    training = hook.Training()
    training.mark(16, 0, None)
    hook.time.now_s += 0.1
    training.mark(16, 0, None)

    def behind(gpu, launched_s):
        hook.time.now_s = launched_s + 0.5
        return 0.5

    monkeypatch.setattr(hook_module("sweep_devices", monkeypatch).Gpu, "behind", behind)
    training.end_epoch()
    training.end_epoch()
    assert training.counts.whole.seconds == pytest.approx(0.1 + 0.5)


def test_epochs_tell_when_they_ended_until_a_step_is_marked(hook, monkeypatch, tmp_path):
    marks, files, frameworks = (
        hook_module(name, monkeypatch) for name in ("sweep_step", "sweep_files", "sweep_frameworks")
    )
    for module in (files, frameworks):
        monkeypatch.setattr(module, "FOLDER", str(tmp_path))
    monkeypatch.setattr(hook, "TRAINING", hook.Training())
    marks.step(epoch=1, val_loss=0.5)
    marks.step(samples=16)
    marks.step(epoch=2, val_loss=0.25)
    rows = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert [row["val_loss"] for row in rows] == [0.5, 0.25]
    assert rows[0][files.ENDED_S] > 0 and files.ENDED_S not in rows[1]


def test_an_evaluation_lasts_until_its_module_trains_again(monkeypatch):
    training, module = hook_module("sweep_training", monkeypatch).Training(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert not training.evaluations.is_running()
    training.evaluation(module)
    module.eval()
    assert training.stopwatch.is_paused and training.evaluations.is_running()
    torch.nn.Sequential(module).train()  # of the model that contains it
    assert not training.evaluations.is_running() and training.stopwatch.is_paused


def test_only_evaluations_change_a_method_of_modules(monkeypatch):
    """`Module.train` calls all layers, and many programs call it in each step."""

    class Module:
        train, eval = torch.nn.Module.train, torch.nn.Module.eval

    hook_module("sweep_torch", monkeypatch).watch_modes(SimpleNamespace(Module=Module))
    assert Module.train is torch.nn.Module.train and Module.eval is not torch.nn.Module.eval


def test_events_of_the_gpu_are_never_freed(monkeypatch):
    """Freed in a loader's worker, which is a fork, an event of CUDA aborts the worker."""
    freed = []

    class Event:
        def __init__(self, enable_timing):
            self.records = 0

        def record(self):
            self.records += 1

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 250.0

        def __del__(self):
            freed.append(self)

    gpu = hook_module("sweep_devices", monkeypatch).Gpu()
    gpu.cuda = lambda: SimpleNamespace(Event=Event, synchronize=lambda: None)
    began_s = gpu.synchronized()
    gpu.step()
    assert gpu.behind(began_s + 0.1) == pytest.approx(0.15) and gpu.behind(began_s + 0.3) == 0.0
    del gpu
    assert freed == []
