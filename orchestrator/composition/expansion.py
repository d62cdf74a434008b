"""Expands the overrides of a multirun into those of its sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

_PLAIN_SWEEPER = "BasicSweeper"
"""Hydra's basic sweeper, which runs every combination; what other sweepers will ask for cannot be known beforehand."""


def is_known(hydra: Mapping[str, Any]) -> bool:
    """Whether Hydra will run exactly the sweeps that the overrides list."""
    sweeper = hydra.get("sweeper") or {}
    return str(sweeper.get("_target_")).endswith(_PLAIN_SWEEPER) and not sweeper.get("params")


def expanded(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each sweep; the given ones unchanged if Hydra cannot parse them."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:  # Hydra reports this itself before running anything
        return [list(overrides)]
    choices = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_discrete_sweep()
        else [given]
        for each, given in zip(parsed, overrides, strict=True)
    ]
    return [list(combination) for combination in product(*choices)]


def meaning(overrides: Sequence[str]) -> frozenset[str]:
    """A normal form of overrides: Hydra escapes and spaces values differently when it writes them."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return frozenset(f"{each.get_key_element()}={each.get_value_element_as_str()}" for each in parsed)
