from pathlib import Path

import pytest

from trainables.command import output_lines
from trainables.command.output_lines import OutputLines


def test_lines_come_once_they_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "out"
    output = OutputLines(path)
    assert list(output.new()) == []
    path.write_bytes(b"first\nsec")
    assert list(output.new()) == ["first"]
    with path.open("ab") as file:
        file.write("ond ü".encode()[:-1])
    assert list(output.new()) == []
    with path.open("ab") as file:
        file.write("ü".encode()[1:] + b"\r10%\r20%\nlast")
    assert list(output.new()) == ["second ü", "10%", "20%"]
    assert list(output.new(ended=True)) == ["last"] and list(output.new(ended=True)) == []


def test_bytes_that_are_no_text_break_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"a\xffb\n")
    assert list(OutputLines(tmp_path / "out").new()) == ["a\ufffdb"]


def test_what_never_ends_its_line_is_given_out_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lines, "LONGEST", 8)
    (tmp_path / "out").write_bytes(b"x" * 20)
    output = OutputLines(tmp_path / "out")
    assert list(output.new()) == ["x" * 16] and list(output.new(ended=True)) == ["x" * 4]
