import itertools
from typing import Any

import pytest
import torch

from studies.conv2d import Settings, margins, scipy_call, torch_call
from tests.unit.trainables.ranks import fields_of, request, run, run_two
from trainables import rank

SETTINGS: dict[str, Any] = {"side": 12, "window_s": 0.0, "window_steps": 2, "warmup_steps": 1, "warmup_s": 0.0}


def asked(**settings):
    return {"trainable": "studies.conv2d:train", "config": {"trainable": SETTINGS | settings}}


def convolved(images, weight):
    """Compute the definition term by term: output (i, j) is centred on image (i, j)."""
    size = weight.shape[-1]
    before = margins(size)[0]
    outputs = torch.zeros(len(images), 1, *images.shape[2:])
    for n, i, j, di, dj in itertools.product(*map(range, (len(images), *images.shape[2:], size, size))):
        row, column = i + di - before, j + dj - before
        if 0 <= row < images.shape[2] and 0 <= column < images.shape[3]:
            outputs[n, 0, i, j] += (images[n, :, row, column] * weight[0, :, di, dj]).sum()
    return outputs


@pytest.mark.parametrize(("channels", "filter_size"), [(1, 3), (2, 3), (2, 4)])
def test_both_libraries_agree_with_the_definition(channels, filter_size):
    images, weight = torch.rand(2, channels, 6, 5), torch.rand(1, channels, filter_size, filter_size)
    expected = convolved(images, weight)
    for timed in ("whole", "compute"):
        for call in (torch_call(images, weight, timed=timed, devices=["cpu"]), scipy_call(images, weight, timed=timed)):
            torch.testing.assert_close(torch.cat(list(call())), expected)


@pytest.mark.parametrize(("size", "zeros"), [(1, (0, 0)), (3, (1, 1)), (10, (4, 5))])
def test_padding_is_as_in_tensorflow(size, zeros):
    assert margins(size) == zeros


@pytest.mark.parametrize("library", ["torch", "scipy"])
def test_first_and_warm_calls_are_timed(library):
    answer = run(request(**asked(library=library, channels=2), shares=(8,)))
    assert (answer["status"], answer["note"]) == ("ok", ""), answer["trace"]
    figures = answer["metrics"]
    assert figures["first_epoch_s"] == figures["train_s"] > 0
    assert figures["samples_per_s"] == pytest.approx(8 / figures["epoch_s"])
    assert figures["window_steps"] >= 2


def test_phases_are_reported():
    phases: list[str] = []
    answer = fields_of(rank.run(request(**asked(), shares=(2,)), lambda row: None, lambda: False, phases.append))
    assert answer["status"] == "ok" and [phase for phase in phases if phase != "reported"] == [
        *("training", "", "warmup", "", "window", "")
    ]


@pytest.mark.slow
def test_ranks_divide_the_batch(pair):
    answers = run_two(pair, **asked(), shares=(6, 2))
    assert answers[0]["metrics"] == answers[1]["metrics"] and answers[0]["metrics"]["samples"] == 8


@pytest.mark.parametrize("library", ["torch", "scipy"])
def test_copies_are_refused_on_a_cpu(library):
    answer = run(request(**asked(library=library, timed="copy_in")))
    assert answer["status"] == "failed" and "timed=copy_in" in answer["note"]


@pytest.mark.parametrize("wrong", [{"library": "tensorflow"}, {"timed": "all"}, {"side": 0}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("gpus", range(1, 3))
def test_gpus_convolve_as_the_cpu_does(gpus, pin_memory):
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    devices = [f"cuda:{index}" for index in range(gpus)]
    images, weight = torch.rand(9, 2, 12, 12), torch.rand(1, 2, 10, 10)
    [expected] = torch_call(images, weight, timed="whole", devices=["cpu"])()
    for timed in ("whole", "compute", "copy_out"):
        parts = torch_call(images, weight, timed=timed, devices=devices, pin_memory=pin_memory)()
        torch.testing.assert_close(torch.cat([part.cpu() for part in parts]), expected, rtol=1e-3, atol=1e-3)
    copied = torch_call(images, weight, timed="copy_in", devices=devices, pin_memory=pin_memory)()
    assert torch.equal(torch.cat([part.cpu() for part in copied]), images)
