"""`mode=launch`: write a file that starts a cluster and runs the sweep there, from the same config.

One function for each target returns the file's text: `kuberay`, `ray_up`, `slurm` and `ssh`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import yaml

from orchestrator.config.schema import SCHEMA
from sweeps.errors import ConfigError

_NO_SETUP = "# launch.setup=['source /shared/venv/bin/activate'] puts commands here"
_PORT = 6379
"""The port of the cluster's head on a machine that no other user shares."""
_HOST = re.compile(r"[\w.@:%\[\]][\w.@:%\[\]-]*")
"""A host, `user@host` or an address. ssh would take a name that starts with a dash as an option."""

_DNS_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""The name of a Kubernetes object (RFC 1123)."""
_LABEL = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", re.ASCII)
"""The value of a Kubernetes label."""

_SLURM_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}|(?i:infinite|unlimited)")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds."""
_DURATION = re.compile(
    r"(?:(\d+) ?d(?:ays?)?)? ?(?:(\d+) ?h(?:ours?|r)?)? ?(?:(\d+) ?m(?:in(?:utes?)?)?)? ?(?:(\d+) ?s(?:ec)?)?", re.I
)

_NOT_FORWARDED = ("mode=", "launch.", "cluster.address=")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The machines of a cluster and the sweep to start on them."""

    name: str
    """The sweep's name."""
    overrides: Sequence[str]
    """The user's overrides, without those of this launch."""
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_gb_per_node: float | None
    gpu_type: str | None
    time_limit: str | None
    partition: str | None
    setup: Sequence[str]
    """Shell commands that each node runs first, for example to activate an environment."""
    workdir: str | None
    image: str | None
    claim: str | None
    """The persistent volume claim that holds the results."""
    provider: str
    region: str | None
    project: str | None
    instance: str | None
    hosts: Sequence[str]

    @property
    def cluster_name(self) -> str:
        """The sweep's name in lower-case letters, digits and dashes, as clusters may be named (RFC 1123)."""
        return re.sub("[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40].rstrip("-") or "sweep"

    def command(self, *further: str, wait_s: int) -> str:
        """Return the shell command that runs or continues the sweep. `further` overrides must be quoted already.

        It waits `wait_s` seconds for nodes, unless the user's overrides set `cluster.wait_s`.
        """
        own = any(override.lstrip("+").startswith("cluster.wait_s=") for override in self.overrides)
        waits = () if own else (f"cluster.wait_s={wait_s}",)
        return " ".join(["python -m orchestrator", *map(shlex.quote, self.overrides), *further, *waits])


def slurm_time(text: str) -> str | None:
    """Return a duration (`2h`, `90m`, `1d12h`) or a time in Slurm's form as `sbatch` reads it; None for other text."""
    if _SLURM_TIME.fullmatch(text):
        return text
    found = _DURATION.fullmatch(text)
    if not text or not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    minutes += (hours + 24 * days) * 60 + -(-seconds // 60)  # Slurm has a resolution of one minute
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00" if minutes else None


def text_of(config: Mapping[str, Any], name: str, arguments: Sequence[str]) -> str:
    """Return the file for `launch.target`, given a checked config. Raises ConfigError with all keys that it lacks."""
    target, section = config["launch"]["target"], config["launch"]
    if target is None:
        raise ConfigError([f"launch.target is not set; valid: {', '.join(SCHEMA['launch.target'].words)}"])
    errors = [f"launch.target={target} needs launch.{key}" for key in _NEEDED.get(target, ()) if not section[key]]
    if target == "ray_up" and section["provider"] == "gcp" and not section["project"]:
        errors.append("launch.provider=gcp needs launch.project")
    errors += [
        f"launch.hosts has {host!r}, which is not a host's name"
        for host in section["hosts"]
        if not _HOST.fullmatch(host)
    ]
    if target == "slurm" and (limit := section["time_limit"]) is not None and slurm_time(str(limit)) is None:
        errors.append(f"launch.time_limit={limit!r} is no time: write 2h, 90m, 1d12h, or as Slurm does 1-12:00:00")
    types = config["cluster"]["gpu_type"]
    kept = [each for each in arguments if not each.lstrip("+").startswith(_NOT_FORWARDED)]
    texts = [(f"launch.{key}", value) for key, value in section.items()] + [("cluster.gpu_type", types)]
    if target == "ray_up":  # its comments have the command
        texts += [(f"the override {each.partition('=')[0]}", each) for each in kept]
    errors += [
        f"{key}={value!r} has more than one line" for key, value in texts if isinstance(value, str) and "\n" in value
    ]
    if target == "kuberay":
        names = (("launch.claim", section["claim"], _DNS_NAME), ("cluster.gpu_type", types, _LABEL))
        errors += [
            f"{key}={value!r} is no name that Kubernetes allows: letters, digits, '-' and '.' between them"
            for key, value, allowed in names
            if isinstance(value, str) and not allowed.fullmatch(value)
        ]
    others = [label for label in config["cluster"]["labels"] if label not in _BY_RAY]
    if others and target in ("slurm", "ssh"):
        errors.append(
            f"launch.target={target} starts nodes without labels, but cluster.labels needs {', '.join(others)}"
        )
    if errors:
        raise ConfigError(errors)
    given = {key: value for key, value in section.items() if key != "target"}
    launch = Launch(name=name, overrides=kept, gpu_type=types if isinstance(types, str) else None, **given)
    return _TARGETS[target](launch)


_BY_RAY = ("ray.io/accelerator-type", "ray.io/node-id")
"""Labels that Ray gives to all nodes."""

_NEEDED: Mapping[str, Sequence[str]] = {
    "kuberay": ("image", "claim"),
    "ray_up": ("region", "instance", "workdir"),
    "ssh": ("hosts", "workdir"),
}
"""Keys that a target needs."""


_RESULTS = "/results"


def kuberay(launch: Launch) -> str:
    """Return YAML for `kubectl create -f`. The results are on a volume that outlives the cluster."""
    memory_gb = launch.memory_gb_per_node or 4 * launch.cpus_per_node
    limits = {"cpu": str(launch.cpus_per_node), "memory": f"{memory_gb:g}Gi"}
    worker = _pod(launch, limits | ({"nvidia.com/gpu": str(launch.gpus_per_node)} if launch.gpus_per_node else {}))
    if launch.gpus_per_node and launch.gpu_type:
        worker["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": launch.gpu_type}
    workers = {
        "groupName": "gpu" if launch.gpus_per_node else "cpu",
        "replicas": launch.nodes,
        "minReplicas": launch.nodes,
        "maxReplicas": launch.nodes,
        "rayStartParams": {},
        "template": worker,
    }
    driver = _pod(launch, {"cpu": "2", "memory": "8Gi"})  # runs no trials
    rayjob = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"generateName": f"{launch.cluster_name}-"},
        "spec": {
            "entrypoint": launch.command("cluster.address=auto", f"results_dir={_RESULTS}", wait_s=600),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 3,
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": driver},
                "workerGroupSpecs": [workers],
            },
        },
    }
    return str(yaml.safe_dump(rayjob, sort_keys=False, width=1000))


