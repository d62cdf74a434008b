"""Cells that are told apart by what was asked for, and train the same all the same."""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.identity import digest
from sweeps.lr_rule import RULES
from sweeps.trial import TrialSpec

LOOP = "trainables.supervised.training:train"
"""The project's own loop: of a rule that is done before the training it does not look at the name."""


def twins(trials: Iterable[TrialSpec]) -> dict[str, str]:
    """{cell: the first cell whose trainings are the same}, seed by seed and to the last bit; without those first ones.

    At the reference batch most rules give the rate of rule `none`; and twice the rate by a multiplier is what a rule
    may come to at another one.
    """
    first: dict[str, str] = {}
    own: dict[str, str] = {}
    for trial in trials:
        if trial.cell_id not in own:
            own[trial.cell_id] = first.setdefault(_training(trial), trial.cell_id)
    return {cell: other for cell, other in own.items() if other != cell}


def _training(trial: TrialSpec) -> str:
    """All that a cell's ranks are told, but for names, and for what a rule has done already."""
    request, lr = trial.rank_request(0), trial.lr
    named = ("trial_id", "label", "seed", "lr")
    kept = {key: value for key, value in request.items() if key not in named}
    warmup = None if lr.warmup_from == lr.value else [lr.warmup_from, lr.warmup_epochs]
    # Commands and functions of the user's own are told the rule's name, and may follow it in their own way.
    follows = RULES[lr.rule].in_training or trial.trainable != LOOP
    rule = lr.rule if follows else None
    return digest([kept, lr.value, warmup, rule, lr.reference_batch_size, trial.timing])
