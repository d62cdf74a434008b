"""Check that every command in the documentation composes and its code runs, or that the page says why not."""

import json
import re
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser

from benchmarks.readme import COLUMNS, shown, with_block
from orchestrator.cli.app import main
from orchestrator.cli.modes import TEMPLATES
from orchestrator.config.compose import Composition, initialised
from orchestrator.config.overrides import rewritten, with_command, with_search_path
from sweeps.errors import ConfigError
from tests.docs.commands import PAGES, RECORDS, ROOT, blocks

SHELL = [block for page in PAGES for block in blocks(page) if block.language in ("bash", "sh", "console")]
PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]

ELSEWHERE = {
    "pip": "CI installs the project itself",
    "pytest": "this is it",
    "ruff": "CI runs it",
    "mypy": "CI runs it",
    ".ci/run": "CI runs it",
    "pre-commit": "needs an installed hook",
    ".": "enters an environment",
    "cd": "the tests stand where they need to",
    "ray": "starts a cluster on several machines",
    "mkdocs": "tested by building the site",
}
"""Why commands of other programs are not run here."""


NOT_HERE = (
    "drives GPUs from one process, but there are none here",
    "does not fit a machine without GPUs",
    "needs the package mlflow: pip install",
    "needs the package wandb: pip install",
)
"""Errors of commands that this machine or environment cannot run; with GPUs and all extras there are none."""


def _id(block):
    return f"{block.page}: {block.text.strip().splitlines()[0][:60]}"


