from pathlib import Path

import pytest

from orchestrator.config.trust import hydra_errors, registered, trust_errors

CONF = (Path(__file__).parents[4] / "conf",)


def errors(config, *arguments):
    return list(trust_errors(config, arguments, CONF))


def test_shipped_trainables_are_registered():
    assert {"trainables.noop:train", "trainables.supervised.training:train"} <= registered(CONF)
    assert (
        errors({"trainable": {"_target_": "trainables.supervised.training:train"}, "model": {"name": "small_cnn"}})
        == []
    )


@pytest.mark.parametrize(
    "section", [{"sweep": {"name": "run 1: lr"}}, {"report": {"metric": {"name": "val:acc", "better": "higher"}}}]
)
def test_colon_in_a_name_outside_of_the_trainable_names_no_code(section):
    assert errors(section) == []


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"trainable": {"_target_": "os:system"}}, "trainable._target_"),
        ({"trainable": {"_target_": "builtins.exec"}}, "trainable._target_"),
        ({"trainable": {"_target_": "trainables.rank:import_module"}}, "trainable._target_"),
        ({"trainable": {"_check_": "subprocess:run"}}, "trainable._check_"),
        ({"model": {"name": "torch.hub:load"}}, "model.name"),
        ({"optimizer": {"name": "pathlib:Path.write_text"}}, "optimizer.name"),
        ({"data": {"deep": [{"_target_": "urllib.request:urlopen"}]}}, "data.deep[0]._target_"),
    ],
)
def test_other_code_is_refused(config, key):
    (told,) = errors(config)
    assert told.startswith(f"{key}=") and "is not trusted" in told and "trusted_modules=[" in told


def test_trust_covers_submodules_only():
    config = {"trainable": {"_target_": "mine.training:train"}, "trusted_modules": ["mine"]}
    assert errors(config, "trusted_modules=[mine]") == []
    (told,) = errors({**config, "model": {"name": "mineral:build"}}, "trusted_modules=[mine]")
    assert "'mineral'" in told


@pytest.mark.parametrize(
    "module", ["os", "builtins", "torch", "hydra.utils", "orchestrator.run.driver", "not_there_at_all"]
)
def test_config_file_cannot_trust_installed_modules(module):
    config = {"trainable": {"_target_": f"{module}:anything"}, "trusted_modules": [module]}
    (told,) = errors(config)
    assert repr(module) in told and "on the command line" in told
    assert errors(config, f"trusted_modules=[{module}]") == []


def test_config_file_can_trust_the_own_folder(tmp_path, monkeypatch):
    (tmp_path / "my_own_training.py").write_text("raise SystemExit('imported')\ndef train(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    config = {"trainable": {"_target_": "my_own_training:train"}, "trusted_modules": ["my_own_training"]}
    assert errors(config) == []


OWN = """
import os
import functools
import subprocess as processes
from subprocess import run
from subprocess import call as train_fast
from .inner import deep, system, popen
from .same import same
from . import inner
alias = run
bound = processes.run
made = functools.partial(run, "date")
trainer = made.keywords
method = trainer.get
try:
    from subprocess import check_call as maybe
except ImportError:
    def maybe(): ...
if os.name:
    def conditional(): ...
class Model:
    def build(self): ...
def train(): ...
"""
INNER = "from os import system\nimport os\npopen = os.popen\ndef deep(): ...\nfrom .star import *\n"


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").write_text(OWN)
    (tmp_path / "own_package/inner.py").write_text(INNER)
    (tmp_path / "own_package/same.py").write_text("def same(): ...\n")
    (tmp_path / "own_package/star.py").write_text("from os import execv\ndef starred(): ...\n")
    (tmp_path / "own_module.py").write_text("from json import *\nfrom own_package import train, run")
    monkeypatch.syspath_prepend(tmp_path)


DEFINED = "train same deep made method conditional Model Model.build inner.deep inner.starred".split()
IMPORTED = (
    *("run", "train_fast", "system", "popen", "alias", "bound", "maybe", "os.system", "processes.run"),
    "inner.os.system",
)


@pytest.mark.parametrize("separator", [":", "."])
@pytest.mark.parametrize("name", [*DEFINED, *IMPORTED, "inner.execv", "absent", "inner", "os"])
def test_only_names_that_the_own_package_defines_are_trusted(own_package, name, separator):
    config = {"trainable": {"_target_": f"own_package{separator}{name}"}, "trusted_modules": ["own_package"]}
    for arguments in ([], ["trusted_modules=[own_package]"]):
        assert (errors(config, *arguments) == []) == (name in DEFINED)


@pytest.mark.parametrize("name", ["run", "train", "dumps"])
def test_a_module_trusts_no_other_module(own_package, name):
    config = {"trainable": {"_target_": f"own_module:{name}"}, "trusted_modules": ["own_module"]}
    assert len(errors(config)) == 1


@pytest.mark.parametrize(
    ("name", "is_trusted"),
    [
        *(("json:dumps", True), ("json.decoder:JSONDecoder", True), ("json:JSONDecoder", True)),
        *(("json:codecs.open", False), ("json.decoder:re.compile", False), ("json.decoder.re.compile", False)),
        *(("math:sqrt", True), ("torch.optim:SGD", True), ("torch.serialization:os.system", False)),
    ],
)
def test_names_imported_by_installed_modules_are_not_trusted(name, is_trusted):
    top = name.partition(":")[0].partition(".")[0]
    config = {"trainable": {"_target_": name}, "trusted_modules": [top]}
    assert (errors(config, f"trusted_modules=[{top}]") == []) == is_trusted


@pytest.mark.parametrize("listed", ["os", [1], ["a b"], [""], {"a": 1}])
def test_trusted_modules_must_be_a_list_of_modules(listed):
    (told,) = errors({"trusted_modules": listed})
    assert told.startswith("trusted_modules ") and repr(listed) in told


@pytest.mark.parametrize(
    ("hydra", "told"),
    [
        ({"callbacks": {"x": {"_target_": "os.system"}}}, "hydra.callbacks.x._target_='os.system'"),
        ({"launcher": {"_target_": "evil.Launcher"}}, "hydra.launcher._target_"),
        ({"job_logging": {"handlers": {"h": {"()": "os.system"}}}}, "hydra.job_logging.handlers.h.()='os.system'"),
        ({"job_logging": {"handlers": {"h": {"class": "evil.Handler"}}}}, "evil.Handler"),
        ({"hydra_logging": {"handlers": {"h": {"stream": "ext://os.environ"}}}}, "ext://os.environ"),
    ],
)
def test_hydra_section_with_other_code_is_refused(hydra, told):
    (message,) = hydra_errors(hydra)
    assert told in message


def test_hydra_section_may_name_trusted_code():
    callbacks = {"callbacks": {"x": {"_target_": "mine.callbacks.Keep"}}}
    assert list(hydra_errors(callbacks, ["mine"])) == []
    assert list(hydra_errors(callbacks, ["min"])) != []


def test_shipped_hydra_section_has_no_errors():
    shipped = {
        "launcher": {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"},
        "callbacks": {},
        "job_logging": {"handlers": {"h": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr"}}},
    }
    assert list(hydra_errors(shipped)) == []
