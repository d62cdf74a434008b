import subprocess
import sys

import pytest

from tests.unit.trainables.ranks import CONFIG, request, run
from trainables.supervised.settings import errors, own_factory_errors, remarks


def assert_named(lines, named):
    """Assert that each message has its key or value, and that there is no other message."""
    messages = list(lines)
    assert len(messages) == len(named), messages
    for message, key in zip(messages, named, strict=True):
        assert key in message


GPT = {"name": "gpt", "heads": 4, "width": 32}
HALVED = {"tensor_parallel": 2, "model": GPT, "data": {"name": "text"}}
GRAPHED_FSDP = {"trainable": {"cuda_graph": "on"}, "strategy": "fsdp"}
GROWS = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.1}
GROWING = {"schedule": GROWS, "budget": {"epochs": 1, "steps": None}}


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({}, []),
        (GROWING, []),
        (GROWING | {"trainable": {"noise_scale": True}}, ["noise_scale=true"]),
        (
            {"schedule": GROWS, "budget": {"epochs": 1}, "sweep": {"axes": {"lr_rule": ["adascale"]}}},
            ["lr_rule=adascale"],
        ),
        ({"budget": {"tokens": 64}}, ["budget.tokens=64"]),
        ({"budget": {"tokens": 64}, "model": GPT, "data": {"name": "text"}}, []),
        ({"trainable": {"compile": "fast"}}, ["trainable.compile 'fast'"]),
        ({"trainable": {"precision": "fp61"}}, ["trainable.precision 'fp61'"]),
        ({"trainable": {"cuda_graph": "on"}, "strategy": "ddp"}, []),
        (GRAPHED_FSDP | {"sweep": {"axes": {"gpus": [1]}}}, []),
        (GRAPHED_FSDP | {"sweep": {"axes": {"gpus": [1, 2]}}}, ["strategy=fsdp needs trainable.cuda_graph=off"]),
        (HALVED | {"trainable": {"cuda_graph": "on"}}, ["tensor_parallel=2 needs trainable.cuda_graph=off"]),
        (
            {"strategy": "fsdp", "trainable": {"noise_scale": True}, "sweep": {"axes": {"gpus": [1, 2]}}},
            ["noise_scale=true needs strategy=ddp"],
        ),
        (
            {"trainable": {"cuda_graph": "on", "noise_scale": True}, "sweep": {"axes": {"lr_rule": ["adascale"]}}},
            ["lr_rule=adascale needs trainable.cuda_graph=off", "noise_scale=true needs trainable.cuda_graph=off"],
        ),
        ({"trainable": {"precision": "fp16", "noise_scale": True}}, ["noise_scale=true needs another"]),
        ({"trainable": {"precision": "fp16", "cuda_graph": "on"}}, []),
        ({"trainable": {"cuda_graph": "on"}, "optimizer": {"name": "lars"}}, []),
        (
            {"trainable": {"precision": "fp16", "cuda_graph": "on"}, "optimizer": {"name": "lars"}},
            ["optimizer=sgd, adam or adamw, not lars"],
        ),
        ({"trainable": {"cuda_graph": "on"}, "optimizer": {"name": "muon"}}, ["optimizer=muon"]),
        (
            {"trainable": {"cuda_graph": "on", "compile": "default"}, "strategy": "data_parallel"},
            ["strategy=data_parallel needs trainable.compile", "strategy=data_parallel needs trainable.cuda_graph"],
        ),
        ({"model": {"name": "resnet18", "batch_norm": "sync"}, "strategy": "independent"}, ["model.batch_norm=sync"]),
        (HALVED, []),
        (HALVED | {"model": GPT | {"heads": 25, "width": 1600}}, ["model.heads=25"]),
        (HALVED | {"model": GPT | {"kv_heads": 1}}, ["model.kv_heads=1"]),
        (HALVED | {"model": GPT | {"name": "llama", "hidden": 33}}, ["model.hidden=33"]),
        (HALVED | {"optimizer": {"name": "lamb"}}, ["lamb needs the norm"]),
        (HALVED | {"trainable": {"micro_batch": "auto"}}, ["trainable.micro_batch=off"]),
        ({"tensor_parallel": 2}, ["not of mlp"]),
        ({"trainable": {"val_fraction": "much"}}, ["trainable: "]),
        ({"report": {"metric": "auto", "target": 93}}, ["report.target=93"]),
        ({"report": {"metric": {"name": "val_acuracy", "better": "higher"}}}, ["(did you mean 'val_accuracy'?)"]),
        ({"report": {"metric": "val_acc"}}, []),
        ({"report": {"metric": {"name": "samples_per_s", "better": "higher"}}}, []),
        ({"schedule": GROWS | {"gamma": 0.3}}, ["schedule.gamma=0.3"]),
        ({"schedule": {"name": "step", "milestones": [0.5, 80]}}, ["schedule: milestones [80]"]),
        ({"schedule": {"name": "step", "milestones": 0.5}}, ["schedule: milestones 0.5"]),
        ({"schedule": {"name": "onecycle", "peak": 1.0}}, ["schedule: peak 1.0"]),
        ({"schedule": {"name": "cosine", "last": 0}}, ["schedule 'cosine' has no key last"]),
        ({"schedule": {"name": "mypackage.schedules:saw", "teeth": 3}}, []),
        ({"model": {"name": "resnet20"}}, ["model 'resnet20'"]),
        ({"optimizer": {"name": "sdg", "lr": 0.1}, "data": {}}, ["data.name", "optimizer 'sdg'"]),
        ({"model": {"name": "mypackage.models:build"}}, []),
        ({"model": {"name": "mine:build", "lora": {"r": 1}}, "optimizer": {"name": "muon"}}, ["optimizer=muon"]),
        ({"model": {"name": "mlp"}, "data": {"name": "synthetic", "dense": True}}, ["model 'mlp'"]),
        ({"model": {"name": "mine:unet"}, "data": {"name": "synthetic", "dense": True}}, []),
        ({"model": {"name": "mlp"}, "data": {"name": "mypackage.data:Mine"}}, []),
        ({"data": CONFIG["data"] | {"subset": {"train": 64, "test": None, "seed": 0}}}, []),
        (
            {"data": CONFIG["data"] | {"subset": {"train": "lots", "test": 0, "seed": 1.5}}},
            ["data.subset.train", "data.subset.test", "data.subset.seed"],
        ),
        ({"data": {"name": "mine:Data", "subset": 64}}, ["data.subset "]),
        ({"data": CONFIG["data"] | {"mean": [0.5], "std": None}}, []),
        ({"data": CONFIG["data"] | {"mean": 0.5, "std": ["a"]}}, ["data.mean ", "data.std "]),
        ({"data": CONFIG["data"] | {"mean": [-0.5], "std": [0.2, 0]}}, ["data.std "]),
        ({"trainable": CONFIG["trainable"] | {"loader": {"workers": 0, "prefetch": 2}}}, []),
        ({"trainable": CONFIG["trainable"] | {"loader": {"workers": True}}}, ["trainable.loader.workers"]),
        ({"trainable": CONFIG["trainable"] | {"loader": 5}}, ["trainable.loader "]),
        (
            {"trainable": CONFIG["trainable"] | {"loader": {"workers": -1, "prefetch": 0}}},
            ["trainable.loader.workers", "trainable.loader.prefetch"],
        ),
        ({"schedule": GROWS}, ["budget.steps"]),
    ],
)
def test_config_errors(sections, named):
    assert_named(errors(CONFIG | sections), named)


