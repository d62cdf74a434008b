"""Test sweeps with real trackers. MLflow and W&B are slow tests; each needs its extra."""

import os
import socket
import subprocess
import sys
import time

import pytest

from orchestrator import ConfigError, run_sweep
from tests.drivers.ray_head import free_port

SMALL = {
    "backend": "inprocess",
    "trainable": "noop",
    "report.html": False,
    "sweep": {"name": "mine", "axes": {"gpus": [1], "device_batch_size": [8], "seed": [0, 1]}},
}


pytestmark = pytest.mark.usefixtures("folder")


def test_tensorboard_has_a_run_for_each_trial(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    results = run_sweep(SMALL, "tracker.tensorboard.enabled=true", quiet=True)
    runs = sorted((folder / "results/mine/tensorboard").iterdir())
    assert [run.name.rpartition("-")[2] for run in runs] == sorted(results.trials.trial_id, key=_seed_of(results))
    events = accumulator.EventAccumulator(str(runs[0]))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("epoch")] == [(1, 1.0)]
    assert events.Scalars("trial/wall_s")[0].step == 1
    assert events.Scalars("trial/ok")[0].value == 1 and events.PluginTagToContent("hparams")


@pytest.mark.slow
def test_each_attempt_is_a_tensorboard_run(folder):
    pytest.importorskip("tensorboard")
    one = SMALL | {"sweep.axes.seed": [0], "tracker.tensorboard.enabled": True}
    run_sweep(one, quiet=True)
    run_sweep(one, "rerun=all", quiet=True)
    runs = {run.name: len(list(run.iterdir())) for run in (folder / "results/mine/tensorboard").iterdir()}
    first, second = sorted(runs)
    assert second == f"{first}-2" and set(runs.values()) == {1}


def _seed_of(results):
    return dict(zip(results.trials.trial_id, results.trials.seed, strict=True)).get


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("store", ["files", "server"])
def test_mlflow_has_a_run_for_each_trial(folder, store):
    mlflow = pytest.importorskip("mlflow")
    server = None
    uri = f"file:{folder}/mlruns"
    if store == "server":
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers=1"]
        command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/art"]
        server = subprocess.Popen(command, env=os.environ, start_new_session=True)
        uri = f"http://127.0.0.1:{port}"
        _wait_for(port, server)
    try:
        config = SMALL | {"tracker": {"mlflow": {"enabled": True, "uri": uri}}}
        results = run_sweep(config, quiet=True)
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("mine")
        runs = client.search_runs([experiment.experiment_id])
        assert {run.data.tags["trial_id"] for run in runs} == set(results.trials.trial_id)
        for run in runs:
            assert run.info.status == "FINISHED" and run.data.tags["status"] == "ok"
            assert run.data.params["global_batch_size"] == "8"
            assert run.data.metrics["trial/wall_s"] > 0
            assert [metric.step for metric in client.get_metric_history(run.info.run_id, "epoch")] == [1]
    finally:
        if server is not None:
            os.killpg(server.pid, 15)
            server.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_a_silent_mlflow_server_is_reported_before_the_start(folder, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(ConfigError, match=f"tracker.mlflow: MlflowException: .*{uri}"):
            run_sweep(SMALL | {"tracker": {"mlflow": {"enabled": True, "uri": uri}}}, quiet=True)
    assert time.monotonic() - began_s < 150  # MLflow itself would try for longer
    assert not (folder / "results/mine/trials").exists()


def _wait_for(port, server):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the MLflow server did not answer")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_wandb_has_an_offline_run_for_each_trial(folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    results = run_sweep(SMALL, "tracker.wandb.enabled=true", quiet=True)
    runs = list((folder / "results/mine/wandb").glob("offline-run-*"))
    assert len(runs) == len(results.trials) == 2
    for run in runs:
        (file,) = run.glob("*.wandb")
        assert file.stat().st_size > 0


def test_a_missing_tracker_package_is_reported_before_the_start(folder, monkeypatch):
    monkeypatch.setattr("orchestrator.trackers.tracking.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package wandb"):
        run_sweep(SMALL, "tracker.wandb.enabled=true")
    assert not (folder / "results").exists()
