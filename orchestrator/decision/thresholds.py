"""The thresholds of a decision: from which probability, difference and number of seeds a verdict is CLEAR."""

from __future__ import annotations

SURE = 0.9
"""Below this probability, a recommendation is provisional and asks for more seeds."""

SURE_OF_SELECTED = 0.95
"""The same once some cells have more seeds than others: they got them because of their results, round by round."""

FEWEST_SEEDS = 3
"""With fewer seeds per cell, any recommendation is provisional."""

MOST_SEEDS = 30
"""The largest practical number of seeds: no more are proposed for a cell."""

NOTICED = 0.05
"""Cells less likely than this to be the best are no ties, are not mentioned, and get no further seeds."""

TIE = 0.02
"""Cells whose objectives differ by less than this fraction are equally good."""

SAFE = 0.95
"""A cell is safe if it is within the margin with at least this probability."""

SHOWN_BETTER = 0.99
"""A metric that is better by more than the margin justifies more device-hours if it is shown with this probability."""

SHOWN = 0.05
"""A cell is shown to lose accuracy if its chance of being within the margin is below this."""
