"""The recommendation in words (golden files), for programs (JSON, worked out by hand), and as tables."""

import ast
import json
import math
import random
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestrator.decision as decision
from orchestrator.analysis.trials import axis_columns
from orchestrator.config.request import Metric, Terms
from orchestrator.config.schema import SCHEMA
from orchestrator.config.settings import ReportSection
from orchestrator.decision.claim_expressions import Claim
from orchestrator.decision.claim_verdicts import verdicts
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import NO_OBJECTIVE, Figure, Recommendation, not_made, remark
from orchestrator.store import files
from orchestrator.store.record import TrialRecord
from orchestrator.tables.candidates import MAY_BECOME, USE
from orchestrator.tables.recommendation import in_sentences, recommendation_json, recommendation_markdown
from orchestrator.tables.recommendation_sentences import sentence
from orchestrator.tables.scaling import scaling
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import (
    AXES,
    SHORT,
    decided,
    decided_with_frames,
    measured,
    swayed,
    target,
)
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

Golden = Callable[[str, str], None]


def as_json(recommendation):
    return dict(json.loads(recommendation_json(recommendation, "demo")))


@pytest.fixture
def records():
    """6,000 samples at about 100, 200 and 300 a second: 60, 30 and 20 s. Three GPUs lose .05; a rule was oom."""

    def trial(gpus, seed, val_accuracy):
        metrics = measured(100 * gpus * 1.01**seed, val_accuracy + seed / 100)
        return record_of(gpus, seed, metrics=metrics | {"accuracy": val_accuracy, "energy_j_per_sample": 0.5})

    fine = [trial(gpus, seed, acc) for gpus, acc in ((1, 0.9), (2, 0.9), (3, 0.85)) for seed in range(3)]
    return [*fine, *(record_of(4, s, Status.OOM, lr_rule="sqrt", note="out of memory") for s in range(3))]


def untested(gpus):
    return {"samples_per_s": 100.0 * gpus, "samples": 6000, "steps": 99, "accuracy": 0.9 - gpus / 10}


def trials(gpus, seeds, metrics):
    return [record_of(g, s, metrics=metrics(g, s)) for g in gpus for s in range(seeds)]


ONE = trials([1], 3, lambda g, s: measured(100, 0.9))
GOLDEN_CASES: dict[str, tuple[list[TrialRecord], dict[str, Any]]] = {
    "cpu": ([record_of(g, 0, device="cpu", metrics=measured(100 * g, 0.9)) for g in (1, 2)], {}),
    "tie": (swayed({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902}), {"target": target(0.99)}),
    "nothing_valid": (trials([1, 2], 2, lambda g, s: measured(100 * g, 0.9 + s / 1000) | SHORT), {}),
    "too_few_workers": ([*ONE, *trials([2], 3, lambda g, s: measured(300, 0.9) | {"workers": 1})], {}),
    "provisional": (trials([1, 2], 2, lambda g, s: measured(100 * g, 0.9 + s / 1000, foreign_cpu=0.3)), {}),
    "untimed_is_better": ([*ONE, *trials([2, 4, 8, 16], 3, lambda g, s: measured(200, 0.9) | SHORT)], {}),
    "without_accuracies": (trials([1, 2], 3, lambda g, s: untested(g)), {}),
}


@pytest.mark.parametrize("name", ["gpu", *GOLDEN_CASES])
def test_golden_recommendation(name, records, golden):
    given, terms = (GOLDEN_CASES | {"gpu": (records, {"price_per_gpu_hour": 3.0})})[name]
    frames, _, recommendation = decided_with_frames(given, **terms)
    golden(f"recommendation/{name}.md", recommendation_markdown(recommendation, frames, "demo"))


def test_golden_without_an_objective(records, golden):
    claims = [
        Claim.of({"sentence": sentence, "expression": sentence})
        for sentence in ("gpus(gpus=2) > 1.5", "accuracy() > 2")
    ]
    frames = collect(records, scaling="weak", reference_batch_size=32)
    recommendation = decide(
        *frames, Terms(report=ReportSection(objective=NO_OBJECTIVE), axes=AXES), verdicts(claims, *frames)
    )
    golden("recommendation/without_objective.md", recommendation_markdown(recommendation, frames[0], "demo"))


