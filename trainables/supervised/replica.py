"""A model in training: one rank's copy of it, with what feeds it and what a step of it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainables import inputs, models
from trainables.clock import Clock
from trainables.context import Batch, Context
from trainables.inputs.inputs import Inputs
from trainables.inputs.pause import pause
from trainables.models.batch_norm import synchronises
from trainables.noise.adascale import Pace
from trainables.noise.noise_watch import NoiseWatch
from trainables.optimizers import optimizers
from trainables.optimizers.growth import Growth
from trainables.process_group import Gang
from trainables.step import strategies
from trainables.step.compilation import Compiled
from trainables.step.graphed_step import GraphedStep
from trainables.step.micro_batch import fitting
from trainables.step.objective import Objective
from trainables.step.replicas import INDEPENDENT
from trainables.step.shares import share_by_speed
from trainables.step.stopwatch import Stopwatch
from trainables.step.strategy import Exchange
from trainables.step.training_step import Step, TrainingStep
from trainables.supervised.evaluation import Evaluation, Score
from trainables.supervised.lone_passes import LonePasses
from trainables.supervised.misfit import as_misfit
from trainables.supervised.settings import Settings
from trainables.supervised.workload import Workload


class Replica:
    """Trains with the ranks of `gang`, which are one model's; `context.batch` is what they take together.

    Before the first step that batch may change: its shares by speed, its passes by memory.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        context: Context,
        workload: Workload,
        *,
        gang: Gang,
        clock: Clock,
        settled: Batch | None = None,
    ) -> None:
        """`settled` is the batch of an earlier part of this training; None: it is settled now. Raises ValueError."""
        self._config, self._context, self._workload = config, context, workload
        self._gang, self._clock = gang, clock
        self._settings = Settings.of(config["trainable"])
        self._growth = Growth.of(config["schedule"])
        self._objective = Objective(num_classes=workload.num_classes, smoothing=self._settings.label_smoothing)
        self._check_growth()
        self.model = self._build_model()
        with as_misfit(self.model, config["model"]["name"], workload.input_shape):
            pause_s = self._settle(settled)
        self.noise = NoiseWatch(
            self.model,
            context,
            gang,
            wanted=self._settings.noise_scale,
            visible=not self.captures and not workload.precision.scales_loss,
        )
        self.stopwatch = Stopwatch(context.device)
        """Takes the time of its steps' parts."""
        compiled = self._compiled(self.model)
        self._strategy = strategies.prepare(compiled, context, self._exchange())
        self.inputs = self._make_inputs()
        self.pause = pause(context.device, pause_s) if pause_s else None
        self.step = self._make_step()

    @property
    def captures(self) -> bool:
        """Whether steps are captured as CUDA graphs."""
        return self._settings.cuda_graph == "on"

    def pace(self) -> Pace:
        """What the next step is worth."""
        return self.noise.pace()

    def enlarge(self, times: int) -> None:
        """Take steps of so many times the trial's own batch from now on; inputs asked again give such batches."""
        batch = self._growth.enlarged(self._context.batch, times)
        if self._settings.micro_batch == "auto":
            batch = fitting(batch, self._gang, self._lone_passes.take_pass)
        self.inputs.rebatch(batch)
        self.step.enlarge(times, batch.grad_accum_steps)

    def score(self, evaluation: Evaluation) -> Score:
        """The model as it is now, its running statistics those of rank 0."""
        self._strategy.share_buffers()
        return evaluation.score(self.model)

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, between two steps: the same on all of the model's ranks.

        Random numbers are not in it. Running statistics are each rank's own, but only rank 0's are ever used.
        """
        return {"model": self.model.state_dict(), "step": self.step.state(), "noise": self.noise.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Bring that back, before the first step."""
        self.model.load_state_dict(state["model"])
        self.step.restore(state["step"])
        self.noise.restore(state["noise"])

    def close(self) -> None:
        """End the processes that feed it."""
        self.inputs.close()

    def _check_growth(self) -> None:
        largest = self._growth.largest(self._context.batch.global_batch_size)
        if self._growth.milestones and largest > len(self._workload.split.train):
            raise ValueError(
                f"schedule=increase_batch comes to a batch of {largest}, more than the"
                f" {len(self._workload.split.train)} training samples: set schedule.most"
            )
        if self._growth.milestones and (self._settings.noise_scale or self._context.lr.rule == "adascale"):
            raise ValueError("schedule=increase_batch cannot be combined with noise_scale=true or lr_rule=adascale")

    def _build_model(self) -> nn.Module:
        workload = self._workload
        model = models.build(self._config["model"], input_shape=workload.input_shape, num_classes=workload.num_classes)
        if synchronises(model):
            self._check_synchronised()
        layout = torch.channels_last if workload.form.channels_last else torch.contiguous_format
        model.to(workload.form.device, workload.precision.parameters).to(memory_format=layout)
        return model

    def _check_synchronised(self) -> None:
        if self._context.strategy == INDEPENDENT:
            raise ValueError(
                "batch_norm=sync joins the ranks of one model, and strategy=independent trains one on each"
            )
        if self._context.world_size > 1 and self._context.device == "cpu":
            raise ValueError("batch_norm=sync joins ranks on GPUs only: use replica or ghost:SIZE on CPUs")

    def _compiled(self, model: nn.Module) -> nn.Module:
        mode = self._settings.compile
        return model if mode == "off" else Compiled(model, mode, fallback=self._settings.compile_fallback)

    def _exchange(self) -> Exchange:
        wire = torch.bfloat16 if self._settings.exchange == "bf16" else None
        return Exchange(wire=wire, noise=self.noise.gradients, stopwatch=self.stopwatch)

    @property
    def _lone_passes(self) -> LonePasses:
        workload = self._workload
        return LonePasses(
            self.model,
            workload.split.train,
            form=workload.form,
            precision=workload.precision,
            clock=self._clock,
            objective=self._objective,
        )

    def _settle(self, settled: Batch | None) -> float:
        """Settle shares and passes; returns a slowed-down rank's pause a pass, s."""
        context, whole = self._context, self._context.batch
        factor = self._settings.slowed_down(context.rank)
        if settled is not None:
            context.batch = settled
        else:
            self._fit()  # before any pass is timed
            if strategies.follows_speed(context):
                pass_s = self._gang.lone(self._own_pass_s)
                share_by_speed(context, self._gang, factor * pass_s, whole)
                self._fit()  # from the whole again: the shares that had to fit were equal ones
                more = context.batch.grad_accum_steps // whole.grad_accum_steps
                context.summarize({"shares": [more * share for share in context.batch.shares]})
        return self._gang.lone(lambda: (factor - 1) * self._own_pass_s() if factor > 1 else 0.0)

    def _fit(self) -> None:
        """Let a step have as many passes as the ranks' memory wants, where the config says so."""
        if self._settings.micro_batch == "auto":
            self._context.batch = fitting(self._context.batch, self._gang, self._lone_passes.take_pass)
            self._context.summarize({"micro_batch_size": self._context.batch.shares[self._context.rank]})

    def _own_pass_s(self) -> float:
        return self._lone_passes.pass_s(self._context.batch.shares[self._context.rank])

    def _make_inputs(self) -> Inputs:
        feed = self._workload.feed(self._context.batch, self._context.seed)
        return inputs.build(self._settings.input, feed, self._gang, self._settings.loader)

    def _make_step(self) -> Step:
        context = self._context
        if self.captures and not self._strategy.capturable:
            raise ValueError(f"strategy={context.strategy} cannot be captured: set trainable.cuda_graph=off")
        optimizer = optimizers.build(
            self.model, self._config["optimizer"], lr=context.lr.value, capturable=self.captures
        )
        self.noise.watch(optimizer)
        step = TrainingStep(
            self._strategy,
            optimizer,
            precision=self._workload.precision,
            grad_accum_steps=context.batch.grad_accum_steps,
            device=context.device,
            objective=self._objective,
        )
        return GraphedStep(step) if self.captures else step
