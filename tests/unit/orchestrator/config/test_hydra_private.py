"""Hydra's private names, as `orchestrator.config.hydra_private` uses them: fails if a release of Hydra changes them."""

import copy
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra._internal.hydra as hydra_app
import omegaconf._utils
import pytest
import yaml
from hydra import compose
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins import file_config_source, importlib_resources_config_source
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigSource
from omegaconf import OmegaConf
from omegaconf.base import Metadata

from orchestrator.config import hydra_private, yaml_private
from orchestrator.config.compose import CHECKS, initialised
from orchestrator.config.search_path import config_dir, primary
from tests.composed_once import LIST, MERGE

ROOT = Path(__file__).parents[4]


def test_installed_hydra_is_in_the_tested_range():
    assert version("hydra-core").startswith("1.3.")


def test_only_this_module_names_hydras_internals():
    pattern = re.compile(r"hydra\._internal|hydra\.core\.|GlobalHydra")
    files = [path for path in (ROOT / "orchestrator").rglob("*.py") if pattern.search(path.read_text())]
    assert [path.name for path in files] == ["hydra_private.py"]


def test_signatures_are_those_that_are_called():
    loader = inspect.signature(ConfigLoaderImpl._parse_overrides_and_create_caching_repo).parameters
    assert list(loader)[1:] == ["config_name", "overrides"]
    assert {"provider", "path", "anchor"} <= set(inspect.signature(ConfigSearchPath.prepend).parameters)


def test_files_are_read_with_limits_in_the_first_context_of_a_process():
    code = (
        "from orchestrator.config import hydra_private\n"
        "from orchestrator.config.compose import initialised\n"
        "with initialised():\n"
        "    for reader in (hydra_private.file_config_source, hydra_private.importlib_resources_config_source):\n"
        "        assert reader.OmegaConf is hydra_private.LoadingOnce, reader"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_flags_are_found():
    assert {"--cfg", "-c", "--multirun", "-m", "--config-dir", "-cd"} <= set(hydra_private.flag_names())
    flags = hydra_private.flags_parser().parse_args(["-m", "-cd", "my", "a=1"])
    assert (flags.multirun, flags.config_dir, flags.overrides) == (True, "my", ["a=1"])


def test_overrides_are_parsed():
    plain, sweep = hydra_private.parsed_overrides(["a=[1,2]", "b=1,2"])
    assert plain.value() == [1, 2] and not plain.is_sweep_override()
    assert list(sweep.sweep_iterator()) == [1, 2] and sweep.is_discrete_sweep()
    assert (plain.get_key_element(), plain.get_value_element_as_str()) == ("a", "[1,2]")
    with pytest.raises(HydraException):
        hydra_private.parsed_overrides(["a=[1"])


def test_groups_choices_and_state_of_the_program(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text("name: mine")
    before = GlobalHydra.instance().hydra
    with hydra_private.initialised_at(config_dir(), tmp_path, CHECKS):
        configs = hydra_private.repository("config", [])
        assert {"model", "sweep"} <= set(hydra_private.names_in("", configs, groups=True))
        assert {"mine", "small_cnn"} <= set(hydra_private.names_in("model", configs))
    assert GlobalHydra.instance().hydra is before


def test_plain_sweeper_exists():
    assert pkgutil.resolve_name(hydra_private.PLAIN_SWEEPER).__name__ == "BasicSweeper"


ODD_YAML = [
    *(
        *("a: 1e-4", "a: 1_000", "a: 010", "a: 2026-11-25", "a: 1:30", "a: .inf", "a: yes", "a: ~", "a: '1'"),
        "a: |\n  b\n",
    ),
    *("\ufeffa: 1", "a: &x [1]\nb: *x", "a: ???", "a: ${b}", "- 1", "", "a: !!python/object/apply:pathlib.Path [b]"),
]
REFUSED_YAML = ["a: 1\na: 2", "a: [1", "a: !!python/object/apply:os.system [id]", "a: !x 1", "[" * 2000]


@pytest.mark.parametrize("text", [*ODD_YAML, *(path.read_text() for path in sorted(config_dir().rglob("*.yaml")))])
def test_fast_yaml_loader_reads_the_same(text):
    fast, pure = yaml_private._yaml_loader(), omegaconf._utils.get_yaml_loader()
    assert yaml.load(text, Loader=fast) == yaml.load(text, Loader=pure)  # noqa: S506
    assert fast is not pure or not yaml.__with_libyaml__


@pytest.mark.parametrize("text", REFUSED_YAML)
def test_fast_yaml_loader_refuses_the_same(text):
    with pytest.raises(yaml.YAMLError):
        yaml.load(text, Loader=yaml_private._yaml_loader())  # noqa: S506


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000 + "x", "{a: " * 100_000])
def test_libyaml_refuses_deep_nesting(text):
    with pytest.raises(yaml.YAMLError, match="nesting"):
        yaml.load(text, Loader=yaml_private._yaml_loader())  # noqa: S506


