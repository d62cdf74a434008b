"""The project's own training: of image classifiers, and of segmentation, by stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from trainables import device_memory, process_group
from trainables.checkpoints import CheckpointPace
from trainables.clock import Clock, Lap, is_timed_by
from trainables.context import Batch, Context, GivenUpError
from trainables.inputs.inputs import Part
from trainables.step.compilation import count_failures, one_line_errors
from trainables.step.graphed_step import stream_for
from trainables.step.shares import Replicas
from trainables.step.training_step import precision_on
from trainables.supervised.evaluation import Evaluation, Score, Workload
from trainables.supervised.flops import utilisation
from trainables.supervised.loop import Epoch, Loop, Progress, TrainingPlan
from trainables.supervised.replica import Replica, as_shape_mismatch
from trainables.supervised.settings import Settings
from trainables.supervised.timing import Timing, split_of
from trainables.torch_state import derive, random_state, restore_random_state


def train(config: Mapping[str, Any], context: Context) -> None:
    """Train `config["model"]` on `config["data"]` for `config["budget"]`, report every epoch, summarize at the end.

    The other sections are `trainable` (its keys: `Settings`), `optimizer` and `schedule`; `data.augment` is an
    `Augmentation`. A trial that kept a checkpoint goes on from it, with the same result as without an interruption.
    Raises DivergedError, GivenUpError, and ValueError for a config that cannot be.
    """
    settings = Settings.of(config["trainable"])
    with (
        stream_for(settings.cuda_graph, context.device),
        one_line_errors(settings.compile),
        closing(SupervisedTrial(config, context)) as trial,
        as_shape_mismatch(trial.model, config["model"]["name"], trial.input_shape),
    ):
        trial.train()
        if not settings.only_timed:
            trial.judge()
            trial.evaluate()
        if not trial.stopped:
            trial.time()


class SupervisedTrial:
    """One rank's part of a trial."""

    def __init__(self, config: Mapping[str, Any], context: Context) -> None:
        self._context, self._settings = context, Settings.of(config["trainable"])
        self._gang = process_group.join(context)
        self._clock = Clock(context.device)
        self._replicas = Replicas.of(context, self._gang)
        own = self._replicas.context
        torch.manual_seed(own.seed)
        precision = precision_on(self._settings.precision, context.device)
        precision.set_flags(context.device)
        self._workload = Workload.of(config, self._settings, precision, device=context.device, seed=own.seed)
        before = context.restored() if self._settings.checkpoint == "epochs" else None
        settled = Batch(**before["batch"]) if before else None
        gang = self._replicas.gang
        self.replica = Replica(config, own, self._workload, gang=gang, clock=self._clock, settled=settled)
        course = TrainingPlan.of(config, own.lr, self.replica.inputs.feed)
        self._grows = bool(course.growth.milestones)
        self._laps: list[Lap] = []
        self._model_config = config["model"]
        self._epochs: list[Epoch] = []
        """Of this process, which warms up in the first of them."""
        self._pace = CheckpointPace(every_s=self._settings.checkpoint_every_s)
        at = self._go_on(before) if before else Progress()
        self._loop = Loop(self.replica, course, clock=self._clock, gang=self._gang, context=context, at=at)
        if not before:
            torch.manual_seed(derive(own.seed, "rank", own.rank))  # each rank drops out other activations

    @property
    def model(self) -> nn.Module:
        """The rank's own."""
        return self.replica.model

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Of the data's images: C, H, W."""
        return self._workload.input_shape

    @property
    def stopped(self) -> bool:
        """Whether the training was asked to end early."""
        return self._loop.stopped

    def close(self) -> None:
        """End the processes that it has started."""
        self.replica.close()

    def train(self) -> None:
        """Spend the budget, or as much of it as the timing needs; reports each epoch."""
        part = self._workload.split.validation
        validation = self._evaluation(part) if len(part) else None
        for epoch in self._loop.epochs():
            if self.stopped:
                self._keep()  # at once: whoever asks for the end may not wait for an evaluation
            score = self._score(validation) if validation else None
            self._report(epoch, score)
            if not self.stopped and self._settings.checkpoint == "epochs" and self._pace.due(self._loop.at.train_s):
                self._keep()
            if self._settings.only_timed and self._is_timed():
                return

    def judge(self) -> None:
        """GivenUpError where the training came to less than what is worth being looked at any further."""
        bound, reached = self._settings.give_up_below, self._laps[-1].val_accuracy if self._laps else None
        if self.stopped or self._replicas.count > 1:  # which share no accuracy
            return
        if bound is not None and reached is not None and reached < bound:
            raise GivenUpError(f"early stop: val_accuracy {reached:.4f} is below {bound:.4f} after the training")

    def evaluate(self) -> None:
        """Summarize what the training came to; the test set is looked at here, once, and decides nothing."""
        score = self._score(self._evaluation(self._workload.split.test))
        at, replicas = self._loop.at, self._replicas
        self._context.summarize(
            {
                "accuracy": score.accuracy,
                "samples": at.samples * replicas.count,
                "steps": at.steps,
                "n_params": sum(parameter.numel() for parameter in self.model.parameters()),
            }
        )
        replicas.summarize(score.accuracy)
        if self._settings.compile != "off":
            self._context.summarize({"compile_failures": count_failures(allowed=self._settings.compile_fallback)})
        for name, own_gb in device_memory.peak(self._context.device).items():
            (peak_gb,) = self._gang.largest(own_gb)
            self._context.summarize({name: peak_gb})

    def time(self) -> None:
        """Summarize the times, after everything else: further steps may be taken for it."""
        gang, context = self._gang, self._context
        timing = Timing(self._loop, self.replica, self._settings, clock=self._clock, gang=gang, context=context)
        figures = timing.figures(self._laps, self._epochs, self._replicas.count)
        context.summarize(figures)
        speed = figures["samples_per_s"]
        context.summarize(utilisation(self._model_config, self._workload, speed, gang=gang, context=context))

    def _is_timed(self) -> bool:
        """Whether the rest of the training would not change what is timed; where batches grow, all of it is."""
        least_s, least_steps = self._settings.window_s, self._settings.window_steps
        return not self._grows and is_timed_by(self._laps, least_s=least_s, least_steps=least_steps)

    def _report(self, epoch: Epoch, score: Score | None) -> None:
        chosen_by = {"val_accuracy": score.accuracy, "val_loss": score.loss} if score else {}
        self._laps.append(Lap(seconds=epoch.seconds, steps=epoch.steps, val_accuracy=chosen_by.get("val_accuracy")))
        self._epochs.append(epoch)
        noise, at = self.replica.noise.figures(), self._loop.at
        self._context.summarize({"loss": epoch.loss, "epochs": epoch.number} | chosen_by | noise)
        self._context.report(
            {"epoch": epoch.number, "loss": epoch.loss}
            | chosen_by
            | {"epoch_s": epoch.seconds, "samples": at.samples * self._replicas.count, "steps": at.steps}
            | {"lr": epoch.lr}
            | split_of(epoch, on_gpu=self.replica.stopwatch.on_gpu)
            | device_memory.peak(self._context.device)
            | noise
        )

    def _score(self, evaluation: Evaluation) -> Score:
        with self._context.phase("evaluation"):
            return self.replica.score(evaluation)

    def _evaluation(self, part: Part) -> Evaluation:
        return self._workload.evaluation(part, self._replicas.gang, self._settings)

    def _keep(self) -> None:
        """Keep all that the training depends on."""
        if self._settings.checkpoint == "off":
            return
        started = self._clock.read()
        common = {
            "replica": self.replica.state(),
            "progress": asdict(self._loop.at),
            "batch": asdict(self._replicas.context.batch),
            "laps": [asdict(lap) for lap in self._laps],
        }
        own = {"random": random_state(), "loss": self.replica.step.loss}
        if self._replicas.count > 1:
            self._context.checkpoint({}, common | own)
        else:
            self._context.checkpoint(common, own)
        (cost_s,) = self._gang.largest(self._clock.read() - started)
        self._pace.kept(self._loop.at.train_s, cost_s)

    def _go_on(self, before: Mapping[str, Any]) -> Progress:
        """Bring back what was kept; the progress it had come to."""
        at = Progress(**before["progress"])
        self.replica.restore(before["replica"])
        if at.times > 1:
            self.replica.enlarge(at.times)
        self.replica.step.loss.copy_(before["loss"])
        self._laps = [Lap(**lap) for lap in before["laps"]]
        self._pace.kept(at.train_s, 0.0)
        self._context.remark(f"continued in epoch {at.epoch}, after {at.steps} steps of an earlier attempt")
        restore_random_state(before["random"])
        return at
