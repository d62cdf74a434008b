import pytest

from trainables.checkpoints.checkpoint_pace import CheckpointPace


@pytest.mark.parametrize(("cost_s", "due_s"), [(0.0, 30.0), (0.2, 30.0), (0.5, 50.0)])
def test_checkpoints_take_a_hundredth_of_the_time_at_most(cost_s: float, due_s: float) -> None:
    pace = CheckpointPace(every_s=30.0)
    assert not pace.due(29.9) and pace.due(30.0)
    pace.kept(31.0, cost_s)
    assert not pace.due(31.0 + due_s - 0.1) and pace.due(31.0 + due_s)
