import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.text import numbers
from orchestrator.text.numbers import one_line, suited
from sweeps.identity import LOOPS


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.01234, "0.0123"), (1.0, "1.00"), (98.74, "98.7"), (99.96, "100"), (12345.6, "12,346"), (0.0, "0.00")],
)
def test_numbers_have_the_digits_that_matter(value, told):
    assert numbers.number(value) == told


NAN = math.nan


@pytest.mark.parametrize(
    ("ends", "form", "sign", "text"),
    [
        ((1.871, 1.714, 2.041), numbers.times, "×", "1.87× [1.71, 2.04]"),
        ((0.934, 0.857, 1.02), numbers.percent, "%", "93% [86, 102]"),
        ((1.871, NAN, NAN), numbers.times, "×", "1.87×"),
        ((NAN, NAN, NAN), numbers.times, "×", ""),
    ],
)
def test_intervals_are_in_brackets(ends, form, sign, text):
    assert numbers.with_interval(*ends, form, sign) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.9712, 0.9669, 0.9755), "0.971 ± 0.004"),
        ((0.9712, 0.962, 0.9755), "0.971 [0.962, 0.976]"),  # bootstrapped, not symmetric
        ((0.9712, NAN, NAN), "0.971"),
        ((NAN, NAN, NAN), ""),
    ],
)
def test_symmetric_intervals_have_a_half_width(ends, text):
    assert numbers.plus_minus(*ends) == text


@given(st.text())
def test_no_text_breaks_out_of_a_table(text):
    told = numbers.plain(text)
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
def test_text_makes_no_image_and_no_link(text, told):
    assert numbers.plain(text) == told


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\uff1d1"])
def test_text_is_never_a_formula(text):
    assert numbers.not_a_formula(text) == f"'{text}"
    assert numbers.not_a_formula(f"\r{text}\x1b") == f"\\x0d{text}\\x1b"


def test_numbers_and_plain_text_stay():
    assert numbers.not_a_formula(-1.5) == -1.5
    assert numbers.not_a_formula("none") == "none"


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (5.207926e-05, "worker-hours", "0.187 worker-seconds"),
        (0.0167, "GPU-hours", "60.1 GPU-seconds"),
        (0.05, "GPU-hours", "3.00 GPU-minutes"),
        (47.9, "GPU-hours", "47.9 GPU-hours"),
        (480.0, "GPU-hours", "480 GPU-hours"),
        (0.187, "s", "0.187 s"),
        (119.0, "s", "119 s"),
        (120.0, "s", "2.00 min"),
        (119.99999999999997, "s", "2.00 min"),
        (9000.0, "s", "2.50 h"),
        (12_000.0, "J", "12.0 kJ"),
        (0.0123, "at your price", "0.0123 at your price"),
        (0.0, "GPU-hours", "0.00 GPU-hours"),
        (math.inf, "s", "inf days"),
    ],
)
def test_a_quantity_has_a_suitable_unit(value, unit, told):
    assert suited(unit, value).text(value) == told


def test_values_share_the_unit_of_the_least():
    unit = suited("GPU-hours", 1.0, math.nan, 0.0, 100.0)
    assert (unit.name, unit.number(1.0), unit.number(100.0), unit.number(math.nan)) == (
        *("GPU-minutes", "60.0", "6,000", ""),
    )


def test_without_a_value_a_unit_stays():
    assert suited("GPU-hours", math.nan).name == suited("GPU-hours").name == "GPU-hours"


def test_text_that_xml_cannot_hold_is_replaced():
    assert one_line("a\x00b\ud800c\uffffd\n") == "a b\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}d "
    assert len(one_line("x" * 500)) == 80


def test_training_of_a_language_model_names_the_length_of_its_sequences():
    config = {
        "trainable._target_": LOOPS[0],
        "model.name": "gpt",
        "data.name": "text",
        "model.sequence_length": 1024,
        "budget.tokens": 16_384,
    }
    assert numbers.training(config.get) == "gpt on text in sequences of 1,024, 16,384 tokens"
