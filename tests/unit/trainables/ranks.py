"""Requests to ranks, and real processes to send them to."""

import multiprocessing
import os
import random
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sweeps.layout import Gang, layout_of
from sweeps.lr_rule import LearningRate
from sweeps.rank_exit import RankExit
from sweeps.trial import Batch, RankRequest, TrialSpec
from trainables.context import Context

CONFIG: dict[str, Any] = {
    "trainable": {"window_s": 0.01, "window_steps": 2, "warmup_steps": 1, "warmup_s": 0.0},
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "digits"},
    "optimizer": {"name": "sgd", "momentum": 0.9},
    "schedule": {"name": "cosine"},
    "budget": {"steps": 20},
}
TIMES = {
    *("first_epoch_s", "epoch_s", "train_s", "samples_per_s", "window_s", "window_steps", "time_to_target_s"),
    *("data_s", "compute_s", "communication_s", "rest_s", "mfu", "matrix_flops_per_s"),
    *("step_s", "step_data_s", "step_host_s", "step_compute_s", "step_communication_s", "step_imbalance_s"),
    "slowest_rank",
}


def request(
    trainable: str = "trainables.supervised.training:train",
    *,
    rank: int = 0,
    shares: Sequence[int] = (64,),
    grad_accum_steps: int = 1,
    lr: float = 0.05,
    config: dict[str, Any] | None = None,
    strategy: str = "",
    fsdp_size: int | None = None,
    tensor: int = 1,
    rates: LearningRate | None = None,
    gpus_per_rank: float = 0,
    threads: int = 1,
    gang_id: str = "gang",
    rendezvous: str | None = None,
    trial_dir: Path | str | None = None,
    **other: Any,
) -> RankRequest:
    """Return the request that a back end sends to one rank; `config` replaces sections of CONFIG.

    `rates` replaces the learning rate, and `other` are fields of the trial.
    """
    ranks = len(shares) * tensor
    layout = layout_of(
        Gang(ranks=ranks, gpus_per_rank=0, cpus_per_rank=1),
        strategy=strategy or "auto",
        model_parallel={"tensor_parallel": tensor},
        fsdp_size=fsdp_size,
    )
    whole = sum(shares) * grad_accum_steps
    rates = rates or LearningRate(
        rule="linear", reference_batch_size=64, value=lr, warmup_from=lr / 10, warmup_epochs=1.0
    )
    trial = TrialSpec(
        trial_id="trial",
        cell_id="cell",
        sweep="tests",
        axes={},
        gpus=ranks,
        gang=Gang(ranks=ranks, gpus_per_rank=gpus_per_rank, cpus_per_rank=threads),
        device="cpu",
        layout=layout,
        timing="device",
        batch=Batch(global_batch_size=whole, grad_accum_steps=grad_accum_steps, shares=tuple(shares)),
        lr=rates,
        seed=1,
        trainable=trainable,
        config=CONFIG | (config or {}),
    )
    return RankRequest(
        trial=replace(trial, **other),
        rank=rank,
        gang_id=gang_id,
        rendezvous=rendezvous,
        trial_dir=Path(trial_dir) if trial_dir else None,
    )


def rendezvous() -> str:
    """Return the address of a free port outside of the range that systems assign."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 30_000)))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Processes:
    """Several processes that call functions together."""

    def __init__(self, count: int, environments: Sequence[dict[str, str]] = ()) -> None:
        """With `environments` each is a new process with those variables; else all are forked with torch imported."""
        fresh = multiprocessing.get_context("spawn" if environments else "forkserver")
        if not environments:
            # torch, what every optimizer of it imports at its first step, torchvision, and what modules of tests import
            slow_to_import = ("trainables.supervised.training", "torch._dynamo", "trainables.inputs.loaders")
            fresh.set_forkserver_preload([*slow_to_import, "pytest", "hypothesis"])
        self._ends, self._members = [], []
        for index in range(count):
            here, there = fresh.Pipe()
            self._ends.append(here)
            self._members.append(fresh.Process(target=_serve, args=(there,)))
            with _environment(environments[index] if environments else {}):
                self._members[-1].start()

    def call(
        self, function: Callable[..., Any], *arguments: tuple[Any, ...], first: int = 0, limit_s: float | None = None
    ) -> list[Any]:
        """Call `function(*arguments[i])` in process `first` + i, for as many processes as there are arguments.

        Raises RuntimeError with the traces of their errors, and TimeoutError if a process needs longer than the limit.
        """
        ends = self._ends[first : first + len(arguments)]
        for end, own in zip(ends, arguments, strict=True):
            end.send((function, own))

        def receive(end: Connection) -> Any:
            if not end.poll(limit_s):
                raise TimeoutError(f"no answer after {limit_s:g} s")
            return end.recv()

        with ThreadPoolExecutor(len(ends)) as pool:
            answers = list(pool.map(receive, ends))
        if errors := [error for _, error in answers if error]:
            raise RuntimeError("\n".join(errors))
        return [answer for answer, _ in answers]

    def close(self) -> None:
        """End the processes when they have answered all calls."""
        for end in self._ends:
            end.send(None)
        for member in self._members:
            member.join()

    def kill(self) -> None:
        """End the processes at once."""
        for member in self._members:
            member.kill()
            member.join()


@contextmanager
def _environment(further: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(further)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(end: Connection) -> None:
    with suppress(EOFError):  # the parent process is gone
        while (call := end.recv()) is not None:
            function, arguments = call
            try:
                end.send((function(*arguments), ""))
            except Exception:
                end.send((None, traceback.format_exc()))


def run(asked: RankRequest) -> dict[str, Any]:
    """Run a rank; return the fields of its exit, and the rows that it has emitted."""
    from trainables import rank

    rows: list[dict[str, Any]] = []
    return fields_of(rank.run(asked, rows.append, lambda: False)) | {"rows": rows}


def fields_of(rank_exit: RankExit) -> dict[str, Any]:
    """Return the fields of an exit, and its status."""
    return vars(rank_exit) | {"status": rank_exit.status}


def context_of(
    asked: RankRequest,
    emit: Callable[[dict[str, Any]], None] = lambda row: None,
    stop_requested: Callable[..., bool] = lambda: False,
) -> Context:
    """Return the context of a rank with this request."""
    return Context.of(asked, emit=emit, stop_requested=stop_requested)


def supervised_trial(asked: RankRequest, context: Context | None = None, **options: Any) -> Any:
    """Return a rank's `SupervisedTrial`, before its first step."""
    from trainables.supervised.settings import TrainingSettings
    from trainables.supervised.training import SupervisedTrial

    config = asked.trial.config
    return SupervisedTrial(config, TrainingSettings.of(config["trainable"]), context or context_of(asked), **options)


def run_two(pair: Processes, *arguments: str, **asked: Any) -> list[dict[str, Any]]:
    """Run a trial on two ranks that meet for it; return the answer of each."""
    meet = rendezvous()
    asked = {"gang_id": meet, "rendezvous": meet} | asked
    return pair.call(run, *((request(*arguments, rank=rank, **asked),) for rank in range(2)))


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on time in an answer."""
    metrics = {key: value for key, value in answer["metrics"].items() if key not in TIMES}
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in answer["rows"]]
    return {"status": answer["status"], "metrics": metrics, "rows": rows}
