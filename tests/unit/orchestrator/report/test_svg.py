import re

import pytest

from orchestrator.report import matplotlib
from orchestrator.report.matplotlib import bars_svg, panel_svg, plot_files, swatch_svg
from orchestrator.report.plot import Axis, Bar, Panel, Plot, Series
from orchestrator.report.svg import StyleSheet, inlined

SERIES = Series(
    label="$a_b$", place=0, x=(1, 2, 4), y=(1, 2, 3), tooltips=("one", "<two>", "three"), doubtful=(False, True, False)
)
PLOT = Plot(
    name="p",
    title="$\\frac{",
    about="",
    x=Axis(label="_x$"),
    y=Axis(label="50% $y"),
    legend=("_hidden $a",),
    panels=[Panel(title="$t", series=[SERIES], guides=[((1, 4), (1, 4))])],
)
BARS = Plot(name="b", title="Bars", about="", legend=("data", "rest"), bars=[Bar(label="$one", parts=(0.25, 0.75))])


def inline(svg: bytes, **told: list[str]) -> tuple[str, StyleSheet]:
    sheet = StyleSheet()
    words = {name.replace("_", "-"): each for name, each in told.items()}
    return inlined(svg, sheet, prefix="q", label='a "label" <b>', tooltips=words), sheet


def test_styles_become_classes_with_the_pages_colours() -> None:
    text, sheet = inline(panel_svg(PLOT, PLOT.panels[0]))
    assert "style=" not in text and "<style" not in text and "xmlns" not in text
    assert "var(--series-0)" in sheet.css and "var(--grid)" in sheet.css and "font-family" not in sheet.css
    left = set(re.findall(r"#[0-9a-f]{6}", sheet.css))
    assert not left & {pair[0] for pair in matplotlib.variables().values()}
    assert all(f".{name}" in sheet.css for name in set(re.findall(r'class="(d\d+)"', text)))


def test_sound_and_doubtful_points_have_tooltips() -> None:
    svg = panel_svg(PLOT, PLOT.panels[0])
    text, _ = inline(svg, series_0_sound=["one", "three"], series_0_doubtful=["<two>"])
    assert text.count("<title>") == 3 and "<title>&lt;two&gt;</title>" in text


def test_dollars_and_underscores_stay_as_they_are() -> None:
    text, _ = inline(panel_svg(PLOT, PLOT.panels[0]))
    assert ">_x$<" in text and ">50% $y<" in text
    assert ">_hidden $a<" in plot_files(PLOT)[".svg"].decode()


def test_parts_of_bars_have_tooltips() -> None:
    text, sheet = inline(bars_svg(BARS), bar_0_0=["25%"], bar_0_1=["75%"])
    assert text.count("<title>") == 2 and ">$one<" in text
    assert "var(--series-0)" in sheet.css and "var(--series-1)" in sheet.css
    assert plot_files(BARS)[".png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("plot", [PLOT, BARS])
def test_the_legend_has_signs(plot: Plot) -> None:
    text, sheet = inline(swatch_svg(plot, 0))
    assert "var(--series-0)" in sheet.css and 'role="img"' in text


def test_every_colour_has_a_distinct_name() -> None:
    on_white = [pair[0] for pair in matplotlib.variables().values()]
    assert len(on_white) == len(set(on_white)) and all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in on_white)
