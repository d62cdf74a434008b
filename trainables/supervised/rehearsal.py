"""The rehearsal of a trial: rank 0 alone, or all ranks, take a few steps and measure memory and time.

The rehearsal is prepared as the trial is, with its model, data, precision and layout. Without other ranks collectives
do nothing, so that step times exclude communication. Peak memory is that of a real rank, without NCCL's own buffers.

    python -m trainables.supervised.rehearsal FD

answers the requests to a rank that arrive at the socket with this file descriptor, which the process inherits.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from sweeps.trial import ALONE, RankRequest
from trainables.context import Context
from trainables.inputs.feed import Part
from trainables.inputs.sequences import Sequences
from trainables.step.compilation import BLOCKS
from trainables.step.graphed_step import EAGER_STEPS, GraphedStep
from trainables.step.sharding import without_communication
from trainables.supervised.evaluation import Evaluation
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.timing import MAX_PAUSE_S, device_step_s
from trainables.supervised.training import SupervisedTrial, prepared
from trainables.tensors import local
from trainables.timed_window import Warmup, measure_window, warm_up

WINDOWS, STEPS, SECONDS = 5, 2, 0.5
"""The timed windows, steps in each at least, and seconds of all; a trial's own window is longer."""


def rehearse(config: Mapping[str, Any], context: Context) -> None:
    """Rehearse the trial of this config, and summarize its figures; a rank without the others meets at `ALONE`."""
    is_alone = context.rendezvous == ALONE
    if context.layout.shares_follow_speed and is_alone:  # other ranks, whose speed decides, are not there
        context.layout = replace(context.layout, strategy="ddp")
    whole = {**config, "trainable": {**config["trainable"], "branch_base": ""}}  # a branch needs a checkpoint
    peaks = MemoryPeaks(take_gb if context.device.startswith("cuda") else None)
    started = time.perf_counter()
    with ExitStack() as stack:
        trial = stack.enter_context(prepared(whole, context))
        stack.enter_context(peaks.watched())
        if is_alone:
            stack.enter_context(without_communication(trial.replica.model))
        figures = {"setup_s": trial.clock.read() - started}
        peaks.end("setup")
        figures |= parts_of_trial(
            trial, peaks, steps=partial(_step_times, trial), score=trial.replica.score, read_s=trial.clock.read
        )
        figures |= length_and_traffic(trial, context, trial.settings)
        if peaks.gb:
            about = torch.cuda.get_device_properties(0)
            figures |= parts_of_memory(
                trial, peaks, device_gb=about.total_memory / 2**30, device_name=torch.cuda.get_device_name(0)
            )
    context.summarize(figures)


def parts_of_trial(
    trial: SupervisedTrial,
    peaks: MemoryPeaks,
    *,
    steps: Callable[[], dict[str, Any]],
    score: Callable[[Evaluation], object],
    read_s: Callable[[], float],
    form: Callable[[Part | Sequences], Part | Sequences] = lambda part: part,
) -> dict[str, Any]:
    """Return the figures of the training's steps and of both evaluations, and end their peaks of memory.

    `score` evaluates, `read_s` reads the clock, and `form` returns a part of the data as it is evaluated.
    """

    def evaluation(part: Part | Sequences) -> Evaluation | None:
        return trial.evaluation(form(part)) if len(part) else None

    def seconds(whole: Evaluation | None) -> float:
        if whole is None:
            return 0.0
        batch = whole.first(1)
        # The first pass loads libraries and chooses algorithms: up to 2 s, which no other pass takes.
        score(batch)
        started = read_s()
        score(batch)
        return (read_s() - started) * whole.batches

    # As in a trial, the validation set is on the device during the training, and the test set after it.
    validation = evaluation(trial.workload.split.validation)
    figures = steps()
    peaks.end("passes")
    figures["validation_s"] = seconds(validation)
    del validation
    figures["test_s"] = seconds(evaluation(trial.workload.split.test))
    peaks.end("evaluation")
    return figures


