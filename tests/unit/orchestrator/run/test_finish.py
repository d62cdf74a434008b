import errno
import io
import json
import os
import random
import stat
import sys
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from orchestrator.config.settings import BudgetSection
from orchestrator.run import finish
from orchestrator.run.finish import have_not_run, tables_written, trial_problems, write_slow_files
from orchestrator.store.history import History
from orchestrator.store.record import Kind, Record
from orchestrator.store.record_checks import checked_record
from orchestrator.store.results import Problem
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.tables.accuracy import accuracy_markdown
from orchestrator.tables.speedup import speedup_markdown
from orchestrator.tables.table_files import write_tables
from sweeps.status import Status
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.requests import request as shipped_request

SHAPES = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x64 and 10x10)"


@pytest.mark.parametrize(("count", "subject"), [(0, "0 planned trials "), (1, "1 planned trial "), (2, "2 planned ")])
def test_trials_that_have_not_run_are_counted(count, subject):
    assert have_not_run(count).startswith(subject)


def test_failures_that_differ_in_numbers_or_ranks_share_a_line(tmp_path):
    folder = ResultsFolder(tmp_path)
    notes = [SHAPES.format(32), "rank 1 on node-b: " + SHAPES.format(128), "ValueError: something else"]
    ends = [record_of(status=Status.FAILED, trial_id=f"t{n}", note=note) for n, note in enumerate(notes)]
    folder.trial("t0").mkdir(parents=True)
    folder.trace("t0").write_text("Traceback …")
    folder.trial("t2").mkdir()
    printed = folder.trial("t2") / "stderr.log"
    printed.write_text("Traceback …")  # of a command
    folder.trace("t2").write_text("its exit status")
    first, second = map(str, trial_problems(folder, ends))
    assert first.startswith("2 of 3 ") and SHAPES.format(32) in first and str(folder.trace("t0")) in first
    assert second.startswith("1 of 3 ") and notes[2] in second and str(printed) in second


RECORDS = demo.records()[::9]
FEW = RECORDS[:4]
"""Enough records for a test that needs plots, but no particular ones."""


def request(**changes):
    asked = {"gpus": [1, 2, 4, 8], "device_batch_size": [32, 128, 512], "lr_rule": ["none", "linear", "sqrt"]}
    given: dict[str, Any] = {"name": "demo", "axes": asked, "budget": BudgetSection(epochs=None)}
    return shipped_request(**given | {"price_per_gpu_hour": 2.0, "margin": 0.01} | changes)


def history(records):
    """Return the history of a sweep with these records."""
    made = History(Record(kind=Kind.FINISHED, value=record.to_json()) for record in records)
    made.driver = {**demo.DRIVER, "arguments": ["sweep=demo"]}
    return made


def reported_on(asked, folder, history, **settings):
    """Write all files; the end has the problems of all steps."""
    end = tables_written(asked, folder, history, **settings)
    return replace(end, problems=[*end.problems, *write_slow_files(end, Console(file=io.StringIO()))])


def failed_steps(end):
    return [problem.what for problem in end.problems if problem.label == "Failed" and not problem.fails]


@pytest.fixture
def folder(tmp_path):
    return demo.results(tmp_path / "demo", RECORDS)


