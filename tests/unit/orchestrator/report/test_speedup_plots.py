import re

import pandas as pd
import pytest

from orchestrator.analysis.scaling_loss import LOST
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.report.cell_plots import trade_off
from orchestrator.report.cell_rows import cell_rows, with_times
from orchestrator.report.plot import MOST_BARS, svg
from orchestrator.report.speedup_plots import largest, speedup, why_not_linear
from tests.unit.orchestrator.decision.deciding import measured
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.drawing import TIMED, made, scaling, texts


@pytest.fixture(scope="module")
def sweep():
    return made(demo.records(), reference_batch_size=32)


def test_two_gpu_counts_have_labelled_values_and_the_ideal():
    cells, rows = made([scaling(1), scaling(2, rate=1600.0)])
    drawn = texts(*speedup(cells, rows), rows)
    assert "1.60× (80%)" in drawn
    assert [row["ideal"] for row in rows] == pytest.approx([1, 2])


def test_a_number_of_gpus_has_the_same_colour_in_all_charts():
    records = [record_of(gpus, metrics=measured(100.0 * gpus, 0.9)) for gpus in (1, 2)]
    trials, cells = collect(records, scaling="weak")
    timed, recommendation = with_times(cells, trials), decide(trials, cells, Terms())
    rows = cell_rows(timed, recommendation)
    charts = (*speedup(cells, rows), trade_off(cells, pd.DataFrame(rows), recommendation))
    layers = [layer for chart in charts if chart.spec is not None for layer in chart.spec["layer"]]
    colours = [layer["encoding"]["color"] for layer in layers if "color" in layer["encoding"]]
    domains = [colour["scale"]["domain"] for colour in colours if colour["field"] == "gpus"]
    # Not every chart draws every number.
    assert len(domains) > 2 and all(domain == [1, 2] for domain in domains)


def test_lines_end_with_their_efficiency(sweep):
    cells, rows = sweep
    drawn = texts(*speedup(cells, rows), rows)
    ends = cells[(cells["gpus"] == 8) & cells["efficiency"].notna()]
    shown = [text for text in drawn if text.endswith("%")]
    # A line for each batch: the rules of a batch have its speed.
    assert len(shown) == 3 and set(shown) <= {f"{efficiency:.0%}" for efficiency in ends["efficiency"]}


def test_percentages_of_lines_that_end_together_do_not_overlap():
    for rate, shown in ((3900.0, ["100%"]), (2000.0, ["100%", "50%"])):
        own = [(1, 32, 1000.0), (2, 32, 2000.0), (4, 32, 4000.0), (1, 64, 1000.0), (2, 64, rate / 2), (4, 64, rate)]
        records = [record_of(g, batch=batch, metrics=TIMED | {"samples_per_s": rate}) for g, batch, rate in own]
        cells, rows = made(records)
        assert [text for text in texts(*speedup(cells, rows), rows) if text.endswith("%")] == shown


def in_axes(*gpus, ws=15):
    """Return the cells of these numbers of GPUs with many values of another axis, and the rows of their charts."""
    records = [
        record_of(count, seed, axes={"w": w}, metrics=TIMED | {"samples_per_s": 100.0 * count * (1 + w * count / 100)})
        for count in gpus
        for w in range(ws)
        for seed in (0, 1)
    ]
    trials, cells = collect(records, scaling="weak")
    recommendation = decide(trials, cells, Terms(axes={"gpus": "gpus", "w": "w"}))
    return cells, cell_rows(with_times(cells, trials), recommendation)


def test_combinations_share_a_chart_the_best_first():
    cells, rows = in_axes(1, 2, ws=30)
    (chart,) = speedup(cells, rows)
    titles = [text for text in texts(chart, rows) if re.fullmatch(r"w=\d+", text)]
    assert chart.name == "combinations" and len(titles) == MOST_BARS
    assert titles == sorted(titles, key=lambda title: -int(title.removeprefix("w=")))


def test_the_twelve_panels_nearest_the_chosen_cell_are_drawn_in_order():
    cells, rows = in_axes(1, 2, 4)
    combinations, panels = speedup(cells, rows)
    titles = [text for text in texts(panels, rows) if re.fullmatch(r"w=\d+", text)]
    chosen = next(row for row in rows if row["role"].startswith("use"))
    assert len(titles) == 12 and chosen["panel"] in titles
    assert titles == sorted(titles, key=lambda title: int(title.removeprefix("w=")))
    assert len(set(texts(combinations, rows)) & {row["panel"] for row in rows}) == 15


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_line_begins_at_its_baseline_in_another_panel(strategy):
    """All lines begin at one GPU, which only DDP has."""
    records = [
        record_of(gpus, batch=batch, axes={"strategy": name}, strategy=name, metrics={"samples_per_s": 90.0 * gpus})
        for batch in (32, 64)
        for gpus, name in ((1, "ddp"), (2, "ddp"), (4, "ddp"), (2, strategy), (4, strategy))
    ]
    cells, rows = made(list({record.trial_id: record for record in records}.values()), baseline={"strategy": "ddp"})
    drawing = svg(speedup(cells, rows)[-1], rows)
    # One for each batch of the strategy without a cell on one GPU.
    assert drawing.count('aria-label="GPUs: 1; scaling: 1; gpus: 2; speedup: 2;') == 2 * (strategy == "fsdp")


