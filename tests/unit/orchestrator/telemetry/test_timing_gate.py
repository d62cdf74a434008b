import dataclasses
from typing import Any

import pytest

from orchestrator.run.round_sources import to_repeat
from orchestrator.telemetry.timing_gate import Fault, disturbances, judgements_of, why_discarded
from sweeps.identity import COMMAND, LOOPS
from sweeps.status import Status
from sweeps.trial import Purpose
from tests.contract.trials import trial
from tests.unit.orchestrator.records import record_of

QUIET: dict[str, Any] = {
    "window_s": 2.1,
    "window_steps": 60,
    "foreign_cpu": 0.02,
    "throttled_periods": 0,
    "swapped_pages": 3,
    "foreign_gpu_processes": 0,
    "sm_clock_mhz": 1980,
    "throttle_reasons": "power cap",
}


def first(*records):
    """Return the judgement of the first of these timings."""
    return judgements_of(records)[records[0].trial_id]


def reasons(**metrics):
    judgement = first(record_of(metrics=QUIET | metrics), *(record_of(seed=seed, metrics=QUIET) for seed in (1, 2)))
    short = metrics.keys() & {"window_s", "window_steps"}
    assert judgement.fault == (None if not judgement.reasons else Fault.TOO_SHORT if short else Fault.DISTURBED)
    return list(judgement.reasons)


@pytest.mark.parametrize(
    ("metrics", "parts"),
    [
        ({"window_s": 1.9}, ["below 2 s", "50 steps"]),
        ({"window_steps": 49}, ["below 2 s", "50 steps"]),
        ({"foreign_cpu": 0.31, "foreign_cpu_by": "{hog}"}, ["others took 31%", "{hog}"]),
        ({"foreign_gpu_processes": 2}, ["on the GPUs: 2"]),
        ({"throttled_periods": 4}, ["CPU quota", "4 periods"]),
        ({"swapped_pages": 5000}, ["5000 pages", "swapped"]),
        ({"throttle_reasons": "hardware slowdown, power cap"}, ["throttled: hardware slowdown"]),
        ({"sm_clock_mhz": 1800, "throttle_reasons": ""}, ["clock 1800 MHz", "9% below"]),
    ],
)
def test_reason_has_the_figure_of_each_cause(metrics, parts):
    (reason,) = reasons(**metrics)
    assert all(part in reason for part in parts) and "power cap" not in reason


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"foreign_gpu_processes": 0, "idle_gpu_processes": 2},
        {"foreign_cpu": 0.05},
        {"sm_clock_mhz": 1890},
        {"sm_clock_mhz": 1500},
        {"window_s": None, "window_steps": None},
    ],
)
def test_a_clean_window_is_valid(metrics):
    """Also one that clocks low because its work takes all the power there is, and a trainable's that tells of none."""
    assert reasons(**metrics) == []


@pytest.mark.parametrize(
    ("metrics", "short"),
    [
        ({"samples_per_s": 9, "steps": 8}, True),
        ({"samples_per_s": 9, "train_s": 1.5}, True),
        ({"epoch_s": 1, "window_s": 3.0, "steps": 8}, True),
        ({"samples_per_s": 9, "window_s": 3.0, "window_steps": 60, "steps": 8, "train_s": 1.0}, False),
        ({"samples_per_s": 9}, False),
        ({"accuracy": 0.5, "steps": 8}, False),
    ],
)
def test_without_a_window_the_training_limits_it(metrics, short):
    assert first(record_of(metrics=metrics)).fault == (Fault.TOO_SHORT if short else None)


@pytest.mark.parametrize(
    ("gpus", "metrics", "reason"),
    [
        (2, {"workers": 1}, "1 of 2 GPUs trained"),
        (2, {"busy_gpus": 1}, "1 of 2 GPUs trained"),
        (4, {"workers": 4, "busy_gpus": 3}, "3 of 4 GPUs trained"),
        (2, {"workers": 1, "foreign_cpu": 0.5, "window_s": 0.1}, "1 of 2 GPUs trained"),
        (2, {"workers": 2, "busy_gpus": 2}, ""),
        (1, {"workers": 1}, ""),
        (0.5, {"busy_gpus": 0}, ""),
        (2, {}, ""),
    ],
)
def test_too_few_workers_come_first(gpus, metrics, reason):
    judgement = first(record_of(gpus, metrics=QUIET | metrics))
    assert judgement.fault == (Fault.TOO_FEW_WORKERS if reason else None)
    assert not reason or judgement.reasons[0] == reason
    # A rank for each GPU has trained, however little load it made.
    assert "workers" in metrics or first(record_of(gpus, metrics=QUIET | metrics, ranks=2)).fault is None


