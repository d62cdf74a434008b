"""What is worth knowing of what a trial is before any runs, and is no mistake: a line each."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.request import value_at
from orchestrator.decision.recommendation import NO_OBJECTIVE
from sweeps.axes import Axes
from sweeps.trial import TrialSpec


def setup_remarks(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Of a config in which nothing is wrong; what the trainable itself says is asked last."""
    yield from _ignored(config, axes)
    if own := value_at(config, "trainable._remarks_"):
        yield from pkgutil.resolve_name(own)(config)


def reference_remarks(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Of a sweep over batches that leaves out the one that accuracies are compared at."""
    batches = {trial.batch.global_batch_size for trial in trials}
    references = {trial.lr.reference_batch_size for trial in trials}
    matters = value_at(config, "report.objective") != NO_OBJECTIVE
    heeds = not {"device_batch_size", "global_batch_size"} & set(value_at(config, "trainable._ignores_") or ())
    if matters and heeds and len(batches) > 1 and len(references) == 1 and not references & batches:
        told = f"no trial has the reference batch of {references.pop()} (trainable.reference_batch_size)"
        yield f"{told}, with which accuracies are compared: the most accurate cell stands in for it"


def _ignored(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Axes of several values that the trainable says it does not heed: their trials are alike, but for chance."""
    ignores = value_at(config, "trainable._ignores_") or ()
    several = [axis for axis, values in axes.items() if not isinstance(values, str) and len(values or ()) > 1]
    found = [axis for axis in several if axis in ignores or axis.partition(".")[0] in ignores]
    if found:
        name = str(value_at(config, "trainable._target_")).partition(":")[0]
        which = "each" if len(found) > 1 else "it"
        yield f"{name} does not heed {', '.join(found)}: all values of {which} do the same"
