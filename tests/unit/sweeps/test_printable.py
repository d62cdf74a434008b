import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import ConfigError
from sweeps.printable import HARMFUL, printable, printable_line
from tests.contract.trials import trial


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("50%\rdone\x7f", "50%\\x0ddone\\x7f"),
        ("\u202efdp", "\\u202efdp"),
        ("half \ud800", "half \\ud800"),
        ("é × 漢字 😀\n\tindented", "é × 漢字 😀\n\tindented"),
    ],
)
def test_harmful_characters_are_escaped(text, told):
    assert printable(text) == told


@given(st.text(st.characters()))
def test_text_of_any_characters_becomes_printable(text):
    assert HARMFUL.search(printable(text)) is None and printable(printable(text)) == printable(text)
    assert len(printable_line(text).split("\n")) == 1


def test_labels_and_errors_are_printable():
    one = trial("t", "quick")
    one.axes["name"] = "\x1b]0;title\x07\n"  # type: ignore[index]
    assert one.label == "contract/gpus=1,name=\\x1b]0;title\\x07\\n"
    assert ConfigError(["model='\x1b[2J' is unknown"]).errors == ("model='\\x1b[2J' is unknown",)
