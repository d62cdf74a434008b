import pytest

from orchestrator.driver.attempts import LOST_NODES, is_tried_again, tried_before
from orchestrator.journal.line import Kind, Record
from orchestrator.journal.outcome import Cause


@pytest.mark.parametrize(
    ("cause", "before", "retries", "again"),
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
        (Cause.DEVICE_MEMORY, [], 9, False),
        (Cause.HANG, [], 9, False),
        (Cause.TIME_LIMIT, [], 9, False),
        (Cause.NONE, [], 9, False),
    ],
)
def test_who_gets_another_attempt(cause: Cause, before: list[Cause], retries: int, again: bool) -> None:
    assert is_tried_again(cause, before, retries) is again


def test_what_an_earlier_driver_tried_counts_until_the_trial_ends() -> None:
    def retried(trial_id: str, cause: str) -> Record:
        return Record(kind=Kind.RETRIED, value={"trial_id": trial_id, "cause": cause})

    ended = Record(kind=Kind.FINISHED, value={"trial_id": "a"})
    records = [retried("a", "node"), retried("b", "crash"), ended, retried("a", "error")]
    assert tried_before(records) == {"a": [Cause.ERROR], "b": [Cause.CRASH]}
