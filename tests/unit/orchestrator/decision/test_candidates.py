"""Which cells may be chosen: their timing, their status, what they report, and what similar cells show."""

import math
from dataclasses import replace
from types import MappingProxyType

import pytest

from orchestrator.analysis.trials import cell_axes
from orchestrator.config.request import Metric, Terms
from orchestrator.config.settings import ReportSection
from orchestrator.decision.candidates import Contenders
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import UNDECIDED
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import (
    AXES,
    SHORT,
    codes,
    decided,
    decided_with_frames,
    left_out,
    measured,
    swayed,
    values,
)
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

LONG = {"window_s": 2.5, "window_steps": 600}


BUSY = {"foreign_cpu": 0.88, "foreign_cpu_by": "bash"}
SHARED = {"timing": "shared"}


def timed(gpus, rate, metrics=MappingProxyType({}), **fields):
    """Return three seeds of a cell with this rate; accuracies are equal but for the seed."""
    return [
        record_of(gpus, s, metrics=measured(rate, 0.9 + s / 1000) | LONG | dict(metrics), **fields) for s in range(3)
    ]


MODELS = [record_of(2, s, metrics=measured(200, 0.9), provenance={"device_model": "AAB"[s]}) for s in range(3)]


@pytest.mark.parametrize(
    ("records", "fault", "count", "detail"),
    [
        ([*timed(1, 100, provenance={"device_model": "A"}), *MODELS], "several_models", 3, "may_be_better"),
        ([*timed(1, 100, BUSY), *timed(2, 200, BUSY)], "disturbed", 6, None),
        ([*timed(1, 100), *timed(2, 200, BUSY)], "disturbed", 3, "may_be_better"),
        ([*timed(1, 100), *timed(2, 200, SHORT)], "too_short", 3, "may_be_better"),
        ([*timed(1, 100), *timed(2, 200, **SHARED)], "shared", 3, "may_be_better"),
        ([*timed(1, 100, SHORT), *timed(2, 200)], "too_short", 3, "baseline_not_timed"),
    ],
)
def test_no_speed_is_stated_without_valid_timings_of_choice_and_baseline(records, fault, count, detail):
    decision = decided(records)
    assert (decision.cell_id, decision.verdict, decision.provisional, decision.more_seeds) == (
        None,
        UNDECIDED,
        True,
        (),
    )
    why = decision.headline.values
    assert (decision.headline.code, why["fault"], why["count"], why["timings"]) == ("no_speed", fault, count, 6)
    assert (why["by"], why["cpu"]) == ("bash", 0.88) or fault != "disturbed"
    assert codes(decision.details) == [*([detail] if detail else []), "not_considered"]
    # Only load from outside can be gone in a repetition.
    assert bool(decision.commands) == (fault == "disturbed")
    assert {step.worth for step in decision.gpu_steps} == {"undecided"}
    assert all(step.by_batch == () for step in decision.gpu_steps)


def test_cells_that_may_be_better_are_named_without_figures():
    decision = decided([*timed(1, 100), *(record for gpus in (2, 4, 8, 16, 32) for record in timed(gpus, 200, SHORT))])
    assert dict(values(decision.details, "may_be_better")) == {
        "names": ["2×32 none", "4×32 none", "8×32 none"],
        "more": 2,
        "than": "1×32 none",
    }
    assert [count.why_none and count.why_none.code for count in decision.gpu_counts] == [None, *["none_has_figure"] * 5]
    why_not = {cell.cell_id: cell.why_not for cell in decision.shortlist}["1-32-none"]
    assert why_not and (why_not.code, why_not.values["name"]) == ("better_is_untimed", "2×32 none")