def test_golden_rare_sentences(golden):
    """Sentences that the other cases do not have."""
    above = {"unit": "s", "of_chosen": 30.0, "name": "4×32 none", "objective": 20.0, "margin": 0.01}
    accuracy = {"metric": Metric(), "difference": -0.0097, "p_within": 0.4, "estimate": -0.0124}
    loss = Metric(name="val_loss", higher_is_better=False)
    gpus = {"gpus": 1, "device": "cuda", "device_batch_size": 32, "lr": None, "lr_rule": "none"}
    use = {"name": "1×32 none", "cell": gpus, "measure": "energy for the fixed budget", "unit": "J"}
    use |= {
        "baseline": "1×16 none",
        "metric": loss,
        "margin": 0.01,
        "call": USE,
        "holds": True,
        "safe": None,
        "is_to_target": False,
        "tied": 0,
        "sure": "",
        "gain": Figure(value=1.5, unit="1"),
    }
    after = {"name": "2×32 none", "measure": "time", "metric": loss, "difference": "+0.004", "others": "4×32 none"}
    above_chosen = remark("above_chosen", name="1×32 none", by=0.3, measure="time")
    dearer = remark("needs_more_hours", name="1×32 none", ratio=2.0, on_cpu=False)
    poor = {"metric": loss, "name": "1×64 none", "difference": -0.727, "margins": 14.5, "of_chosen": 15.4}
    references = [
        {"baseline": None, "measure": "time for the fixed budget", "objective": 9.93},
        {"baseline": "1×16 none", "measure": "energy for the fixed budget", "objective": 9.93},
        {"baseline": None, "measure": "time for the fixed budget", "objective": None},
    ]
    remarks = [
        not_made(Terms()).headline,
        remark("use", **use, objective=12_000.0, of_baseline=18_000.0, cost=1.79),
        *(
            remark("use", **{**use, "call": MAY_BECOME, "holds": False, "safe": safe, "tied": 5 * safe["is_baseline"]})
            for safe in (
                {"name": "2×16 none", "cell": gpus, "is_baseline": False},
                {"name": "1×16 none", "cell": gpus, "is_baseline": True},
            )
        ),
        remark("none_within_margin", metric=loss, margin=0.01, baseline="1×32 none"),
        remark("none_ok", left_out=[remark("cells_not_ok", count=2), remark("cells_skipped", count=1)]),
        remark("commonest_end", count=2, trials=3, status="failed", note="No such file."),
        remark(
            "none_measured", left_out=[remark("no_figure", count=1, measure="time")], measure="time", to_report=True
        ),
        remark("largest_scaling", scaling=0.5, lo=math.nan, hi=math.nan, efficiency=0.25, name="2×32"),
        remark("same_training", count=2),
        remark("objective_unknown", measure="time"),
        remark("accuracy_too_low", **accuracy, margin=0.01),
        *(
            remark("ties_with_chosen", metric=metric, measure="time", name="2×32 none", why=why)
            for metric, why in (
                (Metric(), "more_accurate"),
                (loss, "more_accurate"),
                (loss, "needs_no_more"),
                (loss, "more_certain"),
            )
        ),
        remark("none_has_figure", measure="time"),
        remark("all_tie", metric=loss, measure="time", count=2, tied=2, compared=True, by="certainty"),
        remark("all_tie", metric=loss, measure="time", count=2, tied=2, compared=True, by="hours"),
        dearer,
        *(
            remark(
                "runner_up",
                **after,
                why=above_chosen,
                better="",
                is_less_sure=False,
                p_best=math.nan,
                holds="78% (-0.007)",
                ratio=Figure(value=1.3, lo=1.3 - width, hi=1.3 + width, unit="1"),
            )
            for width in (0.1, math.nan)
        ),
        remark("no_speed", count=54, timings=54, fault="disturbed", by="bash", cpu=0.88, note=""),
        remark("no_speed", count=1, timings=4, fault="straggler", by="", cpu=math.nan, note="a note"),
        remark("baseline_not_timed", name="1×32 none"),
        remark("within_by_pooling", metric=loss, margin=0.01),
        remark("no_reference", metric=loss),
        *(remark("poor_reference", **poor, **reference) for reference in references),
        remark("wider_margin", **above, **accuracy | {"metric": loss}, lets_in=0.012),
        remark("launch_bound", share=0.4),
        remark("indistinguishable", seeds=30, names=["1×32 none", "2×32 none"]),
        remark("near_margin", metric=Metric(), seeds=30, name=None, margin=0.01),
        remark("near_margin", metric=loss, seeds=30, name="4×32 none", margin=0.01),
        remark("seeds_without_effect", metric=loss),
        remark("untrained", metric=loss, steps=1),
        remark("short_work", share=0.5),
        *(remark("straggler", of_baseline=of_baseline, stragglers=1, timed=2, n=3) for of_baseline in (False, True)),
    ]
    golden("recommendation/rare.txt", "".join(f"{remark.code}: {sentence(remark)}\n" for remark in remarks))


