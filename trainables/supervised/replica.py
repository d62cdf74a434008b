"""A model in training: one rank's copy of it, with what feeds it and what a step of it is.

Passes that a rank takes by itself, before the training: how long one takes, and whether it fits into memory.

Recognises a model that does not accept the images of its data: torch's own message names neither.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trainables import inputs, models
from trainables.clock import Clock
from trainables.context import Batch, Context
from trainables.gradient_noise import NoiseWatch, Pace
from trainables.inputs.inputs import Form, Inputs, Part, as_pixels
from trainables.inputs.pause import pause
from trainables.models.batch_norm import own_statistics, synchronises
from trainables.optimizers import optimizers
from trainables.optimizers.schedules import Growth
from trainables.process_group import Gang
from trainables.step import strategies
from trainables.step.compilation import Compiled
from trainables.step.graphed_step import GraphedStep
from trainables.step.shares import INDEPENDENT, fitting, share_by_speed
from trainables.step.stopwatch import Stopwatch
from trainables.step.strategies import Exchange
from trainables.step.training_step import Objective, Precision, Step, TrainingStep, loss_sum
from trainables.supervised.evaluation import Evaluation, Score, Workload
from trainables.supervised.settings import Settings

WARMUP_PASSES = 3
LEAST_PASSES = 10
LEAST_S = 0.5
BALLAST = 3
"""What a step holds besides a pass, in sizes of the parameters: Adam's two moments, and the exchange's buckets."""


class LonePasses:
    """Forward and backward passes of a model that is on its device, and in no wrapper that talks to others."""

    def __init__(
        self, model: nn.Module, part: Part, *, form: Form, precision: Precision, clock: Clock, objective: Objective
    ) -> None:
        self._model, self._part, self._form, self._precision, self._clock = model, part, form, precision, clock
        self._objective = objective

    def pass_s(self, samples: int) -> float:
        """Seconds of one pass over so many samples: the fastest of at least `LEAST_PASSES` in at least `LEAST_S`.

        What else the host does only ever lengthens a pass; a device's own pace is the same in all of them.

        The model is afterwards as it was before; the random numbers that its passes draw are gone.
        """
        with self._unchanged():
            pass_once = self._pass_over(samples)
            for _ in range(WARMUP_PASSES):
                pass_once()
            times = [self._time(pass_once)]
            while len(times) < LEAST_PASSES or sum(times) < LEAST_S:
                times.append(self._time(pass_once))
        return min(times)

    def take_pass(self, samples: int) -> None:
        """One pass with `BALLAST` in memory; the model stays as it was. Raises what a device out of memory raises."""
        with self._unchanged():
            ballast = [torch.empty_like(each) for each in self._model.parameters() for _ in range(BALLAST)]
            self._pass_over(samples)()
            self._clock.read()
            del ballast

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        try:
            with own_statistics(self._model):  # ranks take different numbers of passes, and may run out of memory
                yield
        finally:
            self._model.zero_grad()
            for buffer, before in zip(self._model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def _pass_over(self, samples: int) -> Callable[[], None]:
        form = self._form
        images = form.normalise(as_pixels(self._part.images[:samples], form.device))
        targets = self._part.targets[:samples].to(form.device)

        def pass_once() -> None:
            with self._precision.casting(form.device):
                outputs = self._model(images)
                self._objective.require_fit(outputs, targets)
                loss = loss_sum(outputs, targets)
            loss.backward()

        return pass_once

    def _time(self, pass_once: Callable[[], None]) -> float:
        started = self._clock.read()
        pass_once()
        return self._clock.read() - started


_RAISED = (RuntimeError, ValueError, IndexError)
"""What torch raises for shapes and types that do not fit; what a model's code gets wrong by itself is told well."""


class ShapeMismatchError(ValueError):
    """A model cannot be applied to images of the data's shape."""


@contextmanager
def as_shape_mismatch(model: nn.Module, name: str, input_shape: tuple[int, int, int]) -> Iterator[None]:
    """Raise ShapeMismatchError for an error within, if the model does not take images of `input_shape` (C, H, W).

    `name` is the model's name in the config. If the model takes such images, the original error is raised.
    """
    try:
        yield
    except _RAISED as error:
        why = _why_not(model, input_shape)
        if why is None:
            raise
        shape = "×".join(map(str, input_shape))
        raise ShapeMismatchError(
            f"model {name!r} does not take the data's images, N×C×H×W = N×{shape} of floats: build it from the"
            f" input_shape that it is given, or choose other data ({why})"
        ) from error


def _why_not(model: nn.Module, input_shape: tuple[int, int, int]) -> str | None:
    """What a copy of the model says to two blank images; on the CPU, because a GPU may be what is full or broken."""
    try:
        alone = copy.deepcopy(model).to("cpu", torch.float32)
    except Exception:  # somebody's model cannot be copied, a broken GPU not be read: what was raised before stands
        return None
    try:
        with torch.no_grad():
            alone(torch.zeros(2, *input_shape))
    except _RAISED as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error).strip() else repr(error)
    return None


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
        with as_shape_mismatch(self.model, config["model"]["name"], workload.input_shape):
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