@pytest.mark.parametrize(("of_four", "first"), [(1, "too_few_workers"), (4, "use")])
def test_cells_of_too_few_workers_are_false(of_four, first):
    one = [record_of(1, s, metrics=measured(100, 0.9)) for s in range(3)]
    two = [record_of(2, s, metrics=measured(400, 0.9) | {"workers": 1}) for s in range(3)]
    four = [record_of(4, s, metrics=measured(90, 0.9) | {"workers": of_four}) for s in range(3)]
    decision = decided([*one, *two, *four])
    assert (decision.cell_id, decision.headline.code) == ("1-32-none", first)
    assert (first == "use") or decision.details[0].code == "use"


def test_test_accuracy_alone_leaves_the_comparison_unknown():
    records = [*timed(1, 400), *timed(2, 100)]
    tested = [replace(record, metrics={**record.metrics, "val_accuracy": None, "accuracy": 0.9}) for record in records]
    assert values(decided(tested).details, "accuracy_unknown")["on_test_set"] is True


@pytest.mark.parametrize(
    ("rate", "val_accuracy", "chosen"),
    [(101.0, 0.9, "2-32-none"), (103.0, 0.9, None), (400.0, 0.88, "2-32-none"), (400.0, 0.892, None)],
)
def test_untimed_cells_seem_better_beyond_a_tie_within_the_margin(rate, val_accuracy, chosen):
    slow = [record_of(1, s, metrics=measured(50, 0.9 + s / 1000) | LONG) for s in range(3)]
    slow += [record_of(2, s, metrics=measured(100, 0.9 + s / 1000) | LONG) for s in range(3)]
    untimed = [record_of(4, s, metrics=measured(rate, val_accuracy + s / 1000) | SHORT) for s in range(3)]
    decision = decided([*slow, *untimed])
    assert (decision.cell_id, decision.headline.code) == (chosen, "use" if chosen else "no_speed")
    assert chosen or values(decision.details, "may_be_better")["names"] == ["4×32 none"]


def test_without_a_cell_within_the_margin_nothing_is_recommended():
    good = [record_of(1, s, metrics=measured(100, 0.9), provenance={"device_model": f"GPU {s}"}) for s in range(3)]
    bad = [record_of(2, s, metrics=measured(200, 0.5), provenance={"device_model": "GPU 0"}) for s in range(3)]
    decision = decided([*good, *bad])
    assert decision.headline.code == "none_within_margin" and left_out(decision) == {"cells_not_timed": 1}
    assert decision.headline.values["baseline"] == "1×32 none, GPU 0 + GPU 1 + GPU 2"


def test_an_unfinished_sweep_is_provisional():
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2) for s in range(3)]
    assert "unfinished" in codes(decided(records, unfinished=True).caveats)
    assert "unfinished" not in codes(decided(records).caveats)


def test_skipped_cells_are_counted_apart_from_failed_ones():
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000)) for g in (1, 2) for s in range(3)]
    records += [record_of(4, 0, Status.SKIPPED, note="a rule"), record_of(8, 0, Status.OOM, note="memory")]
    decision = decided(records)
    assert left_out(decision) == {"cells_not_ok": 1, "cells_skipped": 1}
    assert values(decision.reasons, "not_considered")["left_out"] == list(decision.left_out)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_plainest_of_equal_trainings_is_kept(seeds):
    """`linear` is 22% faster by chance alone at the reference batch; at another batch it is another training."""
    rates = {(32, "linear"): 122, (32, "none"): 100, (32, "adascale"): 90, (64, "none"): 50, (64, "linear"): 51}
    records = [
        record_of(1, s, batch=batch, lr_rule=rule, metrics=measured(rate, 0.9 + s / 1000))
        for (batch, rule), rate in rates.items()
        for s in range(seeds)
    ]
    decision = decided(records)
    assert (decision.cell_id, decision.common_baseline_id) == ("1-32-none", "1-32-none")
    assert left_out(decision) == {"same_training": 1} and decision.reasons[0].values["count"] == 4
    assert "1-32-linear" not in {cell.cell_id for cell in decision.shortlist}


