"""The tables of the page, from values worked out by hand."""

import pytest

from orchestrator.report.cell_rows import with_times
from orchestrator.report.page_tables import cell_table
from orchestrator.tables.candidates import IS_BEST, Candidates
from tests.unit.orchestrator.decision.deciding import decided_with_frames, measured, swayed
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo


def test_cells_have_their_probabilities_and_are_shown_by_time():
    trials, cells, recommendation = decided_with_frames(swayed({1: 100, 2: 190, 4: 191}, dict.fromkeys((1, 2, 4), 0.9)))
    table = cell_table(with_times(cells, trials), recommendation)
    titles = [title for title, _ in table["columns"]]
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in table["rows"]}
    assert titles[table["by"]] == "time [s]" and not dict(table["columns"])["role"] and dict(table["columns"])[IS_BEST]
    assert recommendation.chosen is not None
    assert rows[recommendation.name]["role"] == "use" and rows[recommendation.baseline.name]["role"] == "baseline"
    assert rows[recommendation.name][IS_BEST] == f"{recommendation.p_best:.0%}"
    assert rows[recommendation.baseline.name]["accuracy holds"] == "≥99%"
    # What all cells share is in the heading of the page.
    assert not {"status", "seeds ok", "valid timings"} & set(titles)


def test_a_fast_cell_that_loses_accuracy_is_marked():
    trials, cells, recommendation = decided_with_frames(swayed({1: 100, 2: 190, 4: 380}, {1: 0.9, 2: 0.9, 4: 0.5}))
    table = cell_table(with_times(cells, trials), recommendation)
    role = [title for title, _ in table["columns"]].index("role")
    assert {row[0]: row[role] for row in table["rows"]} == {
        "1×32 none": "baseline",
        "2×32 none": "use",
        "4×32 none": "misses the margin",
    }


@pytest.mark.parametrize(("price", "cost"), [(None, ("cost [GPU-seconds]", 60.0)), (3.6, ("cost [USD]", 0.06))])
def test_costs_are_those_of_the_candidates(price, cost):
    """Trainings of 60 and 30 s on one and two GPUs, whose trials took 90 s."""
    records = [record_of(gpus, wall_s=90.0, metrics=measured(100.0 * gpus, 0.9)) for gpus in (1, 2)]
    terms = {"price_per_gpu_hour": price, "currency": "USD"}
    trials, cells, recommendation = decided_with_frames(records, **terms)
    table = cell_table(with_times(cells, trials, price), recommendation)
    column = [title for title, _ in table["columns"]].index(cost[0])
    assert [float(row[column]) for row in table["rows"]] == pytest.approx([cost[1]] * 2)
    candidates = Candidates.of(recommendation)
    assert cost[0] in [line.title for line in candidates.lines]


def test_invalid_timings_have_daggers_and_baselines_no_efficiency():
    trials, cells = collect(demo.records(), scaling="weak")
    table = cell_table(with_times(cells, trials), demo.NOT_MADE)
    rows = [dict(zip((title for title, _ in table["columns"]), row, strict=True)) for row in table["rows"]]
    disturbed = [row for row in rows if row["valid timings"].startswith("0 of ")]
    assert len(disturbed) == 3  # windows of 1.1 s
    assert all(row[title].endswith(" †") for row in disturbed for title in ("samples/s", "scaling", "epoch [s]"))
    assert not any("†" in text for row in rows if row not in disturbed for text in row.values())
    baselines = [row for row in rows if row["scaling"] == "1× (baseline)"]
    assert len(baselines) == 9 and all(row["efficiency"] == "" for row in baselines)