def test_every_remark_has_a_sentence():
    """Each literal code in the package `decision` is a macro of the template."""
    paths = Path(str(decision.__file__)).parent.glob("*.py")
    calls = [node for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    # A remark is made by the function `remark` or by the contenders' method of that name.
    named = [node for node in calls if "remark" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))]
    known = {node.args[0].value for node in named if isinstance(node.args[0], ast.Constant)}
    template = Path(str(decision.__file__)).parents[1] / "tables" / "recommendation.md.j2"
    missing = [code for code in known if f"{{% macro {code}(r)" not in template.read_text()]
    assert len(known) > 40 and missing == []


def test_the_chosen_cell_has_its_figures(records):
    document = as_json(decided(records, price_per_gpu_hour=3.0))
    chosen = document["recommended"]
    assert (document["version"], document["sweep"], document["provisional"]) == (3, "demo", False)
    assert set(document["objective"]) == {"name", "measure"} and document["objective"]["name"] == "time"
    assert "fixed budget" in document["objective"]["measure"]
    assert document["margin"] == {"val_accuracy": 0.01, "tie": 0.02}
    assert chosen["axes"] == {"gpus": 2, "device_batch_size": 32, "lr_rule": "none"}
    assert (chosen["values"]["global_batch_size"], chosen["values"]["lr"]) == (64, 0.1)
    of = chosen["figures"]
    mean_s = 6000 / (200 * 1.01)  # the geometric mean over the seeds is that of the middle one
    # Student's t of 2 degrees of freedom at 97.5%; the logarithms of 1.01**seed have standard deviation log 1.01
    width = math.exp(4.302653 * math.log(1.01) / math.sqrt(3))
    assert of["time"] == {"unit": "s", **around(mean_s, width)}
    assert of["cost"] == {"unit": "at your price", **around(2 * mean_s / 3600 * 3, width)}
    assert of["energy"]["value"] == pytest.approx(0.5 * 6000) and of["energy"]["unit"] == "J"
    assert of["hours"] is None and of["efficiency"]["value"] == pytest.approx(1)
    assert of["speedup"]["value"] == pytest.approx(2) == of["gpu_speedup"]["value"]
    assert of["accuracy"]["value"] == pytest.approx(0.9) and of["val_accuracy"]["value"] == pytest.approx(0.91)
    assert of["val_accuracy_difference"]["value"] == pytest.approx(0)
    assert chosen["baseline_cell_id"] == document["baseline"]["cell_id"] == "1-32-none"


def test_json_has_the_speedup_of_the_sentence_and_hours_without_a_price():
    """The larger batch on the same GPU is 1.9 times as fast; more GPUs have no part in that."""
    speeds = {32: 100.0, 64: 190.0}
    records = [record_of(1, s, batch=batch, metrics=measured(speeds[batch], 0.9)) for batch in speeds for s in range(3)]
    content = as_json(decided(records))
    of = content["recommended"]["figures"]
    assert "1.90×" in content["sentence"] and of["speedup"]["value"] == pytest.approx(1.9)
    assert of["gpu_speedup"]["value"] == 1.0 and of["cost"] is None
    hours = 6000 / 190 / 3600
    assert of["hours"]["value"] == pytest.approx(hours) and of["hours"]["unit"] == "GPU-hours"
    assert content["gpu_counts"] == []
    priced = as_json(decided(trials([1, 2], 3, lambda g, s: measured(100 * g, 0.9)), price_per_gpu_hour=3.6))
    assert [count["best"]["cost"] for count in priced["gpu_counts"]] == pytest.approx([0.06, 0.06])
    assert {count["best"]["hours"] for count in priced["gpu_counts"]} == {None}


def around(mean, width):
    return {"value": pytest.approx(mean), "lo": pytest.approx(mean / width), "hi": pytest.approx(mean * width)}


def test_the_command_narrows_the_axes_to_the_cell(records):
    chosen = as_json(decided(records, arguments=("sweep=demo", "budget.epochs=5")))["recommended"]
    narrowed = ["sweep.axes.gpus=[2]", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]"]
    assert chosen["overrides"] == [*narrowed, "sweep.axes.seed=[0,1,2]"]
    assert shlex.split(chosen["command"])[3:] == ["sweep=demo", "budget.epochs=5", *chosen["overrides"]]


