import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.analysis.trials import collect
from orchestrator.config.published import Published, published_errors
from orchestrator.store.record import TrialRecord
from orchestrator.tables.published import published_markdown
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]
TABLES = sorted((Path(__file__).parents[4] / "conf/sweep/published/tables").glob("*.yaml"))
TABLE: dict[str, Any] = {
    "source": "a post | of 2018",
    "columns": {
        "epoch_ms": {"title": "epoch [ms]", "column": "epoch_s", "factor": 1000},
        "all_per_s": {"title": "samples/s, all", "column": "samples_per_s", "times": "gpus"},
        "clock_mhz": {"title": "clock [MHz]", "column": "gpu_clock_mhz"},
    },
    "rows": [
        {"label": "one", "cell": {"gpus": 1, "shape": [3, 32]}, "figures": {"epoch_ms": 1500, "all_per_s": [7, 9]}},
        {"label": "two", "cell": {"gpus": 2}, "status": "oom"},
        {"label": "eight", "cell": {"gpus": 8}, "figures": {"epoch_ms": 100}},
        {"label": "no such axis", "cell": {"model": "x"}, "figures": {"epoch_ms": 5}},
        {"label": "a TPU", "figures": {"epoch_ms": 70}},
    ],
}
EXPECTED = """\
| one | | strategy=ddp, 1 seed | 1,500 | 2,000 † | 7.00–9.00 | 10.0 † | | |
| | | strategy=single, 1 seed | | 3,000 | | 20.0 | | |
| two | oom | strategy=ddp, 1 seed | | 500 | | 60.0 | | |
| | | strategy=single, infeasible | | | | | | |
| eight | | not measured | 100 | | | | | |
| no such axis | | not measured | 5.00 | | | | | |
| a TPU | | has no counterpart here | 70.0 | | | | | |
"""


def test_measured_figures_stand_beside_the_published_ones(record_of: RecordOf) -> None:
    records = [
        record_of(gpus, status=status, timing=timing, axes={"strategy": strategy, "shape": [3, 32]}, metrics=metrics)
        for gpus, strategy, status, timing, metrics in (
            (1, "ddp", Status.OK, "shared", {"epoch_s": 2.0, "samples_per_s": 10.0}),
            (1, "single", Status.OK, "device", {"epoch_s": 3.0, "samples_per_s": 20.0}),
            (2, "ddp", Status.OK, "device", {"epoch_s": 0.5, "samples_per_s": 30.0}),
            (2, "single", Status.INFEASIBLE, "device", {}),
        )
    ]
    _, cells = collect(records, scaling="weak")
    text = published_markdown(Published.of(TABLE), cells)
    assert "Published: a post \\| of 2018." in text
    assert _squeezed(text).endswith(EXPECTED.strip())


def test_a_row_may_want_null_and_figures_of_fewer_epochs_say_so(record_of: RecordOf) -> None:
    """A sweep without the axis has null there, and no other value."""
    table = {
        "source": "a post",
        "columns": {
            "train_s": {"title": "training [s]", "column": "train_s", "epochs": 10},
            "clock": {"title": "clock [MHz]", "column": "gpu_clock_mhz"},
        },
        "rows": [
            {"label": "plain", "cell": {"gpus": 1, "slow": None}},
            {"label": "other", "cell": {"gpus": 1, "slow": "x", "absent": None}},
            {"label": "cut short", "cell": {"gpus": 1, "slow": "y"}},
            {"label": "none", "cell": {"gpus": 1, "absent": 1}},
        ],
    }
    records = [
        record_of(1, axes={"slow": slow}, metrics={"epochs": epochs, "sm_clock_mhz": 1980} | taken)
        for slow, epochs, taken in (
            (None, 1, {"train_s": 2.0, "first_epoch_s": 2.0}),
            ("x", 10, {"train_s": 30.0, "first_epoch_s": 4.0}),
            # A step of its first epoch, which has ten of them.
            ("y", 1, {"train_s": 0.1, "epoch_s": 1.0, "samples_per_s": 320.0, "samples": 32, "steps": 1}),
        )
    ]
    text = _squeezed(published_markdown(Published.of(table), collect(records, scaling="weak")[1]))
    assert "| plain | | 1 seed | | 2.00 after 1 of 10 epochs | | 1,980 |" in text
    assert "| other | | 1 seed | | 30.0 | | 1,980 |" in text
    assert "| cut short | | 1 seed | | | | 1,980 |" in text
    assert "| none | | not measured | | | | |" in text


def test_cells_of_one_row_are_told_apart_by_their_learning_rate_rule(record_of: RecordOf) -> None:
    table = {**TABLE, "rows": [{"label": "one", "cell": {"gpus": 1}}]}
    records = [record_of(1, lr_rule=rule, metrics={"epoch_s": 2.0}) for rule in ("none", "linear")]
    text = _squeezed(published_markdown(Published.of(table), collect(records, scaling="weak")[1]))
    assert "| one | | lr_rule=none, 1 seed |" in text and "| | | lr_rule=linear, 1 seed |" in text


def _squeezed(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_shipped_tables_are_sound(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    assert list(published_errors(config)) == []
    assert len(Published.of(config).rows) == len(config["rows"]) >= 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": [{"label": "a", "figures": {"epoch_s": 1}}]}, r"'epoch_s' \(did you mean 'epoch_ms'"),
        (
            {"rows": [{"label": "a", "figures": {"epoch_ms": "1 s"}}]},
            r"must be a number or \[smallest, largest\], not '1 s'",
        ),
        ({"rows": [{"label": "a", "figures": {"epoch_ms": [1, 2, 3]}}]}, r"largest\], not \[1, 2, 3\]"),
        ({"rows": [{"cell": {}}]}, r"rows\[0\] has the keys label, cell, status, figures \(needed: label\)"),
        ({"columns": {"a": {"title": "t"}}, "rows": []}, "columns.a has the keys title, column, factor, times, epochs"),
        ({"tables": []}, "needs source, columns and rows"),
    ],
)
def test_what_is_no_table_is_told(change: dict[str, Any], told: str) -> None:
    [message] = published_errors(TABLE | change)
    assert re.search(told, message), message
