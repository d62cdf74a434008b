import pytest

from orchestrator.schedule.retries import LOST_NODES, is_retried
from sweeps.rank_exit import Cause


@pytest.mark.parametrize(
    ("cause", "before", "limit", "again"),
    [
        (Cause.ERROR, [], 0, False),
        (Cause.ERROR, [], 1, True),
        (Cause.CRASH, [Cause.ERROR], 1, False),
        (Cause.CRASH, [Cause.NODE, Cause.HOST_MEMORY], 1, True),
        (Cause.NODE, [Cause.CRASH] * 3, 0, True),
        (Cause.NODE, [Cause.NODE] * LOST_NODES, 9, False),
        (Cause.DEVICE, [Cause.NODE, Cause.CRASH], 0, True),
        (Cause.DEVICE, [Cause.DEVICE] * LOST_NODES, 9, False),
        (Cause.HOST_MEMORY, [], 0, True),
        (Cause.HOST_MEMORY, [Cause.HOST_MEMORY], 9, False),
        (Cause.PORT, [], 0, True),
        (Cause.PORT, [Cause.PORT], 9, False),
        (Cause.DEVICE_MEMORY, [], 9, False),
        (Cause.HANG, [], 9, False),
        (Cause.TIME_LIMIT, [], 9, False),
        (Cause.NONE, [], 9, False),
    ],
)
def test_cause_and_earlier_failures_decide_on_a_retry(cause, before, limit, again):
    assert is_retried(cause, before, limit) is again
