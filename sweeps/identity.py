"""When two trials, or two cells, are the same: ids that hash everything that can change a result, and cells that train
identically although their settings differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sweeps.axes import flat
from sweeps.lr_rule import RULES
from sweeps.trial import TrialSpec

ID_DIGITS = 16  # hex digits of an id: 64 bits, a chance of 3e-10 of any collision among 10⁵ trials

SHOWN_DIGITS = 8  # digits that tables and messages show: `rerun=[3fa2c1d4]` runs that trial again

COMMAND = "trainables.command.training:train"  # the trainable that runs a command

LOOPS = ("trainables.supervised.training:train", "studies.slow_down:train", "studies.same_batch:train")
"""The project's own loop, which ignores the name of a rule that is fully applied before training, and its variants."""


def digest(value: Any) -> str:
    """Return a hash of JSON values, independent of the order of keys and of writing 1 or 1.0."""
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def without(config: Mapping[str, Any], dotted_keys: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a nested config without these keys (such as paths and display names), which may be absent."""
    result = {key: without(value, ()) if isinstance(value, Mapping) else value for key, value in config.items()}
    for dotted in dotted_keys:
        *parents, leaf = dotted.split(".")
        node: Any = result
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(leaf, None)
    return result


def identity(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a fingerprint that identifies its trials, by dotted key: all but the keys at their default.

    A key that a later version adds, at its default, therefore makes no other trial.
    """
    at_default = {"defaults", *fingerprint["defaults"]}
    return {key: value for key, value in flat(fingerprint) if key not in at_default}


def equivalent_cells(trials: Iterable[TrialSpec]) -> dict[str, str]:
    """Return {cell: the first cell with bitwise identical training, seed by seed}, without those first cells.

    At the reference batch most rules give the rate of rule `none`, and a multiplier of 2 may give the rate of a rule
    at another batch.
    """
    first: dict[str, str] = {}
    own: dict[str, str] = {}
    for trial in trials:
        if trial.cell_id not in own:
            own[trial.cell_id] = first.setdefault(_training_digest(trial), trial.cell_id)
    return {cell: other for cell, other in own.items() if other != cell}


def axes_without_effect(trials: Iterable[TrialSpec], axes: Iterable[str]) -> list[str]:
    """Return those of the axes in which trials differ, although their ranks receive the same."""
    cells = {trial.cell_id: trial for trial in trials}.values()
    digests = {trial.cell_id: _training_digest(trial) for trial in cells}
    without_effect = []
    for axis in axes:
        alike: dict[str, list[str]] = {}
        for trial in cells:
            others = {key: value for key, value in trial.axes.items() if key not in (axis, "seed")}
            alike.setdefault(digest(others), []).append(digests[trial.cell_id])
        several = [group for group in alike.values() if len(group) > 1]
        if several and all(len(set(group)) == 1 for group in several):
            without_effect.append(axis)
    return without_effect


def _training_digest(trial: TrialSpec) -> str:
    """Hash what a cell's ranks receive, without names and rules that are applied before training."""
    gang, lr = trial.gang, trial.lr
    warmup = None if lr.warmup_from == lr.value else [lr.warmup_from, lr.warmup_epochs]
    # Commands and the user's own functions receive the names of rule and strategy, and may implement them themselves.
    is_own_loop = trial.trainable in LOOPS
    layout = trial.layout.plainest if is_own_loop else trial.layout
    rule = lr.rule if RULES[lr.rule].in_training or not is_own_loop else None
    # Names and seeds differ between cells that train alike.
    code = [trial.trainable, trial.config]
    place = [trial.device, gang.ranks, gang.gpus_per_rank, gang.cpus_per_rank, trial.memory_fraction, trial.timing]
    rate = [lr.value, warmup, rule, lr.reference_batch_size]
    return digest([code, place, asdict(layout), asdict(trial.batch), rate])


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    # YAML reads 1 and 1.0 as different types, and both configure the same training.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
