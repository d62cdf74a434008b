"""Forecasts of a sweep: kept in a file, from the journal first, and used by plans before a cell costs a start."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends.backend_choice import known_nodes
from orchestrator.config.compose import initialised
from orchestrator.plan import forecasts
from orchestrator.plan.estimates import DISTURBED, REHEARSED, SHAPES, SHIPPED
from orchestrator.plan.forecast_printout import _about, forecast_rows, forecast_text
from orchestrator.plan.forecasts import (
    Forecasts,
    axes_in_names,
    can_rehearse,
    is_disturbed,
    name_of,
    rehearsal_of,
    rehearse_missing,
    store,
    stored,
)
from orchestrator.plan.journal_forecasts import Measured
from orchestrator.plan.plan import Plan
from orchestrator.plan.rehearsals import Rehearsals
from orchestrator.schedule.cluster import Node
from sweeps.errors import ConfigError
from sweeps.gpus import SHAPES_OF
from sweeps.status import Status
from tests.unit.orchestrator.plan import test_rehearsals as by_hand
from tests.unit.orchestrator.plan.planned import ended
from tests.unit.orchestrator.requests import request, unchecked

GPUS = (Node(name="host", cpus=16, gpus=1, gpu_type="NVIDIA H100"),)
TRIALS = [
    by_hand.trial(micro, trial_id=f"{micro}-{seed}", cell_id=str(micro), seed=seed, axes={"gpus": 1, "seed": seed})
    for micro in (8, 32, 128)
    for seed in (0, 1)
]
KNOWN = [by_hand.rehearsal(8, gb=12.0), by_hand.rehearsal(32, gb=30.0)]
"""128 samples need 102 GB."""


def planned(*records, rehearsals=KNOWN, **settings):
    ends = {record.trial_id: record for record in records}
    measured, with_settings = Measured(records=list(records)), request(**settings).settings
    forecasts = Forecasts(rehearsals=Rehearsals(rehearsals), measured=measured, nodes=GPUS, settings=with_settings)
    return Plan.of(TRIALS, ends, GPUS, forecasts=forecasts)


def test_rehearsals_are_kept_for_machines_of_the_same_kind(tmp_path):
    file = tmp_path / "results" / "forecast.json"
    assert list(stored(file, GPUS)) == []
    store(file, Rehearsals(KNOWN), GPUS)
    assert list(stored(file, [replace(GPUS[0], name="another", cpus=8)])) == KNOWN
    assert list(stored(file, [replace(GPUS[0], gpu_type="NVIDIA A100")])) == []
    assert list(stored(file, [Node(name="host", cpus=16, gpus=0)])) == []


def test_failed_rehearsals_are_tried_again(tmp_path):
    failed = replace(KNOWN[0], micro_batch=64, status=Status.FAILED, figures={})
    short = replace(failed, micro_batch=128, status=Status.OOM)
    store(tmp_path / "file", Rehearsals([*KNOWN, failed, short]), GPUS)
    assert list(stored(tmp_path / "file", GPUS)) == [*KNOWN, short]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": "NVIDIA H100", "rehearsals": [{"kind": 1}]}'])
def test_a_damaged_file_is_named(text, tmp_path):
    file = tmp_path / "forecast.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        stored(file, GPUS)
    assert str(file) in caught.value.errors[0]


def test_cells_that_do_not_fit_are_infeasible_unless_they_are_to_be_tried():
    plan = planned()
    assert {key.partition("-")[0] for key in plan.infeasible} == {"128"} and plan.too_large == set(plan.infeasible)
    assert all("102.0 GB" in why and "try_anyway" in why for why in plan.infeasible.values())
    assert not {trial.trial_id for trial in plan.may_run(waits=True)} & set(plan.infeasible)  # no node would help
    assert not planned(try_anyway=True).infeasible
    assert not planned(rehearsals=KNOWN[:1]).infeasible  # one micro-batch tells nothing of another


def test_plans_have_durations_from_forecasts_until_trials_have_ended():
    of_eight = next(trial for trial in TRIALS if trial.cell_id == "8")
    plan = planned()
    forecast = plan.forecasts.forecast(of_eight)
    assert plan.durations.expected_s(of_eight) == forecast.duration_s.value
    assert plan.timetable.unknown == 0 and plan.timetable.makespan_s is not None
    assert planned(ended(TRIALS[1], wall_s=7.0)).durations.expected_s(of_eight) == 7.0
    assert planned(rehearsals=[]).durations.expected_s(of_eight) is None


def test_the_journal_counts_more_than_rehearsals():
    metrics = {"samples_per_s": 100.0, "peak_memory_gb": 11.0, "train_s": 50.0}
    first, second = (replace(ended(trial, wall_s=60.0), metrics=metrics) for trial in TRIALS[:2])
    faster = replace(second, metrics=metrics | {"samples_per_s": 140.0})
    forecast = planned(first, faster).forecasts.forecast(TRIALS[0])
    assert (forecast.source, forecast.fits, forecast.samples_per_s.value) == ("journal", "yes", 120.0)
    assert (forecast.samples_per_s.lo, forecast.samples_per_s.hi) == (100.0, 140.0)
    assert forecast.step_s.value == pytest.approx(8 / 120)
    other = planned(first).forecasts.forecast(TRIALS[2])
    assert other.source == "rehearsal"


@pytest.mark.parametrize(
    ("change", "can"),
    [
        ({"trainable": "trainables.supervised.training:train"}, True),
        ({"trainable": "mine:train"}, False),
        ({"trainable": "trainables.supervised.training:train", "gang": replace(by_hand.GPU, gpus_per_rank=2)}, False),
    ],
)
def test_only_the_own_loop_is_rehearsed(change, can):
    assert can_rehearse(replace(TRIALS[0], **change)) == can  # type: ignore[arg-type]


def test_trials_on_gpus_are_not_rehearsed_without_one(tmp_path):
    own = [replace(trial, trainable="trainables.supervised.training:train") for trial in TRIALS]
    with pytest.raises(ConfigError):
        rehearse_missing(own, Forecasts(nodes=GPUS), tmp_path / "forecast.json", print)
    rehearse_missing(
        TRIALS, Forecasts(nodes=GPUS), tmp_path / "forecast.json", print
    )  # others tell figures as they run
    assert list(tmp_path.iterdir()) == []


def test_processes_without_cores_are_not_rehearsed(tmp_path):
    gang = replace(by_hand.GPU, ranks=10_000, gpus_per_rank=0)
    many = replace(TRIALS[0], trainable="trainables.supervised.training:train", device="cpu", gang=gang)
    assert rehearse_missing([many], Forecasts(), tmp_path / "forecast.json", print) == []
    assert list(tmp_path.iterdir()) == []


def test_each_cell_has_a_row_with_its_price():
    rows = forecast_rows(planned(), request(price_per_gpu_hour=3.6).settings)
    assert [(row["cell_id"], row["trials"], row["fits"]) for row in rows] == [
        *(("8", 2, "yes"), ("32", 2, "yes"), ("128", 2, "no"))
    ]
    for row in rows:
        assert row["cost"]["value"] == pytest.approx(row["duration_s"]["value"] / 1000)
    assert math.isclose(sum(rows[0]["parts_gb"].values()), rows[0]["peak_memory_gb"]["value"])
    assert forecast_rows(planned(rehearsals=[]), request().settings)[0]["source"] == "unknown"


def test_table_of_forecasts(golden):
    text = forecast_text(planned(), request(price_per_gpu_hour=2.5, currency="EUR"))
    assert max(map(len, text.splitlines()[:5])) <= 80
    golden("plan/forecast.txt", text)
    told = json.loads(forecast_text(planned(), request(format="json")))
    assert len(told["cells"]) == 3 and told["infeasible"] == 2


def test_shipped_rehearsals_are_scaled_by_the_pace_of_a_core(monkeypatch):
    nodes = [Node(name="host", cpus=2, gpus=0)]
    content = json.loads((Path(forecasts.__file__).parent / "shipped.json").read_text())
    monkeypatch.setattr(forecasts, "pace_s", lambda: 3 * content["pace_s"])
    shipped = list(forecasts.shipped(nodes))
    for rehearsal, slow in zip(content["rehearsals"], shipped, strict=True):
        assert slow.figures["step_s"] == pytest.approx(3 * rehearsal["figures"]["step_s"])
        assert (slow.source, slow.figures["epoch_samples"]) == ("shipped", rehearsal["figures"]["epoch_samples"])
    assert len(forecasts.shipped(GPUS)) == 0


@pytest.mark.parametrize("name", ["batch_scaling", "lm_scaling", "lm_critical_batch", "lm_layouts"])
def test_shipped_sweeps_for_two_cores_have_a_duration(name):
    with initialised():
        trials = unchecked(f"sweep={name}").trials([Node(name="host", cpus=2, gpus=0)])
    known = Forecasts(rehearsals=forecasts.shipped([]))
    assert all(known.duration_s(trial) for trial in trials)  # else: mode=forecast, and copy its rehearsals there


@pytest.fixture
def answering(monkeypatch):
    monkeypatch.setattr(forecasts, "_MODULE", "tests.unit.orchestrator.plan.answering")
    monkeypatch.chdir(Path(__file__).parents[4])  # from which the processes import the module


@pytest.fixture
def pair(tmp_path, answering):
    company = forecasts.RehearsalProcesses(2, tmp_path / "log")
    yield company
    company.close()


ENDS = ("ok", "failed", "oom")


def labelled(ends):
    return by_hand.trial(gang=replace(by_hand.GPU, ranks=len(ends.split("+"))), sweep=ends, axes={})


@pytest.mark.parametrize(
    ("ends", "ranks", "status", "rank"),
    [("ok", 1, "ok", 0), ("ok+ok", 2, "ok", 0), ("waits+oom", 2, "oom", 1), ("ok+ok", 1, "ok", 0)],
)
def test_a_rehearsal_ends_with_rank_0_or_the_first_failure(pair, ends, ranks, status, rank):
    answer = pair.rehearse(labelled(ends), ranks)
    assert (answer["status"], answer["figures"]["rank"]) == (status, rank)
    together = answer["figures"]["rendezvous"].startswith("tcp://127.0.0.1:")
    assert together == (ranks > 1)


@pytest.mark.parametrize(
    ("ends", "gpus", "visible", "rank", "gpu"),
    [
        ("ok+ok", 2, "4,7", 0, "4"),
        ("waits+oom", 2, "4,7", 1, "7"),
        ("waits+oom", 2, None, 1, "1"),
        ("ok+dies", 1, "4", 0, "4"),
    ],
)
def test_ranks_rehearse_together_if_each_has_a_gpu(tmp_path, answering, monkeypatch, ends, gpus, visible, rank, gpu):
    node = Node(name="host", cpus=2, gpus=gpus, gpu_type="H100")
    monkeypatch.setattr(forecasts, "this_machine", lambda: node)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = replace(labelled(ends), trainable="trainables.supervised.training:train", device="cuda")
    rehearse_missing([two], Forecasts(nodes=[node]), tmp_path / "file", lambda line: None)
    [rehearsal] = stored(tmp_path / "file", [node])
    assert rehearsal.figures["rendezvous"].startswith("tcp://") == (gpus == 2)
    assert (rehearsal.figures["rank"], rehearsal.figures["gpus"]) == (rank, gpu)


def test_a_failure_is_told_and_the_other_kinds_are_rehearsed(tmp_path, answering, monkeypatch):
    here = [Node(name="host", cpus=2, gpus=0)]
    own = {"trainable": "trainables.supervised.training:train", "device": "cpu"}
    trials = [replace(labelled(end), gang=replace(by_hand.GPU, cpus_per_rank=n), **own) for n, end in enumerate(ENDS)]
    seen: list[str] = []
    failures = rehearse_missing(trials, Forecasts(nodes=here), tmp_path / "file", seen.append)
    assert (len(seen), len(failures)) == (3, 1)
    assert [rehearsal.status for rehearsal in stored(tmp_path / "file", here)] == [Status.OK, Status.OOM]


def test_a_disturbed_rehearsal_is_marked_and_repeated(tmp_path, answering, monkeypatch):
    here = [Node(name="host", cpus=2, gpus=0)]
    own = replace(labelled("ok"), trainable="trainables.supervised.training:train", device="cpu")
    seen: list[str] = []
    for share, source, count in ((0.4, DISTURBED, 1), (0.0, REHEARSED, 2), (0.4, REHEARSED, 2)):
        monkeypatch.setattr(forecasts, "load_since", lambda before, share=share: (share, "chrome"))
        rehearse_missing([own], Forecasts(nodes=here), tmp_path / "file", seen.append)
        kept = stored(tmp_path / "file", here)
        assert ([rehearsal.source for rehearsal in kept], len(seen)) == ([source], count)


@pytest.mark.parametrize(
    ("kept", "is_incomplete"),
    [
        ([], False),  # none has begun
        (KNOWN, True),  # that of 128 samples was cut off
        ([*KNOWN, by_hand.rehearsal(128, gb=60.0)], False),
        ([*KNOWN, replace(by_hand.rehearsal(128, gb=60.0), source=DISTURBED)], True),
    ],
)
def test_a_plan_knows_which_rehearsals_were_cut_off(kept, is_incomplete, monkeypatch):
    monkeypatch.setattr(forecasts, "this_machine", lambda: GPUS[0])
    own = [replace(trial, trainable="trainables.supervised.training:train") for trial in TRIALS]
    assert Forecasts(nodes=GPUS, rehearsals=Rehearsals(kept)).is_incomplete(own) == is_incomplete


def test_a_busy_host_disturbs_what_is_not_the_gpu_s_own_work():
    on_gpu = {"step_s": 1.0, "device_step_s": 0.9, "device_gb": 80.0}
    assert [is_disturbed({"status": "ok", "figures": on_gpu}, share) for share in (0.4, 0.6)] == [False, True]
    assert is_disturbed({"status": "ok", "figures": {"step_s": 1.0, "device_step_s": 1.0}}, 0.06)
    assert not is_disturbed({"status": "oom", "figures": {}}, 0.06)


def test_rehearsals_replace_shipped_ones_of_their_kind_only():
    other = replace(KNOWN[0], kind="other", source=SHIPPED)
    merged = Rehearsals([replace(KNOWN[1], source=SHIPPED), other]).replaced_by(Rehearsals(KNOWN[:1]))
    assert {(rehearsal.kind, rehearsal.source) for rehearsal in merged} == {
        (other.kind, SHIPPED),
        (KNOWN[0].kind, REHEARSED),
    }


def test_a_process_that_ends_is_an_error(pair, tmp_path):
    with pytest.raises(ConfigError) as caught:
        pair.rehearse(labelled("dies"), 1)
    assert str(tmp_path / "log") in caught.value.errors[0] and "3" in caught.value.errors[0]


def shaped_for(gpu):
    settings = request(mode="forecast").settings
    return replace(request(), settings=replace(settings, forecast=replace(settings.forecast, device=gpu)))


def test_trials_for_another_gpu_are_rehearsed_from_shapes(tmp_path, monkeypatch):
    class Answering:
        size = 1

        def __init__(self, ranks, log):
            pass

        def rehearse(self, trial, ranks, shapes_of):
            shaped = rehearsal_of(trial, shapes_of)
            assert shaped.device == "cpu" and shaped.config[SHAPES_OF] == GPUS[0].gpu_type
            return {"status": "ok", "note": "", "took_s": 1.0, "figures": KNOWN[0].figures}

        def close(self):
            pass

    monkeypatch.setattr(forecasts, "RehearsalProcesses", Answering)
    own = [replace(trial, trainable="trainables.supervised.training:train") for trial in TRIALS]
    shaped = shaped_for(GPUS[0].gpu_type)
    assert rehearse_missing(own, Forecasts(settings=shaped.settings, nodes=GPUS), tmp_path / "shapes.json", print) == []
    assert {rehearsal.source for rehearsal in stored(tmp_path / "shapes.json", GPUS)} == {SHAPES}


def test_a_forecast_from_shapes_is_for_nodes_with_that_gpu():
    shaped = shaped_for("NVIDIA H200")
    [node] = known_nodes(shaped) or ()
    assert (node.gpus, node.gpu_type) == (8, "NVIDIA H200")
    [node] = known_nodes(request(shaped, gpus_per_node=4)) or ()
    assert node.gpus == 4
    assert known_nodes(request(shaped, mode="plan")) == known_nodes(request(mode="plan"))


def test_names_of_cells_have_only_axes_that_differ():
    first = replace(TRIALS[0], axes=TRIALS[0].axes | {"strategy": "ddp", "tensor_parallel": 1})
    second = replace(first, axes=first.axes | {"strategy": "fsdp", "seed": 9})
    axes = axes_in_names([first, second])
    assert axes == ["strategy"] and name_of(second, axes).endswith(", fsdp")


def test_a_wide_interval_is_a_range():
    assert [_about({"value": 12.0, "lo": lo, "hi": hi}) for lo, hi in ((12, 12), (10, 15), (4.123, 37.2))] == [
        "12.0",
        "12.0 ±25%",
        "12.0 (4.1–37)",
    ]
