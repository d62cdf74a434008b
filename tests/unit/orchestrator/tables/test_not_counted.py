"""Trials and timings that do not count, and whether the answer needs them."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.request import Terms
from orchestrator.config.settings import ReportSection
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import NO_OBJECTIVE
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.not_counted import details_of_not_counted, not_counted
from orchestrator.tables.sweep_end import SweepEnd
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import AXES, decided_with_frames, measured, swayed
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of

CLEAR = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.9})
TIE = swayed({1: 100, 2: 101}, {1: 0.9, 2: 0.9})
DISTURBED = {"foreign_cpu": 0.5}


SAME_SIZE = [record_of(2, seed, Status.OOM, lr_rule="linear") for seed in range(3)]


def with_memory(record, peak_gb):
    provenance = {**record.provenance, "device_model": "NVIDIA H200"}
    return replace(record, metrics=record.metrics | {"peak_memory_gb": peak_gb}, provenance=provenance)


def another(status=Status.OK, skipped_by="", **metrics):
    """Return a slow cell that is far below the margin."""
    fine = measured(50, 0.5, **metrics) if status is Status.OK else {}
    return [record_of(1, seed, status, batch=128, metrics=fine, skipped_by=skipped_by) for seed in range(3)]


def ended(trials, cells, recommendation):
    folder = ResultsFolder(Path("results/demo"))
    return SweepEnd(folder=folder, trials=trials, cells=cells, recommendation=recommendation)


TOO_MANY_GPUS = [
    replace(record, note="needs 4 GPUs; there is room for 2 (vm)") for record in another(Status.INFEASIBLE)
]


@pytest.mark.parametrize(
    ("records", "begins", "ends"),
    [
        (CLEAR, "", ""),
        ([*CLEAR, *another(Status.OOM)], "3 out of memory (1×128 none):", "not in the answer"),
        ([*CLEAR, *SAME_SIZE], "3 out of memory (2×32 linear): matters", "ran out of memory"),
        (
            [*(with_memory(each, 131.2) for each in CLEAR), *SAME_SIZE],
            "3 out of memory (2×32 linear): matters",
            "131 of 140 GB",
        ),
        (
            [*(with_memory(each, 71.2) for each in CLEAR), *SAME_SIZE],
            "3 out of memory (2×32 linear):",
            "not in the answer",
        ),
        ([*CLEAR, *another(**DISTURBED)], "3 disturbed:", "not in the answer"),
        ([*CLEAR, *TOO_MANY_GPUS], "3 infeasible:", "not in the answer"),
        (TOO_MANY_GPUS, "3 infeasible (needs 4 GPUs", "there is room for 2)"),
        (
            [*TOO_MANY_GPUS[:2], replace(TOO_MANY_GPUS[2], note="needs 1 rank (vm)")],
            "3 infeasible (e.g. needs 4",
            "for 2)",
        ),
        ([*CLEAR, *another(Status.FAILED)], "3 failed:", "1 cell without a result may be better"),
        ([*CLEAR, *another(Status.SKIPPED, "budget")], "3 skipped:", "1 cell without a result may be better"),
        ([*CLEAR, *another(Status.SKIPPED, "phases")], "3 skipped:", "not in the answer"),
        (
            [*CLEAR[:-1], record_of(2, 2, metrics=measured(190, 0.9, **DISTURBED))],
            "1 disturbed: 2×",
            "2 of 3 timings, enough for CLEAR",
        ),
        (
            [*TIE[:-1], record_of(2, 2, metrics=measured(101, 0.9, **DISTURBED))],
            "1 disturbed: matters, 2×",
            "2 of 3 timings",
        ),
    ],
)
def test_what_does_not_count_says_whether_the_answer_needs_it(records, begins, ends):
    text = not_counted(ended(*decided_with_frames(records)))
    assert (text.startswith(begins) and text.endswith(ends)) if begins else text == ""


@pytest.mark.parametrize(
    ("batches", "place"),
    [
        ((128,), "1×128 none"),
        ((128, 256), "1×128 none, 1×256 none"),
        ((128, 256, 512, 1024), "4 cells, e.g. 1×128 none"),
    ],
)
def test_the_place_of_an_out_of_memory_error_is_told_once(batches, place):
    failed = [record_of(1, seed, Status.OOM, batch=batch) for batch in batches for seed in range(3)]
    end = ended(*decided_with_frames([*CLEAR, *failed]))
    assert f"{len(failed)} out of memory ({place}):" in not_counted(end) and dict(details_of_not_counted(end)) == {}
    assert not_counted(ended(*decided_with_frames(failed))) == f"{len(failed)} out of memory"


def test_without_an_objective_timings_do_not_matter():
    trials, cells = collect([*CLEAR, *another(**DISTURBED)], scaling="weak", reference_batch_size=32)
    recommendation = decide(trials, cells, Terms(report=ReportSection(objective=NO_OBJECTIVE), axes=AXES))
    end = ended(trials, cells, recommendation)
    assert not_counted(end) == "" and list(details_of_not_counted(end)) == []
