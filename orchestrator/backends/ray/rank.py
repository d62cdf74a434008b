"""One rank of a gang as a Ray actor: a process with its own devices that runs one trial after another."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import ray

from orchestrator.backends.backend import RANK_ENTRY
from orchestrator.backends.gpu_quarantine import of_node, take
from orchestrator.telemetry.sampler import Sampler, Sampling, Watched
from orchestrator.telemetry.sources import Readings
from sweeps.ports import free_port
from sweeps.rank_exit import Cause, RankExit
from sweeps.trial import RankRequest

WATCH = "watch"
"""The concurrency group of the methods that answer while a trial runs.

With it, Ray calls every other method in one further thread, always the same, which is not the main thread.
"""

PROCESS_GROUP = "trainables.process_group"
"""The module that connects a trial's ranks; unless a trial has imported it, there is no connection to leave."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

LOOPBACK = "127.0.0.1"
_NETWORK_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""They name the network interface on which ranks listen for one another."""


class Rank:
    """The actor's class; it sets up its environment before it imports any numerical library.

    Its supervisor numbers the calls of `run`. A call about one run may arrive during the previous or the next one, and
    must not be answered with theirs.
    """

    def __init__(self, threads: int, gpus: float, lost: Collection[str] = ()) -> None:
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))  # libraries read them at their import
        self._gpus = _take_gpus(lost) if gpus >= 1 else []
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves all of them visible to an actor that asks for none
        if ray.util.get_node_ip_address() == LOOPBACK:  # a cluster of this machine alone
            os.environ.update(dict.fromkeys(_NETWORK_VARIABLES, "lo" if sys.platform == "linux" else "lo0"))
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML counts, so that what is watched is what is used
        faulthandler.enable(2)  # a crash in C code leaves its Python stack in the log
        self._run_number = 0
        self._rows: list[dict[str, Any]] = []
        self._stop_number = 0  # the run that was asked to stop last, which may not have begun
        self._has_stopped = False
        self._moves = 0
        self._messages: dict[int, deque[Mapping[str, Any]]] = {}
        """Messages of other ranks by run number; one may begin a run sooner than this rank."""

    def rendezvous(self) -> str:
        """Return `tcp://host:port` with a free port of this rank's node."""
        host = ray.util.get_node_ip_address()
        return f"tcp://{host}:{free_port(host)}"

    def prepare(self, trainable: str) -> None:
        """Import what a trial needs of this project; a user's own module is imported by the trial."""
        with suppress(Exception):  # a trial reports what cannot be imported
            resolve_name(RANK_ENTRY)
            if trainable.startswith("trainables."):
                resolve_name(trainable)

    def run(
        self,
        run_number: int,
        request: RankRequest,
        rendezvous: str | None,
        sampling: Sampling,
        ranks: Sequence[Any] = (),
    ) -> tuple[RankExit, list[dict[str, Any]], Readings]:
        """Run one trial; returns the rank's exit, all its rows, and the telemetry readings.

        `ranks` are the actors of the gang if there are several. Output goes to the log in the trial's folder. Raises
        what RANK_ENTRY raises; what the trainable raises is part of the exit.
        """
        self._rows, self._moves, self._has_stopped = [], 0, False
        self._run_number = run_number  # last: from here on, calls about this run are answered
        request = replace(request, rendezvous=rendezvous)
        assert request.trial_dir
        # On the driver's node the results directory must not be made again after it was deleted.
        parents = _node_id() != request.driver_node
        request.trial_dir.mkdir(mode=0o700, parents=parents, exist_ok=True)
        with _output_to(rank_log(request.trial_dir, request.rank)):
            entry = resolve_name(RANK_ENTRY)
            with Sampler(sampling, Watched.of(request)) as sampler:
                mailbox = _Mailbox(run_number, ranks, self._messages_of(run_number))
                rank_exit: RankExit = entry(request, self._emit, self._should_stop, sampler.observe, mailbox)
            sys.stderr.write(rank_exit.trace)
            readings = sampler.readings()
        is_lost = rank_exit.cause is Cause.DEVICE
        devices = [f"{_node_id()}/{name}" for name in self._gpus] if is_lost else []
        return replace(rank_exit, stopped=self._has_stopped, lost_devices=devices), self._rows, readings

    def _emit(self, row: dict[str, Any]) -> None:
        self._moves += 1
        self._rows.append(row)

    def _should_stop(self, *, progress: bool = True) -> bool:
        self._moves += progress
        self._has_stopped = self._run_number == self._stop_number
        return self._has_stopped

    def deliver(self, run_number: int, message: Mapping[str, Any]) -> None:
        """Take a message of another rank, unless it is about an earlier trial."""
        if run_number >= self._run_number:
            self._messages.setdefault(run_number, deque()).append(message)

    def _messages_of(self, run_number: int) -> deque[Mapping[str, Any]]:
        for earlier in [number for number in list(self._messages) if number < run_number]:
            del self._messages[earlier]
        return self._messages.setdefault(run_number, deque())

    def disconnect(self) -> None:
        """Leave the last trial's process group: the next trial has another."""
        if PROCESS_GROUP in sys.modules:
            sys.modules[PROCESS_GROUP].leave()

    def moves(self, run_number: int) -> int:
        """Return how often this trial took a step or reported; a trial that hangs does not increase it."""
        return self._moves if run_number == self._run_number else 0

    def stacks(self) -> str:
        """Return the stacks of all threads of this process."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            return file.read()

    def rows(self, run_number: int, since: int) -> list[dict[str, Any]]:
        """Return the rows of this trial from index `since` on."""
        return self._rows[since:] if run_number == self._run_number else []

    def stop(self, run_number: int) -> None:
        """Ask this trial to end early."""
        self._stop_number = run_number


class _Mailbox:
    """The messages between the ranks during one run, as calls of their actors: see `trainables.context.Mailbox`."""

    def __init__(self, run_number: int, ranks: Sequence[Any], messages: deque[Mapping[str, Any]]) -> None:
        self._run_number, self._ranks, self._messages = run_number, ranks, messages

    def send(self, rank: int, message: Mapping[str, Any]) -> None:
        """Send another rank a message; the supervisor notices if that rank has died."""
        self._ranks[rank].deliver.options(concurrency_group=WATCH).remote(self._run_number, dict(message))

    def received(self) -> list[Mapping[str, Any]]:
        """Return the messages that have arrived since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]


def rank_log(trial_dir: Path, rank: int) -> Path:
    """Return the file with a rank's output in all attempts at the trial."""
    return trial_dir / f"rank{rank}.log"


def _node_id() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _take_gpus(lost: Collection[str]) -> list[str]:
    """Choose the GPUs that this process uses, avoiding lost ones; returns their names."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    node_id = _node_id()
    here = of_node(lost, node_id)
    mine = [node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id] if here else []
    count = sum(int(resources.get("GPU", 0)) for resources in mine)
    try:
        taken = take(given, here, count, Path(tempfile.gettempdir()) / f"orchestrator-gpus-{os.getuid()}")
    except OSError:  # no record can be kept; the GPUs that Ray assigned belong to this process anyway
        return given
    if taken != given:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(taken)
    return taken


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Append everything written to stdout and stderr, also by C code, to this file."""
    flush = ctypes.CDLL(None).fflush  # for C code, which buffers its output unless it goes to a terminal
    flush(None)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for stream in kept:
        os.dup2(log, stream)
    os.close(log)
    try:
        yield
    finally:
        flush(None)
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
