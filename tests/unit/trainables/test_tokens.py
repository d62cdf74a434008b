"""Texts as tokens: files of nanoGPT and llm.c, folders of text, and the sequences that epochs draw from them."""

import re

import numpy as np
import pytest
import torch

from sweeps.trial import Batch
from tests.unit.trainables.inputs.feeds import epoch
from trainables import data
from trainables.context import RequestError
from trainables.inputs.feed import Feed, TokenForm
from trainables.inputs.inputs import SequenceInputs
from trainables.inputs.sequences import Sequences, parts_of
from trainables.tokens import (
    Corpus,
    Text,
    TokenError,
    TokenFiles,
    files_of,
    mapped,
    standard_library,
    transformers_config,
)


def with_header(tokens, *, magic, version, count=None):
    header = np.zeros(256, dtype=np.int32)
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()


def test_plain_and_headed_files_have_the_same_tokens(tmp_path):
    tokens = np.array([5, 0, 65535, 7])
    (tmp_path / "a.bin").write_bytes(tokens.astype(np.uint16).tobytes())
    (tmp_path / "b.bin").write_bytes(with_header(tokens.astype(np.uint16), magic=20240520, version=1))
    (tmp_path / "c.bin").write_bytes(with_header(tokens.astype(np.uint32), magic=20240801, version=7))
    (tmp_path / "d.bin").write_bytes(tokens.astype(np.uint32).tobytes())
    for name, dtype in (("a", "uint16"), ("b", "uint16"), ("c", "uint16"), ("d", "uint32")):
        assert mapped(tmp_path / f"{name}.bin", dtype).tolist() == tokens.tolist()


def test_malformed_files_are_errors_with_the_numbers(tmp_path):
    file = tmp_path / "train.bin"
    file.write_bytes(b"abc")
    with pytest.raises(TokenError, match="3 bytes .* no multiple of 2"):
        mapped(file)
    file.write_bytes(with_header(np.zeros(4, dtype=np.uint16), magic=20240520, version=1, count=9))
    with pytest.raises(TokenError, match="4 tokens, but its header says 9"):
        mapped(file)
    file.write_bytes(b"")
    with pytest.raises(TokenError, match="no tokens"):
        mapped(file)


def test_folder_has_files_by_their_names(tmp_path):
    names = {
        **{"fineweb_train_000002": 4, "fineweb_train_000001": 3, "mytrain": 5},
        **{"fineweb_val_000000": 7, "eval": 6, "train.validation": 8, "valset": 8},
        **{"train_test": 9, "val_test0": 9, "testset": 9},
    }
    for name, first in names.items():
        np.array([first, 3], dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    corpus = data.load({"name": "tokens", "path": str(tmp_path)})
    assert isinstance(corpus, Corpus) and corpus.vocabulary == 10
    kinds = [[int(tokens[0]) for tokens in files] for files in (corpus.train, corpus.validation, corpus.test)]
    assert [sorted(kind) for kind in kinds] == [[3, 4, 5], [6, 7, 8, 8], [9, 9, 9]]
    for name in ("latest_train", "retrieval-train", "trainval", "train_valset"):
        (tmp_path / f"{name}.bin").touch()
        with pytest.raises(data.DataError, match=name):
            data.load({"name": "tokens", "path": str(tmp_path)})
        (tmp_path / f"{name}.bin").unlink()
    with pytest.raises(data.DataError, match=r"train\.bin"):
        data.load({"name": "tokens", "path": str(tmp_path / "elsewhere")})
    assert TokenFiles(path=str(tmp_path / "fineweb_val_000000.bin")).read("cpu").train[0].tolist() == [7, 3]


def test_sequences_do_not_cross_files_and_targets_are_the_next_tokens():
    part = Sequences([np.arange(10), np.array([50, 51]), np.arange(20, 27)], 3)
    tokens, targets = part.take(slice(None))
    assert tokens.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [20, 21, 22], [23, 24, 25]]
    assert torch.equal(targets, tokens + 1) and tokens.dtype == torch.int64


def test_held_out_sequences_are_drawn_by_seed():
    corpus = Corpus(train=(np.arange(401),), validation_tokens=80)
    one, other = (parts_of(corpus, 4, val_fraction=0.5, seed=seed) for seed in (1, 2))
    assert [len(part) for part in one] == [80, 20, 0]
    starts = [set(part.rows(slice(None))[:, 0].tolist()) for part in (one[0], one[1], other[1])]
    assert not starts[0] & starts[1] and len(starts[0] | starts[1]) == 100 and starts[1] != starts[2]


def inputs(shares, accum, rank, epoch_size=None):
    batch = Batch(global_batch_size=accum * sum(shares), grad_accum_steps=accum, shares=shares)
    part = Sequences([np.arange(4 * 50 + 1)], 4)
    return SequenceInputs(
        Feed(part=part, form=TokenForm(device="cpu"), batch=batch, seed=3, epoch_size=epoch_size), rank
    )


@pytest.mark.parametrize(("shares", "accum"), [((12,), 1), ((3,), 4), ((6, 6), 1), ((2, 1), 4), ((3, 9), 1)])
def test_steps_are_the_same_for_every_layout(shares, accum):
    whole = [step.tolist() for step, _ in epoch(inputs((12,), 1, 0), 2)]
    ranks = [list(epoch(inputs(shares, accum, rank), 2)) for rank in range(len(shares))]
    for step, expected in enumerate(whole):
        mine = [x.tolist() for rank in ranks for x, _ in rank[step * accum : (step + 1) * accum]]
        assert [row for passed in mine for row in passed] == expected
    assert len(whole) == 4


def test_short_epochs_draw_each_sequence_once_before_any_again():
    source = inputs((10,), 1, 0, epoch_size=20)
    drawn = [int(row[0]) for number in range(1, 6) for x, _ in epoch(source, number) for row in x]
    assert len(drawn) == 100 and len(set(drawn[:50])) == len(set(drawn[50:])) == 50 and drawn[:50] != drawn[50:]
    rest = [x.tolist() for x, _ in epoch(source, 3, start=10)]
    assert rest == [x.tolist() for x, _ in epoch(source, 3)][1:]


def test_text_is_bytes_joined_by_zero(tmp_path):
    (tmp_path / "b.txt").write_text("xyz")
    (tmp_path / "a.txt").write_text("é")
    corpus = Text(path=str(tmp_path), pattern="*.txt").read("cpu")
    assert bytes(corpus.train[0].astype(np.uint8)) == "é\0xyz".encode() and corpus.bytes_per_token == 1
    with pytest.raises(TokenError, match=r"\*\.md"):
        Text(path=str(tmp_path), pattern="*.md").read("cpu")


def test_standard_library_is_the_default():
    files = [path.name for path in standard_library()]
    assert "dataclasses.py" in files and "test_dataclasses.py" not in files
    assert len(Text().read("cpu").train[0]) > 5_000_000


def test_text_by_a_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<|endoftext|>": 0, "one": 1, "two": 2, "?": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("one two one")
    (tmp_path / "b.txt").write_text("two")
    text = Text(path=str(tmp_path), pattern="*.txt", tokenizer=str(tmp_path / "tokenizer.json"))
    corpus = text.read("cpu")
    assert corpus.train[0].tolist() == [1, 2, 1, 0, 2, 0] and corpus.bytes_per_token == 15 / 6
    assert len(text.files()) == 3


@pytest.mark.parametrize("content", ["", "[]", "null", "5", "[" * 100_000, "\udc80", '{"attn_implementation": "a/b"}'])
def test_config_of_a_strangers_model_is_data(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(RequestError, match=re.escape(str(tmp_path))):
        transformers_config({"path": str(tmp_path)})


def test_files_of_texts_identify_a_trial(tmp_path):
    from orchestrator.config.content_hashes import data_version

    file = tmp_path / "train.bin"
    np.arange(9, dtype=np.uint16).tofile(file)
    of_file, of_folder = (data_version({"name": "tokens", "path": str(path)}) for path in (file, tmp_path))
    assert of_file == of_folder and files_of({"name": "tokens", "path": str(tmp_path / "none")}) == []
    np.arange(10, dtype=np.uint16).tofile(file)
    assert data_version({"name": "tokens", "path": str(file)}) != of_file
    assert len(data_version({"name": "text", "path": None})) == 16
