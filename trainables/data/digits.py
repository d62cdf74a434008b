"""The handwritten digits that scikit-learn ships."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainables.data.dataset import DataError, Samples


@dataclass(frozen=True, kw_only=True)
class Digits:
    """1,797 grey images of 8×8 pixels: every fifth image of each class is for testing (360), the rest for training."""

    def files(self) -> Sequence[Path]:
        """The table inside scikit-learn, found without importing it, which would take longer than a trial."""
        found = importlib.util.find_spec("sklearn")
        if found is None or not found.submodule_search_locations:
            raise DataError("scikit-learn, which ships the digits, is not installed")
        return [Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"]

    def read(self, device: str) -> Samples:
        """Grey levels 0 to 16, spread over 0 to 255."""
        table = torch.from_numpy(np.loadtxt(self.files()[0], delimiter=",", dtype=np.int64))
        x = (table[:, :64] * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
        y = table[:, 64].contiguous()
        by_class = torch.argsort(y, stable=True)
        testing = torch.zeros(len(y), dtype=torch.bool)
        testing[by_class[::5]] = True
        return Samples(x[~testing], y[~testing], x[testing], y[testing], 10)
