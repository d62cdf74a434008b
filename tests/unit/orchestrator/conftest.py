from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.store.record import TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from tests.unit.orchestrator import records

RecordOf = Callable[..., TrialRecord]


@pytest.fixture(scope="session")
def record_of() -> RecordOf:
    """A function that makes a record from what matters to a test; batch axes follow the device batch."""
    return records.record_of


@pytest.fixture
def layout(tmp_path: Path) -> ResultsFolder:
    """A results directory in which nothing has run."""
    layout = ResultsFolder(tmp_path)
    layout.create()
    return layout
