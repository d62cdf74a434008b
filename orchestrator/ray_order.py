"""Tune's order of trials, which is the queue's own, but for those that can begin no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler


class Order(FIFOScheduler):  # type: ignore[misc]
    """First come, first served; a trial that was promised a node which is lost since would wait for ever."""

    def __init__(self, stranded: Callable[[], Sequence[Trial]]) -> None:
        """`stranded` tells which trials those are, and takes them back."""
        super().__init__()
        self._stranded = stranded

    def __getstate__(self) -> dict[str, object]:
        """Tune may write a copy of whatever it is given into a state that nobody reads."""
        return {}

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The first that waits."""
        for trial in self._stranded():
            tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)
