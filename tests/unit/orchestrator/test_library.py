"""Tests of the Python API without running a sweep; tests/integration/test_library.py runs sweeps."""

import copy
import json
import signal
import subprocess
import sys
import webbrowser
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ConfigError, load_results, plan_sweep, run_sweep
from orchestrator.library import NotebookPlots
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.text import cell_labels
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.records import record_of


def test_a_missing_table_is_reported_with_the_existing_ones(tmp_path):
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(FileNotFoundError, match="speedup.md.*mode=report results_dir="):
        load_results(tmp_path).markdown("speedup")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/speedup.md").write_text("# Scaling\n")
    assert load_results(tmp_path).markdown("speedup") == "# Scaling\n"
    with pytest.raises(FileNotFoundError, match="speedups.md: .*speedup$"):
        load_results(tmp_path).markdown("speedups")


def test_results_show_their_verdict_and_best_cell(tmp_path):
    (tmp_path / "journal.jsonl").touch()
    results = load_results(tmp_path)
    assert "no recommendation yet" in repr(results)
    (tmp_path / "tables").mkdir()
    decided = {"verdict": "clear", "sentence": "Use 2×64.", "recommended": {"values": {"gpus": 2, "lr": 0.1}}}
    path = tmp_path / "tables/recommendation.json"
    path.write_text(json.dumps(decided))
    assert results.best == {"gpus": 2, "lr": 0.1} and results.verdict == "clear" and results.best.gpus == 2
    with pytest.raises(AttributeError, match="'gpu' is not one of gpus, lr"):
        _ = results.best.gpu
    with pytest.raises(KeyError, match="'gpu' is not one of gpus, lr"):
        _ = results.best["gpu"]
    assert repr(results) == f"SweepResults({str(tmp_path)!r}: CLEAR: Use 2×64.)"
    safe = {"cell_id": "s", "values": {"gpus": 1}}
    path.write_text(json.dumps(decided | {"baseline": safe, "cell_id_to_use": "s"}))
    assert results.best == {"gpus": 1}
    path.write_text(json.dumps(decided | {"recommended": None, "verdict": None}))
    assert results.verdict is None and "CLEAR" not in repr(results)
    path.write_text(json.dumps(decided | {"recommended": None, "verdict": "undecided"}))
    with pytest.raises(LookupError, match="UNDECIDED Use"):
        results.best["gpus"]


def test_results_are_printed_as_plain_text(tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.create()
    folder.journal.touch()
    results = load_results(tmp_path)
    assert str(results) == repr(results)
    command = f"`run '{400 * 'x'}'`"
    table = "| a   | **b** |\n|:----|:------|\n| c   | d\\|e  |"
    folder.table("recommendation.md").write_text(f"# Title\n\n**CLEAR: Use 2×64.**\n\n{table}\n\n- Next: {command}\n")
    lines = [line.split() for line in str(results).splitlines() if line.strip(" ─")]
    assert lines == [["CLEAR:", "Use", "2×64."], ["a", "b"], ["c", "d|e"], ["•", "Next:", "run", command[5:-1]]]


def test_a_wrong_name_is_told_where_it_is_or_what_there_is(tmp_path):
    folder = ResultsFolder(tmp_path)
    folder.create()
    folder.journal.touch()
    folder.table("recommendation.json").write_text('{"rivals": []}')
    results = load_results(tmp_path)
    for name, told in (("rivals", r"recommendation\['rivals'\]"), ("nonsense", "folder, .*summary, trial, trials")):
        with pytest.raises(AttributeError, match=told):
            getattr(results, name)
    assert copy.copy(results) == results
    folder.table("recommendation.json").write_text('{"rivals": ')
    assert not hasattr(results, "rivals")


def test_important_columns_are_first(tmp_path, monkeypatch):
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "tables").mkdir()
    records = [record_of(gpus, seed, metrics={"epoch_s": 9.0 - gpus}) for gpus in (1, 2) for seed in (0, 1)]
    trials, cells = collect(records, scaling="weak")
    trials.to_parquet(tmp_path / "tables/trials.parquet")
    cells.to_parquet(tmp_path / "tables/summary.parquet")
    results = load_results(tmp_path)
    assert [*results.summary][:3] == ["cell", "gpus", "device_batch_size"] and {*cells} < {*results.summary}
    assert results.summary["epoch_s"].tolist() == pytest.approx([7.0, 8.0])
    fastest = results.summary["cell"][0]
    assert results.trials.query("gpus == 2")["cell"].tolist() == [fastest] * 2
    known = records[0].trial_id
    assert results.trial(known)["trial_id"] == known
    (tmp_path / "trials" / known).mkdir(parents=True)
    (tmp_path / "trials" / known / "rank0.log").write_text("epoch 1\n")
    assert results.logs(known) == {"rank0.log": "epoch 1\n"}
    for other in ("", "none"):
        with pytest.raises(LookupError):
            results.trial(other)
    # Going through all cells for each cell takes seconds for a thousand of them.
    passes: list[int] = []
    monkeypatch.setattr(cell_labels, "varying", lambda cells: passes.append(len(cells)) or [])
    assert len(results.summary) == 2 and passes == [2]


