"""Private names of torch, 2.11 to 2.15; `tests/unit/trainables/test_torch_private.py` fails if they change.

Importing this module does not import torch, and no function imports compilers that the process has not used: that
takes seconds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any


def pause_stream(cycles: int) -> None:
    """Make the current CUDA stream pause for this many cycles of the GPU's clock; the host does not wait."""
    sys.modules["torch"].cuda._sleep(cycles)


def clear_cublas_workspaces() -> None:
    """Free the workspaces of cuBLAS: one for each stream that a trial has used, 65 MB on an H200."""
    sys.modules["torch"]._C._cuda_clearCublasWorkspaces()


def fake_tensors() -> AbstractContextManager[object]:
    """Return a context in which tensors have no data, and transformers skips checks of their values.

    Operations take real tensors, too, for which it makes others without data.
    """
    fake_mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    mode: AbstractContextManager[object] = fake_mode(allow_non_fake_inputs=True)
    return mode


def dispatch_mode() -> Any:
    """Return the class of contexts that see each operation, and each storage that it makes."""
    return import_module("torch.utils._python_dispatch").TorchDispatchMode


def forget_conversions(fake_tensors: Any) -> None:
    """Drop weak references of this context to its tensors: `Module.to` refuses parameters that have any."""
    fake_tensors.fake_tensor_converter.tensor_memo.clear()


def fake_store() -> Any:
    """Return the store of a process group whose backend is `fake`, which this import registers."""
    return import_module("torch.testing._internal.distributed.fake_pg").FakeStore()


def plain_optimizers() -> None:
    """Let torch's optimizers work without importing its compiler, which takes each process 1.5 to 5 s."""
    optim: Any = import_module("torch.optim")
    for kind in vars(optim).values():
        if isinstance(kind, type) and issubclass(kind, optim.Optimizer):
            _do_without_compiler(kind)


def flop_counter() -> Any:
    """Return `FlopCounterMode`, whose counting does not import torch's compiler."""
    module: Any = import_module("torch.utils.flop_counter")
    _do_without_compiler(module._FlopCounterMode)
    return module.FlopCounterMode


def _do_without_compiler(kind: type) -> None:
    """Remove the wrappers of methods that only keep a compiled caller from compiling them.

    The training calls none of them from compiled code. Where torch wraps them in another way, nothing is changed.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name, method in list(vars(kind).items()):
        wrapper = getattr(getattr(method, "__code__", None), "co_qualname", "")
        if wrapper == "_disable_dynamo.<locals>.inner":
            setattr(kind, name, method.__wrapped__)
        elif wrapper == "_use_grad_for_differentiable.<locals>._use_grad":
            setattr(kind, name, _with_gradients_as_set(method.__wrapped__))


def _with_gradients_as_set(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step of an optimizer, which records gradients only if that is `differentiable`."""

    @functools.wraps(step)
    def as_set(optimizer: Any, *arguments: Any, **options: Any) -> Any:
        with sys.modules["torch"].set_grad_enabled(optimizer.defaults["differentiable"]):
            return step(optimizer, *arguments, **options)

    return as_set


def stop_compile_workers() -> None:
    """End torch's pools of compiler processes and threads, if there are any."""
    if pools := sys.modules.get("torch._inductor.async_compile"):
        pools.shutdown_compile_workers()
        threads = pools.AsyncCompile.pool
        if threads.cache_info().currsize:
            threads().shutdown()
            threads.cache_clear()


def forget_compiled() -> None:
    """Reset torch.compile if it has compiled something: on a GPU a reset imports all compilers first."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return
    frames = dynamo.utils.counters["frames"]
    if frames["total"] or dynamo.convert_frame.input_codes.seen:  # code compiled with fullgraph is not counted
        dynamo.reset()
        frames.clear()


def compiles() -> bool:
    """Return whether torch.compile's front end is loaded."""
    return "torch._dynamo" in sys.modules


def is_compile_error(error: BaseException) -> bool:
    """Return whether torch.compile's front end raised the error."""
    errors = sys.modules.get("torch._dynamo.exc")
    return errors is not None and isinstance(error, errors.TorchDynamoException)


class FsdpCollectives:
    """The collectives of the parts of a model sharded by `fully_shard`, which has no method that returns them."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._groups = [group for part in parts for group in _parameter_groups(part)]
        self._before = [{name: getattr(group, name) for name in _COLLECTIVES} for group in self._groups]

    def leave_replicas(self) -> None:
        """Let gradients be exchanged among the shards of a replica only, without an all-reduce over replicas."""
        for group in self._groups:
            if group._is_hsdp:
                whole = group.mesh_info
                kinds: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_common")
                group.mesh_info = kinds.FSDPMeshInfo(whole.mesh, whole.shard_mesh_dim)
                # Parameters that are gathered on another mesh after the forward pass would be divided again.
                if group.post_forward_mesh_info is not None:
                    group.post_forward_mesh_info = group.mesh_info

    def restore(self) -> None:
        """Write the collectives back."""
        for group, before in zip(self._groups, self._before, strict=True):
            vars(group).update(before)


_COLLECTIVES = ("_all_gather_comm", "_reduce_scatter_comm", "mesh_info", "post_forward_mesh_info")


def _parameter_groups(part: Any) -> Sequence[Any]:
    """Return the groups of parameters that a sharded module gathers; up to torch 2.11 there is at most one."""
    state = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        groups: Sequence[Any] = state._fsdp_param_groups
        return groups
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def recomputed(module: Any, contexts: Any = None) -> Any:
    """Return the module in a wrapper that computes its activations again in the backward pass.

    `contexts` returns the contexts of both computations, which decide what is kept; None: nothing is.
    """
    wrappers: Any = import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    return wrappers.checkpoint_wrapper(module, **({} if contexts is None else {"context_fn": contexts}))
