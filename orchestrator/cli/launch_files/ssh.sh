#!/bin/bash
set -uo pipefail
cd {{ options.workdir }} || exit 1
{% for line in setup %}
{{ line | raw }}
{% endfor %}
export RAY_worker_niceness=0  # Ray would give the trials a lower priority than everything else
export RAY_health_check_period_ms=1000  # a lost node is noticed after 5 s instead of 15
# Everyone with the token can run code on the cluster; the hosts get it on the standard input of their shells.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
address="$(hostname -I | awk '{print $1}'):6379"
started=()
trap '' HUP  # a closed terminal ends the sweep in order, and then its cluster
trap 'kill "${started[@]}" 2>/dev/null; wait' EXIT

ray start --head --node-ip-address="${address%:*}" --port=6379 --include-dashboard=false {{ node }} &
started+=($!)
sleep 10
for host in{% for host in options.hosts %} {{ host }}{% endfor %}; do
    {
        printf 'export RAY_AUTH_MODE=token RAY_worker_niceness=0 RAY_AUTH_TOKEN=%q\naddress=%q\n' \
            "$RAY_AUTH_TOKEN" "$address"
        cat <<'END_OF_HOST'  # quoted: variables and commands in it are those of the host
cd {{ options.workdir }} || exit 1
{% for line in setup %}
{{ line | raw }}
{% endfor %}
ray start --address="$address" {{ node }} & ray=$!
trap 'kill "$ray"' EXIT HUP TERM
wait "$ray"
END_OF_HOST
    } | ssh -o BatchMode=yes -- "$host" bash -s &
    started+=($!)
done
sleep 20

trap : HUP
{{ command('cluster.address="$address"', wait_s=300) }}
