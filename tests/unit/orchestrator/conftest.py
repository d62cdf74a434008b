import pytest

from orchestrator.store.results_folder import ResultsFolder


@pytest.fixture
def results_folder(tmp_path):
    """A results directory in which nothing has run."""
    results_folder = ResultsFolder(tmp_path)
    results_folder.create()
    return results_folder
