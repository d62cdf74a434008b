# ruff: noqa: E501
"""Lines in the formats of well-known programs, whose sources `presets.py` names, with made-up numbers."""

from typing import Any

import pytest

from trainables.command.check import errors
from trainables.command.metrics import CommandMetrics
from trainables.command.presets import PRESETS
from trainables.command.settings import CommandSettings

LINES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "timm": (
        [
            "Train: 0 [   0/62 (  0%)]  Loss: 2.37 (2.37)  Time: 1.024s,   31.24/s  (1.024s,   31.24/s)  LR: 1.000e-05  Data: 0.5 (0.5)",
            "Train: 0 [  50/62 ( 81%)]  Loss: 2.10 (2.22)  Time: 0.250s,  128.00/s  (0.265s,  120.64/s)  LR: 1.000e-05  Data: 0.01 (0.02)",
            "Test: [   0/3]  Time: 0.432 (0.432)  Loss:   2.124 ( 2.124)  Acc@1:  21.875 ( 21.875)  Acc@5:  68.750 ( 68.750)",
            "Test: [   3/3]  Time: 0.132 (0.212)  Loss:   2.104 ( 2.101)  Acc@1:  31.250 ( 25.500)  Acc@5:  70.000 ( 69.000)",
        ],
        {"loss": 2.22, "val_accuracy": 0.255, "val_loss": 2.101, "samples_per_s": 120.64, "window_steps": 50},
    ),
    "nanogpt": (
        [
            "step 0: train loss 4.2874, val loss 4.2823",
            "iter 0: loss 4.2644, time 23910.11ms, mfu -100.00%",
            "iter 10: loss 3.2318, time 12.50ms, mfu 12.50%",
            "iter 20: loss 2.8021, time 13.50ms, mfu 12.40%",
        ],
        {"loss": 2.8021, "val_loss": 4.2823, "step_s": 0.013, "window_steps": 20},
    ),
    "litgpt": (
        [
            "Epoch 1 | iter 1 step 1 | loss train: 6.912, val: n/a | iter time: 310.12 ms (step) remaining time: 0:01:10",
            "Epoch 1 | iter 2 step 2 | loss train: 6.800, val: 6.701 | iter time: 102.50 ms (step) remaining time: 0:01:00",
        ],
        {"loss": 6.8, "val_loss": 6.701, "step_s": 0.1025},
    ),
    "ultralytics": (
        [
            "        1/3         0G      1.192      1.485      1.258         15        640: 0% ──────────── 0/8  0.1s",
            "        1/3         0G      1.192      1.485      1.258         15        640: 12% ━─────────── 1/8 1.3s/it 1.3s<9.1s",
            "        1/3         0G      1.192      1.485      1.258         15        640: 100% ━━━━━━━━━━━━ 8/8 1.3s/it 10.1s",
            "                   all        128        929      0.672      0.521      0.604      0.447",
        ],
        {"val_accuracy": 0.447},
    ),
    "open_clip": (
        [
            "2026-01-01,10:00:00 | INFO | Train Epoch: 0 [  64/1000 (6%)] Data (t): 0.100 Batch (t): 0.900, 71.1111/s, 71.1111/s/gpu LR: 0.000010 Logit Scale: 14.286 Contrastive_loss: 4.1 (4.1) Loss: 4.1 (4.1)",
            "2026-01-01,10:00:09 | INFO | Train Epoch: 0 [ 640/1000 (64%)] Data (t): 0.010 Batch (t): 0.500, 128.000/s, 128.000/s/gpu LR: 0.000020 Logit Scale: 14.286 Contrastive_loss: 3.9 (4.0) Loss: 3.9 (4.0)",
            "2026-01-01,10:00:20 | INFO | Eval Epoch: 1 imagenet-zeroshot-val-top1: 0.1234\timagenet-zeroshot-val-top5: 0.3210",
        ],
        {"loss": 4.0, "samples_per_s": 128.0, "val_accuracy": 0.1234},
    ),
    "torchtitan": (
        [
            "[rank0]:[titan] 2026-01-01 10:00:00 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[33mmemory:  1.30GiB(3.28%)  \x1b[34mtps: 1,234  \x1b[36mtflops: 0.10  \x1b[35mmfu: 0.03%\x1b[39m",
            "[rank0]:[titan] 2026-01-01 10:00:05 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  4.9503  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[33mmemory:  1.35GiB(3.40%)  \x1b[34mtps: 45,678  \x1b[36mtflops: 3.30  \x1b[35mmfu: 1.06%\x1b[39m",
            "[rank0]:[titan] 2026-01-01 10:00:06 - root - INFO - \x1b[38;2;180;60;0mvalidate step: 10  \x1b[32mloss:  4.5012  \x1b[33mmemory:  1.45GiB(3.66%)  \x1b[34mtps: 99,999\x1b[39m",
        ],
        {"loss": 4.9503, "peak_memory_gb": 1.35, "tokens_per_s_per_gpu": 45678, "mfu": 0.0106, "val_loss": 4.5012},
    ),
    "nanotron": (
        [
            "01/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 15 | consumed_tokens: 4.1K | elapsed_time_per_iteration_ms: 2.2K | tokens_per_sec: 1.86K | tokens_per_sec_per_gpu: 931 | global_batch_size: 16 | lm_loss: 5.58 | lr: 0.00015",
            "01/01/2026 10:00:01 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 15 | consumed_tokens: 8.2K | time_per_iteration_ms: 125 | tokens_per_sec: 32.8K | tokens_per_sec_per_gpu: 16.4K | global_batch_size: 16 | lm_loss: 5.5 | lr: 0.0003",
        ],
        {"loss": 5.5, "step_s": 0.125, "tokens_per_s": 32800},
    ),
    "llm-foundry": (
        [
            "[batch=1/10]:",
            "\t Train loss/train/total: 11.7000",
            "[batch=5/10]:",
            "\t Train loss/train/total: 10.5000",
            "\t Train throughput/samples_per_sec: 12.5000",
            "\t Train throughput/tokens_per_sec: 1600.0000",
            "\t Eval metrics/eval/LanguageCrossEntropy: 10.1000",
        ],
        {"loss": 10.5, "samples_per_s": 12.5, "tokens_per_s": 1600.0, "val_loss": 10.1},
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_read_their_programs(name: str) -> None:
    lines, expected = LINES[name]
    reader = CommandMetrics(CommandSettings.of({"argv": "x", "metrics": name}))
    for line in lines:
        reader.line(line)
    figures = reader.figures()
    assert {key: figures.get(key) for key in expected} == pytest.approx(expected)


def test_ultralytics_classifiers_have_the_accuracy_of_the_likeliest_class() -> None:
    reader = CommandMetrics(CommandSettings.of({"argv": "x", "metrics": "ultralytics"}))
    reader.line("                   all      0.531          1")
    assert reader.figures()["val_accuracy"] == 0.531


def test_users_pattern_precedes_the_presets() -> None:
    settings = CommandSettings.of({"argv": "x", "metrics": "timm", "epoch_pattern": "mine", "step_pattern": None})
    assert settings.epoch_pattern == "mine" and settings.step_pattern == PRESETS["timm"].step_pattern


def test_an_unknown_preset_is_an_error() -> None:
    assert any("llm-foundry" in error for error in errors({"trainable": {"argv": "true", "metrics": "tim"}}))
