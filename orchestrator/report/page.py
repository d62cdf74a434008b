"""The page: everything escaped, nothing loaded, no script but its own. The only place that uses Jinja."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from orchestrator.decision.recommendation import Recommendation
from orchestrator.journal.soundness import Finding
from orchestrator.report import palette
from orchestrator.report.csv_text import csv_bytes
from orchestrator.report.drawing import bars_svg, narrow_bars_svg, panel_svg, swatch_svg
from orchestrator.report.glance import Tile
from orchestrator.report.inline_svg import StyleSheet, inlined
from orchestrator.report.picture import Panel, Picture
from orchestrator.report.sortable_table import Cell, Column, SortableTable

_HERE = Path(__file__).parent

MOST_EMBEDDED_BYTES = 200_000
"""Of one picture's data in the page; its file beside the page holds all rows."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A section that is a table of text."""

    title: str
    about: Sequence[str]
    table: SortableTable
    remarks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page shows, in its order."""

    sweep: str
    facts: Sequence[tuple[str, str]]
    recommendation: Recommendation | None
    tiles: Sequence[Tile]
    certainty: Sequence[tuple[str, str]]
    behind: str
    """How much may be lost by the choice, in a sentence."""
    gpu_counts: Words | None
    front: Words | None
    claims: Sequence[Words]
    findings: Sequence[Finding]
    pictures: Sequence[Picture]
    further: Sequence[Words]
    """Behind the tables."""
    cells: SortableTable
    trials: SortableTable
    failed: SortableTable
    none_ok: bool
    """Whether no cell has an ok trial: then what failed comes first."""
    command: str
    provenance: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A picture as the template has it."""

    picture: Picture
    legend: Sequence[tuple[Markup, str]]
    panels: Sequence[tuple[str, Markup]]
    csv: str
    """In base64."""


def rendered(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    sheet = StyleSheet()
    shown = [_shown(picture, sheet) for picture in page.pictures if picture.is_drawn]
    absent = [picture for picture in page.pictures if not picture.is_drawn]
    css = _css(environment, sheet)
    js = (_HERE / "page.js").read_text()
    values = {**vars(page), "pictures": shown, "absent": absent}
    return environment.get_template("page.html.j2").render(
        page=values, css=Markup(css), js=Markup(js), policy=_policy(css, js), key=_key, kind=_kind
    )


def _css(environment: Environment, sheet: StyleSheet) -> str:
    colours = {
        theme: Markup(" ".join(f"--{name}: {pair[number]};" for name, pair in palette.variables().items()))
        for number, theme in enumerate(("light", "dark"))
    }
    source = environment.from_string(str(_HERE.joinpath("page.css").read_text()))
    return source.render(colours) + "\n" + sheet.css


def _policy(css: str, js: str) -> str:
    """Nothing but this very style sheet and this very script."""
    own = f"style-src '{_digest(css)}'; script-src '{_digest(js)}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _shown(picture: Picture, sheet: StyleSheet) -> _Shown:
    signs = [
        Markup(inlined(swatch_svg(picture, place), sheet, prefix=f"{picture.name}-l{place}", label="", tooltips={}))
        for place in picture.looks
    ]
    return _Shown(
        picture=picture,
        legend=list(zip(signs, picture.legend, strict=True)),
        panels=[_bars(picture, sheet)]
        if picture.bars
        else [_panel(picture, at, sheet) for at in range(len(picture.panels))],
        csv=base64.b64encode(csv_bytes(picture.data, most=MOST_EMBEDDED_BYTES)).decode(),
    )


def _panel(picture: Picture, index: int, sheet: StyleSheet) -> tuple[str, Markup]:
    panel = picture.panels[index]
    label = ": ".join(filter(None, (picture.title, panel.title)))
    svg = panel_svg(picture, panel)
    return panel.title, Markup(
        inlined(svg, sheet, prefix=f"{picture.name}-{index}", label=label, tooltips=_tooltips(panel))
    )


def _tooltips(panel: Panel) -> Mapping[str, Sequence[str]]:
    """The words of each group of points: drawing makes one of the sound and one of the doubtful points of a series."""
    tooltips: dict[str, Sequence[str]] = {}
    for number, series in enumerate(panel.series):
        doubtful = series.doubtful or (False,) * len(series.x)
        for state, group in ((False, "sound"), (True, "doubtful")):
            points = zip(series.tooltips, series.y, doubtful, strict=False)
            tooltips[f"series-{number}-{group}"] = [
                words for words, y, doubt in points if doubt is state and not math.isnan(y)
            ]
    return tooltips


def _bars(picture: Picture, sheet: StyleSheet) -> tuple[str, Markup]:
    """Drawn twice, for screens and for phones: the style sheet shows one of them."""
    form = ".1%" if picture.x.percent else ".3g"
    tooltips = {
        f"bar-{row}-{place}": [f"{bar.label}, {picture.legend[place]}: {part:{form}}"]
        for row, bar in enumerate(picture.bars)
        for place, part in enumerate(bar.parts)
    }
    drawn = {"wide": bars_svg(picture), "narrow": narrow_bars_svg(picture)}
    return "", Markup("").join(
        Markup('<div class="{}">{}</div>').format(
            name,
            Markup(inlined(svg, sheet, prefix=f"{picture.name}-{name}", label=picture.title, tooltips=tooltips)),
        )
        for name, svg in drawn.items()
    )


def _key(cell: Cell) -> str:
    return "" if isinstance(cell.key, float) and math.isnan(cell.key) else str(cell.key)


def _kind(column: Column, cell: Cell) -> Markup:
    kind = "number" if column.numeric else "words" if len(cell.text) > 24 else "short"
    return Markup(' class="{}"').format(kind)
