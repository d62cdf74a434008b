"""Generate reference pages from configs, columns, keys of JSON and docstrings, with every build of the site."""

from __future__ import annotations

import ast
import html
import re
import shutil
import subprocess
import sys
import tempfile
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


_SOURCES = {
    "../conf/config.yaml": "config",
    "columns.yaml": "columns",
    "recommendation.yaml": "recommendation",
    "../orchestrator/library.py": "api",
}
"""Files that documents link to, for readers of a clone, and the reference pages that are made from them."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site; mkdocs calls this."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the sources of the reference to its pages, and leave kept results out of the search index.

    mkdocs calls this for every page.
    """
    for source, name in _SOURCES.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*){re.escape(source)}\)", rf"](\1reference/{name}.md)", markdown)
    if page.file.src_uri.startswith("results/"):
        page.meta["search"] = {"exclude": True}
    return markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Make the sample report, `sample_report.html`, from the journal of a kept sweep; mkdocs calls this."""
    with tempfile.TemporaryDirectory() as folder:
        results = shutil.copytree(ROOT / "docs/results/gpu_sample", Path(folder, "gpu_sample"))
        command = [sys.executable, "-m", "orchestrator", "mode=report", f"results_dir={results}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        shutil.copyfile(results / "report.html", Path(config["site_dir"], "sample_report.html"))


def pages() -> dict[str, str]:
    """Return the reference pages in Markdown, by their path."""
    return {
        **_config_pages(),
        "reference/columns.md": "\n".join(_columns_page()),
        "reference/recommendation.md": "\n".join(_recommendation_page()),
        "reference/api.md": "\n".join(_api_page()),
    }


def _config_pages() -> dict[str, str]:
    """Return one page for each section of config.yaml and each group of configs, and their index."""
    parts = re.split(r"(?m)^# -+ (.+?) -+$", (ROOT / "conf/config.yaml").read_text())
    found = {
        _slug(title): (title, _keys_of(body), [f"# {title}\n", *_table(body)])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        if "Hydra" not in title
    }
    for group in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra"):
        files = {path.relative_to(group).with_suffix("").as_posix(): path for path in sorted(group.rglob("*.yaml"))}
        choices = ", ".join(f"`{group.name}={choice}`" for choice in files)
        lines = [f"# {group.name}=…\n"]
        for choice, path in files.items():
            lines += [f"\n## `{group.name}={choice}`\n", *_choice(path)]
        found[group.name] = (f"{group.name}=…", choices, lines)
    index = [
        "# Every config key\n\nAny key can be set with `key=value`, and can be an axis: `'sweep.axes.KEY=[a,b]'`.\n",
        "| section | keys or choices |\n|---|---|",
        *(f"| [{title}](config/{slug}.md) | {names} |" for slug, (title, names, _) in found.items()),
    ]
    written = {f"reference/config/{slug}.md": "\n".join(lines) for slug, (_, _, lines) in found.items()}
    return {"reference/config.md": "\n".join(index), **written}


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _keys_of(body: str) -> str:
    return ", ".join(f"`{key}`" for key in re.findall(r"(?m)^(\w+):", body))


def _choice(path: Path) -> Iterator[str]:
    """Yield the head comment of a group's file and its keys; files that set other sections stay YAML."""
    text = path.read_text()
    if "@package" in text or "defaults:" in text:
        yield f"```yaml\n{text.rstrip()}\n```"
        return
    head = re.match(r"(?:#.*\n)*", text)
    comment = head.group() if head else ""
    yield re.sub(r"(?m)^# ?", "", comment)
    yield from _table(text[len(comment) :])


def _table(body: str) -> Iterator[str]:
    """Yield a table of the keys in a YAML text, with their defaults and comments."""
    rows: list[list[str]] = []
    outer: list[tuple[int, str]] = []
    for line in body.splitlines():
        if found := re.match(r"( *)([\w.-]+):(?: +(?!#)(.*?))?(?: +# ?(.*))?$", line):
            indent = len(found[1])
            outer = [*((depth, key) for depth, key in outer if depth < indent), (indent, found[2])]
            rows.append([".".join(key for _, key in outer), found[3] or "", found[4] or ""])
        elif rows and (comment := re.match(r" *# ?(.*)$", line)):
            rows[-1][2] += f" {comment[1]}"
        elif rows and (item := re.match(r" *- (.*?)(?: +# ?(.*))?$", line)):
            rows[-1][1] += f"{', ' if rows[-1][1] else ''}{item[1]}"
            rows[-1][2] += f" {item[2] or ''}"
    yield "| key | default | meaning |\n|---|---|---|"
    for key, default, meaning in (row for row in rows if row[1] or row[2]):
        default, meaning = (text.replace("|", r"\|") for text in (default, html.escape(meaning.strip(), quote=False)))
        yield f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |"


def _columns_page() -> Iterator[str]:
    yield "# Columns of the tables\n\n`summary.csv` has one row per cell, `trials.csv` one row per trial."
    yield "Units are in the names. Empty means not measured, never 0. [Method](../numbers.md)."
    yield "Further axes and other reported metrics are columns after these.\n\n| column | meaning |\n|---|---|"
    meanings = yaml.safe_load((ROOT / "docs/columns.yaml").read_text())
    yield from (f"| `{column}` | {meaning} |" for column, meaning in meanings.items())


def _recommendation_page() -> Iterator[str]:
    yield "# Keys of recommendation.json\n\nUnknown values are null. [Rule](../numbers.md#recommendation)."
    sections = yaml.safe_load((ROOT / "docs/recommendation.yaml").read_text())
    for title, keys in sections.items():
        yield f"\n## Keys of {title}\n\n| key | meaning |\n|---|---|"
        yield from (
            f"| {', '.join(f'`{key}`' for key in names.split(', '))} | {text} |" for names, text in keys.items()
        )


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
