"""The published sweeps compose at every scale, expand, and fit their machines."""

import re
import shlex
from pathlib import Path

import pytest

from orchestrator.analysis.trials import collect
from orchestrator.cli.sweep_checks import request_errors, setup_errors
from orchestrator.config.compose import initialised
from orchestrator.config.content_hashes import Versions
from orchestrator.config.key_checks import group_errors, structure_errors, unread_keys, value_errors
from orchestrator.config.schema import SCHEMA
from orchestrator.decision.claim_expressions import Claim
from orchestrator.decision.claim_verdicts import verdicts
from orchestrator.schedule.cluster import Node, why_infeasible
from orchestrator.store.record import TrialOutcome, TrialRecord
from studies import published_session
from sweeps.errors import ConfigError
from tests.unit.orchestrator.requests import unchecked
from trainables.supervised import settings as supervised_check

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "studies/conf/sweep/published"
SWEEPS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SCALES = [(sweep, path.stem) for sweep in SWEEPS for path in sorted((FOLDER / sweep).glob("*.yaml"))]
LAPTOP = Node(name="laptop", cpus=2, gpus=0)
SERVER = Node(name="server", cpus=64, gpus=4)
MEASURED = dict.fromkeys(
    (
        *("samples_per_s", "epoch_s", "first_epoch_s", "train_s", "accuracy", "loss", "gpu_util", "gpu_util_spread"),
        "sm_clock_mhz",
    ),
    1.0,
) | {"epochs": 200.0}
MOST_TRIALS = 8
"""Trials of a small variant, which should end within a minute."""


@pytest.fixture(autouse=True)
def configs():
    with initialised():
        yield


@pytest.fixture(autouse=True)
def data_is_there(monkeypatch):
    """Skip the check for data files: the sweeps must be valid without them."""
    monkeypatch.setattr(supervised_check, "absent", lambda data, model=None: ())


def question(sweep, *arguments):
    return unchecked(f"sweep={sweep}", *arguments)


def at_scale(sweep, scale):
    nuclei = ["data.root=data"] if (sweep, scale) == ("unequal_pair", "unet") else []
    return question(f"published/{sweep}", f"scale={scale}", *nuclei)


def sound_trials(asked, node):
    """Return the trials of a request without errors."""
    config = asked.config
    of_keys = (*structure_errors(config), *value_errors(config, SCHEMA), *unread_keys(config), *group_errors(config))
    assert [*of_keys, *request_errors(config, asked.request.axes), *setup_errors(config)] == []
    return asked.trials([node], check=lambda variant: list(setup_errors(variant)))


def planned(sweep, scale, node):
    return sound_trials(at_scale(sweep, scale), node)


def test_five_sweeps_have_a_small_variant():
    assert SWEEPS == ["batch_vs_tpu", "conv2d", "data_parallel", "input_pipeline", "unequal_pair"]
    assert {sweep for sweep, scale in SCALES if scale == "small"} == set(SWEEPS)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_small_variants_fit_two_cores(sweep):
    trials = planned(sweep, "small", LAPTOP)
    assert 2 <= len(trials) <= MOST_TRIALS
    assert {trial.device for trial in trials} == {"cpu"} and {trial.gpus for trial in trials} == {1, 2}
    assert not any(why_infeasible(trial.gang, [LAPTOP]) for trial in trials)
    assert {trial.sweep for trial in trials} == {f"{sweep}_small"}


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "scale"), [variant for variant in SCALES if variant[1] != "small"])
def test_other_variants_fit_four_gpus(sweep, scale):
    trials = planned(sweep, scale, SERVER)
    assert not any(why_infeasible(trial.gang, [SERVER]) for trial in trials)
    assert {trial.sweep for trial in trials} == {sweep if scale == "full" else f"{sweep}_{scale}"}
    assert len({trial.trial_id for trial in trials}) == len(trials)


def ended(trial):
    """Return a record of the trial as if it had been measured."""
    outcome = TrialOutcome(note="", wall_s=10.0, metrics=MEASURED, provenance={"device_model": "H200"})
    return TrialRecord.of(trial, outcome, attempt=1, finished_at="2026-11-21T12:00:00+00:00")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sweep", "scale"),
    [variant for variant in SCALES if variant[1] in ("core", "full", "rules") or variant == ("unequal_pair", "unet")],
)
def test_every_claim_has_its_cells_and_seeds(sweep, scale):
    asked = at_scale(sweep, scale)
    claims = [Claim.of(claim) for claim in asked.request.settings.sweep.claims]
    trials, cells, _ = collect(asked.request, [ended(trial) for trial in asked.trials([SERVER])])
    judged = verdicts(claims, trials, cells)
    assert judged
    for verdict in judged:
        assert verdict.n >= 3 and not verdict.why.startswith(("no cell", "there is no", "it needs")), verdict


def commands():
    """Yield the overrides of each command in the README of the published results, and of each step of the session."""
    text = (ROOT / "docs/results/published/README.md").read_text()
    data = {"$DATA": "data", "$CIFAR": "data=npz data.path=cifar10.npz"}
    for command in re.findall(r"`\$ALL (sweep=[^`]+)`", text):
        for name, value in data.items():
            command = command.replace(name, value)
        yield tuple(shlex.split(command))
    for step in published_session.steps():
        cifar = ("data=npz", "data.path=x.npz") if step.sweep in ("data_parallel", "batch_vs_tpu") else ()
        nuclei = ("data.root=data",) if step.scale == "unet" else ()
        yield (f"sweep=published/{step.sweep}", f"scale={step.scale}", *step.arguments, *cifar, *nuclei)
        yield (f"sweep=published/{step.sweep}", *step.rehearsal)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", sorted(set(commands())), ids=" ".join)
def test_commands_of_readme_and_session_are_valid(arguments, monkeypatch):
    monkeypatch.setattr(Versions, "data", lambda self, config: "unread")
    asked = unchecked(*arguments)
    assert sound_trials(asked, SERVER)


def test_full_is_the_default_scale():
    given = ((), ("scale=full",))
    fingerprints = [question("published/batch_vs_tpu", *arguments).fingerprint() for arguments in given]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["published/unequal"], "did you mean sweep=published/unequal_pair"),
        (["published/unequal_pair", "scale=smal"], "scale=smal: there is no scale 'smal' .did you mean scale=small"),
        (["batch_scaling", "scale=small"], "sweep=batch_scaling has no scales"),
    ],
)
def test_unknown_sweeps_and_scales_are_errors(arguments, told):
    with pytest.raises(ConfigError, match=told):
        question(*arguments)


@pytest.mark.slow
def test_the_resnet_recipe_has_the_open_rules():
    rules = {(t.gpus, t.lr.rule) for t in planned("data_parallel", "full", SERVER) if t.batch.global_batch_size == 256}
    assert rules == {(1, "none"), (1, "linear"), (1, "sqrt"), (2, "none"), (2, "linear")}
