import json
from pathlib import Path

from orchestrator.storage import curve
from orchestrator.storage.layout import Layout


def test_a_new_attempt_starts_the_curve_anew(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    path = layout.metrics("t1")
    curve.begin(path)
    curve.extend(path, [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": float("nan")}])
    curve.extend(path, [{"epoch": 3, "loss": 0.5}])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"epoch": 1, "loss": 2.5}, {"epoch": 2, "loss": None}, {"epoch": 3, "loss": 0.5}]
    curve.begin(path)
    assert path.read_bytes() == b""
