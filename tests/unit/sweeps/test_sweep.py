import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sweeps.sweep
from sweeps.errors import ConfigError
from sweeps.layout import least_nodes
from sweeps.sweep import Sweep, divide_global, gang_of, multiply_device, trials
from tests.unit.sweeps.setups import GRID, expanded, setup


def test_a_trial_has_gang_batch_and_rate():
    trial = expanded(GRID)[-2]
    assert (trial.gpus, trial.gang.ranks, trial.batch.global_batch_size, trial.batch.shares) == (2, 2, 128, (64, 64))
    assert (trial.lr.value, trial.lr.warmup_from, trial.layout.strategy) == (0.4, 0.1, "ddp")
    assert trial.label == "s/gpus=2,device_batch_size=64,lr_rule=linear,seed=0"


@pytest.mark.parametrize("entry", [{}, {"gpus": 1}, {"seed": [0, 1]}])
def test_a_sweep_without_trials_is_refused(entry):
    with pytest.raises(ConfigError, match=r"sweep\.exclude"):
        expanded({"gpus": [1], "device_batch_size": [8], "seed": [0, 1]}, exclude=[entry])


def test_zip_and_exclude_select_trials():
    axes = {"gpus": [1, 2, 4], "global_batch_size": [32, 64, 128], "seed": [0, 1]}
    selected = expanded(axes, zip=[["gpus", "global_batch_size"]], exclude=[{"gpus": 2, "seed": 1}])
    told = [(trial.gpus, trial.batch.global_batch_size, trial.seed) for trial in selected]
    assert told == [(1, 32, 0), (1, 32, 1), (2, 64, 0), (4, 128, 0), (4, 128, 1)]


@pytest.mark.parametrize("zipped", [(), [["seed", "device_batch_size"]]])
def test_a_sweep_above_the_limit_is_an_error(zipped, monkeypatch):
    monkeypatch.setattr(sweeps.sweep, "MOST_TRIALS", 4)
    sides = {"device_batch_size": [32, 64, 96, 128]} if zipped else {"device_batch_size": [32]}
    assert len(expanded({"seed": [0, 1, 2, 3], **sides}, zip=zipped)) == 4
    with pytest.raises(ConfigError, match="8 combinations"):
        expanded({"seed": [0, 1, 2, 3], "gpus": [1, 2], **sides}, zip=zipped)


def test_trials_that_differ_only_by_seed_are_a_cell():
    trials = expanded(GRID)
    assert len({trial.trial_id for trial in trials}) == 16 and len({trial.cell_id for trial in trials}) == 8
    one = trials[0]
    assert [trial.seed for trial in trials if trial.cell_id == one.cell_id] == [0, 1]


def test_none_and_sqrt_at_the_reference_batch_are_two_trials():
    none, sqrt = expanded({"device_batch_size": [32], "lr_rule": ["none", "sqrt"]})
    assert none.lr.value == sqrt.lr.value and none.trial_id != sqrt.trial_id


def test_ids_depend_on_the_request_only():
    axes = {"device_batch_size": [32]}
    (one,) = expanded(axes)
    (renamed,) = trials(Sweep(name="other", axes=axes), lambda axes: setup(cpus_per_worker=2, device="cuda"))
    (longer,) = expanded(axes, setup(identity={"config": "other"}))
    (spelled_out,) = expanded({**axes, "seed": [0], "gpus": [1.0], "lr_multiplier": [1]})
    assert one.trial_id == renamed.trial_id == spelled_out.trial_id != longer.trial_id
    # Another id would make every trial of a kept folder a new one.
    assert one.trial_id == "3f78c8b0f9f54e28"


def test_widening_an_axis_keeps_trial_ids():
    narrow = {trial.trial_id for trial in expanded(GRID)}
    wide = {trial.trial_id for trial in expanded({**GRID, "seed": [0, 1, 2], "device_batch_size": [16, 32, 64]})}
    assert narrow < wide and len(wide) == 36


def test_lars_rule_changes_the_optimizer_config():
    (trial,) = expanded({"device_batch_size": [64], "lr_rule": ["lars"]})
    assert trial.config["optimizer"] == {"name": "lars"} and trial.config["model"] == {"name": "cnn"}


def test_each_setup_is_tried_once_and_all_errors_reported():
    asked = []

    def setup_of(axes):
        asked.append(axes["model"])
        if axes["model"] != "c":
            raise ConfigError(["no a"]) if axes["model"] == "a" else ValueError("no b")
        return setup()

    with pytest.raises(ConfigError) as error:
        trials(Sweep(name="s", axes={**GRID, "model": ["a", "b", "c"], "lr_multiplier": [1, -1]}), setup_of)
    assert asked == ["a", "b", "c"]
    first, second, third = error.value.errors
    assert (first, second) == ("no a", "no b") and third.startswith("lr_multiplier")


