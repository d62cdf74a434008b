"""The project's own training loop, as one rank runs it: of models of images and of language.

`train` is the trainable: train until the budget is spent, evaluate once on the test set, measure the speed. A trial
consists of a workload (data and their form), a replica (model, inputs and optimizer step) and a loop that takes steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from sweeps.metric import Target
from sweeps.trial import Batch
from trainables import device_memory, process_group
from trainables.checkpoints import CheckpointPace
from trainables.context import Context, GivenUpError
from trainables.inputs.feed import Part
from trainables.inputs.sequences import Sequences
from trainables.step.compilation import one_line_errors
from trainables.step.graphed_step import stream_for
from trainables.step.shares import Replicas
from trainables.supervised.evaluation import Evaluation, Score
from trainables.supervised.flops import utilisation
from trainables.supervised.loop import Epoch, Loop, Progress, TrainingPlan
from trainables.supervised.replica import Replica, as_shape_mismatch
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.timing import Timing, epoch_split
from trainables.supervised.workload import Workload
from trainables.timed_window import Clock, Lap, is_timed_by
from trainables.torch_state import derive, random_state, restore_random_state


def train(config: Mapping[str, Any], context: Context, *, replica_type: Callable[..., Replica] = Replica) -> None:
    """Train `config["model"]` on `config["data"]` for `config["budget"]`; report every epoch, summarize at the end.

    The other sections are `trainable` (its keys: `TrainingSettings`), `optimizer` and `schedule`; `data.augment` is an
    `Augmentation`. A trial with a checkpoint continues from it, with the same result as without an interruption.
    A study may pass its own `replica_type`. Raises DivergedError, GivenUpError, and ValueError for a config
    that cannot be trained.
    """
    with prepared(config, context, replica_type=replica_type) as trial:
        trial.train()
        if not trial.settings.only_timed:
            trial.give_up_if_poor()
            trial.evaluate()
        if not trial.stopped:
            trial.measure_speed()


@contextmanager
def prepared(
    config: Mapping[str, Any], context: Context, *, replica_type: Callable[..., Replica] = Replica
) -> Iterator[SupervisedTrial]:
    """Prepare a trial for its first step, and clear up after it; see `train`."""
    settings = TrainingSettings.of(config["trainable"])
    with (
        stream_for(settings.cuda_graph, context.device),
        one_line_errors(settings.compile),
        closing(SupervisedTrial(config, settings, context, replica_type=replica_type)) as trial,
        as_shape_mismatch(trial.replica.model, config["model"]["name"], trial.workload.input_shape),
    ):
        yield trial


class SupervisedTrial:
    """One rank's part of a trial."""

    def __init__(
        self,
        config: Mapping[str, Any],
        settings: TrainingSettings,
        context: Context,
        *,
        replica_type: Callable[..., Replica] = Replica,
    ) -> None:
        """`settings` are those of the section `trainable`."""
        # The process: its gang, its clock and its random numbers.
        self._context = context
        self.settings = settings
        self._target = Target.of(config)
        self.rank_group = process_group.join(context)
        self.clock = Clock(context.device)
        self._replicas = Replicas.of(context, self.rank_group)
        own, rank_group = self._replicas.context, self._replicas.rank_group
        # All ranks of a model draw the same initial weights.
        torch.manual_seed(own.seed)

        # Data and number formats, then the model with its inputs and its step.
        self._model_config = config["model"]
        self.workload = Workload.of(config, settings, own)
        self.workload.precision.set_flags(context.device)
        restored = context.restored(self._passed_no_branch_point) if settings.checkpoint == "epochs" else None
        # On another layout the shares must be fixed again, by its ranks' speeds and memory.
        fixed = Batch(**restored["batch"]) if restored and restored["layout"] == asdict(own.layout) else None
        self.replica = replica_type(
            config, settings, own, self.workload, rank_group=rank_group, clock=self.clock, fixed=fixed
        )

        # The loop, at its beginning or at the checkpoint.
        plan = TrainingPlan.of(config, own.lr, self.replica.inputs.feed, end_tokens=settings.branch_end)
        self._batch_grows = bool(plan.growth.milestones)
        self._laps: list[Lap] = []
        self._epochs: list[Epoch] = []
        """The epochs of this process, which warms up in the first one; `_laps` also holds those before a restart."""
        self._pace = CheckpointPace(every_s=settings.checkpoint_every_s)
        if restored:
            at = self._restore(restored)
        elif settings.branch_end is not None:
            at = self._branch_off()
        else:
            at = Progress()
            # Each rank drops out other activations, except for ranks with the same samples.
            torch.manual_seed(derive(own.seed, "rank", self._replicas.rank_group.data_rank))
        self.loop = Loop(self.replica, plan, clock=self.clock, rank_group=self.rank_group, context=context, at=at)

    @property
    def stopped(self) -> bool:
        """True if any rank was asked to stop the training early."""
        return self.loop.stopped

    def close(self) -> None:
        """End the processes that the trial has started."""
        self.replica.close()

    def train(self) -> None:
        """Train until the budget is spent, or as far as timing needs; evaluate and report each epoch."""
        part, settings = self.workload.split.validation, self.settings
        if length := self.workload.sequence_length:
            self._context.summarize({"sequence_length": length})
        validation = self.evaluation(part) if len(part) else None
        points = {*settings.branch_points} if settings.checkpoint == "epochs" else set()
        for epoch in self.loop.epochs():
            if self.stopped:
                self._save_checkpoint()  # before the evaluation, which a stop request may leave no time for
            self._report(epoch, self._score(validation) if validation else None)
            if self.stopped:
                return
            if self._tokens in points:
                self._context.save_branch_point(self._tokens, *self._state())
            if settings.checkpoint == "epochs" and self._pace.due(self.loop.at.train_s):
                self._save_checkpoint()
            if settings.only_timed and not self._batch_grows:  # batches that grow are timed over the whole training
                if is_timed_by(self._laps, least_s=settings.window_s, least_steps=settings.window_steps):
                    return
        if settings.branch_end not in (None, self._tokens):
            raise ValueError(
                f"the branch ended after {self._tokens} tokens, not {settings.branch_end}, which are not whole batches"
            )

    def give_up_if_poor(self) -> None:
        """Raise GivenUpError if the accuracy reached is too low to evaluate and time the trial."""
        bound = self.settings.give_up_below
        reached = self._laps[-1].validation.get("val_accuracy") if self._laps else None
        if self.stopped or self._replicas.count > 1:  # independent replicas have different accuracies
            return
        if bound is not None and reached is not None and reached < bound:
            raise GivenUpError(f"early stop: val_accuracy {reached:.4f} is below {bound:.4f} after the training")

    def evaluate(self) -> None:
        """Summarize the result of the training. The test set is evaluated here, once, and decides nothing."""
        test = self.workload.split.test
        score = self._score(self.evaluation(test)) if len(test) else None
        at, replicas = self.loop.at, self._replicas
        self._context.summarize(
            ({"accuracy": score.accuracy} | self._counted("test_samples", test) if score else {})
            | {
                "samples": at.samples * replicas.count,
                "steps": at.steps,
                "n_params": sum(parameter.numel() for parameter in self.replica.model.parameters()),
            }
        )
        if score:
            replicas.summarize(score.accuracy)
        if self.workload.sequence_length:
            length = self.workload.sequence_length
            self._context.summarize({"tokens": at.samples * replicas.count * length})
        for name, own_gb in device_memory.peak(self._context.device).items():
            (peak_gb,) = self.rank_group.largest(own_gb)
            self._context.summarize({name: peak_gb})

    def measure_speed(self) -> None:
        """Summarize times, and throughput unless another trial has it. Comes last, as it may take further steps."""
        context = self._context
        figures = Timing(self.loop, self.settings).figures(self._laps, self._epochs, self._replicas.count)
        if self._target:
            figures |= self._target.reached(
                (lap.seconds, lap.validation.get(self._target.metric)) for lap in self._laps
            )
        context.summarize(figures)
        if speed := figures.get("samples_per_s"):
            context.summarize(
                utilisation(self._model_config, self.workload, speed, rank_group=self.rank_group, context=context)
            )

    def evaluation(self, part: Part | Sequences) -> Evaluation:
        """Return the evaluation of a part of the data by all ranks."""
        return Evaluation(part, self.workload, self.settings, self._replicas)

    def _score(self, evaluation: Evaluation) -> Score:
        with self._context.phase("evaluation"):
            return self.replica.score(evaluation)

    def _counted(self, name: str, part: Part | Sequences) -> dict[str, int]:
        """Return how many samples an accuracy is the share of; empty for texts, whose tokens are not independent."""
        return {} if self.workload.sequence_length else {name: len(part)}

    def _report(self, epoch: Epoch, score: Score | None) -> None:
        validation = {"val_accuracy": score.accuracy, "val_loss": score.loss} if score else {}
        if score and self.workload.bytes_per_token:
            validation["bits_per_byte"] = score.loss / math.log(2) / self.workload.bytes_per_token
        self._laps.append(Lap(seconds=epoch.seconds, steps=epoch.steps, validation=validation))
        self._epochs.append(epoch)
        noise, at, length = self.replica.noise.figures(), self.loop.at, self.workload.sequence_length
        counted = self._counted("val_samples", self.workload.split.validation) if score else {}
        self._context.report(
            {"epoch": epoch.number, "loss": epoch.loss}
            | validation
            | {"epoch_s": epoch.seconds, "samples": at.samples * self._replicas.count, "steps": at.steps}
            | ({"tokens": at.samples * self._replicas.count * length} if length else {})
            | {"lr": epoch.lr}
            | epoch_split(epoch, on_gpu=self.replica.stopwatch.on_gpu)
            | device_memory.peak(self._context.device)
            | noise
        )
        # An epoch that the budget or a stop request cuts short counts as the part that it is.
        epochs = min(epoch.number, at.samples / self.replica.inputs.feed.epoch_samples)
        self._context.summarize({"epochs": epochs} | validation | counted | noise)

    def _save_checkpoint(self) -> None:
        """Save everything that the rest of the training depends on."""
        if self.settings.checkpoint == "off":
            return
        started = self.clock.read()
        self._context.checkpoint(*self._state())
        (cost_s,) = self.rank_group.largest(self.clock.read() - started)
        self._pace.kept(self.loop.at.train_s, cost_s)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
        """Return everything that the rest of the training depends on: common to all ranks, of this rank, and shared."""
        state, tensors = self.replica.state()
        loss = self.replica.step.loss
        common = {
            "replica": state,
            "progress": asdict(self.loop.at),
            "layout": asdict(self._replicas.context.layout),
            "batch": asdict(self._replicas.context.batch),
            "laps": [asdict(lap) for lap in self._laps],
            "mean_loss": float(self.rank_group.sum(loss.clone())) / self.rank_group.world_size,
        }
        own = {"random": random_state(), "loss": loss}
        return ({}, common | own, tensors) if self._replicas.count > 1 else (common, own, tensors)

    @property
    def _tokens(self) -> int:
        return self.loop.at.samples * (self.workload.sequence_length or 0)

    def _passed_no_branch_point(self, state: Mapping[str, Any]) -> bool:
        """Return whether a trial that continues from this state saves all of its branch points.

        Branches may have been added after it passed their point. It then starts again.
        """
        reached = state["progress"]["samples"] * (self.workload.sequence_length or 0)
        return all(
            self._context.has_branch_point(tokens) for tokens in self.settings.branch_points if tokens <= reached
        )

    def _restore(self, restored: Mapping[str, Any]) -> Progress:
        """Restore everything from a checkpoint, and return the progress it was saved at."""
        at = Progress(**restored["progress"])
        self.replica.restore(restored["replica"], restored["tensors"])
        if at.times > 1:
            self.replica.enlarge(at.times)
        self._laps = [Lap(**lap) for lap in restored["laps"]]
        self._pace.kept(at.train_s, 0.0)
        self._context.remark(f"continued in epoch {at.epoch}, after {at.steps} steps of an earlier attempt")
        if "random" in restored and restored["layout"]["tensor"] == self._context.layout.tensor:
            self.replica.step.loss.copy_(restored["loss"])
            restore_random_state(restored["random"])
        else:  # other ranks continue
            self.replica.step.loss.fill_(restored["mean_loss"])
            torch.manual_seed(derive(self._context.seed, "rank", self.rank_group.data_rank, at.steps))
        return at

    def _branch_off(self) -> Progress:
        """Take over the base's state at the branch point; batch, rate and optimizer settings stay the trial's own."""
        base, tokens = self.settings.branch_base, self.settings.branch_tokens or 0
        state = self._context.branch_point(base, tokens)
        if state is None:
            raise FileNotFoundError(f"trial {base} has no checkpoint after {tokens} tokens")
        self.replica.restore(state["replica"], state["tensors"], branches=True)
        if "random" in state:
            restore_random_state(state["random"])
        before = Progress(**state["progress"])
        return Progress(epoch=before.epoch, steps=before.steps, samples=before.samples, position=float(before.samples))
