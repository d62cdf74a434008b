"""The remarks of a decision without a cell, as codes with values."""

import math

import pytest

from orchestrator.config.request import Terms
from orchestrator.config.settings import ReportSection
from orchestrator.decision.claim_expressions import Claim
from orchestrator.decision.claim_verdicts import verdicts
from orchestrator.decision.decide import decide
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import AXES, codes, decided, left_out, measured, values
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def without_objective(records, *expressions):
    claims = [Claim.of({"sentence": expression, "expression": expression}) for expression in expressions]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    return decide(*frames, Terms(report=ReportSection(objective="none"), axes=AXES), verdicts(claims, *frames))


def test_without_an_objective_claims_and_speedup_are_reported(records):
    decision = without_objective(records, "gpus(gpus=2) > 1.5", "accuracy() > 2")
    assert (decision.cell_id, decision.provisional, decision.more_seeds, decision.shortlist) == (None, False, (), ())
    assert decision.headline.values == {"counts": {"confirmed": 1, "inconclusive": 1}}
    assert codes(decision.details) == ["largest_scaling", "not_requested"]
    largest = decision.details[0].values
    assert (largest["scaling"], largest["efficiency"]) == pytest.approx((3.0, 0.75))
    assert largest["name"] == "4×32 none"


@pytest.mark.parametrize(
    ("timings", "code", "figures"),
    [
        (("device", "device", "shared"), "largest_scaling", {"name": "2×32 none"}),
        (("device", "shared", "shared"), "no_speed", {"fault": "shared", "count": 2}),
        (("shared", "device", "device"), "no_speed", {"fault": "shared", "count": 1}),
    ],
)
def test_the_largest_scaling_has_valid_timings(timings, code, figures):
    gpus = zip((1, 2, 4), timings, strict=True)
    decision = without_objective([record_of(g, metrics=measured(90 * g, 0.9), timing=timing) for g, timing in gpus])
    assert decision.headline.code == code and figures.items() <= decision.headline.values.items()


@pytest.mark.parametrize(
    ("timing", "load", "on_gpus", "named"),
    [
        ("device", 0.49, 0.0, "chrome"),
        ("device", 0.49, 1.0, ""),  # another program on the GPUs matters more
        ("shared", 0.49, 0.0, ""),
        ("shared", 0.001, 0.0, ""),
        ("device", 0.001, 0.0, ""),  # disturbed by something else
    ],
)
def test_a_program_is_named_only_if_it_disturbed_the_timings(timing, load, on_gpus, named):
    metrics = measured(90, 0.9) | {"foreign_cpu": load, "foreign_cpu_by": "chrome", "swapped_pages": 9000.0}
    metrics["foreign_gpu_processes"] = on_gpus
    headline = decided([record_of(1, seed, metrics=metrics, timing=timing) for seed in range(2)]).headline
    assert (headline.code, headline.values["by"]) == ("no_speed", named)


def test_unmeasured_energy_recommends_nothing(records):
    decision = decided(records, objective="energy")
    assert (decision.cell_id, decision.provisional, math.isnan(decision.p_best)) == (None, True, True)
    assert decision.headline.code == "none_measured" and left_out(decision) == {"cells_not_ok": 1, "no_figure": 3}
    assert decision.headline.values["measure"].startswith("energy ")


def test_training_too_short_for_any_figure_is_a_timing_that_is_not_valid():
    within_warmup = {"samples": 200, "window_s": 0.0, "window_steps": 0, "val_accuracy": 0.9}
    decision = decided([record_of(1, seed, metrics=within_warmup) for seed in range(2)])
    assert left_out(decision) == {"cells_not_timed": 1} and decision.headline.code != "none_measured"


@pytest.mark.parametrize(
    ("status", "code", "to_report"), [(Status.OK, "none_measured", True), (Status.FAILED, "none_ok", None)]
)
def test_without_a_time_the_figures_to_report_are_named(status, code, to_report):
    decision = decided([record_of(1, seed, status, metrics={"samples_per_s": 100.0}, note="boom") for seed in range(3)])
    assert (decision.cell_id, decision.headline.code, decision.headline.values.get("to_report")) == (
        None,
        code,
        to_report,
    )
    if status is Status.FAILED:
        end = {"count": 3, "trials": 3, "status": "failed", "note": "boom"}
        assert values(decision.details, "commonest_end") == end
