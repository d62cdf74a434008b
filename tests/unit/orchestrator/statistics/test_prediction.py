import dataclasses
import math

import numpy as np
import pytest

from orchestrator.statistics.law_average import EXCHANGE
from orchestrator.statistics.prediction import Line, Link, predict, samples_at
from orchestrator.statistics.scaling_law import critical_batch

NAN = math.nan
# By the USL with γ = 100, α = .1, β = .01 on 1, 2, 4, 8 GPUs; 16 GPUs: 1600 / 4.9.
GPUS = np.repeat([1.0, 2.0, 4.0, 8.0], 3)
RATES = 100 * GPUS / (1 + 0.1 * (GPUS - 1) + 0.01 * GPUS * (GPUS - 1))
SEEDS = np.tile([0.0, 1.0, 2.0], 4)
NODE = Link(gpus_per_node=8)


def line(**other):
    given = {
        "name": "device_batch_size=32",
        "weak": True,
        "gpus": GPUS,
        "rates": RATES * np.tile([0.99, 1.0, 1.01], 4),
        "seeds": SEEDS,
        "batches": 32 * GPUS,
        "samples_to_target": np.full(12, NAN),
        "noise_scale": NAN,
        "n_params": 1e9,
    }
    return Line(**given | other)


def test_throughput_follows_the_law_and_extrapolation_is_named():
    found = predict(line(), 16, Link(gpus_per_node=None))
    assert float(found.samples_per_s.point) == pytest.approx(1600 / 4.9, rel=1e-3)
    assert float(found.samples_per_s.lo) < 1600 / 4.9 < float(found.samples_per_s.hi)
    assert found.global_batch_size == 512
    assert "extrapolated" in found.how
    assert "extrapolated" not in predict(line(), 6, NODE).how
    assert math.isnan(float(found.time_to_target_s.point))


def test_the_exchange_between_nodes_lowers_the_rate():
    link = Link(gpus_per_node=8, bandwidth_gb_s=10, latency_s=0.01)
    # Two nodes: 2 · 1/2 · 4 GB / 10 GB/s + 2 · .01 s = .42 s on a step of 512 / 326.5 s.
    assert link.exchange_s(16, 1e9) == pytest.approx(0.42)
    found = predict(line(), 16, link)
    assert float(found.samples_per_s.point) == pytest.approx(512 / (512 / (1600 / 4.9) + 0.42), rel=1e-3)
    assert float(found.samples_per_s.hi) >= 1600 / 4.9
    assert link.exchange_s(8, 1e9) == 0
    # Three: 2 · 2/3 · 4 GB / 10 GB/s + 2 · 2 · .01 s.
    assert link.exchange_s(24, 1e9) == pytest.approx(0.4 * 4 / 3 + 0.04)
    assert Link(gpus_per_node=8, bandwidth_gb_s=10).exchange_s(16, 1e9) == 0
    assert Link(gpus_per_node=8, latency_s=0.01).exchange_s(16, 1e9) == 0


def refusal(given, gpus, link):
    """Return the only refusal."""
    (found,) = given.refusals(gpus, link)
    return found


def test_predictions_far_from_what_was_measured_are_refused():
    assert line().refusals(64, Link(gpus_per_node=64)) == []
    assert refusal(line(), 65, Link(gpus_per_node=72)).startswith("65 GPUs")
    assert line().refusals(8, Link(gpus_per_node=None)) == []
    assert "cluster.gpus_per_node" in refusal(line(), 9, Link(gpus_per_node=None))
    assert line().refusals(8, NODE) == []
    crossing = refusal(line(), 9, NODE)
    assert "predict.bandwidth_gb_s" in crossing and "predict.latency_s" in crossing and "2 nodes of 8" in crossing
    without = refusal(line(n_params=NAN), 16, Link(gpus_per_node=8, bandwidth_gb_s=1, latency_s=0.1))
    assert without.startswith("device_batch_size=32: ") and "n_params" in without
    for half in (Link(gpus_per_node=8, bandwidth_gb_s=1), Link(gpus_per_node=8, latency_s=0.1)):
        assert len(line().refusals(16, half)) == 1
    assert line().refusals(16, Link(gpus_per_node=4)) == []  # the eight that were measured took two nodes
    assert line(gpus=GPUS[:9], rates=RATES[:9], seeds=SEEDS[:9]).refusals(4, NODE) == []
    few = refusal(line(gpus=GPUS[:6], rates=RATES[:6], seeds=SEEDS[:6]), 4, NODE)
    assert few.startswith("device_batch_size=32: ") and "3 GPU counts" in few and few.endswith(" 2")
    share = np.where(GPUS[:6] > 1, 0.05, 0.0)
    assert two_counts(share).refusals(4, NODE) == []
    assert two_counts(np.where(GPUS[:6] > 1, NAN, 0.0)).refusals(4, NODE) == [few]


