"""Writes a shell script that starts Ray on hosts by ssh, and the sweep on the host of the script."""

from __future__ import annotations

import shlex

from orchestrator.launch.launch import NO_SETUP, PORT, Launch


def text(launch: Launch) -> str:
    """Return a script for `bash` on the head. All hosts need the same folders; the cluster ends with the script."""
    node = f"--num-cpus={launch.cpus_per_node} --num-gpus={launch.gpus_per_node} --disable-usage-stats --block"
    return _SCRIPT.format(
        workdir=shlex.quote(str(launch.workdir)),
        setup="\n".join(launch.setup) or NO_SETUP,
        hosts=" ".join(map(shlex.quote, launch.hosts)),
        node=node,
        port=PORT,
        command=launch.command('cluster.address="$address"', wait_s=300),
    )


_SCRIPT = """\
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
