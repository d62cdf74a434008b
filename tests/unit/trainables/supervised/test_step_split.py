"""Delays of known length, put into one place of the step of two real ranks, are found in that place."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.trainables.ranks import CONFIG, Processes, rendezvous, request, run
from trainables.clock import Clock, Window
from trainables.inputs.inputs import ResidentInputs
from trainables.step import flat_exchange, training_step
from trainables.step.stopwatch import Parts, Stopwatch
from trainables.supervised import loop, step_split
from trainables.supervised.step_split import StepSplit

DELAY_S = 0.04
TIMED = CONFIG | {
    "trainable": {"window_s": 0.5, "window_steps": 10, "warmup_steps": 3, "warmup_s": 0.0, "val_fraction": 0.0},
    "budget": {"steps": 5},
}
PARTS = ("data", "host", "compute", "communication", "imbalance")


def delayed(asked: dict[str, Any], place: str) -> dict[str, float]:
    """A trial whose step is DELAY_S longer in this place."""

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def slowed(*given: Any, **named: Any) -> Any:
            time.sleep(DELAY_S)
            return function(*given, **named)

        return slowed

    places: dict[str, tuple[Any, str]] = {
        "data": (ResidentInputs, "_block"),
        "host": (loop.Loop, "step"),
        "compute": (training_step.TrainingStep, "_loss"),
        "communication": (flat_exchange, "_average"),
        "imbalance": (training_step.TrainingStep, "_loss"),
    }
    patch = pytest.MonkeyPatch()
    patch.setattr(step_split, "SPLIT_STEPS", 12)
    if place and (place != "imbalance" or asked["rank"] == 1):
        owner, name = places[place]
        patch.setattr(owner, name, slow(getattr(owner, name)))
    if place == "data":
        patch.setattr(ResidentInputs, "_block_steps", 1)
    try:
        metrics: dict[str, float] = run(asked)["metrics"]
    finally:
        patch.undo()
    return metrics


def of_two(pair: Processes, place: str) -> dict[str, float]:
    meeting = {"rendezvous": rendezvous(), "gang_id": f"scaling {place}"}
    asked = [(request(rank=rank, shares=(32, 32), config=TIMED, **meeting), place) for rank in range(2)]
    found: dict[str, float] = pair.call(delayed, *asked)[0]
    return found


@pytest.fixture(scope="module")
def undelayed(pair: Processes) -> dict[str, float]:
    return of_two(pair, "")


@pytest.mark.parametrize("place", PARTS)
def test_a_delay_lands_in_its_part(pair: Processes, undelayed: dict[str, float], place: str) -> None:
    found = of_two(pair, place)
    grew = {part: found[f"step_{part}_s"] - undelayed[f"step_{part}_s"] for part in PARTS}
    assert found[f"step_{place}_s"] >= 0.8 * DELAY_S and max(grew, key=lambda part: grew[part]) == place, grew
    assert place != "imbalance" or found["slowest_rank"] == 1
    rest = found["step_s"] - sum(found[f"step_{part}_s"] for part in PARTS)
    assert abs(rest) <= 0.1 * found["step_s"], (found, rest)


def test_a_single_rank_has_no_exchange() -> None:
    metrics = delayed(request(config=TIMED), "host")
    assert metrics["step_host_s"] >= DELAY_S and metrics["step_communication_s"] == 0
    parts = sum(metrics[f"step_{part}_s"] for part in PARTS)
    assert parts == pytest.approx(metrics["step_s"], rel=0.02)


def test_an_epochs_seconds_are_all_accounted_for() -> None:
    (*_, row) = run(request(config=TIMED | {"budget": {"epochs": 2}}))["rows"]
    told = [row[name] for name in ("data_s", "compute_s", "communication_s", "rest_s")]
    assert sum(told) == pytest.approx(row["epoch_s"]) and min(told[:2]) > 0 and told[2] == 0


class Ranks:
    """A gang of which each rank has waited so long."""

    def __init__(self, *waited_s: float) -> None:
        self._waited_s = waited_s

    def each(self, _: float) -> list[float]:
        return list(self._waited_s)


def test_captured_steps_tell_how_long_they_wait_for_data_and_nothing_else() -> None:
    gang = Ranks(0.03, 0.01, 0.02)
    split = StepSplit(pytest.fail, Stopwatch("cpu"), clock=Clock("cpu"), gang=gang)  # type: ignore[arg-type]
    parts = Parts(data_s=1.0, exchange_s=0.0, step_s=2.0)
    assert split.undivided(Window(seconds=5.0, steps=50), parts) == {"step_s": 0.1, "step_data_s": 0.02}
