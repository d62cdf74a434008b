import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from orchestrator.launch.launch import text_of
from sweeps.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
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


def written(target, *arguments, labels=None, **given):
    config = {"launch": SECTION | given | {"target": target}, "cluster": {"gpu_type": "H100", "labels": labels or {}}}
    return text_of(config, "batch_scaling", [*ARGUMENTS, *arguments])


@pytest.mark.parametrize("target", CASES)
def test_the_text_as_it_is_printed(target, monkeypatch):
    monkeypatch.setattr("orchestrator.launch.kuberay.version", lambda package: "2.60.0")
    assert written(target, **CASES[target]) == (GOLDEN / f"{target}.txt").read_text()


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_bash_understands_the_scripts(target):
    subprocess.run(["bash", "-n"], input=written(target, **CASES[target]), text=True, check=True)


@pytest.mark.parametrize("target", CASES)
def test_how_long_nodes_are_waited_for_is_said_once_by_the_user_or_here(target):
    assert written(target, **CASES[target]).count("cluster.wait_s=") == 1
    assert written(target, "cluster.wait_s=7", **CASES[target]).count("cluster.wait_s=") == 1


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_labels_that_no_node_would_have_are_refused(target):
    assert written(target, labels={"ray.io/accelerator-type": "H100"}, **CASES[target])
    with pytest.raises(ConfigError, match=f"{target} starts nodes without labels, .* market-type in vain"):
        written(target, labels={"market-type": "spot"}, **CASES[target])
    assert written("ray_up", labels={"market-type": "spot"}, **CASES["ray_up"])


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs Slurm")
def test_sbatch_reads_a_folder_with_a_space(tmp_path):
    """It tells the options that it found before it asks any controller, here one that is not there."""
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
def test_ray_takes_the_cluster_file(given):
    validate_config(prepare_config(yaml.safe_load(written("ray_up", **given))))


def test_overrides_reach_the_sweep_as_they_were_given():
    lines = written("slurm").splitlines()
    (command,) = (line for line in lines if line.startswith("python -m orchestrator"))
    assert shlex.split(command)[3:6] == ["sweep=batch_scaling", "sweep.axes.gpus=[1,2]", "cluster.gpu_type=H100"]


@pytest.mark.parametrize(
    ("target", "given", "told"),
    [
        (None, {}, "launch.target is not set; valid: slurm, kuberay, ray_up, ssh"),
        ("slrm", {}, "unknown launch.target 'slrm' (did you mean 'slurm'?); valid: slurm, kuberay, ray_up, ssh"),
        ("kuberay", {}, "launch.target=kuberay needs launch.image"),
        ("ssh", {}, "launch.target=ssh needs launch.hosts"),
        ("slurm", {"nodes": 0}, "launch.nodes must be a whole number of at least 1, not 0"),
        ("ray_up", CASES["ray_up"] | {"provider": "gcp"}, "launch.provider=gcp needs launch.project"),
        ("ray_up", CASES["ray_up"] | {"provider": "azure"}, "unknown launch.provider 'azure'; valid: aws, gcp"),
    ],
)
def test_what_is_missing_is_told(target, given, told):
    with pytest.raises(ConfigError) as error:
        written(target, **given)
    assert told in error.value.errors