def orchestrators(block):
    """Return the arguments of each orchestrator command."""
    return [
        words[3:] if words[0] == "python" else words[1:]
        for words in block.commands()
        if words[:3] == ["python", "-m", "orchestrator"] or words[0] == "sweep-orchestrator"
    ]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Create a reader's folder: the configs of each kind of project, and the folder `my` of the README."""
    for template in TEMPLATES.iterdir():
        for source in (template / "conf").rglob("*.txt"):
            target = tmp_path / "conf" / source.relative_to(template / "conf").with_suffix("")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text())
    shutil.copytree(tmp_path / "conf", tmp_path / "my")
    (tmp_path / "my/sweep/NAME.yaml").write_text((tmp_path / "conf/sweep/mine.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_documentation_has_commands_and_code():
    assert len(SHELL) >= 15 and len(PYTHON) >= 2
    assert sum(len(orchestrators(block)) for block in SHELL) >= 30


@pytest.mark.parametrize("block", SHELL, ids=_id)
def test_every_command_composes_or_says_why_not(block, place):
    for words in block.commands():
        ours = words[:3] == ["python", "-m", "orchestrator"] or words[0] == "sweep-orchestrator"
        is_elsewhere = words[0] in ELSEWHERE or words[:3] == ["python", "-m", "venv"]
        assert ours or is_elsewhere or block.why_not, f"{words}: neither ours nor explained"
    if block.why_not:
        return
    for arguments in orchestrators(block):
        flags = get_args_parser().parse_args(rewritten(with_command(arguments)))
        single = [one for one in flags.overrides if not flags.multirun or "," not in one or "[" in one]
        folder = flags.config_dir or ("conf" if "sweep=mine" in single else "")
        overrides = with_search_path(single, folder) if folder else single
        with initialised():
            try:
                Composition(overrides)
            except ConfigError as error:
                raise AssertionError(f"{arguments}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("block", SHELL, ids=_id)
def test_every_sweep_can_be_planned(block, place, capsys):
    """Users' packages and files are left to the tests of `mode=init`; some need GPUs or an extra, and say so."""
    for arguments in orchestrators(block) if not block.why_not else ():
        own = any(word in " ".join(arguments) for word in ("mypackage", "mine", "cluster.address", "-cd", ".py "))
        if any(one.startswith("sweep=") for one in arguments) and not own:
            status = main([*arguments, "mode=plan"])
            told = capsys.readouterr().err
            assert status == 0 or any(reason in told for reason in NOT_HERE), f"{arguments}: {told}"


@pytest.mark.parametrize("block", [block for block in PYTHON if "def train" in block.text], ids=_id)
def test_a_documented_trainable_trains(block):
    from trainables.context import Context

    space: dict[str, object] = {}
    exec(compile(block.text, block.page, "exec"), space)
    context = Context.alone()
    space["train"]({"budget": {"epochs": 2}}, context)  # type: ignore[operator]
    assert context.metrics["epochs"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in PYTHON if "run_sweep(" in block.text], ids=_id)
def test_a_sweep_from_python_runs(block, place):
    small = '{"epochs": 1}, "backend": "inprocess", "sweep.axes.seed": [0], "sweep.axes.lr_rule": ["none"]'
    text = block.text.replace("[1, 2]", "[1]").replace('{"epochs": 3}', small)
    assert small in text
    exec(compile(text, block.page, "exec"), {})
    assert (place / "results").is_dir()


def test_every_python_block_is_tested():
    assert all("def train" in block.text or "run_sweep(" in block.text for block in PYTHON)


def test_every_column_is_explained():
    from orchestrator.analysis.summary import COLUMNS, FURTHER
    from orchestrator.analysis.trials import COLUMNS as TRIALS

    meanings = yaml.safe_load((ROOT / "docs/columns.yaml").read_text())
    assert set(meanings) == {*TRIALS, *COLUMNS, *FURTHER} and all(meanings.values())


def test_the_shown_sweep_is_the_examples():
    (shown,) = (block for block in blocks(ROOT / "docs/how-to/several-gpus.md") if block.language == "yaml")
    example = ROOT / "examples/plain_script/conf/sweep/mine.yaml"
    assert yaml.safe_load(shown.text) == yaml.safe_load(example.read_text())


def test_the_shown_changes_are_the_examples():
    page = (ROOT / "docs/how-to/several-gpus.md").read_text()
    (shown,) = re.findall(r"(?ms)^```diff\n(.*?)^```", page)
    added = {line[1:].strip() for line in shown.splitlines() if line.startswith("+")}
    script = {line.strip() for line in (ROOT / "examples/plain_script/train.py").read_text().splitlines()}
    numbered = {line for line in script if re.search(r"  # [1-4]\b", line)}
    assert numbered <= added <= script and len(numbered) >= 8


KEPT = {"gpu_sample": RECORDS / "gpu_sample", "batch_scaling": RECORDS / "batch_scaling/two_cores"}
"""{name of a sweep: its journal and learning curves, and the tables that were made from them}"""


@pytest.mark.parametrize("name", KEPT)
def test_kept_tables_and_the_example_of_the_readme_are_made_today(name, request, monkeypatch, capsys):
    for variable, value in {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "LINES": "50"}.items():
        monkeypatch.setenv(variable, value)
    kept = [table for table in KEPT[name].glob("*.*") if table.suffix != ".jsonl"]
    # The path of pytest's folder would be longer than a line of the terminal.
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        results = Path(shutil.copytree(KEPT[name], Path("results", name))).absolute()
        assert main(["mode=report", f"results_dir={results}"]) == 0
        made = {table: (results / "tables" / table.name).read_text() for table in kept}
    if name == "batch_scaling":
        readme = ROOT / "README.md"
        made[readme] = with_block(readme.read_text(), shown(capsys.readouterr().out, results))
    if request.config.getoption("--update-golden"):
        for path, text in made.items():
            path.write_text(text)
    # Other processors may compute other last digits, which only the tables for programs have.
    texts = {path: text for path, text in made.items() if path.suffix == ".md"}
    assert len(texts) >= 2
    for path, text in texts.items():
        assert path.read_text() == text, path


def test_agents_find_the_keys_and_columns_that_their_page_names(place, capsys):
    page = (ROOT / "docs/agents.md").read_text()
    rows = [row[1] for row in _rows(page) if len(row) > 1 and row[1].startswith(OUTPUTS)]
    plan, decision, tables = (re.findall(r"`([^`]+)`", row) for row in rows)
    assert main(["sweep=batch_scaling", "mode=plan", "format=json"]) == 0
    assert set(plan) <= set(json.loads(capsys.readouterr().out)) and "trials" in plan
    kept = json.loads((RECORDS / "batch_scaling/two_cores/recommendation.json").read_text())
    for key in decision:
        section = kept
        for part in key.split("."):
            section = section[part]
    columns = yaml.safe_load((ROOT / "docs/columns.yaml").read_text())
    checked = re.findall(r"(?m)^- .*", page)
    assert len(decision) >= 8 and len(checked) >= 8 and set(tables) <= set(columns)


OUTPUTS = ("`trials`", "`sentence`", "`status`, `timing_valid`")
"""How the rows of keys on the agents' page begin."""


def test_readme_table_of_gpus_is_the_measured_one():
    readme = (ROOT / "README.md").read_text()
    measured = _rows((RECORDS / "published/data_parallel_core/speedup.md").read_text())
    shown = _rows(readme[readme.index("| model ") :].partition("\n\n")[0])[2:]
    assert len(shown) == 4
    for model, gpus, batch, *figures in shown:
        cell = f"{gpus}×{int(batch) // int(gpus)} none, model={model}, strategy=ddp"
        assert any({cell, batch.replace(",", ""), *filter(None, figures)} <= {*whole} for whole in measured), cell


def _rows(table):
    """Return the cells of each line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


OTHER_PAGES = [ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "examples/README.md", *RECORDS.rglob("*.md")]


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_exist(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target  # in a clone, too, where docs/hooks.py makes no pages
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


def _anchors(page):
    """Return the anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text()))
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_config_key_exists():
    """Checks dotted names in backticks that begin with a section of the config: `sweep.budget.gpu_hours=20`."""
    known = set(_shipped_keys())
    sections = {key.partition(".")[0] for key in known if "." in key}
    pages = [*PAGES, ROOT / "SECURITY.md", ROOT / "examples/README.md"]
    named = [(page.name, key) for page in pages for key in _keys(page)]
    ours = [(page, key) for page, key in named if key.partition(".")[0] in sections and not key.startswith(OPEN)]
    assert len(ours) > 60 and [one for one in ours if one[1] not in known] == []


OPEN = ("sweep.axes.", "trainable.env.", "trainable.mine", "hydra.")
"""Where keys are the reader's own, or Hydra's."""


def _keys(page):
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    spans = re.findall(r"`([^`]+)`", prose)
    return [key for span in spans for key in re.findall(r"(?<![\w./+~-])[a-z]\w*(?:\.[a-z_]+)+(?![\w/(:.])", span)]


def _shipped_keys():
    for path in [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "studies/conf").rglob("*.yaml")]:
        text = path.read_text()
        inside = path.as_posix().removeprefix(ROOT.as_posix()).rpartition("/conf/")[2]
        group = inside.partition("/")[0] if "/" in inside else ""
        yield from _flat(yaml.safe_load(text) or {}, "" if "@package _global_" in text or not group else f"{group}.")


def _flat(node, before):
    for key, value in node.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_site_builds(tmp_path):
    import subprocess
    import sys

    pytest.importorskip("material")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    ended = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "trainable=command" in (tmp_path / "site/reference/config/index.html").read_text()
    assert "should_stop" in (tmp_path / "site/reference/api/index.html").read_text()
