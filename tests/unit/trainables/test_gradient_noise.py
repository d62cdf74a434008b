"""Gradient noise by hand: the gradients of a linear model without bias are its inputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sweeps.layout import Layout
from sweeps.lr_rule import LearningRate
from sweeps.trial import Batch
from tests.unit.trainables.ranks import CONFIG, rendezvous, request, run
from tests.unit.trainables.supervised.test_training import EXACT, trained
from trainables import gradient_noise, process_group
from trainables.context import Context
from trainables.gradient_noise import ONE_PASS, GradientNoise, NoiseEstimate, NoiseWatch, Pace, Smoothed, pace
from trainables.step import strategies

DIMENSIONS = 6


def samples(count):
    source = torch.Generator().manual_seed(5)
    return 1 + torch.randn(count, DIMENSIONS, generator=source, dtype=torch.float64)


def by_hand(step, sizes):
    """Signal and noise of a step whose parts have these sizes."""
    small = sum(part.mean(0).square().sum().item() for part in step.split(sizes)) / len(sizes)
    harmonic = len(sizes) / sum(1 / size for size in sizes)
    estimate = NoiseEstimate.of(small, step.mean(0).square().sum().item(), small_batch=harmonic, big_batch=len(step))
    return estimate.signal, estimate.noise


def measured(rank, shares, accumulate, meet, wire=None):
    """One step with the rank's part of the samples, whose labels are what the loss adds up; whole ones for a `wire`."""
    batch = Batch(global_batch_size=sum(shares) * accumulate, grad_accum_steps=accumulate, shares=shares)
    layout = Layout(strategy="ddp" if len(shares) > 1 else "single", replicas=len(shares))
    context = Context.alone(rank=rank, world_size=len(shares), batch=batch, layout=layout)
    context.rendezvous, context.gang_id = meet, str(shares)
    model = nn.Linear(DIMENSIONS, 1, bias=False).double()
    noise = GradientNoise(model, batch, process_group.join(context))
    prepared = strategies.prepare(model, context, strategies.Exchange(noise=noise, wire=wire))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise.watch(optimizer)
    every = samples(batch.global_batch_size)
    own = (every.round() if wire else every).split([share * accumulate for share in shares])[rank]
    *earlier, last = own.split(shares[rank])
    for minibatch in earlier:
        with prepared.without_exchange():
            (prepared.forward(minibatch).sum() * prepared.loss_scale).backward()
    (prepared.forward(last).sum() * prepared.loss_scale).backward()
    prepared.exchange()
    optimizer.step()
    estimate = noise.smoothed().estimate
    return estimate.signal, estimate.noise


@pytest.mark.parametrize(("share", "accumulate"), [(4, 3), (1, 8), (5, 2)])
def test_noise_between_passes(share, accumulate):
    estimate = measured(0, (share,), accumulate, None)
    assert estimate == pytest.approx(by_hand(samples(share * accumulate), [share] * accumulate))


@pytest.mark.parametrize(("shares", "accumulate"), [((4, 4), 1), ((5, 2), 1), ((3, 1), 2)])
def test_noise_between_ranks(pair, shares, accumulate):
    meet = rendezvous()
    estimates = pair.call(measured, *((rank, shares, accumulate, meet) for rank in range(2)))
    sizes = [share * accumulate for share in shares]
    assert estimates[0] == estimates[1] == pytest.approx(by_hand(samples(sum(sizes)), sizes))


def test_norms_are_measured_before_rounding(pair):
    """Quarters and eighths of small numbers survive it, their norms would not."""
    meet = rendezvous()
    estimates = pair.call(measured, *((rank, (4, 4), 1, meet, torch.bfloat16) for rank in range(2)))
    assert estimates[0] == estimates[1] == pytest.approx(by_hand(samples(8).round(), [4, 4]))


