"""A small sweep that several of these tests decide."""

import pytest

from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import measured
from tests.unit.orchestrator.records import record_of


@pytest.fixture
def records():
    """6,000 samples at 100, 200 and 300 a second: 60, 30 and 20 s. Four GPUs lose .05, and a rule ran out of memory."""
    fine = [record_of(1, s, metrics=measured(100, 0.9 + s / 100)) for s in range(3)]
    fine += [record_of(2, s, metrics=measured(200, 0.9 + s / 100)) for s in range(3)]
    fine += [record_of(4, s, metrics=measured(300, 0.85 + s / 100)) for s in range(3)]
    return [*fine, *(record_of(4, s, Status.OOM, lr_rule="sqrt", note="out of memory") for s in range(3))]
