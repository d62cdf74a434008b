"""A module that raises when it is imported."""

NOTHING = 1 / 0
