"""Throughput of the user's own training step, timed like the steps of shipped trainables."""

from __future__ import annotations

from collections.abc import Callable

from sweeps.trial import FEWEST_WARMUP_STEPS, FEWEST_WINDOW_STEPS, SHORTEST_WARMUP_S, SHORTEST_WINDOW_S
from trainables import process_group
from trainables.context import Context
from trainables.timed_window import Clock, Warmup, measure_window, warm_up

WARMUP = Warmup(steps=FEWEST_WARMUP_STEPS, seconds=SHORTEST_WARMUP_S)


def throughput(
    step: Callable[[], object],
    context: Context,
    *,
    least_s: float = SHORTEST_WINDOW_S,
    least_steps: int = FEWEST_WINDOW_STEPS,
    warmup: Warmup = WARMUP,
) -> dict[str, float]:
    """Time further steps; return `samples_per_s`, `window_s` and `window_steps` for `context.summarize`.

    `step` takes one optimizer step on the next global batch; all ranks call this together. The device is synchronised
    only at the ends of the window, and the slowest rank counts. Below the defaults a timing is not valid.
    """
    rank_group, clock = process_group.join(context), Clock(context.device)

    def take() -> None:
        step()

    with context.phase("warmup"):
        pace = warm_up(take, clock=clock, rank_group=rank_group, warmup=warmup)
    with context.phase("window"):
        window = measure_window(
            take, clock=clock, rank_group=rank_group, least_s=least_s, least_steps=least_steps, pace=pace
        )
    return window.figures(context.batch.global_batch_size)
