"""Tests of drawn panels and bars, and of the palette for all kinds of colour vision."""

import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from orchestrator.report import matplotlib
from orchestrator.report.matplotlib import draw_bars, draw_panel
from orchestrator.report.plot import Axis, Bar, Panel, Plot, Series


def test_an_isolated_interval_is_a_stroke() -> None:
    lo = (0.1, math.nan, 0.3, 0.4, math.nan, 0.6)
    x, y, hi = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (0.5,) * 6, tuple(each + 0.2 for each in lo)
    axes = Figure().add_subplot()
    series = [Series(label="", place=0, x=x, y=y, lo=lo, hi=hi), Series(label="", place=1, x=x, y=y)]
    draw_panel(axes, Plot(name="", title="", about=""), Panel(series=series))
    (strokes,) = (each for each in axes.collections if isinstance(each, LineCollection))
    ends = [[tuple(point) for point in segment] for segment in strokes.get_segments()]
    assert ends == [[(1.0, 0.1), (1.0, 0.1 + 0.2)], [(6.0, 0.6), (6.0, 0.6 + 0.2)]]


@pytest.mark.parametrize("limits", [{"lo": 1.0}, {"lo": 0.0, "hi": 0.0}])
def test_axis_without_extent_gets_one(limits: dict[str, float]) -> None:
    axes = Figure().add_subplot()
    draw_panel(axes, Plot(name="", title="", about="", y=Axis(label="", **limits)), Panel(series=[]))
    assert axes.get_ylim() == (limits["lo"], limits["lo"] + 1.0)


def test_two_line_labels_above_bars_are_whole() -> None:
    labels = [f"gpus=2, device_batch_size=128, model=resnet50, strategy={each}" for each in ("ddp", "data_parallel")]
    axes = Figure().add_subplot()
    bars = [Bar(label=label, parts=(1.0,)) for label in labels]
    draw_bars(axes, Plot(name="", title="", about="", bars=bars), labels_above=True)
    assert [text.get_text().replace("\n", " ") for text in axes.texts] == labels


SEEN = {
    "with all": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.04741], [-0.01182, 0.04294, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE
Transactions on Visualization and Computer Graphics 15, 2009, at full severity: on linear RGB."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colours: list[str]) -> np.ndarray:
    srgb = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b*, where a difference of 2 is just noticed."""
    ratio = np.clip(rgb, 0, 1) @ XYZ.T / WHITE
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    x, y, z = root.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("theme", [0, 1], ids=["on white", "on black"])
def test_any_two_colours_are_distinguishable(theme: int, eyes: str) -> None:
    seen = lab(linear([pair[theme] for pair in matplotlib.SERIES]) @ np.asarray(SEEN[eyes]).T)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.diag(np.full(len(seen), np.inf))
    assert apart.min() > 15


@pytest.mark.parametrize("theme", [0, 1], ids=["on white", "on black"])
def test_every_colour_has_contrast_with_the_page(theme: int) -> None:
    luminance = linear([pair[theme] for pair in matplotlib.SERIES]) @ XYZ[1]
    paper = float((linear([matplotlib.PAPER[theme]]) @ XYZ[1])[0])
    lighter, darker = np.maximum(luminance, paper), np.minimum(luminance, paper)
    assert ((lighter + 0.05) / (darker + 0.05)).min() >= 2.99  # WCAG 2.2, 1.4.11: 3 for what is not text


@pytest.mark.parametrize("eyes", SEEN)
def test_neighbouring_colours_are_not_both_dark(eyes: str) -> None:
    lightness = lab(linear([pair[0] for pair in matplotlib.SERIES]) @ np.asarray(SEEN[eyes]).T)[:, 0]
    assert np.maximum(lightness[1:], lightness[:-1]).min() > 40
