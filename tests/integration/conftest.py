"""Where the tests of the command line stand."""

import pytest

from tests.drivers.place import Place


@pytest.fixture
def place(tmp_path):
    """A folder of a user's own, with the sweep `traced`; without a report, which takes a second."""
    return Place(tmp_path, "report.html=false")
