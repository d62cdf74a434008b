import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import figures


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.01234, "0.0123"), (1.0, "1.00"), (98.74, "98.7"), (99.96, "100"), (12345.6, "12,346"), (0.0, "0.00")],
)
def test_numbers_have_the_digits_that_matter(value: float, told: str) -> None:
    assert figures.number(value) == told


def test_intervals() -> None:
    assert figures.with_interval(1.871, 1.714, 2.041, figures.times, "×") == "1.87× [1.71, 2.04]"
    assert figures.with_interval(0.934, 0.857, 1.02, figures.percent, "%") == "93% [86, 102]"
    assert figures.with_interval(1.871, math.nan, math.nan, figures.times, "×") == "1.87×"
    assert figures.with_interval(math.nan, math.nan, math.nan, figures.times, "×") == ""
    assert figures.plus_minus(0.9712, 0.9669, 0.9755) == "0.971 ± 0.004"
    assert figures.plus_minus(0.9712, 0.962, 0.9755) == "0.971 [0.962, 0.976]", "a bootstrapped one has two halves"
    assert figures.plus_minus(0.9712, math.nan, math.nan) == "0.971"
    assert figures.plus_minus(math.nan, math.nan, math.nan) == ""


@given(st.text())
def test_no_text_breaks_out_of_a_table(text: str) -> None:
    told = figures.plain(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in told)
    assert "<" not in told
    assert "|" not in told.replace("\\\\", "").replace("\\|", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("![alt](http://host/pixel.png)", "!\\[alt]\\(http://host/pixel.png)"),
        ("[text](http://host)", "[text]\\(http://host)"),
        ("![alt][ref]", "!\\[alt]\\[ref]"),
        ("[ref]: http://host", "[ref]\\: http://host"),
        ("[3, 32, 32]", "[3, 32, 32]"),
        ("GPU load [%]: measured", "GPU load [%]: measured"),
        ("0.9 [0.8, 1.0]!", "0.9 [0.8, 1.0]!"),
    ],
)
def test_text_makes_no_picture_and_no_link(text: str, told: str) -> None:
    assert figures.plain(text) == told


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_is_never_a_formula(text: str) -> None:
    assert figures.not_a_formula(text) == f"'{text}"


def test_numbers_and_plain_text_stay() -> None:
    assert figures.not_a_formula(-1.5) == -1.5
    assert figures.not_a_formula("none") == "none"
