"""The kept trials of docs/results/published, read and computed independently of the project's code."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import scipy  # its `stats` is slow, and loaded when it is used

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = DOCS / "results" / "published"
_PAGE = (PUBLISHED / "findings.md").read_text()
FINDINGS = " ".join(_PAGE.split())
_NUMBER = re.compile(r"(?<![\w.,-])−?\d[\d,]*(?:\.\d+)?[×%]?(?!\w|-\w)")


@cache
def trials(folder: str) -> list[dict]:
    """Return the last record of each trial."""
    lines = map(json.loads, (PUBLISHED / folder / "journal.jsonl").read_text().splitlines())
    return list({line["value"]["trial_id"]: line["value"] for line in lines if line["kind"] == "finished"}.values())


def by_seed(folder: str, column: str = "samples_per_s", **wanted: object) -> pd.Series:
    """Return a column of the one cell with these axes, by seed."""
    axes = {name.replace("__", "."): value for name, value in wanted.items()}
    cell = [
        trial
        for trial in trials(folder)
        if trial["status"] == "ok"
        and all(trial["axes"].get(name, trial.get(name)) == value for name, value in axes.items())
    ]
    assert cell and len({trial["cell_id"] for trial in cell}) == 1, (folder, axes, len(cell))
    return pd.Series({trial["seed"]: trial["metrics"][column] for trial in cell})


def mean(values: pd.Series) -> float:
    """Geometric."""
    return float(np.exp(np.log(values).mean()))


def interval(values: pd.Series) -> tuple[float, float, float]:
    values = values.dropna()
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return values.mean(), values.mean() - half, values.mean() + half


def ratio(one: pd.Series, other: pd.Series) -> tuple[float, float, float]:
    """Paired by seed."""
    point, lo, hi = np.exp(interval(np.log(one / other)))
    return point, lo, hi


def text(values: tuple[float, ...] | float, digits: int = 2, sign: str = "×", factor: float = 1.0) -> str:
    """`1.14× [0.85, 1.54]`, or the point alone."""
    numbers = [f"{factor * value:.{digits}f}" for value in (values if isinstance(values, tuple) else (values,))]
    point, *ends = [number.replace("-", "−") for number in numbers]
    return f"{point}{sign} [{', '.join(ends)}]" if ends else f"{point}{sign}"


def thousand(value: float, places: int = -2) -> str:
    return f"{round(value, places):,.0f}"


def missing(figures: Iterable[str]) -> list[str]:
    """Return the figures that the findings do not have: numbers in this order in one paragraph or table row.

    Fewer than three numbers could be there by chance, so their wording must be there, too.
    """
    blocks = [_numbers(block) for block in re.split(r"\n\n|\n(?=[|-])", _PAGE)]
    return [
        figure
        for figure in figures
        if not (
            any(_within(_numbers(figure), block) for block in blocks)
            if len(_numbers(figure)) > 2
            else figure in FINDINGS
        )
    ]


def _numbers(block: str) -> list[str]:
    return [number.rstrip(",") for number in _NUMBER.findall(block)]


def _within(part: list[str], whole: list[str]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole)))
