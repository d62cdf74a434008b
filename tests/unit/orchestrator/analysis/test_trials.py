"""Rows of trials: their columns, epochs, co-tenants and stragglers, and the frames of a results folder."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.summary import further_axes, further_metrics
from orchestrator.analysis.trials import (
    COLUMNS,
    cell_axes,
    cotenants,
    epochs_trained,
    frames,
    own_metrics,
    parsed_cell,
    stragglers,
    trials_frame,
)
from orchestrator.config.request import Metric
from orchestrator.config.settings import ReportSection
from orchestrator.store.history import History
from orchestrator.store.journal import Journal, replay
from orchestrator.store.record import Kind
from orchestrator.tables.speedup import speedup_markdown
from sweeps.errors import ConfigError
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.requests import request

PUBLISHED = Path(__file__).parents[4] / "docs/results/published"


def test_a_record_is_a_row():
    record = record_of(
        2,
        1,
        axes={"optimizer.momentum": 0.9, "model.widths": [8, 16]},
        metrics={"accuracy": 0.9, "my_metric": 7},
        provenance={"device_model": "NVIDIA H200", "torch": "2.15", "topology": {"nvlink": True}},
    )
    frame = trials_frame([record])
    assert list(frame.columns) == [
        *COLUMNS,
        "optimizer.momentum",
        "model.widths",
        "my_metric",
        "provenance.torch",
        "provenance.topology",
    ]
    row = frame.iloc[0]
    assert (row["gpus"], row["seed"], row["accuracy"], row["my_metric"]) == (2, 1, 0.9, 7)
    assert (row["device"], row["device_model"], row["status"]) == ("NVIDIA H200", "NVIDIA H200", "ok")
    assert (row["model.widths"], row["provenance.topology"]) == ("[8, 16]", '{"nvlink": true}')
    assert math.isnan(row["loss"])


def test_metrics_never_overwrite_columns_of_the_record_or_axes():
    record = record_of(
        1, axes={"strategy": "auto", "loss": "focal", "width": 8}, metrics={"seed": 5, "loss": 0.25, "width": 9.5}
    )
    row = trials_frame([record]).iloc[0]
    assert (row["strategy"], row["axes.strategy"]) == ("ddp", "auto")
    assert (row["loss"], row["axes.loss"]) == (0.25, "focal")
    assert (row["seed"], row["metrics.seed"]) == (0, 5)
    assert (row["width"], row["metrics.width"]) == (8, 9.5)


@pytest.mark.parametrize("metric", ["val_accuracy", "perplexity", "loss"])
def test_numbers_of_own_code_are_columns_of_cells(metric):
    own = {"perplexity": 7.0, "tokens_per_s": 5.0, "seed": 3, "version": "a", "workers": 2, "loss": 4.0}
    records = [record_of(1, seed, metrics=own | {"perplexity": 7.0 + seed}) for seed in (0, 1)]
    cells = collect(records, scaling="weak", metric=Metric.named(metric))[1]
    assert set(further_metrics(cells)) == {"perplexity", "metrics.seed", metric} - {"val_accuracy"}
    assert further_axes(cells) == []
    row = cells.iloc[0]
    assert (row["perplexity"], row["tokens_per_s"], row["metrics.seed"]) == (7.5, pytest.approx(5.0), 3)
    assert row["perplexity_hi"] == pytest.approx(7.5 + 12.7062 * 0.5)  # t(1), and s/√2


@pytest.mark.parametrize("name", ["batch_vs_tpu_grid", "unequal_pair_core", "batch_vs_tpu_recipe_two_h200"])
def test_numbers_of_shipped_code_stay_in_trials(name):
    rows = History(replay(PUBLISHED / name / "journal.jsonl").records).ends
    assert rows and own_metrics(list(rows.values())) == []


def test_a_metric_that_is_no_number_is_empty():
    row = trials_frame([record_of(1, metrics={"accuracy": "high", "samples_per_s": None})]).iloc[0]
    assert math.isnan(row["accuracy"]) and math.isnan(row["samples_per_s"])


@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_the_order_of_the_records_and_their_scale_change_nothing(data):
    shapes = [(gpus, seed) for gpus in (1, 2, 4) for seed in (0, 1, 2)]
    rates = data.draw(st.lists(st.floats(10, 1000), min_size=9, max_size=9))
    ends = data.draw(st.lists(st.sampled_from([Status.OK, Status.OK, Status.OOM]), min_size=9, max_size=9))
    records = [
        record_of(gpus, seed, end, metrics={"samples_per_s": rate}, provenance={"device_model": "A100"})
        for (gpus, seed), rate, end in zip(shapes, rates, ends, strict=True)
    ]
    twice = [replace(record, metrics={"samples_per_s": 2 * record.metrics["samples_per_s"]}) for record in records]
    columns = ["speedup", "speedup_lo", "speedup_hi", "efficiency"]
    summary = collect(records, scaling="weak")[1].set_index("cell_id")
    for others in (data.draw(st.permutations(records)), twice):
        other = collect(others, scaling="weak")[1].set_index("cell_id").loc[summary.index]
        assert (
            (summary[columns] - other[columns]).abs().fillna(0) < 1e-9 * summary[columns].abs().fillna(1) + 1e-9
        ).all(axis=None)
        assert list(other["status"]) == list(summary["status"])
        assert list(other["baseline_cell_id"].fillna("")) == list(summary["baseline_cell_id"].fillna(""))


@pytest.mark.parametrize(
    ("device", "status", "provenance", "told"),
    [
        ("cpu", Status.OK, {"device_model": "Xeon"}, ("cpu", "Xeon")),
        ("cpu", Status.FAILED, {}, ("cpu", None)),
        ("cuda", Status.OK, {"device_model": "NVIDIA H200"}, ("NVIDIA H200", "NVIDIA H200")),
        ("cuda", Status.OK, {}, ("cuda", None)),
        ("cuda", Status.OOM, {"device_model": "NVIDIA H200"}, ("NVIDIA H200", "NVIDIA H200")),
        ("cuda", Status.OOM, {}, (None, None)),  # it ended before it could tell
        ("cuda", Status.OOM, {"device_model": 200}, (None, None)),
    ],
)
def test_the_device_is_the_gpus_model_or_cpu(device, status, provenance, told):
    row = trials_frame([record_of(1, status=status, device=device, provenance=provenance)]).iloc[0]
    assert (row["device"], row["device_model"]) == told


def test_a_packed_trial_costs_the_gpus_it_held():
    """An hour of .5 GPUs, held for the memory of a trial that asked for a quarter, at 4 an hour."""
    records = [
        record_of(0.25, seed=0, gpus_held=0.5, wall_s=3600.0, metrics={"samples_per_s": 1.0}),
        record_of(2, seed=0, wall_s=1800.0, metrics={"samples_per_s": 1.0}),
    ]
    assert collect(records, scaling="weak", report=ReportSection(price_per_gpu_hour=4))[1]["cost"].tolist() == [
        2.0,
        4.0,
    ]


def test_cells_are_ordered_by_axes_and_rules_by_definition():
    rules = ("of a later version", "sqrt", "none", "linear")
    records = [record_of(gpus, lr_rule=rule, metrics={"accuracy": 0.9}) for rule in rules for gpus in (2, 1)]
    cells = collect(records, scaling="weak")[1]
    expected = [(gpus, rule) for gpus in (1, 2) for rule in ("none", "linear", "sqrt", "of a later version")]
    assert list(zip(cells["gpus"], cells["lr_rule"], strict=True)) == expected


def test_cells_are_identified_by_all_axes_except_the_seed():
    one, other = record_of(1, axes={"model.width": 8}), record_of(1, axes={"loss": "focal"})
    axes = {"gpus": "gpus", "device_batch_size": "device_batch_size", "lr_rule": "lr_rule"}
    assert cell_axes([one, other]) == axes | {"model.width": "model.width", "loss": "axes.loss"}
    assert "seed" in one.axes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=20)
@given(value=st.lists(JSON, max_size=2) | st.dictionaries(st.text(max_size=2), JSON, max_size=2))
def test_the_value_of_an_axis_comes_back_from_its_cell(value):
    frame = trials_frame([record_of(1, axes={"model.widths": value})])
    assert isinstance(frame["model.widths"][0], str) and parsed_cell(frame["model.widths"][0]) == value


@pytest.mark.parametrize("text", ["[CLS]", "{gpus}", "adam", ""])
def test_text_that_only_begins_like_a_list_stays_text(text):
    assert parsed_cell(text) == text


@pytest.mark.parametrize(
    ("number", "cell"),
    [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (2**63, str(2**63)), (-(2**63) - 1, str(-(2**63) - 1))],
)
def test_numbers_of_more_than_64_bits_are_text(number, cell):
    assert trials_frame([record_of(1, axes={"data.key": number})])["data.key"][0] == cell


def ran(seed, began_s, ended_s, host="a", **given):
    at = {
        "wall_s": float(ended_s - began_s),
        "finished_at": f"2026-01-01T00:{ended_s // 60:02}:{ended_s % 60:02}+00:00",
    }
    return record_of(1, seed, **{**at, "provenance": {"host": host, "device_model": "H200"}, **given})


def test_trials_that_overlap_on_a_host_are_co_tenants():
    records = [
        ran(0, 0, 100),
        ran(1, 50, 150),
        ran(2, 149, 200),  # begins as the one before ends
        ran(3, 0, 200, host="b"),
        ran(4, 60, 61),  # too short to tell
        ran(5, 20, 40),
    ]
    assert cotenants(records) == [2, 1, 0, 0, 0, 1]


def test_a_gang_has_the_co_tenants_of_all_its_machines():
    gang = {"provenance": {"host": "a", "machine": "0a", "machines": "0a 0b", "device_model": "H200"}}
    other = {"provenance": {"host": "b", "machine": "0b", "device_model": "H200"}}
    records = [ran(0, 0, 100, **gang), *(ran(seed, 0, 100, **other) for seed in (1, 2))]
    assert cotenants(records) == [2, 2, 2]
    assert cotenants(records[:2]) == [1, 1]


@pytest.mark.parametrize("change", [{"finished_at": ""}, {"host": None}, {"wall_s": math.nan}])
def test_co_tenants_are_unknown_without_host_or_time(change):
    tenants = cotenants([ran(0, 0, 100, **change), ran(1, 0, 100)])
    assert math.isnan(tenants[0]) and tenants[1] == 0


def test_co_tenants_are_counted_and_noted_under_the_table():
    metrics = {"samples_per_s": 100.0}
    records = [ran(seed, 0, 100, metrics=metrics) for seed in range(3)]
    trials, cells = collect(records, scaling="weak")
    assert list(trials["co_tenants"]) == [2, 2, 2]
    assert "up to 2 other trials" in speedup_markdown(cells) and "other devices" in speedup_markdown(cells)
    alone = collect(records[:1], scaling="weak")[1]
    assert "other devices" not in speedup_markdown(alone)


def test_a_trial_that_never_ran_has_no_co_tenants():
    record = ran(0, 0, 0, status=Status.INFEASIBLE, provenance={})
    assert math.isnan(cotenants([record])[0])


def test_machines_are_distinguished_by_id_not_by_name():
    def of(*machines):
        told = ({"host": host, "machine": machine, "device_model": "H200"} for host, machine in machines)
        return cotenants([ran(seed, 0, 100, provenance=where) for seed, where in enumerate(told)])

    assert of(("vm", "0a"), ("vm", "0a"), ("vm", "0b")) == [1, 1, 0]
    assert of(("pod-a", "0a"), ("pod-b", "0a")) == [1, 1]  # containers of one machine


EPOCH = {"epoch_s": 390 / 64, "samples_per_s": 64 * 128.0}


def of_steps(steps, epochs, **other):
    return {"epochs": float(epochs), "steps": float(steps), "samples": 128.0 * steps, **EPOCH, **other}


def epochs_of(*rows):
    return epochs_trained(pd.DataFrame(rows)).tolist()


def test_a_partial_epoch_counts_by_its_fraction_of_steps():
    rows = of_steps(100, 1), of_steps(390, 1), of_steps(389, 1), of_steps(10 * 390 + 39, 11)
    assert epochs_of(*rows) == pytest.approx([100 / 390, 1, 389 / 390, 10.1])
    assert epochs_of(of_steps(39_000, 100)) == [100]  # exactly: a claim may ask for 100


def test_models_trained_side_by_side_share_no_steps():
    two = of_steps(100, 1) | {"samples": 2 * 128.0 * 100, "samples_per_s": 2 * 64 * 128.0}
    assert epochs_of(two) == pytest.approx([100 / 390])


def test_independent_measurements_keep_the_reported_epochs():
    # A command's own rate: 390.2 steps an epoch would be no whole number of them.
    assert epochs_of(of_steps(3900, 10, samples_per_s=64.03 * 128)) == [10]
    long = {"epoch_s": 1e6 / 64, "samples_per_s": 64 * 128 * 1.0000003}  # a third of a step off, of a million
    assert epochs_of(of_steps(9_990_000, 10) | long) == [10]
    assert epochs_of(of_steps(100, 1, epoch_s=math.nan), of_steps(100, 1) | {"samples": 0.0}) == [1, 1]
    assert math.isnan(epochs_of(of_steps(100, math.nan))[0])


def test_a_part_of_an_epoch_has_no_first_epoch_time():
    records = [
        record_of(seed=seed, status=Status.OK, metrics=of_steps(steps, 1, first_epoch_s=7.0))
        for seed, steps in enumerate((100, 390))
    ]
    frame = trials_frame(records)
    assert frame["epochs"].tolist() == pytest.approx([100 / 390, 1])
    assert frame["first_epoch_s"].isna().tolist() == [True, False]


STEP: dict[str, Any] = {"step_data_s": 0.01, "step_host_s": 0.0, "step_compute_s": 0.09}


def test_a_slow_rank_is_named_and_the_result_is_kept():
    slow = record_of(2, 0, metrics={"samples_per_s": 100.0, "step_imbalance_s": 0.06, "slowest_rank": 1} | STEP)
    even = record_of(2, 1, metrics={"samples_per_s": 160.0, "step_imbalance_s": 0.02, "slowest_rank": 0} | STEP)
    told = "straggler: rank 1 takes 1.6 times the median rank's time for a step"
    assert stragglers([slow, even]) == {slow.trial_id: told}
    row = trials_frame([slow, even]).iloc[0]
    assert told in row["note"] and (row["status"], row["samples_per_s"]) == ("ok", 100.0)


def test_a_slow_trial_of_a_cell_is_noted():
    rates = [100.0, 102.0, 70.0, 98.0]
    records = [record_of(1, seed, metrics={"samples_per_s": rate}) for seed, rate in enumerate(rates)]
    ((trial_id, note),) = stragglers(records).items()
    assert trial_id == records[2].trial_id and "1.4 times" in note and "median" in note
    assert stragglers(records[1:3]) == {}  # of two trials, either may be the slow one


def test_rules_that_disagree_on_one_speed_are_noted():
    def trial(rule, rate, **fields):
        return record_of(1, 0, lr_rule=rule, metrics={"samples_per_s": rate}, **fields)

    slow = trial("sqrt", 70.0)
    assert set(stragglers([trial("none", 100.0), trial("linear", 101.0), slow])) == {slow.trial_id}
    other_work = [trial("lars", 50.0), trial("adascale", 50.0)]
    assert not stragglers([trial("none", 100.0), trial("linear", 101.0), *other_work])
    copies = [trial(rule, 100.0, timed_with="x") for rule in ("linear", "adam_sqrt")]
    assert not stragglers([trial("none", 100.0), slow, *copies])  # two timings, as before


def test_collapsed_trials_are_marked():
    metrics = [{"val_accuracy": value} for value in (0.9, 0.1, 0.91, 0.92, 0.92, 0.91)]
    records = [record_of(1 + s // 3, s % 3, metrics=trial_metrics) for s, trial_metrics in enumerate(metrics)]
    trials, cells = collect([*records, record_of(4, 0)], scaling="weak", reference_batch_size=32)
    marks, note = trials["collapsed"], trials["note"][1]
    assert marks.tolist() == [False, True, False, False, False, False, True]  # the last one has no metric
    assert note.startswith("collapsed: ") and set(re.findall(r"\d\.\d+", note)) == {"0.100", "0.905"}
    assert cells["n_collapsed"].tolist() == [1, 0, 1] and "1 of 3 seeds" in cells["note"][0]


def test_losses_of_two_seeds_do_not_collapse():
    def marks(seeds):
        losses = {1: [2.0, 2.01, 2.0], 2: [2.0, 4.0, 2.0]}
        records = [record_of(g, s, metrics={"val_loss": losses[g][s]}) for g in losses for s in range(seeds)]
        trials, _ = collect(records, scaling="weak", metric=Metric.named("val_loss"))
        return list(trials["collapsed"])

    assert marks(2) == [False] * 4 and marks(3) == [False] * 4 + [True, False]


def test_a_trial_that_is_not_ok_is_no_straggler():
    failed = record_of(2, 0, status=Status.FAILED, metrics={"step_imbalance_s": 9.0} | STEP)
    assert stragglers([failed, record_of(1, 0, metrics={"step_imbalance_s": 0.0})]) == {}


def test_notes_name_slow_ranks_and_hosts():
    """A script may report how much slower its slowest rank is without its number."""
    rates = [100.0, 100.0, 50.0]
    records = [
        record_of(2, seed, metrics={"samples_per_s": rate}, provenance={"host": "node7"})
        for seed, rate in enumerate(rates)
    ]
    slow = record_of(4, 0, metrics={"step_imbalance_s": 0.1} | STEP)
    notes = stragglers([*records, slow])
    assert set(notes) == {records[2].trial_id, slow.trial_id}
    of_trial, of_rank = notes[records[2].trial_id], notes[slow.trial_id]
    assert all(note.startswith("straggler: ") and "2.0 times" in note for note in (of_trial, of_rank))
    assert "on node7" in of_trial and "slowest rank" in of_rank and "rank" not in of_trial


def test_frames_hold_the_last_end_under_the_last_config(results_folder):
    ends = [
        record_of(1, 0, metrics={"samples_per_s": 100.0}),
        record_of(2, 0, metrics={"samples_per_s": 50.0}),
        record_of(2, 0, metrics={"samples_per_s": 150.0}),
    ]
    with Journal.open(results_folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": {"epochs": 1}}}})
        journal.append(Kind.FINISHED, record_of(4, 0, metrics={"samples_per_s": 900.0}).to_json())
        journal.append(Kind.SWEEP, {"fingerprint": {"config": {"budget": {"epochs": 2}}}})
        for end in ends:
            journal.append(Kind.FINISHED, end.to_json())
    trials, cells = frames(results_folder, request(scaling="weak", baseline={}))
    assert trials["samples_per_s"].tolist() == [100, 150] and cells["speedup"].tolist() == pytest.approx([1, 1.5])
    _, strong = frames(results_folder, request(scaling="strong", baseline={}))  # no two have the same global batch
    assert strong["speedup"].tolist() == [1, 1]


def test_frames_without_results_are_an_error(results_folder):
    with pytest.raises(ConfigError):
        frames(results_folder, request())
    with Journal.open(results_folder.journal) as journal:
        journal.append(Kind.STARTED, {"trial_id": "t", "attempt": 1})
    with pytest.raises(ConfigError):
        frames(results_folder, request())


def test_language_models_have_their_speed_in_tokens():
    metrics = {"samples_per_s": 50.0, "sequence_length": 8, "val_loss": 2.5, "tokens": 6400, "mfu_nominal": 0.4}
    records = [record_of(seed=seed, metrics=metrics | {"val_loss": 2.5 + seed}, gpus_held=2) for seed in (0, 1)]
    trials, cells = collect(records, scaling="weak", report=ReportSection(price_per_gpu_hour=3.6))
    assert trials["tokens_per_s"].tolist() == [400, 400]
    [cell] = cells.to_dict("records")
    assert cell["val_loss"] == 3 and cell["val_loss_lo"] == 0 and cell["val_loss_hi"] > 4
    assert (cell["tokens_per_s"], cell["tokens"], cell["sequence_length"]) == pytest.approx((400, 6400, 8))
