import json
import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store.journal import Journal, replay
from orchestrator.store.lock import DirectoryLock, LockedError, driver_of
from orchestrator.store.results_folder import ResultsFolder

DRIVER = """
import sys
from pathlib import Path
from orchestrator.store.results_folder import ResultsFolder
from orchestrator.store.lock import DirectoryLock, LockedError
try:
    with DirectoryLock(ResultsFolder(Path(sys.argv[1]))):
        print("mine", flush=True)
        sys.stdin.read()
except LockedError as error:
    print("locked by", error.owner.pid, flush=True)
"""


def driver(root):
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def first_line(process):
    assert process.stdout
    return process.stdout.readline().strip()


def end(process):
    process.communicate()


def test_second_driver_is_refused_with_the_owner(tmp_path):
    first = driver(tmp_path)
    assert first_line(first) == "mine"
    with pytest.raises(LockedError, match=f"process {first.pid} on host {platform.node()}") as caught:
        DirectoryLock(ResultsFolder(tmp_path)).__enter__()
    assert caught.value.owner
    assert caught.value.owner.pid == first.pid
    end(first)
    with DirectoryLock(ResultsFolder(tmp_path)):
        pass
    assert not ResultsFolder(tmp_path).owner.exists()


def test_the_refusal_names_the_folder_as_a_shell_reads_it():
    words = shlex.split(LockedError(Path("my results/one"), None).errors[0])
    assert {"mode=watch", "results_dir=my results/one"} <= {*words}


def test_lock_of_a_dead_owner_is_free(tmp_path):
    first = driver(tmp_path)
    assert first_line(first) == "mine"
    first.send_signal(signal.SIGKILL)
    end(first)
    assert ResultsFolder(tmp_path).owner.exists()
    with DirectoryLock(ResultsFolder(tmp_path)), pytest.raises(LockedError, match=f"process {os.getpid()} "):
        DirectoryLock(ResultsFolder(tmp_path)).__enter__()


def test_removed_lock_file_lets_no_second_driver_in(tmp_path):
    results_folder = ResultsFolder(tmp_path)
    with DirectoryLock(results_folder), Journal.open(results_folder.journal):
        results_folder.lock.unlink()
        with pytest.raises(LockedError, match=f"process {os.getpid()} "):
            DirectoryLock(results_folder).__enter__()
        assert driver_of(results_folder).startswith(f"process {os.getpid()} ")
    with DirectoryLock(results_folder):
        pass


def test_only_one_of_many_drivers_gets_the_lock(tmp_path):
    drivers = [driver(tmp_path) for _ in range(6)]
    answers = [first_line(process) for process in drivers]
    assert answers.count("mine") == 1
    winner = drivers[answers.index("mine")]
    assert set(answers) == {"mine", f"locked by {winner.pid}"}
    for process in drivers:
        end(process)


@pytest.mark.parametrize(("host", "named"), [(platform.node(), "without a name"), ("elsewhere", "on host elsewhere")])
def test_dead_process_is_no_owner_if_its_host_is_this_one(tmp_path, monkeypatch, host, named):
    monkeypatch.setattr("orchestrator.store.lock._GRACE_S", 0.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with DirectoryLock(ResultsFolder(tmp_path)):
        stale = {"host": host, "pid": gone.pid, "started": ""}
        ResultsFolder(tmp_path).owner.write_text(json.dumps(stale))
        with pytest.raises(LockedError, match=named):
            DirectoryLock(ResultsFolder(tmp_path)).__enter__()


def test_lock_is_released_if_the_owner_cannot_be_written(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="disk full"):
        patched.setattr("orchestrator.store.lock.write_durably", fail)
        DirectoryLock(ResultsFolder(tmp_path)).__enter__()
    with DirectoryLock(ResultsFolder(tmp_path)):
        pass


def test_new_directory_without_results_is_removed(tmp_path):
    results_folder = ResultsFolder(tmp_path / "results" / "sweep")
    with pytest.raises(RuntimeError, match="refused"), DirectoryLock(results_folder, made=True):
        results_folder.journal.touch()
        raise RuntimeError("refused")
    assert not results_folder.root.exists()


@pytest.mark.parametrize("what", ["journal.jsonl", "trials/a", "tables/summary.csv", "notes.txt"])
def test_directory_with_content_or_from_before_stays(tmp_path, what):
    results_folder = ResultsFolder(tmp_path / "sweep")
    with DirectoryLock(results_folder, made=True):
        (results_folder.root / what).write_text("something")
    assert (results_folder.root / what).read_text() == "something" and results_folder.lock.exists()
    there = ResultsFolder(tmp_path / "there")
    there.root.mkdir()
    with DirectoryLock(there):
        pass
    assert there.trials.is_dir()


def test_failed_removal_of_the_directory_hides_no_error(tmp_path, monkeypatch):
    def busy(_):
        raise OSError("Directory not empty")

    results_folder = ResultsFolder(tmp_path / "sweep")
    monkeypatch.setattr(Path, "rmdir", busy)
    with pytest.raises(RuntimeError, match="refused"), DirectoryLock(results_folder, made=True):
        raise RuntimeError("refused")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[", b"{}", b"[" * 100_000, b"null"),
        *(b'{"host": "a", "pid": %b, "started": "now"}' % pid for pid in (b'"x"', b"-1", b"0", b"1e9", b"9" * 30)),
    ],
)
def test_odd_owner_file_names_no_owner(tmp_path, content):
    results_folder = ResultsFolder(tmp_path)
    results_folder.owner.write_bytes(content)
    with Journal.open(results_folder.journal):
        assert driver_of(results_folder) == "a driver without a name"


@pytest.mark.timeout(20)
def test_pipes_and_devices_in_place_of_files_are_refused(tmp_path):
    results_folder = ResultsFolder(tmp_path)
    os.mkfifo(results_folder.owner)
    with Journal.open(results_folder.journal):
        assert driver_of(results_folder) == "a driver without a name"
    results_folder.journal.unlink()
    os.mkfifo(results_folder.journal)
    assert driver_of(results_folder) == ""
    for read in (replay, Journal.open):
        with pytest.raises(OSError):
            read(results_folder.journal)
    results_folder.journal.unlink()
    results_folder.journal.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        replay(results_folder.journal)
