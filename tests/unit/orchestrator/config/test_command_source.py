import pytest

from orchestrator.config import command_source
from orchestrator.config.command_source import command_version

ARGV = "torchrun --nproc_per_node={gpus} train.py --lr {lr} --config net.yaml"


@pytest.fixture
def folder(tmp_path):
    for name in ("train.py", "models/net.py", "net.yaml", "README.md", ".venv/lib/x.py", "results/y.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("train.py", True),
        ("models/net.py", True),
        ("net.yaml", True),
        ("README.md", False),
        (".venv/lib/x.py", False),
        ("results/y.py", False),
    ],
)
def test_the_version_is_that_of_the_files_named_and_of_the_code_beside_them(folder, name, changes):
    before = command_version(ARGV, folder)
    (folder / name).write_text("second")
    assert (command_version(ARGV, folder) != before) is changes


@pytest.mark.parametrize("argv", ["python -m models.net --lr {lr}", ["python", "-m", "models.net"]])
def test_a_module_stands_for_its_package(folder, argv):
    before = command_version(argv, folder)
    (folder / "train.py").write_text("second")
    assert command_version(argv, folder) == before
    (folder / "models/net.py").write_text("second")
    assert command_version(argv, folder) != before


def test_a_program_from_elsewhere_has_no_files_here(folder):
    assert command_version("nvidia-smi -L", folder) == command_version("true", folder)


def test_a_folder_of_more_files_than_any_project_counts_by_those_that_are_named(folder, monkeypatch):
    monkeypatch.setattr(command_source, "MOST_FILES", 1)
    before = command_version(ARGV, folder)
    (folder / "models/net.py").write_text("second")
    assert command_version(ARGV, folder) == before
    (folder / "train.py").write_text("second")
    assert command_version(ARGV, folder) != before