@pytest.mark.parametrize(
    ("compute_s", "foreign", "fault"),
    [
        (0.95, 0.9, None),  # the GPU is busy: 90% of the cores for 5% of a step
        (0.91, 0.9, Fault.DISTURBED),
        (0.2, 0.07, Fault.DISTURBED),
        (1.0, 1.0, None),
        (None, 0.07, Fault.DISTURBED),
    ],
)
def test_load_on_cpus_counts_as_far_as_the_gpu_waits_for_them(compute_s, foreign, fault):
    known = {"foreign_cpu": foreign, "step_s": 1.0}
    metrics = QUIET | known | ({} if compute_s is None else {"step_compute_s": compute_s})
    for device, expected in (("cuda", fault), ("cpu", Fault.DISTURBED)):
        assert first(record_of(device=device, metrics=metrics)).fault == expected


def test_only_ok_trials_are_judged():
    assert judgements_of([record_of(1, 0, Status.OOM, metrics=QUIET)]) == {}


def test_each_device_model_has_its_own_median():
    slow = {**QUIET, "sm_clock_mhz": 1200, "throttle_reasons": ""}
    records = [record_of(1, 0, metrics=slow, provenance={"device_model": "A100"}), record_of(1, 1, metrics=QUIET)]
    assert not any(judgement.fault for judgement in judgements_of(records).values())


def test_clock_without_phases_is_ignored():
    """It is the mean of its whole time, start-up included: 1,004 to 1,246 MHz were seen where all ran at 1,980."""
    unnamed = {name: QUIET[name] for name in ("window_s", "window_steps")}
    rates = enumerate((1004, 1060, 1246))
    records = [record_of(1, seed, metrics=unnamed | {"sm_clock_mhz": mhz}) for seed, mhz in rates]
    assert not any(judgement.fault for judgement in judgements_of(records).values())


def test_shared_timings_are_invalid_and_not_disturbed():
    record = record_of(timing="shared", metrics=QUIET | {"foreign_cpu": 0.5})
    assert "timing shared" in first(record).reasons[0] and first(record).fault is Fault.SHARED
    assert disturbances([record])[record.trial_id] == []


def ends(count, busy, **fields):
    records = [
        record_of(1, n, metrics=QUIET | {"foreign_cpu": 0.4 if n < busy else 0}, trial_id=f"t{n}", **fields)
        for n in range(count)
    ]
    return {record.trial_id: record for record in records}


@pytest.mark.parametrize(("share", "again"), [(0.1, 2), (0.0, 0), (0.01, 1), (1.0, 5)])
def test_at_most_a_share_of_the_trials_is_repeated(share, again):
    ran = [trial(f"t{n}", "quick", timing="device") for n in range(20)]
    repetitions = to_repeat(ran, ends(20, 5), (), share)
    assert [repetition.measures for repetition in repetitions] == [f"t{n}" for n in range(again)]
    assert all(repetition.timing == "exclusive" for repetition in repetitions)


@pytest.mark.parametrize(
    ("row", "is_repeated"),
    [
        ({"metrics": QUIET | {"foreign_cpu": 0.4, "window_s": 0.5}}, False),  # it is also too short
        ({"metrics": QUIET | {"foreign_cpu": 0.4}, "attempt": 2}, True),  # it replaced one that may have been valid
        ({"metrics": QUIET, "disturbed": "others took all of it"}, True),  # it has an earlier timing
    ],
)
def test_only_ended_trials_with_a_disturbed_timing_are_repeated(row, is_repeated):
    ended = record_of(**row)
    ran = [trial(ended.trial_id, "quick")]
    assert len(to_repeat(ran, {ended.trial_id: ended}, (), 1)) == is_repeated
    assert to_repeat([], {ended.trial_id: ended}, (), 1) == to_repeat(ran, {}, (), 1) == []


def test_earlier_repetitions_count_and_are_not_run_again():
    ran = [trial(f"t{n}", "quick", timing="device") for n in range(20)]
    assert to_repeat(ran, ends(20, 5), {"t0", "t9"}, 0.1) == []
    assert [repetition.measures for repetition in to_repeat(ran, ends(20, 5), {"t0", "t9"}, 0.15)] == ["t1"]


