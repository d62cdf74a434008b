"""Every private name of torch, inspected: a change in torch shows here first."""

import re
import subprocess
import sys
import weakref
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from trainables.torch_private import fake_tensors, forget_conversions

ROOT = Path(__file__).parents[3]
PRIVATE = re.compile(r"torch(?:\.\w+)*\._(?!foreach_)\w+")
"""`torch._foreach_*` are in torch's documentation."""


@pytest.mark.parametrize(
    "name",
    [
        "torch._inductor.async_compile:shutdown_compile_workers",
        *("torch._inductor.async_compile:AsyncCompile.pool.cache_info", "torch._dynamo:reset"),
        *("torch._dynamo.convert_frame:input_codes.seen", "torch._dynamo.exc:TorchDynamoException"),
        *("torch.cuda:_sleep", "torch._subclasses.fake_tensor:FakeTensorMode"),
        "torch.utils._python_dispatch:TorchDispatchMode",
        "torch.distributed.fsdp._fully_shard._fsdp_common:FSDPMeshInfo",
        "torch.utils.flop_counter:_FlopCounterMode",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:checkpoint_wrapper",
    ],
)
def test_private_name_exists(name):
    resolve_name(name)


@pytest.mark.gpu
def test_private_name_of_cuda_exists():
    assert callable(torch._C._cuda_clearCublasWorkspaces)


def test_private_names_are_in_one_file():
    files = [path for room in ("trainables", "studies") for path in (ROOT / room).rglob("*.py")]
    assert [path.name for path in files if PRIVATE.search(path.read_text())] == ["torch_private.py"]


def test_tensors_without_data_forget_what_they_were_made_of():
    with fake_tensors() as context:
        parameter = torch.nn.Parameter(torch.zeros(2))
        forget_conversions(context)
        assert not weakref.getweakrefs(parameter)


_UNCOMPILED = """
import sys
import torch
import trainables.supervised.training
from trainables.optimizers.optimizers import build
from trainables.supervised.flops import flops_per_sample
model = torch.nn.Linear(2, 1, bias=False)
for name in ("sgd", "adam", "adamw", "lars", "lamb", "adadelta"):
    options = {"weight_decay": 0.0} if name == "sgd" else {}
    optimizer = build(model, {"name": name, "lr": 0.5, **options}, lr=0.5)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert model.weight.grad_fn is None and not torch.equal(model.weight, before)
    if name == "sgd":
        assert torch.equal(model.weight, before - 0.5)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
assert flops_per_sample({"name": "small_cnn"}, input_shape=(1, 8, 8), num_classes=2)
slow = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
print([name for name in slow if name in sys.modules])
"""


@pytest.mark.slow
def test_uncompiled_training_imports_no_compiler():
    ended = subprocess.run([sys.executable, "-c", _UNCOMPILED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


_STEPS = """
import sys
import torch
from trainables.torch_private import plain_optimizers
if sys.argv[1] == "plain":
    plain_optimizers()
for kind, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"fused": True}), ("RMSprop", {})):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    print(kind, [value.tolist() for value in model.parameters()], optimizer.state_dict()["param_groups"])
weight = torch.ones(1, requires_grad=True)
inner = weight.clone()
optimizer = torch.optim.SGD([inner], lr=0.5, differentiable=True)
inner.retain_grad()
(inner * weight).sum().backward(create_graph=True)
optimizer.step()
print(inner.requires_grad, torch.autograd.grad(inner, weight))
"""


@pytest.mark.slow  # two processes import torch, one of them its compiler
def test_plain_optimizers_make_the_same_steps():
    runs = [[sys.executable, "-c", _STEPS, word] for word in ("plain", "torch")]
    told = [subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout for run in runs]
    assert told[0] == told[1] and "AdamW" in told[0]
