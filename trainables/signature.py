"""What a factory of somebody's own takes, as its source says it: nothing of theirs is imported or run to know it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from inspect import Parameter, Signature
from pathlib import Path


def written_signature(path: str) -> Signature | None:
    """Of the function, or of the class' `__init__`, at `package.module:name`, with `...` for its defaults.

    None where reading does not tell: a file that is not here, a name that is defined elsewhere, twice or within
    something, what is decorated, a class that inherits how it is made.
    """
    module, _, name = path.partition(":")
    file = _source(module)
    if file is None:
        return None
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):  # which is told where it is imported
        return None
    named = [each for each in tree.body if name in _bound(each)]
    function = _made_by(named[0]) if len(named) == 1 else None
    return Signature(list(_parameters(function, named[0]))) if function else None


def _source(module: str) -> Path | None:
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module that is there, and does not say from where, as __main__
        return None
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    places = [root.joinpath(*rest) for root in roots]
    # As the import does: a package before a module of its name.
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    if spec and not roots and not rest:
        files = [Path(spec.origin or "")]
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a statement at the top of a module, or anything within it, gives a value."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    aliases = {(each.asname or each.name) for each in ast.walk(statement) if isinstance(each, ast.alias)}
    stored = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    defined = {each.name for each in ast.walk(statement) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    return aliases | stored | defined


def _made_by(statement: ast.stmt) -> ast.FunctionDef | None:
    if isinstance(statement, ast.ClassDef) and not statement.decorator_list and not statement.keywords:
        inside = [each for each in statement.body if {"__init__", "__new__"} & _bound(each)]
        statement = inside[0] if len(inside) == 1 else statement
        if not (isinstance(statement, ast.FunctionDef) and statement.name == "__init__"):
            return None
    return statement if isinstance(statement, ast.FunctionDef) and not statement.decorator_list else None


def _parameters(function: ast.FunctionDef, owner: ast.stmt) -> Iterator[Parameter]:
    given = function.args
    positional = [
        *((each, Parameter.POSITIONAL_ONLY) for each in given.posonlyargs),
        *((each, Parameter.POSITIONAL_OR_KEYWORD) for each in given.args),
    ]
    first_default = len(positional) - len(given.defaults)
    for place, (each, kind) in enumerate(positional):
        if place or owner is function:  # not `self`
            yield Parameter(each.arg, kind, default=... if place >= first_default else Parameter.empty)
    if given.vararg:
        yield Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL)
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield Parameter(each.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else ...)
    if given.kwarg:
        yield Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD)
