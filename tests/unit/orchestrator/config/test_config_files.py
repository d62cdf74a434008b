"""Forbidden keys of config files from strangers, in every way in which a value can get into a config."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from orchestrator.cli.sweep_checks import checked
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.config_files import DESTINATIONS, SWITCHES, check_file
from orchestrator.config.hydra_private import ConfigFile
from orchestrator.config.schema import SCHEMA
from orchestrator.config.search_path import with_primary
from sweeps.errors import ConfigError

FORBIDDEN: dict[str, Any] = {
    "hydra.mode": "MULTIRUN",
    "hydra.sweeper.params": {"+part@hydra.job": "part"},
    "hydra.sweeper._target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra.launcher._target_": "os.system",
    "hydra.callbacks.x._target_": "os.system",
    "hydra.job.env_set": {"BROWSER": "/bin/sh"},
    "hydra.job.chdir": True,
    "hydra.job_logging.handlers": {"x": {"class": "logging.FileHandler", "filename": "x"}},
    "hydra.hydra_logging.root": None,
    "hydra.output_subdir": "x",
    "hydra.run.dir": "/tmp",
    "hydra.sweep.subdir": "/tmp",
    "hydra.help.template": "x",
    "trusted_modules": ["os"],
    "cluster.address": "ray.example:6379",
    "launch.options.hosts": ["localhost", "evil.example"],
    "data.download": True,
    "init.dir": "/somewhere",
    "local_results_dir": "../up",
    "mode": "init",
    "results_dir": "s3://evil/results",
    "tracker.mlflow.uri": "http://evil.example:5000",
    "tracker.tensorboard.dir": "gs://evil/logs",
    "tracker.wandb.entity": "evil-team",
    "tracker.wandb.mode": "online",
    "tune.storage_path": "s3://evil/tune",
}
ALLOWED: dict[str, Any] = {
    "report.margin": 0.5,
    "cluster.address": "auto",
    "launch.options.hosts": ["localhost"],
    "data.download": False,
    "init.dir": "new",
    "local_results_dir": "a/../b",
    "mode": "run",
    "results_dir": "elsewhere/results",
    "tracker.mlflow.uri": "http://127.0.0.1:5000",
    "tracker.tensorboard.dir": "logs",
    "tracker.wandb.entity": None,
    "tracker.wandb.mode": "offline",
    "tune.storage_path": "tune#1",
}
LIKE_THIS_MACHINE = (
    *(
        "evil://127.0.0.1",
        "ray://evil",
        "127.0.0.1.evil.example:1",
        "localhost@evil.example",
        "${oc.env:HOME}",
        "[::2]:1",
    ),
    *(f"127.0.0.1{sign}.evil.example:1" for sign in "#?/@%"),
)
OUTSIDE = (
    *(
        "/",
        "..",
        "a/../../b",
        "~",
        "~root/x",
        "link",
        "link/new",
        "${oc.env:HOME}",
        "a\\b",
        "a\0b",
        "\ud800",
        "//localhost/x",
    ),
    *("file:///etc", "FILE:///etc", "file:/etc", "file:..", "file://localhost/etc", " file:///etc", "fi\tle:///etc"),
    *("sqlite:////etc/x", "sqlite:///../x", "sqlite:///file:/etc/x?uri=true", "file:%2e%2e", "uc", "evil:x"),
)
"""Places outside the working folder, with a link to its parent in it."""
SWEEP = "# @package _global_\ndefaults: [/sweep/batch_scaling@_global_{}]\nsweep: {{name: theirs}}\n"


def nested(key, value):
    """Return {a: {b: value}} for the key `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def in_the_file(folder, key, value):
    text = SWEEP.format("") + "\n".join(f"{name}: {json.dumps(part)}" for name, part in nested(key, value).items())
    (folder / "sweep/theirs.yaml").write_text(text)
    return ["sweep=theirs"]


def with_all(folder, values):
    together = OmegaConf.create({})
    for key, value in values.items():
        OmegaConf.update(together, key, value)
    (folder / "sweep/theirs.yaml").write_text(SWEEP.format("") + OmegaConf.to_yaml(together))
    return ["sweep=theirs"]


def by_the_package_in_a_header(folder, key, value):
    package, _, name = key.rpartition(".")
    (folder / "part/part.yaml").write_text(f"# @package {package or '_global_'}\n{name}: {json.dumps(value)}\n")
    (folder / "sweep/theirs.yaml").write_text(SWEEP.format(", /part/part"))
    return ["sweep=theirs"]


def by_the_package_in_a_defaults_list(folder, key, value):
    package, _, name = key.rpartition(".")
    (folder / "part/part.yaml").write_text(f"{name}: {json.dumps(value)}\n")
    (folder / "sweep/theirs.yaml").write_text(SWEEP.format(f", /part@{package or '_global_'}: part"))
    return ["sweep=theirs"]


def by_an_override_in_a_defaults_list(folder, key, value):
    package, _, name = key.rpartition(".")
    (folder / "part/part.yaml").write_text(f"{name}: {json.dumps(value)}\n")
    (folder / "part/empty.yaml").write_text("{}\n")
    place = f"/part@{package or '_global_'}"
    (folder / "sweep/middle.yaml").write_text(SWEEP.format(f", {place}: empty"))
    text = f"# @package _global_\ndefaults: [/sweep/middle@_global_, override {place}: part]\n"
    (folder / "sweep/theirs.yaml").write_text(text)
    return ["sweep=theirs"]


def by_interpolation(folder, key, value):
    arguments = in_the_file(folder, key, "${stolen}")
    with (folder / "sweep/theirs.yaml").open("a") as file:
        file.write(f"\nstolen: {json.dumps(value)}\n")
    return arguments


def by_interpolation_of_the_section(folder, key, value):
    section, _, rest = key.partition(".")
    arguments = in_the_file(folder, section, "${stolen}" if rest else value)
    with (folder / "sweep/theirs.yaml").open("a") as file:
        file.write(f"\nstolen: {json.dumps(nested(rest, value) if rest else None)}\n")
    return arguments


def in_a_file_added_on_the_command_line(folder, key, value):
    in_the_file(folder, key, value)
    (folder / "sweep/theirs.yaml").rename(folder / "part/part.yaml")
    return ["+part=part"]


def by_the_header_of_a_file_added_on_the_command_line(folder, key, value):
    package, _, name = key.rpartition(".")
    (folder / "part/part.yaml").write_text(f"# @package {package or '_global_'}\n{name}: {json.dumps(value)}\n")
    return ["sweep=batch_scaling", "+part=part"]


def in_a_primary_config_elsewhere(folder, key, value):
    content = {"defaults": ["config", {"override sweep": "batch_scaling"}, "_self_"], **nested(key, value)}
    (folder / "theirs.yaml").write_text(json.dumps(content))
    return []


WAYS: list[Callable[[Path, str, Any], list[str]]] = [
    *(in_the_file, by_the_package_in_a_header, by_the_package_in_a_defaults_list, by_an_override_in_a_defaults_list),
    *(in_a_file_added_on_the_command_line, by_the_header_of_a_file_added_on_the_command_line),
    in_a_primary_config_elsewhere,
]
INTERPOLATIONS = [by_interpolation, by_interpolation_of_the_section]


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    folder = tmp_path / "theirs"
    for name in ("sweep", "part", "here"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def composed(folder, overrides):
    if not overrides:
        with with_primary("theirs", str(folder)), initialised():
            return Composition([])
    with initialised():
        return Composition([f"hydra.searchpath=[file://{folder}]", *overrides])


def keys_by_ways():
    """Every key by every way; the default suite has one of Hydra's keys by all, and another key by interpolation."""
    for key in FORBIDDEN:
        for way in (*WAYS, *INTERPOLATIONS):
            is_quick = key == "hydra.job.env_set" or (key == "cluster.address" and way in INTERPOLATIONS)
            yield pytest.param(key, way, id=f"{key}-{way.__name__}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("key", "way"), list(keys_by_ways()))
def test_a_strangers_file_sets_no_forbidden_key(theirs, key, way):
    overrides = way(theirs, key, FORBIDDEN[key])
    with pytest.raises(ConfigError) as error:
        composed(theirs, overrides)
    told = error.value.errors[0]
    assert key.partition(".")[0] in told and ".yaml: " in told


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_same_ways_set_other_keys(theirs, way):
    overrides = way(theirs, "report.margin", 0.5)
    assert composed(theirs, overrides).config["report"]["margin"] == 0.5


def test_every_forbidden_key_of_a_file_is_named(theirs):
    with pytest.raises(ConfigError) as error:
        composed(theirs, with_all(theirs, FORBIDDEN))
    told = "\n".join(error.value.errors)
    assert [key for key in FORBIDDEN if f"theirs.yaml: {key.removesuffix('._target_')}" not in told] == []


def test_values_that_are_no_destination_are_allowed(theirs):
    config = OmegaConf.create(dict(composed(theirs, with_all(theirs, ALLOWED)).config))
    assert {key: OmegaConf.select(config, key) for key in ALLOWED} == ALLOWED


def test_every_destination_is_a_key_and_is_tried():
    keys = {*DESTINATIONS, *SWITCHES}
    assert keys <= set(FORBIDDEN) & set(ALLOWED)
    assert {key for key in keys if not key.startswith(("launch.options.", "data."))} <= set(SCHEMA)


@pytest.mark.parametrize(
    "axis",
    [
        *("trusted_modules", "hydra.job.env_set", "cluster.address", "tune.callbacks"),
        *("trusted_modules.0", "trusted_modules[0]", "[trusted_modules].0", ".trusted_modules.0"),
    ],
)
def test_an_axis_sets_no_key_of_a_whole_sweep(theirs, axis, monkeypatch):
    (theirs.parent / "here/mine.py").write_text("def check(config): raise SystemExit('run')\n")
    monkeypatch.syspath_prepend(theirs.parent / "here")
    axes = {axis: [["mine"]], "trainable._check_": ["mine:check"], "gpus": [1], "device_batch_size": [8]}
    text = f"# @package _global_\nsweep: {json.dumps({'name': 'theirs', 'axes': axes})}\n"
    (theirs / "sweep/theirs.yaml").write_text(text)
    with pytest.raises(ConfigError) as error, initialised():
        checked(composed(theirs, ["sweep=theirs", "trusted_modules=[other]"]))
    assert any(repr(axis) in line for line in error.value.errors)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("cluster.address", address) for address in LIKE_THIS_MACHINE),
        *(("tracker.mlflow.uri", place) for place in OUTSIDE),
        *(("mode", mode) for mode in (*SCHEMA["mode"].words, None, "${oc.env:MODE}", ["init"]) if mode != "run"),
    ],
)
def test_values_that_only_resemble_this_machine_or_folder_are_refused(key, value, folder):
    (folder / "link").symlink_to(folder.parent)
    (folder / "loop").symlink_to("loop")
    theirs = {"source": "file:///theirs", "name": "sweep/theirs", "package": "", "is_primary": False, "is_typed": False}
    with pytest.raises(ConfigError, match=re.escape(key)):
        check_file(ConfigFile(config=OmegaConf.create(nested(key, value)), **theirs))


def test_the_own_primary_config_chooses_destinations(theirs, monkeypatch):
    overrides = in_a_primary_config_elsewhere(theirs, "cluster.address", "ray.example:6379")
    monkeypatch.chdir(theirs.parent)
    assert composed(theirs, overrides).config["cluster"]["address"] == "ray.example:6379"


def test_a_typed_group_of_hydra_places_a_file_only_there(theirs):
    (theirs / "hydra/job_logging").mkdir(parents=True)
    file = theirs / "hydra/job_logging/mine.yaml"
    file.write_text("version: 1\nroot: null\n")
    assert composed(theirs, ["sweep=batch_scaling", "hydra/job_logging=mine"]).hydra.job_logging.root is None
    file.write_text("# @package hydra.job\nenv_set: {A: b}\n")
    with pytest.raises(ConfigError, match="hydra.job.env_set"):
        composed(theirs, ["sweep=batch_scaling", "hydra/job_logging=mine"])


def test_the_command_line_places_a_file_into_hydras_section(theirs):
    (theirs / "part/part.yaml").write_text("env_set: {A: b}\n")
    assert composed(theirs, ["+part@hydra.job=part"]).config["strategy"] == "auto"
