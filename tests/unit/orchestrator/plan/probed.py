"""A sweep whose trials can be probed."""

from dataclasses import replace

from orchestrator.config.settings import BudgetSection
from sweeps.sweep import Sweep, trials
from tests.unit.orchestrator.requests import request as shipped_request
from tests.unit.sweeps.setups import setup

PROBE = {"budget": {"epochs": None, "steps": 10}, "trainable": {"window_s": 0.3}}
AXES = {"device_batch_size": [8, 16, 32], "lr_rule": ["none", "linear"], "seed": [3, 1, 2]}
PLAIN = trials(Sweep(name="s", axes=AXES), lambda axes: setup())
TRIALS = [
    replace(trial, config={**trial.config, "budget": {"epochs": 2}, "trainable": {"window_s": 2.0, "probe": PROBE}})
    for trial in PLAIN
]
CELLS = {(trial.batch.global_batch_size, trial.lr.rule): trial.cell_id for trial in TRIALS}
BASE = CELLS[8, "none"]


def request(**changes):
    given = {"reference_batch_size": 8, "margin": 0.01, "budget": BudgetSection(epochs=None)}
    axes = {"device_batch_size": [8, 16, 32], "lr_rule": ["none", "linear"]}
    return shipped_request(**given | {"axes": axes} | changes)