def test_cells_and_gpu_counts_that_are_not_chosen_have_a_reason(records):
    made = decided(records)
    content = as_json(made)
    (other,) = content["alternatives"]
    assert (other["cell_id"], other["on_front"]) == ("3-32-none", True)
    why = {cell.cell_id: cell.why_not for cell in made.shortlist}
    assert {key: remark and remark.code for key, remark in why.items()} == {
        "2-32-none": None,
        "1-32-none": "above_chosen",
        "3-32-none": "accuracy_too_low",
    }
    assert other["why_not"] == sentence(why["3-32-none"]) and "0.050" in other["why_not"]
    assert "100%" in content["baseline"]["why_not"] and "2×32 none" in content["baseline"]["why_not"]
    assert content["recommended"]["why_not"] is None and len(content["not_considered"]) == 1
    bests = {count["gpus"]: count["best"] and count["best"]["cell_id"] for count in content["gpu_counts"]}
    assert bests == {1: "1-32-none", 2: "2-32-none", 3: None, 4: None}
    reasons = [count.why_none and count.why_none.code for count in made.gpu_counts]
    assert reasons == [None, None, "none_keeps_margin", "no_ok_cell"]
    assert [bool(count["why_none"]) for count in content["gpu_counts"]] == [False, False, True, True]
    assert content["gpu_counts"][1]["best"]["time_s"] == pytest.approx(6000 / 202)


def test_markdown_has_the_lead_and_json_everything(records):
    slow = {"samples_per_s": 99, "samples": 6000, "val_accuracy": 0.92}
    unsure = [record_of(1, s, lr_rule="sqrt", metrics={**slow, "val_accuracy": 0.89 + s / 50}) for s in range(2)]
    for given, terms in ((records, {}), ([*records, *unsure], {"margin": 0.06}), (unsure[:1], {})):
        frames, _, recommendation = decided_with_frames(given, **terms)
        text, document = recommendation_markdown(recommendation, frames, "demo"), as_json(recommendation)
        assert f"**{document['verdict'].upper()}: {in_sentences(recommendation).lead}**" in text
        assert document["recommended"]["name"] in document["sentence"]
        assert all(warning in document["sentence"] for warning in document["warnings"])
        assert bool(document["warnings"]) is document["provisional"]
        assert all(command in text for command in document["undecided"]["commands"])


@pytest.mark.parametrize("count", [2, 10])
def test_the_recommendation_has_at_most_150_words(count):
    records = swayed({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902})
    records += [
        replace(record, trial_id=f"{record.trial_id}-{n}", cell_id=f"{record.cell_id}-{n}", lr_rule=f"rule{n}")
        for record in records
        for n in range(count)
    ]
    frames, _, recommendation = decided_with_frames(records, target=target(0.99))
    text = recommendation_markdown(recommendation, frames, "demo")
    assert sum(len(line.split()) for line in text.splitlines() if not line.startswith("|")) <= 150


def test_without_a_valid_timing_json_recommends_nothing(records):
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    untimed = (
        trials.assign(timing_valid=False, timing_fault="too_short"),
        cells.assign(timing_valid=False, timing_fault="too_short", note="too short"),
    )
    document = as_json(decide(*untimed, Terms(axes={"gpus": "gpus"})))
    assert document["recommended"] is None and document["provisional"] and "too short" in document["sentence"]
    assert {cell["timing_valid"] for cell in [document["baseline"], *document["alternatives"]]} == {False}


@pytest.mark.parametrize("objective", ["energy", NO_OBJECTIVE])
def test_no_recommendation_is_null_with_a_sentence(objective):
    record = record_of(metrics={"samples_per_s": 100, "samples": 6000})
    document = as_json(decided([record], objective=objective))
    assert document["recommended"] is None and document["probability"]["best"] is None
    assert document["sentence"] and document["alternatives"] == []


