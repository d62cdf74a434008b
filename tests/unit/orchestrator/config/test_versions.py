import importlib
import sys

import pytest

from orchestrator.config.versions import data_version, source_version


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "mytraining"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('only read, never imported')")
    (folder / "train.py").write_text("def train(config, context): ...")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return folder


def test_a_package_is_its_sources_and_is_not_imported(package):
    before = source_version("mytraining.train:train")
    (package / "README.md").write_text("words")
    assert source_version("mytraining.train:train") == before
    (package / "train.py").write_text("def train(config, context): return")
    assert source_version("mytraining.train:train") != before
    assert "mytraining" not in sys.modules


def test_a_single_module_is_its_file(tmp_path, monkeypatch):
    script = tmp_path / "mytrain.py"
    script.write_text("def train(config, context): ...")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    before = source_version("mytrain:train")
    script.write_text("def train(config, context): return")
    assert source_version("mytrain:train") != before


@pytest.mark.parametrize(("folder", "belong"), [("mine", True), ("site-packages", False)])
def test_scripts_beside_a_module_belong_to_it_unless_an_installer_put_it_there(folder, belong, tmp_path, monkeypatch):
    place = tmp_path / folder
    place.mkdir()
    (place / "lone_training.py").write_text("def train(config, context): ...")
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    before = source_version("lone_training:train")
    (place / "neighbour.py").write_text("")
    assert (source_version("lone_training:train") != before) is belong


def test_a_package_that_is_not_there():
    with pytest.raises(ValueError, match="no package or module 'nowhere'"):
        source_version("nowhere.to_be:found")


def test_data_files_count_by_content_not_by_path(tmp_path):
    for name, content in (("a.npz", b"1"), ("b.npz", b"1"), ("c.npz", b"2")):
        (tmp_path / name).write_bytes(content)
    versions = [data_version({"name": "npz", "path": str(tmp_path / name)}) for name in ("a.npz", "b.npz", "c.npz")]
    assert versions[0] == versions[1] != versions[2]


def test_data_known_by_name_and_data_that_is_absent(tmp_path):
    assert data_version({"name": "digits"}) == "digits"
    assert data_version({"name": "npz", "path": str(tmp_path / "none.npz")}) == "absent"


def test_a_name_that_the_module_never_mentions_is_refused_and_a_star_import_may_bring_any(package):
    with pytest.raises(ValueError, match="train.py has no 'trian'"):
        source_version("mytraining.train:trian")
    with pytest.raises(ValueError, match="there is no module 'mytraining.nowhere'"):
        source_version("mytraining.nowhere:train")
    (package / "models.py").write_text("from mytraining.train import *")
    assert source_version("mytraining.models:train") == source_version("mytraining.train:train")


def test_what_a_script_imports_from_beside_itself_belongs_to_it(tmp_path, monkeypatch):
    (tmp_path / "main_script.py").write_text("import sibling_script\ndef train(config, context): ...")
    (tmp_path / "sibling_script.py").write_text("depth = 1")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    before = source_version("main_script:train")
    (tmp_path / "sibling_script.py").write_text("depth = 2")
    assert source_version("main_script:train") != before


def test_an_installed_package_is_known_without_reading_it():
    assert source_version("torch.optim:Adagrad") == source_version("torch.nn:Linear")
