"""A table that appears in every form of the report: Markdown, HTML and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.text.rows import markdown


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text, with explanations."""

    name: str
    """One word, used as an anchor."""
    title: str
    about: Sequence[str]
    """Paragraphs or lines above the table."""
    frame: pd.DataFrame
    """The table's contents: text in every cell, possibly empty."""
    remarks: Sequence[str] = ()
    """Paragraphs below the table."""

    def markdown(self) -> list[str]:
        """The lines in Markdown, without the title; `about` and `remarks` must be Markdown already."""
        below = [line for remark in self.remarks for line in (remark, "")]
        return [*self.about, "", markdown(self.frame), "", *below]
