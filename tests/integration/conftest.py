"""Fixtures for tests of the command line."""

import pytest

from tests.drivers.place import Place


@pytest.fixture
def place(tmp_path):
    """Create a user's folder with the sweep `traced`, and go there; without a report, which takes a second."""
    return Place(tmp_path, "report.html=false")
