"""The report as Markdown: what `report.html` says, for a repository or a pull request.

What the figures of a report come from: training, machine, versions, commit and command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.config.request import value_at
from orchestrator.report.plot import Plot
from orchestrator.report.report_data import ReportData
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text import figures
from orchestrator.text.figures import one_line
from orchestrator.text.rows import not_ok, varying
from sweeps.axes import is_number

_OWN_LOOP = "trainables.supervised.training:train"
"""The trainable of which `model` and `data` say what it trains."""


def trained(trials: pd.DataFrame, fingerprint: Mapping[str, Any], most: int = 2000) -> str:
    """What all trials trained, and for how long: `small_cnn on digits, 10 epochs`; without what is an axis.

    A command is cut to `most` characters.
    """

    def fixed(key: str) -> Any:
        is_axis = any(f"axes.{axis}" in trials for axis in (key, key.partition(".")[0]))
        return None if is_axis else value_at(fingerprint, f"config.{key}")

    words, target = fixed("trainable.argv"), fixed("trainable._target_")
    if words:
        what = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    else:
        names = (fixed("model.name"), fixed("data.name")) if target == _OWN_LOOP else (target,)
        what = " on ".join(map(str, filter(None, names)))
    lengths = ((unit, fixed(f"budget.{unit}")) for unit in ("epochs", "samples", "steps", "seconds"))
    length = next((f"{n:,g} {unit if n != 1 else unit[:-1]}" for unit, n in lengths if is_number(n)), "")
    return ", ".join(filter(None, (one_line(what, most), length)))


def provenance(
    trials: pd.DataFrame, driver: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """As (what, value); values that trials differ in are all told."""
    prefix = "provenance."
    names = [column for column in trials.columns if column.startswith(prefix)]
    found = [("training", trained(trials, fingerprint or {})), ("device", _distinct(trials["device_model"]))]
    found += [(column.removeprefix(prefix).replace("_", " "), _distinct(trials[column])) for column in names]
    packages = driver.get("packages")
    facts = {key: value for key, value in driver.items() if key != "packages"}
    facts |= dict(packages) if isinstance(packages, Mapping) else {}
    known = {key for key, _ in found}
    found += [(str(key).replace("_", " "), str(value)) for key, value in facts.items() if key not in known and value]
    return [(key, one_line(value, 2000)) for key, value in found if value]


def _distinct(column: pd.Series[Any]) -> str:
    values = list(dict.fromkeys(map(figures.fact, column.dropna())))
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "")


_MOST = 50
"""Lines of a list; the tables hold all."""


def document(data: ReportData, plots: Sequence[Plot], decision: str) -> str:
    """The whole report; `decision` is the recommendation as Markdown, empty where there is none."""
    parts = [
        f"# Sweep report: {figures.plain(data.sweep)}",
        _demoted(decision),
        *_further(data, first=True),
        _findings(data),
        *(_plot(plot) for plot in plots if plot.is_drawn),
        _absent([plot for plot in plots if not plot.is_drawn]),
        _demoted(speedup_markdown(data.cells)),
        _demoted(accuracy_markdown(data.cells)),
        *_further(data, first=False),
        _failed(data),
        _machine(data),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _demoted(markdown: str) -> str:
    """A document as a section of another one."""
    return f"#{markdown}" if markdown.startswith("# ") else markdown


def _further(data: ReportData, *, first: bool) -> list[str]:
    """The claims, which come first, or the other tables."""
    tables = [table for table in data.further if (table.name == "claims") is first]
    return ["\n".join([f"## {table.title}", "", *table.markdown()]) for table in tables]


def _findings(data: ReportData) -> str:
    lines = [f"- {figures.plain(finding)}" for finding in data.findings]
    return (
        "\n".join(["## Damaged or missing files", "", "This report uses nothing from them:", "", *lines])
        if lines
        else ""
    )


def _plot(plot: Plot) -> str:
    title = f"## {plot.title}"
    remarks = [f"- {figures.plain(remark)}" for remark in plot.remarks]
    image = f"![{plot.title}](report/{plot.name}.png)"
    about = f"{figures.plain(plot.about)} Data: [{plot.name}.csv](report/{plot.name}.csv)."
    return "\n".join([title, "", about, "", image, *(["", *remarks] if remarks else [])])


def _absent(plots: Sequence[Plot]) -> str:
    lines = [f"- {plot.title}: {figures.plain(plot.absent)}" for plot in plots]
    return "\n".join(["## Not drawn", "", *lines]) if lines else ""


def _failed(data: ReportData) -> str:
    lines = [figures.plain(f"- {line}") for line in not_ok(data.cells, varying(data.cells))]
    more = [f"- {len(lines) - _MOST} more are in summary.csv"] if len(lines) > _MOST else []
    return "\n".join(["## Cells that are not ok", "", *lines[:_MOST], *more]) if lines else ""


def _machine(data: ReportData) -> str:
    facts = provenance(data.trials, data.driver, data.fingerprint)
    rows = [f"| {figures.plain(what)} | {figures.plain(value)} |" for what, value in facts]
    return "\n".join(["## Machine, versions and command", "", "| what | value |", "|:--|:--|", *rows])
