"""mode=status and mode=list: the state of sweeps, while a driver runs and without one."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.cli.app import main
from orchestrator.store.journal import Journal
from orchestrator.store.lock import DirectoryLock
from orchestrator.store.record import Kind
from orchestrator.store.results_folder import ResultsFolder
from tests.unit.orchestrator.cli.watched import CONFIG
from tests.unit.orchestrator.records import record_of


@pytest.fixture
def told(tmp_path, capsys):
    def run(mode, *arguments):
        assert main([f"mode={mode}", f"results_dir={tmp_path}", "format=json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def start_sweep(journal, planned=6):
    """Three of the trials have ended, each 10 s after the one before, the last one now."""
    journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {}, "planned": planned})
    ends = [record_of(1, seed, metrics={}, wall_s=10.0, finished_at=ago(10 * (2 - seed))) for seed in range(3)]
    trial_ids = [*(end.trial_id for end in ends), "running", *map(str, range(4, planned))]
    journal.append(Kind.QUEUED, {"shares_s": dict.fromkeys(trial_ids, 10.0)})
    for end in ends:
        journal.append(Kind.FINISHED, end.to_json() | {"status": "failed" if end.seed == 2 else "ok"})


def ago(seconds):
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def test_status_of_a_running_sweep(told, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "mine")
    with DirectoryLock(folder), Journal.open(folder.journal) as journal:
        start_sweep(journal)
        journal.append(Kind.STARTED, {"trial_id": "running", "attempt": 1})
        folder.trial("running").mkdir()
        folder.config("running").write_text(CONFIG)
        status = told("status")
        assert "process" in status["driver"] and status["state"] == "running"
        assert status["trials"] == {"failed": 1, "ok": 2, "running": 1, "waiting": 2}
        journal.append(Kind.STARTED, {"trial_id": "again", "attempt": 1, "measures": record_of(1, 0).trial_id})
        again = told("status")
        assert again["trials"] == {"failed": 1, "ok": 2, "running": 2, "waiting": 2}
        assert [bool(trial["measures"]) for trial in again["running"]] == [False, True]
        assert main(["mode=status", f"results_dir={folder.root}"]) == 0
        assert f"timed again: {record_of(1, 0).trial_id[:8]} " in capsys.readouterr().out
        (trial,) = status["running"]
        assert trial["trial_id"] == "running" and trial["cell"] == "2×32 sqrt, seed=0"
        assert 15 <= status["left_s"] <= 30  # three trials at the pace so far
        # A further seed, which the plan did not have.
        journal.append(Kind.QUEUED, {"shares_s": {"further": 5.0}})
        status = told("status")
        assert status["trials"]["waiting"] == 3 and 20 <= status["left_s"] <= 35
        assert status["planned"] == 4 + 3 + 1  # ended or running, waiting, and the running repetition
        journal.append(Kind.QUEUED, {"shares_s": {}, "left_out": ["further"]})
        assert told("status")["trials"]["waiting"] == 2
    status = told("status", "sweep.name=mine")
    assert (status["driver"], status["running"], status["interrupted"]) == (None, [], 2)
    assert status["state"] == "not finished" and status["trials"]["waiting"] == 3


def test_status_is_printed(told, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "[bold]")
    folder.create()
    with Journal.open(folder.journal) as journal:
        start_sweep(journal)
        journal.append(Kind.PROBED, {"trial_id": "abc", "speed": "s", "size": "s", "status": "ok", "wall_s": 1.0})
        assert main(["mode=status", f"results_dir={tmp_path}"]) == main(["mode=list", f"results_dir={tmp_path}"]) == 0
        out = capsys.readouterr().out
    assert out.count("[bold]") >= 2 and "2 ok" in out and "1 probe has ended" in out and "2/6" in out


@pytest.mark.parametrize("value", [7, 1.5, True, None, "", "[/red]", "\x1b[31m", ["x"], {"name": {"a": [1]}}])
def test_list_shows_any_value_of_a_strangers_table(tmp_path, capsys, value):
    folder = ResultsFolder(tmp_path / "a[/red]" / "[bold]")
    folder.root.parent.mkdir(parents=True)
    folder.create()
    with Journal.open(folder.journal) as journal:
        start_sweep(journal)
    folder.table("recommendation.json").write_text(json.dumps({"verdict": value, "recommended": {"name": value}}))
    assert main(["mode=list", f"results_dir='{folder.root.parent}'"]) == 0
    told = capsys.readouterr().out
    assert "[/red]" in told and "[bold]" in told and "\x1b" not in told


def test_list_has_verdicts_and_configs(told, tmp_path):
    for name, text in (("one", '{"verdict": "clear", "recommended": {"name": "2×64"}}'), ("two", "[1"), ("three", "")):
        folder = ResultsFolder(tmp_path / name)
        folder.create()
        with Journal.open(folder.journal) as journal:
            start_sweep(journal, planned=3)
            journal.append(Kind.ENDED, {"missing": 0})
        folder.table("recommendation.json").write_text(text)
    (tmp_path / "other").mkdir()
    listing = told("list")
    assert [row["sweep"] for row in listing["sweeps"]] == ["one", "three", "two"]
    expected = {"state": "finished", "trials": 3, "ok": 2, "verdict": "clear", "recommended": "2×64"}
    assert listing["sweeps"][0] == {"sweep": "one"} | expected
    assert [row["verdict"] for row in listing["sweeps"][1:]] == [None, None]
    assert "batch_scaling" in listing["configs"] and told("list", f"results_dir={tmp_path}/none")["sweeps"] == []


@pytest.mark.parametrize("asked", ["mode=logs", "logs", "mode=show", "mode=log trial={id}", "logs {id}"])
def test_the_log_of_a_failed_trial_is_named(asked, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "one")
    folder.create()
    with Journal.open(folder.journal) as journal:
        for trial_id, status in (("0123abcd", "failed"), ("4567abcd", "ok")):
            end = record_of(2, 0, note="ValueError: 3\nmore", trial_id=trial_id).to_json() | {"status": status}
            journal.append(Kind.FINISHED, end)
    arguments = asked.replace("{id}", "0123abcd").split(" ")
    assert main([*arguments, f"results_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"0123abcd failed: {folder.trial('0123abcd')}: ValueError: 3\n"
    assert main(["mode=status", f"results_dir={folder.root}"]) == 0
    assert str(folder.trial("0123abcd")) in capsys.readouterr().out


@pytest.mark.parametrize(("is_running", "named"), [(False, "89abcdef ended last"), (True, "aaaabbbb runs")])
def test_without_failures_the_last_trial_is_named(is_running, named, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "one")
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.SWEEP, {"fingerprint": {}, "driver": {}, "planned": 3})
        for trial_id in ("4567abcd", "89abcdef"):
            journal.append(Kind.FINISHED, record_of(2, 0, trial_id=trial_id).to_json())
        journal.append(Kind.STARTED, {"trial_id": "aaaabbbb", "attempt": 1})
        asked = ["mode=logs", f"results_dir={folder.root}"]
        status = main(asked) if is_running else 2
    told = capsys.readouterr().err if is_running else ""
    assert is_running or main(asked) == status
    assert (told or capsys.readouterr().err).startswith(f"{named}: {folder.root}")
    assert main(["mode=status", f"results_dir={folder.root}"]) == 0
    assert "the same command continues" in capsys.readouterr().out


@pytest.mark.parametrize(("log", "lines"), [("", ["it printed nothing"]), ("one\ntwo\n", ["2 lines", "one", "two"])])
@pytest.mark.parametrize("place", ["sweep.name=one", "sweep=one", "trial=0123"])
def test_the_log_of_a_named_trial_is_shown(log, lines, place, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "one")
    folder.create()
    with Journal.open(folder.journal) as journal:
        journal.append(Kind.FINISHED, record_of(2, 0, trial_id="0123abcd").to_json())
    folder.trial("0123abcd").mkdir()
    (folder.trial("0123abcd") / "rank0.log").write_text(log)
    # What is no log is left out.
    os.mkfifo(folder.trial("0123abcd") / "pipe.log")
    (folder.trial("0123abcd") / "folder.log").mkdir()
    (folder.trial("0123abcd") / "link.log").symlink_to(folder.journal)
    assert main(["mode=logs", "0123abcd", place, f"results_dir={tmp_path}"]) == 2
    _, *told = capsys.readouterr().err.splitlines()
    assert len(told) == len(lines) and all(map(str.endswith, told, lines))


@pytest.mark.parametrize("asked", ["mode=open", "open=true", "mode=browser", "view"])
def test_a_wish_to_open_the_report_has_its_path_and_a_line(asked, tmp_path, capsys):
    folder = ResultsFolder(tmp_path / "one")
    folder.create()
    assert main([asked, f"results_dir={tmp_path}"]) == 2
    assert str(folder.page) not in capsys.readouterr().err
    folder.page.touch()
    with Journal.open(folder.journal):
        pass
    assert main([asked, f"results_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"open {folder.page} in a browser")


def test_status_without_results_is_refused(tmp_path, capsys):
    assert main(["mode=status", f"results_dir={tmp_path}"]) == 2
    assert main(["mode=status", "sweep=batch_scaling", f"results_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.count(str(tmp_path)) == 2
