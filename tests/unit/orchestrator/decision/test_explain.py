"""The headline, the reasons and the caveats of a decision, as codes with values."""

import math

import pytest

from orchestrator.decision.recommendation import CLEAR, NOT_WORTH, UNDECIDED
from orchestrator.decision.thresholds import SURE, SURE_OF_SELECTED
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import AXES, codes, decided, left_out, measured, swayed, target, values
from tests.unit.orchestrator.records import record_of


def test_one_seed_is_provisional_and_asks_for_three():
    decision = decided([record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)])
    assert decision.provisional and math.isnan(decision.p_best) and codes(decision.caveats) == ["one_seed"]
    assert [(more.cell_id, more.seeds) for more in decision.more_seeds] == [("2-32-none", 2), ("1-32-none", 2)]
    assert decision.commands == ("python -m orchestrator sweep=demo mode=settle",)
    assert decision.gpu_steps[0].worth == UNDECIDED


def test_single_seeds_that_are_much_slower_get_no_more():
    decision = decided([record_of(g, 0, metrics=measured(rate, 0.9)) for g, rate in ((1, 100), (2, 90), (4, 50))])
    assert [more.cell_id for more in decision.more_seeds] == ["1-32-none", "2-32-none"]


def test_without_accuracies_the_fastest_is_provisional():
    metrics = {"samples_per_s": 100.0, "samples": 6000}
    faster = {**metrics, "samples_per_s": 150.0}
    records = [
        record_of(g, s, metrics=cell_metrics) for g, cell_metrics in ((1, metrics), (2, faster)) for s in range(3)
    ]
    decision = decided(records)
    assert (decision.cell_id, decision.provisional, decision.headline.code) == ("2-32-none", True, "fastest")
    assert decision.headline.values["objective"] == pytest.approx(40.0)
    assert values(decision.details, "scaling") == pytest.approx({"scaling": 1.5, "lo": 1.5, "hi": 1.5})
    assert values(decision.details, "accuracy_unknown")["on_test_set"] is False


@pytest.mark.parametrize(("steps", "reported"), [(10, True), (9, False)])
def test_test_accuracies_of_trained_cells_are_reported(steps, reported):
    figures = {"samples": 6000, "steps": steps, "window_s": 3.0, "window_steps": 60}
    records = [record_of(g, metrics={**figures, "samples_per_s": 100.0 * g, "accuracy": 0.9 - g / 10}) for g in (1, 2)]
    records.append(record_of(4, metrics={**figures, "samples_per_s": 1.0}))
    decision = decided(records)
    assert ("test_accuracy" in codes(decision.details)) is reported
    if reported:
        tested = values(decision.details, "test_accuracy")
        assert tested == {"own": pytest.approx(0.7), "highest": pytest.approx(0.8), "name": "1×32 none"}


def test_a_single_cell_has_no_probability(records):
    decision = decided(records[:3])
    assert codes(decision.caveats) == ["nothing_to_compare"] and decision.provisional
    assert math.isnan(decision.p_best) and math.isnan(decision.behind) and decision.more_seeds == ()
    assert codes(decision.reasons)[0] == "only_cell"


@pytest.mark.parametrize(
    ("status", "skipped_by", "is_clear"),
    [
        (Status.OOM, "", True),
        (Status.DIVERGED, "", True),
        (Status.SKIPPED, "early_stop", True),
        (Status.SKIPPED, "phases", True),
        (Status.SKIPPED, "budget", False),
        (Status.SKIPPED, "base", False),
        (Status.FAILED, "", False),
        (Status.INFEASIBLE, "", False),
    ],
)
def test_the_last_cell_is_clear_if_the_others_are_ruled_out(records, status, skipped_by, is_clear):
    others = [record_of(2, seed, status, skipped_by=skipped_by) for seed in range(3)]
    decision = decided([*records[:3], *others])
    assert decision.verdict == (CLEAR if is_clear else UNDECIDED)
    assert ("nothing_to_compare" in codes(decision.caveats)) is not is_clear
    assert (decision.gpu_steps[0].worth == NOT_WORTH) is (is_clear and status is Status.SKIPPED)


def phased(rule):
    """Return two cells with three seeds, and a poor one whose further seeds the rule skipped."""
    poor = [record_of(1, 0, batch=256, metrics=measured(120, 0.5))]
    poor += [record_of(1, seed, Status.SKIPPED, batch=256, skipped_by=rule) for seed in (1, 2)]
    return [*swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9}), *poor]


def test_seeds_that_phases_left_out_are_no_doubt():
    decision = decided(phased("phases"))
    assert (decision.verdict, decision.caveats, decision.more_seeds) == (CLEAR, (), ())


