import math

import pytest

from orchestrator.report.plot import decade_axis, epoch_axis, fewer, power_axis


def test_fewer_keeps_both_ends() -> None:
    kept, remarks = fewer(list(range(100)), "gpus")
    assert (kept[0], kept[-1], len(kept)) == (0, 99, 8) and remarks
    assert fewer([1, 2], "gpus") == ([1, 2], [])


def test_axes_hold_all_values() -> None:
    axis = power_axis("GPUs", [8, 1, 2, 4])
    assert axis.ticks == (1, 2, 4, 8) and axis.lo < 1 and axis.hi > 8
    assert power_axis("GPUs", [4]).ticks == (4,)
    decades = decade_axis("s", 0.02, 3.0)
    assert decades.ticks == pytest.approx((0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)) and decades.hi > 3
    assert math.isclose(decade_axis("s", 1e-9, 1e9).ticks[1] / decade_axis("s", 1e-9, 1e9).ticks[0], 1e4)


def test_few_epochs_have_one_tick_each() -> None:
    assert (epoch_axis([1, 1, 1]).ticks, epoch_axis([1]).lo, epoch_axis([1]).hi) == ((1,), 0.5, 1.5)
    assert epoch_axis([1, 2, 3, 2]).ticks == (1, 2, 3)
    assert epoch_axis(range(100)).ticks == () == epoch_axis([0.5, 1]).ticks