def test_axes_have_the_values_of_the_sweep():
    axes = {"optimizer.betas": [0.9, 0.99], "trainable.note": None}
    record = record_of(axes=axes, metrics={"samples_per_s": 100, "samples": 6000})
    columns = {"gpus": "gpus"} | {axis: axis for axis in axes}
    chosen = as_json(decided([record], axes=columns, nullable=frozenset({"trainable.note"})))["recommended"]
    assert chosen["axes"] == {"gpus": 1, **axes}
    narrowed = {'sweep.axes."optimizer.betas"=[[0.9,0.99]]', 'sweep.axes."trainable.note"=[null]'}
    assert narrowed <= {*chosen["overrides"]}
    without = as_json(decided([record], axes=columns))["recommended"]
    assert "trainable.note" not in without["axes"]  # the trial did not have this axis


def test_every_key_is_documented(records):
    meanings = files.load((Path(__file__).parents[4] / "docs/recommendation.yaml").read_text())
    page = str(meanings)
    documented = {key for names in meanings["the file"] for key in names.split(", ")}
    document = as_json(decided(records))
    chosen = document["recommended"]
    sections = (
        document,
        document["undecided"],
        document["behind_best"],
        document["objective"],
        chosen,
        chosen["values"],
    )
    keys = {key for section in (*sections, chosen["figures"]) for key in section}
    assert set(document) == documented
    assert [key for key in keys if not re.search(rf"\b{key}\b", page)] == []


FOUND = Recommendation(terms=Terms(), measure="time", cell_id="a", headline=remark("not_made"), provisional=True)


@pytest.mark.parametrize(
    ("behind", "at_most", "figures"),
    [(0.0, 0.0, ["95%"]), (0.031, 0.031, ["95%", "4%"]), (40.0, None, []), (math.nan, None, None)],
)
def test_only_a_useful_bound_is_reported(behind, at_most, figures):
    recommendation = replace(FOUND, behind=behind)
    assert as_json(recommendation)["behind_best"] == {"at_most": at_most, "probability": 0.95}
    words = in_sentences(recommendation).behind.split()
    assert ([word for word in words if "%" in word] == figures) if words else figures is None


@pytest.mark.parametrize(("batches", "told"), [((32, 64), ["100,000,000"]), ((32,), [])])
def test_a_budget_in_tokens_bounds_the_choice_between_batches(batches, told):
    trials = [
        record_of(1, seed, batch=batch, metrics=measured(100 + batch + seed, 0.9))
        for batch in batches
        for seed in (0, 1)
    ]
    terms = Terms(budget={"tokens": 100_000_000}, axes=AXES)
    facts = in_sentences(decide(*collect(trials, scaling="weak", reference_batch_size=32), terms)).facts
    assert [text.split()[3] for label, text in facts if label == "Valid for"] == told


VALUES = (None, float("nan"), float("inf"), -1.0, 0.0, 1e-12, 0.5, 0.5, 0.9, 3.0, 1e12, "text", True)
METRICS = ("samples_per_s", "samples", "train_s", "val_accuracy", "accuracy", "time_to_target_s", "energy_j_per_sample")


def any_record(chance):
    metrics = {name: chance.choice(VALUES) for name in METRICS if chance.random() < 0.8}
    model = chance.choice([[], [], [1, "x"], ["mlp"]])
    axes: dict[str, Any] = {"model": model[0]} if model else {}
    return record_of(
        chance.choice([0.25, 1, 2, 4]),
        chance.choice([0, 1, 2]),
        chance.choice([Status.OK] * 6 + list(Status)),
        batch=chance.choice([1, 32]),
        lr_rule=chance.choice(["none", "linear"]),
        axes=axes,
        metrics=metrics | {"noise_scale": chance.choice(VALUES), "n_params": chance.choice(VALUES)},
        device=chance.choice(["cpu", "cuda"]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_any_records_give_a_recommendation_and_tables(seed):
    chance = random.Random(seed)
    records = {record.trial_id: record for record in (any_record(chance) for _ in range(chance.choice([1, 2, 8, 40])))}
    price = chance.choice([None, 2.0])
    frames = collect(list(records.values()), scaling=chance.choice(["weak", "strong"]), reference_batch_size=32)
    goal = chance.choice([None, target(0.9)])
    terms = Terms(
        report=ReportSection(objective=chance.choice(SCHEMA["report.objective"].words), price_per_gpu_hour=price),
        target=goal,
        axes=AXES | axis_columns(list(records.values())),
    )
    recommendation = decide(*frames, terms)
    title = f"# {in_sentences(recommendation).title}: demo"
    assert recommendation_markdown(recommendation, frames[0], "demo").startswith(title)
    assert as_json(recommendation)["sentence"] == in_sentences(recommendation).sentence
    assert scaling(*frames).text.startswith("# Scaling")