def patched():
    return (
        hydra_app.ConfigLoaderImpl,
        vars(ConfigSource)["_get_header_dict"],
        file_config_source.OmegaConf,
        importlib_resources_config_source.OmegaConf,
        defaults_list._create_interpolation_map,
        vars(Metadata).get("__deepcopy__"),
    )


def test_hydra_is_as_before_afterwards():
    before = patched()
    with pytest.raises(RuntimeError), hydra_private.initialised_at(config_dir(), None, CHECKS):
        assert not any(own is other for own, other in zip(patched(), before, strict=True))
        raise RuntimeError("inside")
    assert patched() == before


def test_metadata_are_copied_as_python_does():
    config = OmegaConf.create({"a": {"b": [1]}, "c": "${a}"})
    OmegaConf.set_struct(config, True)
    config._metadata.resolver_cache["now"]["%Y"] = 2026
    for node in (config, config.a, config.a.b, config._get_node("c")):
        copied = yaml_private.copied_metadata(node._metadata, {})
        assert copied == copy.deepcopy(node._metadata) and type(copied) is type(node._metadata)
        copied.flags["readonly"], copied.resolver_cache["now"]["%Y"] = True, 0
        assert copied != node._metadata


def test_each_composition_has_its_own_copy_of_the_files(tmp_path):
    def composed(*lines):
        (tmp_path / "mine.yaml").write_text("\n".join(["defaults: [config, {part: '${model}'}, _self_]", *lines]))
        return compose("mine", ["sweep=batch_scaling", "model=small_cnn"])

    (tmp_path / "part").mkdir()
    (tmp_path / "part/small_cnn.yaml").write_text("values: [1]")
    with hydra_private.initialised_at(config_dir(), tmp_path, CHECKS):
        first = composed("own: 1")
        first.part["values"].append(2)
        assert composed("own: 1").part["values"] == [1]
        assert (first.own, composed("own: 2").own) == (1, 2)


@pytest.mark.parametrize("given", [["sweep=batch_scaling", "model=resnet18"], ["sweep=lm_scaling", "~schedule"]])
def test_compositions_that_tests_share_are_those_of_hydra(given):
    with initialised():
        for _ in range(2):
            shared = compose(primary(), given)
        shared.copy().sweep.name = "other"
        with (
            yaml_private.replaced(defaults_list, "_create_defaults_list", LIST),
            yaml_private.replaced(ConfigLoaderImpl, "_compose_config_from_defaults_list", MERGE),
        ):
            own = compose(primary(), given)
    assert OmegaConf.to_container(shared, resolve=False) == OmegaConf.to_container(own, resolve=False)
    assert shared == own and shared.model._get_parent() is shared


WRONG_YAML = {
    **{tag: tag for tag in ("!!bool x", "!!map [1]", "!!set [1]", "!!timestamp x", "!!binary aGk=", "!mine x")},
    "code": "!!python/name:os.system",
    "bomb": "&0 [x]\n" + "".join(f"{n}: &{n} [{', '.join([f'*{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "itself": "&a [*a]",
}


@pytest.mark.parametrize("text", WRONG_YAML.values(), ids=WRONG_YAML)
@pytest.mark.parametrize("has_libyaml", [True, False])
def test_values_without_meaning_are_an_error_in_yaml(text, has_libyaml, monkeypatch):
    monkeypatch.setattr(yaml, "__with_libyaml__", has_libyaml)
    loader: Any = yaml_private._yaml_loader.__wrapped__()
    with pytest.raises(yaml.YAMLError):
        yaml.load(f"a: {text}", Loader=loader)  # noqa: S506


def test_a_program_reads_its_own_files_during_a_sweep(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("a: 1")
    with initialised():
        assert OmegaConf.load(file) == OmegaConf.load(str(file)) == {"a": 1}
