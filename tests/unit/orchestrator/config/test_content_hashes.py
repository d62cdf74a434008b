import importlib
import sys

import pytest

from orchestrator.config import content_hashes
from orchestrator.config.content_hashes import Versions, data_version, import_errors, named_files


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "mytraining"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('only read, never imported')")
    (folder / "train.py").write_text("def train(config, context): ...")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return folder


def test_package_version_hashes_sources_without_import(package):
    before = Versions().source("mytraining.train:train")
    (package / "README.md").write_text("words")
    assert Versions().source("mytraining.train:train") == before
    (package / "train.py").write_text("def train(config, context): return")
    assert Versions().source("mytraining.train:train") != before
    assert "mytraining" not in sys.modules


@pytest.mark.parametrize(("folder", "belong"), [("mine", True), ("site-packages", False)])
def test_scripts_beside_a_module_count_unless_installed(folder, belong, tmp_path, monkeypatch):
    place = tmp_path / folder
    place.mkdir()
    (place / "lone_training.py").write_text("def train(config, context): ...")
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    before = Versions().source("lone_training:train")
    (place / "neighbour.py").write_text("")
    assert (Versions().source("lone_training:train") != before) is belong


def test_version_of_a_study_covers_the_loop_that_it_uses(tmp_path, monkeypatch):
    for name in ("studies", "trainables"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "studies" / "conv2d.py").write_text("def train(): ...\n")
    (tmp_path / "trainables" / "rank.py").write_text("def run(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("studies", "trainables"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = Versions().source("studies.conv2d:train")
    (tmp_path / "trainables" / "rank.py").write_text("def run(): return 1\n")
    assert Versions().source("studies.conv2d:train") != before


def test_missing_package_is_an_error():
    with pytest.raises(ValueError, match="no package or module 'nowhere'"):
        Versions().source("nowhere.to_be:found")


def test_data_files_count_by_content_not_by_path(tmp_path):
    for name, content in (("a.npz", b"1"), ("b.npz", b"1"), ("c.npz", b"2")):
        (tmp_path / name).write_bytes(content)
    fingerprint = [data_version({"name": "npz", "path": str(tmp_path / name)}) for name in ("a.npz", "b.npz", "c.npz")]
    assert fingerprint[0] == fingerprint[1] != fingerprint[2]


def test_folder_of_images_counts_by_names_and_sizes(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"12")
    config = {"name": "imagefolder", "path": str(tmp_path)}
    before = data_version(config)
    assert before != "absent" and data_version(config) == before
    (tmp_path / "cat" / "a.png").rename(tmp_path / "cat" / "b.png")
    assert data_version(config) != before


def test_data_version_of_named_and_absent_data(tmp_path):
    assert data_version({"name": "digits"}) == "digits"
    assert data_version({"name": "npz", "path": str(tmp_path / "none.npz")}) == "absent"


def test_unmentioned_name_is_refused_unless_a_star_import_exists(package):
    with pytest.raises(ValueError, match="train.py has no 'trian'"):
        Versions().source("mytraining.train:trian")
    with pytest.raises(ValueError, match="there is no module 'mytraining.nowhere'"):
        Versions().source("mytraining.nowhere:train")
    (package / "models.py").write_text("from mytraining.train import *")
    assert Versions().source("mytraining.models:train") == Versions().source("mytraining.train:train")


def test_imports_beside_a_script_belong_to_it(tmp_path, monkeypatch):
    (tmp_path / "main_script.py").write_text("import sibling_script\ndef train(config, context): ...")
    (tmp_path / "sibling_script.py").write_text("depth = 1")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    before = Versions().source("main_script:train")
    (tmp_path / "sibling_script.py").write_text("depth = 2")
    assert Versions().source("main_script:train") != before


def test_installed_package_is_hashed_by_sizes():
    assert Versions().source("torch.optim:Adagrad") == Versions().source("torch.nn:Linear")


def version_of(argv, folder, outputs=None):
    return Versions(outputs).command(argv, folder)


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
def test_command_version_covers_named_files_and_code_beside_them(folder, name, changes):
    before = version_of(ARGV, folder)
    (folder / name).write_text("second")
    assert (version_of(ARGV, folder) != before) is changes


@pytest.mark.parametrize("argv", ["train.py --config net.yaml", "train.py --config=net.yaml", ["train.py", "net.yaml"]])
def test_files_of_a_command_have_a_hash_each(folder, argv):
    before = version_of(argv, folder)
    assert list(before["files"]) == ["net.yaml"]
    (folder / "net.yaml").write_text("second")
    now = version_of(argv, folder)
    assert now["argv"] == before["argv"] and now["files"] != before["files"]
    assert version_of(argv, folder, before["files"]) == before


def test_an_output_counts_as_before_it_was_written(folder):
    argv = "train.py log.txt"
    before = version_of(argv, folder)
    (folder / "log.txt").write_text("of a trial")
    assert version_of(argv, folder) != before
    assert version_of(argv, folder, {"log.txt": "", "other.txt": "1"}) == before
    assert list(named_files(argv, folder)) == ["log.txt"]  # code is part of the trials, also if trials write it


@pytest.mark.parametrize("argv", ["python -m models.net --lr {lr}", ["python", "-m", "models.net"]])
def test_module_option_names_its_package(folder, argv):
    before = version_of(argv, folder)
    (folder / "train.py").write_text("second")
    assert version_of(argv, folder) == before
    (folder / "models/net.py").write_text("second")
    assert version_of(argv, folder) != before


def test_program_elsewhere_has_no_files_here(folder):
    assert version_of("nvidia-smi -L", folder) == version_of("true", folder)


def test_huge_folder_counts_only_named_files(folder, monkeypatch):
    monkeypatch.setattr(content_hashes, "MOST_FILES", 1)
    before = version_of(ARGV, folder)
    (folder / "models/net.py").write_text("second")
    assert version_of(ARGV, folder) == before
    (folder / "train.py").write_text("second")
    assert version_of(ARGV, folder) != before


FILES = {
    "mine/__init__.py": "",
    "mine/training.py": "import json, torch\nfrom mine import parts\nfrom . import more\n",
    "mine/parts.py": "try:\n    import absent_one\nexcept ImportError:\n    pass\ndef train():\n    import absent\n",
    "mine/more.py": "import yaml.nodes\nfrom mine.parts import train\n",
    "mine/lacking.py": "from mine import deeper\n",
    "mine/deeper.py": "import os\nimport absent_library.part\n",
    "mine/broken.py": "import absent_library\ndef train(config, context)\n    pass\n",
    "mine/reaching.py": "import sys\nsys.path.append('/elsewhere')\nimport absent_library\n",
    "single.py": "from .siblings import x\nimport mine.lacking\n",
}


@pytest.fixture
def folder_own_code(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.training:train", None),
        ("mine.reaching:train", None),
        ("trainables.supervised.training:train", None),
        ("mine.lacking:train", ("deeper", "'absent_library'")),
        ("single:train", ("deeper", "'absent_library'")),
        ("mine.broken:train", ("broken", "SyntaxError: expected ':'")),
    ],
)
def test_import_error_names_file_and_line(folder_own_code, name, told):
    messages = list(import_errors([name], installed=True))
    assert len(messages) == (told is not None)
    for error in messages:
        assert error.startswith(f"{folder_own_code / 'mine' / told[0]}.py, line 2: ") and told[1] in error
    assert not {"mine", "single", "absent_library"} & set(sys.modules)


def test_only_syntax_counts_if_other_machines_import(folder_own_code):
    assert list(import_errors(["mine.lacking:train"], installed=False)) == []
    assert len(list(import_errors(["mine.broken:train", "mine.broken:other"], installed=False))) == 1


def test_weights_of_a_model_are_part_of_the_version(tmp_path):
    def version():
        return Versions().model(str(tmp_path / "model"))

    assert version() == "absent"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_bytes(b"one")
    first = version()
    (tmp_path / "model" / ".git").mkdir()
    (tmp_path / "model" / ".git" / "index").write_bytes(b"what git notes")
    assert version() == first != "absent"
    (tmp_path / "model" / "weights.bin").write_bytes(b"two")
    assert version() != first
