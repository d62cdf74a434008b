"""What is drawn into one coordinate system."""

import math

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from orchestrator.report.marks import draw_bars, draw_panel
from orchestrator.report.picture import Bar, Panel, Picture, Series


def test_an_interval_beside_points_without_one_is_a_stroke_where_a_band_has_no_width() -> None:
    lo = (0.1, math.nan, 0.3, 0.4, math.nan, 0.6)
    x, y, hi = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (0.5,) * 6, tuple(each + 0.2 for each in lo)
    axes = Figure().add_subplot()
    series = [Series(label="", place=0, x=x, y=y, lo=lo, hi=hi), Series(label="", place=1, x=x, y=y)]
    draw_panel(axes, Picture(name="", title="", about=""), Panel(series=series))
    (strokes,) = (each for each in axes.collections if isinstance(each, LineCollection))
    ends = [[tuple(point) for point in segment] for segment in strokes.get_segments()]
    assert ends == [[(1.0, 0.1), (1.0, 0.1 + 0.2)], [(6.0, 0.6), (6.0, 0.6 + 0.2)]]


def test_labels_above_bars_are_whole_where_two_lines_hold_them() -> None:
    labels = [f"gpus=2, device_batch_size=128, model=resnet50, strategy={each}" for each in ("ddp", "data_parallel")]
    axes = Figure().add_subplot()
    bars = [Bar(label=label, parts=(1.0,)) for label in labels]
    draw_bars(axes, Picture(name="", title="", about="", bars=bars), labels_above=True)
    assert [text.get_text().replace("\n", " ") for text in axes.texts] == labels
