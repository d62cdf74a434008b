"""The report as Markdown, with the same contents as `report.html`, and `ReportData`, the input of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from orchestrator.config.schema import value_at
from orchestrator.decision.recommendation import Recommendation, metric_of
from orchestrator.report.plot import Plot
from orchestrator.store.results import Finding
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text import numbers
from orchestrator.text.numbers import one_line
from orchestrator.text.rows import TextTable, not_ok, varying
from sweeps.axes import is_number


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The frames of a sweep, as returned by `analysis.trials.collect`, with its decision and its provenance."""

    trials: pd.DataFrame
    cells: pd.DataFrame
    """At least one row."""
    recommendation: Recommendation | None = None
    curves: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["trial_id", "epoch", "loss"]))
    """The learning curves, as returned by `analysis.curves.curves_frame`."""
    further: Sequence[TextTable] = ()
    """Tables of claims and scaling laws, where the sweep has any."""
    branches: pd.DataFrame | None = None
    """As returned by `tables.critical_batch.branches`; None without branches."""
    driver: Mapping[str, Any] = field(default_factory=dict)
    """The last driver: host, versions, commit, command."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The config that it ran, as of `setup.fingerprint`."""
    findings: Sequence[Finding] = ()
    """Damaged files in the results directory."""

    @property
    def discussed(self) -> list[str | None]:
        """The recommended cell and its baseline, which plots of some cells show first."""
        found = self.recommendation
        return [found.cell_id, found.baseline_cell_id] if found else []

    @property
    def sweep(self) -> str:
        """The sweep's name."""
        return str(self.cells["sweep"].iloc[0])


_SUPERVISED = ("trainables.supervised.training:train", "studies.slow_down:train", "studies.same_batch:train")
"""The trainables that train `model` on `data`."""

_MOST = 50
"""The most lines of a list; the tables hold all."""


def trained(trials: pd.DataFrame, fingerprint: Mapping[str, Any], most: int = 2000) -> str:
    """Return what all trials trained and for how long: `small_cnn on digits, 10 epochs`; axes are left out.

    A command is cut to `most` characters.
    """

    def fixed(key: str) -> Any:
        is_axis = any(f"axes.{axis}" in trials for axis in (key, key.partition(".")[0]))
        return None if is_axis else value_at(fingerprint, f"config.{key}")

    words, target = fixed("trainable.argv"), fixed("trainable._target_")
    if words:
        what = " ".join(map(str, words)) if isinstance(words, list) else str(words)
    else:
        names = (fixed("model.name"), fixed("data.name")) if target in _SUPERVISED else (target,)
        what = " on ".join(map(str, filter(None, names)))
    lengths = ((unit, fixed(f"budget.{unit}")) for unit in ("epochs", "samples", "tokens", "steps", "seconds"))
    length = next((f"{n:,.12g} {unit if n != 1 else unit[:-1]}" for unit, n in lengths if is_number(n)), "")
    return ", ".join(filter(None, (one_line(what, most), length)))


def provenance(
    trials: pd.DataFrame, driver: Mapping[str, Any], fingerprint: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return training, machine, versions, commit and command as (name, value); differing values are listed."""
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
    values = list(dict.fromkeys(map(numbers.fact, column.dropna())))
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "")


def not_ok_lines(cells: pd.DataFrame) -> list[str]:
    """Return the lines on cells that are not ok, and how many more there are."""
    lines = not_ok(cells, varying(cells))
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"{len(lines) - _MOST} more are in summary.csv"]


def document(data: ReportData, plots: Sequence[Plot], decision: str) -> str:
    """Return the whole report; `decision` is the recommendation as Markdown, or empty."""
    findings = [f"- {numbers.plain(finding)}" for finding in data.findings]
    absent = [f"- {plot.title}: {numbers.plain(plot.absent)}" for plot in plots if not plot.spec]
    failed = [numbers.plain(f"- {line}") for line in not_ok_lines(data.cells)]
    facts = provenance(data.trials, data.driver, data.fingerprint)
    machine = [f"| {numbers.plain(name)} | {numbers.plain(value)} |" for name, value in facts]
    claims, others = ([t for t in data.further if (t.name == "claims") is first] for first in (True, False))
    parts = [
        f"# Sweep report: {numbers.plain(data.sweep)}",
        _as_section(decision),
        *(_section(table.title, table.markdown()) for table in claims),
        _section(
            "Damaged or missing files", ["This report uses nothing from them:", "", *findings] if findings else []
        ),
        *(_plot(plot) for plot in plots if plot.spec),
        _section("Not drawn", absent),
        _as_section(speedup_markdown(data.cells)),
        _as_section(accuracy_markdown(data.cells, metric_of(data.recommendation))),
        *(_section(table.title, table.markdown()) for table in others),
        _section("Cells that are not ok", failed),
        _section("Machine, versions and command", ["| what | value |", "|:--|:--|", *machine]),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _as_section(markdown: str) -> str:
    """Return a document as a section of another document: its title is one level lower."""
    return f"#{markdown}" if markdown.startswith("# ") else markdown


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


def _plot(plot: Plot) -> str:
    remarks = [f"- {numbers.plain(remark)}" for remark in plot.remarks]
    image = f"![{plot.title}](report/{plot.name}.png)"
    return _section(plot.title, [numbers.plain(plot.about), "", image, *(["", *remarks] if remarks else [])])
