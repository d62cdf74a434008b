import pytest

from orchestrator.backends.ray.supervisor import have_result
from sweeps.rank_exit import Cause, RankExit


@pytest.mark.parametrize(
    ("causes", "stopped", "counts"),
    [
        ([Cause.NONE, Cause.NONE], False, True),
        ([Cause.NONE, Cause.NONE], True, False),  # it wrote a checkpoint because its node leaves
        *(([Cause.NONE, cause], False, True) for cause in (Cause.DEVICE_MEMORY, Cause.DIVERGED)),
        *(([Cause.NONE, cause], False, False) for cause in (Cause.ERROR, Cause.CRASH, Cause.NODE, Cause.HANG)),
    ],
)
def test_what_ended_by_itself_counts_on_a_leaving_node(causes, stopped, counts):
    exits = [RankExit(rank=rank, cause=cause, stopped=stopped) for rank, cause in enumerate(causes)]
    assert have_result(exits) is counts
