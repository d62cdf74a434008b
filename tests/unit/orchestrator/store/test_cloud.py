"""Results in a store, which is a folder here: what is copied, what is fetched, and what is refused."""

import os
import shutil
import threading
import time
from io import StringIO
from types import SimpleNamespace

import pytest
from pyarrow.fs import FileInfo, FileSelector, FileType
from rich.console import Console

from orchestrator.store.cloud import Cloud, Copying
from orchestrator.store.results_folder import ResultsFolder
from sweeps.errors import ConfigError


class Machine:
    """A folder for results, and what the console shows."""

    def __init__(self, folder, store):
        self.folder, self.told = ResultsFolder(folder / "results" / "demo"), StringIO()
        self.folder.create()
        self._store = store
        self.copying = self.again()

    def again(self):
        """The next command's."""
        return Copying(f"file://{self._store}", self.folder, Console(file=self.told, width=200))

    def write(self, name, text):
        path = self.folder.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self):
        return read(self.folder.root)


def read(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def machine(tmp_path, store):
    return Machine(tmp_path / "one", store)


def test_locks_links_and_torn_records_are_not_copied(machine, store):
    machine.write("journal.jsonl", "first\nhalf of the sec")
    machine.write("trials/a/checkpoint/state", "1")
    machine.write("lock", "")
    machine.write("trials/a/.metrics.jsonl.7.aside", "{")
    os.symlink("/etc/passwd", machine.folder.root / "trials/a/link")
    with machine.copying:
        machine.write("tables/summary.csv", "gpus")
    assert read(store / "demo") == {
        "journal.jsonl": "first\n",
        "trials/a/checkpoint/state": "1",
        "tables/summary.csv": "gpus",
    }
    (machine.folder.root / "trials/a/checkpoint/state").unlink()  # its trial has ended
    with machine.again():
        machine.write("tables/summary.csv", "cpus")
    assert read(store / "demo") == {"journal.jsonl": "first\n", "tables/summary.csv": "cpus"}
    (machine.folder.root / "tables/summary.csv").unlink()  # by a hand, and not because it is over
    with machine.again():
        pass
    assert "tables/summary.csv" in read(store / "demo")
    assert machine.told.getvalue() == ""


def test_deleted_results_stay_in_the_store(machine, store):
    with machine.copying:
        machine.write("journal.jsonl", "first\n")
        machine.write("trials/a/checkpoint/state", "1")
    before = read(store)
    with machine.again():
        shutil.rmtree(machine.folder.trials)
    assert read(store) == before and machine.told.getvalue() == ""
    with machine.again():
        shutil.rmtree(machine.folder.root)
    assert read(store) == before and "moved or deleted" in machine.told.getvalue()


def test_results_continue_on_another_machine_and_back(machine, tmp_path, store):
    with machine.copying:
        machine.write("journal.jsonl", "first\n")
        machine.write("trials/a/metrics.jsonl", "{}\n")
    other = Machine(tmp_path / "other", store)
    with other.copying:
        assert other.files() == machine.files()
        other.write("journal.jsonl", "first\nsecond\n")
    back = Machine(tmp_path / "one", store)
    with back.copying:
        assert back.files()["journal.jsonl"] == "first\nsecond\n"


def test_results_of_two_machines_are_not_mixed(machine, tmp_path, store):
    with machine.copying:
        machine.write("journal.jsonl", "first\n")
    other = Machine(tmp_path / "other", store)
    other.write("journal.jsonl", "another\n")
    with pytest.raises(ConfigError, match="different runs"), other.copying:
        pass
    assert other.files() == {"journal.jsonl": "another\n"} and read(store / "demo") == {"journal.jsonl": "first\n"}


def test_failed_copy_is_reported_and_made_up_later(machine, store, monkeypatch):
    def refuse(cloud, name, path):
        raise OSError("no such bucket")

    with monkeypatch.context() as broken:
        broken.setattr(Cloud, "put", refuse)
        with machine.copying:
            machine.write("journal.jsonl", "first\n")
            machine.write("report.html", "page")
    assert not store.exists()
    with machine.again():
        pass
    assert "not up to date: " in machine.told.getvalue() and "no such bucket" in machine.told.getvalue()
    assert read(store / "demo") == {"journal.jsonl": "first\n", "report.html": "page"}


def test_hanging_store_does_not_delay_the_end(machine, monkeypatch):
    slow, hangs = [0.3, 0.3, 0.3], threading.Event()
    monkeypatch.setattr("orchestrator.store.cloud.PATIENCE_S", 0.6)
    monkeypatch.setattr(Cloud, "put", lambda *_: time.sleep(slow.pop()) if slow else hangs.wait(60))
    with machine.copying:
        for name in ("a", "b", "c"):
            machine.write(name, "")
    assert machine.told.getvalue() == "", "slow is not stuck"
    with machine.again():
        machine.write("d", "")
    assert "not up to date: " in machine.told.getvalue() and "0.6 s" in machine.told.getvalue()
    hangs.set()


def test_names_that_leave_the_folder_are_not_fetched(store, monkeypatch):
    """No folder has such names, but a store of objects may: there they are nothing but text."""
    cloud = Cloud(f"file://{store}", "demo")
    cloud.write("trials/a/rank0.log", b"log")
    (sound,) = cloud._store.get_file_info(FileSelector(str(store / "demo/trials/a")))
    names = ("trials/a/rank0.log", "../rank0.log", "trials/../../rank0.log", "trials//rank0.log")
    infos = [FileInfo(f"{store}/demo/{name}", FileType.File, mtime=sound.mtime, size=3) for name in names]
    monkeypatch.setattr(cloud, "_store", SimpleNamespace(get_file_info=lambda selector: infos))
    assert list(cloud.files()) == ["trials/a/rank0.log"]


def test_invalid_store_address_is_refused():
    with pytest.raises(ConfigError, match="results_dir=s3:"):
        Cloud("s3://lab?colour=red", "demo")
