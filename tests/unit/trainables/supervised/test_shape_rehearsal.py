"""A rehearsal from shapes: memory and time by hand, and the figures of a whole trial."""

import pytest
import torch
from torch import nn

from sweeps.gpus import GPUS, SHAPES_OF
from sweeps.trial import ALONE
from tests.unit.trainables.ranks import request, run
from tests.unit.trainables.supervised.test_rehearsal import FIGURES
from trainables import process_group
from trainables.supervised.shape_rehearsal import SHARES, WORKSPACES, Meter, autocast_of_gpus, share_of
from trainables.torch_private import fake_tensors

MIB = 2**20
H100 = GPUS["H100"]
PARTS = {f"{part}_gb" for part in ("setup", "passes", "update", "evaluation", "parameters", "gradients", "optimizer")}
PARAMETERS_GB = 1210 * 4 / 2**30


@pytest.fixture(autouse=True)
def leave():
    yield
    process_group.leave()


def rehearsed(device="NVIDIA H100 80GB HBM3", **asked):
    config = asked.pop("config", {}) | {SHAPES_OF: device}
    whole = request(
        "trainables.supervised.shape_rehearsal:rehearse", config=config, rendezvous=ALONE, gang_id=ALONE, **asked
    )
    return run(whole)


def test_memory_and_time_of_a_layer_by_hand():
    meter = Meter(H100, has_tf32=True)

    def peak_mib():
        return (meter.take_gb() * 2**30 - WORKSPACES) / MIB

    with fake_tensors() as meter.fake, meter:
        weight = torch.zeros(1024, 256, requires_grad=True)  # 1 MiB
        inputs = torch.zeros(512, 256)  # 0.5 MiB
        seconds, launches = meter.seconds, meter.launches
        hidden = inputs @ weight.t()  # 2 MiB
        assert meter.launches == launches + 1
        share = SHARES["^(add|b|baddb)?mm$"]
        flops_s = 2 * 512 * 256 * 1024 / (share.flops * H100.tf32)
        bytes_s = 3.5 * MIB / (share.bytes * H100.bytes_per_s)
        assert meter.seconds - seconds == pytest.approx(max(flops_s, bytes_s))
        outputs = hidden.relu()  # 2 MiB, kept for the backward pass
        assert peak_mib() == 5.5
        del hidden
        assert peak_mib() == 5.5 and peak_mib() == 3.5  # the first peak began before `hidden` was freed
        # The gradient of the outputs, that of `hidden` and that of the weight: 2 + 2 + 1 MiB.
        outputs.backward(torch.ones_like(outputs))
        assert peak_mib() == 8.5
        del outputs
        peak_mib()
        assert peak_mib() == 2.5  # the weight, its gradient and the inputs


IMAGES = torch.zeros(2, 3, 4, 4)
LAST = IMAGES.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "tensor", "share"),
    [
        ("mm", torch.zeros(2, 2), (0.77, 0.85)),
        ("addmm", torch.zeros(2, 2), (0.77, 0.85)),
        ("_scaled_dot_product_flash_attention_for_cpu", torch.zeros(1, 1, 2, 2), (0.63, 0.85)),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", torch.zeros(1, 1, 2, 2), (0.45, 0.85)),
        ("convolution", IMAGES, (0.53, 0.4)),
        ("convolution", LAST, (0.53, 0.8)),
        ("convolution_backward", IMAGES, (0.51, 0.25)),
        ("convolution_backward", LAST, (0.51, 0.8)),
        ("native_batch_norm", LAST, (1.0, 0.21)),
        ("native_batch_norm_backward", LAST, (1.0, 0.35)),
        ("_log_softmax_backward_data", torch.zeros(2, 2), (1.0, 0.9)),
        ("_fused_adamw_", torch.zeros(2), (1.0, 0.46)),
        ("add", LAST, (0.7, 0.7)),
    ],
)
def test_kinds_of_operations_have_shares(name, tensor, share):
    assert share_of(name, [tensor]) == share


def test_storages_that_sharding_empties_do_not_count():
    meter = Meter(H100, has_tf32=True)
    with fake_tensors() as meter.fake, meter:
        whole = torch.zeros(MIB)
        meter.take_gb()
        whole.untyped_storage().resize_(0)
        meter.take_gb()
        assert meter.take_gb() * 2**30 == WORKSPACES


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)])
def test_autocast_computes_norms_as_on_gpus(norm):
    half = torch.randn(4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16), autocast_of_gpus():
        assert norm(half).dtype == torch.float32
        assert nn.functional.softmax(half, dim=-1).dtype == torch.float32
        assert nn.functional.gelu(half).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("strategy", "ranks", "shards"), [("single", 1, 1), ("ddp", 2, 1), ("fsdp", 2, 2), ("fsdp_grad", 2, 2)]
)
def test_a_trial_in_any_layout_has_the_figures_of_a_rehearsal(strategy, ranks, shards):
    answer = rehearsed(shares=(32,) * ranks, strategy=strategy)
    assert answer["status"] == "ok", answer["trace"]
    figures = answer["metrics"]
    assert set(figures) == FIGURES | PARTS | {"device_gb", "device_name"}
    assert figures["n_params"] == 1210 and figures["device_gb"] == H100.memory_gb
    for part in ("parameters_gb", "gradients_gb", "optimizer_gb"):
        assert figures[part] == pytest.approx(PARAMETERS_GB / shards, rel=0.1), part
    beside_gb = WORKSPACES / 2**30
    assert figures["passes_gb"] > figures["setup_gb"] > beside_gb + figures["parameters_gb"]
    assert 0 < figures["device_step_s"] < figures["step_s"] and figures["validation_s"] > 0


def test_a_gpu_without_tf32_has_times():
    assert rehearsed("Tesla T4", config={"trainable": {"precision": "fp16"}})["metrics"]["step_s"] > 0


def test_settings_that_a_cpu_lacks_are_replaced():
    answer = rehearsed(config={"trainable": {"precision": "fp16", "compile": "default", "cuda_graph": "on"}})
    assert answer["status"] == "ok", answer["trace"]
    assert answer["metrics"]["step_s"] == answer["metrics"]["device_step_s"]  # nothing is launched


def test_an_unknown_gpu_is_refused():
    assert rehearsed("NVIDIA H1000")["status"] == "failed"
