import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from orchestrator.cli.launch import text_of
from sweeps.errors import ConfigError

SECTION = {
    "target": None,
    "nodes": 2,
    "gpus_per_node": 8,
    "cpus_per_node": 64,
    "memory_gb_per_node": None,
    "time_limit": None,
    "partition": None,
    "setup": ["source /shared/venv/bin/activate"],
    "workdir": "/shared/my work",
    "image": None,
    "claim": None,
    "provider": "aws",
    "region": None,
    "project": None,
    "instance": None,
    "hosts": [],
}
ARGUMENTS = ["sweep=batch_scaling", "mode=launch", "launch.target=x", "sweep.axes.gpus=[1,2]", "cluster.gpu_type=H100"]
CASES = {
    "slurm": {"time_limit": "1-00:00:00", "partition": "gpu", "memory_gb_per_node": 500},
    "kuberay": {"image": "registry.example/sweeps:1", "claim": "results"},
    "ray_up": {"region": "us-east-1", "instance": "p5.48xlarge"},
    "ssh": {"hosts": ["node2", "node3"]},
}
GCP = {"provider": "gcp", "project": "mine", "region": "us-central1", "instance": "a3-highgpu-8g"}


def written(target, *arguments, labels=None, gpu_type="H100", name="batch_scaling", **given):
    config = {"launch": SECTION | given | {"target": target}, "cluster": {"gpu_type": gpu_type, "labels": labels or {}}}
    return text_of(config, name, [*ARGUMENTS, *arguments])


@pytest.mark.parametrize("target", CASES)
def test_golden_cluster_file(target, monkeypatch, golden):
    monkeypatch.setattr("orchestrator.cli.launch.version", lambda package: "2.60.0")
    golden(f"launch/{target}.txt", written(target, **CASES[target]))


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_bash_understands_the_scripts(target):
    subprocess.run(["bash", "-n"], input=written(target, **CASES[target]), text=True, check=True)


def test_ssh_runs_setup_on_the_host_and_nothing_on_the_head(tmp_path):
    """Stand-ins for ssh, ray and python run the real script: `ssh` is a shell with another HOME."""
    programs, host = tmp_path / "bin", tmp_path / "host"
    programs.mkdir()
    host.mkdir()
    folder = tmp_path / "$(touch executed)"
    folder.mkdir()
    for name, text in {
        "ssh": f'for last; do :; done\necho "$@" >> {tmp_path}/ssh\nHOME={host} bash -s',
        "ray": "sleep 0.2",
        "hostname": "echo 127.0.0.1",
        "python": "echo token",
        "sleep": "/bin/sleep 0.2",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    given = {"hosts": ["node2"], "workdir": str(folder), "setup": [f'echo "$HOME $(echo one)" >> {tmp_path}/setup']}
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(
        ["bash"], input=written("ssh", **given), text=True, check=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert set((tmp_path / "setup").read_text().splitlines()) == {f"{tmp_path} one", f"{host} one"}
    assert (tmp_path / "ssh").read_text() == "-o BatchMode=yes -- node2 bash -s\n"
    assert not list(tmp_path.rglob("executed"))


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "$(touch x)", ""])
def test_hosts_are_names(host):
    with pytest.raises(ConfigError, match="launch.hosts"):
        written("ssh", hosts=[host])


@pytest.mark.parametrize("target", CASES)
def test_the_command_sets_the_wait_for_nodes_once(target):
    assert written(target, **CASES[target]).count("cluster.wait_s=") == 1
    assert written(target, "cluster.wait_s=7", **CASES[target]).count("cluster.wait_s=") == 1


@pytest.mark.parametrize("target", CASES)
def test_names_of_several_lines_are_refused(target):
    for given in ({"gpu_type": "H100\nx: y"}, {"partition": "gpu\ntouch x"}):
        with pytest.raises(ConfigError, match="more than one line"):
            written(target, **CASES[target] | given)
    with pytest.raises(ConfigError, match="trainable.argv"):
        written("ray_up", "trainable.argv='a\nb'", **CASES["ray_up"])


@pytest.mark.parametrize("name", ["Größe 1: lr", "-x-", "...", "a" * 100, "run_1.5"])
def test_kubernetes_accepts_the_name_of_any_sweep(name):
    made = yaml.safe_load(written("kuberay", name=name, **CASES["kuberay"]))["metadata"]["generateName"]
    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,45})", made), made
    validate_config(prepare_config(yaml.safe_load(written("ray_up", name=name, **CASES["ray_up"]))))


@pytest.mark.parametrize("given", [{"claim": "My_Claim"}, {"gpu_type": "NVIDIA H100"}, {"claim": "-x"}])
def test_names_that_kubernetes_refuses_are_refused(given):
    with pytest.raises(ConfigError, match="Kubernetes"):
        written("kuberay", **CASES["kuberay"] | given)


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_labels_of_no_node_are_refused(target):
    assert written(target, labels={"ray.io/accelerator-type": "H100"}, **CASES[target])
    with pytest.raises(ConfigError, match=f"{target} .* market-type"):
        written(target, labels={"market-type": "spot"}, **CASES[target])
    assert written("ray_up", labels={"market-type": "spot"}, **CASES["ray_up"])


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs Slurm")
def test_sbatch_reads_a_folder_with_a_space(tmp_path):
    """sbatch prints its options before it asks the controller, which does not exist here."""
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=none\n")
    told = subprocess.run(
        ["sbatch", "-vvv", "--test-only"],
        input=written("slurm", **CASES["slurm"]),
        env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "/shared/my work" in told.stderr


@pytest.mark.parametrize("given", [CASES["ray_up"], GCP])
def test_ray_accepts_the_cluster_file(given):
    validate_config(prepare_config(yaml.safe_load(written("ray_up", **given))))


def test_overrides_reach_the_sweep_unchanged():
    lines = written("slurm").splitlines()
    (command,) = (line for line in lines if line.startswith("python -m orchestrator"))
    assert shlex.split(command)[3:6] == ["sweep=batch_scaling", "sweep.axes.gpus=[1,2]", "cluster.gpu_type=H100"]


@pytest.mark.parametrize(
    ("target", "given", "told"),
    [
        (None, {}, "launch.target is not set"),
        ("kuberay", {}, "launch.target=kuberay needs launch.image"),
        ("ssh", {}, "launch.target=ssh needs launch.hosts"),
        ("ray_up", CASES["ray_up"] | {"provider": "gcp"}, "launch.provider=gcp needs launch.project"),
    ],
)
def test_missing_values_are_errors(target, given, told):
    with pytest.raises(ConfigError) as error:
        written(target, **given)
    assert any(line.startswith(told) for line in error.value.errors)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("2h", "0-02:00:00"),
        ("90m", "0-01:30:00"),
        ("1d12h", "1-12:00:00"),
        ("1h 30min", "0-01:30:00"),
        ("90s", "0-00:02:00"),
        ("1-00:00:00", "1-00:00:00"),
        ("04:30:00", "04:30:00"),
        (120, "120"),
    ],
)
def test_slurm_times_are_converted(given, told):
    assert f"#SBATCH --time={told}\n" in written("slurm", time_limit=given)


@pytest.mark.parametrize("given", ["two hours", "2x", "1.5h", "-1", "0h", "", "1:2:3:4", 0.5])
def test_other_times_are_refused(given):
    with pytest.raises(ConfigError, match="launch.time_limit=.*90m"):
        written("slurm", time_limit=given)
