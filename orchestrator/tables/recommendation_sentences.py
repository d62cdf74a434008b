"""Sentences about a recommendation, from the macros of `recommendation.md.j2`: one for each code of a remark."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from orchestrator.decision.choice import LOSS_QUANTILE
from orchestrator.decision.recommendation import Remark
from orchestrator.decision.thresholds import SURE, TIE
from orchestrator.telemetry.timing_gate import FAULTS
from orchestrator.text import numbers
from orchestrator.text.cell_labels import gpus_in_words
from orchestrator.text.numbers import suited

UNBOUNDED = 10.0
"""A bound larger than this multiple of the best cell's objective says nothing, and is not reported."""


def sentence(remark: Remark | None) -> str:
    """Return a remark in words, on one line; empty for None."""
    return filled(remark.code, remark.values) if remark else ""


def probability(value: float, *, short: bool = False) -> str:
    """Return `97%`; never 0% or 100%, which no sample shows."""
    if math.isnan(value):
        return "unknown"
    # Of a few seeds no probability is 0 or 1.
    over, below = ("≥99%", "≤1%") if short else ("over 99%", "below 1%")
    return over if value > 0.99 else below if value < 0.01 else f"{value:.0%}"


def below(value: float, needed: float) -> str:
    """Return `61%`; with a decimal where it would read as the needed one: `94.9%` of 95%."""
    text = probability(value)
    # Rounded down, so that 94.97% is not `95.0%`.
    return f"{math.floor(1000 * value) / 10:.1f}%" if text == f"{needed:.0%}" else text


def filled(macro: str, values: Any) -> str:
    """Return a macro's sentence with these values, on one line."""
    return " ".join(str(getattr(template(), macro)(values)).split())


@cache
def template() -> Any:
    """Return the template's macros; Jinja is set up only once a recommendation is written."""
    # Not autoescaped: the sentences are plain text, which each form escapes for itself.
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters |= {
        "below": below,
        "fact": numbers.fact,
        "gain": lambda gain: numbers.with_interval(gain.value, gain.lo, gain.hi, numbers.times, "×"),
        "g": lambda value: f"{value:g}",
        "percent": numbers.percent,
        "plain": numbers.plain,
        "probability": probability,
        "sentence": sentence,
        "times": numbers.times,
    }
    environment.globals |= {
        "amount": lambda unit, value, *beside: suited(unit, value, *filter(None, beside)).text(value),
        "counted": numbers.counted,
        "faults": FAULTS,
        "infinity": math.inf,
        "gpus": lambda count, on_cpu: gpus_in_words(count, on_cpu=on_cpu),
        "quantile": LOSS_QUANTILE,
        "sure": SURE,
        "tie": TIE,
        "unbounded": UNBOUNDED,
        "with_interval": lambda point, lo, hi: numbers.with_interval(point, lo, hi, numbers.times, "×"),
    }
    return environment.get_template("recommendation.md.j2").module
