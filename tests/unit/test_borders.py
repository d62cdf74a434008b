"""The arrows between the rooms, as Python itself sees them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OWNERS = {
    "ray": ("orchestrator/backends/on_ray/",),
    "hydra": ("orchestrator/composition/", "orchestrator/cli/app.py"),
    "omegaconf": ("orchestrator/composition/", "orchestrator/cli/app.py"),
    "pynvml": ("orchestrator/telemetry/",),
    "tensorboard": ("orchestrator/trackers/tensorboard.py",),
    "mlflow": ("orchestrator/trackers/mlflow.py",),
    "wandb": ("orchestrator/trackers/wandb.py",),
    "optuna": ("orchestrator/plan/search_optuna.py",),
    "torch": ("trainables/",),
    "torchvision": ("trainables/",),
    "trainables": ("trainables/",),
    "orchestrator": ("orchestrator/",),
    "sweeps": ("sweeps/", "orchestrator/"),
    "pandas": ("orchestrator/",),
    "numpy": ("orchestrator/", "trainables/"),
    "pyarrow": (
        *("orchestrator/store/cloud.py", "orchestrator/analysis/curves.py"),
        *("orchestrator/telemetry/figures.py", "orchestrator/report/curve_plots.py"),
    ),
    "matplotlib": ("orchestrator/report/matplotlib.py", "orchestrator/report/matplotlib.py"),
    "jinja2": ("orchestrator/report/html.py",),
    "orjson": ("orchestrator/store/files.py",),
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"), ()),  # state is JSON
}
"""Who may import what: path prefixes within the checkout."""

PACKAGES = {
    "orchestrator": (
        *("scheduling", "storage", "journal", "telemetry", "config", "composition"),
        *("statistics", "collection", "text", "decision"),
        *("trackers", "backends", "launch", "plan", "tables", "report"),
        *("driver", "verify", "command_line"),
    ),
    "trainables": (
        *("checkpoints", "models", "data", "inputs", "optimizers", "noise", "step"),
        *("supervised", "conv2d", "command"),
    ),
}
"""By room, from the lowest: each imports only from itself and from those before it."""


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("room", ["sweeps", "trainables", "orchestrator"])
def test_every_import_is_made_by_its_owner(room):
    crossed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in imported(path)
        if name in OWNERS and not path.relative_to(ROOT).as_posix().startswith(OWNERS[name])
    ]
    assert crossed == []


@pytest.mark.parametrize("room", PACKAGES)
def test_packages_only_import_from_those_below(room):
    packages = PACKAGES[room]
    assert {path.parent.name for path in (ROOT / room).glob("*/__init__.py")} == set(packages)
    upwards = [
        f"{path.relative_to(ROOT)} imports {node.module}"
        for height, package in enumerate(packages)
        for path in sorted((ROOT / room / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{room}.")
        if (node.module or "").split(".")[1] in packages[height + 1 :]
    ]
    assert upwards == []


def test_the_table_of_packages_tells_them_from_the_lowest():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| package |")[2].partition("\n\n")[0]
    told = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert tuple(told) == PACKAGES["orchestrator"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--cfg", "job"], ["sweep=batch_scaling", "mode=plan"], ["sweep=batch_scaling", "nope=1"]]
)
def test_answers_come_without_torch_ray_or_pandas(arguments, tmp_path):
    code = (
        "import sys\n"
        "from orchestrator.cli.app import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    heavy = {'torch', 'ray', 'pandas', 'numpy', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []
