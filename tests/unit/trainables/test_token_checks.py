"""Errors of a language model's config and of its texts, which name the numbers and the files that do not fit."""

import json

import numpy as np
import pytest

from trainables.supervised.settings import errors
from trainables.token_checks import shape_errors


def asked(file, *, model=None, batches=None, **data):
    """The errors of a request for a small model on this file."""
    gpt = {"name": "gpt", "layers": 1, "heads": 2, "width": 8, "sequence_length": 16, "vocabulary": 64}
    config = {
        "mode": "run",
        "trainable": {"val_fraction": 0.1},
        "model": gpt | (model or {}),
        "data": {"name": "tokens", "path": str(file)} | data,
        "optimizer": {"name": "adamw"},
        "schedule": {"name": "constant"},
        "sweep": {"axes": {"global_batch_size": batches or [4]}},
    }
    return list(errors(config))


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        ({}, ()),
        ({"model": {"vocabulary": 60}}, ("train.bin", "up to 63", "model.vocabulary=60")),
        ({"model": {"heads": 3}}, ("model.heads=3", "model.width=8")),
        ({"model": {"kv_heads": 4}}, ("model.kv_heads=4", "model.heads=2")),
        ({"sequence_length": 17}, ("data.sequence_length=17", "model.sequence_length=16")),
        ({"batches": [8, 200]}, ("1,601 tokens", "90 training sequences of 16", "global_batch_size=200")),
        ({"epoch_tokens": 60}, ("data.epoch_tokens=60", "global_batch_size=4 × 16", "data.epoch_tokens=64 or more")),
        ({"dtype": "int8"}, ("data.dtype='int8'", "uint16, uint32")),
        ({"dtype": "uint32"}, ("3,202 bytes", "no multiple of 4")),
        ({"path": "/nowhere"}, ("there is no file or folder /nowhere",)),
        ({"model": {"name": "mlp"}}, ("takes images", "data 'tokens' are texts")),
        ({"name": "digits"}, ("is a language model", "data 'digits' are images")),
    ],
)
def test_bad_input_is_an_error_with_its_numbers(tmp_path, change, numbers):
    (np.arange(1601) % 64).astype(np.uint16).tofile(tmp_path / "train.bin")
    messages = asked(tmp_path / "train.bin", **change)
    assert len(messages) == bool(numbers), messages
    assert all(number in messages[0] for number in numbers)


def test_tokenizer_beyond_the_vocabulary_is_an_error(tmp_path):
    (tmp_path / "text.txt").write_text("some text " * 100)
    content = {"model": {"vocab": {"some": 0, "text": 7}}, "added_tokens": [{"id": 64}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    [error] = asked(tmp_path / "text.txt", name="text", tokenizer=str(tmp_path / "tokenizer.json"))
    assert "up to 64" in error and "model.vocabulary=64" in error
    [error] = asked(tmp_path / "text.txt", name="text")
    assert "up to 255" in error


@pytest.mark.parametrize(
    ("data", "model", "numbers"),
    [
        ({"tokenizer": "tokenizer.json"}, {}, ()),
        ({"tokenizer": "other.json"}, {}, ("other tokens", "tokenizer.json")),
        ({"tokenizer": "other.json"}, {"pretrained": False}, ()),
        ({}, {}, ("reads bytes", "vocabulary is 300", "tokenizer.json")),
        ({}, {"pretrained": False}, ("reads bytes", "vocabulary is 300", "tokenizer.json")),
        ({"name": "tokens"}, {}, ("up to 400", "the 300 of model.path")),
        ({"name": "tokens"}, {"config": {"vocab_size": 401}}, ()),
        ({"tokenizer": "tokenizer.json"}, {"path": "/nowhere"}, ("/nowhere", "no config.json")),
        ({"tokenizer": "tokenizer.json"}, {"path": None}, ("model.path=None", "not a folder")),
        ({"tokenizer": "tokenizer.json"}, {"path": "???"}, ()),  # reported for all sections alike
    ],
)
def test_bad_input_of_a_transformers_folder_is_an_error_with_its_numbers(tmp_path, data, model, numbers):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300, "n_positions": 16}))
    for name, word in (("tokenizer", "one"), ("other", "two")):
        words = {"type": "WordLevel", "vocab": {word: 0}, "unk_token": word}
        content = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": words}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    text = tmp_path / "text.txt"
    text.write_text("one " * 200)
    if data.get("name") == "tokens":
        (np.arange(1604) % 401).astype(np.uint16).tofile(text)
    given = {"name": "text"} | data
    if "tokenizer" in given:
        pytest.importorskip("tokenizers")
        given["tokenizer"] = str(tmp_path / given["tokenizer"])
    folder = {"name": "hf", "path": str(tmp_path), "sequence_length": 16, "vocabulary": None}
    messages = asked(text, batches=[1], model=folder | model, **given)
    assert len(messages) == bool(numbers), messages
    assert all(number in messages[0] for number in numbers)


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "{}", "[" * 100_000, '{"model": 5}', '{"model": {"vocab": 5}}', '{"model": {"vocab": {"a": "x"}}}'),
        *('{"model": {"vocab": {"a": 1e999}}}', '{"model": {"vocab": [], "added_tokens": []}}'),
        '{"model": {"vocab": ["a"]}, "added_tokens": [5]}',
    ],
)
def test_file_that_is_no_tokenizer_is_an_error(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "text.txt").write_text("one " * 200)
    (error,) = asked(tmp_path / "text.txt", batches=[1], name="text", tokenizer=str(tmp_path / "tokenizer.json"))
    assert "tokenizer.json" in error


@pytest.mark.parametrize(("length", "of_data", "counts"), [(16, None, 0), (17, None, 1), (17, 16, 1)])
def test_sequences_beyond_the_positions_show_in_a_plan(tmp_path, length, of_data, counts):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300, "max_position_embeddings": 16}))
    model = {"name": "hf", "path": str(tmp_path), "sequence_length": length}
    messages = list(shape_errors({"model": model, "data": {"name": "text", "sequence_length": of_data}}))
    assert len(messages) == counts and all("write model.sequence_length=16" in error for error in messages)
