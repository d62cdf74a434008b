"""torch.compile of a model for fixed shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from torch import Tensor, nn

MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""What torch calls them; the step as a whole is captured instead (`trainables.step.graphed_step`), or nothing is."""

SHOWN = 200
"""Characters of a compiler's own words."""


class CompileError(RuntimeError):
    """A model could not be compiled."""


class Compiled(nn.Module):
    """Calls a model as one compiled piece of code, from the first call on.

    A module of its own, because torch may leave out what is torch's own code: a bare `nn.Sequential`, say.
    """

    def __init__(self, model: nn.Module, mode: str, *, fallback: bool) -> None:
        """With `fallback`, what cannot be compiled stays as it is (`count_failures` tells), else the first call raises.

        The model is a bare one, before any wrapper.
        """
        super().__init__()
        self.model = model
        _dynamo("config").suppress_errors = fallback
        _dynamo("utils").counters.clear()
        self.compile(dynamic=False, mode=MODES[mode])

    def forward(self, images: Tensor) -> Tensor:
        """The model's outputs."""
        outputs: Tensor = self.model(images)
        return outputs


def count_failures(*, allowed: bool) -> int:
    """How many pieces of code were left uncompiled since a model was last made `Compiled`, and called.

    Raises CompileError where that is everything, unless `allowed`.
    """
    frames = _dynamo("utils").counters["frames"]
    if not frames["ok"] and not allowed:
        raise CompileError("nothing of the model was compiled: use compile=off, or compile_fallback=true")
    return int(frames["total"] - frames["ok"])


@contextmanager
def one_line_errors(mode: str) -> Iterator[None]:
    """Raise CompileError for what compilers raise, which is many lines long."""
    try:
        yield
    except RuntimeError as error:
        compilers = sys.modules.get("torch._dynamo.exc")
        if compilers is None or not isinstance(error, compilers.TorchDynamoException):
            raise
        cause = " ".join(str(error).split())[:SHOWN]
        raise CompileError(
            f"trainable.compile={mode} failed; off or compile_fallback=true train without: {cause}"
        ) from error


def _dynamo(part: str) -> Any:
    return import_module(f"torch._dynamo.{part}")  # takes a second, and most trials do without
