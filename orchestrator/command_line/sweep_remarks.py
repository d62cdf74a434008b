"""What is worth knowing of a sweep's trials together before any runs, and is no mistake: a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.config.request import value_at
from orchestrator.decision.recommendation import NO_OBJECTIVE
from sweeps.trial import TrialSpec

_NAMES_GPUS = ("{gpus}", "{global_batch_size}", "SWEEP_")


def sweep_remarks(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Remarks on a sweep in which nothing is wrong."""
    batches = {trial.batch.global_batch_size for trial in trials}
    if len(batches) > 1 and value_at(config, "report.objective") != NO_OBJECTIVE:
        yield from _without_reference(config, trials, batches)
        yield from _unequal_work(config)
    yield from _one_gpu(config, trials)


def _without_reference(config: Mapping[str, Any], trials: Sequence[TrialSpec], batches: set[int]) -> Iterator[str]:
    """Of a sweep over batches that leaves out the one that accuracies are compared at."""
    references = {trial.lr.reference_batch_size for trial in trials}
    by_batch = not {"device_batch_size", "global_batch_size"} & set(value_at(config, "trainable._ignores_") or ())
    if by_batch and len(references) == 1 and not references & batches:
        remark = f"no trial has the reference batch of {references.pop()} (trainable.reference_batch_size)"
        yield f"{remark}, with which accuracies are compared: the most accurate cell stands in for it"


def _unequal_work(config: Mapping[str, Any]) -> Iterator[str]:
    """Of a length in steps: two GPUs at the same batch each take as many, and so look like a waste."""
    if (steps := value_at(config, "budget.steps")) is not None:
        yield (
            f"budget.steps={steps} is as many steps at every batch: a larger one, and so more GPUs with the same batch "
            "each, trains on more samples and ends no sooner; budget.samples or budget.epochs compare equal work"
        )


def _one_gpu(config: Mapping[str, Any], trials: Sequence[TrialSpec]) -> Iterator[str]:
    """Of a command that is not given its GPUs: rates by the whole batch would show a speed-up where there is none."""
    trainable = config.get("trainable") or {}
    given = f"{trainable.get('argv')} {trainable.get('env')}"
    several = any(trial.batch.devices_per_rank > 1 for trial in trials)
    if several and "argv" in trainable and not any(sign in given for sign in _NAMES_GPUS):
        yield (
            "trainable.argv has no {gpus}: with several GPUs a script for one still uses one, unless it takes all that "
            "it sees or reads SWEEP_GPUS. Start a process for each (torchrun --nproc_per_node={gpus} …), or take "
            "sweep.axes.gpus=[1]"
        )
