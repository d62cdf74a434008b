"""A sweep with branches: its table, its checkpoints, and how it continues."""

import pandas as pd
import pytest

from tests.drivers.place import wait_for

TINY = (
    *("sweep=lm_critical_batch", "sweep.name=traced", "model.layers=1", "model.heads=1", "model.width=16"),
    *("model.sequence_length=16", "data.epoch_tokens=1024", "data.validation_tokens=1024", "budget.tokens=4096"),
    *("trainable.branch_window_tokens=1024", "sweep.axes.global_batch_size=[8,16]"),
    'sweep.axes."trainable.branch_tokens"=[1024,2048]',
)


def losses(place):
    """Return the validation loss by point, batch and seed; the bases' point is 0."""
    trials = pd.read_csv(place.results / "tables/trials.csv").fillna({"trainable.branch_tokens": 0})
    return trials.set_index(["trainable.branch_tokens", "global_batch_size", "seed"])["val_loss"].to_dict()


def checkpoints(place):
    return sorted(place.results.glob("trials/*/branch-*"))


@pytest.mark.slow
def test_branches_have_a_table_and_leave_no_checkpoint(place):
    status, out, err = place.run(*TINY)
    assert status == 0, err
    rows = pd.read_csv(place.results / "tables/critical_batch.csv")
    assert rows[["tokens", "global_batch_size"]].to_numpy().tolist() == [[1024, 8], [1024, 16], [2048, 8], [2048, 16]]
    assert rows["n_seeds"].eq(2).all() and rows["is_lower_end"].groupby(rows["tokens"]).sum().eq(1).all()
    assert "critical batch" in out and not checkpoints(place)
    # A further point: the base runs again, because its checkpoints are gone; finished branches do not.
    before = losses(place)
    status, _, err = place.run(*TINY[:-1], 'sweep.axes."trainable.branch_tokens"=[1024,2048,3072]')
    trials = pd.read_csv(place.results / "tables/trials.csv")
    again = trials[trials["attempt"] == 2]
    assert status == 0 and again["trainable.branch_tokens"].isna().all() and len(again) == 2, err
    assert before.items() <= losses(place).items()
    assert place.run(*TINY, "mode=verify")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 4])
def test_killed_sweep_comes_to_the_same_losses(place, after):
    process = place.start(*TINY)
    wait_for(lambda: len(place.finished()) >= after if (place.results / "journal.jsonl").exists() else False, process)
    process.kill()
    process.communicate()
    assert checkpoints(place)
    status, _, err = place.run(*TINY)
    assert status == 0, err
    continued = losses(place)
    assert place.run(*TINY, "rerun=all")[0] == 0
    assert losses(place) == continued and not checkpoints(place)


@pytest.mark.slow
def test_failed_base_leaves_its_branches_out(place):
    broken = (*TINY, "hydra.searchpath=[]", "trainable.precision=fp16", "optimizer.lr=1e30")
    status, out, err = place.run(*broken)
    trials = pd.read_csv(place.results / "tables/trials.csv")
    base = trials["trainable.branch_tokens"].isna()
    assert set(trials[base]["status"]) == {"diverged"} and set(trials[~base]["status"]) == {"skipped"}, out + err
    assert trials[~base]["note"].str.contains("diverged").all()
