"""The training loop with one rank slowed down on purpose, to study GPUs of unequal speed on a pair of equal ones.

The study of unequal pairs (`sweep=published/unequal_pair`) trains with it: `trainable=slow_down`. The slowed rank
pauses before each pass, for `factor - 1` times as long as its passes take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweeps.trial import Batch
from trainables.context import Context
from trainables.inputs.inputs import Minibatch
from trainables.supervised import settings, training
from trainables.supervised.replica import Replica
from trainables.timed_window import device_pause


def train(config: Mapping[str, Any], context: Context) -> None:
    """Train as `trainables.supervised.training:train` does, with the rank of `trainable.slow_down` slowed down."""
    training.train(config, context, replica_type=SlowedReplica)


def errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each error in the config: see `trainables.supervised.settings`."""
    yield from settings.errors(config)
    try:
        slow_down_factor(config["trainable"], rank=0)
    except (ValueError, TypeError) as error:
        yield str(error)


def slow_down_factor(trainable: Mapping[str, Any], rank: int) -> float:
    """Return how many times as long this rank's passes are to take. Raises ValueError."""
    slow_down = trainable.get("slow_down")
    if slow_down is None:
        return 1.0
    if set(slow_down) != {"rank", "factor"} or slow_down["factor"] < 1 or slow_down["rank"] < 0:
        raise ValueError(f"trainable.slow_down={dict(slow_down)} is not a rank, and a factor of at least 1")
    return float(slow_down["factor"]) if slow_down["rank"] == rank else 1.0


class SlowedReplica(Replica):
    """A replica whose passes take longer on the slowed rank; shares by speed follow the slowed speed."""

    def fix_batch(self, fixed: Batch | None) -> None:
        """Settle the batch, and then the length of a pause."""
        self._factor = slow_down_factor(self._config["trainable"], self._context.rank)
        super().fix_batch(fixed)
        pass_s = super().measure_pass_s
        pause_s = self._rank_group.rank_local(lambda: (self._factor - 1) * pass_s() if self._factor > 1 else 0.0)
        self._pause = device_pause(self._context.device, pause_s) if pause_s else None

    def measure_pass_s(self) -> float:
        """Return the seconds of a slowed pass over this rank's share of the batch."""
        return self._factor * super().measure_pass_s()

    def batches(self, start: int) -> Iterator[Minibatch]:
        """Return the minibatches, with a pause before each pass; the pause counts as computing."""
        fetched = super().batches(start)
        return paused(fetched, self._pause) if self._pause else fetched


def paused(batches: Iterator[Minibatch], pause: Callable[[], None]) -> Iterator[Minibatch]:
    """Yield the same minibatches; the device pauses before each.

    The length of the pause is fixed and was measured on the rank alone, so that waiting for other ranks is not
    prolonged. The pause delays the rank's gradients as a slower device would.
    """
    for minibatch in batches:
        pause()
        yield minibatch
