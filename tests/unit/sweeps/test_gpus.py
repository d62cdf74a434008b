"""Known GPUs by their names."""

import pytest

from sweeps.gpus import GPUS, gpu_named, name_errors


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A40", "A40"),
    ],
)
def test_the_longest_part_of_a_name_counts(name, known):
    assert gpu_named(name) == gpu_named(name.lower()) == GPUS[known]
    assert list(name_errors(name)) == []


@pytest.mark.parametrize("name", ["NVIDIA H1000", "", 100])
def test_an_unknown_gpu_is_refused_with_the_known_ones(name):
    [error] = name_errors(name)
    assert all(known in error for known in GPUS)


def test_no_gpu_need_be_named():
    assert list(name_errors(None)) == []
