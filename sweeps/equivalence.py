"""Twins: cells with different settings that nevertheless train identically."""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.identity import digest
from sweeps.lr_rule import RULES
from sweeps.trial import TrialSpec

LOOP = "trainables.supervised.training:train"
"""The project's own loop, which ignores the name of a rule that is fully applied before training."""


def equivalent_cells(trials: Iterable[TrialSpec]) -> dict[str, str]:
    """{cell: the first cell with bitwise identical training, seed by seed}, without those first cells.

    At the reference batch most rules give the rate of rule `none`, and a multiplier of 2 may give the rate of a rule
    at another batch.
    """
    first: dict[str, str] = {}
    own: dict[str, str] = {}
    for trial in trials:
        if trial.cell_id not in own:
            own[trial.cell_id] = first.setdefault(_training(trial), trial.cell_id)
    return {cell: other for cell, other in own.items() if other != cell}


def _training(trial: TrialSpec) -> str:
    """Everything passed to a cell's ranks, except names and rules that have already been applied."""
    request, lr = trial.rank_request(0), trial.lr
    named = ("trial_id", "label", "seed", "lr")
    kept = {key: value for key, value in request.items() if key not in named}
    warmup = None if lr.warmup_from == lr.value else [lr.warmup_from, lr.warmup_epochs]
    # Commands and the user's own functions receive the rule's name, and may implement it themselves.
    follows = RULES[lr.rule].in_training or trial.trainable != LOOP
    rule = lr.rule if follows else None
    return digest([kept, lr.value, warmup, rule, lr.reference_batch_size, trial.timing])
