import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.run import provenance
from orchestrator.run.provenance import check_hardware, commit, hardware_of, load_warning, origin, way_on
from orchestrator.schedule.cluster import Node
from sweeps.errors import ConfigError
from tests.contract.trials import trial


def test_command_line_is_recorded():
    told = origin(["sweep=demo", "sweep.axes.gpus=[1,2]", "data.path=a b.npz"])["command"]
    assert told == "python -m orchestrator sweep=demo 'sweep.axes.gpus=[1,2]' 'data.path=a b.npz'"


def test_checkout_gives_commit_and_dirty_state(tmp_path):
    def git(*arguments):
        named = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.check_output(["git", "-C", str(tmp_path), *named, *arguments], text=True).strip()

    assert commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')} with changes"


def test_outside_a_checkout_there_is_no_commit(folder, monkeypatch):
    monkeypatch.setenv("PATH", "")
    provenance = origin([])
    assert "commit" not in provenance and "orchestrator_commit" not in provenance
    assert provenance["command"] == "python -m orchestrator" and provenance["packages"]["torch"]


H100 = Node(name="a", cpus=8, gpus=2, gpu_type="H100")
A100 = Node(name="b", cpus=8, gpus=2, gpu_type="A100")
CPUS = Node(name="c", cpus=8, gpus=0)
ON_CPU, ON_GPU = trial("one", "quick"), replace(trial("two", "quick"), device="cuda")


class Asked:
    results_dir = Path("results/s")

    def __init__(self, allow_changed=False):
        self.settings = SimpleNamespace(allow_changed=allow_changed, mode="run")


@pytest.mark.parametrize(("mode", "told"), [("run", "sweep.name=s_3,"), ("settle", "sweep.name=s_3 mode=run,")])
def test_a_changed_sweep_is_given_a_free_name(mode, told, tmp_path):
    (tmp_path / "s_2").mkdir()
    request: Any = SimpleNamespace(results_dir=tmp_path / "s", settings=SimpleNamespace(mode=mode))
    assert told in way_on(request)


def check(before, now, **asked):
    request: Any = Asked(**asked)
    check_hardware(request, before, now)


def test_hardware_comes_from_the_nodes_of_the_trials(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU @ 3 GHz\n")
    monkeypatch.setattr(provenance, "_CPU_INFO", info)
    assert hardware_of([ON_GPU], [H100, CPUS, H100], here=False) == {"gpu": "H100"}
    assert hardware_of([ON_GPU], [H100, A100], here=False) == {"gpu": "A100 + H100"}
    assert hardware_of([ON_CPU], [H100], here=True) == {"cpu": "A CPU @ 3 GHz"}
    assert hardware_of([ON_CPU], [H100], here=False) == {}
    assert hardware_of([], [H100], here=True) == {}


def test_changed_hardware_is_refused_unless_allowed():
    before = {"gpu": "H100"}
    with pytest.raises(ConfigError) as caught:
        check(before, {"gpu": "A100"})
    assert "gpu: 'H100' → 'A100'" in caught.value.errors and "allow_changed=true" in caught.value.errors[-1]
    check(before, {"gpu": "A100"}, allow_changed=True)
    check(before, {"gpu": "H100"})


def test_only_hardware_known_on_both_sides_is_compared():
    check({"gpu": "H100"}, {"cpu": "A CPU"})
    check({}, {"gpu": "A100"})


@pytest.mark.parametrize(
    ("share", "timing", "told"), [(0.4, "exclusive", True), (0.4, "shared", False), (0.04, "exclusive", False)]
)
def test_a_busy_machine_is_announced(share, timing, told, monkeypatch):
    monkeypatch.setattr(provenance, "load_now", lambda: (share, "chrome"))
    warning = load_warning([replace(ON_CPU, timing=timing)])
    assert bool(warning) is told
    assert not told or ("40%" in warning and "chrome" in warning)
