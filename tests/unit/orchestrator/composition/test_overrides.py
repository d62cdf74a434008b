import pytest

from orchestrator.composition.overrides import rewritten, with_alternatives


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["sweep=x", "mode=plan"], ["sweep=x", "mode=plan"]),
        (['sweep.axes."optimizer.lr"=[.1,.2]'], ["++sweep.axes={optimizer.lr:[.1,.2]}"]),
        (["+sweep.axes.'model'=[a,b]"], ["++sweep.axes={model:[a,b]}"]),
        (["sweep.axes.model=[a,b]"], ["++sweep.axes={model:[a,b]}"]),
        (["+sweep.axes.optimizer.lr=[.1]"], ["++sweep.axes={optimizer.lr:[.1]}"]),
        (["sweep.axes.'seed'=[1]"], ["sweep.axes.seed=[1]"]),
        (
            ["sweep.axes.global_batch_size=[64]", "--multirun"],
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=null", "--multirun"],
        ),
        (
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=[32]"],
            ["sweep.axes.global_batch_size=[64]", "sweep.axes.device_batch_size=[32]"],
        ),
        (["scale=small", "sweep=published/conv2d"], ["sweep/published/conv2d=small", "sweep=published/conv2d"]),
        (["scale=small"], ["scale=small"]),
        (["rerun=[12e4, 3fa2,abc,012]"], ["rerun=['12e4', '3fa2',abc,'012']"]),
        (["rerun=12e4"], ["rerun='12e4'"]),
        (["++rerun=[12e4]"], ["++rerun=['12e4']"]),
        (["rerun=[{gpus:2,seed:[0,1]},7]"], ["rerun=[{gpus:2,seed:[0,1]},'7']"]),
        (["rerun=all"], ["rerun=all"]),
        (["rerun_invalid=0"], ["rerun_invalid=0"]),
        (["trainable.env.MINE='{trial_id}'"], ["++trainable.env.MINE='{trial_id}'"]),
        (["+trainable.env.MINE=1"], ["+trainable.env.MINE=1"]),
        (["trainable.env={MINE: a}"], ["++trainable.env={MINE: a}"]),
        (["cluster.labels={market-type: spot}"], ["++cluster.labels={market-type: spot}"]),
        (["cluster.labels.market-type=spot"], ["++cluster.labels.market-type=spot"]),
        (["cluster.labels=null"], ["cluster.labels=null"]),
        (
            ["budget.steps=5"],
            ["budget.steps=5", "budget.epochs=null", "budget.samples=null", "budget.seconds=null"],
        ),
    ],
)
def test_what_hydra_is_given(typed, read):
    assert rewritten(typed) == read


def test_two_alternatives_are_left_for_the_checks_to_refuse():
    both = rewritten(["budget.steps=5", "budget.epochs=1"])
    assert "budget.steps=5" in both and "budget.epochs=1" in both and "budget.steps=null" not in both


def test_an_axis_over_one_alternative_clears_the_others():
    assert with_alternatives({"budget.steps": 5, "model": "x"}) == {
        "budget.epochs": None,
        "budget.samples": None,
        "budget.seconds": None,
        "budget.steps": 5,
        "model": "x",
    }


def test_what_is_given_twice_rules_out_its_alternatives_once():
    nulls = ["budget.samples=null", "budget.steps=null", "budget.seconds=null"]
    assert rewritten(["budget.epochs=1", "budget.epochs=2"]) == ["budget.epochs=1", *nulls, "budget.epochs=2"]
