import pytest

from studies.same_batch import SameInputs, errors
from tests.unit.trainables.inputs.feeds import feed
from tests.unit.trainables.ranks import CONFIG, request, run, run_two
from trainables.inputs.loaders import Workers
from trainables.process_group import RankGroup

SAME = "studies.same_batch:train"


def config(**settings):
    exact = CONFIG["trainable"] | {"precision": "fp64", "loader": {"workers": 1}}
    return {"trainable": exact | settings, "budget": {"epochs": 1}}


@pytest.mark.slow
def test_two_ranks_with_the_same_batch_count_as_one(pair):
    alone = run(request(SAME, shares=(25,), config=config(input="loader")))
    for same in run_two(pair, SAME, shares=(25, 25), config=config(input="same_batch")):
        assert (same["status"], same["reusable"]) == ("ok", True), same["trace"]
        for figure in ("samples", "steps", "accuracy"):
            assert same["metrics"][figure] == alone["metrics"][figure]
        assert same["metrics"]["loss"] == pytest.approx(alone["metrics"]["loss"], abs=1e-9)
        times = same["metrics"]
        assert times["samples_per_s"] * times["window_s"] / times["window_steps"] == pytest.approx(25)


@pytest.mark.slow
def test_two_ranks_learn_the_same_from_a_shared_loader(pair):
    shared, own = (
        run_two(pair, SAME, shares=(25, 7), grad_accum_steps=2, config=config(input=kind))[0]
        for kind in ("shared_loader", "loader")
    )
    assert (shared["status"], shared["reusable"]) == ("ok", True), shared["trace"]
    for loss in ("loss", "val_loss"):
        assert shared["metrics"][loss] == pytest.approx(own["metrics"][loss], abs=1e-9)


def test_the_same_batch_needs_equal_shares():
    with pytest.raises(ValueError, match=r"input=same_batch .*\(25, 7\)"):
        SameInputs(feed((25, 7)), RankGroup(rank=0, world_size=2, device="cpu", gang_id=""), Workers(workers=0))


@pytest.mark.parametrize(("name", "count"), [("same_batch", 0), ("loader", 0), ("same_sample", 1)])
def test_the_study_adds_one_input(name, count):
    assert len(list(errors(CONFIG | {"trainable": CONFIG["trainable"] | {"input": name}}))) == count
