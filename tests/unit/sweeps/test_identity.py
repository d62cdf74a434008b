import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.identity import LENGTH, digest, without

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, min_size=2, max_size=5))
def test_the_order_of_keys_does_not_matter(value):
    assert digest(value) == digest(dict(reversed(value.items())))


@given(JSON)
def test_a_digest_is_short_and_hexadecimal(value):
    assert len(digest(value)) == LENGTH and int(digest(value), 16) >= 0


def test_one_is_one_however_it_is_written():
    assert digest({"lr_multiplier": 1}) == digest({"lr_multiplier": 1.0})
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})


def test_values_that_differ_differ():
    different = [True, 1, "1", None, [1], {"1": 1}, 1.5, {}, []]
    assert len({digest(value) for value in different}) == len(different)


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        digest(float("nan"))


def test_ignored_keys_leave_no_trace_and_the_original_stays():
    config = {"data": {"name": "cifar10", "root": "/somewhere"}, "model": {"name": "cnn"}}
    assert without(config, ["data.root", "data.absent", "nowhere.at.all"]) == {
        "data": {"name": "cifar10"},
        "model": {"name": "cnn"},
    }
    assert config["data"]["root"] == "/somewhere"