def _pod(launch: Launch, limits: dict[str, str]) -> dict[str, Any]:
    ray = {
        "name": "ray",
        "image": launch.image,
        "resources": {"limits": dict(limits), "requests": dict(limits)},
        "volumeMounts": [{"name": "results", "mountPath": _RESULTS}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "results", "persistentVolumeClaim": {"claimName": launch.claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    return {"spec": {"containers": [ray], "volumes": volumes}}


_HEAD = {"aws": {"InstanceType": "m5.large"}, "gcp": {"machineType": "n1-standard-2"}}
_DISK: Mapping[str, dict[str, Any]] = {
    "aws": {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 140, "VolumeType": "gp3"}}]},
    "gcp": {
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "type": "PERSISTENT",
                "initializeParams": {
                    "diskSizeGb": 140,
                    "sourceImage": "projects/deeplearning-platform-release/global/images/family/"
                    "common-cu129-ubuntu-2204-nvidia-580",
                },
            }
        ]
    },
}
"""Node settings for a disk that holds PyTorch and Ray, with the provider's default image."""

_KEY = {"aws": "InstanceType", "gcp": "machineType"}


def ray_up(launch: Launch) -> str:
    """Return YAML for `ray up FILE` with the commands at its top. All machines must share the results."""
    provider: dict[str, Any] = {"type": launch.provider, "region": launch.region, "cache_stopped_nodes": False}
    provider["availability_zone"] = f"{launch.region}{'-a' if launch.provider == 'gcp' else 'a'}"
    if launch.provider == "gcp":
        provider["project_id"] = launch.project
    resources = {"CPU": launch.cpus_per_node} | ({"GPU": launch.gpus_per_node} if launch.gpus_per_node else {})
    disk = _DISK[launch.provider]
    cluster = {
        "cluster_name": launch.cluster_name,
        "max_workers": launch.nodes,
        "idle_timeout_minutes": 5,
        "provider": provider,
        "auth": {"ssh_user": "ubuntu"},
        "head_node_type": "head",
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "node_config": _HEAD[launch.provider] | disk, "max_workers": 0},
            "worker": {
                "resources": resources,
                "node_config": {_KEY[launch.provider]: launch.instance} | disk,
                "min_workers": launch.nodes,
                "max_workers": launch.nodes,
            },
        },
        "file_mounts": {},
        "setup_commands": list(launch.setup),
    }
    if launch.image:
        cluster["docker"] = {"image": launch.image, "container_name": "ray", "pull_before_run": True}
    sweep = launch.command("cluster.address=auto", wait_s=900)
    there = shlex.quote(f"cd {shlex.quote(str(launch.workdir))} && {sweep}")
    return _HEADING.format(name=shlex.quote(f"{launch.name}.yaml"), sweep=there) + str(
        yaml.safe_dump(cluster, sort_keys=False, width=1000)
    )


_HEADING = """\
# ray up {name}
# ray exec {name} {sweep}
# ray down {name}
"""


