from dataclasses import replace

import pytest

from orchestrator.decision.recommendation import Figure, Recommendation, Setting
from orchestrator.report.glance import Tile, tiles

NAN = float("nan")


def setting(cell_id: str, gpus: int, time_s: float, cost: float, accuracy: float, **axes: object) -> Setting:
    def figure(value: float, unit: str = "1") -> Figure:
        return Figure(value=value, unit=unit)

    return Setting(
        cell_id=cell_id,
        name=cell_id,
        baseline_cell_id=None,
        axes={"gpus": gpus, "lr_rule": "linear", **axes},
        values={
            "gpus": gpus,
            "device_batch_size": 512,
            "global_batch_size": 512 * gpus,
            "lr_rule": "linear",
            "lr": 0.1 * gpus,
        },
        overrides=(),
        command="",
        figures={
            "time": figure(time_s, "s"),
            "energy": figure(NAN, "J"),
            "cost": figure(cost, "GPU-hours"),
            "val_accuracy": figure(accuracy),
            "val_accuracy_difference": figure(accuracy - 0.95),
        },
        timing_valid=True,
        note="",
        on_front=True,
        p_best=NAN,
        p_within_margin=NAN,
        why_not="",
    )


FOUND = Recommendation(
    objective="time",
    measure="time for the fixed budget",
    margin=0.01,
    cell_id="two",
    baseline_cell_id="one",
    lead="Use two.",
    provisional=False,
    shortlist=(
        setting("two", 2, 600.0, 1 / 3, 0.9455, **{"optimizer.momentum": 0.9}),
        setting("one", 1, 1080.0, 0.3, 0.95),
    ),
)


def test_what_to_use_and_what_comes_of_it_beside_the_baseline() -> None:
    assert tiles(FOUND) == [
        Tile(title="GPUs", value="2"),
        Tile(title="batch", value="1,024", beside="512 each"),
        Tile(title="learning-rate rule", value="linear", beside="rate 0.2"),
        Tile(title="optimizer.momentum", value="0.9"),
        Tile(title="time for the fixed budget", value="10.0 min", beside="baseline 18.0 min: 1.80× as fast"),
        Tile(
            title="cost for the fixed budget", value="20.0 GPU-minutes", beside="baseline 18.0 GPU-minutes: 111% of it"
        ),
        Tile(title="validation accuracy", value="0.946", beside="baseline 0.950; 0.01 lower is allowed"),
    ]


def test_the_baseline_itself_is_compared_with_nothing() -> None:
    shown = tiles(replace(FOUND, cell_id="one"))
    assert [tile.value for tile in shown] == ["1", "512", "linear", "18.0 min", "18.0 GPU-minutes", "0.950"]
    assert [tile.beside for tile in shown if tile.beside] == ["rate 0.1"]


@pytest.mark.parametrize("missing", [replace(FOUND, cell_id=None), replace(FOUND, shortlist=())])
def test_nothing_is_shown_where_nothing_is_recommended(missing: Recommendation) -> None:
    assert tiles(missing) == []


def test_without_gpus_they_are_worker_processes_and_have_no_cost() -> None:
    titles = [tile.title for tile in tiles(FOUND, on_cpu=True)]
    assert titles[0] == "worker processes" and not any(title.startswith("cost") for title in titles)
