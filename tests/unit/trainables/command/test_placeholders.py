import subprocess

import pytest
import yaml

from trainables.command.placeholders import TemplateError, fill, filled, words_of


def test_words_are_split_as_by_a_shell():
    assert words_of("python 'my script.py' --lr {lr}") == ["python", "my script.py", "--lr", "{lr}"]
    assert words_of(["python", "a b", 3]) == ["python", "a b", "3"]
    with pytest.raises(TemplateError, match="No closing quotation"):
        words_of("python 'train.py")


LINES = [
    *("python train.py \\\n  --lr 1 \\\n  --bs 2", "--na\\\nme", "\"a\\\nb\" 'c\\\nd'", "a\\ b \\'x\\' \\\"y"),
    *('"it\'s \\"quoted\\" \\\nhere" end \\\n\'x\'', "a '' \"\" b"),
]


def test_lines_are_joined_as_by_a_shell():
    script = "; ".join(f"printf '%s\\0' {argv}; printf '\\n\\0'" for argv in LINES)
    output = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [word for argv in LINES for word in [*words_of(argv), "\n"]] == output.split("\0")[:-1]
    assert words_of("a \\\r\n b") == ["a", "b"]


@pytest.mark.parametrize(
    ("templates", "result"),
    [
        (["train", "{flag}", "--x"], ["train", "--x"]),
        (["train", "", "--x={flag}"], ["train", "", "--x="]),
        (["{lr}", "{rates}", "{text}"], ["5.0e-05", "[1.0e-08, 0.5, 1.5e-07]", "1e-5"]),
        (["{big}", "{half}", "{whole}"], ["1.0e+16", "0.5", "3"]),
    ],
)
def test_words_are_filled(templates, result):
    values = {
        "flag": "",
        "lr": 5e-5,
        "rates": [1e-8, 0.5, 1.5e-7],
        "text": "1e-5",
        "big": 1e16,
        "half": 0.5,
        "whole": 3,
    }
    assert filled(templates, values) == result
    assert yaml.safe_load(filled(["{lr}"], values)[0]) == 5e-5


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("--lr {lr}", "--lr 0.1"),
        ("{{lr}}", "{lr}"),
        ("{{{lr}}}", "{0.1}"),
        ("--bs={ batch.size }", "--bs=32"),
        ("nothing", "nothing"),
        ('{{"lr": {lr}}}', '{"lr": 0.1}'),
    ],
)
def test_names_and_dotted_keys_are_filled_in(template, filled):
    assert fill(template, {"lr": 0.1, "batch": {"size": 32}}) == filled


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{batch_size}", r"\{device_batch_size\} or \{global_batch_size\}"),
        ("{learning_rate}", r"write \{lr\}$"),
        ("{trial.seed}", r"write \{seed\}$"),
        ("{epoch}", r"write \{epochs\}$"),
        ("{model.depth}", r"^\{model.depth\} is neither"),
        ("{lr", "single '{'"),
        ("lr}", "twice: }}"),
        ("{}", r"^\{\} is neither"),
        ("{steps}", "steps has no value"),
    ],
)
def test_an_invalid_template_is_refused(template, match):
    with pytest.raises(TemplateError, match=match):
        fill(template, {"lr": 0.1, "model": {}, "steps": None})