def two_counts(exchange):
    """Return the line up to two GPUs, with a measured share of the exchange in a step."""
    return line(gpus=GPUS[:6], rates=RATES[:6], seeds=SEEDS[:6], parts={EXCHANGE: exchange})


def test_rates_that_no_law_allows_are_doubted_and_widen_the_interval():
    """The throughput falls, and rises again."""
    wild = RATES * np.repeat([1.0, 0.5, 1.2, 1.0], 3) * np.tile([0.99, 1.0, 1.01], 4) * np.resize([1.0, 1.004], 12)
    found, sound = predict(line(rates=wild), 16, Link(gpus_per_node=None)), predict(line(), 16, NODE)
    assert "no law fits" in found.how and "no law fits" not in sound.how
    assert found.samples_per_s.hi / found.samples_per_s.lo > 2


def test_strong_scaling_keeps_the_batch_and_its_samples():
    strong = line(weak=False, batches=np.full(12, 256.0), samples_to_target=np.tile([900.0, 1000.0, 1111.1], 4))
    found = predict(strong, 16, Link(gpus_per_node=None))
    assert found.global_batch_size == 256
    assert float(found.time_to_target_s.point) == pytest.approx(1000 / (1600 / 4.9), rel=0.01)


def test_samples_at_a_larger_batch_follow_the_critical_batch():
    economy = line(samples_to_target=1000 * (1 + 32 * GPUS / 200) * np.tile([0.99, 1.0, 1.01], 4))
    found, source = samples_at(economy, 512)
    assert float(found.point) == pytest.approx(1000 * (1 + 512 / 200), rel=0.02)
    assert float(found.lo) < 1000 * (1 + 512 / 200) < float(found.hi)
    assert "samples to the target" in source


def test_with_two_batches_the_noise_scale_is_used():
    reached = np.where(GPUS <= 2, 1000 * (1 + 32 * GPUS / 200), NAN)
    found, source = samples_at(line(samples_to_target=reached, noise_scale=200.0), 512)
    assert float(found.point) == pytest.approx(1000 * (1 + 512 / 200))
    assert "noise scale" in source
    assert math.isnan(float(samples_at(line(samples_to_target=reached), 512)[0].point))


def test_samples_at_another_batch_combine_both_errors():
    """Student's interval at the nearest batch by ratio, and how the growth from there varies, in quadrature."""
    noise = np.tile([0.99, 1.0, 1.01], 4)
    reached = np.where(GPUS <= 2, 1000 * (1 + 32 * GPUS / 200) * noise * np.where(GPUS == 1, 0.9, 1.0), NAN)
    found, _ = samples_at(line(samples_to_target=reached, noise_scale=200.0), 512)
    growth = (1 + 512 / 200) / (1 + 64 / 200)  # the noise scale is taken as exact
    logs = np.log(reached[GPUS == 2])
    half = 4.302653 * np.std(logs, ddof=1) / math.sqrt(3)
    ends = np.exp(np.mean(logs) + math.log(growth) + np.array([-half, 0, half]))
    assert [float(found.lo), float(found.point), float(found.hi)] == pytest.approx(ends, rel=1e-6)

    every = 1000 * (1 + 32 * GPUS / 200) * noise
    found, _ = samples_at(line(samples_to_target=every), 512)
    critical = critical_batch(32 * GPUS, every)
    steepest, likely, flattest = (
        math.log((1 + 512 / float(at)) / (1 + 256 / float(at))) for at in (critical.lo, critical.point, critical.hi)
    )
    half = 4.302653 * np.std(np.log(every[GPUS == 8]), ddof=1) / math.sqrt(3)
    above, below = math.hypot(half, steepest - likely), math.hypot(half, likely - flattest)
    assert math.log(found.hi / found.point) == pytest.approx(above, rel=1e-6)
    assert math.log(found.point / found.lo) == pytest.approx(below, rel=1e-6)


