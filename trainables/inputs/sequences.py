"""The data of language models: sequences of tokens, read from memory-mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from trainables.tokens import Corpus, Tokens
from trainables.torch_state import generator


class Sequences:
    """Sequences of `length` tokens that do not overlap; the target of each token is the one after it."""

    def __init__(self, files: Sequence[Tokens], length: int, places: Tensor | None = None) -> None:
        """Take the sequences at `places`, all by default. A sequence does not cross files."""
        # Views: row k of a file is its tokens k·length to (k + 1)·length, and the one after.
        self._rows = [sliding_window_view(tokens, length + 1)[::length] for tokens in files if len(tokens) > length]
        self._ends = np.cumsum([len(rows) for rows in self._rows])
        self.length, self._files = length, tuple(files)
        self._places = torch.arange(int(self._ends[-1]) if len(self._ends) else 0) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def at(self, places: Tensor) -> Sequences:
        """Return the sequences at these places among these."""
        return Sequences(self._files, self.length, self._places[places])

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return tokens and targets, both int64 N×length."""
        rows = self.rows(index)
        return rows[:, :-1], rows[:, 1:]

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return int64 N×(length + 1)."""
        chosen: npt.NDArray[Any] = self._places[index].numpy()
        rows = np.empty((len(chosen), self.length + 1), dtype=np.int64)
        of_file = np.searchsorted(self._ends, chosen, side="right")
        for file in np.unique(of_file):
            mine = of_file == file
            rows[mine] = self._rows[file][chosen[mine] - (self._ends[file] - len(self._rows[file]))]
        return torch.from_numpy(rows)


def parts_of(corpus: Corpus, length: int, *, val_fraction: float, seed: int) -> tuple[Sequences, Sequences, Sequences]:
    """Return the sequences for training, validation and test.

    Without files for validation, a share of the training sequences is held out, drawn by the seed.
    """
    train, validation = Sequences(corpus.train, length), Sequences(corpus.validation, length)
    most = len(train) if corpus.validation_tokens is None else max(1, corpus.validation_tokens // length)
    if len(validation):
        validation = validation.at(torch.arange(min(len(validation), most)))
    else:
        order = torch.randperm(len(train), generator=generator(seed, "validation"))
        held, kept = order.tensor_split([min(round(len(train) * val_fraction), most)])
        # In the order of the files, because neighbours are read together.
        train, validation = train.at(kept.sort().values), train.at(held.sort().values)
    return train, validation, Sequences(corpus.test, length)
