"""A claim about a sweep, as written in its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.decision.claim_expression import Claimed
from sweeps.number import is_number

KEYS = ("sentence", "expression", "margin", "about", "needs_seeds", "needs_epochs")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about the sweep."""

    sentence: str
    expression: str
    margin: float = 0.0
    """In the units of both sides."""
    about: str = ""
    """What it is about, or who stated it."""
    needs_seeds: int = 2
    needs_epochs: float = 0.0

    @staticmethod
    def of(given: Any) -> Claim:
        """Read a claim from a config. Raises ValueError with what is wrong with it."""
        if not isinstance(given, Mapping):
            raise ValueError(f"a claim must be a mapping with {', '.join(KEYS)}, not {given!r}")
        unknown = [key for key in given if key not in KEYS]
        if unknown:
            raise ValueError(f"a claim has no key {unknown[0]!r}; its keys are {', '.join(KEYS)}")
        if not given.get("sentence") or not given.get("expression"):
            raise ValueError("a claim needs a sentence and an expression")
        claim = Claim(**{key: value for key, value in given.items() if value is not None})
        for key in ("margin", "needs_seeds", "needs_epochs"):
            value = getattr(claim, key)
            if not is_number(value) or value < 0:
                raise ValueError(f"{key} must be a number of at least 0, not {value!r}")
        if Claimed.parse(str(claim.expression)).order == "==" and claim.margin <= 0:
            raise ValueError("a claim of equality needs a margin above 0")
        return claim
