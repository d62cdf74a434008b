"""A model in training: one rank's copy of the model, its inputs, and its optimizer step.

Before the training, rank-local passes measure how fast a rank is and whether a pass fits into its memory.
`as_shape_mismatch` recognises a model that does not accept the images of its data, which torch's message does not say.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sweeps.layout import is_independent
from sweeps.trial import Batch
from trainables import inputs, models, process_group
from trainables.context import Context
from trainables.gradient_noise import NoiseWatch
from trainables.inputs.inputs import Inputs, Minibatch
from trainables.models import convert_to_float8, recompute_blocks
from trainables.models.batch_norm import own_statistics, synchronises
from trainables.optimizers import optimizers
from trainables.optimizers.schedules import Growth
from trainables.process_group import RankGroup
from trainables.step import strategies
from trainables.step.compilation import BLOCKS, Compiled, compile_blocks
from trainables.step.graphed_step import GraphedStep
from trainables.step.objective import Objective, TokenLoss, loss_sum
from trainables.step.sharding import divide_layers, free_gathered, shard, without_communication
from trainables.step.shares import fitting, share_by_speed
from trainables.step.stopwatch import Stopwatch
from trainables.step.strategies import Exchange
from trainables.step.training_step import TrainingStep
from trainables.supervised.evaluation import Evaluation, Score
from trainables.supervised.settings import TrainingSettings
from trainables.supervised.workload import Workload
from trainables.tensors import join, split
from trainables.timed_window import Clock

if TYPE_CHECKING:
    from trainables.shared_tensors import SharedTensors

MODEL = "model"  # the first part of the names of a model's tensors in a checkpoint


class Replica:
    """A rank's part of a model that the ranks of `rank_group` train together; `context.batch` is their common batch.

    Before the first step that batch may change: its shares by speed, its number of passes by memory.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        settings: TrainingSettings,
        context: Context,
        workload: Workload,
        *,
        rank_group: RankGroup,
        clock: Clock,
        fixed: Batch | None = None,
    ) -> None:
        """`fixed` is the batch of an earlier part of this training; None: choose one now. Raises ValueError."""
        self._config, self._context, self._workload = config, context, workload
        # Not the context's: with strategy=independent each rank is a separate gang.
        self._rank_group, self._clock = rank_group, clock
        self._settings = settings
        self._growth = Growth.of(config["schedule"])
        self._objective = Objective(
            num_classes=workload.num_classes,
            smoothing=self._settings.label_smoothing,
            of_tokens=workload.sequence_length is not None,
        )
        self._check_growth()
        self.model = self._build_model()
        # Before the model is wrapped: passes of a wrapped one would wait for the other ranks.
        self.passes = RankLocalPasses(self.model, workload, clock=clock, objective=self._objective)
        with as_shape_mismatch(self.model, config["model"]["name"], workload.input_shape):
            self.fix_batch(fixed)
        self.noise = NoiseWatch(
            self.model,
            context,
            rank_group,
            wanted=self._settings.noise_scale,
            visible=not (self.captures or workload.precision.scales_loss or context.layout.is_sharded),
        )
        self.stopwatch = Stopwatch(context.device)  # measures what the time of a step is spent on
        self._strategy = self._apply_strategy()
        # Only now are the shares final, which the pipeline of a rank depends on.
        self.inputs = self.build_inputs()
        self.step = self._build_step()

    @property
    def captures(self) -> bool:
        """True if steps are captured as CUDA graphs."""
        return self._settings.cuda_graph == "on"

    def fix_batch(self, fixed: Batch | None) -> None:
        """Choose the ranks' shares of a batch and the number of passes, or take over a batch that is `fixed`."""
        context, whole = self._context, self._context.batch
        if fixed is not None:
            context.batch = fixed
            return
        self._fit_memory()  # before any pass is timed
        if context.layout.shares_follow_speed:
            share_by_speed(context, self._rank_group, self._rank_group.rank_local(self.measure_pass_s), whole)
            self._fit_memory()  # from the whole batch again: the shares that had to fit were equal ones
            more = context.batch.grad_accum_steps // whole.grad_accum_steps
            context.summarize({"shares": [more * share for share in context.batch.shares]})

    def measure_pass_s(self) -> float:
        """Return the seconds of a pass over this rank's share of the batch."""
        return self.passes.pass_s(self._context.batch.shares[self._rank_group.data_rank])

    def build_inputs(self) -> Inputs:
        """Return the rank's input pipeline."""
        feed = self._workload.feed(self._context.batch, self._context.seed)
        return inputs.build(self._settings.input, feed, self._rank_group, self._settings.loader)

    def batches(self, start: int) -> Iterator[Minibatch]:
        """Return the minibatches from sample `start` of the training on, without end; their fetching is timed."""
        return self.stopwatch.fetching(self.inputs.minibatches(start))

    def enlarge(self, times: int) -> None:
        """Change the batch to so many times the trial's initial batch; call `batches` again afterwards."""
        # From the initial batch every time, so that rounding does not add up over milestones.
        batch = self._growth.enlarged(self._context.batch, times)
        if self._settings.micro_batch == "auto":
            batch = fitting(batch, self._rank_group, self.passes.take_pass)
        self.inputs.rebatch(batch)
        self.step.enlarge(times, batch.grad_accum_steps)

    def score(self, evaluation: Evaluation) -> Score:
        """Evaluate the present model, with rank 0's running statistics."""
        self._strategy.share_buffers()
        score = evaluation.score(self.model)
        free_gathered(self.model)
        return score

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what the next step depends on, except random numbers, and its tensors by name.

        Both are the same on all of the model's ranks, or its parts. Running statistics differ between ranks, but only
        rank 0's are ever used.
        """
        # Tensors go to the checkpoint by name, so that another number of ranks can read its own parts.
        of_model, weights = split(self.model.state_dict(), MODEL)
        of_step, moments = self.step.state()
        return {"model": of_model, "step": of_step, "noise": self.noise.state()}, weights | moments

    def restore(self, state: Mapping[str, Any], tensors: SharedTensors, *, branches: bool = False) -> None:
        """Restore the state before the first step; one that `branches` off keeps its own optimizer settings."""
        _, weights = split(self.model.state_dict(), MODEL)
        tensors.load(weights)
        self.model.load_state_dict(join(state["model"], weights, MODEL))
        self.step.restore(state["step"], tensors, own_settings=branches)
        if not branches:  # noise depends on the batch
            self.noise.restore(state["noise"])

    def close(self) -> None:
        """End the worker processes of the inputs."""
        self.inputs.close()

    def _check_growth(self) -> None:
        largest = self._growth.largest(self._context.batch.global_batch_size)
        samples = self._workload.feed(self._context.batch, self._context.seed).epoch_samples
        if self._growth.milestones and largest > samples:
            raise ValueError(
                f"schedule=increase_batch comes to a batch of {largest}, more than the {samples} training samples:"
                " set schedule.most"
            )

    def _build_model(self) -> nn.Module:
        workload, context = self._workload, self._context
        model = models.build(
            self._config["model"],
            input_shape=workload.input_shape,
            num_classes=workload.num_classes,
            device=workload.form.device,
        )
        if synchronises(model) and is_independent(context.layout.strategy):
            raise ValueError(
                "batch_norm=sync joins the ranks of one model, and strategy=independent trains one on each"
            )
        if synchronises(model) and context.world_size > 1 and context.device == "cpu":
            raise ValueError("batch_norm=sync joins ranks on GPUs only: use replica or ghost:SIZE on CPUs")
        layout = torch.channels_last if workload.form.channels_last else torch.contiguous_format
        # The order matters from here on: layers are replaced before they are divided, and all of that comes before
        # sharding, which fixes the parameters.
        model.to(workload.form.device, workload.precision.parameters).to(memory_format=layout)
        if self._settings.fp8 != "off":
            convert_to_float8(model, self._settings.fp8, context.device)
        if context.layout.tensor > 1:
            divide_layers(model, process_group.mesh(context.layout, context.device)["tensor"])
        if self._settings.activation_checkpointing != "off":
            recompute_blocks(model, self._settings.activation_checkpointing)
        if context.layout.is_sharded:
            mesh = process_group.mesh(context.layout, context.device)
            sends = workload.precision.parameters
            if self._settings.exchange == "bf16":
                sends = torch.bfloat16
            elif sends.itemsize < 4:
                # Sums of many gradients would lose their small terms in half formats.
                sends = torch.float32
            shard(model, context.layout, mesh, computes_in=workload.precision.gathers, sends=sends)
        return model

    def _fit_memory(self) -> None:
        """With `micro_batch: auto`, divide a step into as many passes as the ranks' memory requires."""
        if self._settings.micro_batch == "auto":
            self._context.batch = fitting(self._context.batch, self._rank_group, self.passes.take_pass)
            self._context.summarize({"micro_batch_size": self._context.batch.shares[self._rank_group.data_rank]})

    def _apply_strategy(self) -> strategies.Strategy:
        """Compile the model if wanted, and wrap it for its ranks."""
        settings, model = self._settings, self.model
        if self._objective.of_tokens:
            model = TokenLoss(model, smoothing=settings.label_smoothing)
        if settings.compile == BLOCKS:
            compile_blocks(self.model)
            if isinstance(model, TokenLoss):
                model.loss = torch.compile(loss_sum, dynamic=False)
        elif settings.compile != "off":
            model = Compiled(model, settings.compile)
        wire = torch.bfloat16 if settings.exchange == "bf16" else None
        exchange = Exchange(wire=wire, noise=self.noise.gradients, stopwatch=self.stopwatch)
        return strategies.prepare(model, self._context, exchange)

    def _build_step(self) -> TrainingStep:
        context = self._context
        if self.captures and (reason := self._strategy.uncapturable):
            name = context.layout.strategy
            raise ValueError(f"strategy={name} needs trainable.cuda_graph=off: {reason}")
        optimizer = optimizers.build(
            self.model, self._config["optimizer"], lr=context.lr.value, capturable=self.captures
        )
        self.noise.watch(optimizer)
        kind = GraphedStep if self.captures else TrainingStep
        return kind(
            self._strategy,
            optimizer,
            precision=self._workload.precision,
            grad_accum_steps=context.batch.grad_accum_steps,
            device=context.device,
            objective=self._objective,
            clip_grad_norm=self._settings.clip_grad_norm,
        )


