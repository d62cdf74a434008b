"""Documents that follow from the declaration of the keys: config, schema for editors, and the resolved sweeps."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from benchmarks.config_document import config_yaml, json_schema
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.overrides import rewritten
from orchestrator.config.schema import SCHEMA
from orchestrator.config.search_path import config_dir
from orchestrator.config.settings import Settings, read
from orchestrator.store import files
from sweeps.axes import flat

SWEEPS = sorted(
    file.relative_to(config_dir() / "sweep").with_suffix("").as_posix()
    for file in [*config_dir().glob("sweep/*.yaml"), *config_dir().glob("sweep/published/*.yaml")]
)


def test_shipped_documents_are_up_to_date():
    config = (config_dir() / "config.yaml").read_text()
    assert config_yaml(config) == config
    assert json.loads((config_dir() / "schema.json").read_text()) == json_schema()


def test_keys_are_frozen(golden):
    """Adding a key is a decision: this file changes."""
    golden("config/keys.txt", "\n".join(SCHEMA) + "\n")


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"report": {"margin": 0.02, "metric": {"name": "bleu", "better": "higher"}}, "own": {"any": 1}}, None),
        ({"budget": {"epochs": None, "steps": "${own.steps}"}, "resources": {"cpus_per_worker": "auto"}}, None),
        ({"report": {"margn": 0.02}}, ["report"]),
        ({"report": {"margin": 0}}, ["report", "margin"]),
        ({"mode": "rnu"}, ["mode"]),
        ({"retries": 1.5}, ["retries"]),
        ({"verbose": "no"}, ["verbose"]),
        ({"sweep": {"budget": 3}}, ["sweep", "budget"]),
    ],
)
def test_editors_find_wrong_keys_and_values(content, path):
    errors = list(Draft202012Validator(json_schema()).iter_errors(content))
    assert [list(error.absolute_path) for error in errors] == ([] if path is None else [path])


def test_shipped_configs_fit_the_schema():
    validator = Draft202012Validator(json_schema())
    for file in [config_dir() / "config.yaml", *config_dir().glob("sweep/**/*.yaml")]:
        content = {key: value for key, value in files.load(file.read_text()).items() if key != "defaults"}
        if "sweep" in content or file.name == "config.yaml":
            assert [error.message for error in validator.iter_errors(content)] == [], file


def test_shipped_sweeps_leave_groups_to_their_options():
    """The user's `optimizer=Y` would otherwise keep what `sweep=X` sets in `optimizer`."""
    for file in config_dir().glob("sweep/*.yaml"):
        assert not files.load(file.read_text()).keys() & {"model", "data", "optimizer", "schedule"}, file


def resolved_config(*overrides):
    with initialised():
        composition = Composition(rewritten(overrides))
    return {key: value for key, value in composition.config.items() if key != "hydra"}


def test_settings_have_the_values_of_the_config():
    config = resolved_config("sweep=batch_scaling", "report.margin=0.5", "compare.with=other")
    settings = read(Settings, config)
    assert (settings.report.margin, settings.compare.with_, settings.sweep.name) == (0.5, "other", "batch_scaling")
    assert settings.tracker.wandb.mode == "offline" and settings.budget.epochs == config["budget"]["epochs"]


@pytest.mark.parametrize("sweep", SWEEPS)
def test_resolved_sweep(sweep, golden):
    """Each sweep, and its scales, by the keys in which it differs from the shipped config."""
    base = dict(flat(resolved_config("sweep.name=none")))
    scales = sorted(file.stem for file in Path(config_dir() / "sweep" / sweep).glob("*.yaml"))
    parts = {}
    for scale in ("", *scales):
        config = flat(resolved_config(f"sweep={sweep}", *([f"scale={scale}"] if scale else [])))
        parts[scale or "default"] = {key: value for key, value in config if base.get(key, "absent") != value}
    golden(f"config/{sweep.replace('/', '-')}.yaml", yaml.safe_dump(parts, sort_keys=True, width=110))
