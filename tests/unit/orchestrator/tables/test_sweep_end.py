from dataclasses import replace

import pandas as pd
import pytest

from orchestrator.config.request import Terms
from orchestrator.decision.recommendation import Recommendation, remark
from sweeps.identity import COMMAND
from tests.unit.orchestrator.report import demo


@pytest.mark.parametrize(
    ("config", "axes", "what"),
    [
        ({}, {}, "mlp on digits, 10 epochs"),
        ({}, {"model": ["cnn"]}, "cnn on digits, 10 epochs"),
        ({}, {"model": ["mlp", "cnn"]}, "mlp and cnn on digits, 10 epochs"),
        ({}, {"model": ["a", "b", "c", "d"]}, "digits, 10 epochs"),
        ({}, {"budget.epochs": [1, 2]}, "mlp on digits"),
        ({"budget": {"epochs": None, "seconds": 1}}, {}, "mlp on digits, 1 second"),
        ({"trainable": {"_target_": "mine:train"}}, {}, "mine:train, 10 epochs"),
        ({"trainable": {"_target_": "mine:train", "argv": ["a"]}}, {}, "mine:train, 10 epochs"),
        ({"trainable": {"_target_": COMMAND, "argv": ["python", "train.py"]}}, {}, "python train.py, 10 epochs"),
    ],
)
def test_trained_names_what_trials_share(config, axes, what):
    shipped = {
        "trainable": {"_target_": "trainables.supervised.training:train"},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "budget": {"epochs": 10},
    }
    trials = pd.DataFrame(axes)
    assert demo.end(trials, fingerprint={"config": shipped | config}).trained() == what
    assert demo.end(trials).trained() == ""


@pytest.mark.parametrize(("code", "status"), [("none_ok", 1), ("metric_missing", 1), ("none_measured", 0)])
def test_a_sweep_without_results_fails(code, status):
    nothing = Recommendation(terms=Terms(), headline=remark(code), provisional=True)
    assert replace(demo.end(pd.DataFrame({"status": ["ok"]})), recommendation=nothing).exit_status == status
    assert demo.end(pd.DataFrame()).exit_status == 1
