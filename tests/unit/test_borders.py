"""Check which packages import which, and who imports each heavy dependency."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OWNERS = {
    "ray": ("orchestrator/backends/ray/",),
    "hydra": ("orchestrator/config/", "orchestrator/cli/app.py"),
    "omegaconf": ("orchestrator/config/", "orchestrator/cli/app.py"),
    "pynvml": ("orchestrator/telemetry/",),
    "tensorboard": ("orchestrator/trackers/tensorboard.py",),
    "mlflow": ("orchestrator/trackers/mlflow.py",),
    "wandb": ("orchestrator/trackers/wandb.py",),
    "torch": ("trainables/", "studies/"),
    "torchvision": ("trainables/", "studies/"),
    "trainables": ("trainables/", "studies/"),
    "studies": ("studies/",),
    "orchestrator": ("orchestrator/", "studies/"),
    "sweeps": ("sweeps/", "trainables/", "orchestrator/", "studies/"),
    "pandas": ("orchestrator/", "studies/"),
    "numpy": ("orchestrator/", "trainables/", "studies/"),
    "pyarrow": (
        *("orchestrator/store/cloud.py", "orchestrator/analysis/curve_frame.py"),
        *("orchestrator/telemetry/", "orchestrator/report/curve_plots.py"),
    ),
    "matplotlib": ("studies/",),
    "vl_convert": ("orchestrator/report/plot.py",),
    "jinja2": (
        "orchestrator/cli/launch.py",
        "orchestrator/report/page.py",
        "orchestrator/tables/recommendation_sentences.py",
    ),
    "orjson": ("orchestrator/store/files.py",),
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"), ()),  # state is JSON
}
"""Path prefixes that may import each package."""

PACKAGES = {
    "orchestrator": (
        *("statistics", "store", "schedule", "config", "telemetry", "trackers"),
        *("analysis", "text", "decision", "backends", "plan"),
        *("tables", "report", "run", "cli"),
    ),
    "trainables": ("data", "models", "inputs", "optimizers", "step", "supervised", "command"),
}
"""The packages of each room, lowest first: each imports only from itself and from those before it."""


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("room", ["sweeps", "trainables", "orchestrator", "studies"])
def test_only_owners_import_a_dependency(room):
    crossed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for name in imported(path)
        if name in OWNERS and not path.relative_to(ROOT).as_posix().startswith(OWNERS[name])
    ]
    assert crossed == []


@pytest.mark.parametrize("room", PACKAGES)
def test_packages_import_only_lower_packages(room):
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


def test_contributing_lists_packages_from_the_lowest():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| package |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert tuple(listed) == PACKAGES["orchestrator"]


def test_help_and_plan_import_no_heavy_package(tmp_path):
    code = (
        "import sys\n"
        "from orchestrator.cli.app import main\n"
        "for line in ('--help', '--cfg job', 'sweep=batch_scaling mode=plan', 'sweep=batch_scaling nope=1'):\n"
        "    main(line.split())\n"
        "    heavy = {'torch', 'ray', 'pandas', 'numpy', 'scipy', 'sklearn', 'vl_convert'} & set(sys.modules)\n"
        "    assert not heavy, (line, heavy)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
_NODE = r'(\w+)(?:\["([\w/.]+)"\])?'
ARROWS = re.findall(rf"^    {_NODE} -->\|(\w+)\| {_NODE}$", CONTRIBUTING, re.MULTILINE)
FILES = {name: file for arrow in ARROWS for name, file in (arrow[:2], arrow[3:]) if file}
PLACES = re.findall(r"`(\w+)` in `([\w/.]+/\w+\.py)`", CONTRIBUTING)


def _used_names(file):
    """Return the names that a module's code uses, defines or imports, and the keys that it writes as text."""
    nodes = list(ast.walk(ast.parse((ROOT / file).read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.alias)}
    return names | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("arrow", ARROWS, ids=lambda arrow: f"{arrow[0]}-{arrow[2]}-{arrow[3]}")
def test_both_ends_of_an_arrow_use_its_value(arrow):
    start, _, value, end, _ = arrow
    assert value in _used_names(FILES[start]) & _used_names(FILES[end])


def test_way_of_a_trial_is_drawn_whole_and_names_of_places_exist():
    reached = {"compose"}
    for start, _, _, end, _ in ARROWS * len(ARROWS):
        reached |= {end} if start in reached else set()
    assert set(FILES) == reached and len(ARROWS) >= 25
    assert len(PLACES) >= 40
    assert all(name in _used_names(file) for name, file in PLACES)


def test_no_variable_of_a_comprehension_has_the_name_of_a_function_or_class_of_its_module():
    """Python 3.12 takes the function for an unbound variable in another comprehension of the same function."""
    hidden = []
    for path in sorted(
        path for room in ("sweeps", "trainables", "orchestrator", "studies") for path in (ROOT / room).rglob("*.py")
    ):
        tree = ast.parse(path.read_text())
        named = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name.asname or name.name for node in named for name in node.names}
        names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        comprehensions = [
            node for node in ast.walk(tree) if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp)
        ]
        targets = [node for it in comprehensions for part in it.generators for node in ast.walk(part.target)]
        hidden += [f"{path}:{node.lineno} {node.id}" for node in targets if getattr(node, "id", None) in names]
    assert hidden == []
