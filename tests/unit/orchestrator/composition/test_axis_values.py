import pytest

from orchestrator.composition.axis_values import axes_of
from sweeps.mistakes import MistakesError
from sweeps.sweep import MOST_TRIALS


def test_axes_are_lists_whichever_way_they_are_written():
    given = {"gpus": "auto", "seed": "range(0,3)", "lr_rule": "none,linear", "model": "mlp", "optimizer": {"lr": [0.1]}}
    found = axes_of(given | {"lr_multiplier": 2, "device_batch_size": None, "data.subset": "[1,2]"})
    assert found == {
        "gpus": "auto",
        "seed": [0, 1, 2],
        "lr_rule": ["none", "linear"],
        "model": ["mlp"],
        "optimizer.lr": [0.1],
        "lr_multiplier": [2],
        "data.subset": [1, 2],
    }


def test_of_a_range_without_end_one_value_more_is_read_than_a_sweep_may_have():
    assert len(axes_of({"seed": "range(0,1000000000000)"})["seed"]) == MOST_TRIALS + 1


def test_what_is_no_value_is_told_with_its_axis():
    with pytest.raises(MistakesError, match=r"sweep.axes.seed='\[1,'"):
        axes_of({"seed": "[1,"})
