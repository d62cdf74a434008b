import pytest
import torch
from torch import nn

from trainables.step.compilation import Compiled, CompileError, one_line_errors


def broken(*_, **__):
    raise OSError("no compiler\nof that name")


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", broken)
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_compile_error_is_one_line(mode):
    model = Compiled(nn.Linear(2, 2), mode)
    with pytest.raises(CompileError, match=f"trainable.compile={mode} .*of that name") as caught:
        with one_line_errors(mode):
            model(torch.ones(1, 2))
    assert "\n" not in str(caught.value)


def test_torch_container_is_compiled_as_a_whole(monkeypatch):
    compiled = []

    def keep(graph, *_, **__):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", keep)
    first, second = (nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)) for _ in range(2))
    for model in (first, second):
        images = torch.ones(1, 2)
        assert torch.equal(Compiled(model, "default")(images), model(images))
        torch._dynamo.reset()
    assert len(compiled) == 2


def test_other_errors_are_not_changed():
    with pytest.raises(RuntimeError, match="^mine$"), one_line_errors("off"):
        raise RuntimeError("mine")