def test_one_step_of_many_is_measured(monkeypatch):
    monkeypatch.setattr(gradient_noise, "EVERY", 4)
    taken: list[int] = []
    monkeypatch.setattr(GradientNoise, "add_norms", lambda noise, small, big: taken.append(noise._steps))
    settings = CONFIG["trainable"] | {"noise_scale": True}
    trained(request(grad_accum_steps=2, config={"trainable": settings, "budget": {"steps": 9}}))
    assert taken == [4, 8, 9]  # those of the steps 1, 5 and 9: each in the next one measured, the last at the end


def test_single_part_is_an_error():
    context = Context.alone()
    with pytest.raises(ValueError, match="one of each"):
        GradientNoise(nn.Linear(2, 2), context.batch, process_group.join(context))


def test_measuring_noise_changes_only_a_column():
    watched = EXACT | {"trainable": EXACT["trainable"] | {"noise_scale": True}}
    plain, _ = trained(request(shares=(30,), grad_accum_steps=4, config=EXACT))
    ours, metrics = trained(request(shares=(30,), grad_accum_steps=4, config=watched))
    assert ours == plain and metrics["noise_scale"] > 0
    assert "noise_scale" not in trained(request(shares=(120,), config=watched))[1]


def test_adascale_advances_by_its_gain():
    answer = run(adascale(shares=(16,), grad_accum_steps=4))
    assert answer["status"] == "ok", answer["trace"]
    gains = [row["gain"] for row in answer["rows"]]
    assert all(1 <= gain <= 4 for gain in gains) and max(gains) > 1
    assert 20 < answer["metrics"]["steps"] < 80
    assert answer["metrics"]["samples"] == 64 * answer["metrics"]["steps"]
    assert answer["rows"][-1]["lr"] > 0.05


def test_adascale_ranks_agree_on_their_gain(pair):
    asked = {"shares": (32, 32), "gang_id": "adascale", "rendezvous": rendezvous()}
    answers = pair.call(run, *((adascale(rank=rank, **asked),) for rank in range(2)))
    assert answers[0]["status"] == "ok", answers[0]["trace"]
    assert answers[0]["metrics"] == answers[1]["metrics"] and 1 <= answers[0]["metrics"]["gain"] <= 4


def test_adascale_with_one_part_keeps_the_reference_rate():
    answer = run(adascale(shares=(64,)))
    assert answer["note"] == ONE_PASS and answer["metrics"]["gain"] == 1
    assert answer["metrics"]["steps"] == 80
    at_the_reference = run(adascale(shares=(16,)))  # where no rule scales anything
    assert not at_the_reference["note"] and at_the_reference["metrics"]["gain"] == 1


def adascale(**other):
    """20 steps of 64 samples, that is 80 of the reference batch."""
    rates = LearningRate(rule="adascale", reference_batch_size=16, value=0.05, warmup_from=0.05)
    return request(config={"schedule": {"name": "constant"}}, rates=rates, **other)


@pytest.mark.parametrize("hidden", [{"precision": "fp16"}, {"cuda_graph": "on"}])
def test_noise_with_fp16_or_graph_is_an_error(hidden):
    settings = CONFIG["trainable"] | {"noise_scale": True} | hidden
    assert run(request(grad_accum_steps=2, config={"trainable": settings}))["status"] == "failed"


@pytest.mark.gpu
def test_gpu_readback_holds_the_values_of_its_time():
    from trainables.gradient_noise import Readback

    values = torch.ones(2, device="cuda")
    seen = Readback(values)
    values.add_(1)
    assert seen.read() == [1.0, 1.0] and Readback(values).read() == [2.0, 2.0]


POSITIVE = st.floats(0.01, 100)


@given(POSITIVE, POSITIVE, st.integers(1, 100), st.integers(1, 100))
def test_expected_norms_give_signal_and_noise(signal, noise, small, more):
    big = small + more
    estimate = NoiseEstimate.of(signal + noise / small, signal + noise / big, small_batch=small, big_batch=big)
    assert estimate.signal == pytest.approx(signal, rel=1e-6, abs=1e-6)
    assert estimate.noise == pytest.approx(noise, rel=1e-6, abs=1e-6)


