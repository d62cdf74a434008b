"""A linear model without bias has its inputs for gradients, so that every norm can be computed by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.trainables.ranks import CONFIG, Processes, rendezvous, request, run
from tests.unit.trainables.supervised.test_training import EXACT, trained
from trainables import process_group
from trainables.context import Batch, Context
from trainables.noise import gradient_noise
from trainables.noise.gradient_noise import GradientNoise
from trainables.noise.noise_scale import Estimate
from trainables.step import strategies

DIMENSIONS = 6


def samples(count: int) -> Tensor:
    source = torch.Generator().manual_seed(5)
    return 1 + torch.randn(count, DIMENSIONS, generator=source, dtype=torch.float64)


def by_hand(step: Tensor, sizes: list[int]) -> tuple[float, float]:
    """Signal and noise of a step whose parts have these sizes."""
    small = sum(part.mean(0).square().sum().item() for part in step.split(sizes)) / len(sizes)
    harmonic = len(sizes) / sum(1 / size for size in sizes)
    found = Estimate.of(small, step.mean(0).square().sum().item(), small_batch=harmonic, big_batch=len(step))
    return found.signal, found.noise


def measured(
    rank: int, shares: tuple[int, ...], accumulate: int, meet: str | None, wire: torch.dtype | None = None
) -> tuple[float, float]:
    """One step with the rank's part of the samples, whose labels are what the loss adds up; whole ones for a `wire`."""
    batch = Batch(global_batch_size=sum(shares) * accumulate, grad_accum_steps=accumulate, shares=shares)
    strategy = "ddp" if len(shares) > 1 else "single"
    context = Context.alone(rank=rank, world_size=len(shares), batch=batch, strategy=strategy)
    context.rendezvous, context.gang_id = meet, str(shares)
    model = nn.Linear(DIMENSIONS, 1, bias=False).double()
    noise = GradientNoise(model, batch, process_group.join(context))
    prepared = strategies.prepare(model, context, strategies.Exchange(noise=noise, wire=wire))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise.watch(optimizer)
    every = samples(batch.global_batch_size)
    own = (every.round() if wire else every).split([share * accumulate for share in shares])[rank]
    *earlier, last = own.split(shares[rank])
    for each in earlier:
        with prepared.without_exchange():
            (prepared.forward(each).sum() * prepared.loss_scale).backward()
    (prepared.forward(last).sum() * prepared.loss_scale).backward()
    prepared.exchange()
    optimizer.step()
    found = noise.smoothed().estimate
    assert found is not None
    return found.signal, found.noise


@pytest.mark.parametrize(("share", "accumulate"), [(4, 3), (1, 8), (5, 2)])
def test_between_one_ranks_passes(share: int, accumulate: int) -> None:
    found = measured(0, (share,), accumulate, None)
    assert found == pytest.approx(by_hand(samples(share * accumulate), [share] * accumulate))


@pytest.mark.parametrize(("shares", "accumulate"), [((4, 4), 1), ((5, 2), 1), ((3, 1), 2)])
def test_between_ranks(pair: Processes, shares: tuple[int, int], accumulate: int) -> None:
    meet = rendezvous()
    found = pair.call(measured, *((rank, shares, accumulate, meet) for rank in range(2)))
    sizes = [share * accumulate for share in shares]
    assert found[0] == found[1] == pytest.approx(by_hand(samples(sum(sizes)), sizes))


def test_norms_are_not_rounded_as_gradients_are_for_their_journey(pair: Processes) -> None:
    """Quarters and eighths of small numbers survive it, their norms would not."""
    meet = rendezvous()
    found = pair.call(measured, *((rank, (4, 4), 1, meet, torch.bfloat16) for rank in range(2)))
    assert found[0] == found[1] == pytest.approx(by_hand(samples(8).round(), [4, 4]))


def test_one_step_of_many_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_noise, "EVERY", 4)
    taken: list[int] = []
    monkeypatch.setattr(GradientNoise, "_take_in", lambda noise, small, big: taken.append(noise._steps))
    settings = CONFIG["trainable"] | {"noise_scale": True}
    trained(request(grad_accum_steps=2, config={"trainable": settings, "budget": {"steps": 9}}))
    assert taken == [4, 8, 9]  # those of the steps 1, 5 and 9: each in the next one measured, the last at the end


def test_one_part_shows_no_noise() -> None:
    context = Context.alone()
    with pytest.raises(ValueError, match="one of each"):
        GradientNoise(nn.Linear(2, 2), context.batch, process_group.join(context))


def test_watching_changes_nothing_but_a_column() -> None:
    watched = EXACT | {"trainable": EXACT["trainable"] | {"noise_scale": True}}
    plain, _ = trained(request(shares=(30,), grad_accum_steps=4, config=EXACT))
    ours, metrics = trained(request(shares=(30,), grad_accum_steps=4, config=watched))
    assert ours == plain and metrics["noise_scale"] > 0
    assert "noise_scale" not in trained(request(shares=(120,), config=watched))[1]


def test_adascale_progresses_by_its_gain() -> None:
    answer = run(adascale(shares=(16,), grad_accum_steps=4))
    assert answer["status"] == "ok", answer["trace"]
    gains = [row["gain"] for row in answer["rows"]]
    assert all(1 <= gain <= 4 for gain in gains) and max(gains) > 1
    assert 20 < answer["metrics"]["steps"] < 80
    assert answer["metrics"]["samples"] == 64 * answer["metrics"]["steps"]
    assert answer["rows"][-1]["lr"] > 0.05


def test_adascale_of_two_ranks_agrees_on_its_gain(pair: Processes) -> None:
    asked = {"shares": (32, 32), "gang_id": "adascale", "rendezvous": rendezvous()}
    answers = pair.call(run, *((adascale(rank=rank, **asked),) for rank in range(2)))
    assert answers[0]["status"] == "ok", answers[0]["trace"]
    assert answers[0]["metrics"] == answers[1]["metrics"] and 1 <= answers[0]["metrics"]["gain"] <= 4


def test_adascale_of_one_part_keeps_the_reference_rate_and_says_so() -> None:
    answer = run(adascale(shares=(64,)))
    assert "its gain stays 1" in answer["note"] and answer["metrics"]["gain"] == 1
    assert answer["metrics"]["steps"] == 80
    at_the_reference = run(adascale(shares=(16,)))  # where no rule scales anything
    assert not at_the_reference["note"] and at_the_reference["metrics"]["gain"] == 1


def adascale(**other: Any) -> dict[str, Any]:
    """20 steps of 64 samples, that is 80 of the reference batch."""
    asked = request(config={"schedule": {"name": "constant"}}, **other)
    rates = {"rule": "adascale", "reference_batch_size": 16, "warmup_from": 0.05, "warmup_epochs": 0.0}
    return asked | {"lr": asked["lr"] | rates}


@pytest.mark.parametrize("hidden", [{"precision": "fp16"}, {"cuda_graph": "on"}])
def test_where_gradients_are_not_seen_is_an_error(hidden: dict[str, str]) -> None:
    settings = CONFIG["trainable"] | {"noise_scale": True} | hidden
    assert run(request(grad_accum_steps=2, config={"trainable": settings}))["status"] == "failed"


@pytest.mark.gpu
def test_on_a_gpu_a_reading_is_of_its_own_moment() -> None:
    from trainables.noise.gradient_noise import Readback

    values = torch.ones(2, device="cuda")
    seen = Readback(values)
    values.add_(1)
    assert seen.read() == [1.0, 1.0] and Readback(values).read() == [2.0, 2.0]