@pytest.mark.parametrize("changed", [{"cuda_graph": "on"}, {"precision": "tf32"}])
def test_values_of_gpus_are_errors_where_a_trial_runs_on_cpus(changed):
    config = CONFIG | {"trainable": CONFIG["trainable"] | changed, "mode": "run"}
    for device, named in {"cpu": [f"trainable.{key}={value}" for key, value in changed.items()], "cuda": []}.items():
        on_device = config | {"resources": {"device": device}}
        assert_named(errors(on_device), named)
        assert_named(remarks(on_device | {"mode": "plan"}), named)
    assert run(request(config=config))["status"] == "failed"


def test_data_must_be_where_trials_run(monkeypatch):
    config = CONFIG | {"data": {"name": "npz", "path": "/nowhere/mine.npz"}, "mode": "run"}
    assert [told.partition(":")[0] for told in errors(config)] == ["data 'npz'"]
    assert list(errors(config | {"mode": "plan"})) == [] == list(remarks(config))
    (told,) = remarks(config | {"mode": "plan"})
    assert told.startswith("data 'npz'") and "mode=run" in told
    (told,) = remarks(config | {"cluster": {"address": "auto"}})
    assert told.startswith("data 'npz'") and "nodes" in told
    assert list(errors(config | {"data": None})) == ["data.name is not set"]
    assert list(errors(config | {"cluster": {"address": "auto"}})) == []
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert list(errors(config)) == []