def test_one_of_several_rules_with_the_same_steps_is_repeated_in_the_own_loop():
    busy = QUIET | {"foreign_cpu": 0.4}
    rows = [record_of(1, 0, metrics=busy, trial_id=rule, lr_rule=rule) for rule in ("none", "linear", "lars")]
    by_id = {row.trial_id: row for row in rows}

    def repeated(target):
        ran = [dataclasses.replace(trial(rule, "quick"), trainable=target) for rule in by_id]
        return [repetition.measures for repetition in to_repeat(ran, by_id, (), 1)]

    assert repeated(LOOPS[0]) == ["none", "lars"]
    assert repeated(COMMAND) == ["none", "linear", "lars"]


def test_a_repetition_ends_with_its_window_also_with_a_target():
    settings = {"repetition": {"trainable": {"only_timed": True}}}
    target = {"metric": "val_accuracy", "value": 0.9, "higher_is_better": True}
    plain = trial("t0", "quick", timing="device", trainable=settings)
    to_target = trial("t1", "quick", timing="device", trainable=settings, report={"target": target})
    whole = trial("t2", "quick", timing="device", trainable={})
    repetitions = to_repeat([plain, to_target, whole], ends(3, 3), (), 1)
    kinds = [("t0", "window"), ("t1", "window"), ("t2", "repetition")]
    assert [(again.measures, again.purpose) for again in repetitions] == kinds
    assert all(again.timing == "exclusive" and again.trial_id not in ("t0", "t1", "t2") for again in repetitions)
    assert repetitions[1].config["trainable"]["only_timed"] and repetitions[2].config == whole.config


HERE = {"device_model": "H200", "torch": "2.6", "host": "a"}


@pytest.mark.parametrize(
    ("now", "before", "where", "figure"),
    [
        (0.4, 0.0, HERE, "40%"),
        (0.4, 0.0, HERE | {"host": "b"}, "40%"),
        (0.4, 0.4, HERE, ""),
        (0.0, 0.0, HERE, ""),
        (0.4, 0.0, HERE | {"torch": "2.7"}, ""),
        (0.4, 0.0, HERE | {"device_model": "H100"}, ""),
    ],
)
def test_valid_timing_is_preferred_to_a_disturbed_one(now, before, where, figure):
    now_ended = record_of(1, 0, metrics=QUIET | {"foreign_cpu": now}, provenance=where)
    earlier = record_of(1, 0, metrics=QUIET | {"foreign_cpu": before}, provenance=HERE)
    reason = why_discarded(now_ended, {earlier.trial_id: earlier})
    assert figure in reason and bool(reason) is bool(figure)
    assert why_discarded(dataclasses.replace(now_ended, status=Status.OOM), {earlier.trial_id: earlier}) == ""


def test_a_repetition_counts_if_its_timing_is_valid_and_comparable():
    row = record_of(1, 0, metrics=QUIET | {"foreign_cpu": 0.4}, provenance=HERE)
    rows = {row.trial_id: row}
    good = dataclasses.replace(row, measures=row.trial_id, timing="exclusive", metrics=QUIET)
    assert why_discarded(good, rows) == ""
    assert "40%" in why_discarded(dataclasses.replace(good, metrics=row.metrics), rows)
    assert "hardware" in why_discarded(dataclasses.replace(good, provenance={"device_model": "cpu"}), rows)


@pytest.mark.parametrize(
    ("of_row", "measured", "purpose", "what"),
    [
        ({"epoch_s": 3.0, "window_s": 9.0}, {"epoch_s": 5.0}, "window", "it did not measure window_s"),
        ({"samples_per_s": 3.0, "epoch_s": 1.0}, {}, "repetition", "it did not measure samples_per_s, epoch_s"),
        ({"train_s": 3.0}, {"train_s": 1.0}, "window", "it did not measure train_s"),
        ({"train_s": 3.0}, {"train_s": 1.0}, "repetition", ""),
        ({"samples_per_s": 3.0, "train_s": 3.0}, {"samples_per_s": 5.0}, "window", ""),
    ],
)
def test_repetition_must_measure_the_rows_speed(of_row, measured, purpose, what):
    row = record_of(1, 0, metrics=of_row | {"foreign_cpu": 0.4}, provenance=HERE)
    timed = dataclasses.replace(row, measures=row.trial_id, purpose=Purpose(purpose), metrics=measured)
    assert why_discarded(timed, {row.trial_id: row}) == what
