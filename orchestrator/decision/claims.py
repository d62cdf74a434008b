"""A sweep's claims: looks both sides of each up in the frames and judges them.

The language of claims: comparisons and arithmetic over the cells of a summary. Never evaluated as Python.

    speedup(gpus=4) >= 3.5
    accuracy(lr_rule=linear, global_batch_size=512) >= accuracy(global_batch_size=32)
    min(efficiency(gpus=2)) > 0.9
    epoch_s(gpus=2) / epoch_s(gpus=1) == 0.5
    loss_distance({gpus: 1}, {gpus: 2}) <= 1.5 * seed_distance({gpus: 1}, {gpus: 2})

A column with a selection in brackets stands for its value in the one cell selected; axes with a dot are written
`**{"optimizer.momentum": 0.9}`. min, max, mean and median accept a selection of several cells. loss_distance and
seed_distance take two selections of one cell each: the mean distance between the two cells' loss curves of the same
seed, and between those of different seeds of each cell (`statistics.curve_distance`). Python's own parser reads the
expression, and anything not listed here is refused.

A claim about a sweep, as written in its config.

What the seeds of a sweep say about a claim. Pure values.

The two sides are compared by seed: times, rates and speed-ups by the logarithm of left over right, as all tables do
(`means`), accuracies and whatever may be 0 by left less right. The verdict is read off a 95% interval: *confirmed* if
all of it agrees with the claim, *refuted* if none does, else *inconclusive*. The margin, in the units of the sides, is
in the claim's favour: `a >= b` with a margin of 0.01 holds unless a is below b − 0.01, and `a == b`, which needs a
margin, also requires `a <= b + 0.01`. The interval is Student's t below ten seeds and the bootstrap from ten on. Fewer
seeds or epochs than the claim needs are inconclusive in any case, and so are seeds that all give the very same value of
a quantity subject to chance: three times the same figure is one figure, not certainty.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from orchestrator.analysis.cells import by_seed
from orchestrator.analysis.curves import LossCurves
from orchestrator.analysis.validity import is_invalid, is_ratio_scaled, is_timed, only_sound, timed_by_one_process
from orchestrator.statistics.curve_distance import FEWEST, FEWEST_SEEDS, Curve, distances, pseudo_values
from orchestrator.statistics.intervals import TAIL, Array, mean_interval
from orchestrator.text.rows import status
from sweeps.axes import is_number
from sweeps.errors import nearest
from sweeps.status import Status

if TYPE_CHECKING:
    from orchestrator.statistics.intervals import Array

OF_CURVES = ("loss_distance", "seed_distance")
"""Functions of the loss curves of two cells: their distance, and how much of it different seeds alone would give."""


class Lookup(Protocol):
    """Looks up values."""

    def __call__(self, column: str, *selections: Mapping[str, Any]) -> Array:
        """Array of shape (selected cells, seeds), NaN is missing; OF_CURVES give one row."""


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
    """Two sides and their claimed relation."""

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
        for side in (claimed.left, claimed.right):
            _check(side)
        return claimed

    @property
    def columns(self) -> set[str]:
        """The columns and curve functions that it uses."""
        return {column for side in (self.left, self.right) for column, _ in _references(side)}

    @property
    def selected_by(self) -> set[str]:
        """The axes by which it selects cells."""
        calls = (call for side in (self.left, self.right) for _, call in _references(side))
        return {axis for call in calls for selection in _selections(call) for axis in selection}

    @property
    def subtracts(self) -> bool:
        """Whether it contains a subtraction or a negation."""
        nodes = (node for side in (self.left, self.right) for node in ast.walk(side))
        return any(isinstance(node, (ast.Sub, ast.USub)) for node in nodes)

    def sides(self, lookup: Lookup) -> tuple[Array, Array]:
        """Left and right side by seed; a number applies to all seeds. Raises ExpressionError for unfit selections."""
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
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _check(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _check(node.left)
        return _check(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in _OVER_CELLS:
            _selections(node)
            return None
        if len(node.args) == 1 and not node.keywords and _is_reference(node.args[0]):
            return _check(node.args[0])
        raise ExpressionError(f"{node.func.id} takes one column with its selection, as {node.func.id}(speedup(gpus=2))")
    raise ExpressionError(
        f"{ast.unparse(node)!r} is not in the language of claims: numbers, + - * /, column(axis=value)"
    )


def _is_reference(node: ast.expr) -> bool:
    others = (*_OVER_CELLS, *OF_CURVES)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in others


def _selections(call: ast.Call) -> Sequence[dict[str, Any]]:
    """The selections of a call: one for a column, two for OF_CURVES."""
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    if name not in OF_CURVES:
        return [_selection(call)]
    if call.keywords or len(call.args) != 2 or not all(isinstance(each, ast.Dict) for each in call.args):
        raise ExpressionError(f"{ast.unparse(call)!r}: {name} takes two cells, as {name}({{gpus: 1}}, {{gpus: 2}})")
    return [_pairs(each, call) for each in call.args]


def _selection(call: ast.Call) -> dict[str, Any]:
    """{axis: value} in the brackets of a column; a bare word stands for its own text, null for a missing value."""
    if call.args:
        raise ExpressionError(f"{ast.unparse(call)!r}: write a selection as axis=value")
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = _constant(keyword.value)
        else:
            found |= _pairs(keyword.value, call)
    return found


def _pairs(node: ast.expr, call: ast.Call) -> dict[str, Any]:
    if not isinstance(node, ast.Dict):
        raise ExpressionError(f"{ast.unparse(call)!r}: ** must be followed by a dictionary")
    return {str(_constant(key)): _constant(value) for key, value in zip(node.keys, node.values, strict=True)}


def _constant(node: ast.expr | None) -> Any:
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
        with np.errstate(divide="ignore", invalid="ignore"):
            return _ARITHMETIC[type(node.op)](_value(node.left, lookup), np.asarray(_value(node.right, lookup), float))
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if node.func.id in _OVER_CELLS:
        inner = node.args[0]
        assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
        return getattr(np, node.func.id)(lookup(inner.func.id, *_selections(inner)), axis=0)
    values = lookup(node.func.id, *_selections(node))
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
    """What it is about, or who stated it."""
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
            if not is_number(value) or value < 0:
                raise ValueError(f"{key} must be a number of at least 0, not {value!r}")
        if Claimed.parse(str(claim.expression)).order == "==" and claim.margin <= 0:
            raise ValueError("a claim of equality needs a margin above 0")
        return claim


CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"

_POWER_QUANTILE = 0.8416
"""Quantile of the normal distribution at 80%: the number of seeds is chosen to reach a verdict that often."""

_MOST_SEEDS = 100

_UNDECIDED = "the interval includes values for and against it"


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides of a claim by seed, arrays of one shape; NaN if a seed lacks a cell."""

    left: Array
    right: Array
    by_ratio: bool
    """Whether the sides are times, rates or the like, which are compared by ratio."""
    by_chance: bool = False
    """Whether they vary from seed to seed, as times and accuracies do, but counts need not."""

    @staticmethod
    def of(left: Array, right: Array, *, by_ratio: bool, margin: float = 0.0, by_chance: bool = False) -> Sides:
        """Keep the seeds that have both sides. Ratios need values above 0 and a margin below all of them."""
        known = ~np.isnan(left) & ~np.isnan(right)
        left, right = left[known], right[known]
        above = bool((left > 0).all() and (right > margin).all())
        return Sides(left=left, right=right, by_ratio=by_ratio and above, by_chance=by_chance)

    @property
    def are_copies(self) -> bool:
        """Whether all seeds have the same values although chance should have made them differ."""
        return self.by_chance and all(bool((side == side[0]).all()) for side in (self.left, self.right))

    def compared(self, shift: float = 0.0) -> Array:
        """Logarithm of left / (right + shift), or left − (right + shift)."""
        right = self.right + shift
        return np.asarray(np.log(self.left / right) if self.by_ratio else self.left - right)

    def mean(self, values: Array) -> float:
        """Geometric if the sides are compared by ratio."""
        return float(np.exp(np.log(values).mean()) if self.by_ratio else values.mean()) if len(values) else math.nan


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the measurements say about a claim; NaN means not known."""

    claim: Claim
    verdict: str
    why: str = ""
    """Why the verdict is inconclusive."""
    left: float = math.nan
    right: float = math.nan
    """Means of the two sides."""
    by_ratio: bool = False
    point: float = math.nan
    """Left side over right side where `by_ratio`, else left less right."""
    lo: float = math.nan
    hi: float = math.nan
    n: int = 0
    """Seeds that all cells of the claim have."""
    one_process: bool = False
    """Whether one process timed all seeds of a cell, so that the interval does not cover how processes differ."""
    seeds_to_settle: int | None = None
    """Total seeds to settle it; None if settled, if no practical number suffices, or if fewer than two say nothing."""


def judge(claim: Claim, sides: Sides, epochs: float = math.inf) -> Verdict:
    """The verdict on a claim; `epochs` is the fewest of the trials behind it, NaN if one does not report it."""
    n, order = len(sides.left), Claimed.parse(claim.expression).order
    tests = _tests(order, claim.margin, sides)
    found = _read(order, tests) if n else INCONCLUSIVE
    why = _why(claim, sides, epochs) or (_UNDECIDED if found == INCONCLUSIVE else "")
    point, lo, hi = _interval(sides.compared(), back=np.exp if sides.by_ratio else np.asarray)
    return Verdict(
        claim=claim,
        verdict=INCONCLUSIVE if why else found,
        why=why,
        left=sides.mean(sides.left),
        right=sides.mean(sides.right),
        by_ratio=sides.by_ratio,
        point=point,
        lo=lo,
        hi=hi,
        n=n,
        seeds_to_settle=_to_settle(claim, found, tests, n) if why else None,
    )


def _why(claim: Claim, sides: Sides, epochs: float) -> str:
    """Why a claim cannot be judged at all; empty if it can."""
    n = len(sides.left)
    if n == 0:
        return "no seed has values for both sides"
    if n < 2:
        return "one seed gives no interval"
    if n < claim.needs_seeds:
        return f"it needs {claim.needs_seeds} seeds, and has {n}"
    if sides.are_copies:
        return f"all {n} seeds are identical, which says nothing about chance"
    if claim.needs_epochs > 0 and not epochs >= claim.needs_epochs:
        had = "the trials do not report theirs" if math.isnan(epochs) else f"the shortest trial had {epochs:.4g}"
        return f"it needs {claim.needs_epochs:g} epochs, and {had}"
    return ""


def _tests(order: str, margin: float, sides: Sides) -> list[Array]:
    """Values by seed that are above (or not below) 0 if the claim holds; for an equality, both bounds."""
    below, above = sides.compared(-margin), -sides.compared(margin)
    return [below, above] if order == "==" else [below if order in (">", ">=") else above]


def _read(order: str, tests: Sequence[Array]) -> str:
    ends = [_interval(test)[1:] for test in tests]
    if any(math.isnan(end) for both in ends for end in both):
        return INCONCLUSIVE
    if all(_holds(order, lo) for lo, _ in ends):
        return CONFIRMED
    return INCONCLUSIVE if all(_holds(order, hi) for _, hi in ends) else REFUTED


def _holds(order: str, value: float) -> bool:
    return value > 0 if order in "<>" else value >= 0


def _interval(values: Array, back: Callable[[Any], Any] = np.asarray) -> tuple[float, float, float]:
    """The mean and the ends of its interval; NaN without values."""
    if not len(values):
        return math.nan, math.nan, math.nan
    found = mean_interval(values[None, :]).map(back)
    return float(found.point[0]), float(found.lo[0]), float(found.hi[0])


def _to_settle(claim: Claim, found: str, tests: Sequence[Array], n: int) -> int | None:
    """Seeds to settle an inconclusive claim; the number it requires if the present ones agree already."""
    if n < 2:
        return None
    if found != INCONCLUSIVE:
        return claim.needs_seeds if n < claim.needs_seeds else None
    seeds = _seeds(tests)
    return None if seeds is None else max(claim.needs_seeds, seeds)


def _seeds(tests: Sequence[Array]) -> int | None:
    """Seeds at which the interval would exclude the border if mean and deviation stay the same."""
    from scipy.special import stdtrit

    nearest = min(tests, key=lambda test: float(test.mean()))  # the strongest against, or weakest for
    gap, deviation = abs(float(nearest.mean())), float(nearest.std(ddof=1))
    for n in range(len(nearest) + 1, _MOST_SEEDS + 1):
        if (float(stdtrit(n - 1, TAIL)) + _POWER_QUANTILE) * deviation / math.sqrt(n) <= gap:
            return n
    return None


_OF_BASELINE = ("speedup", "efficiency")
"""Columns that compare a cell with its baseline; computed here by seed."""

_LEARNT = ("accuracy", "val_accuracy", "loss", *OF_CURVES)


def needs_curves(claims: Sequence[Claim]) -> bool:
    """Whether any claim is about loss curves."""
    return any(Claimed.parse(claim.expression).columns & set(OF_CURVES) for claim in claims)


def verdicts(
    claims: Sequence[Claim], trials: pd.DataFrame, cells: pd.DataFrame, curves: LossCurves | None = None
) -> list[Verdict]:
    """One verdict per claim; a claim about cells that are missing or not ok is inconclusive, with the reason.

    Without `curves`, claims about loss curves are inconclusive.
    """
    return [_verdict(claim, _Values(trials, cells, curves or {})) for claim in claims]


def _verdict(claim: Claim, values: _Values) -> Verdict:
    try:
        claimed = Claimed.parse(claim.expression)
        left, right = claimed.sides(values)
    except ExpressionError as error:
        return Verdict(claim=claim, verdict=INCONCLUSIVE, why=str(error))
    by_ratio = not claimed.subtracts and all(map(is_ratio_scaled, claimed.columns))
    by_chance = any(is_timed(column) or column in (*_OF_BASELINE, *_LEARNT) for column in claimed.columns)
    sides = Sides.of(left, right, by_ratio=by_ratio, margin=claim.margin, by_chance=by_chance)
    found = replace(judge(claim, sides, values.fewest_epochs), one_process=values.of_one_process)
    if values.is_doubtful and found.n:  # further seeds with such timings would not settle it, either
        why = "the timing of one of its cells is not valid"
        return replace(found, verdict=INCONCLUSIVE, why=why, seeds_to_settle=None)
    return found


class _Values:
    """Looks up values by column and selection, and records the epochs of the trials involved."""

    def __init__(self, trials: pd.DataFrame, cells: pd.DataFrame, curves: LossCurves) -> None:
        self._cells = cells
        self._curves = curves
        self._ok = only_sound(trials)[trials["status"] == Status.OK.value]
        ends = trials["status"].map(Status)
        self._unsound = set(trials.loc[ends.map(Status.is_result).astype(bool) & (ends != Status.OK), "cell_id"])
        """Cells of which a seed diverged, ran out of memory …: the others alone would flatter them."""
        self._seeds = sorted(self._ok["seed"].unique())
        self.fewest_epochs = math.inf
        self.is_doubtful = False
        """Whether any timing looked up so far is invalid …"""
        self.of_one_process = False
        """… or of a cell that one process timed."""

    def __call__(self, column: str, *selections: Mapping[str, Any]) -> Array:
        if column in OF_CURVES:
            one, other = (self._curves_of(column, selection) for selection in selections)
            return self._distance(column, one, other)[None, :]
        (selection,) = selections
        cells = self._selected(column, selection)
        if column not in _OF_BASELINE:
            return self._by_seed(column, cells["cell_id"])
        ratios = self._by_seed("samples_per_s", cells["cell_id"])
        ratios = ratios / self._by_seed("samples_per_s", cells["baseline_cell_id"])
        if column == "speedup":
            return ratios
        gpus = self._cells.set_index("cell_id")["gpus"]
        at_baseline = gpus.reindex(cells["baseline_cell_id"]).to_numpy(dtype="float64")
        return np.asarray(ratios / (cells["gpus"].to_numpy(dtype="float64") / at_baseline)[:, None])

    def _distance(self, name: str, one: Sequence[Curve | None], other: Sequence[Curve | None]) -> Array:
        """Distance between two cells by seed; or each seed's part in the distance between seeds."""
        between = name == "loss_distance"
        found = distances(one, other) if between else (pseudo_values(one) + pseudo_values(other)) / 2
        if np.isnan(found).all():
            seeds = "" if between else f" of {FEWEST_SEEDS} seeds of each cell"
            raise ExpressionError(f"{name} needs curves{seeds} with {FEWEST} epochs in common")
        return found

    def _curves_of(self, name: str, selection: Mapping[str, Any]) -> Sequence[Curve | None]:
        """The selected cell's curves, one per seed; exactly one cell must be selected."""
        cells = self._cells_with(name, selection)
        if len(cells) != 1:
            selected = ", ".join(f"{axis}: {value}" for axis, value in selection.items())
            raise ExpressionError(f"{{{selected}}} of {name} selects {len(cells)} cells: narrow it")
        cell_id = cells["cell_id"].iloc[0]
        curves = self._curves.get(cell_id, {})
        if not curves:
            raise ExpressionError("no curves: no trial of one of its cells has a loss in its metrics.jsonl")
        self._look_at([cell_id])
        return [curves.get(seed) for seed in self._seeds]

    def _selected(self, column: str, selection: Mapping[str, Any]) -> pd.DataFrame:
        known = [name for name in self._ok.columns if pd.api.types.is_numeric_dtype(self._ok[name])]
        if column not in (*known, *_OF_BASELINE):
            raise ExpressionError(f"there is no column {column!r} of numbers{nearest(column, [*known, *_OF_BASELINE])}")
        return self._cells_with(column, selection)

    def _cells_with(self, column: str, selection: Mapping[str, Any]) -> pd.DataFrame:
        chosen = self._cells
        for axis, value in selection.items():
            name = axis if axis in chosen else f"axes.{axis}"
            if name not in chosen:
                raise ExpressionError(f"there is no axis {axis!r}{nearest(axis, list(self._cells.columns))}")
            chosen = chosen[chosen[name].isna() if value is None else chosen[name] == value]
        selected = ", ".join(f"{axis}={value}" for axis, value in selection.items())
        if chosen.empty:
            raise ExpressionError(f"no cell has {selected}")
        bad = chosen[(chosen["n_ok"] == 0) | chosen["cell_id"].isin(self._unsound)]
        if len(bad):
            raise ExpressionError(f"{column}({selected}): a cell is {status(bad.to_dict('records')[0])}")
        return chosen

    def _look_at(self, cell_ids: Iterable[Any]) -> pd.DataFrame:
        """The ok trials of these cells."""
        looked_at = self._ok[self._ok["cell_id"].isin(list(cell_ids))]
        if len(looked_at):  # NaN if any trial does not report it
            self.fewest_epochs = float(np.minimum(self.fewest_epochs, looked_at["epochs"].min(skipna=False)))
        return looked_at

    def _by_seed(self, column: str, cell_ids: pd.Series[Any]) -> Array:
        looked_at = self._look_at(cell_ids)
        if is_timed(column):
            cells = self._cells[self._cells["cell_id"].isin(cell_ids)]
            self.is_doubtful |= bool(is_invalid(cells["timing_valid"]).any())
            self.of_one_process |= bool(timed_by_one_process(cells).any())
        return by_seed(cell_ids, looked_at, column, self._seeds)
