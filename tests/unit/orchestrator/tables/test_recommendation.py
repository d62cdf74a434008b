"""The decision for programs, of a small sweep worked out by hand, and held against what people read of it.

The tables of what GPUs are worth, and of the cells that nothing beats.
"""

import json
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.trials import collect
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.decision.explain import probability
from orchestrator.decision.recommendation import NO_OBJECTIVE, SURE, GpuCount, Recommendation, TradeOff
from orchestrator.store.record import TrialRecord
from orchestrator.tables.recommendation import (
    front_table,
    gpu_count_table,
    recommendation_json,
    recommendation_markdown,
)
from orchestrator.text import figures
from sweeps.status import Status

RecordOf = Callable[..., TrialRecord]


def decided(records: list[TrialRecord], **terms: Any) -> Recommendation:
    axes = {"gpus": "gpus", "device_batch_size": "device_batch_size", "lr_rule": "lr_rule"}
    frames = collect(records, scaling="weak", reference_batch_size=32)
    return decide(*frames, Terms(**{"axes": axes, "arguments": ("sweep=demo", "budget.epochs=5")} | terms))


def told(found: Recommendation) -> dict[str, Any]:
    return dict(json.loads(recommendation_json(found, "demo")))


@pytest.fixture
def records(record_of: RecordOf) -> list[TrialRecord]:
    """6,000 samples at about 100, 200 and 300 a second: 60, 30 and 20 s. Three GPUs lose .05; a rule was oom."""

    def trial(gpus: int, seed: int, val_accuracy: float) -> TrialRecord:
        measured = {
            "samples_per_s": 100 * gpus * 1.01**seed,
            "samples": 6000,
            "val_accuracy": val_accuracy + seed / 100,
        }
        return record_of(gpus, seed, metrics=measured | {"accuracy": val_accuracy, "energy_j_per_sample": 0.5})

    fine = [trial(gpus, seed, acc) for gpus, acc in ((1, 0.9), (2, 0.9), (3, 0.85)) for seed in range(3)]
    return [*fine, *(record_of(4, s, Status.OOM, lr_rule="sqrt", note="out of memory") for s in range(3))]


def test_the_setting_to_use_with_its_figures(records: list[TrialRecord]) -> None:
    found = told(decided(records, price_per_gpu_hour=3.0))
    chosen = found["recommended"]
    assert (found["version"], found["sweep"], found["provisional"]) == (1, "demo", False)
    assert found["objective"] == {"name": "time", "measure": "time for the fixed budget"}
    assert found["margin"] == {"val_accuracy": 0.01, "tie": 0.02}
    assert chosen["axes"] == {"gpus": 2, "device_batch_size": 32, "lr_rule": "none"}
    assert (chosen["values"]["global_batch_size"], chosen["values"]["lr"]) == (64, 0.1)
    of = chosen["figures"]
    mean_s = 6000 / (200 * 1.01)  # the geometric mean over the seeds is that of the middle one
    # Student's t of 2 degrees of freedom at 97.5%; the logarithms of 1.01**seed have standard deviation log 1.01
    width = math.exp(4.302653 * math.log(1.01) / math.sqrt(3))
    assert of["time"] == {"unit": "s", **around(mean_s, width)}
    assert of["cost"] == {"unit": "at your price", **around(2 * mean_s / 3600 * 3, width)}
    assert of["energy"]["value"] == pytest.approx(0.5 * 6000) and of["energy"]["unit"] == "J"
    assert of["speedup"]["value"] == pytest.approx(2) and of["efficiency"]["value"] == pytest.approx(1)
    assert of["accuracy"]["value"] == pytest.approx(0.9) and of["val_accuracy"]["value"] == pytest.approx(0.91)
    assert of["val_accuracy_difference"]["value"] == pytest.approx(0)
    assert chosen["baseline_cell_id"] == found["baseline"]["cell_id"] == "1-32-none"