@pytest.mark.parametrize("disturbed", [0, 1, 2])
def test_speed_ups_need_valid_timings(disturbed, tmp_path):
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "tables").mkdir()
    metrics = {gpus: {"samples_per_s": 100.0 * gpus, "window_s": 3.0, "foreign_cpu": 0.0} for gpus in (1, 2)}
    metrics |= {disturbed: metrics[1] | {"foreign_cpu": 0.9}} if disturbed else {}
    trials, cells = collect([record_of(gpus, 0, metrics=metrics[gpus]) for gpus in (1, 2)], scaling="weak")
    cells.to_parquet(tmp_path / "tables/summary.parquet")
    summary = load_results(tmp_path).summary.set_index("gpus")
    assert cells["speedup"].notna().all() and pd.isna(summary["speedup"][2]) == bool(disturbed)
    assert pd.isna(summary["efficiency"][1]) == (disturbed == 1) and summary["samples_per_s"].notna().all()


def test_the_summary_is_sorted_by_time(tmp_path):
    (tmp_path / "journal.jsonl").touch()
    (tmp_path / "tables").mkdir()
    # More GPUs are faster; eight of them reported no time.
    metrics = {1: {"epoch_s": 8.0}, 2: {"epoch_s": 4.0}, 8: {}, 4: {"epoch_s": 2.0}}
    records = [record_of(gpus, 0, metrics=figures) for gpus, figures in metrics.items()]
    collect(records, scaling="weak")[1].to_parquet(tmp_path / "tables/summary.parquet")
    assert load_results(tmp_path).summary["gpus"].tolist() == [4, 2, 1, 8]


def test_curves_have_the_axes_of_their_trials(tmp_path):
    record = record_of(2, 0)
    folder = ResultsFolder(tmp_path)
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {}})
        journal.append(Kind.FINISHED, record.to_json())
        journal.append(Kind.STARTED, {"trial_id": "repetition", "attempt": 1, "measures": record.trial_id})
    for trial_id in (record.trial_id, "repetition"):
        folder.trial(trial_id).mkdir()
        folder.metrics(trial_id).write_text('{"epoch": 1, "loss": 2.0}\n')
    curves = load_results(tmp_path).curves()
    assert curves["trial_id"].tolist() == [record.trial_id] and curves["gpus"].tolist() == [2]


def test_a_sweep_in_results_is_loaded_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/mine").mkdir(parents=True)
    (tmp_path / "results/mine/journal.jsonl").touch()
    assert load_results("mine").folder == Path("results/mine") == load_results("results/mine").folder
    for other in ("other", "results/other"):
        with pytest.raises(FileNotFoundError, match="results/mine"):
            load_results(other)


def test_the_report_is_a_path_that_can_be_opened(tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    (tmp_path / "journal.jsonl").touch()
    results = load_results(tmp_path)
    with pytest.raises(FileNotFoundError, match="no trial has ended"):
        results.report()
    (tmp_path / "report.html").touch()
    assert results.report() == tmp_path / "report.html" and not opened
    results.report(show=True)
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_plots_show_their_names_in_a_plain_shell():
    assert "speedup, loss" in repr(NotebookPlots(dict.fromkeys(["speedup", "loss"])))  # type: ignore[arg-type]


def test_name_of_a_sweep_is_enough():
    assert set(plan_sweep("batch_scaling", "sweep.axes.gpus=[1]", "sweep.axes.seed=[0]").gpus) == {1}
    with pytest.raises(ConfigError, match="batch_scalin'"):
        plan_sweep("batch_scalin")


def test_a_list_of_overrides_is_refused():
    with pytest.raises(TypeError, match="mapping"):
        run_sweep(["sweep=batch_scaling"])  # type: ignore[arg-type]


def test_importing_the_package_imports_no_module():
    """Each import delays the moment from which the command line handles Ctrl-C."""
    heavy = {"torch", "ray", "pandas", "hydra", "numpy", "rich"}
    told = f"import sys, orchestrator; print({{m for m in sys.modules if m[:13] == 'orchestrator.' or m in {heavy}}})"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "set()\n"
    with pytest.raises(ImportError, match="cannot import name 'run_sweeps'"):
        from orchestrator import run_sweeps  # type: ignore[attr-defined]  # noqa: F401


def test_ctrl_c_ends_the_command_line_during_imports():
    program = """
import builtins, signal
imports = builtins.__import__
def slow(name, *given, **named):
    if name == "orchestrator.cli.streams":
        signal.raise_signal(signal.SIGINT)
    return imports(name, *given, **named)
builtins.__import__ = slow
from orchestrator.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGINT, "")