def _step_times(trial: SupervisedTrial) -> dict[str, Any]:
    """Return seconds of a step: of the first, in steady state, and of the device alone."""
    take, clock = trial.loop.step, trial.clock
    started = clock.read()
    take()
    first_step_s = clock.read() - started
    is_captured = isinstance(trial.replica.step, GraphedStep)
    warmup = Warmup(steps=EAGER_STEPS + 2 if is_captured else 3, seconds=SECONDS / 3)
    pace = warm_up(take, clock=clock, rank_group=trial.rank_group, warmup=warmup)
    paces = []
    for _ in range(WINDOWS):
        least_s = SECONDS / WINDOWS
        window = measure_window(
            take, clock=clock, rank_group=trial.rank_group, least_s=least_s, least_steps=STEPS, pace=pace
        )
        paces.append(window.seconds / window.steps)
    # A trial takes the mean of a longer window, which other programs and slow launches are a part of.
    step_s = statistics.median(paces)
    may_wait = trial.replica.stopwatch.on_gpu and not is_captured and 2 * step_s < MAX_PAUSE_S
    device_s = min(step_s, device_step_s(take, step_s, clock=clock)) if may_wait else step_s
    return {"first_step_s": first_step_s, "step_s": step_s, "device_step_s": device_s}


def length_and_traffic(trial: SupervisedTrial, context: Context, settings: TrainingSettings) -> dict[str, Any]:
    """Return what the length of a training and the traffic between its ranks depend on."""
    feed, parameters = trial.replica.inputs.feed, list(trial.replica.model.parameters())
    of_values = parameters[0].element_size()
    gathered = (trial.workload.precision.gathers or parameters[0].dtype).itemsize
    exchanged = 2 if settings.exchange == "bf16" else max(4, of_values) if context.layout.is_sharded else of_values
    n_params = sum(parameter.numel() for parameter in parameters)
    return {
        "batch": asdict(feed.batch) | {"shares": list(feed.batch.shares)},
        "epoch_samples": feed.epoch_samples,
        "sequence_length": trial.workload.sequence_length,
        "n_params": n_params,
        "is_alone": context.rendezvous == ALONE and context.world_size > context.layout.models,
        "gathered_gb": n_params * gathered / 2**30 if context.layout.is_sharded else 0.0,
        "exchanged_gb": n_params * exchanged / 2**30,
        "overlaps": context.layout.is_sharded or settings.compile in ("off", BLOCKS),
    }


def parts_of_memory(
    trial: SupervisedTrial, peaks: MemoryPeaks, *, device_gb: float, device_name: str
) -> dict[str, Any]:
    """Return the peaks in GiB, and the parts of them that this rank holds all the time."""
    parameters = list(trial.replica.model.parameters())
    return {f"{name}_gb": gb for name, gb in peaks.gb.items()} | {
        "parameters_gb": _gb([*parameters, *trial.replica.model.buffers()]),
        "gradients_gb": _gb(parameter for parameter in parameters if parameter.requires_grad),
        "optimizer_gb": peaks.optimizer_gb,
        "device_gb": device_gb,
        "device_name": device_name,
    }


def _gb(tensors: Iterable[Tensor]) -> float:
    """Return the GiB that this rank holds of some tensors."""
    return sum(part.numel() * part.element_size() for part in map(local, tensors)) / 2**30


def take_gb() -> float:
    """Return the peak of the GPU's allocated memory since the last call, in GiB."""
    peak_gb = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak_gb


class MemoryPeaks:
    """The peaks of a GPU's allocated memory, by the part of a trial that reaches them; empty on CPUs.

    `passes` ends where an update begins: its peak depends on the batch, that of `update` does not.
    """

    def __init__(self, take: Callable[[], float] | None) -> None:
        """`take` returns the peak since the last call, in GiB; None on CPUs."""
        self._take = take
        self.gb: dict[str, float] = {}
        self.optimizer_gb = 0.0  # the memory of the optimizer's states

    def end(self, part: str) -> None:
        """End a part of the trial, or a repetition of it."""
        if self._take:
            self.gb[part] = max(self._take(), self.gb.get(part, 0.0))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """End passes and updates in this block where the optimizer begins and ends."""
        before = register_optimizer_step_pre_hook(lambda *_: self.end("passes"))
        after = register_optimizer_step_post_hook(self._end_update)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _end_update(self, optimizer: Optimizer, *_: object) -> None:
        self.end("update")
        states = (value for state in optimizer.state.values() for value in state.values())
        self.optimizer_gb = _gb(value for value in states if isinstance(value, Tensor))


def main() -> None:
    """Answer requests until the other end of the socket is closed."""
    from trainables import rank

    parent = Connection(int(sys.argv[1]))
    with suppress(EOFError, BrokenPipeError):
        while True:
            request: RankRequest = parent.recv()
            started = time.perf_counter()
            rank_exit = rank.run(request, lambda row: None, lambda **_: False)
            answer: dict[str, Any] = {"status": rank_exit.status, "note": rank_exit.note, "trace": rank_exit.trace}
            parent.send(answer | {"took_s": time.perf_counter() - started, "figures": dict(rank_exit.metrics)})


if __name__ == "__main__":
    main()
