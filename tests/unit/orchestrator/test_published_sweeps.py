"""The published sweeps compose at every scale, expand, and fit the machines that they are meant for."""

from pathlib import Path

import hydra
import pytest

from orchestrator.composition import Composition, config_dir
from orchestrator.overrides import rewritten
from orchestrator.question import Question
from sweeps.feasibility import Node, why_infeasible
from sweeps.mistakes import MistakesError

FOLDER = Path(__file__).parents[3] / "conf/sweep/published"
SWEEPS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SCALES = [(sweep, path.stem) for sweep in SWEEPS for path in sorted((FOLDER / sweep).glob("*.yaml"))]
LAPTOP = Node(name="laptop", cpus=2, gpus=0)
SERVER = Node(name="server", cpus=64, gpus=4)
LONGEST_TRIALS = 8
"""Of a small variant, which is to end within a minute."""


@pytest.fixture(autouse=True)
def configs():
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3", job_name="orchestrator"):
        yield


def question(sweep, *arguments):
    return Question(Composition(rewritten([f"sweep={sweep}", *arguments])))


def planned(sweep, scale, node):
    asked = question(f"published/{sweep}", f"scale={scale}")
    asked.check([node])
    return asked.trials_on([node])


def test_there_are_five_and_each_has_a_small_variant():
    assert SWEEPS == ["batch_vs_tpu", "conv2d", "data_parallel", "input_pipeline", "unequal_pair"]
    assert {sweep for sweep, scale in SCALES if scale == "small"} == set(SWEEPS)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_small_variant_fits_two_cores_and_has_results_of_its_own(sweep):
    trials = planned(sweep, "small", LAPTOP)
    assert 2 <= len(trials) <= LONGEST_TRIALS
    assert {trial.device for trial in trials} == {"cpu"} and {trial.gpus for trial in trials} == {1, 2}
    assert not any(why_infeasible(trial.gang, [LAPTOP]) for trial in trials)
    assert {trial.sweep for trial in trials} == {f"{sweep}_small"}


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "scale"), [each for each in SCALES if each[1] != "small"])
def test_the_others_fit_four_gpus(sweep, scale):
    trials = planned(sweep, scale, SERVER)
    assert not any(why_infeasible(trial.gang, [SERVER]) for trial in trials)
    assert {trial.sweep for trial in trials} == {sweep if scale == "full" else f"{sweep}_{scale}"}
    assert len({trial.trial_id for trial in trials}) == len(trials)


def test_full_is_the_scale_that_is_not_named():
    assert question("published/batch_vs_tpu").asked() == question("published/batch_vs_tpu", "scale=full").asked()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["published/unequal"], "valid: batch_scaling, .*published/unequal_pair"),
        (["published/unequal_pair", "scale=smal"], "did you mean 'small'"),
        (["batch_scaling", "scale=small"], "sweep=batch_scaling has no scales"),
    ],
)
def test_what_there_is_not_is_told(arguments, told):
    with pytest.raises(MistakesError, match=told):
        question(*arguments)
