"""The project's own training: of image classifiers, and of segmentation, by stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch
from torch import nn

from trainables import data, models, optimizers, pipelines, process_group, schedules, strategies
from trainables.augmentation import Augmentation
from trainables.budget import Budget
from trainables.clock import Clock, Lap, Warmup, Window, measure_window, timings, warm_up, window_of_laps
from trainables.compilation import Compiled, count_failures, one_line_errors
from trainables.context import Context
from trainables.evaluation import Evaluation, Score
from trainables.graphed_step import WARMUP_STEPS, GraphedStep, stream_for
from trainables.inputs import Feed, Form, Inputs
from trainables.learning_rate import Rates
from trainables.loop import Epoch, Loop
from trainables.micro_batch import fitting
from trainables.noise_watch import NoiseWatch
from trainables.precision import precision_on
from trainables.probe import Probe
from trainables.seeds import derive
from trainables.settings import Settings
from trainables.shares import share_by_speed
from trainables.slowed_inputs import SlowedInputs
from trainables.split import Part, Split
from trainables.training_step import Step, TrainingStep


def train(config: Mapping[str, Any], context: Context) -> None:
    """Train `config["model"]` on `config["data"]` for `config["budget"]`, report every epoch, summarize at the end.

    The other sections are `trainable` (its keys: `Settings`), `optimizer` and `schedule`; `data.augment` is an
    `Augmentation`. Raises DivergedError, and ValueError for a config that cannot be.
    """
    settings = Settings.of(config["trainable"])
    with (
        stream_for(settings.cuda_graph, context.device),
        one_line_errors(settings.compile),
        closing(SupervisedTrial(config, context)) as trial,
    ):
        laps = trial.train()
        trial.evaluate()
        if not trial.stopped:
            trial.time(laps)


class SupervisedTrial:
    """One rank's model, data and loop."""

    def __init__(self, config: Mapping[str, Any], context: Context) -> None:
        self._config, self._context = config, context
        self._settings = Settings.of(config["trainable"])
        self._gang = process_group.join(context)
        self._precision = precision_on(self._settings.precision, context.device)
        self._precision.set_flags(context.device)
        dataset = data.load(config["data"], device=context.device)
        self._split = Split.of(dataset, val_fraction=self._settings.val_fraction, seed=context.seed)
        self._form = Form(
            device=context.device,
            dtype=self._precision.inputs,
            channels_last=self._settings.memory_format == "channels_last",
            mean=dataset.mean,
            std=dataset.std,
        )
        self.model = self._build_model(dataset.input_shape, dataset.num_classes)
        self._clock = Clock(context.device)
        pause_s = self._settle_shares()
        self._settle_micro_batch()
        self._noise = NoiseWatch(
            self.model,
            context,
            self._gang,
            wanted=self._settings.noise_scale,
            visible=not self._captures and not self._precision.scales_loss,
        )
        self._strategy = strategies.prepare(self._compiled(self.model), context, self._noise.gradients)
        self._inputs = self._make_inputs(pause_s)
        self._loop = self._make_loop()
        torch.manual_seed(derive(context.seed, "rank", context.rank))  # each rank drops out other activations

    @property
    def stopped(self) -> bool:
        """Whether the training was asked to end early."""
        return self._loop.stopped

    def close(self) -> None:
        """End the processes that it has started."""
        self._inputs.close()

    def train(self) -> list[Lap]:
        """Spend the budget; reports each epoch."""
        validation = self._evaluation_of(self._split.validation) if len(self._split.validation) else None
        laps = []
        for epoch in self._loop.epochs():
            score = self._score(validation) if validation else None
            val_accuracy = score.accuracy if score else None
            laps.append(Lap(seconds=epoch.seconds, steps=epoch.steps, val_accuracy=val_accuracy))
            self._report(epoch, score)
        return laps

    def evaluate(self) -> None:
        """Summarize what the training came to; the test set is looked at here, once, and decides nothing."""
        score = self._score(self._evaluation_of(self._split.test))
        self._context.summarize(
            {
                "accuracy": score.accuracy,
                "samples": self._samples,
                "steps": self._loop.steps,
                "n_params": sum(parameter.numel() for parameter in self.model.parameters()),
            }
        )
        if self._settings.compile != "off":
            self._context.summarize({"compile_failures": count_failures(allowed=self._settings.compile_fallback)})
        if self._context.device != "cpu":
            (peak_gb,) = self._gang.largest(torch.cuda.max_memory_allocated() / 2**30)
            self._context.summarize({"peak_memory_gb": peak_gb})

    def time(self, laps: list[Lap]) -> None:
        """Summarize the times, after everything else: further steps may be taken for it."""
        figures = timings(
            laps,
            self._window(laps),
            steps_per_epoch=self._inputs.feed.steps_per_epoch,
            global_batch_size=self._inputs.feed.batch.global_batch_size,  # distinct samples
            target=self._settings.target_accuracy,
        )
        self._context.summarize(figures)

    def _report(self, epoch: Epoch, score: Score | None) -> None:
        chosen_by = {"val_accuracy": score.accuracy, "val_loss": score.loss} if score else {}
        noise = self._noise.figures()
        self._context.summarize({"loss": epoch.loss, "epochs": epoch.number} | chosen_by | noise)
        self._context.report(
            {"epoch": epoch.number, "loss": epoch.loss}
            | chosen_by
            | {"epoch_s": epoch.seconds, "samples": self._samples, "steps": self._loop.steps, "lr": epoch.lr}
            | noise
        )

    def _window(self, laps: list[Lap]) -> Window:
        least_s, least_steps = self._settings.window_s, self._settings.window_steps
        if window := window_of_laps(laps, least_s=least_s, least_steps=least_steps):
            return window
        steps = self._settings.warmup_steps + (WARMUP_STEPS if self._captures else 0)
        warmup = Warmup(steps=steps, seconds=self._settings.warmup_s)
        pace = warm_up(self._loop.step, clock=self._clock, gang=self._gang, warmup=warmup)
        return measure_window(
            self._loop.step,
            clock=self._clock,
            gang=self._gang,
            least_s=least_s,
            least_steps=least_steps,
            pace=pace,
        )

    @property
    def _samples(self) -> int:
        return self._loop.steps * self._inputs.feed.batch.global_batch_size

    def _score(self, evaluation: Evaluation) -> Score:
        self._strategy.share_buffers()
        return evaluation.score(self.model)

    def _evaluation_of(self, part: Part) -> Evaluation:
        return Evaluation(
            part.images,
            part.targets,
            gang=self._gang,
            form=self._form,
            precision=self._precision,
            batch_size=self._settings.eval_batch_size,
        )

    def _build_model(self, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        model = models.build(self._config["model"], input_shape=input_shape, num_classes=num_classes)
        layout = torch.channels_last if self._form.channels_last else torch.contiguous_format
        model.to(self._form.device, self._precision.parameters).to(memory_format=layout)
        return model

    def _compiled(self, model: nn.Module) -> nn.Module:
        mode = self._settings.compile
        return model if mode == "off" else Compiled(model, mode, fallback=self._settings.compile_fallback)

    @property
    def _probe(self) -> Probe:
        return Probe(self.model, self._split.train, form=self._form, precision=self._precision, clock=self._clock)

    def _settle_micro_batch(self) -> None:
        """Take the shares in as many passes as memory asks for, where that is wanted, and say so."""
        context = self._context
        if self._settings.micro_batch == "auto":
            context.batch = fitting(context.batch, self._gang, self._probe.take_pass)
            context.summarize({"micro_batch_size": context.batch.shares[context.rank]})

    def _settle_shares(self) -> float:
        """Let the shares follow the ranks' speeds, where they are to; returns a slowed-down rank's pause a pass, s."""
        rank, factor = self._context.rank, self._settings.slowed_down(self._context.rank)
        probe = self._probe
        if strategies.follows_speed(self._context):
            share_by_speed(self._context, self._gang, factor * probe.pass_s(self._context.batch.shares[rank]))
        return (factor - 1) * probe.pass_s(self._context.batch.shares[rank]) if factor > 1 else 0.0

    def _make_inputs(self, pause_s: float) -> Inputs:
        feed = Feed(
            part=self._split.train,
            form=self._form,
            augmentation=Augmentation(**(self._config["data"].get("augment") or {})),
            batch=self._context.batch,
            seed=self._context.seed,
        )
        inputs = pipelines.build(self._settings.input, feed, self._gang, self._settings.loader)
        return SlowedInputs(inputs, pause_s, self._clock) if pause_s else inputs

    @property
    def _captures(self) -> bool:
        return self._settings.cuda_graph == "on"

    def _make_step(self) -> Step:
        if self._captures and not self._strategy.capturable:
            raise ValueError(f"strategy={self._context.strategy} cannot be captured: set trainable.cuda_graph=off")
        settings = {**self._config["optimizer"], **self._context.lr.optimizer}
        optimizer = optimizers.build(self.model, settings, lr=self._context.lr.value, capturable=self._captures)
        self._noise.watch(optimizer)
        step = TrainingStep(
            self._strategy,
            optimizer,
            precision=self._precision,
            grad_accum_steps=self._context.batch.grad_accum_steps,
            device=self._context.device,
        )
        return GraphedStep(step) if self._captures else step

    def _make_loop(self) -> Loop:
        context, per_epoch = self._context, self._inputs.feed.steps_per_epoch
        global_batch_size = context.batch.global_batch_size
        return Loop(
            self._make_step(),
            self._inputs,
            budget=Budget.of(self._config["budget"], steps_per_epoch=per_epoch, global_batch_size=global_batch_size),
            rates=Rates(
                lr=context.lr,
                schedule=schedules.resolve(self._config["schedule"]),
                warmup_samples=context.lr.warmup_epochs * per_epoch * global_batch_size,
            ),
            clock=self._clock,
            gang=self._gang,
            context=context,
            pace=self._noise.pace,
        )
