"""Test that the example notebooks run; their outputs are committed, and small."""

import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))


def test_both_notebooks_have_outputs():
    nbformat = pytest.importorskip("nbformat")
    assert len(NOTEBOOKS) >= 2
    for path in NOTEBOOKS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells) and any(cell.outputs for cell in cells)
        assert path.stat().st_size < 100_000
        assert "/root/" not in path.read_text() and "/home/" not in path.read_text()


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    shutil.copy(path, tmp_path)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.get("outputs", ()))
