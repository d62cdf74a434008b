"""Writes an sbatch file: one Ray node per host, the sweep on the first host. Slurm requeues it if time runs out."""

from __future__ import annotations

from orchestrator.launch.launch import NO_SETUP, Launch, slurm_time


def text(launch: Launch) -> str:
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
    return _SCRIPT.format(
        heading="\n".join(lines),
        setup="\n".join(launch.setup) or NO_SETUP,
        node=node,
        nodes=launch.nodes,
        command=launch.command('cluster.address="$address"', wait_s=300),
    )


_SCRIPT = """\
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
