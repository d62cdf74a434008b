"""Forecasts of further trials from a journal: more GPUs, other batches, and the network between nodes."""

import math
from dataclasses import replace

import pytest

from orchestrator.plan.estimates import Network
from orchestrator.plan.forecast_printout import forecast_rows, forecast_text
from orchestrator.plan.forecasts import Forecasts, rehearse_missing
from orchestrator.plan.journal_forecasts import FEWER_GPUS, Measured
from orchestrator.plan.plan import Plan
from orchestrator.plan.rehearsals import Rehearsals, kind_of
from orchestrator.schedule.cluster import Node
from sweeps.errors import ConfigError
from sweeps.layout import Gang
from sweeps.trial import Batch
from tests.unit.orchestrator.plan import test_rehearsals as by_hand
from tests.unit.orchestrator.plan.planned import ended
from tests.unit.orchestrator.requests import request

NODES = (Node(name="host", cpus=16, gpus=8, gpu_type="NVIDIA H100"),)


def spec(gpus, seed=0, batch=32, **other):
    axes = {"gpus": gpus, "device_batch_size": batch, "seed": seed}
    gang = Gang(ranks=gpus, gpus_per_rank=1, cpus_per_rank=1)
    own = {"cell_id": f"{gpus}x{batch}", "trial_id": f"{gpus}x{batch}-{seed}", "axes": axes, "gpus": gpus, "seed": seed}
    return by_hand.trial(batch=Batch(global_batch_size=batch * gpus, shares=(batch,) * gpus), gang=gang, **own | other)


def record(trial, **metrics):
    """By Amdahl's law with α = .1; 20,000 samples in 10 epochs; E = 1000 (1 + B/200) samples to the target."""
    rate = 100 * trial.gpus / (1 + 0.1 * (trial.gpus - 1)) * (1 + trial.seed / 100)
    own = {"samples_per_s": rate, "samples": 20_000, "epochs": 10, "train_s": 20_000 / rate, "n_params": 10**9}
    return replace(ended(trial, wall_s=20_000 / rate + 7), metrics=own | metrics)


def on_target(trial):
    plain = record(trial)
    samples = 1000 * (1 + trial.batch.global_batch_size / 200)
    # Without epochs, samples follow from time and rate.
    return record(trial, epochs=None, time_to_target_s=samples / plain.metrics["samples_per_s"])


JOURNAL = [record(spec(gpus, seed)) for gpus in (1, 2, 4) for seed in (0, 1, 2)]


def test_no_speed_follows_from_disturbed_timings():
    disturbed = [
        record(spec(gpus, seed), foreign_gpu_processes=1, peak_memory_gb=3.0) for gpus in (1, 2) for seed in (0, 1)
    ]
    own = Measured(records=disturbed).of_cell(spec(1))
    assert own.peak_memory_gb.value == 3.0
    assert own.samples_per_s is own.train_s is own.step_s is None and own.why
    assert Measured(records=disturbed).of_line(spec(4), Network()) is None
    assert Measured(records=disturbed[:2]).of_line(spec(4), Network()) is None  # of one number of GPUs
    of_one = Measured(records=[*disturbed, record(spec(1, seed=2))]).of_cell(spec(1))
    assert not of_one.why
    assert of_one.samples_per_s.value == pytest.approx(102)
    rehearsed = by_hand.rehearsal(32, step_s=0.5, device_step_s=0.5)
    known = Rehearsals([replace(rehearsed, kind=kind_of(spec(1)))])
    forecast = Forecasts(rehearsals=known, measured=Measured(records=disturbed), nodes=NODES).forecast(spec(1))
    assert (forecast.step_s.value, forecast.peak_memory_gb.value, forecast.source) == (0.5, 3.0, "rehearsal")


def test_a_measured_duration_may_be_off_by_the_start_of_processes():
    """200 s of training and 7 s beside it, which may take 3.5 s or 14 s."""
    own = Measured(records=[record(spec(1))]).of_cell(spec(1))
    assert own.duration_s.value == 207
    assert (own.duration_s.lo, own.duration_s.hi) == pytest.approx((own.train_s.lo + 3.5, own.train_s.hi + 14))


@pytest.mark.parametrize("memory", [{}, {"peak_memory_gb": 1.0}])
def test_a_forecast_without_memory_says_for_which_devices_it_is_known(memory):
    trial = replace(spec(1), device="cpu")
    text = forecast_text(planned(record(trial, **memory), trials=[trial]), request())
    assert ("GPUs only" in text) == (not memory)


def test_more_gpus_follow_from_fewer():
    forecast = Measured(records=JOURNAL).of_line(spec(8), Network())
    assert forecast.source == FEWER_GPUS
    assert forecast.samples_per_s.value == pytest.approx(1.01 * 800 / 1.7, rel=1e-3)
    assert forecast.train_s.value == pytest.approx(79 * 8 * 32 / (1.01 * 800 / 1.7), rel=0.02)  # whole steps
    assert forecast.duration_s.value == pytest.approx(forecast.train_s.value + 7)
    assert forecast.samples_per_s.lo < forecast.samples_per_s.value < forecast.samples_per_s.hi


