"""Check names, docstrings, comments and texts against the project's style: standard terms, no coined words."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = ("orchestrator", "sweeps", "trainables", "studies", "tests", "benchmarks", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")

COINED = {
    r"agenda\w*": "queue",
    r"conduct": "run settings",
    r"deserted": "no nodes",
    r"hopeless": "all failing",
    r"last_words": "exit message",
    r"lone": "single, rank-local",
    r"misfits?": "shape mismatch",
    r"mistakes?": "error",
    r"pictures?": "plot",
    r"put_aside": "snapshot",
    r"slate": "process state",
    r"spoil\w*": "disturb",
    r"standing": "effective records",
    r"twins?": "equivalent cells",
    r"untold": "unknown",
    r"vain": "say what failed",
    r"whereabouts": "availability",
    r"whoever": "name the role",
    r"would_change": "sensitivity",
}
"""Words that no name may contain, and the term to use."""

PHRASES = {
    r"agendas?": "queue",
    r"deserted": "no nodes",
    r"hopeless": "all failing",
    r"in vain": "say what failed",
    r"lest": "so that … not",
    r"misfits?": "shape mismatch",
    r"mistakes?": "error",
    r"of (?:its|their|one's) own": "its own, their own",
    r"spoil\w*": "disturb",
    r"th(?:at|ose) of one": "name the thing",
    r"there(?:in|of)|where(?:in|of)": "in it, of it",
    r"untold": "unknown",
    r"whereabouts": "availability",
    r"who(?:m?ever|m)": "name the role",
}
"""Phrases that no text may contain, and what to write."""

STARTS = r"Of|That of|Those of|Whom|Whose|Who|What|Said of|Where|Whether"
"""A docstring begins with a verb (functions) or a noun (classes), not with one of these."""

_NAME = re.compile(rf"(?:^|_)(?:{'|'.join(COINED)})(?:_|$)", re.IGNORECASE)
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
_START = re.compile(rf"(?:{STARTS})\b")
_SUSPECT = re.compile(
    rf"(?<![^\W_])(?:{'|'.join(COINED)})(?![^\W_])|{_PHRASE.pattern}|[\"'](?-i:\s*{_START.pattern})", re.IGNORECASE
)
_BETWEEN_LITERALS = re.compile(r"[\"']\s*f?[\"']")


def _files():
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))
    yield from sorted((ROOT / "conf").rglob("*.yaml"))
    yield from sorted([*(ROOT / "studies/conf").rglob("*.yaml"), ROOT / "orchestrator/config/synonyms.yaml"])
    yield from (ROOT / page for page in PAGES)
    yield from sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")])


def violations_in(path, text):
    """Return the line and the reason of each violation in a file."""
    if path.suffix != ".py":
        lines = enumerate(text.splitlines(), 1)
        return [f"{number}: {phrase.group()}" for number, line in lines if (phrase := _PHRASE.search(line))]
    # Syntax trees and tokens take long, and few files have a suspect word anywhere.
    if not _SUSPECT.search(_BETWEEN_LITERALS.sub("", text)):
        return []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    texts = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    violations = []
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append((line, node.value))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            start = _START.match(ast.get_docstring(node) or "")
            violations += [f"{line}: docstring starts with {start.group()!r}"] if start else []
        name = _name(node)
        violations += [f"{line}: name {name}"] if name and _NAME.search(name) else []
    return violations + [f"{line}: {phrase.group()}" for line, text in texts if (phrase := _PHRASE.search(text))]


def _name(node):
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


@pytest.mark.parametrize(
    "text", ["def lone(): ...", "MISTAKES = 1", "x = 'timed in vain'", "'''What it is.'''", "# lest"]
)
def test_a_violation_is_found(text):
    assert len(violations_in(Path("some.py"), f"{text}\n")) == 1


def test_plain_text_passes():
    text = '"""A clone of its whole."""\n\ndef test_clone_of_errors(): ...  # alone\n'
    assert violations_in(Path("some.py"), text) == []


def test_names_and_texts_use_standard_terms():
    checked = {
        path.relative_to(ROOT).as_posix(): violations_in(path, path.read_text())
        for path in _files()
        if path != Path(__file__)
    }
    assert len(checked) > 400
    failing = {name: lines for name, lines in checked.items() if lines}
    assert failing == {}