def slurm(launch: Launch) -> str:
    """Return a script for `sbatch`. Results and the environment must be on storage that all hosts share."""
    limit = f"--mem={launch.memory_gb_per_node:g}G" if launch.memory_gb_per_node else ""
    gpu = f"{launch.gpu_type.lower()}:" if launch.gpu_type else ""
    options = [
        f"--job-name={launch.name}",
        f"--nodes={launch.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={launch.cpus_per_node}",
        f"--gpus-per-node={gpu}{launch.gpus_per_node}" if launch.gpus_per_node else "",
        limit,
        f"--time={slurm_time(str(launch.time_limit))}" if launch.time_limit else "",
        f"--partition={launch.partition}" if launch.partition else "",
        f"--chdir={launch.workdir}" if launch.workdir else "",
        "--requeue",
        "--open-mode=append",
        "--signal=B:TERM@120",
        f"--output={launch.name}-%j.log",
    ]
    lines = []
    for name, equals, value in (option.partition("=") for option in options if option):
        # sbatch cuts an option at its first space, and does not know backslashes.
        lines.append(f'#SBATCH {name}="{value}"' if " " in value else f"#SBATCH {name}{equals}{value}")
    node = f"--num-cpus={launch.cpus_per_node} --num-gpus={launch.gpus_per_node} --disable-usage-stats --block"
    return _SLURM_SCRIPT.format(
        heading="\n".join(lines),
        setup="\n".join(launch.setup) or _NO_SETUP,
        node=node,
        nodes=launch.nodes,
        command=launch.command('cluster.address="$address"', wait_s=300),
    )


_SLURM_SCRIPT = """\
#!/bin/bash
{heading}
set -uo pipefail
{setup}
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
export RAY_worker_niceness=0  # Ray would give the trials a lower priority than everything else
# Everyone with the token can run code on the cluster; it stays in the environment of this job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
ip="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{{print $1}}')"
address="$ip:$((20000 + SLURM_JOB_ID % 10000))"

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
    ray start --head --node-ip-address="$ip" --port="${{address##*:}}" --include-dashboard=false {node} &
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    sleep 10
    srun --nodes="$others" --ntasks="$others" --exclude="$head" --overlap ray start --address="$address" {node} &
fi
python - "$address" {nodes} <<'END' || exit 1
import sys, time, ray
address, nodes = sys.argv[1], int(sys.argv[2])
for attempt in range(60):
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        break
    except ConnectionError:
        time.sleep(2)
else:
    sys.exit(f"no Ray at {{address}}")
deadline = time.monotonic() + 300
while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
    if time.monotonic() > deadline:
        sys.exit(f"{{alive}} of {{nodes}} nodes joined")
    time.sleep(1)
END

{command} &
sweep=$!
# Two minutes before the time limit: finished trials are kept, and the requeued job continues.
trap 'kill -TERM "$sweep"; wait "$sweep"; scontrol requeue "$SLURM_JOB_ID"; exit 143' TERM
wait "$sweep"
exit $?
"""


def ssh(launch: Launch) -> str:
    """Return a script for `bash` on the head. All hosts need the same folders; the cluster ends with the script."""
    node = f"--num-cpus={launch.cpus_per_node} --num-gpus={launch.gpus_per_node} --disable-usage-stats --block"
    return _SSH_SCRIPT.format(
        workdir=shlex.quote(str(launch.workdir)),
        setup="\n".join(launch.setup) or _NO_SETUP,
        hosts=" ".join(map(shlex.quote, launch.hosts)),
        node=node,
        port=_PORT,
        command=launch.command('cluster.address="$address"', wait_s=300),
    )


_SSH_SCRIPT = """\
#!/bin/bash
set -uo pipefail
cd {workdir} || exit 1
{setup}
export RAY_worker_niceness=0  # Ray would give the trials a lower priority than everything else
# Everyone with the token can run code on the cluster; the hosts get it on the standard input of their shells.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
address="$(hostname -I | awk '{{print $1}}'):{port}"
started=()
trap '' HUP  # a closed terminal ends the sweep in order, and then its cluster
trap 'kill "${{started[@]}}" 2>/dev/null; wait' EXIT

ray start --head --node-ip-address="${{address%:*}}" --port={port} --include-dashboard=false {node} &
started+=($!)
sleep 10
for host in {hosts}; do
    {{
        printf 'export RAY_AUTH_MODE=token RAY_worker_niceness=0 RAY_AUTH_TOKEN=%q\\naddress=%q\\n' \\
            "$RAY_AUTH_TOKEN" "$address"
        cat <<'END_OF_HOST'  # quoted: variables and commands in it are those of the host
cd {workdir} || exit 1
{setup}
ray start --address="$address" {node} & ray=$!
trap 'kill "$ray"' EXIT HUP TERM
wait "$ray"
END_OF_HOST
    }} | ssh -o BatchMode=yes -- "$host" bash -s &
    started+=($!)
done
sleep 20

trap : HUP
{command}
"""


_TARGETS: Mapping[str, Callable[[Launch], str]] = {"kuberay": kuberay, "ray_up": ray_up, "slurm": slurm, "ssh": ssh}
"""{`launch.target`: the function that returns its file}"""
