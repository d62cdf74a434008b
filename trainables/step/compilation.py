"""torch.compile of a model for fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from trainables.models import repeated_blocks
from trainables.torch_private import compiles, is_compile_error

BLOCKS = "blocks"
"""The mode that compiles each repeated block of a model, which takes less time than to compile the whole."""

MODES = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""torch's names of the modes; CUDA graphs are left to `trainables.step.graphed_step`, which captures whole steps."""

MESSAGE_LENGTH = 200  # characters of a compiler's message that are kept


class CompileError(RuntimeError):
    """A model could not be compiled."""


class Compiled(nn.Module):
    """A model that is compiled in one piece at its first call.

    This is a wrapper, because torch may not compile a bare module of its library, such as `nn.Sequential`.
    """

    def __init__(self, model: nn.Module, mode: str) -> None:
        """`model` is in no other wrapper yet."""
        super().__init__()
        self.model = model
        self.compile(dynamic=False, mode=MODES[mode])

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        outputs: Tensor = self.model(*inputs)
        return outputs


def compile_blocks(model: nn.Module) -> None:
    """Compile each of the model's repeated blocks at its first call."""
    for block in repeated_blocks(model, wanted_for=f"trainable.compile={BLOCKS}"):
        block.compile(dynamic=False)


def uncompiled() -> AbstractContextManager[object]:
    """Return a context in which compiled blocks run uncompiled: other shapes would be compiled again."""
    return torch.compiler.set_stance("force_eager") if compiles() else nullcontext()


@contextmanager
def one_line_errors(mode: str) -> Iterator[None]:
    """Raise CompileError in one line for the errors of compilers, which are many lines long."""
    try:
        yield
    except RuntimeError as error:
        if not is_compile_error(error):
            raise
        cause = " ".join(str(error).split())[:MESSAGE_LENGTH]
        raise CompileError(f"trainable.compile={mode} failed; off trains without: {cause}") from error
