"""The report as Markdown: what `report.html` says, for a repository or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.report.picture import Picture
from orchestrator.report.provenance import provenance
from orchestrator.report.report_data import ReportData
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.text import figures
from orchestrator.text.not_ok import not_ok
from orchestrator.text.rows import varying

_MOST = 50
"""Lines of a list; the tables hold all."""


def document(data: ReportData, pictures: Sequence[Picture], decision: str) -> str:
    """The whole report; `decision` is the recommendation as Markdown, empty where there is none."""
    parts = [
        f"# Sweep report: {figures.plain(data.sweep)}",
        _demoted(decision),
        *_further(data, first=True),
        _findings(data),
        *(_picture(picture) for picture in pictures if picture.is_drawn),
        _absent([picture for picture in pictures if not picture.is_drawn]),
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


def _picture(picture: Picture) -> str:
    title = f"## {picture.title}"
    remarks = [f"- {figures.plain(remark)}" for remark in picture.remarks]
    image = f"![{picture.title}](report/{picture.name}.png)"
    about = f"{figures.plain(picture.about)} Data: [{picture.name}.csv](report/{picture.name}.csv)."
    return "\n".join([title, "", about, "", image, *(["", *remarks] if remarks else [])])


def _absent(pictures: Sequence[Picture]) -> str:
    lines = [f"- {picture.title}: {figures.plain(picture.absent)}" for picture in pictures]
    return "\n".join(["## Not drawn", "", *lines]) if lines else ""


def _failed(data: ReportData) -> str:
    lines = [figures.plain(f"- {line}") for line in not_ok(data.cells, varying(data.cells))]
    more = [f"- {len(lines) - _MOST} more are in summary.csv"] if len(lines) > _MOST else []
    return "\n".join(["## Cells that are not ok", "", *lines[:_MOST], *more]) if lines else ""


def _machine(data: ReportData) -> str:
    facts = provenance(data.trials, data.driver, data.asked)
    rows = [f"| {figures.plain(what)} | {figures.plain(value)} |" for what, value in facts]
    return "\n".join(["## Machine, versions and command", "", "| what | value |", "|:--|:--|", *rows])
