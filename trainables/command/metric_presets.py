"""How the output of well-known programs is read, by their own sources: `trainable.metrics=timm` names one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"([0-9.eE+-]+)"
_TITAN_STEP = r"(?<!validate )step: +\d+ "


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one program's output is read; its times count only if the hook has counted no steps, as in a container."""

    metrics: Mapping[str, Any]
    epoch_pattern: str | None = None
    step_pattern: str | None = None


PRESETS: Mapping[str, Preset] = {
    # huggingface/pytorch-image-models, train.py: train_one_epoch and validate
    # Times are the means since the epoch began; the accuracy of the last line is that of the epoch.
    "timm": Preset(
        metrics={
            "loss": rf"^Train: .*Loss: +\S+ +\({_NUMBER}\)",
            "step_s": rf"^Train: .*Time: [0-9.]+s,.*\({_NUMBER}s,",
            "samples_per_s": r"^Train: .*\([0-9.]+s, +([0-9.]+)/s\)",
            "val_accuracy": {"regex": rf"^Test: .*Acc@1: +\S+ +\( *{_NUMBER}\)", "scale": 0.01},
            "val_loss": rf"^Test: .*Loss: +\S+ +\( *{_NUMBER}\)",
        },
        epoch_pattern=r"^Train: (\d+) \[",
        step_pattern=r"^Train: \d+ \[ *(\d+)/",
    ),
    # karpathy/nanoGPT, train.py
    # A step at which the script evaluates has the evaluation's time; the median leaves it out. Its MFU is an A100's.
    "nanogpt": Preset(
        metrics={
            "loss": rf"^iter \d+: loss {_NUMBER}",
            "val_loss": rf"^step \d+: .*val loss {_NUMBER}",
            "step_s": {"regex": rf"^iter \d+: .*time {_NUMBER}ms", "scale": 1e-3},
        },
        step_pattern=r"^iter (\d+):",
    ),
    # Lightning-AI/litgpt, litgpt/pretrain.py and litgpt/finetune/*.py
    # With gradient accumulation the printed time is only the last pass.
    "litgpt": Preset(
        metrics={
            "loss": rf"loss train: {_NUMBER}",
            "val_loss": rf"val(?: loss)?:? {_NUMBER}",
            "step_s": {"regex": rf"iter time: {_NUMBER} ms \(step\)", "scale": 1e-3},
        },
        epoch_pattern=r"^Epoch (\d+) \|",
        step_pattern=r"^Epoch \d+ \| iter \d+ step (\d+)",
    ),
    # ultralytics/ultralytics: engine/trainer.py and models/yolo/detect/val.py
    # The accuracy is mAP50-95, or that of the likeliest class.
    "ultralytics": Preset(
        metrics={"val_accuracy": rf"^ +all(?: +\d+ +\d+ +\S+ +\S+ +\S+)? +{_NUMBER}", "step_s": "tqdm"},
        epoch_pattern=r"^ *(\d+)/\d+ +[0-9.]+G ",
    ),
    # mlfoundations/open_clip, src/open_clip_train/train.py
    "open_clip": Preset(
        metrics={
            "loss": rf"Train Epoch: .* Loss: \S+ \({_NUMBER}\)",
            "samples_per_s": rf"Train Epoch: .*Batch \(t\): [0-9.]+, {_NUMBER}/s",
            "step_s": rf"Train Epoch: .*Batch \(t\): {_NUMBER},",
            "val_accuracy": rf"Eval Epoch: .*imagenet-zeroshot-val-top1: {_NUMBER}",
            "val_loss": rf"Eval Epoch: .*clip_val_loss: {_NUMBER}",
        },
        epoch_pattern=r"Train Epoch: (\d+) \[",
    ),
    # pytorch/torchtitan, torchtitan/components/metrics.py: tokens per second count one device
    "torchtitan": Preset(
        metrics={
            "loss": rf"{_TITAN_STEP}.*\bloss: +{_NUMBER}",
            "peak_memory_gb": rf"{_TITAN_STEP}.*memory: +{_NUMBER}GiB",
            "tokens_per_s_per_gpu": rf"{_TITAN_STEP}.*tps: +([0-9,]+)",
            "mfu": {"regex": rf"step: .*mfu: +{_NUMBER}%", "scale": 0.01},
            "val_loss": rf"validate step: .*loss: +{_NUMBER}",
        },
        step_pattern=r"(?<!validate )step: +(\d+)",
    ),
    # huggingface/nanotron, src/nanotron/trainer.py: numbers such as 4.1K
    "nanotron": Preset(
        metrics={
            "loss": r"iteration: .*lm_loss: ([0-9.]+[KMB]?)",
            "step_s": {"regex": r"(?:elapsed_)?time_per_iteration_ms: ([0-9.]+[KMB]?)", "scale": 1e-3},
            "tokens_per_s": r"tokens_per_sec: ([0-9.]+[KMB]?)",
        },
        step_pattern=r"iteration: (\d+) /",
    ),
    # mosaicml/llm-foundry, by mosaicml/composer, composer/loggers/console_logger.py
    "llm-foundry": Preset(
        metrics={
            "loss": rf"Train loss/train/total: {_NUMBER}",
            "samples_per_s": rf"Train throughput/samples_per_sec: {_NUMBER}",
            "tokens_per_s": rf"Train throughput/tokens_per_sec: {_NUMBER}",
            "val_loss": rf"Eval metrics/eval/LanguageCrossEntropy: {_NUMBER}",
        },
        step_pattern=r"\[batch=(\d+)/",
    ),
}
