"""Language models: their outputs beside those of transformers, their FLOPs by formula, and their training."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.trainables.ranks import request, run
from trainables.context import RequestError
from trainables.models import build, recompute_blocks
from trainables.models.transformer import gpt, llama
from trainables.optimizers import optimizers
from trainables.supervised.flops import flops_per_sample

SMALL: dict[str, Any] = {"layers": 3, "heads": 4, "width": 32, "sequence_length": 24, "vocabulary": 64}
GPT: dict[str, Any] = {"name": "gpt"} | SMALL
LLAMA: dict[str, Any] = {"name": "llama", "kv_heads": 2, "hidden": 80} | SMALL


def tokens(count=2, length=24):
    return torch.randint(64, (count, length), generator=torch.Generator().manual_seed(0))


def test_gpt_equals_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 24, "vocab_size": 64}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    ours = gpt(**SMALL).eval()
    names = {"tokens.weight": "transformer.wte.weight", "positions.weight": "transformer.wpe.weight"}
    parts = {"norm1": "ln_1", "attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "norm2": "ln_2"}
    parts |= {"feed_forward.0": "mlp.c_fc", "feed_forward.2": "mlp.c_proj"}
    for own in dict(ours.named_parameters()):
        if own.startswith("blocks."):
            _, index, rest = own.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            names[own] = f"transformer.h.{index}.{parts[part]}.{kind}"
        elif own.startswith("norm."):
            names[own] = own.replace("norm", "transformer.ln_f")
    copy_weights(ours, theirs, names, transposed=("qkv", "out", "feed_forward"))
    for name, weight in ours.named_parameters():
        if "qkv" in name:
            weight.data.copy_(by_group(*weight.data.chunk(3), groups=4))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens()), theirs(tokens()).logits, atol=2e-5, rtol=1e-4)


def test_llama_equals_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    sizes |= {"intermediate_size": 80, "vocab_size": 64, "max_position_embeddings": 24}
    config = transformers.LlamaConfig(**sizes, rms_norm_eps=1e-5, rope_theta=500_000.0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = llama(**SMALL, kv_heads=2, hidden=80).eval()
    state = theirs.state_dict()
    names = {"tokens.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
    names |= {"norm.weight": "model.norm.weight"}
    parts = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm", "attention.out": "self_attn.o_proj"}
    parts |= {f"feed_forward.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    for index in range(3):
        there = f"model.layers.{index}"
        names |= {f"blocks.{index}.{own}.weight": f"{there}.{part}.weight" for own, part in parts.items()}
        qkv = [state[f"{there}.self_attn.{name}_proj.weight"] for name in "qkv"]
        ours.get_parameter(f"blocks.{index}.attention.qkv.weight").data.copy_(by_group(*qkv, groups=2))
    copy_weights(ours, theirs, names, but="qkv")
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens()), theirs(tokens()).logits, atol=2e-5, rtol=1e-4)


def by_group(*roles, groups):
    """Return the rows of queries, keys and values, with those of a group of heads beside one another."""
    return torch.cat([role.unflatten(0, (groups, -1)) for role in roles], dim=1).flatten(0, 1)


def copy_weights(ours, theirs, names, *, transposed=(), but="-"):
    state = theirs.state_dict()
    for own, weight in ours.named_parameters():
        if but in own:
            continue
        given = state[names[own]]
        turned = given.ndim == 2 and any(part in own for part in transposed)
        weight.data.copy_(given.T if turned else given)


@pytest.mark.parametrize("config", [GPT, LLAMA, GPT | {"kv_heads": 1, "tied": False, "bias": False}])
def test_counted_flops_match_the_formula(config):
    """6 FLOPs per weight of a matrix product, and 12·layers·width·T for attention (Chowdhery et al. 2022)."""
    with torch.device("meta"):
        model = build(config, input_shape=(24,), num_classes=64)
    products = [module for module in model.modules() if isinstance(module, nn.Linear)]
    per_token = 6 * sum(layer.weight.numel() for layer in products) + 12 * 3 * 32 * 24
    flops = flops_per_sample(config, input_shape=(24,), num_classes=64)
    assert flops == pytest.approx(24 * per_token, rel=0.01)


@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_no_token_sees_a_later_one(config):
    model = build(config, input_shape=(24,), num_classes=64)
    one, other = tokens(), tokens()
    other[:, 12:] = (other[:, 12:] + 1) % 64
    with torch.no_grad():
        before, after = model(one), model(other)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().max() > 1e-3


def test_positions_matter():
    model = build(LLAMA, input_shape=(24,), num_classes=64)
    with torch.no_grad():
        turned = model(tokens().flip(1)).flip(1)
        assert (turned[:, 0] - model(tokens())[:, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_recomputation_changes_neither_gradients_nor_names(config):
    def gradients(recomputes):
        torch.manual_seed(0)
        model = build(config, input_shape=(24,), num_classes=64)
        names = set(model.state_dict())
        if recomputes:
            recompute_blocks(model, "full")
        assert set(model.state_dict()) == names
        model(tokens()).square().mean().backward()
        gradients_in_order = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return dict(enumerate(gradients_in_order))  # type: ignore[arg-type]

    plain, recomputed = gradients(False), gradients(True)
    assert len(plain) == len(recomputed) > 20
    for key, value in plain.items():
        assert torch.equal(value, recomputed[key])


@pytest.mark.parametrize(
    ("change", "numbers"), [({"heads": 5}, "heads=5 .*width=32"), ({"kv_heads": 3}, "kv_heads=3 .*heads=4")]
)
def test_heads_that_do_not_divide_are_an_error(change, numbers):
    for config in (GPT, LLAMA):
        with pytest.raises(RequestError, match=numbers):
            build(config | change, input_shape=(24,), num_classes=64)


@pytest.mark.parametrize(("name", "place"), [("gpt", "meta"), ("llama", "meta"), ("mlp", "cpu")])
def test_language_models_are_built_on_the_device(name, place):
    sizes = {"layers": 1, "heads": 2, "width": 8, "sequence_length": 4, "vocabulary": 16}
    config = {"name": name} | ({"hidden": [4]} if name == "mlp" else sizes)
    shape = (1, 8, 8) if name == "mlp" else (4,)
    model = build(config, input_shape=shape, num_classes=10, device="meta")
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {place}


def test_model_without_blocks_cannot_be_recomputed():
    with pytest.raises(RequestError, match="ModuleList"):
        recompute_blocks(nn.Linear(2, 2), "full")


def test_a_local_folder_of_transformers_trains(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 64}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    theirs.save_pretrained(tmp_path / "model")
    config = {"name": "hf", "path": str(tmp_path / "model"), "sequence_length": 16}
    ours = build(config, input_shape=(16,), num_classes=64).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens(length=16)), theirs(tokens(length=16)).logits)
    np.random.default_rng(0).integers(0, 64, 4000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    given = {
        "model": config,
        "data": {"name": "tokens", "path": str(tmp_path / "train.bin")},
        "optimizer": {"name": "adamw"},
        "schedule": {"name": "constant"},
        "budget": {"steps": 3},
    }
    timing = {"window_s": 0.01, "window_steps": 2, "warmup_steps": 1, "warmup_s": 0.0}
    for further in ({}, {"activation_checkpointing": "full"}):
        answer = run(request(shares=(4,), config=given | {"trainable": timing | further}))
        assert answer["status"] == "ok", answer["trace"]
    same = {"name": "gpt", "layers": 2, "heads": 2, "width": 16, "sequence_length": 16, "vocabulary": 64}
    counts = [flops_per_sample(model_config, input_shape=(16,), num_classes=64) for model_config in (config, same)]
    assert counts[0] == counts[1] is not None
    with pytest.raises(RequestError, match="sequence_length=17 is beyond the 16 positions"):
        build(config | {"sequence_length": 17}, input_shape=(16,), num_classes=64)
    with pytest.raises(RequestError, match=r"no config\.json"):
        build(config | {"path": str(tmp_path)}, input_shape=(16,), num_classes=64)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # between the two packages
def test_lora_trains_adapters_only(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 64}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    config = {
        "name": "hf",
        "path": str(tmp_path),
        "lora": {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True},
    }
    model = build(config, input_shape=(16,), num_classes=64)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 4 and all("lora_" in name for name in trained)
    optimizer = optimizers.build(model, {"name": "adamw"}, lr=0.1)
    assert sum(parameter.numel() for parameter in optimizer.param_groups[0]["params"]) == 2 * 2 * (16 + 48)


@pytest.mark.parametrize(
    "config",
    [
        *({key: True} for key in ("trust_remote_code", "cache_dir", "code_revision", "quantization_config", "proxies")),
        *({key: "owner/kernel"} for key in ("attn_implementation", "_attn_implementation", "experts_implementation")),
    ],
)
def test_config_of_transformers_runs_no_code(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 8, "vocab_size": 8}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    file, model = tmp_path / "config.json", {"name": "hf", "path": str(tmp_path)}
    own_code = {"auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | own_code))
    (tmp_path / "mine.py").write_text("raise SystemExit('run')\n")
    assert isinstance(build(model, input_shape=(8,), num_classes=8), nn.Module)
    with pytest.raises(RequestError, match=next(iter(config))):
        build(model | {"config": config}, input_shape=(8,), num_classes=8)
