"""The fingerprint of a config: what identifies a trial besides its point. Secrets and axes are no part of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, cast

from orchestrator.config.content_hashes import Versions, source_dir, source_file
from orchestrator.config.request import target
from orchestrator.config.schema import IDENTIFYING, at_default, trainable_part
from orchestrator.config.trust import is_users_own, named_code
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.axes import flat
from sweeps.identity import COMMAND, without

_WITHOUT_EFFECT = (
    *("data.root", "data.path", "data.tokenizer", "model.path", "data.download", "trainable.source_dir"),
    *("trainable.grace_s", "trainable.keep_work", "trainable.checkpoint", "trainable.checkpoint_every_s"),
    *("trainable.probe", "trainable.repetition"),
)
"""Keys that cannot change a result: changing one of them does not make another trial."""

_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def fingerprint(config: Mapping[str, Any], versions: Versions, secrets: Secrets = NO_SECRETS) -> dict[str, Any]:
    """Return what identifies a trial besides its point: the config without secrets, and hashes of sources and data."""
    sections = sections_of_trials(config)
    source: dict[str, Any] = {path: versions.source(path) for path in sorted(code_in(sections) | plugins_in(sections))}
    trainable = config["trainable"]
    # A command's code is not imported, so that the files that its words name stand for it.
    if trainable.get("_target_") == COMMAND:
        source |= versions.command(trainable["argv"], source_dir(trainable))
    counted = without(sections, _WITHOUT_EFFECT)
    identifying = {key: config[key] for key in IDENTIFYING}
    # An axis is no part of the fingerprint, so that a wider grid continues the sweep.
    recorded = {
        "config": secrets.value(counted),
        **identifying,
        "defaults": sorted(at_default({"config": counted, **identifying})),
        "source": source,
        "data": versions.data(config.get("data") or {}),
    }
    if weights := (config.get("model") or {}).get("path"):
        recorded["model"] = versions.model(str(weights))
    # Round-tripped as in the journal: keys that are numbers become text.
    return cast(dict[str, Any], json.loads(json.dumps(recorded)))


def sections_of_trials(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a config that trials receive: the trainable's own, and the target if there is one."""
    sections = trainable_part(config)
    if goal := target(config):
        sections["report"] = {"target": asdict(goal)}
    return sections


def code_in(sections: Mapping[str, Any]) -> set[str]:
    """Return every `package.module:name` that is code: named as such in a config, or of a module of the user's.

    `expandable_segments:True` in an environment variable, or `loss:value` in a pattern, is no code.
    """
    named = {name for _, name in named_code(sections) if _CODE.fullmatch(name)}
    others = {text for _, text in flat(sections) if isinstance(text, str) and _CODE.fullmatch(text)} - named
    # Also a name that the module takes from elsewhere, such as `criterion = nn.MSELoss`.
    modules = {text: text.partition(":")[0] for text in others}
    return named | {text for text, module in modules.items() if is_users_own(module) and source_file(module)}


def plugins_in(sections: Mapping[str, Any]) -> set[str]:
    """Return the `package.module:name` of every section whose name is a plugin's; its sources identify the trial."""
    named = {(section, value.get("name")) for section, value in sections.items() if isinstance(value, Mapping)}
    return {path for (section, name), path in _plugins().items() if (section, name) in named}


@functools.cache
def _plugins() -> dict[tuple[str, str], str]:
    # By name, because importing the registry here would load torch.
    installed, groups = entry_points(), resolve_name("trainables.component_registry:PLUGINS")
    return {
        (section, plugin.name): plugin.value
        for section, group in groups.items()
        for plugin in installed.select(group=group)
    }
