import math

import pytest

from orchestrator.tables.sentences import probability


@pytest.mark.parametrize(
    ("value", "text"), [(0.974, "97%"), (1.0, "over 99%"), (0.0, "below 1%"), (math.nan, "unknown")]
)
def test_a_probability_is_never_0_or_1(value: float, text: str) -> None:
    assert probability(value) == text
