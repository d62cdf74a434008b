"""Test the command line with real Ray: the README's sweep, a killed driver, a running cluster."""

import pandas as pd
import psutil
import pytest

from tests.drivers.command import orchestrate
from tests.drivers.place import wait_for
from tests.drivers.ray_head import free_port, ray_head


@pytest.mark.slow
def test_batch_scaling_with_one_and_two_workers(tmp_path):
    ended = orchestrate(
        tmp_path,
        "sweep=batch_scaling",
        "sweep.axes.gpus=[1,2]",
        "sweep.axes.device_batch_size=[256]",
        "sweep.axes.lr_rule=[linear]",
        "sweep.axes.seed=[0]",
        "report.html=false",
        "resources.device=cpu",
        "trainable.window_s=0.2",
        "budget.epochs=3",
        "cluster.dashboard=false",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    tables = tmp_path / "results/batch_scaling/tables"
    summary = pd.read_csv(tables / "summary.csv")

    assert summary.gpus.tolist() == [1, 2] and (summary.n_ok == 1).all() and (summary.device == "cpu").all()
    assert summary.speedup.tolist() == pytest.approx((summary.samples_per_s / summary.samples_per_s[0]).tolist())
    assert summary.global_batch_size.tolist() == [256, 512] and summary.strategy.tolist() == ["single", "ddp"]
    trials = pd.read_csv(tables / "trials.csv")
    assert trials["provenance.torch"].notna().all() and trials["provenance.host"].notna().all()
    for trial_id, ranks in zip(trials.trial_id, trials.ranks, strict=True):
        folder = tmp_path / "results/batch_scaling/trials" / trial_id
        assert {f"rank{rank}.log" for rank in range(ranks)} | {"config.yaml", "metrics.jsonl"} <= {
            path.name for path in folder.iterdir()
        }
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


def on_ray(place, *arguments):
    return place.start_afresh(
        "sweep=traced", "backend=ray", "cluster.dashboard=false", "resources.device=cpu", *arguments
    )


@pytest.mark.slow
def test_a_driver_killed_on_ray_continues(place):
    finished = set()
    for _ in range(2):
        before = len(place.ran())
        process = on_ray(place, "trainable.pause_s=0.2")
        wait_for(lambda: len(place.ran()) >= before + 3, process)  # noqa: B023
        ours = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        psutil.wait_procs(ours, timeout=60)
        assert not finished & set(place.ran()[before:])
        finished = set(place.finished())
        assert len(finished) >= 2
    executed = len(place.ran())
    process = on_ray(place, "trainable.pause_s=0.2")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert len(place.finished()) == 12 == len(set(place.finished()))
    assert not finished & set(place.ran()[executed:])


@pytest.fixture
def cluster(tmp_path):
    """Start a cluster as a user would; return its address."""
    port = free_port()
    with ray_head(f"--port={port}", "--include-dashboard=false", EXECUTIONS=str(tmp_path / "executions.txt")):
        yield f"127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["config", "environment"])
def test_a_sweep_runs_on_a_running_cluster(tmp_path, place, cluster, how):
    (tmp_path / ".env").write_text("SECRET=1")
    search = f"hydra.searchpath=[file://{tmp_path}/my]"
    given = {"RAY_ADDRESS": cluster} if how == "environment" else {}
    address = [] if given else [f"cluster.address={cluster}"]
    ended = orchestrate(
        tmp_path,
        *("sweep=traced", search, "sweep.axes.seed=[0]", "sweep.axes.gpus=[1,2]", "resources.device=cpu", *address),
        **given,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(pd.read_csv(place.results / "tables/trials.csv")) == 8
    assert len(place.ran()) == 4 + 2 * 4  # each rank leaves its trace


@pytest.fixture
def without_cpus():
    """Return the address of a head without CPUs and other nodes."""
    port = free_port()
    with ray_head(f"--port={port}", "--include-dashboard=false", "--num-cpus=0"):
        yield f"127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("mode", ["run", "plan"])
def test_a_cluster_without_cpus_is_refused(tmp_path, without_cpus, mode):
    search = f"hydra.searchpath=[file://{tmp_path}/my]"
    address = f"cluster.address={without_cpus}"
    ended = orchestrate(tmp_path, "sweep=traced", search, "resources.device=cpu", address, f"mode={mode}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    (line,) = ended.stderr.splitlines()
    assert address in line and "30 s" in line, line
    journal = tmp_path / "results/traced/journal.jsonl"
    assert not journal.exists() or not journal.read_text()  # nothing is said of any trial
