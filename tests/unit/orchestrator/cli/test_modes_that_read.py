"""mode=report with claims, forecast, compare and plan: from the command line to the text, on hand-made journals."""

import json
import shlex

import pytest

from orchestrator.cli import app
from orchestrator.cli.app import main
from orchestrator.cli.modes import MODES
from orchestrator.cli.recorded_arguments import with_recorded
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind
from orchestrator.store.results_folder import ResultsFolder
from sweeps.printable import HARMFUL
from tests.unit.orchestrator.records import record_of


def write_results(root, factor=1.0, code="old"):
    folder = ResultsFolder(root)
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {"source": {"mine:train": code}}, "driver": {}})
        for gpus in (1, 2, 4):
            for seed in range(3):
                speed = factor * 100 * gpus / (1 + 0.1 * (gpus - 1)) * (1 + seed / 100)
                metrics = {"samples_per_s": speed, "samples": 1000, "accuracy": 0.9, "val_accuracy": 0.9, "epochs": 10}
                journal.append(Kind.FINISHED, record_of(gpus, seed, metrics=metrics).to_json())


@pytest.fixture
def start(tmp_path, capsys):
    write_results(tmp_path / "batch_scaling")
    write_results(tmp_path / "other", factor=2.0, code="new")

    def run(*arguments):
        status = main(["sweep=batch_scaling", f"results_dir={tmp_path}", *arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


def test_forecast_of_more_gpus_extrapolates_what_other_machines_measured(start):
    axes = ("sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]")
    status, told = start("mode=forecast", "forecast.gpus=[8]", "format=json", *axes)
    assert status == 0
    forecast, end = json.JSONDecoder().raw_decode(told)
    (cell,) = forecast["cells"]
    assert "source.mine:train" in told[end:]  # other code ran: that is a remark
    # Amdahl's law with α = .1, times the mean of the seeds.
    rate = cell["samples_per_s"]
    assert cell["axes"]["gpus"] == 8 and rate["lo"] < 1.01 * 800 / 1.7 < rate["hi"]


@pytest.mark.parametrize(
    ("arguments", "status", "counts"),
    [
        (["forecast.gpus=[64]"], 1, "[1,2,4,8]"),
        (["forecast.gpus=[8]", "sweep.axes.device_batch_size=[64]"], 1, "[1,2,4]"),  # a batch that no trial had
        (["forecast.gpus=[8]", "sweep.name=other_one"], 2, "[1,2,4]"),  # without results
    ],
)
def test_a_forecast_that_is_not_possible_names_the_line_that_measures(start, arguments, status, counts):
    ended, told = start("mode=forecast", "sweep.axes.device_batch_size=[32]", "sweep.axes.lr_rule=[none]", *arguments)
    (line,) = (line for line in told.splitlines() if "python -m orchestrator" in line)
    measuring = shlex.split(line.partition("python -m orchestrator ")[2])
    assert (ended, measuring[-1]) == (status, f"sweep.axes.gpus={counts}")
    assert start(*measuring[1:], "mode=plan")[0] == 0


@pytest.mark.parametrize("counts", ["gpus=8", "max_gpus=8", "devices=[8]"])
def test_more_gpus_of_a_folder_are_a_forecast_from_its_trials(start, tmp_path, counts):
    status, told = start("mode=forecast", counts)
    assert (status, told.endswith("write 'forecast.gpus=[8]'\n")) == (2, True)
    status, told = start("mode=forecast", counts, "sweep.name=without_results")
    assert (status, "write 'sweep.axes.gpus=[" in told) == (2, True)


@pytest.mark.parametrize("words", [["why", "2x32"], ["mode=show", "2×32"], ["mode=report", "2x32 none"]])
def test_a_cell_is_shown_by_its_label(start, tmp_path, words):
    assert start("mode=report", "report.html=false")[0] == 0
    status, told = start(*words)
    (cell, where) = told.splitlines()
    assert status == 2 and cell.startswith("2×32 none: ok: ") and f"{tmp_path}/batch_scaling" in where
    assert "8x32: there is no such cell" in start("why", "8x32")[1]
    table = ResultsFolder(tmp_path / "batch_scaling").table("summary.csv")
    table.write_text(table.read_text().replace("lr_rule", "other", 1))
    assert start("why", "2x32")[1].startswith("2×32: ok: ")


def test_another_target_has_the_command_that_measures_it(start, tmp_path):
    folder = ResultsFolder(tmp_path / "batch_scaling")
    with Journal.open(folder.journal) as journal:
        asked = {"sweep": "batch_scaling", "config": {"report": {"target": None}}}
        driver = {"arguments": ["sweep=batch_scaling", "mode=settle", "report.target=0.8"]}
        journal.append(Kind.SWEEP, {"fingerprint": asked, "driver": driver})
        journal.append(Kind.FINISHED, record_of(1, 0).to_json())
    status, told = start("mode=report", "report.target=0.9")
    words = shlex.split(told.partition("python -m orchestrator ")[2])
    assert (status, words[0]) == (2, "sweep=batch_scaling")
    assert {"report.target=0.9", "sweep.name=batch_scaling_2"} <= {*words} and "mode=settle" not in words


def test_a_folder_of_results_alone_is_a_report(start, tmp_path, capsys):
    for folders, line in ((["other"], "mode=report "), (["other", "batch_scaling"], "mode=compare ")):
        assert main([str(tmp_path / folder) for folder in folders]) == 2
        assert f"write {line}results_dir={tmp_path}/other" in capsys.readouterr().err
    folder = ResultsFolder(tmp_path / "other")
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {"arguments": ["sweep=lm_scaling"]}})
    assert main(["sweep=other", f"results_dir={tmp_path}", "mode=plan"]) == 2
    assert "write python -m orchestrator sweep=lm_scaling mode=plan " in capsys.readouterr().err
    # A wrong mode does not become that of a run.
    for mode, meant in (("tail", "watch"), ("nonsense", "status")):
        assert main(["sweep=other", f"results_dir={tmp_path}", f"mode={mode}"]) == 2
        assert f"write python -m orchestrator mode={meant} results_dir={tmp_path}/other" in capsys.readouterr().err
    assert main(["mode=report", f"report={tmp_path}/other", "report.html=false", "format=json"]) == 2
    line = f"write mode=report results_dir={tmp_path}/other report.html=false format=json\n"
    assert capsys.readouterr().err.endswith(line)


