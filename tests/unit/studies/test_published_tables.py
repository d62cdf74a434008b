from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from orchestrator.store.journal import encode
from orchestrator.store.record import Kind, Record
from orchestrator.store.results_folder import JOURNAL
from studies.published_tables import TABLES, Published, experiment, measured_cells, published_markdown, write
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

KEPT = Path(__file__).parents[3] / "docs/results/published"
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


def rows_of(table, records):
    """The cells of the Markdown table, without its two heading lines."""
    text = published_markdown(Published.of(table), collect(records, scaling="weak")[1])
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_measured_figures_stand_beside_the_published_ones():
    records = [
        record_of(gpus, status=status, timing=timing, axes={"strategy": strategy, "shape": [3, 32]}, metrics=metrics)
        for gpus, strategy, status, timing, metrics in (
            (1, "ddp", Status.OK, "shared", {"epoch_s": 2.0, "samples_per_s": 10.0}),
            (1, "single", Status.OK, "device", {"epoch_s": 3.0, "samples_per_s": 20.0}),
            (2, "ddp", Status.OK, "device", {"epoch_s": 0.5, "samples_per_s": 30.0}),
            (2, "single", Status.INFEASIBLE, "device", {}),
        )
    ]
    assert rows_of(TABLE, records) == [
        ["one", "", "strategy=ddp, 1 seed", "1,500", "2,000 †", "7.00–9.00", "10.0 †", "", ""],
        ["", "", "strategy=single, 1 seed", "", "3,000", "", "20.0", "", ""],
        ["two", "oom", "strategy=ddp, 1 seed", "", "500", "", "60.0", "", ""],
        ["", "", "strategy=single, infeasible", "", "", "", "", "", ""],
        ["eight", "", "not measured", "100", "", "", "", "", ""],
        ["no such axis", "", "not measured", "5.00", "", "", "", "", ""],
        ["a TPU", "", "has no counterpart here", "70.0", "", "", "", "", ""],
    ]


def test_an_axis_that_the_sweep_lacks_is_null():
    cells: dict[str, dict[str, Any] | None] = {
        "plain": {"gpus": 1, "slow": None},
        "other": {"gpus": 1, "slow": "x", "absent": None},
        "none": {"gpus": 1, "absent": 1},
    }
    table = TABLE | {"rows": [{"label": label, "cell": cell} for label, cell in cells.items()]}
    records = [
        record_of(1, axes={"slow": slow}, metrics={"epoch_s": seconds}) for slow, seconds in ((None, 2), ("x", 30))
    ]
    rows = rows_of(table, records)
    assert [(row[0], row[4]) for row in rows] == [("plain", "2,000"), ("other", "30,000"), ("none", "")]


@pytest.mark.parametrize(
    ("epochs", "taken", "shown"),
    [
        (1, {"train_s": 2.0, "first_epoch_s": 2.0}, "2.00 after 1 of 10 epochs"),
        (10, {"train_s": 30.0, "first_epoch_s": 4.0}, "30.0"),
        # One step of the ten in its first epoch.
        (1, {"train_s": 0.1, "epoch_s": 1.0, "samples_per_s": 320.0, "samples": 32, "steps": 1}, ""),
    ],
)
def test_a_figure_after_fewer_epochs_is_marked(epochs, taken, shown):
    columns = {"train_s": {"title": "training [s]", "column": "train_s", "epochs": 10}}
    table = {"source": "a post", "columns": columns, "rows": [{"label": "one", "cell": {"gpus": 1}}]}
    assert rows_of(table, [record_of(1, metrics={"epochs": epochs} | taken)])[0][-1] == shown


def test_cells_of_one_row_are_distinguished_by_their_rule():
    table = {**TABLE, "rows": [{"label": "one", "cell": {"gpus": 1}}]}
    records = [record_of(1, lr_rule=rule, metrics={"epoch_s": 2.0}) for rule in ("none", "linear")]
    labels = [row[:3] for row in rows_of(table, records)]
    assert labels == [["one", "", "lr_rule=none, 1 seed"], ["", "", "lr_rule=linear, 1 seed"]]


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_tables_have_known_columns_and_figures(path):
    table = Published.of(yaml.safe_load(path.read_text()))
    assert len(table.rows) >= 3
    for row in table.rows:
        assert set(row.figures) <= set(table.columns), row
        for figure in row.figures.values():
            assert isinstance(figure, int | float) or len(figure) == 2 and figure[0] <= figure[1], row


@pytest.mark.parametrize("folder", sorted(path.parent for path in KEPT.glob("*/published.md")), ids=lambda at: at.name)
def test_kept_tables_follow_from_their_summaries(folder, tmp_path):
    summary = tmp_path / "summary.csv"
    summary.write_bytes((folder / "summary.csv").read_bytes())
    assert write(folder, summary).read_text() == (folder / "published.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sweep=published/conv2d", "hang_s=180"], ("conv2d", "full")),
        (["sweep=published/conv2d", "sweep/published/conv2d=core"], ("conv2d", "core")),
    ],
)
def test_a_journal_names_its_experiment_and_scale(tmp_path, arguments, expected):
    driver = Record(kind=Kind.SWEEP, value={"fingerprint": {}, "driver": {"arguments": arguments}})
    (tmp_path / JOURNAL).write_bytes(encode(driver.kind, driver.value) + b"\n")
    assert experiment(tmp_path) == expected


def test_a_rule_called_none_is_not_missing(tmp_path):
    path = tmp_path / "summary.csv"
    pd.DataFrame({"lr_rule": ["none", "None"], "note": ["", "nan"]}).to_csv(path, index=False)
    cells = measured_cells(path)
    assert cells["lr_rule"].tolist() == ["none", "None"] and cells["note"].isna().tolist() == [True, False]
