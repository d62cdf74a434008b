"""Forecasts from rehearsals, by hand: lines of memory and time, what fits, and which cells are rehearsed."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.plan.estimates import SHAPES, Estimate, Forecast, beside_training_s, communication, training_s
from orchestrator.plan.rehearsals import Rehearsal, Rehearsals, kind_of
from sweeps.layout import Gang, Layout
from sweeps.lr_rule import LearningRate
from sweeps.status import Status
from sweeps.trial import Batch, TrialSpec

GPU = Gang(ranks=1, gpus_per_rank=1, cpus_per_rank=4)
SETTINGS = {"window_s": 2.0, "window_steps": 50, "warmup_s": 0.3, "warmup_steps": 10}
FIGURES: dict[str, Any] = {
    **{"setup_s": 2.0, "first_step_s": 1.0, "validation_s": 0.5, "test_s": 0.25},
    **{"epoch_samples": 1000, "n_params": 2**28, "is_alone": False, "gathered_gb": 0.0, "exchanged_gb": 1.0},
    **{"overlaps": True, "parameters_gb": 1.0, "gradients_gb": 1.0, "optimizer_gb": 2.0, "device_gb": 80.0},
}


def trial(micro=8, **other):
    given: dict[str, Any] = {
        **{"trial_id": f"{micro}", "cell_id": "c", "sweep": "s", "axes": {}, "gpus": 1, "gang": GPU, "device": "cuda"},
        **{"layout": Layout(), "timing": "device", "seed": 0, "trainable": "m:f"},
        "batch": Batch(global_batch_size=micro, shares=(micro,)),
        "lr": LearningRate(value=0.1, warmup_from=0.1),
        "config": {"trainable": SETTINGS, "budget": {"epochs": 10}},
    }
    return TrialSpec(**given | other)


def rehearsal(micro, gb=10.0, step_s=0.1, **other):
    memory = {"setup_gb": 5.0, "passes_gb": gb, "update_gb": 12.0, "evaluation_gb": 6.0}
    times = {"step_s": step_s, "device_step_s": step_s}
    figures = FIGURES | memory | times | other
    return Rehearsal(kind=kind_of(trial(micro)), micro_batch=micro, status=Status.OK, figures=figures)


def short(micro):
    return Rehearsal(kind=kind_of(trial(micro)), micro_batch=micro, status=Status.OOM, note="out of memory")


@pytest.mark.parametrize(
    ("change", "is_alike"),
    [
        ({"seed": 3, "lr": LearningRate(rule="linear", value=0.3, warmup_from=0.1)}, True),
        ({"config": {"trainable": SETTINGS | {"window_s": 9}, "budget": {"steps": 5}}}, True),
        ({"batch": Batch(global_batch_size=64, shares=(64,))}, True),
        ({"batch": Batch(global_batch_size=64, shares=(8,), grad_accum_steps=8)}, False),
        ({"lr": LearningRate(rule="adascale", value=0.1, warmup_from=0.1)}, False),
        ({"config": {"trainable": SETTINGS | {"precision": "bf16"}}}, False),
        ({"config": {"trainable": SETTINGS, "optimizer": {"name": "adamw"}}}, False),
        ({"layout": Layout(strategy="ddp", replicas=2)}, False),
    ],
)
def test_kinds_leave_out_what_changes_no_figure(change, is_alike):
    assert (kind_of(replace(trial(), **change)) == kind_of(trial())) == is_alike


@pytest.mark.parametrize(
    ("sizes", "lacking", "order"),
    [
        ([8], [], [8]),
        ([8, 16, 32], [], [8, 32]),
        ([8, 16, 32, 64], [], [8, 64, 32]),
        ([8, 16, 32, 64], [64], [8, 64, 32]),
        ([8, 16, 32, 64, 128], [64, 128], [8, 128, 64, 32]),
        ([8, 16], [8, 16], [8]),
    ],
)
def test_ends_and_the_middle_are_rehearsed(sizes, lacking, order):
    rehearsals, seen = Rehearsals(), []
    while wanted := rehearsals.next([trial(size) for size in sizes]):
        [size] = wanted.batch.shares
        seen.append(size)
        rehearsals.add(short(size) if size in lacking else rehearsal(size))
    assert seen == order


@pytest.mark.parametrize(
    ("micro", "gb"),
    [(8, 12.0), (16, 18.0), (24, 24.0), (32, 30.0), (64, 54.0), (4, 12.0)],  # 6 + 0.75 for each sample, or the update
)
def test_peak_is_flat_first_and_then_a_line(micro, gb):
    forecast = Rehearsals([rehearsal(8, gb=12.0), rehearsal(32, gb=30.0)]).forecast(trial(micro))
    assert forecast.peak_memory_gb.value == pytest.approx(gb)
    assert forecast.peak_memory_gb.lo < gb < forecast.peak_memory_gb.hi
    held = {"parameters": 1.0, "gradients": 1.0, "optimizer": 2.0}
    assert forecast.parts_gb == held | {"activations": pytest.approx(gb - 4)}


@pytest.mark.parametrize(
    ("micro", "fits"), [(8, "yes"), (80, "yes"), (97, "unsure"), (120, "no"), (200, "no")]
)  # 78.75 GB are needed at 97 samples, and a GPU of 80 GB has 79
def test_cells_fit_or_do_not(micro, fits):
    forecast = Rehearsals([rehearsal(8, gb=12.0), rehearsal(32, gb=30.0)]).forecast(trial(micro))
    assert forecast.fits == fits
    assert (forecast.why == "") == (fits == "yes")


def test_a_rehearsal_without_memory_decides_for_larger_batches():
    known = Rehearsals([rehearsal(8, gb=12.0), short(16)])
    assert [known.forecast(trial(micro)).fits for micro in (8, 16, 32)] == ["yes", "no", "no"]  # type: ignore[union-attr]
    nothing_fits = Rehearsals([short(8)]).forecast(trial(16))
    assert (nothing_fits.fits, nothing_fits.step_s) == ("no", None)
    assert Rehearsals([short(8)]).forecast(trial(4)) is None
    assert Rehearsals().forecast(trial()) is None


def test_a_batch_of_more_samples_than_the_data_cannot_run():
    rehearsals = Rehearsals([rehearsal(8)])
    forecast = rehearsals.forecast(trial(1001))
    assert forecast == Forecast(fits="no", why="global_batch_size=1001 is more than the 1,000 training samples")
    assert rehearsals.next([trial(8), trial(1001)]) is None
    assert rehearsals.forecast(trial(1000)).step_s


@pytest.mark.parametrize(
    ("micro", "step_s", "lo", "hi"),
    [
        (8, 0.02, 0.014 / 1.03, 0.032 * 1.03),  # launches take 0.7 to 1.6 times as long in another process
        (16, 0.02, 0.014 / 1.08, 0.032 * 1.08),
        (36, 0.0225, 0.0225 / 1.08, 0.032 * 1.08),  # the device needs longer, by its line
        (64, 0.04, 0.04 / 1.03, 0.04 * 1.03),
        (80, 0.05, 0.05 / 1.5, 0.05 * 1.5),
    ],
)
def test_steps_take_the_host_or_the_device(micro, step_s, lo, hi):
    small, large = rehearsal(8, step_s=0.02, device_step_s=0.005), rehearsal(64, step_s=0.04, device_step_s=0.04)
    forecast = Rehearsals([small, large]).forecast(trial(micro))
    assert (forecast.step_s.value, forecast.step_s.lo, forecast.step_s.hi) == pytest.approx((step_s, lo, hi))
    assert forecast.samples_per_s.value == pytest.approx(micro / step_s)


def test_noise_of_a_flat_step_reaches_no_zero():
    flat = Rehearsals(
        [rehearsal(8, step_s=1.1e-3, device_step_s=1.1e-3), rehearsal(16, step_s=1e-3, device_step_s=1e-3)]
    )
    forecast = flat.forecast(trial(256))
    assert (
        forecast is not None and forecast.step_s is not None and forecast.step_s.value == pytest.approx(1e-3, rel=0.2)
    )


@pytest.mark.parametrize(("micro", "step_s"), [(8, 0.02), (16, 0.022), (24, 0.024), (44, 0.032), (64, 0.04)])
def test_an_input_that_takes_longer_for_larger_batches_is_a_line(micro, step_s):
    bound = [rehearsal(size, step_s=s, device_step_s=0.01) for size, s in ((8, 0.02), (24, 0.024))]
    forecast = Rehearsals([*bound, rehearsal(64, step_s=0.04, device_step_s=0.03)]).forecast(trial(micro))
    assert forecast.step_s.value == pytest.approx(step_s)


@pytest.mark.parametrize(
    ("budget", "train_s", "duration_s"),
    [
        ({"epochs": 2}, 50.0, 50 + 3 + 1.25),  # preparation, then two validations and a test; an epoch is the window
        ({"samples": 400}, 10.0, 10 + 3 + 0.75 + 13),  # a warm-up of 3 s and 50 steps follow
        ({"steps": 5}, 1.0, 1 + 3 + 0.75 + 13),
        ({"seconds": 60}, 60.0, 60 + 3 + 1.75),
    ],
)
def test_length_of_a_trial(budget, train_s, duration_s):
    wanted = trial(config={"trainable": SETTINGS, "budget": budget})
    forecast = Rehearsals([rehearsal(8, step_s=0.2)]).forecast(wanted)  # an epoch of 1,000 samples takes 25 s
    assert forecast.train_s.value == pytest.approx(train_s)
    assert forecast.duration_s.value == pytest.approx(duration_s)
    assert forecast.duration_s.lo < duration_s < forecast.duration_s.hi


@pytest.mark.parametrize(
    ("layout", "passes", "overlaps", "sent_gb"),
    [
        (Layout(strategy="ddp", replicas=4), 1, False, 2 * 0.75 * 1.0),
        (Layout(strategy="fsdp", shards=4), 1, False, 0.75 * (2 * 0.5 + 1.0)),
        (Layout(strategy="fsdp_grad", shards=4), 3, False, 0.75 * (3 * 0.5 + 1.0)),
        (Layout(strategy="fsdp", shards=2, replicas=2), 1, False, 0.5 * (2 * 0.5 + 1.0) + 2 * 0.5 * 0.5),
        (Layout(strategy="ddp", replicas=4), 1, True, 2 * 0.75 * 1.0),
    ],
)
def test_communication_by_hand(layout, passes, overlaps, sent_gb):
    figures = FIGURES | {"is_alone": True, "gathered_gb": 0.5, "exchanged_gb": 1.0, "overlaps": overlaps}
    batch = Batch(global_batch_size=8, shares=(8,), grad_accum_steps=passes)
    waits = communication(trial(layout=layout, batch=batch), figures)
    exposed = 0.4 if overlaps else 1.0
    assert waits.value == pytest.approx(exposed * sent_gb / 250) and waits.lo < waits.value < waits.hi
    together = communication(trial(layout=layout, batch=batch), figures | {"is_alone": False})
    assert together == Estimate(value=0.0, lo=0.0, hi=0.0)


def test_forecasts_from_shapes_have_wider_intervals():
    measured, shaped = (
        Rehearsals([replace(rehearsal(8, gb=12.5), source=source)]).forecast(trial(8))
        for source in ("rehearsal", SHAPES)
    )
    assert measured and shaped and shaped.source == SHAPES
    for name in ("peak_memory_gb", "samples_per_s"):
        narrow, wide = getattr(measured, name), getattr(shaped, name)
        assert wide.value == narrow.value
        assert wide.lo < narrow.lo < narrow.hi < wide.hi


def test_a_compiler_may_halve_what_shapes_tell():
    def of(source, **settings):
        compiled = trial(8, config={"trainable": SETTINGS | settings, "budget": {"epochs": 10}})
        known = replace(rehearsal(8, gb=12.5), kind=kind_of(compiled), source=source)
        forecast = Rehearsals([known]).forecast(compiled)
        assert forecast
        return forecast

    eager, compiled = of(SHAPES), of(SHAPES, compile="blocks")
    assert eager.peak_memory_gb and compiled.peak_memory_gb and eager.step_s and compiled.step_s
    assert compiled.peak_memory_gb.lo == pytest.approx(eager.peak_memory_gb.lo / 2)
    assert compiled.step_s.lo == pytest.approx(eager.step_s.lo / 2)
    assert of("rehearsal") == of("rehearsal", compile="blocks")


@pytest.mark.parametrize(("batch", "evaluations"), [(125, 10), (128, 10), (2000, 8)])
def test_trial_is_evaluated_once_an_epoch(batch, evaluations):
    """80 steps of 125 samples are ten epochs of 1000, as are 79 of 128; a step of 2000 has two epochs."""
    spec, step = trial(batch), Estimate(value=0.5, lo=0.5, hi=0.5)
    train_s = training_s(spec, FIGURES, step).value
    unevaluated = FIGURES | {"validation_s": 0.0, "test_s": 0.0}
    beside_s, timing_s = (beside_training_s(spec, figures, 0.5, train_s) for figures in (FIGURES, unevaluated))
    assert beside_s - timing_s == pytest.approx(evaluations * 0.5 + 0.25)
