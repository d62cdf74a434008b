import math

import pytest

from orchestrator.tables.recommendation_sentences import below, probability


@pytest.mark.parametrize(
    ("value", "text"), [(0.974, "97%"), (1.0, "over 99%"), (0.0, "below 1%"), (math.nan, "unknown")]
)
def test_a_probability_is_never_0_or_1(value, text):
    assert probability(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.61, "61%"), (0.946, "94.6%"), (0.94997, "94.9%"), (0.001, "below 1%")])
def test_a_probability_below_what_is_needed_reads_as_below(value, text):
    assert below(value, 0.95) == text
