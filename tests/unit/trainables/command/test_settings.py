import pytest

from trainables.command.settings import TemplateError, fill, words


def test_words_are_split_as_by_a_shell():
    assert words("python 'my script.py' --lr {lr}") == ["python", "my script.py", "--lr", "{lr}"]
    assert words(["python", "a b", 3]) == ["python", "a b", "3"]
    with pytest.raises(TemplateError, match="No closing quotation"):
        words("python 'train.py")


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
        ("{learning_rate}", r"\(did you mean \{lr\}\?\)"),
        ("{epoch}", r"\(did you mean \{epochs\}\?\)"),
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
