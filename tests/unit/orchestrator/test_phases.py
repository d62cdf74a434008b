from orchestrator.phases import probe, skipped
from sweeps.status import Status
from sweeps.sweep import Sweep, trials
from tests.unit.sweeps.test_sweep import setup

TRIALS = trials(Sweep(name="s", axes={"device_batch_size": [8, 16], "seed": [3, 1, 2]}), lambda axes: setup())


def test_the_first_seed_of_every_cell_is_probed():
    probing, later = probe(TRIALS, TRIALS)
    assert [trial.seed for trial in probing] == [1, 1] and len({trial.cell_id for trial in probing}) == 2
    assert sorted(trial.seed for trial in later) == [2, 2, 3, 3]


def test_what_has_run_before_is_not_probed_again():
    rest = [trial for trial in TRIALS if trial.seed != 1]
    assert probe(rest, TRIALS) == ([], rest)


def test_the_reason_is_told():
    outcome = skipped("gpus=1")
    assert (outcome.status, outcome.skipped_by) == (Status.SKIPPED, "phases")
    assert outcome.note.endswith("would not change the answer (gpus=1)")
