"""Figures and rows of a trial from the hook in its command's processes (`hook/sitecustomize.py` starts it).

Each process that could train has a file with its `Counts` so far, and one with rows of metrics.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sweeps.trial import FEWEST_WINDOW_STEPS, SHORTEST_WINDOW_S
from trainables.command.hook.sweep_counts import Counts
from trainables.command.hook.sweep_files import STOP_FILE
from trainables.command.output_lines import OutputLines

HOOK = Path(__file__).parent / "hook"  # the folder that the command gets at the front of its PYTHONPATH
FOLDER = "hook"  # the folder of the files, within the trial's

STOP_WITHIN_S = 1.0  # ranks look for the step at which to stop every 0.1 s, and write their counts every 0.5 s
SMALLEST_BATCH = 0.6  # a mean below this share of the batch is not due to smaller last batches alone

LOOK_EVERY_S = 0.5
THREADED = 1.15
"""A process that uses more than this multiple of its cores does with threads what others do with processes."""

NOTEWORTHY = 0.02  # a share of the steps above which steps of other optimizers are told
MISSING = 0.01  # a share of a data set that an epoch may leave out

_PARTS = (0.02, 0.5, 0.9)
"""The parts of the training after which learning rates are compared; the last rate of a schedule may be 0."""

_STALE_S = 2.0  # a process whose last step is this much earlier than the others' took no part in the end


class Adapter:
    """The files of one attempt at a trial."""

    def __init__(self, folder: Path, *, is_on: bool = True) -> None:
        """`is_on`: whether the command's processes load the hook."""
        self.folder, self._is_on = folder, is_on
        if self.folder.is_dir():
            shutil.rmtree(self.folder)  # of an earlier attempt
        if is_on:
            self.folder.mkdir(mode=0o700)
        self._rows: dict[str, OutputLines] = {}
        self._texts: dict[str, str] = {}  # the last file of each process, as it was read
        self._counts: dict[str, Counts] = {}
        self._first: dict[str, Counts] = {}
        self._looked_s = -math.inf

    def look(self, *, now: bool = False) -> dict[str, str]:
        """Read the counts, at most every LOOK_EVERY_S unless `now`; return those that have changed, {process: text}."""
        if not now and time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return {}
        self._looked_s = time.monotonic()
        # Most processes write twice a second, and most looks come sooner.
        texts = {path.name: path.read_text() for path in self.folder.glob("*.json") if path.is_file()}
        changed = {process: text for process, text in texts.items() if text != self._texts.get(process)}
        for process, text in changed.items():
            self.take(process, text)
        return changed

    def take(self, process: str, text: str) -> None:
        """Take the counts of a process, which may be on another node."""
        counts = Counts.of_json(text)
        self._texts[process], self._counts[process] = text, counts
        self._first.setdefault(process, counts)

    @property
    def has_steps(self) -> bool:
        """Return whether any process took a step."""
        return any(counts.whole.steps for counts in self._counts.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows written since the last call."""
        for path in self.folder.glob("*.jsonl"):
            lines = self._rows.setdefault(path.name, OutputLines(path))
            yield from map(json.loads, lines.new())

    @property
    def framework(self) -> str:
        """`transformers` or `lightning`, if its callbacks report the metrics."""
        return max((counts.framework for counts in self._counts.values()), default="")

    def has_reported(self, line: str) -> bool:
        """Return whether this line of output is one of Hugging Face's logs, which the callback has reported, too."""
        of_log = "learning_rate" in line or "eval_runtime" in line
        return self.framework == "transformers" and of_log and "train_runtime" not in line

    def remarks(self, global_batch_size: int, lr: float) -> Iterator[str]:
        """Yield a line for each value of the trial that the training did not use, and for work that does not count."""
        trained = self._trained
        if not trained:
            return
        counts = trained[0]
        samples = self._rows_per_step
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
        for path in sorted({counts.saved for counts in self._counts.values()}):
            if path and Path(path).exists():
                yield f"other trials may save {path}, too: name it with {{trial_dir}} or {{trial_id}}"

    @property
    def _trained(self) -> list[Counts]:
        """The counts of the processes that trained to the end, with at least half of the steps of the busiest."""
        processes = list(self._counts.values())
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

        return [counts for counts in processes if counts.whole.steps >= max(1, most / 2) and is_to_the_end(counts)]

    def workers(self, gpus: int, cores: float, *, replicas: int = 1) -> tuple[float | None, str]:
        """Return how many processes or GPUs trained together, and why if fewer than `gpus`; None if unknown."""
        trained = self._trained
        if not trained:
            return None, ""
        world = max(counts.world for counts in trained)
        connected = [counts for counts in trained if counts.connected]
        # Several trainings side by side are each as fast as one, and would look like a speed-up.
        if len(trained) > 1 and not connected:
            return 1, f"{len(trained)} processes trained, each by itself: they had no process group"
        if len(connected) > world > 1:
            return world, f"{len(connected)} processes trained in separate groups of {world}, as if on a node each"
        # If each GPU has one of the replicas, all have the same weights after the same steps.
        weights = {counts.weights for counts in self._counts.values() if counts.connected} - {None}
        if len(weights) > 1 and replicas == gpus:
            return 1, "the ranks have different weights after the same steps: they exchange no gradients"
        if len(self._distinct) < min(replicas, len(connected)):
            return len(self._distinct), "the ranks train on the same samples"
        processes = len({counts.rank for counts in connected}) if world > 1 else max(1, len(connected))
        # A process may drive several GPUs, and several processes may share one.
        used_gpus = {gpu for counts in trained for gpu in counts.gpus}
        if used_gpus:
            why = f"{len(used_gpus)} of {gpus} devices were used, by {processes} process{'es' if processes > 1 else ''}"
            return min(gpus, len(used_gpus)), "" if len(used_gpus) >= gpus else why
        # A process without GPUs that uses clearly more than its share of the cores works with threads instead.
        if processes >= gpus or self._busy_cores() > THREADED * cores / gpus * max(1, processes):
            return gpus, ""
        if world >= gpus:
            return processes, f"only {processes} of {world} ranks took steps to the end"
        return processes, f"{processes} of {gpus} processes took optimizer steps"

    def _busy_cores(self) -> float:
        """Return how many cores the processes that trained kept busy, without those of their loaders' workers."""
        trained = self._trained
        spans = [(self._first[name], counts) for name, counts in self._counts.items() if counts in trained]
        return math.fsum(
            (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s) for first, last in spans if last.at_s > first.at_s
        )

    def figures(self, global_batch_size: int | None) -> dict[str, Any]:
        """Return the trial's times and lengths; {} if no process took enough steps."""
        trained = self._trained
        if not trained:
            return {}
        later = [counts.later for counts in trained]
        # The first epoch has compilation and cold caches; it counts only if there is little else.
        is_enough = all(tally.seconds >= SHORTEST_WINDOW_S and tally.steps >= FEWEST_WINDOW_STEPS for tally in later)
        timed = later if is_enough else [counts.warm for counts in trained]
        steps, whole_steps = min(tally.steps for tally in timed), trained[0].whole.steps
        counted = self.samples_per_step(global_batch_size)
        samples_per_step = counted or global_batch_size
        counted_samples = sum(counts.whole.samples for counts in self._distinct)
        tokens = sum(counts.whole.tokens for counts in self._distinct)
        known: dict[str, Any] = {
            "steps": whole_steps,
            "samples": counted_samples if counted else whole_steps * (global_batch_size or 0),
            "rate_source": "counted" if counted else "assumed" if samples_per_step else None,
            "rates": self.rates,
            "n_params": trained[0].n_params,
            "tokens": tokens,
        }
        figures = {name: value for name, value in known.items() if value}
        if trained[0].loss is not None:
            figures["loss"] = trained[0].loss
        if not steps:
            return figures
        # Ranks of a process group that wait for the evaluation of another one count that time, and only that one does
        # not: the shortest time counts. Without a group the slowest process counts.
        is_together = all(counts.world > 1 and counts.connected for counts in trained)
        step_s = (min if is_together else max)(tally.step_s for tally in timed)
        figures |= {"step_s": step_s, "window_s": step_s * steps, "window_steps": steps}
        if samples_per_step and step_s:
            figures["samples_per_s"] = samples_per_step / step_s
        if tokens and step_s:
            figures["tokens_per_s"] = tokens / whole_steps / step_s
        if (epochs := trained[0].epoch - 1) > 0:
            figures["epoch_s"] = step_s * trained[0].completed / epochs
        return figures

    @property
    def _distinct(self) -> list[Counts]:
        """The processes that trained together, one of those with the same samples: tensor parallelism, for example."""
        trained = self._trained
        if not any(counts.connected for counts in trained):  # each by itself
            return trained[:1]
        # Without contents nothing shows that ranks repeat one another.
        unknown = [counts for counts in trained if counts.content is None]
        return [*{counts.content: counts for counts in trained if counts.content is not None}.values(), *unknown]

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
        points = [point for counts in self._trained[:1] for point in counts.rates]
        if not points:
            return []
        last = points[-1][0]
        nearest = [min(points, key=lambda point: abs(point[0] - part * last)) for part in _PARTS]
        return [[float(f"{rate:.6g}") for rate in point[1:]] for point in nearest]

    @property
    def epochs(self) -> int | None:
        """The epochs that loaders gave batches for; None if unknown, as with one loader for the whole training."""
        begun = max((counts.epoch for counts in self._trained), default=0)
        return begun if begun > 1 else None

    def took_no_step(self, *, found_nothing: bool) -> bool:
        """Return whether processes prepared a training and none took a step; `found_nothing`: no figure was read."""
        has_prepared = any(counts.optimizers or found_nothing for counts in self._counts.values())
        return has_prepared and not self.has_steps

    def is_absent(self, processes: Mapping[int, str]) -> bool:
        """Return whether one of these processes, given by name, is a Python that has not loaded the hook."""
        pythons = [pid for pid, name in processes.items() if name.startswith("python")]
        return self._is_on and any(not (self.folder / f"{pid}.started").exists() for pid in pythons)

    def last_step(self, *, nodes: int) -> int | None:
        """Return the step at which all ranks can stop; None if the command's framework cannot."""
        self.look(now=True)
        trained = self._trained
        if not self.framework or not trained:
            return None
        pace_s = min(counts.whole.step_s for counts in trained) or STOP_WITHIN_S
        within_s = STOP_WITHIN_S if nodes == 1 else STOP_WITHIN_S + 2 * LOOK_EVERY_S
        return max(counts.whole.steps for counts in trained) + math.ceil(within_s / pace_s) + 2

    def stop_at(self, step: int) -> None:
        """Have the processes of this node stop at this step."""
        # A rank that reads half a number would stop at another step than the rest.
        part = self.folder / f"{STOP_FILE}.part"
        part.write_text(str(step))
        part.rename(self.folder / STOP_FILE)


def _is_near(samples: float, batch: int) -> bool:
    """Return whether so many samples a step are those of a batch, of which the last of an epoch may be smaller."""
    return SMALLEST_BATCH * batch <= samples <= 1.02 * batch
