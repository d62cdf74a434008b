import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from orchestrator.cli.launch import launch_file
from orchestrator.config.overrides import with_command
from sweeps.errors import ConfigError

SECTION = {"nodes": 2, "cpus_per_node": 64, "setup": ["source /shared/venv/bin/activate"]}
OVERRIDES = ["sweep=batch_scaling", "mode=launch", "launch.target=x", "sweep.axes.gpus=[8,16]", "cluster.gpu_type=H100"]
COMMAND = ["--", "torchrun", "--nproc_per_node={gpus_per_node}", "train.py", "--bs", "{device_batch_size}"]
ARGUMENTS = with_command([*OVERRIDES, *COMMAND])
"""A command within one node and over two."""
WORKDIR = {"workdir": "/shared/my work"}
CASES = {
    "slurm": WORKDIR | {"time_limit": "1-00:00:00", "partition": "gpu", "memory_gb": 500},
    "kuberay": {"image": "registry.example/sweeps:1", "claim": "results"},
    "skypilot": {"infra": "aws/us-east-1", "instance": "p5.48xlarge", "workdir": ".", "volume": "shared"},
    "ssh": WORKDIR | {"hosts": ["node2", "node3"]},
}


def written(
    target, *arguments, labels=None, gpu_type="H100", gpus=None, name="batch_scaling", setup=None, nodes=None, **options
):
    """The file for a target with its options, unless they are given as None."""
    own = {key: value for key, value in (CASES.get(target, {}) | options).items() if value is not None}
    section = SECTION | {"target": target, "options": own} | ({} if setup is None else {"setup": setup})
    config = {"launch": section, "cluster": {"gpu_type": gpu_type, "gpus_per_node": gpus, "labels": labels or {}}}
    config["nodes"] = nodes
    return launch_file(config, name, [*ARGUMENTS, *arguments])


@pytest.mark.parametrize("target", CASES)
def test_golden_cluster_file(target, monkeypatch, golden):
    monkeypatch.setattr("orchestrator.cli.launch.version", lambda package: "2.60.0")
    golden(f"launch/{target}.txt", written(target))


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_bash_understands_the_scripts(target):
    subprocess.run(["bash", "-n"], input=written(target), text=True, check=True)


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


def test_trials_on_more_nodes_than_are_started_are_refused():
    most = SECTION["nodes"]
    assert written("slurm", nodes=most)
    with pytest.raises(ConfigError, match=f"launch.nodes={most + 1}"):
        written("slurm", nodes=most + 1)


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "$(touch x)", ""])
def test_hosts_are_names(host):
    with pytest.raises(ConfigError, match="launch.options.hosts"):
        written("ssh", hosts=[host])


@pytest.mark.parametrize("target", CASES)
def test_the_command_sets_the_wait_for_nodes_once(target):
    assert written(target).count("cluster.wait_s=") == 1
    assert written(target, "cluster.wait_s=7").count("cluster.wait_s=") == 1


TEXTS = [(target, key) for target in CASES for key, value in CASES[target].items() if isinstance(value, str)]


@pytest.mark.parametrize("target", CASES)
def test_texts_of_several_lines_are_refused(target):
    for option in ("gpu_type", *(option for text_target, option in TEXTS if text_target == target)):
        key = "cluster.gpu_type" if option == "gpu_type" else f"launch.options.{option}"
        for mark in ("\n", "\r", "\u2028", "\x85", "\0"):
            with pytest.raises(ConfigError, match=key):
                written(target, **{option: f"a{mark}touch x"})


@pytest.mark.parametrize("mark", ["\n", "\u2028"])
def test_block_of_yaml_has_no_text_of_several_lines(mark):
    with pytest.raises(ConfigError, match="override"):
        written("skypilot", f"trainable.argv='a{mark}b'")
    with pytest.raises(ConfigError, match="launch.setup"):
        written("skypilot", setup=[f"a{mark}b"])


HOSTILE = """a'b"c $(touch x) `touch x`; touch x # {{ 1 }} {% if %} : - *x &y !z"""


@pytest.mark.parametrize(("target", "option"), [case for case in TEXTS if case[0] in ("kuberay", "skypilot")])
def test_value_in_yaml_stays_one_value(target, option):
    if option == "claim":
        return
    plain, hostile = (yaml.safe_load(written(target, **{option: value})) for value in ("VALUE", HOSTILE))
    (before, after) = (list(leaves(tree)) for tree in (plain, hostile))
    assert [text.replace("VALUE", HOSTILE) if isinstance(text, str) else text for text in before] == after != before


