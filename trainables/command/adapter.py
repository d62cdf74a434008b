"""Figures and rows of a trial from the hook in its command's processes (`hook/sitecustomize.py`).

Each process that takes optimizer steps has a file with its counts so far, its rank and the GPUs that it uses, and one
with rows of metrics. A command in another language, or in a Python that ignores PYTHONPATH, has neither.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainables.command.process import OutputLines

HOOK = Path(__file__).parent / "hook"
"""The folder that the command gets at the front of its PYTHONPATH."""

FOLDER = "hook"
"""The folder of the files, within the trial's."""

STOP_FILE = "stop_at_step"
LEAST_S, LEAST_STEPS = 2.0, 50
"""The epochs from the second on are timed if they are long enough; else all steps after the warm-up."""

STOP_WITHIN_S = 1.0
"""Ranks look for the step at which to stop every 0.1 s, and write their counts every 0.5 s."""

SMALLEST_BATCH = 0.6
"""A mean below this share of the batch is not due to smaller last batches alone."""

LOOK_EVERY_S = 0.5
THREADED = 1.15
"""A process that uses more than this multiple of its cores does with threads what others do with processes."""

_STALE_S = 2.0
"""A process whose last step is this much earlier than the others' took no part in the end."""


class Adapter:
    """The files of one attempt at a trial."""

    def __init__(self, trial_dir: Path) -> None:
        self.folder = trial_dir / FOLDER
        if self.folder.exists():
            shutil.rmtree(self.folder)  # of an earlier attempt
        self.folder.mkdir(mode=0o700)
        self._files: dict[str, OutputLines] = {}
        self._counts: dict[str, dict[str, Any]] = {}
        """The last counts of each process."""
        self._first: dict[str, dict[str, Any]] = {}
        self._looked_s = -math.inf
        self.framework = ""
        """`transformers` or `lightning`, if their callbacks report the metrics."""

    def look(self, *, now: bool = False) -> bool:
        """Read the counts, at most every LOOK_EVERY_S unless `now`; return whether they have changed."""
        if not now and time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = time.monotonic()
        before = dict(self._counts)
        for path in self.folder.glob("*.json"):
            found = json.loads(path.read_text())
            self._first.setdefault(path.name, found)
            self._counts[path.name] = found
        return before != self._counts

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows written since the last call."""
        for path in self.folder.glob("*.jsonl"):
            file = self._files.setdefault(path.name, OutputLines(path))
            for line in file.new():
                found = json.loads(line)
                self.framework = found.get("framework") or self.framework
                if "row" in found:
                    yield found["row"]

    def has_reported(self, line: str) -> bool:
        """Return whether this line of output is one of Hugging Face's logs, which the callback has reported, too."""
        of_log = "learning_rate" in line or "eval_runtime" in line
        return self.framework == "transformers" and of_log and "train_runtime" not in line

    def remarks(self, global_batch_size: int, lr: float) -> Iterator[str]:
        """Yield a line for each value of the trial that the training did not use."""
        samples = self.samples_per_step
        if samples and not SMALLEST_BATCH * global_batch_size <= samples <= 1.02 * global_batch_size:
            yield (
                f"a step trained on {samples:.4g} samples on average, and the trial's global batch is "
                f"{global_batch_size}"
            )
        if self.lr and not 0.5 * lr <= self.lr <= 1.01 * lr:
            yield f"the optimizer's learning rate was at most {self.lr:.4g}, and the trial's is {lr:.4g}"

    @property
    def _trained(self) -> list[dict[str, Any]]:
        """The counts of the processes that trained to the end, with at least half of the steps of the busiest.

        On a busy machine, ranks take the same last step at very different times: their steps count instead.
        """
        every = list(self._counts.values())
        most = max((each["whole"]["steps"] for each in every), default=0)
        last_s = max((each["at_s"] for each in every), default=0.0)
        pace_s = max((each["whole"]["seconds"] / max(1, each["whole"]["steps"]) for each in every), default=0)
        ranks: dict[int, float] = {}
        for each in every:
            ranks[each["rank"]] = max(each["at_s"], ranks.get(each["rank"], 0.0))

        def is_to_the_end(each: Mapping[str, Any]) -> bool:
            has_all_steps = each["world"] > 1 and each["whole"]["steps"] == most
            is_latest = each["at_s"] == ranks[each["rank"]]  # not of an earlier training by the same command
            return bool(has_all_steps and is_latest) or last_s - each["at_s"] <= _STALE_S + 2 * pace_s

        return [each for each in every if each["whole"]["steps"] >= max(1, most / 2) and is_to_the_end(each)]

    def workers(self, gpus: int, cores: float, *, replicas: int = 1) -> tuple[float | None, str]:
        """Return how many processes or GPUs trained together, and why if fewer than `gpus`; None if unknown.

        If each GPU has one of the `replicas` of the model, all have the same weights after the same steps.
        A process without GPUs that keeps clearly more than its share of `cores` busy works with threads instead.
        """
        trained = self._trained
        if not trained:
            return None, ""
        world = max(each["world"] for each in trained)
        connected = [each for each in trained if each["connected"]]
        if len(trained) > 1 and not connected:
            return 1, f"{len(trained)} processes trained, each by itself: they had no process group"
        weights = {each.get("weights") for each in self._counts.values() if each["connected"]} - {None}
        if len(weights) > 1 and replicas == gpus:
            return 1, "the ranks have different weights after the same steps: they exchange no gradients"
        if self._repeats and replicas == gpus:
            return 1, "the ranks train on the same samples"
        processes = len({each["rank"] for each in connected}) if world > 1 else max(1, len(connected))
        on_gpus = {gpu for each in trained for gpu in each.get("gpus", ())}
        if on_gpus:
            why = f"{len(on_gpus)} of {gpus} GPUs were used, by {processes} process{'es' if processes > 1 else ''}"
            return min(gpus, len(on_gpus)), "" if len(on_gpus) >= gpus else why
        if processes >= gpus or self._busy_cores() > THREADED * cores / gpus * max(1, processes):
            return gpus, ""
        if world >= gpus:
            return processes, f"only {processes} of {world} ranks took steps to the end"
        return processes, f"{processes} of {gpus} processes took optimizer steps"

    def _busy_cores(self) -> float:
        """Return how many cores the processes that trained kept busy, without those of their loaders' workers."""
        firsts = {name: self._first[name] for name in self._counts}
        spent = [(last, firsts[name]) for name, last in self._counts.items() if last in self._trained]
        return math.fsum(
            (last["cpu_s"] - first["cpu_s"]) / (last["at_s"] - first["at_s"])
            for last, first in spent
            if last["at_s"] > first["at_s"]
        )

    def figures(self, global_batch_size: int | None) -> dict[str, float]:
        """Return the trial's times and lengths; {} if no process took enough steps.

        The ranks of a process group take each step together. If one of them evaluates alone, its clock leaves that out.
        The other ranks wait meanwhile, and their clocks include it: so the shortest time counts. Without a process
        group the slowest process counts.
        """
        trained = self._trained
        if not trained:
            return {}
        later = [each["later"] for each in trained]
        is_enough = all(each["seconds"] >= LEAST_S and each["steps"] >= LEAST_STEPS for each in later)
        timed = later if is_enough else [each["warm"] for each in trained]
        steps, whole_steps = min(each["steps"] for each in timed), trained[0]["whole"]["steps"]
        found: dict[str, float] = {"steps": whole_steps}
        samples_per_step = self.samples_per_step or global_batch_size
        if self.samples_per_step:
            found["samples"] = sum(each["whole"]["samples"] for each in self._replicas)
        elif global_batch_size:
            found["samples"] = whole_steps * global_batch_size
        tokens = sum(each["whole"]["tokens"] for each in self._replicas)
        if tokens:
            found["tokens"] = tokens
        if not steps:
            return found
        is_together = all(each["world"] > 1 and each["connected"] for each in trained)
        step_s = (min if is_together else max)(each["seconds"] / each["steps"] for each in timed)
        found |= {"step_s": step_s, "window_s": step_s * steps, "window_steps": steps}
        if samples_per_step and step_s:
            found["samples_per_s"] = samples_per_step / step_s
        if tokens and step_s:
            found["tokens_per_s"] = tokens / whole_steps / step_s
        if (epochs := trained[0]["epoch"] - 1) > 0:
            found["epoch_s"] = step_s * trained[0]["completed"] / epochs
        return found

    @property
    def _replicas(self) -> list[dict[str, Any]]:
        """The processes that trained together: only one of several that trained each by itself."""
        trained = self._trained
        return trained if any(each["connected"] for each in trained) and not self._repeats else trained[:1]

    @property
    def _repeats(self) -> bool:
        """Return whether several ranks with all weights took the same samples, as without a distributed sampler."""
        connected = [each for each in self._trained if each["connected"] and each.get("weights") is not None]
        contents = {each.get("content") for each in connected}
        return len(connected) > 1 and len(contents) == 1 and None not in contents

    @property
    def samples_per_step(self) -> float | None:
        """The mean number of samples in a step of all ranks; None if no loader of PyTorch gave them."""
        counts = [each["whole"] for each in self._replicas]
        samples = math.fsum(each["samples"] / each["steps"] for each in counts)
        return samples or None

    @property
    def lr(self) -> float | None:
        """The highest learning rate of a step; None if unknown."""
        return max((each["lr"] for each in self._trained), default=0.0) or None

    @property
    def epochs(self) -> int | None:
        """The epochs that loaders gave batches for; None if unknown, as with one loader for the whole training."""
        begun = max((each["epoch"] for each in self._trained), default=0)
        return begun if begun > 1 else None

    def took_no_step(self, *, found_nothing: bool) -> bool:
        """Return whether processes prepared a training and none took a step.

        `found_nothing` is whether the output has no figure either: then the import of torch is preparation enough.
        """
        processes = list(self._counts.values())
        if any(each["whole"]["steps"] for each in processes):
            return False
        return any(each["optimizers"] for each in processes) or (found_nothing and bool(processes))

    def ask_to_stop(self) -> bool:
        """Name the step at which all ranks stop; return whether the command's framework can."""
        self.look(now=True)
        if not self.framework or not self._trained:
            return False
        counts: list[Mapping[str, Any]] = [each["whole"] for each in self._trained]
        pace_s = min(each["seconds"] / max(1, each["steps"]) for each in counts) or STOP_WITHIN_S
        at = max(each["steps"] for each in counts) + math.ceil(STOP_WITHIN_S / pace_s) + 2
        part = self.folder / f"{STOP_FILE}.part"
        part.write_text(str(at))
        part.rename(self.folder / STOP_FILE)
        return True
