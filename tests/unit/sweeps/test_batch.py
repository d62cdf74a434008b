import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.batch import divide_global, multiply_device


def test_device_batch_times_ranks_times_accumulation_is_the_global_batch():
    batch = multiply_device(32, ranks=4, grad_accum_steps=3)
    assert (batch.global_batch_size, batch.shares, batch.device_batch_size) == (384, (32, 32, 32, 32), 32)


def test_a_rank_with_several_devices_takes_a_device_batch_for_each():
    batch = multiply_device(32, ranks=1, devices_per_rank=4)
    assert (batch.global_batch_size, batch.shares, batch.device_batch_size) == (128, (128,), 32)
    assert divide_global(130, 1, devices_per_rank=4).device_batch_size == 33
    assert divide_global(130, 1).device_batch_size == multiply_device(130, 1).device_batch_size == 130


def test_an_uneven_batch_is_refused_unless_asked_for():
    with pytest.raises(ValueError, match="global_batch_size=10 is not divisible by 4 ranks"):
        divide_global(10, 4)
    assert divide_global(10, 4, uneven=True).shares == (3, 3, 2, 2)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "32"])
def test_no_batch_size(size):
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        divide_global(size, 1)
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        multiply_device(size, 1)


def test_a_rank_without_a_sample_is_refused():
    with pytest.raises(ValueError, match="without a sample"):
        divide_global(3, 4, uneven=True)


def test_accumulation_divides_the_global_batch():
    with pytest.raises(ValueError, match="is not divisible by grad_accum_steps=3"):
        divide_global(64, 2, grad_accum_steps=3, uneven=True)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 1000))
def test_shares_add_up_and_differ_by_one_at_most(ranks, accumulate, extra):
    size = (ranks + extra) * accumulate
    batch = divide_global(size, ranks, grad_accum_steps=accumulate, uneven=True)
    assert sum(batch.shares) * accumulate == size
    assert max(batch.shares) - min(batch.shares) <= 1
    assert list(batch.shares) == sorted(batch.shares, reverse=True)
