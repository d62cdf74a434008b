"""Schedules of the learning rate, and of the batch size in place of it.

Positions are in samples, not in steps, so that trials with different batches follow the same curve. A warm-up belongs
to the learning-rate rule and multiplies the schedule, which counts from sample 0 with or without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeps.trial import Batch
from trainables.component_registry import factory_of

Schedule = Callable[[float, float], float]
"""`(position, length)` in samples -> the factor on the rate; beyond the end, the factor at the end."""


def resolve(config: Mapping[str, Any]) -> Schedule:
    """Return the schedule `config["name"]` with the config's other keys.

    A name of the form `package.module:schedule` calls the user's function with the fraction of the training that is
    done, 0 to 1, and the config's other keys.

    Raises ValueError for unknown names and keys. The schedule raises it for values outside their range, a negative
    position, and a length that is not positive.
    """
    # A wrong key is reported before the training starts, not at the step that would use it.
    shape, options = factory_of("schedule", config)

    def factor(position: float, length: float) -> float:
        if position < 0 or length <= 0:
            raise ValueError(f"position {position} of length {length}: needs position >= 0 and length > 0")
        return float(shape(min(position / length, 1.0), **options))

    return factor


def constant(progress: float) -> float:
    """Return 1 throughout."""
    return 1.0


def step(progress: float, *, milestones: Sequence[float], gamma: float = 0.1) -> float:
    """Return `gamma` to the power of the milestones reached; milestones are fractions of the training, from 0 to 1.

    Milestones [0.5, 0.8] with gamma 0.1 divide the rate by 10 at epochs 50 and 80 of 100.
    """
    _check_milestones(milestones)
    return float(gamma ** sum(progress >= milestone for milestone in milestones))


def increase_batch(
    progress: float,
    *,
    milestones: Sequence[float],
    gamma: float = 0.1,
    most: int | None = None,
    through: str = "batch",
) -> float:
    """Return 1 throughout: the batch grows where `step` would divide the rate (see `Growth`)."""
    _check_milestones(milestones)
    return 1.0


def cosine(progress: float, *, final: float = 0.0, warmup: float = 0.0) -> float:
    """Return half a period of a cosine from 1 to `final`: Loshchilov and Hutter 2016, equation 5, without restarts.

    Before it the factor rises linearly from 0 to 1 during `warmup`, a share of the training.
    """
    if progress < _share("warmup", warmup):
        return progress / warmup
    return final + (1 - final) * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))) / 2


def wsd(progress: float, *, warmup: float = 0.0, decay: float = 0.2, final: float = 0.0) -> float:
    """Return 1 between a linear rise during `warmup` and a linear fall to `final` during `decay`.

    Both are shares of the training. Hu et al. 2024, "MiniCPM" (warm-up, stable, decay).
    """
    if warmup + _share("decay", decay) > 1:
        raise ValueError(f"warmup {warmup} and decay {decay} are more than the training")
    if progress < _share("warmup", warmup):
        return progress / warmup
    return 1 + (final - 1) * max(0.0, progress - (1 - decay)) / decay if decay else 1.0


def onecycle(progress: float, *, peak: float = 0.3, initial: float = 0.1, final: float = 0.0) -> float:
    """Return a straight line from `initial` up to 1 at the fraction `peak` of the training, then down to `final`.

    Smith and Topin 2017, "Super-convergence", with triangular policy and no separate annealing phase.
    """
    if not 0 < peak < 1:
        raise ValueError(f"peak {peak} is not a share of the training between 0 and 1")
    if progress < peak:
        return initial + (1 - initial) * progress / peak
    return 1 + (final - 1) * (progress - peak) / (1 - peak)


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"{name} {value} is not a share of the training of at least 0 and below 1")
    return value


def _check_milestones(milestones: Sequence[float]) -> None:
    if not isinstance(milestones, Sequence) or isinstance(milestones, str):
        raise ValueError(f"milestones {milestones!r} are not a list of shares of the training")
    outside = [milestone for milestone in milestones if not 0 <= milestone <= 1]
    if outside:
        raise ValueError(f"milestones {outside} are not shares of the training between 0 and 1")


NAME = "increase_batch"
THROUGH = ("batch", "accumulation")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A batch that grows at milestones.

    Smith et al. 2018, "Don't decay the learning rate, increase the batch size", sections 4 and 5. Where a step schedule
    multiplies the rate by gamma, the batch is multiplied by 1/gamma, because the noise of SGD is proportional to rate /
    batch. Assumes a batch far below the size of the training set: at `most` samples the batch stops growing, and the
    rate falls instead, as in section 5.
    """

    milestones: tuple[float, ...] = ()  # fractions of the training, each between 0 and 1
    factor: int = 1  # 1/gamma
    most: int | None = None  # the largest global batch; None: no limit
    through: str = "batch"  # `batch`: each pass has more samples; `accumulation`: each step has more passes

    @staticmethod
    def of(schedule: Mapping[str, Any]) -> Growth:
        """Read the config's `schedule` section; no growth for another schedule. Raises ValueError."""
        if schedule["name"] != NAME:
            return Growth()
        gamma = schedule.get("gamma", 0.1)
        factor = 1 / gamma if gamma > 0 else 0.0
        # A batch is a whole number of samples, and 1/0.1 is not exactly 10.
        if not 2 <= factor < math.inf or abs(factor - round(factor)) > 1e-9 * factor:
            raise ValueError(
                f"schedule.gamma={schedule['gamma']} multiplies no batch by a whole number, as 0.1 or 0.5 do"
            )
        if schedule.get("through", "batch") not in THROUGH:
            raise ValueError(f"schedule.through={schedule['through']!r} is not one of {', '.join(THROUGH)}")
        return Growth(
            milestones=tuple(sorted(schedule["milestones"])),
            factor=round(factor),
            most=schedule.get("most"),
            through=schedule.get("through", "batch"),
        )

    def errors(self, config: Mapping[str, Any], rules: Collection[str]) -> Iterator[str]:
        """Yield why the batch cannot grow with this config and these learning-rate rules."""
        if not self.milestones:
            return
        # A length in steps is in initial batches, and would be used up before its steps are taken.
        if (config.get("budget") or {}).get("steps") is not None:
            yield "schedule=increase_batch needs budget.epochs or budget.samples, not budget.steps"
        if config["trainable"].get("noise_scale") or "adascale" in rules:
            yield "schedule=increase_batch cannot be combined with noise_scale=true or lr_rule=adascale"

    def times(self, progress: float, global_batch_size: int) -> int:
        """Return the batch at this fraction of the training, as a multiple of the trial's batch."""
        return int(self.factor ** self._powers(progress, global_batch_size))

    def rate(self, progress: float, global_batch_size: int) -> float:
        """Return the factor on the learning rate, for milestones at which the batch could not grow."""
        left = self._reached(progress) - self._powers(progress, global_batch_size)
        return float(self.factor) ** -left

    def largest(self, global_batch_size: int) -> int:
        """Return the largest global batch of the training."""
        return global_batch_size * self.times(1.0, global_batch_size)

    def enlarged(self, batch: Batch, times: int) -> Batch:
        """Return the trial's batch, `times` as large."""
        if self.through == "accumulation":
            # The passes keep their size, so that the memory and the compiled code of a pass stay.
            grown = replace(batch, grad_accum_steps=batch.grad_accum_steps * times)
        else:
            grown = replace(batch, shares=tuple(share * times for share in batch.shares))
        return replace(grown, global_batch_size=batch.global_batch_size * times)

    def _reached(self, progress: float) -> int:
        return sum(progress >= milestone for milestone in self.milestones)

    def _powers(self, progress: float, global_batch_size: int) -> int:
        powers = self._reached(progress)
        # At the limit the rate falls instead, by the powers that are left.
        while powers and self.most is not None and global_batch_size * self.factor**powers > self.most:
            powers -= 1
        return powers
