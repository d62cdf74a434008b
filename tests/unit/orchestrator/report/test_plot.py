import pandas as pd
import pytest

from orchestrator.report.plot import Plot, clipped, doubling, interval, quantity, ranked_panels, spanning, svg


def test_few_powers_have_a_tick_each_and_many_have_some():
    encoding = doubling("gpus", "GPUs", [8, 1, 2, 4])
    lo, hi = encoding["scale"]["domain"]
    assert encoding["axis"]["values"] == [1, 2, 4, 8] and lo < 1 and hi > 8
    assert len(doubling("gpus", "GPUs", [2.0**power for power in range(20)])["axis"]["values"]) <= 7


@pytest.mark.parametrize(("values", "kind"), [([1, 9], None), ([1, 11], "log"), ([0, 11], None), ([], None)])
def test_a_wide_span_is_logarithmic(values, kind):
    assert spanning("t", "time", pd.Series(values, dtype=float))["scale"].get("type") == kind


def test_wide_intervals_do_not_hide_the_points():
    points = pd.Series([0.8, 0.9])
    lo, hi = clipped(points - 5, points, points + 5) or [0, 0]
    assert 0.7 < lo < 0.8 and 0.9 < hi < 1.0
    assert clipped(points[:0], points[:0], points[:0]) is None
    close = pd.Series([3.0, 3.000001])
    assert clipped(close, close, close, least=0.04) == pytest.approx([2.98, 3.02], abs=1e-4)


def test_the_panel_of_the_first_row_is_first_and_its_likes_follow():
    rows = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    titles = [f"{row['a']}{row['b']}" for row in rows]
    assert ranked_panels(rows, titles, ["a", "b"], rows[3]) == [3, 1, 2, 0]
    assert ranked_panels(rows, titles, ["a", "b"], None) == [0, 1, 2, 3]


@pytest.mark.parametrize(("lo", "hi", "arrows"), [(0.2, 0.8, 0), (0.2, 1.5, 1), (-1, 1.5, 2), (None, None, 0)])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_an_interval_beyond_the_axis_has_an_arrow(axis, lo, hi, arrows):
    layers = interval(axis, {axis: quantity("v", "value", domain=[0, 1])}, where="true")
    plot = Plot(name="p", title="p", spec={"layer": layers}, rows=[{"v": 0.5, "v_lo": lo, "v_hi": hi}])
    assert svg(plot).count('opacity="0.6"') == arrows