def leaves(node):
    """Yield the keys and values of a YAML document."""
    if isinstance(node, dict):
        yield from node
        node = list(node.values())
    if not isinstance(node, list):
        yield node
        return
    for value in node:
        yield from leaves(value)


@pytest.mark.parametrize("target", CASES)
def test_override_reaches_the_command_as_one_word(target):
    text = written(target, HOSTILE)
    if target in ("kuberay", "skypilot"):
        document = yaml.safe_load(text)
        text = document["run"] if target == "skypilot" else document["spec"]["entrypoint"]
    (command,) = (line for line in text.splitlines() if line.strip().startswith("python -m orchestrator"))
    assert HOSTILE in shlex.split(command)


def test_folder_in_a_script_is_one_word():
    changes = [line for line in written("ssh", workdir=HOSTILE).splitlines() if line.startswith("cd ")]
    assert [shlex.split(line)[:2] for line in changes] == [["cd", HOSTILE]] * 2


@pytest.mark.parametrize("name", ["Größe 1: lr", "-x-", "...", "a" * 100, "run_1.5"])
def test_kubernetes_accepts_the_name_of_any_sweep(name):
    made = yaml.safe_load(written("kuberay", name=name))["metadata"]["generateName"]
    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,45})", made), made
    assert yaml.safe_load(written("skypilot", name=name))["name"] == made.removesuffix("-")


@pytest.mark.parametrize("given", [{"claim": "My_Claim"}, {"gpu_type": "NVIDIA H100"}, {"claim": "-x"}])
def test_names_that_kubernetes_refuses_are_refused(given):
    with pytest.raises(ConfigError, match="Kubernetes"):
        written("kuberay", **given)


@pytest.mark.parametrize("target", ["slurm", "ssh"])
def test_labels_of_no_node_are_refused(target):
    assert written(target, labels={"ray.io/accelerator-type": "H100"})
    with pytest.raises(ConfigError, match=f"{target} .* market-type"):
        written(target, labels={"market-type": "spot"})
    assert written("skypilot", labels={"market-type": "spot"})


@pytest.mark.parametrize("mark", ['"', "'", "\\", "#"])
def test_no_text_adds_an_option_of_sbatch(mark):
    name = f"a{mark} --mail-user=x@evil.example {mark}b"
    for line in written("slurm", name=name).splitlines():
        assert not line.startswith("#SBATCH") or len(shlex.split(line.removeprefix("#SBATCH"))) == 1
    for option in ("gpu_type", *(option for target, option in TEXTS if target == "slurm")):
        with pytest.raises(ConfigError, match=option):
            written("slurm", **{option: name})


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs Slurm")
def test_sbatch_reads_a_folder_with_a_space(tmp_path):
    """sbatch prints its options before it asks the controller, which does not exist here."""
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=none\n")
    told = subprocess.run(
        ["sbatch", "-vvv", "--test-only"],
        input=written("slurm"),
        env={**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "/shared/my work" in told.stderr


@pytest.mark.parametrize(
    ("target", "given", "told"),
    [
        (None, {}, "launch.target is not set"),
        ("kuberay", {"image": None}, "launch.target=kuberay needs launch.options.image"),
        ("ssh", {"hosts": None}, "launch.target=ssh needs launch.options.hosts"),
        ("skypilot", {"instance": None, "gpu_type": None}, "launch.target=skypilot needs cluster.gpu_type"),
        ("slurm", {"image": "x"}, "unknown launch.options of slurm: 'image'"),
        ("slurm", {"account": "ml"}, "launch.options.account: sbatch reads it"),
        ("ssh", {"account": "ml"}, "unknown launch.options of ssh: 'account'"),
        ("slurm", {"memory_gb": -1}, "launch.options.memory_gb must be"),
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
        ("1.5h", "0-01:30:00"),
        ("1h 30min", "0-01:30:00"),
        ("90s", "0-00:02:00"),
        ("1-00:00:00", "1-00:00:00"),
        ("04:30:00", "04:30:00"),
        (120, "120"),
    ],
)
def test_slurm_times_are_converted(given, told):
    assert f"#SBATCH --time={told}\n" in written("slurm", time_limit=given)


@pytest.mark.parametrize("given", ["two hours", "2x", "-1", "0h", "", "1:2:3:4", 0.5])
def test_other_times_are_refused(given):
    with pytest.raises(ConfigError, match="launch.options.time_limit must be .*90m"):
        written("slurm", time_limit=given)