def test_checking_imports_no_torch():
    code = "import sys, trainables.supervised.settings; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


OWN = """
from torch import nn
def net(input_shape, num_classes, width=4): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
def saw(progress, teeth): pass
class Slow:
    def __init__(self, params, lr, drag): pass
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_code", None)


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"model": {"name": "own_code:net", "width": 8, "batch_norm": "replica"}}, []),
        ({"model": {"name": "own_code:net", "hidden": [16]}}, ["model 'own_code:net' has no key hidden"]),
        ({"optimizer": {"name": "own_code:Slow", "lr": 0.1, "drag": 1}}, []),
        ({"optimizer": {"name": "own_code:Slow", "lr": 0.1}}, ["optimizer 'own_code:Slow'"]),
        ({"schedule": {"name": "own_code:saw", "teeth": 3}}, []),
        ({"schedule": {"name": "own_code:saw", "gamma": 3}}, ["schedule 'own_code:saw' has no key gamma"]),
        ({"model": {"name": "torchvision", "arch": "vit_b_16"}}, ["takes no images of 1×8×8"]),
    ],
)
def test_unknown_keys_of_own_factories(sections, named):
    assert_named(own_factory_errors(CONFIG | sections), named)


@pytest.mark.slow
def test_an_arch_of_torchvision_is_checked_before_any_trial():
    model = {"name": "torchvision", "arch": "vit", "batch_norm": "replica"}
    assert_named(errors(CONFIG | {"model": model, "mode": "plan"}), ["no arch 'vit'"])


def test_own_code_is_imported_elsewhere_and_only_if_it_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text("def saw(progress, teeth): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = CONFIG | {"schedule": {"name": "own_code:saw", "gamma": 3}, "mode": "plan"}
    assert list(errors(config)) == []
    assert_named(errors(config | {"trusted_modules": ["own_code"]}), ["schedule 'own_code:saw' has no key gamma"])
    assert "own_code" not in sys.modules


@pytest.mark.parametrize(
    ("gpus", "passes", "name", "remarked"),
    [([1], 4, "text", True), ([1, 2], 4, "text", False), ([1], 1, "text", False), ([1], 4, "digits", False)],
)
def test_accumulation_of_a_language_model_on_one_gpu_is_remarked(gpus, passes, name, remarked):
    given = {"mode": "run", "data": {"name": name}, "grad_accum_steps": passes, "sweep": {"axes": {"gpus": gpus}}}
    assert any("grad_accum_steps=4" in line for line in remarks(given)) == remarked


@pytest.mark.parametrize(
    ("tokens", "steps"), [(49_152, "3 optimizer steps of 16 × 1,024"), (147_457, None), (None, None)]
)
def test_budgets_of_a_few_steps_are_remarked(tokens, steps):
    axes = {"global_batch_size": [4, 16]}
    given = {"mode": "run", "data": {"name": "text"}, "model": {"sequence_length": 1024}, "sweep": {"axes": axes}}
    told = list(remarks(given | {"budget": {"tokens": tokens}}))
    assert [steps in line for line in told] == [True] if steps else told == []