def test_seeds_that_a_budget_left_out_are_asked_for():
    decision = decided([record for record in phased("budget") if record.seed == 0 or record.skipped_by])
    assert decision.verdict == UNDECIDED and decision.commands
    cut = [record_of(g, s, Status.SKIPPED, skipped_by="budget") for g in (1, 2) for s in (1, 2)]
    decision = decided([*(record_of(g, 0, metrics=measured(100 * g, 0.9)) for g in (1, 2)), *cut])
    assert [(more.cell_id, more.seeds) for more in decision.more_seeds] == [("2-32-none", 2), ("1-32-none", 2)]


def test_cells_that_miss_the_target_are_ruled_out():
    fast = [record_of(2, s, metrics=measured(200, 0.8)) for s in range(3)]
    slow = [record_of(1, s, metrics=measured(100, 0.95 + s / 1000, time_to_target_s=40 + s)) for s in range(3)]
    decision = decided([*slow, *fast], target=target(0.9))
    assert (decision.verdict, decision.cell_id) == (CLEAR, "1-32-none")
    assert decision.gpu_counts[1].why_none and decision.gpu_counts[1].why_none.code == "none_reaches_target"
    assert left_out(decision) == {"target_not_reached": 1} and decision.gpu_steps[0].worth == NOT_WORTH


def test_seeds_without_effect_are_a_caveat():
    alike = [record_of(g, s, metrics=measured(100 * g + s, 0.9)) for g in (1, 2) for s in range(3)]
    decision = decided(alike)
    assert decision.provisional and codes(decision.caveats) == ["seeds_without_effect"]
    differing = decided([*alike, record_of(2, 3, metrics=measured(203, 0.901))])
    assert "seeds_without_effect" not in codes(differing.caveats)


def test_without_accuracies_a_tie_goes_to_the_cheapest():
    records = [
        record_of(gpus, seed, metrics={"samples_per_s": pace * 1.001**seed, "samples": 6000})
        for gpus, pace in ((1, 100), (2, 101))
        for seed in range(3)
    ]
    chosen, other = decided(records).shortlist
    assert chosen.cell_id == "1-32-none" and chosen.why_not is None
    assert other.why_not and (other.why_not.code, other.why_not.values["name"]) == ("needs_more_hours", "1×32 none")


@pytest.mark.parametrize(
    ("speeds", "accuracies", "p_best", "rival", "p_within"),
    [
        ({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902}, 0.6, 0.79, None),
        ({1: 50, 2: 101, 4: 100}, {1: 0.9, 2: 0.905, 4: 0.902}, 0.78, None, None),
        ({1: 50, 2: 100, 4: 103}, {1: 0.9, 2: 0.9, 4: 0.8905}, 0.64, None, None),
        ({1: 50, 2: 100, 4: 400}, {1: 0.9, 2: 0.8905, 4: 0.8895}, 0.34, 0.42, 0.58),
    ],
)
def test_a_likelier_rival_is_listed(speeds, accuracies, p_best, rival, p_within):
    decision = decided(swayed(speeds, accuracies))
    caveats = decision.caveats
    chances = values(caveats, "unsure")["chances"]
    assert chances["p_best"] == pytest.approx(p_best, abs=0.02)
    likelier = [rival_cell for rival_cell in decision.rivals if rival_cell.p_best > decision.p_best + 0.01]
    assert [rival_cell.name for rival_cell in likelier] == (["4×32 none"] if rival else [])
    assert not rival or likelier[0].p_best == pytest.approx(rival, abs=0.02)
    assert chances.get("p_within") == (p_within and pytest.approx(p_within, abs=0.02))


def test_where_only_accuracy_is_open_speed_is_no_question():
    spread = {1: (0.90, 0.90, 0.90), 2: (0.88, 0.89, 0.90)}
    records = [record_of(g, s, metrics=measured(100 * g, spread[g][s])) for g in (1, 2) for s in range(3)]
    decision = decided(records, margin=0.015)
    chances = values(decision.caveats, "unsure")["chances"]
    assert decision.p_best < 0.95 and list(chances) == ["p_within"]


def test_a_higher_threshold_has_its_reason():
    three = swayed({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902})
    of_three, of_four = (
        values(decided(records).caveats, "unsure")
        for records in (three, [*three, record_of(2, 3, metrics=measured(100, 0.905))])
    )
    assert (of_three["needed"], of_three["uneven_seeds"]) == (SURE, False)
    assert (of_four["needed"], of_four["uneven_seeds"]) == (SURE_OF_SELECTED, True)


@pytest.mark.parametrize(("steps", "doubtful"), [(9, True), (10, False)])
def test_accuracies_after_few_steps_are_a_caveat(steps, doubtful):
    few = {"steps": steps, "window_s": 3.0, "window_steps": 60}
    records = [record_of(g, s, metrics=measured(100 * g, 0.9 + s / 1000) | few) for g in (1, 2) for s in range(3)]
    caveats = decided(records).caveats
    assert ("untrained" in codes(caveats)) is doubtful
    assert not doubtful or values(caveats, "untrained")["steps"] == steps


