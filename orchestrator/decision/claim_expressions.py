"""A claim about a sweep, as written in its config, and the language of its expression.

An expression compares two sides, which are arithmetic over the cells of a summary. It is never evaluated as Python:

    speedup(gpus=4) >= 3.5
    accuracy(lr_rule=linear, global_batch_size=512) >= accuracy(global_batch_size=32)
    min(efficiency(gpus=2)) > 0.9
    epoch_s(gpus=2) / epoch_s(gpus=1) == 0.5

A column with a selection in brackets is its value in the one selected cell. Axes with a dot are written
`**{"optimizer.momentum": 0.9}`. min, max, mean and median accept a selection of several cells. Python's own parser
reads the expression, and anything not listed here is refused. Checking a claim needs neither numpy nor pandas.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sweeps.axes import is_number

if TYPE_CHECKING:
    from orchestrator.statistics.intervals import Array


class Lookup(Protocol):
    """A function that looks up a column's values in the selected cells."""

    def __call__(self, column: str, selection: Mapping[str, Any]) -> Array:
        """Return an array of shape (selected cells, seeds), NaN for missing values."""


ORDERS: Mapping[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "=="}

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_OVER_CELLS = ("min", "max", "mean", "median")
_LONGEST = 1_000


class ExpressionError(ValueError):
    """An expression outside the language, or a selection of something that does not exist."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A parsed expression: two sides and their claimed relation."""

    left: ast.expr
    order: str
    right: ast.expr

    @staticmethod
    def parse(text: str) -> Claimed:
        """Parse an expression. Raises ExpressionError if it is outside the language."""
        if len(text) > _LONGEST:
            raise ExpressionError(f"is longer than {_LONGEST} characters")
        try:
            body = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"is not an expression: {error}") from None
        if not isinstance(body, ast.Compare) or len(body.ops) != 1 or type(body.ops[0]) not in ORDERS:
            raise ExpressionError(f"must be one comparison with one of {', '.join(ORDERS.values())}")
        claimed = Claimed(left=body.left, order=ORDERS[type(body.ops[0])], right=body.comparators[0])
        try:
            for side in (claimed.left, claimed.right):
                _check(side)
        except RecursionError:
            raise ExpressionError("has too many parts within one another") from None
        return claimed

    @property
    def references(self) -> list[tuple[str, dict[str, Any]]]:
        """The values in the expression, as (column, selection)."""
        return [(column, _selection(call)) for side in (self.left, self.right) for column, call in _references(side)]

    @property
    def columns(self) -> set[str]:
        """The columns in the expression."""
        return {column for column, _ in self.references}

    @property
    def selected_by(self) -> set[str]:
        """The axes by which the expression selects cells."""
        return {axis for _, selection in self.references for axis in selection}

    @property
    def subtracts(self) -> bool:
        """True if the expression contains a subtraction or a negation."""
        nodes = (node for side in (self.left, self.right) for node in ast.walk(side))
        return any(isinstance(node, (ast.Sub, ast.USub)) for node in nodes)

    def sides(self, lookup: Lookup) -> tuple[Array, Array]:
        """Return the left and the right side by seed; a number applies to all seeds.

        Raises ExpressionError for a selection that does not fit.
        """
        import numpy as np  # not needed to check a claim

        given = [np.asarray(_value(side, lookup), dtype=np.float64).ravel() for side in (self.left, self.right)]
        left, right = np.broadcast_arrays(*given)
        return left, right


def _references(node: ast.expr) -> Iterator[tuple[str, ast.Call]]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id not in _OVER_CELLS:
            yield inner.func.id, inner


