"""What Ray's own metrics are told of a trial."""

import pytest

from orchestrator.backends.on_ray import metrics
from orchestrator.journal.outcome import Outcome
from sweeps.status import Status
from tests.contract.trials import trial


@pytest.mark.parametrize(("told", "paces"), [(1000, [1000.0]), ("fast", []), (None, []), (True, [])])
def test_a_pace_that_is_no_number_is_not_told(
    told: object, paces: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes nothing else, and a trainable of somebody's own may say what it likes."""
    found = metrics.Metrics()
    heard: list[float] = []
    monkeypatch.setattr(found._pace, "set", lambda value, tags: heard.append(value))
    found.finished(trial("t", "quick"), Outcome(status=Status.OK, wall_s=1.0, metrics={"samples_per_s": told}))
    assert heard == paces