def around(mean: float, width: float) -> dict[str, Any]:
    return {"value": pytest.approx(mean), "lo": pytest.approx(mean / width), "hi": pytest.approx(mean * width)}


def test_the_command_is_the_sweeps_own_with_the_axes_narrowed_to_the_cell(records: list[TrialRecord]) -> None:
    chosen = told(decided(records))["recommended"]
    narrowed = ["sweep.axes.gpus=[2]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]"]
    assert chosen["overrides"] == [*narrowed, "sweep.axes.seed=[0,1,2]"]
    assert shlex.split(chosen["command"])[3:] == ["sweep=demo", "budget.epochs=5", *chosen["overrides"]]


def test_the_alternatives_say_why_they_are_not_the_one(records: list[TrialRecord]) -> None:
    found = told(decided(records))
    assert {each["cell_id"]: (each["on_front"], each["why_not"]) for each in found["alternatives"]} == {
        "3-32-none": (
            True,
            "validation accuracy 0.0500 lower than the baseline's (0.01 lower is allowed, within the margin with"
            " probability below 1%)",
        ),
    }
    assert found["baseline"]["why_not"] == (
        "its time for the fixed budget is 100% above that of 2 GPUs with a batch of 32 each (64 in all) and the"
        " learning rate unchanged"
    )
    assert found["not_considered"] == ["1 cell is not ok"]


def test_of_each_number_of_gpus_there_is_the_best_cell(records: list[TrialRecord]) -> None:
    found = told(decided(records))["gpu_counts"]
    assert [(each["gpus"], each["best"] and each["best"]["cell_id"], each["why_none"]) for each in found] == [
        (1, "1-32-none", ""),
        (2, "2-32-none", ""),
        (3, None, "no cell is within the margin"),
        (4, None, "no cell is ok"),
    ]
    assert found[1]["best"]["time_s"] == pytest.approx(6000 / 202)


def test_it_says_what_the_text_says(records: list[TrialRecord], record_of: RecordOf) -> None:
    slow = {"samples_per_s": 99, "samples": 6000, "val_accuracy": 0.92}
    unsure = [record_of(1, s, lr_rule="sqrt", metrics={**slow, "val_accuracy": 0.89 + s / 50}) for s in range(2)]
    for given, terms in ((records, {}), ([*records, *unsure], {"margin": 0.06}), (unsure[:1], {})):
        recommendation = decided(given, **terms)
        text, found = recommendation_markdown(recommendation, "demo"), told(recommendation)
        assert (
            f"\n\n{found['sentence']}\n\n" in text.replace("**", "")
            and found["recommended"]["name"] in found["sentence"]
        )
        assert all(f"- {line}" in text for line in [*found["reasons"], *found["undecided"]["would_change"]])
        assert all(warning in found["sentence"] for warning in found["warnings"])
        assert bool(found["warnings"]) is found["provisional"] is ("Provisional: " in text)
        assert all(f"- {each['name']}: {each['seeds']} more seed" in text for each in found["undecided"]["more_seeds"])
        assert all(command in text for command in found["undecided"]["commands"])
        best, within = found["probability"]["best"], found["probability"]["within_margin"]
        for what, chance in (("of the best", best), (" validation accuracy is within the margin", within)):
            alone = what != "of the best" and recommendation.is_baseline
            assert chance is None or alone or (f"{what} is {probability(chance)}." in text) is (chance >= SURE)
        time_s = found["recommended"]["figures"]["time"]["value"]
        assert f"training for the fixed budget takes {figures.number(time_s)} s" in found["sentence"]
        others = [each for each in found["alternatives"] + [found["baseline"]] if each != found["recommended"]]
        front = [each for each in (found["recommended"], *others) if each["on_front"]]
        rows = [f"| {each['name']} | {figures.number(each['figures']['time']['value'])} " for each in front[1:]]
        assert all(row in re.sub(" +", " ", text) for row in rows)


