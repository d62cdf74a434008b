"""A table for people that every form of the report has: Markdown, the page, the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.text.rows import markdown


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Text in rows and columns, with what has to be said about it."""

    name: str
    """One word, to link to."""
    title: str
    about: Sequence[str]
    """Above it: paragraphs or lines, plain text."""
    frame: pd.DataFrame
    """As a reader sees it: text in every cell, `""` for nothing."""
    remarks: Sequence[str] = ()
    """Below it."""

    def markdown(self) -> list[str]:
        """The lines, without the title; what stands in `about` and `remarks` is Markdown already."""
        below = [line for remark in self.remarks for line in (remark, "")]
        return [*self.about, "", markdown(self.frame), "", *below]