def test_setup_is_built_once_for_each_config():
    asked = []

    def setup_of(axes):
        asked.append(axes)
        return setup(identity=axes)

    expansion = trials(Sweep(name="s", axes={**GRID, "budget.epochs": [1, 2], "model": ["a", "b"]}), setup_of)
    assert len(expansion) == 64 == len({trial.trial_id for trial in expansion}) and len(asked) == 4


WRONG_GRID = {"gpus": [0, 2], "device_batch_size": [0, 32, 32], "lr_rule": ["linaer", "adam_sqrt"], "seed": ["x"]}


@pytest.mark.parametrize(
    ("name", "axes", "reference_lr"),
    [
        ("grid", WRONG_GRID | {"lr_multiplier": [-1]}, -0.1),
        ("axis_values", {"gpus": [], "device_batch_size": [32, math.inf, 0], "seed": [0, 0]}, 0.1),
    ],
)
def test_all_errors_of_a_grid_are_reported(golden, name, axes, reference_lr):
    with pytest.raises(ConfigError) as caught:
        expanded(axes, setup(reference_lr=reference_lr))
    golden(f"errors/{name}.txt", "".join(f"{line}\n" for line in caught.value.errors))


@pytest.mark.parametrize(
    "grid",
    [
        {"zip": [["gpus", "global_batch_size"]], "exclude": [{"gpus": 3}]},
        {"zip": [["gpus", "global_batch_size"], ["seed", "none"]]},
        {"zip": [["global_batch_size", "gpus", "seed"]]},
        {"zip": [["global_batch_size", "gpus"], ["gpus", "global_batch_size"]]},
        {"exclude": [{"gpus": 2, "global_batch_size": 1}, {"gpus": 4, "global_batch_size": [1, 2]}, {"sed": 1}]},
    ],
)
def test_only_combinations_of_the_grid_are_checked_beside_an_error_of_its_axes(grid):
    with pytest.raises(ConfigError) as caught:
        expanded({"gpus": [1, 2, 4], "global_batch_size": [1, 2, 4], "seed": [0, 1]}, **grid)
    assert all(error.startswith("sweep.") for error in caught.value.errors)


def test_a_reference_batch_may_be_one_sample():
    (trial,) = expanded({"device_batch_size": [4], "lr_rule": ["linear"]}, setup(reference_batch_size=1))
    assert trial.lr.value == pytest.approx(0.4)


def test_a_side_of_the_batch_must_be_given_and_both_must_agree():
    axes = {"gpus": [2], "device_batch_size": [32], "global_batch_size": [64]}
    assert expanded(axes)[0].batch.global_batch_size == 64
    with pytest.raises(ConfigError, match="64.*global_batch_size=32"):
        expanded({**axes, "global_batch_size": [32]})
    with pytest.raises(ConfigError, match="device_batch_size or .*global_batch_size"):
        expanded({"gpus": [1]})


@pytest.mark.parametrize(
    ("strategy", "batch", "ranks", "shares", "lr"),
    [
        ("data_parallel", {"device_batch_size": [32]}, 1, (128,), 0.4),  # a device batch for each of its GPUs
        ("ddp_unequal", {"global_batch_size": [33]}, 4, (9, 8, 8, 8), 0.1 * 33 / 32),
        ("independent", {"device_batch_size": [64]}, 4, (64,) * 4, 0.2),  # each model has its rate
    ],
)
def test_a_strategy_decides_on_ranks_shares_and_rate(strategy, batch, ranks, shares, lr):
    (trial,) = expanded({"gpus": [4], **batch, "lr_rule": ["linear"]}, setup(strategy=strategy, device="cuda"))
    assert (trial.layout.strategy, trial.gang.ranks, trial.batch.shares) == (strategy, ranks, shares)
    assert (trial.batch.global_batch_size, trial.gang.gpus_per_rank) == (sum(shares), 4 / ranks)
    assert trial.lr.value == pytest.approx(lr)
    assert strategy != "data_parallel" or trial.batch.device_batch_size == 32


def test_a_huge_grid_is_an_error_and_not_expanded():
    axes = {"gpus": [1, 2], "device_batch_size": [32], "seed": range(60_000)}
    with pytest.raises(ConfigError) as caught:
        trials(Sweep(name="s", axes=axes), lambda point: pytest.fail("expanded"))
    (error,) = caught.value.errors
    assert "120,000" in error and "2 gpus × 60,000 seed" in error and "100,000" in error


def test_device_batch_times_ranks_times_accumulation_is_the_global_batch():
    batch = multiply_device(32, ranks=4, grad_accum_steps=3)
    assert (batch.global_batch_size, batch.shares, batch.device_batch_size) == (384, (32, 32, 32, 32), 32)


