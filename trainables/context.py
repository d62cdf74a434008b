"""What a trainable receives, and how it reports.

A trainable is a plain function `train(config, context) -> None`, called once in every rank's process:

    def train(config: Mapping[str, Any], context: Context) -> None:
        for epoch in range(1, 11):
            ...                                  # train with context.batch and context.lr on context.device
            context.report({"epoch": epoch, "loss": loss, "val_accuracy": accuracy})
        context.summarize({"accuracy": test_accuracy, "samples_per_s": throughput})

It needs nothing of the orchestrator to run: `Context.alone()` makes a context for a single process.

A trial that was interrupted is started again with the same `trial_id` and `trial_dir`, and may go on from where it was:

    state = context.restored() or {"epoch": 0}
    for epoch in range(state["epoch"] + 1, 11):
        ...
        context.checkpoint({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()})

Figures as they leave a rank: JSON values.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainables.checkpoints import Checkpoints


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as JSON values: scalars of numpy and torch become Python's; what is not finite or None is left out.

    Raises TypeError naming the key of a value that JSON does not have.
    """
    figures = {key: _plain_value(key, value) for key, value in values.items()}
    return {key: value for key, value in figures.items() if value is not None}


def _plain_value(key: str, value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain_value(key, each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain_value(key, each) for name, each in value.items()}
    raise TypeError(f"{key!r} is a {type(value).__name__}; a trainable reports numbers, strings, lists and mappings")


_log = logging.getLogger(__name__)


class RequestError(ValueError):
    """What was asked for cannot be, whichever trial it is: its code cannot be imported, it has no such key.

    While no trial of the sweep has a result the orchestrator ends it, as it does for mistakes that it finds itself.
    """


class TrialTimeoutError(TimeoutError):
    """The trial took longer than it was given. Raise it: the trial ends as `timeout`, which is a result."""


class DivergedError(ArithmeticError):
    """The loss is no longer finite. Raise it: the trial ends as `diverged`, which is a result."""


class GivenUpError(Exception):
    """What is left of the trial would change nothing. Raise it: the trial ends as `skipped`, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How one optimizer step's samples are divided: global = Σ shares × grad_accum_steps."""

    global_batch_size: int
    grad_accum_steps: int = 1
    shares: tuple[int, ...]
    """Samples a rank takes in one forward pass, a number for each rank."""
    devices_per_rank: int = 1
    """Over which a rank divides its share evenly; without GPUs, over the processes that it starts."""

    @property
    def device_batch_size(self) -> int:
        """The largest part of any device."""
        return math.ceil(max(self.shares) / self.devices_per_rank)


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """The rate after the trial's learning-rate rule, before any schedule; the warm-up is linear in samples."""

    rule: str = "none"
    value: float
    warmup_from: float
    warmup_epochs: float = 0.0
    reference_batch_size: int | None = None
    """The global batch that the rule starts from; None: the trial's own."""


_OF_THE_TRIAL = {"epoch": "epochs", "loss": "loss", "val_accuracy": "val_accuracy"}
"""Figures of the last row that are also the trial's, by their name there."""


@dataclass(kw_only=True)
class Context:
    """One rank's view of its trial."""

    trial_id: str
    rank: int
    world_size: int
    device: str
    """`cpu`, or `cuda:0` for the rank's own device: a rank sees only its own GPUs."""
    gpus_per_rank: float = 1
    """GPUs that the rank has; a fraction of one is shared with others. Without meaning where `device` is `cpu`."""
    threads: int
    """CPU cores this rank may keep busy."""
    seed: int
    strategy: str
    batch: Batch
    lr: LearningRate
    rendezvous: str | None = None
    """`tcp://host:port` where the ranks of this trial meet; None for a single rank."""
    gang_id: str = ""
    """Stays the same while the same processes stay together, so that a process group can outlive a trial."""
    trial_dir: Path | None = None
    """The trial's folder, which all ranks share; checkpoints are under it. None where nothing is kept."""
    emit: Callable[[dict[str, Any]], None] = field(default=lambda row: None, repr=False)
    stop_requested: Callable[[], bool] = field(default=lambda: False, repr=False)
    observe: Callable[[str], None] = field(default=lambda phase: None, repr=False)
    """Called with the name of every phase that begins, and with an empty one when it ends: see `phase`."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """What `summarize` has collected; rank 0's becomes the trial's row."""
    remarks: list[str] = field(default_factory=list)
    """What `remark` has collected."""
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """What `report` has handed over."""

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices of the rank: `device` first, and any further GPUs that strategy or command may drive from it."""
        if self.device == "cpu":
            return (self.device,)
        return tuple(f"cuda:{index}" for index in range(max(1, int(self.gpus_per_rank))))

    def report(self, row: Mapping[str, Any]) -> None:
        """Hand over one row of the learning curve, usually one an epoch; only rank 0's are kept.

        The last row's `epoch`, `loss` and `val_accuracy` are also the trial's, unless `summarize` says otherwise.
        """
        self.metrics |= {name: row[key] for key, name in _OF_THE_TRIAL.items() if key in row}
        if self.rank == 0:
            self.rows.append(dict(row))
            self.emit(dict(row))

    def summarize(self, metrics: Mapping[str, Any]) -> None:
        """Set figures of the whole trial by their column name: `accuracy`, `samples_per_s`, `epoch_s`, …"""
        self.metrics.update(metrics)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What the trial does in this block, for whoever watches it from outside; phases do not lie in each other.

        `training`: the training part of an epoch; `evaluation`; `warmup`; `window`: what throughput is measured over.
        Energy, utilisation and disturbances are told apart by them.
        """
        self.observe(name)
        try:
            yield
        finally:
            self.observe("")

    def remark(self, text: str) -> None:
        """Say something that a reader of the trial's row should know: it goes to the log, and rank 0's to the note."""
        if text not in self.remarks:
            _log.warning(text)
            self.remarks.append(text)

    def should_stop(self) -> bool:
        """Whether the trial was asked to end early; all ranks must agree on it before they act.

        Who can goes through `checkpoint` then, and returns: the trial may be started again.
        """
        return self.stop_requested()

    def checkpoint(self, state: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
        """Keep where the trial is, as all of its ranks do at the same point; the one before stays for the worst case.

        `state` is what all ranks have in common, and is written by rank 0; `own` is this rank's. Both hold tensors,
        numbers, strings, and lists and dicts of them; TypeError names what is none of these. The metrics, rows and
        remarks so far are kept, too. A disk that takes no file costs the checkpoint, not the trial: it is remarked.
        """
        if self._checkpoints is None:
            return
        rows = [plain(row) for row in self.rows]
        reported = {"metrics": plain(self.metrics), "rows": rows, "remarks": list(self.remarks)}
        try:
            self._checkpoints.keep(state, own or {}, reported)
        except OSError as error:
            self.remark(f"checkpoint not written: {error.strerror or error}")

    def restored(self) -> dict[str, Any] | None:
        """`state` and `own` of this trial's last checkpoint in one, tensors on the device; None: it begins anew.

        Call it once, in every rank, before the first report: metrics, remarks and rows are then as they were, and the
        rows are handed over again. A damaged checkpoint is passed over for the one before, and remarked.
        """
        if self._checkpoints is None:
            return None
        found = self._checkpoints.last()
        if found is not None:
            for row in found.reported["rows"]:
                self.report(row)
            self.metrics |= found.reported["metrics"]
            self.remarks += found.reported["remarks"]
        for name in self._checkpoints.damaged():
            self.remark(f"checkpoint {name} is damaged, and was passed over")
        return None if found is None else dict(found.state)

    @functools.cached_property
    def _checkpoints(self) -> Checkpoints | None:
        if self.trial_dir is None:
            return None
        return Checkpoints(
            self.trial_dir / "checkpoint",
            trial_id=self.trial_id,
            rank=self.rank,
            world_size=self.world_size,
            device=self.device,
        )

    @staticmethod
    def alone(batch_size: int = 32, lr: float = 0.1, seed: int = 0, device: str = "cpu", **other: Any) -> Context:
        """A context for one process, to run or test a trainable by itself."""
        given: dict[str, Any] = {
            "trial_id": "alone",
            "rank": 0,
            "world_size": 1,
            "device": device,
            "threads": 1,
            "seed": seed,
            "strategy": "single",
            "batch": Batch(global_batch_size=batch_size, shares=(batch_size,)),
            "lr": LearningRate(value=lr, warmup_from=lr),
        }
        return Context(**given | other)
