"""Fixtures shared with the tests of trainables."""

from tests.unit.trainables.conftest import pair

__all__ = ["pair"]