def test_one_gpu_count_has_no_speedup(sweep):
    cells, rows = sweep
    (plot,) = speedup(cells[cells["gpus"] == 1], rows)
    assert plot.absent


def test_lost_speedup_is_drawn_and_named():
    cells, rows = made([scaling(1), scaling(2, rate=1600.0, step_communication_s=0.2, step_compute_s=0.64)])
    (row,) = (chart_row for chart_row in rows if chart_row["gpus"] == 2)
    parts = [value for name, value in row.items() if name.startswith("lost_") and value == value]
    assert row["efficiency"] + sum(parts) == pytest.approx(1) and row["lost_communication"] == pytest.approx(0.2)
    assert {"2×32 none", "kept", "exchanging gradients"} <= set(texts(why_not_linear(cells), rows))
    assert largest(cells, demo.NOT_MADE).startswith("exchanging gradients, 20% of ideal scaling (2×32 none); remedy: ")
    assert largest(made([scaling(1)])[0], demo.NOT_MADE) == ""
    # Without a valid timing of both cells nothing is known of a loss.
    for count in (1, 2):
        untimed = cells.assign(timing_valid=cells["gpus"] != count)
        assert largest(untimed, demo.NOT_MADE) == "" and why_not_linear(untimed).absent


def test_rules_with_the_same_losses_share_a_bar():
    step = {"step_communication_s": 0.2, "step_compute_s": 0.64}
    records = [
        demo.replaced(
            scaling(gpus, rate=rate * faster, **(step if gpus > 1 else {})), lr_rule=rule, cell_id=f"{gpus}-{rule}"
        )
        for gpus, rate in ((1, 1000.0), (2, 1600.0))
        for rule, faster in (("none", 1.0), ("linear", 1.0), ("sqrt", 0.9 if gpus > 1 else 1.0))
    ]
    cells, rows = made(records)
    drawn = [text for text in texts(why_not_linear(cells), rows) if text.startswith("2×32")]
    assert len(drawn) == 2 and "2×32 sqrt" in drawn


@pytest.mark.parametrize(("invalid", "drawn"), [((2,), {"4×32 none"}), ((4,), {"2×32 none"})])
def test_losses_of_invalid_timings_are_not_drawn(invalid, drawn):
    step = {"step_communication_s": 0.2, "step_compute_s": 0.64}
    records = [scaling(1), scaling(2, rate=1600.0, **step), scaling(4, rate=3000.0, **step)]
    cells, _ = made(records)
    untimed = cells.assign(timing_valid=~cells["gpus"].isin(invalid))
    rows = cell_rows(with_times(untimed, collect(records, scaling="weak")[0]), demo.NOT_MADE)
    assert {"2×32 none", "4×32 none"} & set(texts(why_not_linear(untimed), rows)) == drawn


@pytest.mark.parametrize(("rate", "kept"), [(1600.0, 80), (2200.0, 100)])
def test_no_bar_ends_above_the_ideal(rate, kept):
    """The passes are faster than on one GPU: a negative loss, so that the other parts sum to more than 100%."""
    step = {"step_communication_s": 0.3, "step_compute_s": 0.5}
    cells, rows = made([scaling(1), scaling(2, rate=rate, **step)])
    assert sum(max(0.0, rows[1][name]) for name in ("efficiency", *LOST)) > 1.05
    shares = [int(text) for text in re.findall(r"ideal scaling: (\d+)%", svg(why_not_linear(cells), rows))]
    assert shares[0] == kept and sum(shares) == pytest.approx(100, abs=2)


def test_speedups_timed_by_one_process_have_a_remark():
    def remarks(process):
        records = [
            record_of(g, s, metrics={"samples_per_s": 100.0 * g}, provenance={"process": process(s)})
            for g in (1, 2)
            for s in (0, 1)
        ]
        (plot,) = speedup(*made(records))
        return " ".join(plot.remarks)

    assert "workers=per_seed" in remarks(lambda seed: "7") and "workers=per_seed" not in remarks(str)
