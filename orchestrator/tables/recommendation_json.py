"""The recommendation for programs: the contents of `recommendation.md` as one JSON object.

docs/how-to/library.md lists its keys.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from orchestrator.decision.choice import LOSS_QUANTILE, TIE
from orchestrator.decision.recommendation import Recommendation, Setting
from orchestrator.storage.json_line import finite
from orchestrator.tables.recommendation import UNTOLD

VERSION = 1
"""The version of the object's format: adding keys keeps it, renaming a key or changing its meaning increases it."""


def recommendation_json(found: Recommendation, sweep: str) -> str:
    """The text of the file; null means unknown or absent."""
    by_id = {each.cell_id: each for each in found.shortlist}
    chosen, baseline = (by_id.get(cell_id or "") for cell_id in (found.cell_id, found.baseline_cell_id))
    content = {
        "version": VERSION,
        "sweep": sweep,
        "sentence": found.sentence,
        "objective": {"name": found.objective, "measure": found.measure or None},
        "recommended": chosen and _setting(chosen),
        "provisional": found.provisional,
        "probability": {"best": found.p_best, "within_margin": found.p_within_margin},
        "margin": {"val_accuracy": found.margin, "tie": TIE},
        "behind_best": {"at_most": found.behind if found.behind <= UNTOLD else None, "probability": LOSS_QUANTILE},
        "warnings": _warnings(found, chosen),
        "reasons": found.reasons,
        "not_considered": found.left_out,
        "baseline": baseline and _setting(baseline),
        "alternatives": [_setting(each) for each in found.shortlist if each not in (chosen, baseline)],
        "gpu_counts": [asdict(each) for each in found.gpu_counts],
        "undecided": {
            "would_change": found.would_change,
            "more_seeds": [asdict(each) for each in found.more_seeds],
            "commands": found.commands,
        },
    }
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def _setting(found: Setting) -> dict[str, Any]:
    content = asdict(found)
    chances = {"best": content.pop("p_best"), "within_margin": content.pop("p_within_margin")}
    measured = {name: None if math.isnan(each.value) else asdict(each) for name, each in found.figures.items()}
    return content | {"figures": measured, "probability": chances, "why_not": found.why_not or None}


def _warnings(found: Recommendation, chosen: Setting | None) -> list[str]:
    """What makes it provisional, and remarks on the chosen cell's own seeds and timing."""
    return [*found.doubts, *([chosen.note] if chosen and chosen.note else [])]
