"""Test Ray Tune's callbacks and results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from orchestrator import ConfigError, run_sweep
from tests.drivers.command import orchestrate

CALLBACK = """
from ray.tune import Callback

class Tell(Callback):
    def __init__(self, file):
        self.file = file

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if "samples_per_s" in result:
            with open(self.file, "a") as file:
                file.write(f"{trial.config['params']['device_batch_size']} {result['epoch']:g} {result['loss']}\\n")
"""
TRAINING = """
def train(config, context):
    for epoch in (1, 2):
        context.report({"epoch": epoch, "loss": 1 / epoch})
    context.summarize({"samples_per_s": 10.0 * context.batch.global_batch_size, "train_s": 1.0})
"""
SWEEP = {
    "trainable": {"_target_": "tuned_training:train", "lr": 0.1, "reference_batch_size": 8},
    "sweep": {"name": "tuned", "axes": {"gpus": [1], "device_batch_size": [8, 16]}},
    "resources.device": "cpu",
    "report.html": False,
}
ROOT = Path(__file__).parents[2]
TRUSTED = "trusted_modules=[tuned_training]"
CALLBACKS = "[{_target_: tuned_callback.Tell, file: told.txt}, {_target_: ray.tune.logger.JsonLoggerCallback}]"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "tuned_callback.py").write_text(CALLBACK)
    (tmp_path / "tuned_training.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOUD = """
def train(config, context):
    context.report({"epoch": 1, "loss": 1.0, "said": config["trainable"]["password"]})
    if context.seed == 1:
        raise RuntimeError("cannot log in with " + config["trainable"]["password"])
    context.summarize({"samples_per_s": 1.0, "train_s": 1.0, "place": config["trainable"]["place"]})
"""
SECRETS = {"DB_PASSWORD": "hunter22-and-more", "PLACE": "somewhere-private"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")
def test_tune_state_and_callbacks_hold_no_secrets(folder):
    (folder / "loud_training.py").write_text(LOUD)
    ended = orchestrate(
        folder,
        *("sweep=batch_scaling", "trainable=function", "cluster.dashboard=false", "resources.device=cpu"),
        *("trainable._target_=loud_training:train", "trusted_modules=[loud_training,ray]", "report.html=false"),
        *("sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]"),
        *("sweep.axes.seed=[0,1]", "+trainable.password=${oc.env:DB_PASSWORD}", "+trainable.place=${oc.env:PLACE}"),
        *("tune.callbacks=[{_target_: ray.tune.logger.JsonLoggerCallback}]", "tune.storage_path=kept"),
        timeout_s=380,
        **SECRETS,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    kept = [path for path in (folder / "kept").rglob("*") if path.is_file()]
    assert {"params.json", "params.pkl", "result.json"} <= {path.name for path in kept}
    assert any(path.name.startswith("experiment_state") for path in kept)
    for path in [*kept, *(path for path in (folder / "results").rglob("*") if path.is_file())]:
        content = path.read_bytes()
        for secret in SECRETS.values():
            assert secret.encode() not in content, path
            assert secret.encode().hex().encode() not in content, path  # Tune writes pickles in hex


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")
def test_callbacks_are_called_and_tune_results_kept(folder):
    trusted = "trusted_modules=[ray,tuned_callback,tuned_training]"
    given = (f"tune.callbacks={CALLBACKS}", "tune.storage_path=kept", "cluster.dashboard=false")
    results = run_sweep(SWEEP, *given, trusted)
    assert results.exit_status == 0
    told = sorted((folder / "told.txt").read_text().splitlines())
    assert told == ["16 2 0.5", "8 2 0.5"]

    from ray.tune import ExperimentAnalysis, ResultGrid

    (kept,) = (folder / "kept").iterdir()
    assert kept.name.startswith("tuned_20")
    frame = ResultGrid(ExperimentAnalysis(str(kept))).get_dataframe()
    ours = results.trials.set_index("trial_id").loc[frame["trial_id"].str.partition("-")[0]]
    assert frame["samples_per_s"].tolist() == ours["samples_per_s"].tolist()
    assert frame["config/params/device_batch_size"].tolist() == ours["device_batch_size"].tolist()
    for path in kept.glob("*/result.json"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows[-1]["samples_per_s"] in (80.0, 160.0) and isinstance(pd.DataFrame(rows), pd.DataFrame)
    assert len(list(kept.glob("*/result.json"))) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_program_may_have_imported_ray_before(folder):
    code = f"import ray.tune; from orchestrator import run_sweep; print(run_sweep({SWEEP!r}, {TRUSTED!r}).exit_status)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(folder)])
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.stdout.endswith("0\n"), ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("tune.callbacks=[{_target_: ray.tune.logger.JsonLoggerCallback}]", "not trusted"),
        ("tune.callbacks=[1]", "must be a list"),
        ("backend=inprocess tune.storage_path=kept", "does not use Ray Tune"),
    ],
)
def test_impossible_options_are_reported_before_the_start(folder, given, told):
    with pytest.raises(ConfigError, match=told):
        run_sweep(SWEEP, *(given.split() if "inprocess" in given else [given]), "trusted_modules=[tuned_training]")
    assert not (folder / "results").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "targets",
    [
        ["{_target_: tuned_callback.Tel, file: x}"],  # not defined there, so not trusted
        ["{_target_: tuned_callback.Tell}", "{_target_: builtins.dict}"],  # lacks an argument; is no callback
    ],
)
def test_an_invalid_callback_is_reported_before_the_start(folder, targets):
    wrong = f"tune.callbacks=[{','.join(targets)}]"
    with pytest.raises(ConfigError) as error:
        run_sweep(SWEEP, wrong, "trusted_modules=[tuned_training,tuned_callback,builtins]")
    assert len(error.value.errors) == len(targets) and not (folder / "results").exists()
