"""Four processes in any layout come to the losses of one process, and continue the checkpoints of any other layout."""

import os
import pickle
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from orchestrator.backends.backend import outcome_of
from sweeps.rank_exit import CONNECTION_ERROR, Cause
from sweeps.status import Status
from tests.unit.trainables.ranks import CONFIG, Processes, rendezvous, request
from trainables import rank

LENGTH, BATCH = 8, 8
STEPS, FEW = 50, 4
TOLERANCE = 1e-5
GPT = {"name": "gpt", "layers": 2, "heads": 4, "width": 16, "sequence_length": LENGTH, "vocabulary": 64}
IMAGES = {"model": {"name": "small_cnn"}, "data": {"name": "digits"}, "budget": {"steps": 4}}
ADAMW = {"name": "adamw", "weight_decay": 0.1}
ALONE = {"strategy": "single", "shares": (BATCH,)}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp", "shares": (2,) * 4},
    "fsdp": {"strategy": "fsdp", "shares": (2,) * 4},
    "fsdp_grad": {"strategy": "fsdp_grad", "shares": (2,) * 4},
    "hybrid": {"strategy": "fsdp", "fsdp_size": 2, "shares": (2,) * 4},
    "tp 2": {"strategy": "fsdp_grad", "tensor": 2, "shares": (BATCH,)},
    "tp 4": {"strategy": "fsdp", "tensor": 4, "shares": (BATCH,)},
    "fsdp × tp": {"strategy": "fsdp", "tensor": 2, "shares": (4, 4)},
}


@pytest.fixture(scope="module")
def four():
    """Four warm processes for all layouts."""
    processes = Processes(4)
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    draw = np.random.default_rng(0)
    # Each token is one of four that follow the one before it, so that there is something to learn.
    chain = np.zeros(4096, dtype=np.uint16)
    for place in range(1, len(chain)):
        chain[place] = (chain[place - 1] * 5 + draw.integers(0, 4)) % 64
    chain.tofile(folder / "train.bin")
    return folder


class StopAfter:
    """Asks for the end when it is asked so many times whether to stop."""

    def __init__(self, looks):
        self._looks = looks

    def __call__(self, **_):
        self._looks -= 1
        return self._looks < 0


def train(asked, looks):
    """Train as one rank; return the loss of each epoch and, if there is one, the last validation loss; and the note."""
    rows: list[dict[str, Any]] = []
    answer = rank.run(asked, rows.append, StopAfter(looks))
    assert answer.status == "ok", answer.trace
    validation = [row["val_loss"] for row in rows[-1:] if "val_loss" in row]
    return [row["loss"] for row in rows] + validation, answer.note


def train_out_of_memory(asked, failing_rank, folder):
    """Train as one rank and write its exit; the failing rank runs out of memory in a later forward pass."""
    calls = 0

    def before_forward(module, _):
        nonlocal calls
        calls += 1
        if calls > 100 and module.training:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    fails = asked.rank == failing_rank
    with register_module_forward_pre_hook(before_forward) if fails else nullcontext():
        rank_exit = rank.run(asked, lambda row: None, lambda: False)
    (folder / str(asked.rank)).write_bytes(pickle.dumps(rank_exit))
    if fails:
        # A back end ends the processes of a gang in which a rank has failed; only that closes its connections.
        os._exit(0)


def losses(four, tokens, layout, *, steps=FEW, looks=10**6, **changes):
    """Return the losses of each step, from rank 0. `changes` are of the trainable, except for sections and requests."""
    given = requests(tokens, layout, steps=steps, **changes)
    curve: list[float] = four.call(train, *((asked, looks) for asked in given))[0][0]
    return curve


def requests(tokens, layout, *, steps, **changes):
    """Return the request to each rank of a layout; `changes` as in `losses`."""
    sections = {key: changes.pop(key) for key in ("model", "data", "budget", "optimizer") if key in changes}
    asked = {key: changes.pop(key) for key in ("grad_accum_steps", "trial_dir") if key in changes}
    trainable = CONFIG["trainable"] | {"clip_grad_norm": 0.5, "val_fraction": 0.0} | changes
    config = {
        "trainable": trainable,
        "model": GPT,
        "data": {"name": "tokens", "path": str(tokens), "epoch_tokens": BATCH * LENGTH},
        "optimizer": ADAMW,
        "schedule": {"name": "constant"},
        "budget": {"steps": steps},
    } | sections
    meet = rendezvous()
    ranks = len(layout["shares"]) * layout.get("tensor", 1)
    place = {"gang_id": meet, "rendezvous": meet if ranks > 1 else None}
    given: dict[str, Any] = {"config": config, "lr": 0.01} | layout | asked | place
    return [request(rank=rank, **given) for rank in range(ranks)]


def assert_alike(curve, expected):
    assert len(curve) == len(expected) and curve == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.fixture(scope="module")
