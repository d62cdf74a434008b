"""Generate reference pages from the configs, the columns and the docstrings, with every build of the site."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent

API = (
    ("orchestrator.library", "orchestrator/library.py"),
    ("trainables.context", "trainables/context.py"),
    ("trainables.throughput", "trainables/throughput.py"),
    ("trainables.process_group", "trainables/process_group.py"),
    ("trainables.rank", "trainables/rank.py"),
    ("trainables.data.dataset", "trainables/data/dataset.py"),
)
"""The modules that a user's own code imports."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site; mkdocs calls this."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def pages() -> dict[str, str]:
    """Return the reference pages in Markdown, by their path."""
    return {
        "reference/config.md": "\n".join(_config_page()),
        "reference/columns.md": "\n".join(_columns_page()),
        "reference/api.md": "\n".join(_api_page()),
    }


def _config_page() -> Iterator[str]:
    groups = sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra")
    links = " · ".join(f"[{group.name}](#{group.name})" for group in groups)
    yield "---\ntitle: Every config key\nhide: [toc]\n---\n"
    yield "<style>.md-typeset pre > code { font-size: 0.6rem }</style>\n"  # lines are long
    yield "# Every config key\n\nDefaults, units and choices, as shipped. Any key can be overridden, and be an axis."
    yield f"\nGroups: {links}"
    yield from _yaml(ROOT / "conf/config.yaml", "config.yaml")
    for group in groups:
        yield f"\n## {group.name}\n"
        for path in sorted(group.rglob("*.yaml")):
            choice = path.relative_to(group).with_suffix("").as_posix()
            yield from _yaml(path, f"{group.name}={choice}")


def _yaml(path: Path, title: str) -> Iterator[str]:
    yield f"\n### `{title}`\n\n```yaml\n{path.read_text().rstrip()}\n```"


def _columns_page() -> Iterator[str]:
    from orchestrator.analysis.cells import COLUMNS, FURTHER
    from orchestrator.analysis.trials import COLUMNS as TRIALS

    yield "# Columns of the tables\n\nUnits are in the names. Empty means not measured, never 0."
    yield "[Method](../numbers.md)."
    yield "Further axes and other reported metrics are columns after these."
    meanings = yaml.safe_load((ROOT / "docs/columns.yaml").read_text())
    for title, columns in (
        ("summary.csv: one row per cell", (*COLUMNS, *FURTHER)),
        ("trials.csv: one row per trial", TRIALS),
    ):
        yield f"\n## {title}\n\n| column | meaning |\n|---|---|"
        yield from (f"| `{column}` | {meanings[column]} |" for column in columns)


def _api_page() -> Iterator[str]:
    yield "# Python interface\n\nYour code may import these names. Everything else may change.\n"
    for name, path in API:
        tree = ast.parse((ROOT / path).read_text())
        yield f"\n## `{name}`\n\n{ast.get_docstring(tree) or ''}\n"
        for node in tree.body:
            yield from _documented(node, level=3)


def _documented(node: ast.AST, *, level: int) -> Iterator[str]:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
        return
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"\n{'#' * level} class `{node.name}{f'({bases})' if bases else ''}`\n\n{_doc(node)}\n"
        yield from _fields(node)
        for member in node.body:
            yield from _documented(member, level=level + 1)
        return
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield f"\n{'#' * level} `{node.name}({ast.unparse(node.args)}){returns}`\n\n{_doc(node)}\n"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for member, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            said = following.value.value if _is_text(following) else ""
            default = f" = {ast.unparse(member.value)}" if member.value else ""
            yield f"- `{member.target.id}: {ast.unparse(member.annotation)}{default}` {said}".rstrip()


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""