def test_a_missed_target_falls_back_to_the_budget(records):
    decision = decided(records, target=target(0.99))
    assert "fixed budget" in decision.measure
    assert decision.provisional and codes(decision.caveats) == ["target_missed"]
    assert values(decision.reasons, "no_target")["why"] == "target_missed"
    without = decided(records)
    assert without.caveats == () and values(without.reasons, "no_target")["why"] == "no_target"


def test_launches_timed_by_one_process_are_reported():
    def changes(host_s, *processes):
        step = {"step_s": 0.01, "step_host_s": host_s}
        where = [{"device_model": "NVIDIA H200", "process": process} for process in processes]
        records = [
            record_of(gpus, seed, metrics=measured(100 * gpus, 0.9) | step, provenance=place)
            for gpus in (1, 2)
            for seed, place in enumerate(where)
        ]
        decision = decided(records).sensitivity
        assert all(remark.values["share"] == pytest.approx(0.4) for remark in decision if remark.code == "launch_bound")
        return codes(decision)

    assert "launch_bound" in changes(0.004, "7", "7", "7")
    assert "launch_bound" not in changes(0.004, "7", "8", "9")


def test_the_edge_of_an_axis_includes_failed_cells():
    fine = [record_of(g, s, metrics=measured(100 * g, 0.9)) for g in (1, 2) for s in range(3)]
    edges = [remark.values for remark in decided(fine).sensitivity if remark.code == "at_the_edge"]
    assert {"axis": "gpus", "value": 2, "largest": True, "on_cpu": False} in edges
    failed = [record_of(4, s, Status.OOM) for s in range(3)]
    assert "at_the_edge" not in codes(decided([*fine, *failed]).sensitivity)


def test_a_single_gpu_count_is_reported():
    one = [record_of(1, s, device_batch_size=batch, metrics=measured(batch, 0.9)) for batch in (32, 64) for s in (0, 1)]
    assert values(decided(one).sensitivity, "one_gpu_count") == {"gpus": 1} and decided(one).gpu_steps == ()
    assert "one_gpu_count" not in codes(decided([*one, record_of(2, 0, Status.OOM)]).sensitivity)


def test_gains_of_gpus_and_of_the_batch_are_apart():
    """The baseline is at the reference batch of 32; the best of one GPU is at 64 and twice as fast."""
    speeds = {(1, 32): 100.0, (1, 64): 200.0, (2, 64): 380.0}
    records = [
        record_of(g, s, batch=b, metrics=measured(rate * (1 + s * g * b % 7 / 1000), 0.9 + s / 1000))
        for (g, b), rate in speeds.items()
        for s in range(3)
    ]
    headline = decided(records).headline.values
    factors = headline["of_gpus"], headline["of_batch"], headline["gain"].value
    assert factors == pytest.approx((1.9, 2.0, 3.8), rel=0.01)
    assert headline["gain"].lo < headline["gain"].value < headline["gain"].hi


@pytest.mark.parametrize(
    ("margin", "accuracies", "code"),
    [
        (1.0, {1: 0.9, 2: 0.9}, "margin_too_large"),
        (0.00001, {1: 0.9, 2: 0.9}, "margin_too_small"),
        (0.01, {1: 90.0, 2: 90.0}, "margin_of_fractions"),
        (0.01, {1: 0.9, 2: 0.95, 4: 0.9}, "below_best"),
    ],
)
def test_margins_in_another_unit_and_poor_baselines_are_caveats(margin, accuracies, code):
    speeds = dict.fromkeys(accuracies, 100.0) | {max(accuracies): 300.0}
    decision = decided(swayed(speeds, accuracies), margin=margin)
    assert code in codes(decision.caveats) and decision.verdict != "clear"


def test_a_cell_whose_trials_ended_later_in_all_seeds_is_not_clear():
    """The third cell's total time is not known after a second attempt, so that total times cannot decide."""
    records = [
        record_of(gpus, seed, metrics=measured(rate, 0.9 + seed / 1000), wall_s=wall_s, attempt=attempt)
        for gpus, rate, wall_s, attempt in ((1, 150.0, 60.0, 1), (2, 300.0, 70.0, 1), (4, 160.0, 50.0, 2))
        for seed in range(3)
    ]
    decision = decided(records)
    assert decision.cell_id == "2-32-none" and values(decision.caveats, "ended_later")["by"] == pytest.approx(10)


def test_a_baseline_that_differs_in_the_rate_alone_has_its_rate():
    records = [
        record_of(1, s, axes={"lr_multiplier": x}, lr_multiplier=x, lr=0.1 * x, metrics=measured(100 * x + s, 0.9))
        for x in (1.0, 2.0)
        for s in range(3)
    ]
    headline = decided(records, axes=AXES | {"lr_multiplier": "lr_multiplier"}).headline.values
    assert (headline["name"], headline["baseline"]) == ("1×32 none", "1×32 none, LR 0.1")