TORN = Problem(where="journal.jsonl", what="line 3: torn")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A report with claims and problems on results with damaged files."""
    folder = demo.results(tmp_path_factory.mktemp("whole") / "demo", RECORDS)
    one, other = RECORDS[0].trial_id, RECORDS[1].trial_id
    folder.metrics(one).write_bytes(folder.metrics(one).read_bytes()[:-5])
    (folder.trial(other) / "telemetry.parquet").write_bytes(b"PAR1 cut")
    (folder.trial(one) / "telemetry.parquet").write_bytes(b"PAR1 no parquet at all PAR1")
    claims = [{"sentence": "Two are faster.", "expression": "min(speedup(gpus=2)) > 1"}]
    return folder, reported_on(request(claims=claims), folder, history(RECORDS), problems=[TORN])


def test_the_decision_comes_first_in_all_files(whole):
    folder, reported = whole
    assert failed_steps(reported) == [] and reported.has_page
    assert folder.table("recommendation.md").read_text().startswith("# Recommendation: demo")
    page = folder.page.read_text()
    assert page.index('id="recommendation"') < page.index('id="problems"') < page.index('id="trade_off"')
    with_curves = [record for record in RECORDS if record.status.value in ("ok", "diverged", "timeout")]
    assert len(pd.read_parquet(folder.table("curves.parquet"))) == 10 * len(with_curves) - 1  # one row is damaged


def test_claims_and_scaling_are_in_all_forms(whole):
    folder, reported = whole
    tables = [table.name for document in reported.documents.values() for table in document.tables]
    assert tables == ["claims", "scaling"]
    files = "".join(folder.table(name).read_text() for name in ("claims.md", "scaling.md"))
    for form in (files, folder.page.read_text()):
        assert "Two are faster." in form and "extra GPU time" in form
    assert folder.table("scaling.md").read_text().startswith("# Scaling\n")


@pytest.mark.parametrize(("html", "in_time"), [(False, True), (True, False)])
def test_without_html_or_time_only_tables_are_written(folder, html, in_time):
    reported = reported_on(request(html=html), folder, history(RECORDS), in_time=in_time)
    assert not reported.has_page and not folder.page.exists()
    assert folder.table("summary.csv").exists() and folder.table("recommendation.md").exists()


@pytest.mark.parametrize(
    ("device", "price", "is_told"), [("cpu", 2.5, True), ("cpu", None, False), ("cuda", 2.5, False)]
)
def test_a_price_of_gpus_is_not_that_of_cpus(folder, device, price, is_told):
    metrics = {"samples_per_s": 100.0, "samples": 1000, "val_accuracy": 0.9, "epochs": 10}
    records = [record_of(gpus, seed, device=device, metrics=metrics) for gpus in (1, 2) for seed in (0, 1)]
    end = reported_on(request(price_per_gpu_hour=price, html=False), folder, history(records))
    assert ("Cost" in [problem.label for problem in end.problems]) == is_told


def test_tables_need_no_package_for_plots(folder, monkeypatch):
    for name in [module for module in sys.modules if module.startswith("orchestrator.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert not failed_steps(reported_on(request(html=False), folder, history(RECORDS)))
    (problem,) = failed_steps(reported_on(request(), folder, history(FEW)))
    assert problem.startswith("report.html ") and "vl_convert" in problem


def test_a_failing_report_leaves_the_tables(folder, monkeypatch):
    folder.page.mkdir()
    reported = reported_on(request(), folder, history(FEW))
    assert not folder.page.is_file() and len(pd.read_csv(folder.table("summary.csv"))) == len(FEW)
    assert all(word in failed_steps(reported)[0] for word in ("report.html", "IsADirectoryError"))
    assert "Traceback" in folder.report_trace.read_text()


def test_a_failing_recommendation_leaves_the_rest(folder, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("no seeds")

    monkeypatch.setattr(finish, "decide", broken)
    reported = reported_on(request(), folder, history(FEW))
    assert reported.recommendation.cell_id is None and reported.has_page
    assert all(word in failed_steps(reported)[0] for word in ("the recommendation", "ZeroDivisionError: no seeds"))
    assert folder.table("speedup.md").exists()
    forms = [folder.page, folder.table("recommendation.md"), folder.table("recommendation.json")]
    assert all("No recommendation" in form.read_text() for form in forms)


def test_a_failing_disk_raises_after_the_tables(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.table("curves.parquet")))

    monkeypatch.setattr(finish, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        reported_on(request(), folder, history(RECORDS))
    assert folder.table("summary.csv").exists() and folder.table("recommendation.md").exists()


def test_unwritable_tables_raise(folder):
    folder.tables.rmdir()
    folder.tables.write_text("a file instead of a folder")
    with pytest.raises(OSError):
        reported_on(request(html=False), folder, history(RECORDS))


ODD = [None, True, -1, 1e308, "", [], {}, [1, 2], {"a": 1}, "<script>", "![a](http://x)", 2**70, "2"]


def odd_ends(chance):
    """Return records with values of wrong types and without some fields."""
    ends = []
    for record in RECORDS:
        value = json.loads(json.dumps(record.to_json()))
        for _ in range(chance.choice([0, 1, 3])):
            where = chance.choice(
                [value, value, *(value[k] for k in ("metrics", "axes", "provenance") if value.get(k))]
            )
            if isinstance(where, dict):
                where[chance.choice(list(where))] = chance.choice(ODD)
        end, _ = checked_record(value)
        ends += [end] if end else []
    return ends


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("seed", range(60))
def test_odd_values_do_not_break_the_tables(tmp_path, seed):
    ends = odd_ends(random.Random(seed))
    folder = demo.results(tmp_path / "demo", [])
    assert failed_steps(reported_on(request(html=seed % 10 == 0), folder, history(ends))) == []


FOREIGN: list[dict[str, Any]] = [
    {"provenance": {"device_model": ["H200"], "host": {"name": "a"}}},
    {"provenance": {"device_model": 7}},
    {"metrics": {"samples_per_s": 2**70, "loss": 10**400, "mine": -(2**64)}},
    {"axes": {"gpus": 1, "device_batch_size": 32, "lr_rule": "none", "seed": 0, "model.depth": 2**64}},
]


def test_foreign_values_do_not_break_the_tables(tmp_path):
    pairs = zip(RECORDS, FOREIGN, strict=False)
    odd = [checked_record(json.loads(json.dumps(record.to_json() | changes)))[0] for record, changes in pairs]
    ends = [record for record in odd if record is not None]
    assert len(ends) == len(FOREIGN)
    folder = demo.results(tmp_path / "demo", [])
    end = reported_on(request(html=False), folder, history([*ends, *RECORDS[len(ends) :]]))
    assert failed_steps(end) == []


def test_damaged_files_are_problems(whole):
    folder, reported = whole
    one, other = RECORDS[0].trial_id, RECORDS[1].trial_id
    damaged = [problem for problem in reported.problems if problem.where]
    assert damaged[0] == TORN
    assert [problem.where for problem in damaged[1:]] == [
        f"trials/{one}/metrics.jsonl",
        f"trials/{other}/telemetry.parquet",
        f"trials/{one}/telemetry.parquet",
    ]
    assert "1 of 10" in damaged[1].what
    page = folder.page.read_text()
    assert all(problem.where in page for problem in damaged)


def empty_is_none(frame):
    return frame.astype("object").where(frame.notna(), None).rename_axis(columns=None)


def test_files_hold_the_frames(tmp_path):
    results_folder = ResultsFolder(tmp_path / "demo")
    results_folder.create()
    trials, summary = collect(RECORDS, scaling="weak", reference_batch_size=32)
    written = write_tables(results_folder, trials, summary)
    assert sorted(path.name for path in written) == sorted(path.name for path in results_folder.tables.iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    for frame, name in ((trials, "trials"), (summary, "summary")):
        read = pd.read_csv(results_folder.table(f"{name}.csv"))
        assert list(read.columns) == list(frame.columns)
        for column in ("gpus", "samples_per_s", "accuracy"):
            if column in frame:
                pd.testing.assert_series_equal(read[column], frame[column], check_dtype=False)
        stored = empty_is_none(pd.read_parquet(results_folder.table(f"{name}.parquet")))
        pd.testing.assert_frame_equal(stored, empty_is_none(frame), check_column_type=False)
    assert results_folder.table("speedup.md").read_text() == speedup_markdown(summary)
    assert results_folder.table("accuracy.md").read_text() == accuracy_markdown(summary)


def test_text_is_no_formula_and_mixed_values_fit_in_parquet(results_folder):
    records = [
        record_of(1, axes={"=evil": "@SUM(A1)", "width": "auto"}, note="=1+1", metrics={"accuracy": -0.5}),
        record_of(1, axes={"=evil": "fine", "width": 0.5}),
    ]
    write_tables(results_folder, *collect(records, scaling="weak"))
    trials = pd.read_csv(io.BytesIO(results_folder.table("trials.csv").read_bytes()))
    assert list(trials["'=evil"]) == ["'@SUM(A1)", "fine"]
    assert trials["note"][0] == "'=1+1"
    assert trials["accuracy"][0] == -0.5
    assert list(pd.read_parquet(results_folder.table("trials.parquet"))["width"]) == ["auto", "0.5"]
