"""torch.compile of a model for fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from trainables.models import repeated_blocks
from trainables.torch_private import compile_counters, compiles, is_compile_error, suppress_compile_errors

BLOCKS = "blocks"
"""The mode that compiles each repeated block of a model, which takes less time than to compile the whole."""

MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""torch's names of the modes; CUDA graphs are left to `trainables.step.graphed_step`, which captures whole steps."""

MESSAGE_LENGTH = 200
"""Characters of a compiler's message that are kept."""


class CompileError(RuntimeError):
    """A model could not be compiled."""


class Compiled(nn.Module):
    """A model that is compiled in one piece at its first call.

    This is a wrapper, because torch may not compile a bare module of its library, such as `nn.Sequential`.
    """

    def __init__(self, model: nn.Module, mode: str, *, fallback: bool) -> None:
        """With `fallback`, code that cannot be compiled runs uncompiled; otherwise the first call raises.

        `model` is in no other wrapper yet.
        """
        super().__init__()
        self.model = model
        suppress_compile_errors(fallback)
        compile_counters().clear()
        self.compile(dynamic=False, mode=MODES[mode])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        outputs: Tensor = self.model(*inputs)
        return outputs


def compile_blocks(model: nn.Module, *, fallback: bool) -> None:
    """Compile each of the model's repeated blocks at its first call; `fallback` is as in `Compiled`."""
    suppress_compile_errors(fallback)
    compile_counters().clear()
    for block in repeated_blocks(model, wanted_for=f"trainable.compile={BLOCKS}"):
        block.compile(dynamic=False)


def uncompiled() -> AbstractContextManager[object]:
    """Return a context in which compiled blocks run uncompiled: other shapes would be compiled again."""
    return torch.compiler.set_stance("force_eager") if compiles() else nullcontext()


def count_failures(*, allowed: bool) -> int:
    """Return how many pieces of code could not be compiled, of the last model made `Compiled`, after a call.

    Raises CompileError if none could be compiled, unless `allowed`.
    """
    frames = compile_counters()["frames"]
    if not frames["ok"] and not allowed:
        raise CompileError("nothing of the model was compiled: use compile=off, or compile_fallback=true")
    return int(frames["total"] - frames["ok"])


@contextmanager
def one_line_errors(mode: str) -> Iterator[None]:
    """Raise CompileError in one line for the errors of compilers, which are many lines long."""
    try:
        yield
    except RuntimeError as error:
        if not is_compile_error(error):
            raise
        cause = " ".join(str(error).split())[:MESSAGE_LENGTH]
        raise CompileError(
            f"trainable.compile={mode} failed; off or compile_fallback=true train without: {cause}"
        ) from error