def alone(four, tokens):
    curve = losses(four, tokens, ALONE, steps=STEPS)
    assert len(curve) == STEPS and curve[-1] < curve[0] - 0.5
    return curve


QUICK = ("fsdp × tp", "full")
LONG = [(layout, kind) for layout in LAYOUTS for kind in ("off", "selective", "full")]


@pytest.mark.parametrize(
    ("layout", "recompute", "steps"),
    [(*QUICK, FEW), *(pytest.param(*case, STEPS, marks=pytest.mark.slow) for case in LONG)],
)
def test_layout_has_the_losses_of_one_process(four, tokens, alone, layout, recompute, steps):
    curve = losses(four, tokens, LAYOUTS[layout], steps=steps, activation_checkpointing=recompute)
    assert_alike(curve, alone[:steps])


CASES: dict[str, dict[str, Any]] = {
    # AdamW and a clipped norm would hide the scale of gradients.
    "images": IMAGES | {"optimizer": {"name": "sgd"}, "clip_grad_norm": None}
}
SLOW_CASES: dict[str, dict[str, Any]] = {
    "uneven shares": {"shares": (3, 2, 2, 1)},
    "lamb": {"optimizer": {"name": "lamb", "weight_decay": 0.1}},
    "layers divided, accumulation": {"tensor": 2, "shares": (2, 2), "grad_accum_steps": 2, "steps": 4},
    "layers divided, validation": {"tensor": 2, "shares": (4, 4), "val_fraction": 0.25},
    # A rank alone computes as `single` does, also where sharding would round otherwise.
    "one rank": {"shares": (BATCH,), "precision": "bf16", "tolerance": 0.0},
    "micro-batches by memory": {"micro_batch": "auto"},
    "lars": {"optimizer": {"name": "lars"}},
    "layers divided, llama": {"tensor": 2, "shares": (4, 4), "model": GPT | {"name": "llama", "kv_heads": 2}},
    # Muon's iterations are in bf16, and sums over parts of a matrix round otherwise.
    "layers divided, muon": {"tensor": 2, "shares": (4, 4), "optimizer": {"name": "muon"}, "tolerance": 20 * TOLERANCE},
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES)])
def test_sharded_variant_has_the_losses_of_one_process(four, tokens, name):
    case = dict((CASES | SLOW_CASES)[name])
    own = {"strategy": "fsdp", "shares": case.pop("shares", (2,) * 4), "tensor": case.pop("tensor", 1)}
    tolerance = case.pop("tolerance", TOLERANCE)
    expected = losses(four, tokens, ALONE, **{key: value for key, value in case.items() if key != "grad_accum_steps"})
    assert losses(four, tokens, own, **case) == pytest.approx(expected, abs=tolerance, rel=0)


@pytest.mark.slow
def test_model_of_transformers_with_divided_layers_has_the_losses_of_one_process(four, tokens, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    sizes |= {"intermediate_size": 80, "vocab_size": 64, "max_position_embeddings": LENGTH}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(tmp_path)
    model = {"name": "hf", "path": str(tmp_path), "sequence_length": LENGTH}
    halved = {"strategy": "fsdp", "tensor": 2, "shares": (4, 4)}
    assert_alike(losses(four, tokens, halved, model=model), losses(four, tokens, ALONE, model=model))


def test_one_rank_out_of_memory_ends_the_gang(tokens, tmp_path):
    pair = Processes(2)
    given = requests(tokens, {"strategy": "fsdp", "shares": (4, 4)}, steps=STEPS)
    with pytest.raises(EOFError):  # from the process that has ended
        pair.call(train_out_of_memory, *((asked, 1, tmp_path) for asked in given))
    with suppress(BrokenPipeError):
        pair.close()
    waiting, failing = (pickle.loads((tmp_path / name).read_bytes()) for name in "01")
    assert (failing.status, waiting.status) == (Status.OOM, Status.FAILED)
    assert CONNECTION_ERROR.search(waiting.note), waiting.note
    outcome = outcome_of([waiting, failing], names=["0", "1"], wall_s=1.0)
    assert (outcome.status, outcome.cause) == (Status.OOM, Cause.DEVICE_MEMORY)


PAIR = ("ddp", "fsdp × tp")
# The other two divide layers alike.
ENDS = {name: layout for name, layout in LAYOUTS.items() if name not in ("tp 2", "tp 4")}
ENDS |= {"alone": ALONE, "two": {"strategy": "fsdp", "shares": (4, 4)}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=() if pair == PAIR else pytest.mark.slow, id="-".join(pair))
        for pair in ((first, second) for first in ENDS for second in ENDS if first != second)
    ],
)
def test_checkpoint_continues_in_another_layout(four, tokens, alone, tmp_path, first, second):
    begun = losses(four, tokens, ENDS[first], looks=2, trial_dir=str(tmp_path))
    assert 0 < len(begun) < FEW
    assert_alike(losses(four, tokens, ENDS[second], trial_dir=str(tmp_path)), alone[:FEW])