def test_without_a_valid_timing_nothing_is_recommended_to_programs_either(records: list[TrialRecord]) -> None:
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    disturbed = (
        trials.assign(timing_valid=False),
        cells.assign(timing_valid=False, timing_fault="shared", note="shared device"),
    )
    found = told(decide(*disturbed, Terms(axes={"gpus": "gpus"})))
    assert found["recommended"] is None and found["provisional"]
    assert found["sentence"].startswith(
        "No recommendation yet, because no timing is valid (shared device). To get one, "
    )
    assert {each["timing_valid"] for each in [found["baseline"], *found["alternatives"]]} == {False}


@pytest.mark.parametrize("objective", ["energy", NO_OBJECTIVE])
def test_without_a_recommendation_it_is_null_and_the_sentence_says_why(record_of: RecordOf, objective: str) -> None:
    record = record_of(metrics={"samples_per_s": 100, "samples": 6000})
    found = told(decided([record], objective=objective))
    assert found["recommended"] is None and found["probability"]["best"] is None
    why = {"energy": "1 cell has no energy for the fixed budget", NO_OBJECTIVE: "report.objective=none"}
    assert why[objective] in found["sentence"]
    assert found["alternatives"] == []


def test_axes_have_the_values_that_the_sweep_gives_them(record_of: RecordOf) -> None:
    axes = {"optimizer.betas": [0.9, 0.99], "trainable.slow_down": None}
    record = record_of(axes=axes, metrics={"samples_per_s": 100, "samples": 6000})
    columns = {"gpus": "gpus"} | {axis: axis for axis in axes}
    chosen = told(decided([record], axes=columns, nullable=frozenset({"trainable.slow_down"})))["recommended"]
    assert chosen["axes"] == {"gpus": 1, **axes}
    narrowed = {'sweep.axes."optimizer.betas"=[[0.9,0.99]]', 'sweep.axes."trainable.slow_down"=[null]'}
    assert narrowed <= {*chosen["overrides"]}
    older = told(decided([record], axes=columns))["recommended"]
    assert "trainable.slow_down" not in older["axes"], "an axis that the trial was without"


@pytest.mark.parametrize(("behind", "at_most"), [(0.25, 0.25), (40.0, None), (math.nan, None)])
def test_what_is_no_bound_is_none_here_too(behind: float, at_most: float | None) -> None:
    found = Recommendation(
        objective="time", measure="time", margin=0.01, cell_id="a", lead="", provisional=True, behind=behind
    )
    assert told(found)["behind_best"] == {"at_most": at_most, "probability": 0.95}


def test_every_key_is_documented(records: list[TrialRecord]) -> None:
    page = (Path(__file__).parents[4] / "docs/how-to/library.md").read_text()
    found = told(decided(records))
    chosen = found["recommended"]
    sections = (found, found["undecided"], found["behind_best"], found["objective"], chosen, chosen["values"])
    keys = {key for section in (*sections, chosen["figures"]) for key in section}
    assert [key for key in keys if f"`{key}`" not in page] == []


SLOW, FAST, ACCURATE = (
    TradeOff(cell_id=name, name=name, time_s=time_s, val_accuracy=val_accuracy, cost=1.0)
    for name, time_s, val_accuracy in (("slow", 3.0, 0.90), ("fast", 1.0, 0.89), ("accurate", 4.0, 0.95))
)
BESTS = tuple(GpuCount(gpus=gpus, name=f"{gpus} GPUs", best=best) for gpus, best in ((1, SLOW), (2, FAST)))


def found(*front: TradeOff) -> Recommendation:
    return Recommendation(
        objective="time", measure="", margin=0.01, lead="", provisional=False, front=front, gpu_counts=BESTS
    )


def test_cells_that_nothing_beats_are_listed_unless_the_gpu_counts_have_them_all() -> None:
    assert gpu_count_table(found(FAST, SLOW)) is not None and front_table(found(FAST, SLOW)) is None
    assert (listed := front_table(found(FAST, ACCURATE))) is not None and len(listed.frame) == 2