WARMUP_PASSES = 3
MIN_PASSES = 10
MIN_S = 0.5
STEP_TENSORS = 3
"""What a step keeps in memory besides a pass, in sizes of the parameters: Adam's moments, the exchange's buckets."""


class RankLocalPasses:
    """Forward and backward passes that one rank takes alone, to measure them; the model is in no wrapper yet."""

    def __init__(self, model: nn.Module, workload: Workload, *, clock: Clock, objective: Objective) -> None:
        self._model, self._workload, self._clock, self._objective = model, workload, clock, objective

    def pass_s(self, samples: int) -> float:
        """Return the seconds of a pass: the fastest of at least `MIN_PASSES` in at least `MIN_S`.

        The model stays as it was; the random numbers that the passes draw are used up.
        """
        with self._unchanged():
            take_pass = self._prepare(samples)
            for _ in range(WARMUP_PASSES):
                take_pass()
            times: list[float] = []
            while len(times) < MIN_PASSES or sum(times) < MIN_S:
                started = self._clock.read()
                take_pass()
                times.append(self._clock.read() - started)
        # Other work of the host can only make a pass slower.
        return min(times)

    def take_pass(self, samples: int) -> None:
        """Take a pass with `STEP_TENSORS` in memory; the model stays as it was. Raises the out-of-memory error."""
        with self._unchanged():
            reserved = [
                torch.empty_like(parameter) for parameter in self._model.parameters() for _ in range(STEP_TENSORS)
            ]
            self._prepare(samples)()
            # Reading the clock waits for the device, so that running out of memory shows here.
            self._clock.read()
            del reserved

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        try:
            # Ranks take different numbers of passes, and may run out of memory.
            with own_statistics(self._model), without_communication(self._model):
                yield
        finally:
            self._model.zero_grad()
            for buffer, before in zip(self._model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    def _prepare(self, samples: int) -> Callable[[], None]:
        form, part = self._workload.form, self._workload.split.train
        inputs, targets = part.take(slice(samples))
        inputs, targets = form.normalise(form.place(inputs)), targets.to(form.device)

        def take_pass() -> None:
            with self._workload.precision.casting(form.device):
                outputs = self._model(inputs)
                self._objective.require_fit(outputs, targets)
                loss = loss_sum(outputs, targets)
            loss.backward()

        return take_pass


_SHAPE_ERRORS = (RuntimeError, ValueError, IndexError)
"""What torch raises for shapes and types that do not fit; other errors of a model's code are clear as they are."""


class ShapeMismatchError(ValueError):
    """A model cannot be applied to images of the data's shape."""


@contextmanager
def as_shape_mismatch(model: nn.Module, name: str, input_shape: tuple[int, ...]) -> Iterator[None]:
    """Raise ShapeMismatchError for an error within, if the model does not take images of `input_shape` (C, H, W).

    `name` is the model's name in the config. If the model takes such images, the original error is raised, as for
    sequences.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # a copy of the model would need memory, too
    except _SHAPE_ERRORS as error:
        reason = _why_rejected(model, input_shape) if len(input_shape) > 1 else None
        if reason is None:
            raise
        shape = "×".join(map(str, input_shape))
        raise ShapeMismatchError(
            f"model {name!r} does not take the data's images, N×C×H×W = N×{shape} of floats: build it from the"
            f" input_shape that it is given, or choose other data ({reason})"
        ) from error


def _why_rejected(model: nn.Module, input_shape: tuple[int, ...]) -> str | None:
    """Return the error of a copy of the model for two blank images; None if it takes them, or cannot be copied."""
    try:
        # On the CPU: a GPU may be full or broken after the first error.
        alone = copy.deepcopy(model).to("cpu", torch.float32)
    except Exception:  # not every model can be copied, and a broken GPU cannot be read
        return None
    try:
        with torch.no_grad():
            alone(torch.zeros(2, *input_shape))
    except _SHAPE_ERRORS as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error).strip() else repr(error)
    return None
