"""From the overrides of a multirun to those of each of its sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

_PLAIN_SWEEPER = "BasicSweeper"
"""Hydra's own, which runs every combination; what another one will ask for it does not know itself yet."""


def is_known(hydra: Mapping[str, Any]) -> bool:
    """Whether Hydra's part of the config runs the sweeps that the overrides say, and no others."""
    sweeper = hydra.get("sweeper") or {}
    return str(sweeper.get("_target_")).endswith(_PLAIN_SWEEPER) and not sweeper.get("params")


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each sweep that these stand for; all of them as they are where Hydra cannot read them."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:  # Hydra says so itself, before it runs anything
        return [list(overrides)]
    choices = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_discrete_sweep()
        else [given]
        for each, given in zip(parsed, overrides, strict=True)
    ]
    return [list(combination) for combination in product(*choices)]


def meaning(overrides: Sequence[str]) -> frozenset[str]:
    """The same for overrides that Hydra has written in its own way: it escapes and spaces values differently."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return frozenset(f"{each.get_key_element()}={each.get_value_element_as_str()}" for each in parsed)
