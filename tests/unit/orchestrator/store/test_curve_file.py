import json

from orchestrator.store import curve_file


def test_a_new_attempt_starts_the_curve_anew(results_folder):
    path = results_folder.metrics("t1")
    curve_file.begin(path)
    curve_file.extend(path, [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": float("nan")}])
    curve_file.extend(path, [{"epoch": 3, "loss": 0.5}])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": None}, {"epoch": 3, "loss": 0.5}]
    curve_file.begin(path)
    assert path.read_bytes() == b""


def test_invalid_and_torn_rows_are_reported(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch":1}\n[1]\nno JSON\n{"epoch":2}\n{"epoch":3')
    rows, damages = curve_file.read(path)
    assert rows == [{"epoch": 1}, {"epoch": 2}]
    told = ["line 2 is not a row (3 bytes)", "line 3 is not a row (7 bytes)", "torn: line 5 has no end (10 bytes)"]
    assert damages == told


def test_last_row_may_lack_its_line_end():
    assert curve_file.parsed(b'{"epoch":1}\n{"epoch":2}') == ([{"epoch": 1}, {"epoch": 2}], [])
    assert curve_file.parsed(b"") == ([], [])


def test_deep_row_is_damage():
    deep = b'{"epoch":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    rows, damages = curve_file.parsed(b'{"epoch":1}\n' + deep)
    assert rows == [{"epoch": 1}] and len(damages) == 1


def test_continued_attempt_removes_rows_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch":1}\n{"loss":1}\n{"epoch":"2"}\n{"epoch":2}\n{"epoch":1.5}\n{"ep')
    curve_file.take_back(path, 2)
    assert path.read_bytes() == b'{"epoch":1}\n{"epoch":1.5}\n'
