"""The context of a trial in one rank: what a trainable receives, and how it reports.

A trainable is a plain function `train(config, context) -> None`, called once in every rank's process:

    def train(config: Mapping[str, Any], context: Context) -> None:
        for epoch in range(1, 11):
            ...                                  # train with context.batch and context.lr on context.device
            context.report({"epoch": epoch, "loss": loss, "val_accuracy": accuracy})
        context.summarize({"accuracy": test_accuracy, "samples_per_s": throughput})

It runs without the orchestrator: `Context.alone()` makes a context for a single process.

An interrupted trial is started again with the same `trial_id` and `trial_dir`, and may continue from a checkpoint:

    state = context.restored() or {"epoch": 0}
    for epoch in range(state["epoch"] + 1, 11):
        ...
        context.checkpoint({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from sweeps.layout import Layout
from sweeps.lr_rule import LearningRate
from sweeps.metric import column_of
from sweeps.trial import Batch, RankRequest
from trainables.checkpoints import Checkpoints, Restored

if TYPE_CHECKING:
    from torch import Tensor


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON: those of numpy and torch become Python's; None and non-finite numbers are left out.

    In a list they are None. Raises TypeError naming the key of a value that JSON cannot hold.
    """
    figures = {key: _plain_value(key, value) for key, value in values.items()}
    return {key: value for key, value in figures.items() if value is not None}


def of_python(value: Any) -> Any:
    """Return an array of numpy or torch as a list, or as a number if it has one element; other values unchanged."""
    # By attribute, so that neither numpy nor torch must be imported.
    if not hasattr(value, "item"):
        return value
    return value.item() if math.prod(getattr(value, "shape", ())) == 1 else value.tolist()


