"""The `trainable` section of the config, as `trainables.supervised.training` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

CHOICES = {
    "precision": ("fp32", "tf32", "bf16", "fp16", "fp64"),
    "compile": ("off", "default", "max-autotune"),
    "cuda_graph": ("off", "on"),
    "micro_batch": ("off", "auto"),
    "memory_format": ("contiguous", "channels_last"),
    "input": ("resident", "loader", "shared_loader", "same_batch"),
    "exchange": ("full", "bf16"),
    "checkpoint": ("off", "epochs"),
}

LEAST = {
    "eval_batch_size": 1,
    "window_steps": 1,
    "window_s": 0,
    "warmup_steps": 0,
    "warmup_s": 0,
    "checkpoint_every_s": 0,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train, evaluate and time. Raises ValueError naming the valid choices."""

    precision: str = "fp32"
    """fp32, tf32, bf16, fp16 or fp64: see `trainables.step.precision`."""
    input: str = "resident"
    """resident: the training set lies on the device and is augmented there; loader: every rank has worker processes
    that load and augment; shared_loader: rank 0 alone has them, and feeds the others; same_batch: and all ranks the
    same samples."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Of the loaders: see `trainables.inputs.loader_inputs.Workers`."""
    slow_down: Mapping[str, float] | None = None
    """`rank` and `factor`: passes of this rank, where there is one, take that many times as long, on purpose."""
    compile: str = "off"
    """off, default or max-autotune: torch.compile of the model, for fixed shapes."""
    compile_fallback: bool = False
    """Whether a model that cannot be compiled is trained all the same; else the trial fails."""
    cuda_graph: str = "off"
    """off, or on: the whole optimizer step is captured once and replayed, for steps shorter than their launches."""
    micro_batch: str = "off"
    """off, or auto: shares that do not fit into memory are taken in several passes, as few as fit on every rank; what
    is evaluated at once is halved until it fits."""
    exchange: str = "full"
    """full: gradients travel between ranks as they are; bf16: rounded to 8 significant bits, half as long."""
    memory_format: str = "contiguous"
    """contiguous (N×C×H×W) or channels_last, which tensor cores prefer."""
    noise_scale: bool = False
    """Whether the gradient noise scale is estimated, where a step has several ranks or passes."""
    label_smoothing: float = 0.0
    """The share of a target that training spreads evenly over all classes; evaluation does not."""
    eval_mirrored: bool = False
    """Whether an image is judged by the mean logits of itself and its mirror image."""
    val_fraction: float = 0.1
    """Of the training set, held out by the trial's seed; 0 measures no `val_accuracy`."""
    target_accuracy: float | None = None
    """`val_accuracy` whose first reaching `time_to_target_s` measures."""
    give_up_below: float | None = None
    """`val_accuracy` after the training below which nothing further is looked at, nor timed: the orchestrator's."""
    only_timed: bool = False
    """Whether the training goes only as far as its timing needs, and nothing is looked at but that."""
    eval_batch_size: int = 1024
    """Samples a rank evaluates at once; changes no figure."""
    window_s: float = 2.0
    """Seconds of steady state that throughput is measured over, at least."""
    window_steps: int = 50
    """Optimizer steps of the same, at least."""
    warmup_steps: int = 10
    """Steps that pass untimed before a window that follows the training, at least …"""
    warmup_s: float = 0.3
    """… and seconds, and then until the pace has settled: see `trainables.clock.Warmup`."""

    checkpoint: str = "epochs"
    """off, or epochs: what an interrupted trial goes on from is kept at epochs' ends, and where it is asked to stop."""
    checkpoint_every_s: float = 30.0
    """Seconds of training between two of them, at least; more where writing takes longer than a hundredth of it."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """The settings among the section's keys; the others are the orchestrator's."""
        return Settings(**{each.name: config[each.name] for each in fields(Settings) if each.name in config})

    def slowed_down(self, rank: int) -> float:
        """How many times as long this rank's passes are to take."""
        return self.slow_down["factor"] if self.slow_down and self.slow_down["rank"] == rank else 1.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"trainable.{name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        slow = self.slow_down
        if slow is not None and (set(slow) != {"rank", "factor"} or slow["factor"] < 1 or slow["rank"] < 0):
            raise ValueError(f"trainable.slow_down={dict(slow)} is not a rank, and a factor of at least 1")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"trainable.val_fraction={self.val_fraction} is not a share of the training set below 1")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"trainable.label_smoothing={self.label_smoothing} is not a share below 1")
        if self.target_accuracy is not None and not 0 < self.target_accuracy <= 1:
            raise ValueError(f"trainable.target_accuracy={self.target_accuracy} is not a share of 1, such as 0.9")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"trainable.{name}={getattr(self, name)} is not at least {least}")
