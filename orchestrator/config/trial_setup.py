"""The setup that all trials of one config share on given nodes, with `auto` resolved: device, cores, timing, paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config.content_hashes import Versions, absolute, source_dir
from orchestrator.config.fingerprint import fingerprint, sections_of_trials
from orchestrator.schedule.cluster import Node, of_type
from orchestrator.store.secrets import NO_SECRETS, Secrets
from sweeps.identity import COMMAND, digest, identity
from sweeps.layout import MODEL_PARALLEL
from sweeps.sweep import Setup


def setup(config: Mapping[str, Any], nodes: Sequence[Node], versions: Versions, secrets: Secrets = NO_SECRETS) -> Setup:
    """Return the setup of a config, with `auto` resolved for the nodes. Raises ValueError for missing settings."""
    trainable = config["trainable"]
    for key in ("_target_", "lr", "reference_batch_size"):
        if trainable.get(key) is None:
            raise ValueError(f"trainable.{key} is not set")
    resources = config["resources"]
    computes_on = device_of(config, nodes)
    timing, strategy = resources["timing"], config["strategy"]
    # The optimizer that LR rules look at: the trainable's declaration precedes the section.
    declared = trainable.get("optimizer")
    # The least of all nodes: trials of one gang size need the same cores wherever they run.
    cores_per_gpu = min((int(node.cpus // node.gpus) for node in _of_gpu_type(config, nodes) if node.gpus), default=1)
    return Setup(
        trainable=trainable["_target_"],
        config=_with_absolute_paths(config),
        reference_lr=trainable["lr"],
        reference_batch_size=trainable["reference_batch_size"],
        optimizer={"name": declared} if declared else config.get("optimizer") or {"name": "unknown"},
        strategy=strategy if strategy != "auto" else trainable.get("strategy") or "auto",
        device=computes_on,
        nodes=config["nodes"],
        node_sizes=node_sizes(config, nodes) if _may_span_nodes(trainable) else (),
        gpu_types=_gpu_types(config) if computes_on == "cuda" else (),
        cpus_per_worker=_given(resources["cpus_per_worker"]),
        cores_per_gpu=max(1, cores_per_gpu),
        timing=timing if timing != "auto" else ("device" if computes_on == "cuda" else "exclusive"),
        grad_accum_steps=config["grad_accum_steps"],
        model_parallel={name: config[name] for name in MODEL_PARALLEL},
        fsdp_size=config["fsdp_size"],
        uneven_batch=config["uneven_batch"],
        warmup_epochs=config["warmup_epochs"],
        # The resolved device identifies, not `auto`: the same config gives other results on CPUs.
        identity={"fingerprint": digest(identity(fingerprint(config, versions, secrets))), "device": computes_on},
    )


_FILES = {"data": ("root", "path", "tokenizer"), "model": ("path",)}  # keys that name files


def _with_absolute_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trainable's part of a config, with absolute paths: a rank may run in another folder."""
    sections = sections_of_trials(config)
    for name, keys in _FILES.items():
        section = config.get(name) or {}
        places = {key: str(absolute(section[key])) for key in keys if section.get(key)}
        sections |= {name: {**section, **places}} if places else {}
    if config["trainable"].get("_target_") == COMMAND:
        sections["trainable"] = {**config["trainable"], "source_dir": str(source_dir(config["trainable"]))}
    return sections


def node_sizes(config: Mapping[str, Any], nodes: Sequence[Node]) -> tuple[int, ...]:
    """Return the GPUs of each node, or the worker processes that its cores suffice for."""
    if device_of(config, nodes) == "cuda":
        return tuple(int(node.gpus) for node in _of_gpu_type(config, nodes))
    cores = _given(config["resources"]["cpus_per_worker"]) or 1
    return tuple(int(node.cpus // cores) for node in nodes)


def _may_span_nodes(trainable: Mapping[str, Any]) -> bool:
    """Return whether a command names the GPUs or the number of a node."""
    # Any other command would start a process for each GPU of the trial on every node.
    text = str((trainable.get("argv"), trainable.get("env")))
    return any(name in text for name in ("{gpus_per_node}", "{node_rank}"))


def _of_gpu_type(config: Mapping[str, Any], nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes whose GPUs have a type that a gang requires."""
    types = _gpu_types(config) or ("",)  # an empty type matches every GPU
    return [node for node in nodes if any(of_type(node.gpu_type, kind) for kind in types)]


def _gpu_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the GPU types that a gang requires; empty for any."""
    types = config["cluster"]["gpu_type"]
    # Trials are also made of values that are refused, to report all errors at once.
    return tuple(map(str, types if isinstance(types, list) else [types] if types else []))


def device_of(config: Mapping[str, Any], nodes: Sequence[Node]) -> str:
    """Return the device that trials run on, cuda or cpu; a configured GPU type implies cuda."""
    configured: str = config["resources"]["device"]
    if configured != "auto":
        return configured
    return "cuda" if _gpu_types(config) or any(node.gpus for node in nodes) else "cpu"


def _given(value: Any) -> Any:
    return None if value == "auto" else value