def test_rank_has_one_device_batch_per_device():
    batch = multiply_device(32, ranks=1, parts_per_rank=4)
    assert (batch.global_batch_size, batch.shares, batch.device_batch_size) == (128, (128,), 32)
    assert divide_global(130, 1, parts_per_rank=4).device_batch_size == 33
    assert divide_global(130, 1).device_batch_size == multiply_device(130, 1).device_batch_size == 130


def test_an_uneven_batch_is_refused_unless_asked_for():
    assert divide_global(10, 4, uneven=True).shares == (3, 3, 2, 2)
    for asked, match in (
        ({"global_batch_size": 10, "ranks": 4}, "global_batch_size=10 .*4 ranks"),
        ({"global_batch_size": 3, "ranks": 4, "uneven": True}, "global_batch_size=3 .*4 ranks"),
        ({"global_batch_size": 64, "ranks": 2, "grad_accum_steps": 3, "uneven": True}, "=64 .*grad_accum_steps=3"),
        *(({"global_batch_size": size, "ranks": 1}, "_batch_size must be") for size in (0, -1, 1.5, True, "32")),
    ):
        with pytest.raises(ValueError, match=match):
            divide_global(**asked)
    with pytest.raises(ValueError, match="_batch_size must be"):
        multiply_device(0, 1)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 1000))
def test_shares_add_up_and_differ_by_one_at_most(ranks, accumulate, extra):
    size = (ranks + extra) * accumulate
    batch = divide_global(size, ranks, grad_accum_steps=accumulate, uneven=True)
    assert sum(batch.shares) * accumulate == size
    assert max(batch.shares) - min(batch.shares) <= 1
    assert list(batch.shares) == sorted(batch.shares, reverse=True)


def made(gpus, strategy="auto", device="cuda", nodes=None, cpus=None):
    asked = setup(strategy=strategy, device=device, nodes=nodes, cpus_per_worker=cpus, cores_per_gpu=16)
    return gang_of(gpus, asked)


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus_a_rank", "cores"),
    [
        ({"gpus": 1}, 1, 1, 16),
        ({"gpus": 4}, 4, 1, 16),
        ({"gpus": 0.25}, 1, 0.25, 4),
        ({"gpus": 4, "strategy": "data_parallel"}, 1, 4, 64),
        ({"gpus": 2, "device": "cpu"}, 2, 0, 1),
        ({"gpus": 2, "device": "cpu", "cpus": 3}, 2, 0, 3),
        ({"gpus": 4, "strategy": "own_ranks"}, 1, 4, 64),
        ({"gpus": 0.5, "strategy": "own_ranks"}, 1, 0.5, 8),
        ({"gpus": 3, "strategy": "own_ranks", "device": "cpu", "cpus": 2}, 1, 0, 6),  # those of its processes
        ({"gpus": 8, "strategy": "own_ranks", "nodes": 2}, 2, 4, 64),
        ({"gpus": 8, "strategy": "fsdp", "nodes": 2}, 8, 1, 16),
    ],
)
def test_gpus_are_ranks_times_gpus_a_rank(asked, ranks, gpus_a_rank, cores):
    held = made(**asked)
    assert (held.ranks, held.gpus_per_rank, held.cpus_per_rank) == (ranks, gpus_a_rank, cores)


@pytest.mark.parametrize(
    ("asked", "ranks_per_node"),
    [
        ({"gpus": 8, "strategy": "own_ranks", "nodes": 2}, 1),
        ({"gpus": 8, "strategy": "own_ranks", "nodes": 4, "device": "cpu"}, 1),
        ({"gpus": 8, "nodes": 2}, 4),
        ({"gpus": 1, "nodes": 1}, 1),
        ({"gpus": 0.5, "nodes": 1}, 1),
        ({"gpus": 8, "strategy": "own_ranks", "nodes": 3}, None),
        ({"gpus": 2, "strategy": "own_ranks", "nodes": 4, "device": "cpu"}, None),
        ({"gpus": 6, "nodes": 4}, None),
        ({"gpus": 4, "strategy": "data_parallel", "nodes": 2}, None),
        ({"gpus": 0.5, "nodes": 2}, None),
    ],
)
def test_nodes_have_equal_parts_of_a_gang_or_none(asked, ranks_per_node):
    held = made(**asked)
    assert held.is_divisible == (ranks_per_node is not None)
    assert ranks_per_node in (None, held.ranks_per_node)


