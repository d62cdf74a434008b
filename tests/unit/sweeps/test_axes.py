from hypothesis import given
from hypothesis import strategies as st

from sweeps.axes import axes_errors, distinct, points

AXES = {"gpus": [1, 2], "lr_rule": ["none", "linear"], "seed": [0, 1]}


def test_last_axis_varies_fastest():
    assert [tuple(point.values()) for point in points({"a": [1, 2], "b": ["x", "y"]})] == [
        (1, "x"),
        (1, "y"),
        (2, "x"),
        (2, "y"),
    ]


def test_zipped_axes_advance_together_and_keep_their_place():
    grid = points({"gpus": [1, 2], "seed": [0, 1], "global_batch_size": [128, 256]}, [["gpus", "global_batch_size"]])
    assert [tuple(point.values()) for point in grid] == [(1, 0, 128), (1, 1, 128), (2, 0, 256), (2, 1, 256)]
    assert list(grid[0]) == ["gpus", "seed", "global_batch_size"]


def test_exclude_drops_points_that_match_a_whole_entry():
    grid = points(AXES, exclude=[{"gpus": 2, "lr_rule": ["linear"]}, {"seed": 1, "gpus": 1}])
    assert [(p["gpus"], p["lr_rule"], p["seed"]) for p in grid] == [
        (1, "none", 0),
        (1, "linear", 0),
        (2, "none", 0),
        (2, "none", 1),
    ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_grid_is_the_product_without_repeats(lengths):
    axes = {f"axis{index}": list(range(length)) for index, length in enumerate(lengths)}
    grid = points(axes)
    product = 1
    for length in lengths:
        product *= length
    assert len(grid) == product == len({tuple(point.items()) for point in grid})


def test_an_entry_without_a_value_is_left_out_by_the_named_line():
    axes, kept = {"gpus": [2], "fsdp_size": [None, 2]}, {"gpus": 2, "fsdp_size": None}
    [error] = axes_errors(axes, [], [{"gpus": 1}, kept])
    assert "'sweep.exclude=[{gpus: 2, fsdp_size: null}]'" in error
    both = list(axes_errors(axes, [], [{"gpus": [1, 4], "fsdp_size": 3}, kept]))
    assert [line.partition(",")[0] for line in both] == [
        f"sweep.exclude has {value}" for value in ("gpus=1", "gpus=4", "fsdp_size=3")
    ]
    assert all("'sweep.exclude=[{gpus: 2, fsdp_size: null}]'" in line for line in both)


def test_all_errors_are_reported(golden):
    axes = {"a": [], "b": [1, 2, 2], "c": [1], "e": [3, 3]}
    errors = axes_errors(axes, [["b", "c"], ["b", "nope"]], [{"a": 1, "d": 2}])
    golden("errors/axes.txt", "".join(f"{line}\n" for line in errors))


def test_zipped_axes_have_no_joint_value_twice():
    axes = {"a": [1, 1, 2], "b": [3, 4, 3], "seed": [0, 1]}
    assert not list(axes_errors(axes, [["a", "b"]], []))
    assert [(point["a"], point["b"]) for point in points(axes, [["a", "b"]])[::2]] == [(1, 3), (1, 4), (2, 3)]
    again = {"a": [1, 1, 1], "b": [3, 4, 3]}
    (error,) = axes_errors(again, [["a", "b"]], [])
    assert "sweep.zip" in error and "a=1, b=3" in error


def test_valid_axes_have_no_errors():
    assert not list(axes_errors(AXES, [["gpus", "seed"]], [{"lr_rule": "none", "seed": [0, 1]}]))


def test_distinct_takes_unhashable_values():
    assert distinct([[1], [2], [1], {"a": 1}, {"a": 1}]) == [[1], [2], {"a": 1}]
