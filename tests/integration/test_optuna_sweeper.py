"""Test Hydra's Optuna sweeper over whole sweeps, in a separate environment, because it pins an old Optuna.

OPTUNA_PYTHON is the interpreter of an environment with this project and hydra-optuna-sweeper.
"""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("OPTUNA_PYTHON", "")
TRAINING = """
def train(config, context):
    momentum = config["trainable"]["momentum"]
    context.report({"epoch": 1, "loss": 1.0})
    if momentum > 0.98:
        raise RuntimeError("too much")
    context.summarize({"val_accuracy": 1 - (momentum - 0.9) ** 2})
"""
CONFIG = "_target_: sought_training:train\nlr: 0.1\nreference_batch_size: 8\noptimizer: sgd\nmomentum: 0.9\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not PYTHON, reason="OPTUNA_PYTHON names no interpreter with hydra-optuna-sweeper")
def test_the_sweeper_gets_every_objective(tmp_path):
    (tmp_path / "sought_training.py").write_text(TRAINING)
    (tmp_path / "conf/trainable").mkdir(parents=True)
    (tmp_path / "conf/trainable/sought.yaml").write_text(CONFIG)
    sweeper = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.direction=maximize"]
    sweeper += ["hydra.sweeper.max_failure_rate=1", "trusted_modules=[hydra_plugins,optuna,sought_training]"]
    sweep = ["sweep=batch_scaling", "sweep.name=m_${trainable.momentum}", "trainable=sought", "backend=inprocess"]
    sweep += ["sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8]", "sweep.axes.lr_rule=[none]"]
    sweep += ["sweep.axes.seed=[0]", "report.html=false", "sweeper.objective.column=val_accuracy"]
    ended = subprocess.run(
        [PYTHON, "-m", "orchestrator", "-cd", "conf", "-m", *sweeper, *sweep, "trainable.momentum=interval(0.8,0.99)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    (path,) = tmp_path.glob("multirun/*/*/optimization_results.yaml")
    best = yaml.safe_load(path.read_text())
    assert best["best_value"] == pytest.approx(1 - (best["best_params"]["trainable.momentum"] - 0.9) ** 2)
    assert len(list((tmp_path / "results").iterdir())) == 4