def _check(node: ast.expr) -> None:
    """Raise ExpressionError unless every part is in the language."""
    # The text may be a stranger's: what is not listed here is refused.
    if isinstance(node, ast.Constant) and is_number(node.value):
        if abs(node.value) > sys.float_info.max:
            raise ExpressionError("has a number that is too large")
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _check(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _check(node.left)
        return _check(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in _OVER_CELLS:
            _selection(node)
            return None
        inner = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            if inner.func.id not in _OVER_CELLS:
                return _check(inner)
        raise ExpressionError(f"{node.func.id} takes one column with its selection, as {node.func.id}(speedup(gpus=2))")
    raise ExpressionError(
        f"{ast.unparse(node)!r} is not in the language of claims: numbers, + - * /, column(axis=value)"
    )


def _selection(call: ast.Call) -> dict[str, Any]:
    """Return the selection of a call as {axis: value}."""
    if call.args:
        raise ExpressionError(f"{ast.unparse(call)!r}: write a selection as axis=value")
    selection: dict[str, Any] = {}
    for keyword in call.keywords:
        # `**{"model.width": 8}` selects by an axis with a dot, which no keyword can have.
        selection |= _pairs(keyword.value, call) if keyword.arg is None else {keyword.arg: _constant(keyword.value)}
    return selection


def _pairs(node: ast.expr, call: ast.Call) -> dict[str, Any]:
    if not isinstance(node, ast.Dict):
        raise ExpressionError(f"{ast.unparse(call)!r}: ** must be followed by a dictionary")
    return {str(_constant(key)): _constant(value) for key, value in zip(node.keys, node.values, strict=True)}


def _constant(node: ast.expr | None) -> Any:
    """Return the value of an axis; a bare word is its own text, null a missing value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool, type(None))):
        return node.value
    if isinstance(node, ast.Name):
        return None if node.id == "null" else node.id
    raise ExpressionError(f"{ast.unparse(node) if node else '**'!r} is not a plain value of an axis")


def _value(node: ast.expr, lookup: Lookup) -> Any:
    import numpy as np

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, lookup)
    if isinstance(node, ast.BinOp):
        # One seed may divide by 0, which must not warn or hide the other seeds.
        with np.errstate(divide="ignore", invalid="ignore"):
            return _ARITHMETIC[type(node.op)](_value(node.left, lookup), np.asarray(_value(node.right, lookup), float))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if node.func.id in _OVER_CELLS:
        inner = node.args[0]
        assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
        return getattr(np, node.func.id)(lookup(inner.func.id, _selection(inner)), axis=0)
    values = lookup(node.func.id, _selection(node))
    if len(values) != 1:
        raise ExpressionError(
            f"{ast.unparse(node)} selects {len(values)} cells: narrow it, or take min, max, mean, median"
        )
    return values[0]


KEYS = ("sentence", "expression", "margin", "about", "needs_seeds", "needs_epochs")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about the sweep."""

    sentence: str
    expression: str
    margin: float = 0.0
    """In the units of both sides."""
    about: str = ""
    """The claim's subject or source."""
    needs_seeds: int = 2
    needs_epochs: float = 0.0

    @staticmethod
    def of(given: Any) -> Claim:
        """Read a claim from a config. Raises ValueError with what is wrong with it."""
        if not isinstance(given, Mapping):
            raise ValueError(f"a claim must be a mapping with {', '.join(KEYS)}, not {given!r}")
        unknown = [key for key in given if key not in KEYS]
        if unknown:
            raise ValueError(f"a claim has no key {unknown[0]!r}; its keys are {', '.join(KEYS)}")
        if not given.get("sentence") or not given.get("expression"):
            raise ValueError("a claim needs a sentence and an expression")
        claim = Claim(**{key: value for key, value in given.items() if value is not None})
        for key in ("margin", "needs_seeds", "needs_epochs"):
            value = getattr(claim, key)
            if not is_number(value) or not value >= 0:  # NaN is not
                raise ValueError(f"{key} must be a number of at least 0, not {value!r}")
        if Claimed.parse(str(claim.expression)).order == "==" and claim.margin <= 0:
            raise ValueError("a claim of equality needs a margin above 0")
        return claim
