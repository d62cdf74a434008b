import math

import pytest

from orchestrator.text.units import suited


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
        (0.0123, "at your price", "0.0123"),
        (0.0, "GPU-hours", "0.00 GPU-hours"),
        (math.inf, "s", "inf days"),
    ],
)
def test_a_quantity_is_told_in_the_unit_that_suits_its_size(value: float, unit: str, told: str) -> None:
    assert suited(unit, value).text(value) == told


def test_values_beside_each_other_have_one_unit_by_the_least_of_them() -> None:
    unit = suited("GPU-hours", 1.0, math.nan, 0.0, 100.0)
    assert (unit.name, unit.number(1.0), unit.number(100.0), unit.number(math.nan)) == (
        *("GPU-minutes", "60.0", "6,000", ""),
    )


def test_without_a_value_a_unit_stays() -> None:
    assert suited("GPU-hours", math.nan).name == suited("GPU-hours").name == "GPU-hours"
