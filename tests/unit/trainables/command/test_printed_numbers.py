"""Numbers in text are read whole, or not at all."""

import pytest

from trainables.command.metric_declarations import Reading, with_any_number
from trainables.command.printed_numbers import UnclearNumberError, as_number


def read(pattern, line, column):
    return Reading.of(column, pattern).of_line(line)


@pytest.mark.parametrize(
    ("pattern", "line", "column", "number"),
    [
        ("loss ([0-9.]+)", "loss 9.8e-05 time", "loss", 9.8e-05),
        ("loss ([0-9.]+) ", "loss 9.8E-05 time", "loss", 9.8e-05),
        ("loss ([0-9.]+)", "loss 9.8D-05 time", "loss", 9.8e-05),
        ("loss ([0-9.]+)", "loss 9.8e\u22125 time", "loss", 9.8e-05),
        ("loss ([0-9.]+)", "loss -0.5", "val_loss", -0.5),
        ("loss ([0-9.]+)", "loss inf, acc 0.1", "val_loss", float("inf")),
        ("loss ([0-9.]+)", "loss 0,912; acc 0,5", "loss", 0.912),
        ("loss ([0-9.]+)", "loss 2,34", "loss", 2.34),
        ("loss ([0-9.]+)", "loss 1.234,56", "loss", 1234.56),
        ("loss ([0-9.]+)", "loss 0.5,0.7", "loss", 0.5),
        ("loss ([0-9.]+)", "loss 0.5.", "loss", 0.5),
        ("loss (.+)", "loss about 3", "loss", None),
        (".*acc.*([0-9.]+)", "acc 0.91", "val_accuracy", 0.91),
        ("acc ([0-9.]+)", "acc 93.5%", "val_accuracy", 0.935),
        ("acc ([0-9.]+)", "acc 0.935 %", "top", 0.935),
        ("([0-9.]+) img", "1,234 img/s", "samples_per_s", 1234),
        ("([0-9.,]+) img", "1,234.5 img/s", "samples_per_s", 1234.5),
        ("speed ([0-9.]+)", "speed 12.3k tokens/s", "tokens_per_s", 12300),
        ("time ([0-9.]+)", "time 58s", "epoch_s", 58),
        ("time ([0-9.]+)", "time 1m02s", "epoch_s", 62),
        ("time ([0-9.]+)", "time 1h02m", "epoch_s", 3720),
        ("time ([0-9.]+)", "time 350ms", "step_s", 0.35),
        ("time ([0-9.]+)", "time 2.5 min", "epoch_s", 150),
        ("time ([0-9.]+)", "time 1:02:03", "epoch_s", 3723),
        ("time ([0-9.]+)", "time 1 day, 0:00:10", "train_s", 86410),
        ("time ([0-9.]+)", "time 1d12h", "train_s", 129600),
        ("loss ([0-9.]+)", "loss 1.5D-02 ", "loss", 0.015),
        ("loss ([0-9.]+)", "Epoch 3 · loss 0.52 · 10.2 s", "loss", 0.52),
        ("loss ([0-9.]+)", "loss 0.52 · 1032 samples/s", "loss", 0.52),
    ],
)
def test_numbers_are_read_whole(pattern, line, column, number):
    assert read(pattern, line, column) == (number if number is None else pytest.approx(number))


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("loss 1,234", "loss"),
        ("loss 1.0×10^-4", "loss"),
        ("loss 1.0 · 10⁻⁴", "loss"),
        ("loss 1.0*10**-4", "loss"),
        ("loss 1.#QNAN", "loss"),
        ("epoch took 2,500", "epoch_s"),
        ("9/9 4.0it/s", "step_s"),
    ],
)
def test_unclear_numbers_are_named(line, column):
    with pytest.raises(UnclearNumberError):
        read(r"(?:loss|took|9/9) ([0-9.,]+)", line, column)


@pytest.mark.parametrize(
    ("value", "number"),
    [("1,234.5", 1234.5), ("1.2K", 1200), ("1:02:03", 3723), (" 3 ", 3), ("high", None), (True, None), ([1], None)],
)
def test_values_of_mappings_may_be_text(value, number):
    assert as_number(value, "samples") == number


@pytest.mark.parametrize(
    ("pattern", "line", "text"),
    [
        (r"[(]x[])]+ loss (?P<x>\d+\.\d+)s", "(x]) loss nans", "nan"),
        (r"(?:a|b) \(([0-9.]+)\)", "b (1e-3)", "1e-3"),
        (r"(best|last) ([0-9.]+)", "last nan", None),
    ],
)
def test_a_first_group_of_digits_takes_any_number(pattern, line, text):
    match = with_any_number(pattern).search(line)
    assert (match[1] if match else None) == text
