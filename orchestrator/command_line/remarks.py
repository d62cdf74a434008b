"""Remarks on a valid sweep before it runs: worth knowing, but not mistakes. One line each."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.sections import value_at
from orchestrator.decision.recommendation import NO_OBJECTIVE
from sweeps.axes import Axes
from sweeps.trial import TrialSpec


def setup_remarks(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield remarks on a valid config, the trainable's own last, which is told the GPU counts of these axes."""
    yield from _ignored(config, axes)
    if own := value_at(config, "trainable._remarks_"):
        counts = {"gpus": axes["gpus"]} if "gpus" in axes else {}
        sweep = {**config["sweep"], "axes": {**config["sweep"]["axes"], **counts}}
        yield from pkgutil.resolve_name(own)({**config, "sweep": sweep})


def _ignored(config: Mapping[str, Any], axes: Axes) -> Iterator[str]:
    """Yield a remark on axes that the trainable ignores: their trials differ by chance alone."""
    ignores = value_at(config, "trainable._ignores_") or ()
    several = [axis for axis, values in axes.items() if not isinstance(values, str) and len(values or ()) > 1]
    found = [axis for axis in several if axis in ignores or axis.partition(".")[0] in ignores]
    if found:
        name = str(value_at(config, "trainable._target_")).partition(":")[0]
        which = "each" if len(found) > 1 else "it"
        yield f"{name} ignores {', '.join(found)}: all values of {which} give the same training"


def sweep_remarks(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Yield remarks on the trials of a valid sweep as a whole."""
    batches = {trial.batch.global_batch_size for trial in trials}
    if len(batches) > 1 and value_at(config, "report.objective") != NO_OBJECTIVE:
        yield from _without_reference(config, trials, batches)
        yield from _unequal_work(config)


def _without_reference(config: Mapping[str, Any], trials: Sequence[TrialSpec], batches: set[int]) -> Iterator[str]:
    """Yield a remark if a sweep over batch sizes lacks the one that accuracies are compared with."""
    references = {trial.lr.reference_batch_size for trial in trials}
    by_batch = not {"device_batch_size", "global_batch_size"} & set(value_at(config, "trainable._ignores_") or ())
    if by_batch and len(references) == 1 and not references & batches:
        remark = f"no trial has the reference batch of {references.pop()} (trainable.reference_batch_size)"
        yield f"{remark}, with which accuracies are compared: the most accurate cell stands in for it"


def _unequal_work(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark on a fixed number of steps: more GPUs then do more work instead of finishing sooner."""
    if (steps := value_at(config, "budget.steps")) is not None:
        yield (
            f"budget.steps={steps} is the same number of steps at every batch size: a larger batch (more GPUs with the "
            "same batch each) trains on more samples and ends no sooner; to compare equal work, set budget.samples or "
            "budget.epochs"
        )
