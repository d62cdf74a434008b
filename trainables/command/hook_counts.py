"""The training of a command as its processes have counted it: who trained together, how fast, and on what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sweeps.trial import FEWEST_WINDOW_STEPS, SHORTEST_WINDOW_S
from trainables.command.hook.sweep_counts import Counts

SMALLEST_BATCH = 0.6  # a mean below this share of the batch is not due to smaller last batches alone

THREADED = 1.15
"""A process that uses more than this multiple of its cores does with threads what others do with processes."""

NOTEWORTHY = 0.02  # a share of the steps above which steps of other optimizers are told
MISSING = 0.01  # a share of a data set that an epoch may leave out

_PARTS = (0.02, 0.5, 0.9)
"""The parts of the training after which learning rates are compared; the last rate of a schedule may be 0."""

_STALE_S = 2.0  # a process whose last step is this much earlier than the others' took no part in the end


@dataclass(frozen=True, kw_only=True)
class CountedTraining:
    """The counts of all processes that could have trained, by the same names."""

    first: Mapping[str, Counts]  # as they were read first
    last: Mapping[str, Counts]  # as they were read last

    @cached_property
    def _trained(self) -> Mapping[str, Counts]:
        """The counts of the processes that trained to the end, with at least half of the steps of the busiest."""
        processes = self.last.values()
        most = max((counts.whole.steps for counts in processes), default=0)
        last_s = max((counts.at_s for counts in processes), default=0.0)
        patience_s = _STALE_S + 2 * max((counts.whole.step_s for counts in processes), default=0.0)
        latest_s: dict[int, float] = {}
        for counts in processes:
            latest_s[counts.rank] = max(counts.at_s, latest_s.get(counts.rank, 0.0))

        def is_to_the_end(counts: Counts) -> bool:
            # On a busy machine, ranks take the same last step at very different times.
            has_all_steps = counts.connected and counts.whole.steps == most
            # Not of an earlier training by the same command. Processes that share memory all have rank 0.
            is_latest = counts.world == 1 or counts.at_s == latest_s[counts.rank]
            return (has_all_steps and is_latest) or last_s - counts.at_s <= patience_s

        least = max(1, most / 2)
        return {name: c for name, c in self.last.items() if c.whole.steps >= least and is_to_the_end(c)}

    @cached_property
    def trained(self) -> Sequence[Counts]:
        """The counts of the processes that trained to the end."""
        return list(self._trained.values())

    @cached_property
    def _distinct(self) -> Sequence[Counts]:
        """The processes that trained together, one of those with the same samples: tensor parallelism, for example."""
        if not self._connected:  # each by itself
            return self.trained[:1]
        # Without contents nothing shows that ranks repeat one another.
        unknown = [counts for counts in self.trained if counts.content is None]
        return [*{counts.content: counts for counts in self.trained if counts.content is not None}.values(), *unknown]

    @property
    def _connected(self) -> Sequence[Counts]:
        """The processes that exchanged gradients with others."""
        return [counts for counts in self.trained if counts.connected]

    @property
    def _world(self) -> int:
        """The ranks of the largest process group."""
        return max(counts.world for counts in self.trained)

    def took_no_step(self, *, found_nothing: bool) -> bool:
        """Return whether processes prepared a training and none took a step; `found_nothing`: no figure was read."""
        has_prepared = any(counts.optimizers or found_nothing for counts in self.last.values())
        return has_prepared and not any(counts.whole.steps for counts in self.last.values())

    def workers(self, gpus: int, cores: float, *, replicas: int = 1) -> tuple[float | None, str]:
        """Return how many processes or GPUs trained together, and why if fewer than `gpus`; None if unknown."""
        if not self.trained:
            return None, ""
        return self._apart(gpus, replicas) or self._together(gpus, cores)

    def _apart(self, gpus: int, replicas: int) -> tuple[int, str] | None:
        """Return how many processes trained together if others trained beside them, and why; None if none did."""
        world, n_trained, n_distinct = self._world, len(self.trained), len(self._distinct)
        n_connected = len(self._connected)
        weights = {counts.weights for counts in self.last.values() if counts.connected} - {None}
        # Several trainings side by side are each as fast as one, and would look like a speed-up.
        if n_trained > 1 and not n_connected:
            return 1, f"{n_trained} processes trained, each by itself: they had no process group"
        if n_connected > world > 1:
            return world, f"{n_connected} processes trained in separate groups of {world}, as if on a node each"
        # If each GPU has one of the replicas, all have the same weights after the same steps.
        if len(weights) > 1 and replicas == gpus:
            return 1, "the ranks have different weights after the same steps: they exchange no gradients"
        if n_distinct < min(replicas, n_connected):
            return n_distinct, "the ranks train on the same samples"
        return None

    def _together(self, gpus: int, cores: float) -> tuple[int, str]:
        """Return how many processes or GPUs a training used, and why if fewer than `gpus`."""
        connected, world = self._connected, self._world
        processes = len({counts.rank for counts in connected}) if world > 1 else max(1, len(connected))
        # A process may drive several GPUs, and several processes may share one.
        used_gpus = {gpu for counts in self.trained for gpu in counts.gpus}
        # A process without GPUs that uses clearly more than its share of the cores works with threads instead.
        uses_threads = self._busy_cores() > THREADED * cores / gpus * max(1, processes)
        used = min(gpus, len(used_gpus) or (gpus if uses_threads else processes))
        if used_gpus:
            why = f"{used} of {gpus} devices were used, by {processes} process{'es' if processes > 1 else ''}"
        elif world >= gpus:
            why = f"only {used} of {world} ranks took steps to the end"
        else:
            why = f"{used} of {gpus} processes took optimizer steps"
        return used, why if used < gpus else ""

    def _busy_cores(self) -> float:
        """Return how many cores the processes that trained kept busy, without those of their loaders' workers."""
        spans = [(self.first[name], last) for name, last in self._trained.items()]
        return math.fsum(
            (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s) for first, last in spans if last.at_s > first.at_s
        )

    def figures(self, global_batch_size: int | None) -> dict[str, Any]:
        """Return the trial's times and lengths; {} if no process took enough steps."""
        if not self.trained:
            return {}
        one = self.trained[0]
        counted = self.samples_per_step(global_batch_size)
        samples = sum(counts.whole.samples for counts in self._distinct)
        known: dict[str, Any] = {
            "steps": one.whole.steps,
            "samples": samples if counted else one.whole.steps * (global_batch_size or 0),
            "rate_source": "counted" if counted else "assumed" if global_batch_size else None,
            "rates": self.rates,
            "n_params": one.n_params,
            "tokens": sum(counts.whole.tokens for counts in self._distinct),
        }
        figures = {name: value for name, value in known.items() if value}
        if one.loss is not None:
            figures["loss"] = one.loss
        return figures | self._times(counted or global_batch_size, figures.get("tokens", 0))

    def _times(self, samples_per_step: float | None, tokens: int) -> dict[str, float]:
        """Return the time of a step, its window, and the rates and the time of an epoch that follow.

        If the training ended within its warm-up, only the window is returned, with 0 steps.
        """
        later = [counts.later for counts in self.trained]
        # The first epoch has compilation and cold caches; it counts only if there is little else.
        is_enough = all(tally.seconds >= SHORTEST_WINDOW_S and tally.steps >= FEWEST_WINDOW_STEPS for tally in later)
        timed = later if is_enough else [counts.warm for counts in self.trained]
        steps, one = min(tally.steps for tally in timed), self.trained[0]
        if not steps:
            return {"window_s": 0.0, "window_steps": 0}
        # Ranks of a process group that wait for the evaluation of another one count that time, and only that one does
        # not: the shortest time counts. Without a group the slowest process counts.
        is_together = all(counts.world > 1 and counts.connected for counts in self.trained)
        step_s = (min if is_together else max)(tally.step_s for tally in timed)
        times = {"step_s": step_s, "window_s": step_s * steps, "window_steps": steps}
        if samples_per_step and step_s:
            times["samples_per_s"] = samples_per_step / step_s
        if tokens and step_s:
            times["tokens_per_s"] = tokens / one.whole.steps / step_s
        if one.epoch > 1:
            times["epoch_s"] = step_s * one.completed / (one.epoch - 1)
        return times

    def samples_per_step(self, global_batch_size: int | None) -> float | None:
        """Return the mean number of samples in a step of all ranks; None if it was not counted."""
        rows = self._rows_per_step
        # The rows of a model's inputs are samples only if they are as many as the trial's batch.
        is_input = any(counts.is_input for counts in self._distinct)
        if rows and is_input and not (global_batch_size and _is_near(rows, global_batch_size)):
            return None
        return rows

    @property
    def _rows_per_step(self) -> float | None:
        return math.fsum(counts.whole.samples / counts.whole.steps for counts in self._distinct) or None

    @property
    def rates(self) -> list[list[float]]:
        """The learning rates of the parameter groups at the start, in the middle and near the end of the training."""
        points = [point for counts in self.trained[:1] for point in counts.rates]
        if not points:
            return []
        last = points[-1][0]
        nearest = [min(points, key=lambda point: abs(point[0] - part * last)) for part in _PARTS]
        return [[float(f"{rate:.6g}") for rate in point[1:]] for point in nearest]

    @property
    def epochs(self) -> int | None:
        """The epochs that loaders gave batches for; None if unknown, as with one loader for the whole training."""
        begun = max((counts.epoch for counts in self.trained), default=0)
        return begun if begun > 1 else None

    def remarks(self, global_batch_size: int, lr: float) -> Iterator[str]:
        """Yield a line for each value of the trial that the training did not use, and for work that does not count."""
        if not self.trained:
            return
        counts, samples = self.trained[0], self._rows_per_step
        rates = [max(of_group) for of_group in zip(*(point[1:] for point in counts.rates), strict=False)]
        if samples and not _is_near(samples, global_batch_size):
            yield (
                f"a step trained on {samples:.4g} samples on average, and the trial's global batch is "
                f"{global_batch_size}"
            )
        # One group may have another rate on purpose, as biases in their warm-up.
        if rates and not any(0.5 * lr <= rate <= 1.01 * lr for rate in rates):
            yield f"the optimizer's learning rate was at most {max(rates):.4g}, and the trial's is {lr:.4g}"
        steps, all_steps = counts.whole.steps, counts.whole.steps + counts.other_steps
        if counts.other_steps > NOTEWORTHY * steps:
            yield f"{counts.other_steps} of {all_steps} steps trained another model, and do not count"
        if counts.other_optimizer_steps > NOTEWORTHY * steps:
            yield f"{counts.other_optimizer_steps} of {steps} steps were those of another optimizer"
        if counts.gradless:
            yield "the model also runs without gradients in most steps, which counts as training time"
        passes = counts.epoch - 1
        of_an_epoch = math.fsum(process.completed_samples for process in self._distinct) / max(1, passes)
        if passes > 0 and counts.dataset and of_an_epoch < (1 - MISSING) * counts.dataset:
            yield (
                f"an epoch trains on {of_an_epoch:.6g} of {counts.dataset} samples: drop_last, or a sampler,"
                " leaves the rest out"
            )
        # A temporary file is gone by now, and cannot be another trial's.
        for path in sorted({process.saved for process in self.last.values()}):
            if path and Path(path).exists():
                yield f"other trials may save {path}, too: name it with {{trial_dir}} or {{trial_id}}"


def _is_near(samples: float, batch: int) -> bool:
    """Return whether so many samples a step are those of a batch, of which the last of an epoch may be smaller."""
    return SMALLEST_BATCH * batch <= samples <= 1.02 * batch