def test_trials_in_processes_of_others_do_not_shorten_the_start_of_more_gpus():
    warm = [replace(end, wall_s=end.wall_s - 6) if end.gpus == 4 else end for end in JOURNAL]
    cold, mixed = (Measured(records=journal).of_line(spec(8), Network()) for journal in (JOURNAL, warm))
    assert mixed.duration_s == cold.duration_s


def test_nodes_that_were_not_measured_add_their_exchange():
    """Two nodes: 2 · 1/2 · 4 GB / 10 GB/s."""
    measured = Measured(records=JOURNAL)
    alone, two = (measured.of_line(spec(8), Network(node_count=nodes, bandwidth_gb_s=10)) for nodes in (1, 2))
    assert two.step_s.value - alone.step_s.value == pytest.approx(0.4)
    assert (two.step_s.lo, two.step_s.hi) == pytest.approx((alone.step_s.lo, alone.step_s.hi + 0.8))


@pytest.mark.parametrize(
    ("axes", "fields"),
    [({}, {"provenance": {"machines": "a b"}}), ({"nodes": 2}, {}), ({}, {"strategy": "own_ranks", "ranks": 2})],
)
def test_rates_over_nodes_include_their_exchange(axes, fields):
    measured = Measured(records=[replace(record, axes=record.axes | axes, **fields) for record in JOURNAL])
    trial = replace(spec(8), axes=spec(8).axes | axes)
    alone, two = (measured.of_line(trial, Network(node_count=nodes, bandwidth_gb_s=10)) for nodes in (1, 2))
    assert alone is not None and alone.step_s is not None and alone == two


def test_an_exchange_of_unknown_size_is_told():
    measured = Measured(records=[replace(record, metrics={**record.metrics, "n_params": None}) for record in JOURNAL])
    alone, two = (measured.of_line(spec(8), Network(node_count=nodes, bandwidth_gb_s=10)) for nodes in (1, 2))
    assert alone.step_s == two.step_s
    assert (alone.why, bool(two.why)) == ("", True)


@pytest.mark.parametrize(
    ("records", "is_told"),
    [
        (JOURNAL[:3], False),  # one GPU count
        (JOURNAL[:6], True),  # two
        ([*JOURNAL[:6], record(spec(4, seed=9))], True),  # no seed ran on all
        ([record(spec(n, s), samples_per_s=100.0 * min(n, 2)) for n in (1, 2, 4) for s in (0, 1)], True),
    ],
)
def test_why_there_is_no_forecast(records, is_told):
    forecast = Measured(records=records).of_line(spec(8), Network())
    assert (forecast is not None and forecast.why != "") == is_told
    assert forecast is None or (forecast.step_s, forecast.fits) == (None, "unsure")


def test_other_axes_are_other_lines():
    measured = Measured(records=JOURNAL)
    assert measured.of_line(spec(8, batch=64), Network()) is None
    assert measured.of_line(spec(8, device="cpu"), Network()) is None


def planned(*records, trials, **settings):
    own = request(**settings).settings
    forecasts = Forecasts(measured=Measured(records=records), nodes=NODES, settings=own)
    return Plan.of(trials, {}, NODES, forecasts=forecasts)


@pytest.mark.parametrize("batches", [(32,), (32, 64, 128)])
def test_time_and_cost_to_the_target_follow_from_batches_that_reached_it(batches):
    reached = [on_target(spec(1, seed, batch)) for batch in batches for seed in (0, 1)]
    new = spec(1, batch=256)
    rate = record(new, time_to_target_s=None)
    own = request(price_per_gpu_hour=3.6).settings
    own = replace(own, report=replace(own.report, target=0.9))
    forecasts = Forecasts(measured=Measured(records=[*reached, rate]), nodes=NODES, settings=own)
    plan = Plan.of([spec(1, batch=32), new], {}, NODES, forecasts=forecasts)
    first, other = forecast_rows(plan, own)
    assert first["target_s"]["value"] == pytest.approx(1160 / 100.5, rel=0.01)  # as measured at this batch
    assert first["cost_to_target"]["value"] == pytest.approx(first["target_s"]["value"] / 1000)
    if len(batches) == 1:
        assert other["target_s"] is None and not other["is_efficient"]
    else:
        assert other["target_s"]["value"] == pytest.approx(2280 / 100, rel=0.02)
        assert (first["is_efficient"], other["is_efficient"]) == (True, False)


def test_samples_to_the_target_have_a_90_percent_interval():
    """Two samples of 8 ± 2 in logarithms: t(1) at 95% is 6.3138, times s/√2 = 2."""
    at_1_per_s = {"epochs": None, "samples_per_s": 1.0}
    seeds = [record(spec(1, n), time_to_target_s=math.exp(power), **at_1_per_s) for n, power in enumerate((6, 10))]
    estimate = Measured(records=seeds).samples_to_target(spec(1))
    ends = [math.log(value) for value in (estimate.lo, estimate.value, estimate.hi)]
    assert ends == pytest.approx([8 - 2 * 6.3138, 8, 8 + 2 * 6.3138], abs=1e-3)


