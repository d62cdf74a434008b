from collections.abc import Callable

import pytest

from orchestrator.store.record import TrialRecord
from orchestrator.store.results_folder import ResultsFolder
from tests.unit.orchestrator import records

RecordOf = Callable[..., TrialRecord]


@pytest.fixture(scope="session")
def record_of():
    """A function that makes a record from what matters to a test; batch axes follow the device batch."""
    return records.record_of


@pytest.fixture
def results_folder(tmp_path):
    """A results directory in which nothing has run."""
    results_folder = ResultsFolder(tmp_path)
    results_folder.create()
    return results_folder
