"""A cell in words: `2 GPUs with a batch of 256 each (512 in all) and the learning rate scaled linearly`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from orchestrator.text import figures
from orchestrator.text.rows import Row, axis, varying
from sweeps.gang import INDEPENDENT, UNEQUAL
from sweeps.lr_rule import RULES

_UNSCALED = "none"


def telling(cells: pd.DataFrame) -> list[str]:
    """The columns that identify a cell of the sweep; the rule only if any cell scales the rate."""
    rule = ["lr_rule"] if (cells["lr_rule"] != _UNSCALED).any() else []
    return ["gpus", "device_batch_size", *rule, *varying(cells)]


def in_words(row: Row, columns: Sequence[str]) -> str:
    """A cell by its values in these columns (see `telling`); further axes as `name=value`."""
    left: dict[str, Any] = {column: row[column] for column in columns}
    gpus, device = left.pop("gpus"), left.pop("device", "cpu")
    what = gpus_in_words(gpus, on_cpu=row["device"] == "cpu") if device == "cpu" else f"{gpus:g} × {device}"
    batch = f" with {_batch(row, left.pop('device_batch_size'))}"
    rate = _rate(left.pop("lr_rule", None), left.pop("lr_multiplier", None))
    named = [f"{axis(column)}={figures.asked(value)}" for column, value in left.items()]
    return ", ".join([what + batch + rate, *named])


def gpus_in_words(gpus: float, *, on_cpu: bool = False) -> str:
    """`1 GPU`, `0.25 GPUs`; without GPUs, worker processes: `2 processes`."""
    return f"{gpus:g} {gpu_word(on_cpu=on_cpu, one=gpus == 1)}"


def gpu_word(*, on_cpu: bool = False, one: bool = False) -> str:
    """`GPU`, `GPUs`, `process` or `processes`."""
    return ("process" if one else "processes") if on_cpu else ("GPU" if one else "GPUs")


def _batch(row: Row, device_batch_size: Any) -> str:
    each, whole = figures.fact(device_batch_size), figures.fact(row["global_batch_size"])
    if row["gpus"] > 1 and row["strategy"] == UNEQUAL:
        return f"a batch of {whole} in unequal shares"
    if row["gpus"] > 1 and row["strategy"] == INDEPENDENT:
        return f"a batch of {each} each (one model per GPU)"
    passes = row["global_batch_size"] / (device_batch_size * max(row["gpus"], 1))
    times = f"{math.ceil(passes)} × " if passes > 1 else ""
    up_to = "" if passes.is_integer() else "up to "  # shares are unequal, and `device_batch_size` is the largest
    in_all = "" if whole == each else f" ({whole} in all)"
    return f"a batch of {times}{up_to}{each}{' each' if row['gpus'] > 1 else ''}{in_all}"


def _rate(rule: str | None, multiplier: float | None) -> str:
    """How the reference learning rate is scaled."""
    if rule is None and multiplier is None:
        return ""
    scaled = "" if rule is None else f" {RULES[rule].in_words}" if rule in RULES else f" by lr_rule={rule}"
    return f" and the learning rate{scaled}{'' if multiplier is None else f' × {multiplier:g}'}"
