"""What a program is told that asks for what is not there; running sweeps from one is an integration test."""

from pathlib import Path

import pytest

from orchestrator import load_results, run_sweep


def test_a_table_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(FileNotFoundError, match="no trial has ended yet"):
        load_results(tmp_path).markdown("speedup")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/speedup.md").write_text("# Speed-up\n")
    assert load_results(tmp_path).markdown("speedup") == "# Speed-up\n"
    with pytest.raises(FileNotFoundError, match="speedups.md: there are speedup$"):
        load_results(tmp_path).markdown("speedups")


def test_a_list_of_overrides_is_refused_and_not_passed_over() -> None:
    with pytest.raises(TypeError, match="config is a mapping or one override as text"):
        run_sweep(["sweep=batch_scaling"])  # type: ignore[arg-type]
