"""What is made of a gradient's noise, from figures that are chosen by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from trainables import process_group
from trainables.context import Batch, Context, LearningRate
from trainables.noise.adascale import Pace
from trainables.noise.noise_watch import ALONE, NoiseWatch


def watching(
    rule: str = "none",
    *,
    passes: int = 2,
    reference_batch_size: int | None = 16,
    wanted: bool = False,
    visible: bool = True,
    model: nn.Module | None = None,
) -> tuple[NoiseWatch, Context]:
    """Of a step of 64 samples, in so many passes of one rank."""
    batch = Batch(global_batch_size=64, grad_accum_steps=passes, shares=(64 // passes,))
    context = Context.alone(batch=batch)
    context.lr = LearningRate(rule=rule, value=0.1, warmup_from=0.1, reference_batch_size=reference_batch_size)
    gang = process_group.join(context)
    return NoiseWatch(model or nn.Linear(2, 2), context, gang, wanted=wanted, visible=visible), context


def of(signal: float, noise: float) -> dict[str, Any]:
    """The state of gradients that were measured often enough, with these averages."""
    return {"steps": 10, "smoothed": [signal, noise, 1.0], "under_way": None}


def test_whoever_asks_for_no_noise_is_not_watched_even_where_gradients_cannot_be_seen() -> None:
    watch, context = watching(visible=False)
    assert watch.gradients is None and watch.figures() == {} == watch.state() and watch.pace() == Pace()
    watch.restore(of(1.0, 64.0))  # of a trial that was asked for it: nothing is there to bring it back to
    assert watch.figures() == {} and context.remarks == []


@pytest.mark.parametrize(("rule", "wanted"), [("adascale", False), ("none", True)])
def test_noise_that_cannot_be_seen_is_refused(rule: str, wanted: bool) -> None:
    with pytest.raises(ValueError, match="not seen in a CUDA graph"):
        watching(rule, wanted=wanted, visible=False)


def test_the_noise_scale_is_noise_over_signal_and_leaves_the_pace_alone() -> None:
    watch, _ = watching(wanted=True)
    assert watch.figures() == {}, "nothing is known yet"
    watch.restore(of(2.0, 64.0))
    assert watch.figures() == {"noise_scale": 32.0} and watch.pace() == Pace()
    assert watch.state() == of(2.0, 64.0)
    watch.restore({})
    assert watch.state() == of(2.0, 64.0), "an earlier attempt that had not watched tells nothing"


def test_the_gradients_of_an_optimizer_are_looked_at_where_they_are_watched() -> None:
    for wanted in (False, True):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch, _ = watching(wanted=wanted, model=model)
        watch.watch(optimizer)
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        assert watch.state().get("steps") == (1 if wanted else None)


def test_adascale_s_gain_by_hand() -> None:
    """κ = 4; σ² at 16 samples is 64/16 = 4 and μ² = 2: r = (4 + 2) / (4/4 + 2) = 2, half of κ."""
    watch, _ = watching("adascale")
    assert watch.pace() == Pace(gain=1.0, advance=0.25) and watch.figures() == {"gain": 1.0}
    watch.restore(of(2.0, 64.0))
    assert watch.pace() == Pace(gain=2.0, advance=0.5)
    assert watch.figures() == {"noise_scale": 32.0, "gain": 2.0}


def test_without_a_reference_batch_adascale_starts_from_the_trial_s_own() -> None:
    watch, _ = watching("adascale", reference_batch_size=None)
    watch.restore(of(2.0, 64.0))
    assert watch.pace() == Pace(gain=1.0, advance=1.0)


def test_the_pace_waits_for_no_measurement_that_is_under_way() -> None:
    watch, _ = watching("adascale")
    watch.restore(of(2.0, 64.0) | {"under_way": [1.0, 1.0]})
    assert watch.pace().gain == 2.0


@pytest.mark.parametrize(
    ("rule", "reference", "wanted", "remarks"),
    [
        ("adascale", 32, False, [ALONE]),
        ("adascale", 64, False, []),  # at the reference batch it has nothing to gain
        ("adascale", 128, False, []),
        ("none", 16, True, []),
    ],
)
def test_a_step_of_one_part_shows_no_noise_and_adascale_says_what_that_means(
    rule: str, reference: int, wanted: bool, remarks: list[str]
) -> None:
    watch, context = watching(rule, passes=1, reference_batch_size=reference, wanted=wanted)
    assert watch.gradients is None and context.remarks == remarks and "noise_scale" not in watch.figures()
