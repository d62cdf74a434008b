import logging
import math

import pytest
import torch

from tests.unit.trainables.ranks import rendezvous
from trainables import process_group
from trainables.context import Context
from trainables.step.precision import PRECISIONS, Precision
from trainables.supervised import flops
from trainables.supervised.flops import flops_per_sample, matrix_flops_per_s, nominal_peak


def test_flops_of_a_perceptron_by_hand():
    """Forward 2·in·out a layer, backward twice that, but for the first layer's inputs, which need no gradient."""
    model = {"name": "mlp", "hidden": [16]}
    first, second = 2 * 64 * 16, 2 * 16 * 10
    assert flops_per_sample(model, input_shape=(1, 8, 8), num_classes=10) == 2 * first + 3 * second


def test_flops_of_resnet18_match_papers():
    """0.56 GMAC a forward pass at 32×32."""
    flops = flops_per_sample({"name": "resnet18"}, input_shape=(3, 32, 32), num_classes=10)
    assert flops == pytest.approx(3 * 2 * 0.556e9, rel=0.02)


def test_uncountable_model_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        assert flops_per_sample({"name": f"{__name__}:hostile"}, input_shape=(1, 8, 8), num_classes=2) is None
    assert "mfu stays empty" in caplog.text


def hostile(**config):
    raise RuntimeError("no")


def test_smaller_matrices_are_used_without_memory(monkeypatch):
    def rate(size, device, dtype):
        if size > 2048:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return float(size)

    monkeypatch.setattr(flops, "_rate", rate)
    assert flops._measure_rate.__wrapped__("cuda:0", torch.float32, False, 1, 1) == 2048


def test_matrix_rate_is_measured_once():
    rate = matrix_flops_per_s("cpu", Precision(), ranks=1)
    assert 1e8 < rate < 1e15 and matrix_flops_per_s("cpu", Precision(), ranks=1) == rate


def count(rank, meet):
    process_group.join(Context.alone(rank=rank, world_size=2, rendezvous=meet, gang_id=meet))
    return flops_per_sample({"name": "resnet9", "batch_norm": "sync"}, input_shape=(3, 8, 8), num_classes=10)


def test_cloudhronised_batch_norm_is_counted_without_other_ranks(pair):
    meet = rendezvous()
    plain = flops_per_sample({"name": "resnet9"}, input_shape=(3, 8, 8), num_classes=10)
    assert pair.call(count, (0, meet), (1, meet)) == [plain, plain]


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "fp16", 756e12),
        ("NVIDIA H200", "tf32", 494e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("Tesla V100-SXM2-16GB", "tf32", math.nan),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("NVIDIA H1000", "bf16", math.nan),
    ],
)
def test_nominal_peak_of_a_gpu(name, precision, peak):
    assert nominal_peak(name, PRECISIONS[precision]) == pytest.approx(peak, nan_ok=True)