def test_samples_grow_at_most_with_the_batch():
    """Every step is as good as any other, whatever its batch: the target takes 30 of them."""
    steps = line(samples_to_target=30 * 32 * GPUS * np.tile([0.99, 1.0, 1.01], 4))
    found, _ = samples_at(steps, 512)
    assert float(found.point) == pytest.approx(30 * 512, rel=0.02)
    assert 30 * 256 < float(found.lo) < 30 * 512 < float(found.hi) < 30 * 530


def test_time_to_target_combines_errors_of_samples_and_rate():
    strong = line(weak=False, batches=np.full(12, 256.0), samples_to_target=np.tile([900.0, 1000.0, 1111.1], 4))
    found, (samples, _) = predict(strong, 16, Link(gpus_per_node=None)), samples_at(strong, 256)
    time, rate = found.time_to_target_s, found.samples_per_s
    above = math.hypot(math.log(samples.hi / samples.point), math.log(rate.point / rate.lo))
    below = math.hypot(math.log(samples.point / samples.lo), math.log(rate.hi / rate.point))
    assert math.log(time.hi / time.point) == pytest.approx(above)
    assert math.log(time.point / time.lo) == pytest.approx(below)


def test_a_prediction_names_only_the_bases_it_used(golden):
    """Without a target there is no basis for samples; on one node there is none for the exchange between nodes."""
    beyond, link = Link(gpus_per_node=None), Link(gpus_per_node=8, bandwidth_gb_s=10, latency_s=0.01)
    reached = line(samples_to_target=np.full(12, 1000.0), start_up_s=28.0)
    given = {
        "no target": (line(start_up_s=28.0), 8, NODE),
        "target": (reached, 8, NODE),
        "extrapolated": (line(), 16, beyond),
        "two nodes": (line(), 16, link),
    }
    how = {name: predict(*each).how for name, each in given.items()}
    bases = {name: text.count("; ") + 1 for name, text in how.items()}
    assert bases == {"no target": 1, "target": 3, "extrapolated": 1, "two nodes": 2}
    assert "28 s of start-up" in how["target"] and "0.42 s a step" in how["two nodes"]
    refused = [(line(), 65, Link(gpus_per_node=72)), (line(), 9, beyond), (line(), 9, NODE)]
    refused += [(line(n_params=NAN), 16, link), (line(gpus=GPUS[:6], rates=RATES[:6], seeds=SEEDS[:6]), 4, NODE)]
    economy = line(samples_to_target=1000 * (1 + 32 * GPUS / 200))
    two = line(samples_to_target=np.where(GPUS <= 2, 1000 * (1 + 32 * GPUS / 200), NAN), noise_scale=200.0)
    lines = [
        *how.values(),
        *(samples_at(each, 512)[1] for each in (economy, two)),
        *(refusal(*each) for each in refused),
    ]
    golden("prediction/sentences.txt", "\n".join(lines) + "\n")


def test_a_measured_exchange_is_not_counted_twice():
    """Eight GPUs were two nodes already: what the exchange between nodes takes is in the law."""
    link = Link(gpus_per_node=4, bandwidth_gb_s=10, latency_s=0.01)
    found, free = predict(line(), 16, link), predict(line(), 16, Link(gpus_per_node=None))
    assert float(found.samples_per_s.point) == float(free.samples_per_s.point) and "between nodes" not in found.how


@pytest.mark.parametrize(("start_up_s", "more"), [(28.0, 28.0), (0.0, 0.0), (-0.1, 0.0), (NAN, 0.0)])
def test_start_up_adds_to_the_time_and_is_never_negative(start_up_s, more):
    reached = line(samples_to_target=np.tile([900.0, 1000.0, 1111.1], 4), weak=False, batches=np.full(12, 256.0))
    found = predict(dataclasses.replace(reached, start_up_s=start_up_s), 16, Link(gpus_per_node=None))
    assert float(found.time_to_target_s.point) == pytest.approx(1000 / (1600 / 4.9) + more, rel=0.01)
    assert ("28 s of start-up" in found.how) is (more > 0)