def test_a_price_list_prices_whole_nodes(tmp_path):
    file = tmp_path / "prices.csv"
    header = "name,gpu,gpus,price_per_hour,currency,date"
    file.write_text(f"{header}\npair,H100,2,3.6,EUR,2026-01-01\nother,A100,1,0.1,EUR,2026-01-01\n")
    plan = planned(*JOURNAL, trials=[spec(1), spec(2)], prices=str(file))
    rows = forecast_rows(plan, request(prices=str(file)).settings)
    for row in rows:  # one GPU pays for both
        assert row["offer"]["name"] == "pair"
        assert row["cost"]["value"] == pytest.approx(row["duration_s"]["value"] / 1000)
    assert "pair" in forecast_text(plan, request(prices=str(file)))
    priced = forecast_rows(plan, request(prices=str(file), price_per_gpu_hour=1.0).settings)
    assert [row["offer"] for row in priced] == [None, None]
    file.write_text(f"{header}\nown,H100,2,0,EUR,2026-01-01\n")
    assert "own" in forecast_text(plan, request(prices=str(file)))


def test_rules_with_figures_of_their_own_are_told_apart():
    def rule(name):
        axes = {"gpus": 1, "device_batch_size": 32, "lr_rule": name, "seed": 0}
        return spec(1, cell_id=name, trial_id=name, axes=axes)

    trials = [rule(name) for name in ("none", "linear", "sqrt")]
    slow = [record(trials[0]), record(trials[1]), record(trials[2], samples_per_s=50.0)]
    lines = forecast_text(planned(*slow, trials=trials), request()).splitlines()[2:4]
    assert [line.split("  ")[0] for line in lines] == ["1×32 sqrt", "1×32 linear, none"]


@pytest.mark.parametrize("samples_per_s", [0.0, "none", None])
def test_a_trial_without_a_rate_has_no_forecast_of_it(samples_per_s):
    forecast = Measured(records=[record(spec(1), samples_per_s=samples_per_s)]).of_cell(spec(1))
    assert forecast.duration_s is not None
    assert (forecast.samples_per_s, forecast.step_s) == (None, None)


@pytest.mark.parametrize(
    ("gang", "gpus_per_node", "nodes"),
    [
        (Gang(ranks=16, gpus_per_rank=1, cpus_per_rank=1), 4, 4),
        (Gang(ranks=2, gpus_per_rank=8, cpus_per_rank=1, nodes=2), 8, 2),  # a command, which starts a process on a node
        (Gang(ranks=4, gpus_per_rank=1, cpus_per_rank=1, nodes=2), None, 2),
        (Gang(ranks=16, gpus_per_rank=1, cpus_per_rank=1), None, 2),
    ],
)
def test_the_nodes_of_a_trial(gang, gpus_per_node, nodes):
    own = request().settings
    own = replace(own, cluster=replace(own.cluster, gpus_per_node=gpus_per_node))
    assert Forecasts(nodes=NODES, settings=own)._network(replace(spec(16), gang=gang)).node_count == nodes


def test_cells_that_follow_from_the_journal_need_no_gpu(tmp_path):
    loop = "trainables.supervised.training:train"
    *near, far = [replace(trial, trainable=loop) for trial in (spec(1), spec(8), spec(64))]
    forecasts = Forecasts(measured=Measured(records=JOURNAL), nodes=NODES)
    assert rehearse_missing(near, forecasts, tmp_path / "forecast.json", print) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError):  # eight times the largest count is the farthest
        rehearse_missing([far], forecasts, tmp_path / "forecast.json", print)


def test_an_extrapolated_cell_has_the_memory_of_its_rehearsal():
    rehearsed = replace(by_hand.rehearsal(32, gb=102.0), kind=kind_of(spec(8)))
    forecasts = Forecasts(rehearsals=Rehearsals([rehearsed]), measured=Measured(records=JOURNAL), nodes=NODES)
    forecast = forecasts.forecast(spec(8))
    assert (forecast.fits, forecast.source, forecast.peak_memory_gb.value) == ("no", FEWER_GPUS, 102.0)
    of_two = Forecasts(rehearsals=Rehearsals([rehearsed]), measured=Measured(records=JOURNAL[:6]), nodes=NODES)
    forecast = of_two.forecast(spec(8))
    assert forecast.source == "rehearsal"


def test_timings_are_judged_only_for_a_forecast_that_needs_them():
    measured = Measured(records=JOURNAL)
    assert measured.of_cell(spec(8)) is None and "timed" not in vars(measured)
    assert measured.of_cell(spec(1)) is not None and "timed" in vars(measured)


def test_counts_without_a_valid_timing_are_timed_again():
    disturbed = record(spec(2), foreign_gpu_processes=1)
    measured = Measured(records=[*JOURNAL[:3], disturbed])
    assert measured.overrides_to_measure([spec(8)]) == ["sweep.axes.gpus=[1,2,4]", f"rerun=[{disturbed.trial_id}]"]