def _plain_value(key: str, value: Any) -> Any:
    value = of_python(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain_value(key, item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain_value(key, item) for name, item in value.items()}
    raise TypeError(f"{key!r} is a {type(value).__name__}; a trainable reports numbers, strings, lists and mappings")


_log = logging.getLogger(__name__)


class RequestError(ValueError):
    """The request is wrong for every trial: code that cannot be imported, an unknown key.

    As long as no trial of the sweep has a result, the orchestrator then ends the sweep.
    """


class TrialTimeoutError(TimeoutError):
    """The trial exceeded its time limit. Raise it to end the trial as `timeout`, which is a result."""


class DivergedError(ArithmeticError):
    """The loss is no longer finite. Raise it to end the trial as `diverged`, which is a result."""


class DeviceMemoryError(MemoryError):
    """The memory of a GPU ran out, as a command's output tells; torch raises another class."""


class PortInUseError(RuntimeError):
    """A port of the training is in use. The trial is tried again while no other trial runs on its node."""


class UntrainedError(RuntimeError):
    """The trial took no optimizer step. It ends as `failed`, because its figures would be those of no training."""


class GivenUpError(Exception):
    """The rest of the trial cannot change the answer. Raise it to end the trial as `skipped`, with the reason."""


def _whole(checkpoint: Restored) -> dict[str, Any]:
    shared = {} if checkpoint.tensors is None else {"tensors": checkpoint.tensors}
    return {**checkpoint.state, **shared}


class Mailbox(Protocol):
    """Messages between the ranks of a trial; what is sent arrives in this order."""

    def send(self, rank: int, message: Mapping[str, Any]) -> None:
        """Send another rank values that can be pickled; a rank that has ended takes none."""

    def received(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages that have arrived since the last call."""


_TRIAL_METRICS = {"epoch": "epochs", "loss": "loss", "val_accuracy": "val_accuracy", "val_loss": "val_loss"}
"""{key of a row: the trial's metric that its last value becomes}"""


@dataclass(kw_only=True)
class Context:
    """One rank's view of its trial."""

    trial_id: str
    rank: int
    world_size: int
    device: str  # `cpu`, or `cuda:0`: a rank sees only its own GPUs
    gpus_per_rank: float = 1
    """GPUs of the rank; a fraction means a shared GPU. Without meaning if `device` is `cpu`."""
    threads: int  # CPU cores this rank may keep busy
    seed: int
    layout: Layout
    batch: Batch
    lr: LearningRate
    rendezvous: str | None = None  # `tcp://host:port` for the process group of this trial; None for a single rank
    gang_id: str = ""
    """The same id for all trials of the same processes, so that a process group can serve several trials."""
    trial_dir: Path | None = None
    """The trial's folder, shared by all ranks, with its checkpoints; None if nothing is kept."""
    emit: Callable[[dict[str, Any]], None] = field(default=lambda row: None, repr=False)
    stop_requested: Callable[..., bool] = field(default=lambda **_: False, repr=False)
    observe: Callable[[str], None] = field(default=lambda phase: None, repr=False)
    """Called with the name of each phase when it begins, and with an empty string when it ends: see `phase`.

    Also called with `reported` whenever the trial reports something, which marks the timed part of a trial without
    phases.
    """
    mailbox: Mailbox | None = field(default=None, repr=False)  # None for a rank without others to send to
    metrics: dict[str, Any] = field(default_factory=dict)
    """Metrics set by `summarize`; those of rank 0 become the trial's row."""
    remarks: list[str] = field(default_factory=list)  # notes added by `remark`
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)  # rows given to `report`

    @property
    def devices(self) -> tuple[str, ...]:
        """Return all devices of the rank, `device` first; a strategy or command may drive several GPUs."""
        if self.device == "cpu":
            return (self.device,)
        return tuple(f"cuda:{index}" for index in range(max(1, int(self.gpus_per_rank))))

    def report(self, row: Mapping[str, Any]) -> None:
        """Add a row to the learning curve, usually one per epoch; only rank 0's rows are kept.

        The last row's `epoch`, `loss`, `val_accuracy` and `val_loss` become the trial's, unless `summarize` sets them.
        """
        # Users report under the names of their framework, such as `eval/acc`.
        by_column = {column_of(key): value for key, value in row.items()} | dict(row)
        self.metrics |= {name: by_column[key] for key, name in _TRIAL_METRICS.items() if key in by_column}
        self.observe("reported")
        # Other ranks report the same rows.
        if self.rank == 0:
            self.rows.append(dict(row))
            self.emit(plain(row))

    def summarize(self, metrics: Mapping[str, Any]) -> None:
        """Set metrics of the whole trial by their column name: `accuracy`, `samples_per_s`, `epoch_s`, …"""
        self.metrics |= {column_of(name): value for name, value in metrics.items()} | dict(metrics)
        self.observe("reported")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark this block as a phase of the trial for telemetry, which separates energy, use and disturbances by phase.

        `training`: the training part of an epoch; `evaluation`; `warmup`; `window`: the window of the throughput;
        `measurement`: of figures beside the training, such as the parts of a step.
        Phases cannot be nested.
        """
        self.observe(name)
        try:
            yield
        finally:
            self.observe("")

    def remark(self, text: str) -> None:
        """Add a note to the trial's row and log it. Only rank 0's note is kept."""
        if text not in self.remarks:
            _log.warning(text)
            self.remarks.append(text)

    def should_stop(self, *, progress: bool = True) -> bool:
        """Return whether the trial should end early; all ranks must agree on it before they act.

        If possible, call `checkpoint` and return: the trial may be started again. A call counts as progress of the
        trial, which otherwise ends after `hang_s`; pass `progress=False` while waiting for something that may hang.
        """
        # Only a call that counts as progress resets the clock of `hang_s`.
        return self.stop_requested() if progress else self.stop_requested(progress=False)

    def checkpoint(
        self,
        state: Mapping[str, Any],
        own: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write a checkpoint; all ranks call this at the same point. The checkpoint before it is kept as well.

        `state` is common to all ranks and is written by rank 0; `own` is this rank's. Both hold tensors, numbers,
        strings, and lists and dicts of them; TypeError for anything else. `tensors` are by name what the ranks hold
        together: DTensors, or equal tensors; any other number of ranks can load them. Metrics, rows and remarks are
        included. If the disk takes no file, the trial continues without the checkpoint, and a remark says so.
        """
        # A context without a folder keeps nothing.
        if self._checkpoints is None:
            return
        # The attempt that continues reports them again, and so they are part of the checkpoint.
        rows = [plain(row) for row in self.rows]
        reported = {"metrics": plain(self.metrics), "rows": rows, "remarks": list(self.remarks)}
        try:
            # Independent models have tensors of the same names, which are not parts of a common one.
            self._checkpoints.keep(state, own or {}, reported, tensors, alone=self.layout.models > 1)
        except OSError as error:
            self.remark(f"checkpoint not written: {error.strerror or error}")

    def restored(self, usable: Callable[[Mapping[str, Any]], bool] | None = None) -> dict[str, Any] | None:
        """Return `state` and `own` of the last checkpoint together, tensors on the device; None if there is none.

        Shared tensors are in it as `tensors`, a `trainables.shared_tensors.SharedTensors`. If another number of ranks
        has saved it, `own` is missing. Call it once in every rank, before the first report: metrics and remarks are
        restored, and the rows reported again. If the last checkpoint is damaged, the one before is used, and a remark
        says so. A checkpoint whose state is not `usable` counts as none.
        """
        if self._checkpoints is None:
            return None
        checkpoint = self._checkpoints.last()
        # A checkpoint of another length or recipe must not leave its metrics here.
        if checkpoint is not None and usable is not None and not usable(checkpoint.state):
            return None
        if checkpoint is not None:
            # The curve of the attempt before this one continues without a gap.
            for row in checkpoint.reported["rows"]:
                self.report(row)
            self.metrics |= checkpoint.reported["metrics"]
            self.remarks += checkpoint.reported["remarks"]
        for name in self._checkpoints.damaged():
            self.remark(f"checkpoint {name} is damaged, and was passed over")
        return None if checkpoint is None else _whole(checkpoint)

    def save_branch_point(
        self, tokens: int, state: Mapping[str, Any], own: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        """Write the checkpoint from which branches start after so many tokens; see `checkpoint`. Raises OSError."""
        if self.trial_dir is not None:
            self._checkpoints_in(self.trial_dir / f"branch-{tokens}", self.trial_id).keep(state, own, {}, tensors)

    def has_branch_point(self, tokens: int) -> bool:
        """Return whether this trial has saved its checkpoint for branches after so many tokens."""
        return self.trial_dir is not None and (self.trial_dir / f"branch-{tokens}").is_dir()

    def branch_point(self, base: str, tokens: int) -> dict[str, Any] | None:
        """Return `state` and `own` that the trial `base` of the same sweep saved; None if there is no such file."""
        if self.trial_dir is None:
            return None
        checkpoint = self._checkpoints_in(self.trial_dir.parent / base / f"branch-{tokens}", base).last()
        return None if checkpoint is None else _whole(checkpoint)

    @functools.cached_property
    def _checkpoints(self) -> Checkpoints | None:
        if self.trial_dir is None:
            return None
        return self._checkpoints_in(self.trial_dir / "checkpoint", self.trial_id)

    def _checkpoints_in(self, folder: Path, trial_id: str) -> Checkpoints:
        return Checkpoints(folder, trial_id=trial_id, rank=self.rank, world_size=self.world_size, device=self.device)

    @staticmethod
    def of(request: RankRequest, **calls: Any) -> Context:
        """Return the context of a rank with this request; `calls` are the functions that its process provides."""
        trial = request.trial
        return Context(
            trial_id=trial.trial_id,
            rank=request.rank,
            world_size=trial.gang.ranks,
            # A rank sees only its own GPUs, which it counts from 0.
            device="cuda:0" if trial.device == "cuda" else "cpu",
            gpus_per_rank=trial.gang.gpus_per_rank,
            threads=trial.gang.cpus_per_rank,
            seed=trial.seed,
            layout=trial.layout,
            batch=trial.batch,
            lr=trial.lr,
            rendezvous=request.rendezvous,
            gang_id=request.gang_id,
            trial_dir=request.trial_dir,
            **calls,
        )

    @staticmethod
    def alone(batch_size: int = 32, lr: float = 0.1, seed: int = 0, device: str = "cpu", **other: Any) -> Context:
        """Return a context for one process, to run or test a trainable by itself."""
        given: dict[str, Any] = {
            "trial_id": "alone",
            "rank": 0,
            "world_size": 1,
            "device": device,
            "threads": 1,
            "seed": seed,
            "layout": Layout(),
            "batch": Batch(global_batch_size=batch_size, shares=(batch_size,)),
            "lr": LearningRate(value=lr, warmup_from=lr),
        }
        return Context(**given | other)


def master_of(context: Context) -> tuple[str, int]:
    """Return host and port at which the ranks meet. Raises ValueError if there is no rendezvous `tcp://host:port`."""
    meeting = urlsplit(context.rendezvous or "")
    if meeting.scheme != "tcp" or not meeting.hostname or not meeting.port:
        raise ValueError(f"rendezvous={context.rendezvous!r}: {context.world_size} ranks need tcp://host:port")
    return meeting.hostname, meeting.port
