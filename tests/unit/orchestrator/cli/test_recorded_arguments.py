"""A report of a folder alone: its config is in the journal."""

import csv
import json
import re
import shlex
import shutil
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.cli import app
from orchestrator.cli.app import main, overrides_in
from orchestrator.cli.recorded_arguments import arguments_in, continued, recorded_arguments, what_if, with_recorded
from orchestrator.config import compose
from orchestrator.store import results
from orchestrator.store.history import History
from orchestrator.store.journal import Journal
from orchestrator.store.record import Kind, Record
from sweeps.status import Status
from tests.unit.orchestrator.records import record_of, write_results

RECORDED = (
    "sweep=batch_scaling",
    "report.margin=0.05",
    "mode=settle",
    "results_dir=elsewhere",
    "trusted_modules=[mine]",
)


@pytest.fixture
def report(tmp_path, capsys):
    write_results(tmp_path / "some" / "kept", *RECORDED)

    def run(*arguments):
        status = main(["mode=report", "report.html=false", *arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Results with tables, of which one trial failed."""
    folder = tmp_path_factory.mktemp("reported") / "kept"
    write_results(folder)
    with Journal.open(folder / "journal.jsonl") as journal:
        journal.append(Kind.FINISHED, record_of(4, status=Status.FAILED).to_json())
    assert main(["mode=report", "report.html=false", f"results_dir={folder}"]) == 1
    return folder


@pytest.mark.parametrize(
    "words", ["--resume {}", "mode=continue {}", "--resume-from={}", "mode=resume results_dir={}", "resume={}"]
)
def test_a_folder_to_resume_names_its_command(words, tmp_path, capsys):
    write_results(tmp_path / "kept", "sweep=batch_scaling", "results_dir=elsewhere", "sweep.axes.seed=[0]")
    assert main(words.format(tmp_path / "kept").split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    typed = shlex.split(line.partition("write python -m orchestrator ")[2])
    assert {*typed} == {"sweep=batch_scaling", "sweep.axes.seed=[0]", f"results_dir={tmp_path}", "sweep.name=kept"}


@pytest.mark.parametrize(
    "words",
    [
        *("mode=settle", "mode=settle results_dir=results", "mode=settle results_dir=results/kept"),
        *("mode=settle kept", "settle results/kept", "mode=settle sweep.name=kept"),
    ],
)
def test_settle_in_a_folder_names_its_command(words, folder, capsys):
    assert main(words.split()) == 2
    assert "sweep.axes.seed" not in capsys.readouterr().err
    write_results(folder / "results" / "kept", "sweep=batch_scaling", "sweep.axes.seed=[0]")
    assert main([*words.split(), "allow_changed=true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    typed = shlex.split(line.partition("write python -m orchestrator ")[2])
    changed = {"sweep.axes.seed=[0]", "mode=settle", "allow_changed=true", "results_dir=results", "sweep.name=kept"}
    assert {*typed} == {"sweep=batch_scaling", *changed}
    write_results(folder / "results" / "other", "sweep=batch_scaling")
    assert main(["mode=settle"]) == 2
    assert "choose one: results_dir=results/kept, results_dir=results/other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "place",
    ["results_dir=none", "results_dir=results", "results_dir=s3://bucket/x", "mode=settle results_dir=s3://b/x"],
)
def test_a_place_without_one_sweep_asks_for_the_sweep(place, folder, capsys):
    for name in "ab":
        write_results(folder / "results" / name, "sweep=batch_scaling")
    assert main(place.split()) == 2
    assert capsys.readouterr().err.startswith("choose a sweep")


@pytest.mark.parametrize(
    "words",
    [
        *("compare a b", "diff results/a results/b", "mode=compare a b", "report a report.html=false"),
        "status results/a",
    ],
)
def test_folders_without_keys_have_the_line_that_reads_them(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_results(tmp_path / "results" / name)
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert main(shlex.split(line.partition(": write ")[2])) == 0
    assert all(f"=results/{folder}" in line for folder in re.findall(r"\b[ab]\b", words))
    assert all(setting in line for setting in re.findall(r"\S+=false", words))


def test_settings_beside_a_folder_are_explained_and_corrected(folder, capsys):
    write_results(folder / "results" / "a", "sweep=batch_scaling")
    for words, corrected in (("report a margin=0.05", "report.margin=0.05"), ("plan a epochs=3", "budget.epochs=3")):
        assert main(words.split()) == 2
        explained, line = capsys.readouterr().err.splitlines()
        assert words.split()[-1] in explained and corrected in line.split()
        assert main(shlex.split(line.partition(": write ")[2].removeprefix("python -m orchestrator "))) == 0


@pytest.mark.parametrize("mode", ["init", "launch"])
def test_modes_that_need_more_than_a_folder_have_no_line_with_it(mode, folder, capsys):
    write_results(folder / "results" / "a", "sweep=batch_scaling")
    assert main([f"mode={mode}", "a"]) == 2
    assert "results_dir=" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["train.py --resume last.pt", "train.py --resume kept", "mytool inspect", "tool show"]
)
def test_words_of_the_users_command_are_not_ours(words, folder, reported, monkeypatch):
    shutil.copytree(reported, folder / "results" / "kept")
    monkeypatch.setattr(app, "_answer", lambda arguments, results: 0)
    assert main(["sweep=batch_scaling", "sweep.name=kept", "--", *words.split(), "--bs", "{device_batch_size}"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        *("--resume last.pt sweep.name=kept", "sweep.name=resumed results_dir=results/kept"),
        *("--resume x ~sweep.axes.lr_rule", "--resume ~sweep.axes.lr_rule", "--resume_from=~sam/ckpt.pt"),
        *(f"--resume {'x' * 256}", "-cn restart_cfg results_dir=results/kept"),
        "mode=restarted results_dir=results/kept",
    ],
)
def test_only_a_folder_to_resume_is_looked_up(words, folder):
    write_results(folder / "results" / "kept")
    assert list(continued(overrides_in(words.split()))) == []


@pytest.mark.parametrize("flags", ["-cd 2x4090", "--config-dir=2x64", "--config-dir=logs", "-cd stop"])
def test_the_folder_of_configs_asks_for_nothing(flags, folder, reported, capsys):
    shutil.copytree(reported, folder / "results" / "kept")
    for name in ("2x4090", "2x64", "logs", "stop"):
        (folder / name).mkdir()
    asked = [*flags.split(), "sweep=batch_scaling", "trainable=noop", "results_dir=results/kept"]
    assert main([*asked, "mode=plan"]) == 0
    assert main([*asked, "mode=clean"]) == 2
    assert "rm -r results/kept/batch_scaling" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["2x64", "2x64-long", "2x64_run", "2x64 none, long"])
def test_a_folder_named_as_a_cell_is_a_folder(name, folder, reported, capsys):
    write_results(folder / "results" / name)
    shutil.copytree(reported, folder / "results" / "plain")
    assert main(["compare", name, "results/plain"]) == 2
    typed = shlex.split(capsys.readouterr().err.partition(": write ")[2])
    assert typed == ["mode=compare", f"results_dir=results/{name}", "compare.with=results/plain"]


def test_a_baseline_that_no_trial_has_is_refused(report, tmp_path):
    where = f"results_dir={tmp_path}/some/kept"
    assert report(where, "sweep.baseline={gpus: 2}")[0] == 0
    assert report(where, "sweep.baseline={gpus: 4}")[0] == 2


def test_a_renamed_folder_has_its_new_name_in_the_tables(report, tmp_path):
    (tmp_path / "some" / "kept").rename(tmp_path / "some" / "renamed")
    assert "renamed ·" in report(f"results_dir={tmp_path}/some/renamed")[1]
    with (tmp_path / "some" / "renamed" / "tables" / "summary.csv").open() as file:
        assert {row["sweep"] for row in csv.DictReader(file)} == {"renamed"}


def test_report_of_a_folder_uses_its_own_config(report, tmp_path):
    tables = tmp_path / "some" / "kept" / "tables"
    for where in ([f"results_dir={tmp_path}/some/kept"], [f"results_dir={tmp_path}/some", "sweep.name=kept"]):
        assert report(*where)[0] == 0
        assert json.loads((tables / "recommendation.json").read_text())["margin"]["val_accuracy"] == 0.05
        (tables / "recommendation.json").unlink()
    assert report(f"results_dir={tmp_path}/some")[0] == 0
    write_results(tmp_path / "some" / "other")
    status, told = report(f"results_dir={tmp_path}/some")
    assert status == 2 and f"results_dir={tmp_path}/some/kept" in told


def test_a_report_composes_once_and_reads_the_journal_once(report, tmp_path, monkeypatch):
    calls = []
    for module, name in ((compose, "compose"), (results, "replay")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), calls))
    assert report(f"results_dir={tmp_path}/some/kept")[0] == 0
    assert sorted(calls) == ["compose", "replay"]


def counted(function, calls):
    def called(*arguments, **keywords):
        calls.append(function.__name__)
        return function(*arguments, **keywords)

    return called


def test_other_settings_of_a_report_get_their_own_files(report, tmp_path):
    folder = tmp_path / "some" / "kept"
    assert report(f"results_dir={folder}")[0] == 0
    before = {path: path.read_bytes() for path in (folder / "tables").iterdir()}
    assert report(f"results_dir={folder}", "report.objective=cost", "report.price_per_gpu_hour=2")[0] == 0
    assert {path: path.read_bytes() for path in (folder / "tables").iterdir()} == before
    (made,) = (folder / "what_if").iterdir()
    assert made.name == "report.objective=cost,report.price_per_gpu_hour=2"
    recommendation = json.loads((made / "tables" / "recommendation.json").read_text())
    assert recommendation["objective"]["name"] == "cost"
    with (made / "tables" / "summary.csv").open(newline="") as file:
        assert all(row["cost"] for row in csv.DictReader(file))


@pytest.mark.parametrize(
    ("metric", "margin"), [("val_loss", []), ("f1", ["report.margin=0.1"]), (None, ["report.margin=0.1"])]
)
def test_a_recorded_margin_is_that_of_the_recorded_metric(metric, margin, tmp_path):
    write_results(tmp_path / "kept", "sweep=batch_scaling", "report.metric=f1", "report.margin=0.1")
    asked = ["mode=report", f"results_dir={tmp_path}/kept", *([f"report.metric={metric}"] if metric else [])]
    completed = with_recorded(asked).arguments
    assert [argument for argument in completed if argument.startswith("report.margin")] == margin


def test_a_report_refuses_a_target_that_no_trial_timed(report, tmp_path):
    folder = tmp_path / "other" / "kept"
    write_results(folder, *RECORDED, fingerprint={"config": {}})
    status, told = report(f"results_dir={folder}", "report.target=0.95")
    assert status == 2 and "report.target=0.95" in told and "no time to a target" in told


def test_commands_of_a_report_have_its_settings():
    ran = ["sweep=batch_scaling", "report.margin=0.1", "report.price_per_gpu_hour=2"]
    history = History([Record(kind=Kind.SWEEP, value={"fingerprint": {}, "driver": {"arguments": ran}})])
    asked = ["sweep=batch_scaling", "report.margin=0.1", "report.price_per_gpu_hour=3", "mode=report"]
    with compose.initialised():
        name, arguments = what_if(history, compose.Composition(asked))
        assert (name, sorted(arguments)) == ("report.price_per_gpu_hour=3", sorted(asked[:-1]))
        assert what_if(history, compose.Composition([*ran, "mode=report"])) == ("", ran)


@pytest.mark.parametrize(
    ("place", "name", "ran", "told"),
    [
        ("results", "mine", [], []),
        ("moved", "mine", [], ["results_dir={}/moved"]),
        ("results", "renamed", [], ["sweep.name=renamed"]),
        ("results", "mine", ["results_dir=/gone"], []),
        ("moved", "renamed", ["sweep.name=mine"], ["results_dir={}/moved", "sweep.name=renamed"]),
    ],
)
def test_commands_of_a_report_name_the_folder_that_the_results_are_in(place, name, ran, told, folder):
    write_results(folder / place / name, "sweep=batch_scaling", *ran, sweep="mine")
    completed = with_recorded(["mode=report", f"results_dir={place}/{name}"])
    with compose.initialised():
        assert completed.results
        _, arguments = what_if(completed.results.history, compose.Composition(completed.arguments))
    assert arguments == ["sweep=batch_scaling", *(word.format(folder) for word in told)]


@pytest.mark.parametrize("name", ["what_if", "what_if/report.margin=0.3"])
def test_other_files_are_not_written_through_a_link(report, tmp_path, name):
    folder, outside = tmp_path / "some" / "kept", tmp_path / "outside"
    outside.mkdir()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside)
    status, told = report(f"results_dir={folder}", "report.margin=0.3")
    assert status == 1 and name in told
    assert list(outside.iterdir()) == []


def test_config_of_another_machine_is_replaced_by_defaults(report, tmp_path):
    write_results(tmp_path / "gone", "hydra.searchpath=[file:///not/here]", "sweep=mine")
    status, told = report(f"results_dir={tmp_path}/gone")
    assert status == 0 and "/not/here" in told


HOSTILE = (
    *("-m", "--help", "-h", "--version", "--cfg=job", "-cd", "--config-dir=/evil", "--config-name=evil", "--info"),
    *("hydra.searchpath=[file:///evil]", "hydra.searchpath=[pkg://evil]", "hydra.run.dir=/", "+hydra.job.env_set.A=1"),
    *(
        "hydra.mode=MULTIRUN",
        "++hydra.sweeper.params.x=1",
        "+sweep@hydra.job=evil",
        "sweep/batch_scaling@hydra.run=evil",
    ),
    *(
        *("trusted_modules=[os]", "mode=run", "results_dir=/etc", "sweep.name=other", "local_results_dir=/etc"),
        "rerun=all",
    ),
    *("cluster.address=evil:1", "tune.storage_path=s3://evil", "tracker.mlflow.uri=http://evil", "rerun=all"),
    *("report.currency=${oc.env:HOME}", "report.margin='${oc.env:HOME}'", "sweep.axes={lr:'${oc.env:HOME}'}"),
    *("sweep=../../evil", "sweep=/evil", "sweep=file:///evil", "data=../evil", "trainable._target_=os:system"),
    *("report.margin=0.1,0.2", "~report.margin", "report.margin=[1", "report", "=1", "report.margin=" + "[" * 2000),
)


def history_of(*arguments, **driver):
    fingerprint = {"config": {"trainable": {"reference_batch_size": 16}}}
    value = {"fingerprint": fingerprint, "driver": {"arguments": list(arguments)} | driver}
    return History([Record(kind=Kind.SWEEP, value=value)])


def test_only_settings_of_a_report_are_taken_from_a_journal():
    kept = recorded_arguments(history_of(*RECORDED, *HOSTILE, 1, None, ["mode=run"], "trainable=<of the program>"))
    assert kept == ["sweep=batch_scaling", "report.margin=0.05", "++trainable.reference_batch_size=16"]


@pytest.mark.parametrize("arguments", ["report.margin=1", {"report.margin": 1}, None, ["report.margin=1"] * 20_000])
def test_a_command_line_of_another_form_is_ignored(arguments):
    assert recorded_arguments(history_of(arguments=arguments)) == []


def test_hostile_arguments_do_not_prevent_a_report(report, tmp_path):
    write_results(tmp_path / "theirs", *HOSTILE)
    assert report(f"results_dir={tmp_path}/theirs")[0] == 0
    assert (tmp_path / "theirs/tables/summary.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [(["report.margin=0.1"], 1), (["a=1"] * 101, 0), (["a=" + "x" * 20_000], 0), ("a=1", 0), ([1, "a=1"], 1)],
)
def test_too_many_recorded_arguments_are_none(arguments, kept):
    history = cast(History, SimpleNamespace(driver={"arguments": arguments}))
    assert len(arguments_in(history)) == kept


def test_a_recorded_metric_keeps_a_report_of_another_margin(report, tmp_path):
    write_results(tmp_path / "losses", "sweep=batch_scaling", "report.metric=val_loss")
    assert "is meant for" not in report(f"results_dir={tmp_path}/losses")[1]
    assert main(["mode=status", f"results_dir={tmp_path}/losses"]) == 0