@pytest.mark.parametrize(
    ("gpus", "sizes", "nodes"),
    [
        (4, (8, 8), 1),
        (16, (8, 8), 2),
        (12, (8, 8, 8), 2),
        (8, (3, 3, 3, 3), 4),
        (16, (8, 4), None),
        (6, (4, 2), None),
        (9, (8, 8), None),
        (4, (), None),
    ],
)
def test_gpus_are_spread_over_the_fewest_equal_nodes(gpus, sizes, nodes):
    assert least_nodes(gpus, sizes) == nodes


def test_only_commands_for_several_nodes_are_spread():
    axes = {"gpus": [2, 8], "device_batch_size": [16]}
    spread, whole = ({"strategy": "own_ranks", "device": "cuda", "node_sizes": sizes} for sizes in ((4, 4), ()))
    assert [trial.gang.ranks for trial in expanded(axes, setup(**spread))] == [1, 2]
    assert [trial.gang.ranks for trial in expanded(axes, setup(**whole))] == [1, 1]


def test_a_command_over_nodes_has_the_batch_of_one_node():
    axes = {"gpus": [6], "device_batch_size": [16]}
    given = {"strategy": "own_ranks", "device": "cuda", "model_parallel": {"tensor_parallel": 2}}
    one, two = (expanded(axes, setup(nodes=nodes, **given))[0] for nodes in (1, 2))
    assert one.batch == two.batch and two.batch.data_parallel_size == 3
    assert (two.gang.ranks, two.layout.devices) == (2, 6)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"gpus": 0}, "above 0"),
        ({"gpus": -1}, "above 0"),
        ({"gpus": "two"}, "above 0"),
        ({"gpus": True}, "above 0"),
        ({"gpus": 1.5, "strategy": "data_parallel"}, r"gpus=1\.5"),
        ({"gpus": 0.5, "device": "cpu"}, r"gpus=0\.5"),
        ({"gpus": 0.5, "device": "cpu", "strategy": "own_ranks"}, r"gpus=0\.5"),
        ({"gpus": 2, "device": "cpu", "strategy": "data_parallel"}, "strategy=data_parallel"),
        ({"gpus": 2, "strategy": "single"}, "strategy=single"),
    ],
)
def test_an_impossible_gang_is_refused(asked, match):
    with pytest.raises(ValueError, match=match):
        made(**asked)


def test_model_parallelism_divides_the_replicas_of_a_batch():
    """8 GPUs with 2 × 2 of them per replica are 2 replicas: 2 × 16 × 4 samples, where 8 replicas had 512."""
    parallel = {"tensor_parallel": 2, "context_parallel": 1, "pipeline_parallel": 2}
    given = setup(strategy="own_ranks", device="cuda", grad_accum_steps=4, model_parallel=parallel)
    (by_device,) = expanded({"gpus": [8], "device_batch_size": [16], "lr_rule": ["linear"]}, given)
    assert by_device.batch.global_batch_size == 128 and by_device.layout.devices == 8
    assert by_device.batch.device_batch_size == 16 and by_device.layout.tensor == 2
    assert by_device.lr.value == pytest.approx(0.1 * 128 / 32)
    (by_step,) = expanded({"gpus": [8], "global_batch_size": [128]}, given)
    assert by_step.batch == by_device.batch
    assert by_step.batch.data_parallel_size == 2 and by_step.batch.device_batch_size == 16


@pytest.mark.parametrize(
    ("strategy", "fsdp_size", "expected"), [("auto", None, ("fsdp", 1, 4)), ("fsdp_grad", 2, ("fsdp_grad", 2, 2))]
)
def test_divided_layers_are_combined_with_shards(strategy, fsdp_size, expected):
    given = setup(strategy=strategy, fsdp_size=fsdp_size, device="cuda", model_parallel={"tensor_parallel": 2})
    (trial,) = expanded({"gpus": [8], "global_batch_size": [32]}, given)
    assert (trial.layout.strategy, trial.layout.replicas, trial.layout.shards) == expected
    assert (trial.layout.tensor, trial.gang.ranks, trial.batch.shares) == (2, 8, (8,) * 4)


def test_layers_are_not_divided_across_nodes():
    given = setup(strategy="fsdp", nodes=4, device="cuda", model_parallel={"tensor_parallel": 2})
    with pytest.raises(ConfigError, match="nodes=4"):
        expanded({"gpus": [4], "global_batch_size": [32]}, given)


@pytest.mark.parametrize(
    ("gpus", "strategy", "message"), [(6, "own_ranks", "gpus=6 .*tensor_parallel=4 = 4"), (4, "ddp", "strategy=fsdp")]
)
def test_gpus_that_hold_no_whole_replicas_are_refused(gpus, strategy, message):
    given = setup(strategy=strategy, device="cuda", model_parallel={"tensor_parallel": 4})
    with pytest.raises(ConfigError, match=message):
        expanded({"gpus": [gpus], "device_batch_size": [16]}, given)