def test_gaussian_gradients_have_their_known_noise_scale():
    """Gradients ~ N(G, σ²·1) in 1000 dimensions, |G|² = 4 and tr Σ = 1000·.09 = 90: the noise scale is 22.5."""
    source = torch.Generator().manual_seed(0)
    mean = torch.zeros(1000, dtype=torch.float64)
    mean[:4] = 1
    smoothed = Smoothed()
    for _ in range(300):
        samples = mean + 0.3 * torch.randn(4, 16, 1000, generator=source, dtype=torch.float64)
        small = samples.mean(1).square().sum(1).mean().item()
        big = samples.mean((0, 1)).square().sum().item()
        smoothed.add(NoiseEstimate.of(small, big, small_batch=16, big_batch=64))
    estimate = smoothed.estimate
    assert estimate.signal == pytest.approx(4, rel=0.05) and estimate.noise == pytest.approx(90, rel=0.02)
    assert smoothed.noise_scale == pytest.approx(22.5, rel=0.05)


def test_unequal_parts_count_by_their_harmonic_mean():
    sizes, signal, noise = (2, 6), 3.0, 12.0
    small = sum(signal + noise / size for size in sizes) / 2
    estimate = NoiseEstimate.of(small, signal + noise / 8, small_batch=2 / (1 / 2 + 1 / 6), big_batch=8)
    assert (estimate.signal, estimate.noise) == (pytest.approx(3.0), pytest.approx(12.0))


def test_first_estimate_counts_fully_and_later_ones_more():
    smoothed = Smoothed()
    assert smoothed.estimate is None and smoothed.noise_scale is None
    first = NoiseEstimate(signal=0.5, noise=1.5)
    smoothed.add(first)
    assert smoothed.noise_scale == pytest.approx(3.0)
    estimate = smoothed.estimate
    assert (estimate.signal, estimate.noise) == pytest.approx((first.signal, first.noise))
    for _ in range(500):
        smoothed.add(NoiseEstimate(signal=0.25, noise=2.0))
    assert smoothed.noise_scale == pytest.approx(8.0)


@pytest.mark.parametrize(("signal", "noise", "scale"), [(-0.1, 6.0, None), (2.0, -6.0, 0)])
def test_noise_scale_needs_signal_and_is_not_negative(signal, noise, scale):
    smoothed = Smoothed()
    smoothed.add(NoiseEstimate(signal=signal, noise=noise))
    assert smoothed.noise_scale == scale