@pytest.mark.parametrize(("axis", "gpus"), [("strategy", 1), ("model", 2)])
def test_layouts_are_compared_with_the_fewest_gpus(axis, gpus):
    """The second value is better by rounding, which matters only among models."""
    records = [
        record_of(g, s, batch=32 // g, axes={axis: value}, metrics=measured(100, 0.9 + s / 1000 + 1e-6 * g))
        for g, value in ((1, "a"), (2, "b"))
        for s in range(3)
    ]
    decision = decided(records, axes=cell_axes(records))
    assert (decision.common_baseline_id or "").startswith(f"{gpus}-")


def test_equal_trainings_keep_one_with_a_valid_timing():
    untimed = [record_of(1, s, metrics=measured(400, 0.9 + s / 1000) | SHORT) for s in range(3)]
    valid = [record_of(1, s, lr_rule="linear", metrics=measured(100, 0.9 + s / 1000) | LONG) for s in range(3)]
    valid += [record_of(2, s, metrics=measured(50, 0.9 + s / 1000) | LONG) for s in range(3)]
    decision = decided([*untimed, *valid])
    assert (decision.cell_id, decision.common_baseline_id) == ("1-32-linear", "1-32-linear")


def test_warm_ups_are_equal_trainings_at_the_reference_batch_only():
    def records(batch, lr):
        return [
            record_of(
                1, s, batch=batch, lr=lr, axes={"warmup_epochs": w}, metrics=measured(batch + w, 0.9 + (s + w) / 1000)
            )
            for w in (0, 5)
            for s in range(3)
        ]

    axes = {"axes": {"device_batch_size": "device_batch_size", "warmup_epochs": "warmup_epochs"}}
    assert left_out(decided(records(32, 0.1), **axes)) == {"same_training": 1}
    assert left_out(decided(records(64, 0.2), **axes)) == {}


@pytest.mark.parametrize(("own_seeds", "count"), [(0, 1), (1, 0)])
def test_a_cell_of_copies_is_no_rival_of_its_original(own_seeds, count):
    records = [record_of(1, seed, metrics=measured(100, 0.9 + seed / 1000)) for seed in range(3)]
    copies = [
        record_of(
            *(1, seed),
            metrics=row.metrics,
            strategy="fsdp",
            axes={"strategy": "fsdp"},
            same_as=row.trial_id if seed >= own_seeds else "",
        )
        for seed, row in enumerate(records)
    ]
    decision = decided([*records, *copies], axes={"gpus": "gpus", "strategy": "strategy"})
    assert left_out(decision).get("same_training", 0) == count
    assert len(decision.shortlist) == 2 - count


NOISE = {1: (0, 4, -4), 2: (3, -3, 0), 4: (-4, 1, 3), 8: (-2, 4, -2), 16: (4, -3, -1), 32: (-1, -3, 4)}
"""Thousandths of accuracy by GPUs and seed: 0 in the mean."""


def flat_but_for_the_fastest(short):
    return [
        record_of(gpus, seed, metrics=measured(100 * gpus, 0.9 + noise / 1000 - short * (gpus == 32)))
        for gpus, by_seed in NOISE.items()
        for seed, noise in enumerate(by_seed)
    ]


def test_similar_cells_admit_a_cell_just_beyond_the_margin():
    # All but the fastest are as accurate as the baseline; that one misses the margin by .0002, and errors are .0015.
    decision = decided(flat_but_for_the_fastest(0.0102))
    assert decision.cell_id == "32-32-none" and 0.5 < decision.p_within_margin < 0.9
    assert "within_by_pooling" in codes(decision.reasons)
    # What its own seeds show beyond doubt is believed.
    assert decided(flat_but_for_the_fastest(0.03)).cell_id == "16-32-none"


def test_cells_are_similar_by_batch_and_recipe():
    records = flat_but_for_the_fastest(0.0)
    frames = collect(records, scaling="weak", reference_batch_size=32)
    cells = frames[1].assign(lr_rule=["none", "linear"] * 3, **{"axes.model": ["a", "a", "b", "b", "c", "c"]})
    axes = {"gpus": "gpus", "lr_rule": "lr_rule", "model": "axes.model"}
    decision = Contenders.of(frames[0], cells, Terms(axes=axes)).measurements.likeness
    assert len(set(decision.recipe.tolist())) == 6
    assert sorted(decision.batch.tolist()) == [32, 64, 128, 256, 512, 1024]
    only = Contenders.of(*frames, Terms(axes={"gpus": "gpus", "device_batch_size": "device_batch_size"}))
    assert set(only.measurements.likeness.recipe.tolist()) == {0}


def admitting(decision):
    """The remark on the margin that would admit the fastest cell."""
    wider = [remark for remark in decision.sensitivity if remark.code == "wider_margin"]
    return next(remark.values for remark in wider if remark.values["name"] == "32×32 none")


def test_a_margin_that_admits_a_cell_counts_similar_cells():
    """Each doubling costs .006, and so the fastest .03; its own seeds lost only .0097."""
    short = {gpus: 0.006 * place for place, gpus in enumerate(NOISE)} | {32: 0.0097}
    records = [
        record_of(gpus, seed, metrics=measured(100 * gpus, 0.9 + noise / 1000 - short[gpus]))
        for gpus, by_seed in NOISE.items()
        for seed, noise in enumerate(by_seed)
    ]
    decision = decided(records)
    wider = admitting(decision)
    assert wider["lets_in"] > 0.01 and wider["difference"] == pytest.approx(-0.0097)
    # The margin is that of the estimate, which is named beside the cell's own difference.
    assert 0 <= wider["lets_in"] + wider["estimate"] < 0.001
    assert decided(records, margin=wider["lets_in"]).cell_id == "32-32-none"
    (fastest,) = [setting for setting in decision.shortlist if setting.cell_id == "32-32-none"]
    assert fastest.why_not and fastest.why_not.values["estimate"] == wider["estimate"]
    # Similar cells can also speak for a cell: a margin below the loss of the cell's seeds admits it.
    wider = admitting(decided(flat_but_for_the_fastest(0.0125)))
    assert wider["lets_in"] < 0.0125 and 0 <= wider["lets_in"] + wider["estimate"] < 0.001


def waited(walls, **metrics):
    """Return three seeds on one and on two GPUs, which train for 60 s and 30 s, and end after these times."""
    rows = swayed({1: 100, 2: 200}, {1: 0.9, 2: 0.9})
    return [
        replace(row, wall_s=walls[int(row.gpus)] + row.seed / 10, metrics={**row.metrics, **metrics}) for row in rows
    ]


def test_a_cell_that_ends_later_is_not_chosen():
    """Two GPUs train twice as fast, but take 120 s to compile."""
    decision = decided(waited({1: 65, 2: 152}))
    assert (decision.cell_id, decision.deciding_time, decision.verdict) == ("1-32-none", "total_time", "clear")
    later = values(decision.details, "ends_later")
    assert later["name"] == "2×32 none" and later["total_time"] == pytest.approx(152.1, rel=0.01)
    assert decision.measure.endswith("start-up included") and decision.gpu_steps[0].worth == "not worth it"
    assert decision.shortlist[0].on_front and decision.shortlist[0].value("total_time") == pytest.approx(65.1, rel=0.01)


@pytest.mark.parametrize(
    ("walls", "metrics"),
    [
        ({1: 65, 2: 50}, {}),  # start-up changes nothing
        ({1: 65, 2: 64.9}, {}),  # it may change something, which is not shown
        (
            {1: 65, 2: 152},
            {"window_s": 62.0, "window_steps": 600},
        ),  # a benchmark, which trains for less than its window
        ({1: 55, 2: 152}, {}),  # the trials on one GPU cannot have been shorter than their training
    ],
)
def test_training_time_decides_unless_the_favourite_ends_later(walls, metrics):
    decision = decided(waited(walls, **metrics))
    assert (decision.cell_id, decision.deciding_time) == ("2-32-none", "time")


def test_the_start_of_processes_decides_nothing_between_rules_that_share_a_timing():
    """The first rule's trial waits 60 s for its processes; the second one continues in them, and is less accurate."""
    trials = [record_of(2, lr_rule="linear", wall_s=125, metrics=measured(100, 0.9))]
    later = {"timed_with": trials[0].trial_id, "in_kept_processes": True}
    trials += [record_of(2, lr_rule="sqrt", wall_s=65, metrics=measured(100, 0.89), **later)]
    decision = decided([*trials, record_of(1, metrics=measured(50, 0.9), wall_s=190)])
    chosen = decision.cell(decision.cell_id)
    assert (chosen.values["lr_rule"], decision.deciding_time) == ("linear", "time")


def test_one_seed_that_ends_much_later_is_not_chosen_either():
    decision = decided([row for row in waited({1: 65, 2: 152}) if row.seed == 0])
    assert (decision.cell_id, decision.deciding_time) == ("1-32-none", "total_time")


def test_a_start_up_that_took_long_by_chance_decides_nothing():
    """One trial of 1.54 times the speed ends after 11.3 s instead of 9.67 s."""
    trials = [
        record_of(gpus, metrics=measured(rate, 0.9, samples=1000), wall_s=wall_s)
        for gpus, rate, wall_s in ((1, 250, 9.67), (2, 385, 11.3))
    ]
    decision = decided(trials)
    assert (decision.cell_id, decision.deciding_time) == ("2-32-none", "time")
    assert decision.verdict != "clear" and {"one_seed", "ended_later"} <= set(codes(decision.caveats))


def with_losses(losses, metric="val_loss"):
    """Return cells on one GPU by batch, each twice as fast as the one before; 32 is the reference batch."""
    return [
        record_of(
            1,
            s,
            batch=batch,
            metrics={"samples_per_s": batch * (1 + s / 1000), "samples": 6000}
            | ({} if loss is None else {metric: loss + s / 1000 + batch / 1e6 * (s == 1)}),
        )
        for batch, by_seed in losses.items()
        for s, loss in enumerate(by_seed)
    ]


LOSS = {"metric": Metric.named("val_loss"), "margin": 0.05}
GOOD = [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("bad", "missing", "metric"), [(math.nan, 3, "val_loss"), (-math.inf, 1, "perplexity"), (None, 1, "val_loss")]
)
def test_a_cell_without_the_metric_in_a_seed_is_not_eligible(bad, missing, metric):
    losses = {32: GOOD, 64: GOOD, 128: [*[bad] * missing, *GOOD[missing:]]}
    decision = decided(with_losses(losses, metric), metric=Metric.named(metric), margin=0.05)
    assert (decision.cell_id, decision.verdict) == ("1-64-none", "clear") and left_out(decision) == {"no_metric": 1}
    assert decision.p_best == decision.p_within_margin == 1


def test_a_missing_metric_counts_as_a_collapsed_seed():
    trials, cells, _ = decided_with_frames(with_losses({32: GOOD, 64: [math.nan, 2.0, 2.0]}), **LOSS)
    assert trials["collapsed"].tolist() == [False] * 3 + [True, False, False]
    assert cells["n_collapsed"].tolist() == [0, 1]


def test_a_sweep_without_the_metric_is_about_speed_alone():
    trials, cells, decision = decided_with_frames(with_losses({32: [None] * 3, 64: [math.nan] * 3}), **LOSS)
    assert (decision.cell_id, decision.verdict, decision.headline.code) == ("1-64-none", "speed only", "fastest")
    assert trials["collapsed"].isna().all() and "accuracy_unknown" in codes(decision.details)


@pytest.mark.parametrize(("key", "value"), [("metric", "val_loss"), ("target", 2.0)])
def test_nothing_is_chosen_without_a_metric_that_is_asked_for(key, value):
    trials, cells, _ = decided_with_frames(with_losses({32: [None] * 3, 64: [math.nan] * 3}), **LOSS)
    report = ReportSection(**{key: value})
    decision = decide(trials, cells, Terms(axes=AXES, report=report, metric=Metric.named("val_loss")))
    assert (decision.cell_id, decision.headline.code, decision.commands) == (None, "metric_missing", ())
    assert decision.headline.values["measured"] == []
    decision = decide(trials.assign(f1=0.5), cells, Terms(axes=AXES, report=report, metric=Metric.named("val_loss")))
    assert decision.headline.values["measured"] == ["f1"]


def test_a_baseline_counts_by_the_seeds_that_have_the_metric():
    decision = decided(with_losses({32: [None, 2.0, 2.0], 64: GOOD, 128: [2.5, 2.5, 2.5]}), **LOSS)
    assert (decision.cell_id, decision.common_baseline_id, decision.verdict) == ("1-64-none", "1-32-none", "undecided")
    collapsed = values(decision.caveats, "baseline_collapsed")
    assert (collapsed["hits"], collapsed["n"], collapsed["drop"]) == (1, 3, math.inf)


def test_a_reference_without_the_metric_is_no_baseline():
    decision = decided(with_losses({32: [None] * 3, 64: GOOD, 128: GOOD}), **LOSS)
    assert decision.common_baseline_id == "1-64-none" and decision.cell_id == "1-128-none"
    assert left_out(decision) == {"no_metric": 1}
    assert "1-32-none" not in [cell.cell_id for cell in decision.shortlist]


def test_an_untimed_cell_without_the_metric_does_not_seem_better():
    good = with_losses({32: GOOD, 64: GOOD})
    untimed = [record_of(4, s, metrics={"samples_per_s": 900, "samples": 6000, "foreign_cpu": 0.5}) for s in range(3)]
    assert decided([*good, *untimed], **LOSS).cell_id == "1-64-none"
    assert [c.why_none and c.why_none.code for c in decided([*good, *untimed], **LOSS).gpu_counts] == [
        None,
        "none_has_metric",
    ]


HALF = {"epochs": 4, "samples": 1000}
WHOLE = {"epochs": 8, "samples": 2000}
EIGHT = {"budget": {"epochs": 8}}


@pytest.mark.parametrize(
    ("records", "chosen", "short"),
    [
        ([*timed(1, 100, WHOLE, **EIGHT), *timed(2, 400, HALF, **EIGHT)], "1-32-none", 1),
        ([*timed(1, 100, WHOLE, **EIGHT), *timed(2, 400, WHOLE, **EIGHT)], "2-32-none", 0),
        ([*timed(1, 100, HALF, **EIGHT), *timed(2, 400, HALF, **EIGHT)], "2-32-none", 0),  # no cell did its work
        ([*timed(1, 100, WHOLE | BUSY, **EIGHT), *timed(2, 400, HALF, **EIGHT)], None, 1),
    ],
)
def test_a_cell_that_did_less_is_never_chosen_over_one_that_did_its_work(records, chosen, short):
    recommendation = decided(records)
    assert (recommendation.cell_id, left_out(recommendation).get("cells_short", 0)) == (chosen, short)


@pytest.mark.parametrize(("devices", "on_cpu"), [(("cpu", "cpu"), True), (("cpu", "cuda"), False)])
def test_processes_are_counted_only_where_no_cell_has_a_gpu(devices, on_cpu):
    records = [
        record_of(gpus, seed, device=device, metrics=measured(100.0 * gpus, 0.9))
        for gpus, device in zip((1, 2), devices, strict=True)
        for seed in (0, 1)
    ]
    assert decided(records).on_cpu == on_cpu
