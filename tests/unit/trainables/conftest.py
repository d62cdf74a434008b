import pytest

from tests.unit.trainables.ranks import Processes


@pytest.fixture(scope="session")
def pair():
    """Two warm processes for every test with two ranks."""
    processes = Processes(2)
    yield processes
    processes.close()