def watching(rule="none", *, passes=2, reference_batch_size=16, wanted=False, visible=True, model=None):
    """Watch a step of 64 samples, in so many passes of one rank."""
    batch = Batch(global_batch_size=64, grad_accum_steps=passes, shares=(64 // passes,))
    context = Context.alone(batch=batch)
    context.lr = LearningRate(rule=rule, value=0.1, warmup_from=0.1, reference_batch_size=reference_batch_size)
    rank_group = process_group.join(context)
    return NoiseWatch(model or nn.Linear(2, 2), context, rank_group, wanted=wanted, visible=visible), context


def of(signal, noise):
    """The state of gradients that were measured often enough, with these averages."""
    return {"steps": 10, "smoothed": [signal, noise, 1.0], "under_way": None}


def test_unwanted_noise_is_not_measured():
    watch, context = watching(visible=False)
    assert watch.gradients is None and watch.figures() == {} == watch.state() and watch.pace() == Pace()
    watch.restore(of(1.0, 64.0))  # of a trial that was asked for it: nothing is there to bring it back to
    assert watch.figures() == {} and context.remarks == []


@pytest.mark.parametrize(("rule", "wanted"), [("adascale", False), ("none", True)])
def test_invisible_gradients_are_refused(rule, wanted):
    with pytest.raises(ValueError, match=r"trainable\.cuda_graph"):
        watching(rule, wanted=wanted, visible=False)


def test_noise_scale_is_noise_over_signal():
    watch, _ = watching(wanted=True)
    assert watch.figures() == {}, "nothing is known yet"
    watch.restore(of(2.0, 64.0))
    assert watch.figures() == {"noise_scale": 32.0} and watch.pace() == Pace()
    assert watch.state() == of(2.0, 64.0)
    watch.restore({})
    assert watch.state() == of(2.0, 64.0)


def test_only_watched_optimizers_are_measured():
    for wanted in (False, True):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch, _ = watching(wanted=wanted, model=model)
        watch.watch(optimizer)
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        assert watch.state().get("steps") == (1 if wanted else None)


def test_adascale_gain_by_hand():
    """κ = 4; σ² at 16 samples is 64/16 = 4 and μ² = 2: r = (4 + 2) / (4/4 + 2) = 2, half of κ."""
    watch, _ = watching("adascale")
    assert watch.pace() == Pace(gain=1.0, advance=0.25) and watch.figures() == {"gain": 1.0}
    watch.restore(of(2.0, 64.0))
    assert watch.pace() == Pace(gain=2.0, advance=0.5)
    assert watch.figures() == {"noise_scale": 32.0, "gain": 2.0}
    watch.restore(of(2.0, 64.0) | {"under_way": [1.0, 1.0]})
    assert watch.pace().gain == 2.0, "it does not wait for a measurement"
    without_reference, _ = watching("adascale", reference_batch_size=0)
    without_reference.restore(of(2.0, 64.0))
    assert without_reference.pace() == Pace(gain=1.0, advance=1.0), "the trial's batch is the reference"


@pytest.mark.parametrize(
    ("rule", "reference", "wanted", "remarks"),
    [
        ("adascale", 32, False, [ONE_PASS]),
        ("adascale", 64, False, []),  # at the reference batch it has nothing to gain
        ("adascale", 128, False, []),
        ("none", 16, True, []),
    ],
)
def test_adascale_with_one_part_adds_a_remark(rule, reference, wanted, remarks):
    watch, context = watching(rule, passes=1, reference_batch_size=reference, wanted=wanted)
    assert watch.gradients is None and context.remarks == remarks and "noise_scale" not in watch.figures()


@pytest.mark.parametrize(
    ("estimate", "kappa", "gain"),
    [
        ((1.0, 0.0), 4, 1.0),  # no noise: a larger batch shows nothing new
        ((0.0, 5.0), 4, 4.0),  # nothing but noise: the linear rule
        ((1.0, 32.0), 4, 2 / (1 / 4 + 1)),  # σ² = 32/32 = μ²
        ((-0.5, 5.0), 4, 4.0),
        ((0.0, 0.0), 4, 1.0),
        (None, 4, 1.0),
        ((1.0, 32.0), 1.25, 2 / (1 / 1.25 + 1)),  # just above the reference batch
        ((1.0, 32.0), 1, 1.0),  # the linear rule at the reference batch, and below it
        ((1.0, 32.0), 0.5, 0.5),
    ],
)
def test_gain_by_hand(estimate, kappa, gain):
    known = NoiseEstimate(signal=estimate[0], noise=estimate[1]) if estimate else None
    gained = pace(known, kappa=kappa, reference_batch_size=32)
    assert (gained.gain, gained.advance) == pytest.approx((gain, gain / kappa))


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e3))
def test_gain_lies_between_1_and_kappa(signal, noise, kappa):
    gained = pace(NoiseEstimate(signal=signal, noise=noise), kappa=kappa, reference_batch_size=32)
    assert 1 - 1e-9 <= gained.gain <= kappa * (1 + 1e-9)
