import math

from orchestrator.decision.front import pareto_front
from orchestrator.decision.recommendation import TradeOff


def point(name, time_s, val_accuracy, cost=math.nan):
    return TradeOff(cell_id=name, name=name, time_s=time_s, val_accuracy=val_accuracy, cost=cost)


def names(*points):
    return [each.name for each in pareto_front(points)]


def test_what_nothing_beats_stays_by_time():
    assert names(point("slow", 3, 0.9), point("fast", 1, 0.8), point("beaten", 3, 0.85)) == ["fast", "slow"]


def test_equals_both_stay():
    assert names(point("a", 1, 0.9), point("b", 1, 0.9)) == ["a", "b"]


def test_cost_keeps_a_cell_on_the_front_and_a_missing_figure_decides_nothing():
    assert names(point("a", 1, 0.9, 5), point("b", 2, 0.9, 4)) == ["a", "b"]
    assert names(point("a", 1, math.nan), point("b", 2, 0.9)) == ["a"]
