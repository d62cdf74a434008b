from trainables.command import file_tail
from trainables.command.file_tail import FileTail


def test_only_complete_lines_are_read(tmp_path):
    path = tmp_path / "out"
    output = FileTail(path)
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


def test_invalid_utf8_is_replaced(tmp_path):
    (tmp_path / "out").write_bytes(b"a\xffb\n")
    assert list(FileTail(tmp_path / "out").new()) == ["a\ufffdb"]


def test_an_endless_line_is_split(tmp_path, monkeypatch):
    monkeypatch.setattr(file_tail, "LONGEST", 8)
    monkeypatch.setattr(file_tail, "CHUNK", 4)
    (tmp_path / "out").write_bytes(b"x" * 20)
    output = FileTail(tmp_path / "out")
    assert list(output.new()) == ["x" * 12] and list(output.new(ended=True)) == ["x" * 8]


def test_a_backlog_is_skipped_from_line_to_line(tmp_path, monkeypatch):
    for name, number in {"CHUNK": 8, "BACKLOG": 40, "BACKLOG_KEPT": 14}.items():
        monkeypatch.setattr(file_tail, name, number)
    (tmp_path / "out").write_text("".join(f"line {number}\n" for number in range(100, 200)))
    output = FileTail(tmp_path / "out")
    monkeypatch.setattr(file_tail, "READ_S", -1.0)  # the first look returns nothing, and finds too long a backlog
    assert list(output.new()) == [] and len(list(output.remarks("stdout"))) == 1
    assert list(output.new(ended=True)) == ["line 199"]


def test_a_long_log_keeps_its_head_and_its_tail(tmp_path, monkeypatch):
    for name, number in {"LOG_MOST": 60, "LOG_KEPT": 10}.items():
        monkeypatch.setattr(file_tail, name, number)
    path = tmp_path / "out"
    path.write_text("first one\n" + "x" * 50 + "\n" + "the last\n")
    output = FileTail(path)
    assert list(output.new()) == ["first one", "x" * 50, "the last"]
    output.shorten()
    assert path.read_text().startswith("first one\n") and path.read_text().endswith("]\n\nthe last\n")
    with path.open("a") as file:
        file.write("next\n")
    assert list(output.new()) == ["next"]
