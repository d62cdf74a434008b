import pytest

from trainables.command.settings import TemplateError, fill, words


def test_words_are_a_shells():
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
    ("template", "told"),
    [
        ("{batch_size}", "neither a config key nor one of gpus"),
        ("{batch_size}", r"did you mean \{device_batch_size\} or \{global_batch_size\}"),
        ("{learning_rate}", r"\(did you mean \{lr\}\?\)"),
        ("{epoch}", r"\(did you mean \{epochs\}\?\)"),
        ("{model.depth}", "neither a config key"),
        ("{lr", "a single '{'"),
        ("lr}", "written twice: }}"),
        ("{}", "neither a config key"),
        ("{steps}", "steps has no value"),
    ],
)
def test_what_cannot_be_filled_in_is_told(template, told):
    with pytest.raises(TemplateError, match=told):
        fill(template, {"lr": 0.1, "model": {}, "steps": None})