@pytest.mark.parametrize("setting", ["report.objective=time", "data=digits", "model.name=time", "trainable.x=time"])
def test_the_value_of_a_setting_may_be_the_name_of_results(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("time", "digits"):
        write_results(tmp_path / "results" / name)
    asked = ["mode=report", setting, "sweep.name=time"]
    assert setting in with_recorded(asked).own


def test_compare_prints_ratios_and_differences(start, tmp_path):
    status, told = start("mode=compare", f"compare.with={tmp_path}/other")
    assert status == 0 and start("mode=compare", "compare.with=other") == (0, told)
    assert "3 cells are in both" in told and "0.50× [" in told
    assert "- source.mine:train: 'new' → 'old'\n" in told  # and no picture of a train
    assert start("mode=compare")[0] == 2


@pytest.mark.parametrize(
    ("words", "status"),
    [
        *((words, 0) for words in ("-cd {}", "--config-dir {}", "--config-dir={}", "-cd {} -cn config")),
        *((words, 2) for words in ("-cd {} stray", "stray", "{}")),
    ],
)
@pytest.mark.parametrize("mode", ["mode=compare compare.with={}/other", "mode=status"])
def test_values_of_flags_are_no_stray_words(start, tmp_path, mode, words, status, monkeypatch):
    monkeypatch.setattr(app, "MODES", dict.fromkeys(MODES, lambda sweep: 0))
    given, told = start(*f"{mode} {words}".format(tmp_path, tmp_path).split())
    assert (given, "is not KEY=VALUE" in told) == (status, status == 2)


@pytest.mark.parametrize("mode", ["compare", "report"])
def test_a_flag_without_its_value_is_refused(mode):
    with pytest.raises(SystemExit) as exit:
        main([f"mode={mode}", "-cd"])
    assert exit.value.code == 2


HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b2J\b\r\u202ereversed"


def test_control_sequences_of_a_journal_stay_in_it(start, tmp_path):
    folder = ResultsFolder(tmp_path / "batch_scaling")
    with Journal.open(folder.journal) as journal:
        for seed, status in enumerate(("ok", "ok", "failed")):
            end = record_of(2, seed, note=HOSTILE, trial_id=f"hostile{seed}", cell_id=HOSTILE).to_json()
            changes = {"status": status, "axes": end["axes"] | {HOSTILE: HOSTILE}, "device": HOSTILE}
            journal.append(Kind.FINISHED, end | changes | {"provenance": {"device_model": HOSTILE}})
    (folder.trials / HOSTILE.replace("/", "")).mkdir()
    (folder.trials / HOSTILE / "metrics.jsonl").touch()
    for mode in ("report", "verify", "plan"):
        _, told = start(f"mode={mode}")
        assert "\\x1b" in told or mode != "verify"
        assert HARMFUL.search(told) is None, mode
    files = [path for path in folder.root.rglob("*") if path.suffix in (".csv", ".md", ".html", ".json")]
    assert {path.name for path in files} >= {"trials.csv", "summary.csv", "speedup.md", "report.html"}
    for path in files:
        assert HARMFUL.search(path.read_bytes().decode()) is None, path


def test_plan_notes_results_of_other_code(start):
    status, told = start("mode=plan")
    assert status == 0 and " 0 finished" in told
    assert "another configuration" in told and "(source.mine:train: 'old' → (absent), " in told
    assert "mode=run would refuse" in told
    assert "mode=run would refuse" not in start("mode=plan", "allow_changed=true")[1]
    assert "another configuration" not in start("mode=plan", "sweep.name=fresh")[1]


def test_refuted_claim_sets_the_exit_status(start, tmp_path):
    twice = "samples_per_s(gpus=2) > 1.95 * samples_per_s(gpus=1)"
    sentence = "Two are twice as fast"
    claim = f"sweep.claims=[{{sentence: {sentence}, expression: '{twice}'}}]"
    status, told = start("mode=report", "report.html=false", claim)
    assert status == 0
    assert "1 refuted" in told and "refuted" in (tmp_path / "batch_scaling" / "tables" / "claims.md").read_text()
    status, told = start("mode=report", "report.html=false", claim, "claims.fail_on=refuted")
    assert status == 1
    assert "claims.fail_on" in told and sentence in told


def test_there_is_nothing_to_settle_before_a_sweep_has_results(folder, capsys):
    assert main(["sweep=batch_scaling", "mode=settle", "report.margin=0.02"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    typed = shlex.split(line.partition("write python -m orchestrator ")[2])
    assert typed == ["sweep=batch_scaling", "report.margin=0.02"]
    assert not (folder / "results" / "batch_scaling").exists()


@pytest.mark.parametrize("state", ["running", "interrupted", "finished"])
def test_a_report_tells_what_has_not_run_and_the_way_on(state, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "mine")
    folder.create()
    arguments = ["sweep=batch_scaling", f"results_dir={tmp_path}", "sweep.name=mine"]
    with Journal.open(folder.journal) as journal:
        counts = {"planned": 4, "open": 4}
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {"arguments": arguments}, **counts})
        for gpus in (1, 2):
            metrics = {"samples_per_s": 100.0 * gpus, "samples": 1000, "val_accuracy": 0.9, "epochs": 10}
            journal.append(Kind.FINISHED, record_of(gpus, 0, metrics=metrics).to_json())
        if state == "finished":
            journal.append(Kind.ENDED, {"missing": 0})
        if state == "running":
            status = main(["mode=report", f"results_dir={folder.root}"])
    if state != "running":
        status = main(["mode=report", f"results_dir={folder.root}"])
    told = " ".join(capsys.readouterr().out.split())
    again = f"orchestrator {' '.join(arguments)}"
    assert ("2 of 4 trials so far" in told and "mode=watch" in told) is (state == "running")
    assert ("2 planned trials have not run" in told and f"{again} " in told) is (state == "interrupted")
    assert ("mode=settle" in told) is (state == "finished") and status == (1 if state == "interrupted" else 0)
