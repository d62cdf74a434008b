#!/bin/bash
#SBATCH --job-name={{ name | sbatch }}
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={{ cpus_per_node }}
{% if gpus_per_node and gpu_type %}
#SBATCH --gpus-per-node={{ gpu_type | lower | sbatch }}:{{ gpus_per_node }}
{% elif gpus_per_node %}
#SBATCH --gpus-per-node={{ gpus_per_node }}
{% endif %}
{% if options.memory_gb %}
#SBATCH --mem={{ options.memory_gb | g }}G
{% endif %}
{% if options.time_limit %}
#SBATCH --time={{ options.time_limit | slurm_time | sbatch }}
{% endif %}
{% if options.partition %}
#SBATCH --partition={{ options.partition | sbatch }}
{% endif %}
{% if options.workdir %}
#SBATCH --chdir={{ options.workdir | sbatch }}
{% endif %}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
#SBATCH --output={{ (name ~ "-%j.log") | sbatch }}
set -uo pipefail
{% for line in setup %}
{{ line | raw }}
{% endfor %}
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
export RAY_worker_niceness=0  # Ray would give the trials a lower priority than everything else
export RAY_health_check_period_ms=1000  # a lost node is noticed after 5 s instead of 15
# Everyone with the token can run code on the cluster; it stays in the environment of this job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
ip="$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{print $1}')"
# This script runs on the head, which another job may share.
address="$ip:$(python -c 'import sys; from sweeps.ports import free_port; print(free_port(sys.argv[1]))' "$ip")" || exit 1

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    ray start --head --node-ip-address="$ip" --port="${address##*:}" --include-dashboard=false {{ node }} &
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    sleep 10
    srun --nodes="$others" --ntasks="$others" --exclude="$head" --overlap ray start --address="$address" {{ node }} &
fi
python - "$address" {{ nodes }} <<'END' || exit 1
import sys, time, ray
address, nodes = sys.argv[1], int(sys.argv[2])
for attempt in range(60):
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        break
    except ConnectionError:
        time.sleep(2)
else:
    sys.exit(f"no Ray at {address}")
deadline = time.monotonic() + 300
while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
    if time.monotonic() > deadline:
        sys.exit(f"{alive} of {nodes} nodes joined")
    time.sleep(1)
END

{{ command('cluster.address="$address"', wait_s=300) }} &
sweep=$!
# Two minutes before the time limit: finished trials are kept, and the requeued job continues.
trap 'kill -TERM "$sweep"; wait "$sweep"; scontrol requeue "$SLURM_JOB_ID"; exit 143' TERM
wait "$sweep"
exit $?
