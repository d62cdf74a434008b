"""The tiles and tables of the page, from values worked out by hand."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Metric, Terms
from orchestrator.decision.recommendation import Figure, Recommendation, Setting
from orchestrator.report.cell_plots import with_times
from orchestrator.report.page_tables import Tile, cell_table, numeric, tiles
from tests.unit.orchestrator.report import demo

NAN = float("nan")


def setting(cell_id: str, gpus: int, time_s: float, cost: float, accuracy: float, **axes: object) -> Setting:
    values = {"gpus": gpus, "device_batch_size": 512, "global_batch_size": 512 * gpus, "lr_rule": "linear"}
    measured = {
        "time": (time_s, "s"),
        "energy": (NAN, "J"),
        "cost": (cost, "GPU-hours"),
        "val_accuracy": (accuracy, "1"),
        "val_accuracy_difference": (accuracy - 0.95, "1"),
    }
    return Setting(
        cell_id=cell_id,
        name=cell_id,
        baseline_cell_id=None,
        axes={"gpus": gpus, "lr_rule": "linear", **axes},
        values={**values, "lr": 0.1 * gpus},
        overrides=(),
        command="",
        figures={name: Figure(value=value, unit=unit) for name, (value, unit) in measured.items()},
        timing_valid=True,
        n_timed=3,
        n_ok=3,
        note="",
        on_front=True,
        p_best=NAN,
        p_within_margin=NAN,
        why_not=None,
    )


CHOICE = Recommendation(
    terms=Terms(),
    measure="time for the fixed budget",
    cell_id="two",
    baseline_cell_id="one",
    headline=demo.use("two"),
    provisional=False,
    shortlist=(
        setting("two", 2, 600.0, 1 / 3, 0.9455, **{"optimizer.momentum": 0.9}),
        setting("one", 1, 1080.0, 0.3, 0.95),
    ),
)


def digits(tile: Tile) -> list[str]:
    return re.findall(r"[\d.,]*\d", " ".join(tile.lines))


def test_tiles_compare_the_choice_with_the_baseline() -> None:
    shown = tiles(CHOICE)
    assert [(tile.title.partition(" ")[0], tile.value) for tile in shown] == [
        *(("use", "two"), ("time", "10.0 min"), ("training", "20.0 GPU-minutes"), ("validation", "0.946"))
    ]
    assert [digits(tile) for tile in shown] == [
        ["2", "512", "1,024", "0.2"],
        ["18.0", "1.80", "3", "3"],
        ["18.0", "111"],
        ["0.004", "0.950", "0.01", "3"],
    ]


def test_a_chosen_baseline_has_no_comparison() -> None:
    shown = tiles(replace(CHOICE, cell_id="one"))
    assert [tile.value for tile in shown] == ["one", "18.0 min", "18.0 GPU-minutes", "0.950"]
    assert not any("baseline" in line for tile in shown for line in tile.lines)


@pytest.mark.parametrize("missing", [replace(CHOICE, cell_id=None), replace(CHOICE, shortlist=())])
def test_without_a_recommendation_there_are_no_tiles(missing: Recommendation) -> None:
    assert tiles(missing) == []


def test_without_gpus_tiles_count_processes_without_cost() -> None:
    shown = tiles(replace(CHOICE, on_cpu=True))
    assert shown[0].lines[0].startswith("2 processes") and not any("cost" in tile.title for tile in shown)


def test_invalid_timings_have_daggers_and_baselines_no_efficiency() -> None:
    trials, cells = collect(demo.records(), scaling="weak")
    table = cell_table(with_times(cells, trials), Metric())
    rows = [dict(zip((title for title, _ in table["columns"]), row, strict=True)) for row in table["rows"]]
    disturbed = [row for row in rows if row["seeds timed"].startswith("0/")]
    assert len(disturbed) == 3  # windows of 1.1 s
    assert all(row[title].endswith(" †") for row in disturbed for title in ("samples/s", "speed-up", "epoch [s]"))
    assert not any("†" in text for row in rows if row not in disturbed for text in row.values())
    baselines = [row for row in rows if row["speed-up"] == "1× (baseline)"]
    assert len(baselines) == 9 and all(row["efficiency"] == "" for row in baselines)


@pytest.mark.parametrize(
    ("texts", "is_numeric"),
    [
        (["2×128 linear", "1×32 none", "4×32 sqrt"], False),
        (["12,345 [11,000, 13,000]", "1.94× [1.9, 2.0]", ""], True),
        (["3; 5 would settle it", "3", "4"], False),
        (["18,278 against 15,974", "1", "2"], True),
        (["3/3", "0/3"], True),
        (["1 GPU with a batch of 32", "2 GPUs with a batch of 32 each (64 in all)", ""], False),
    ],
)
def test_text_columns_of_numbers_sort_as_numbers(texts: list[str], is_numeric: bool) -> None:
    assert numeric(pd.DataFrame({"column": texts})) == [is_numeric]
