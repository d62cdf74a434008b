"""Tables of text, and their Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import tabulate

from orchestrator.text import numbers


def markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown, every value as plain text."""
    text = table.map(numbers.plain).rename(columns=numbers.plain)
    # The same text on every machine.
    tabulate.WIDE_CHARS_MODE = False  # else widths differ where wcwidth happens to be installed
    return str(text.to_markdown(index=False, disable_numparse=True))


def without_empty(columns: pd.DataFrame | Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the table without the columns that are empty in every row."""
    table = pd.DataFrame(columns)
    return table.loc[:, (table != "").any()]


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text, with explanations."""

    name: str  # one word, used as an anchor
    title: str
    about: Sequence[str]  # paragraphs or lines above the table
    frame: pd.DataFrame  # the table's contents: text in every cell, possibly empty
    remarks: Sequence[str] = ()  # paragraphs below the table

    def markdown(self) -> list[str]:
        """Return the lines in Markdown, without the title; `about` and `remarks` must be Markdown already."""
        below = [line for remark in self.remarks for line in (remark, "")]
        return [*self.about, "", markdown(self.frame), "", *below]

    def document(self, title: str) -> str:
        """Return the table as a Markdown document."""
        return "\n".join([f"# {numbers.plain(title)}", "", *self.markdown()])


@dataclass(frozen=True, kw_only=True)
class Document:
    """A Markdown file beside those of scaling and accuracy: claims, scaling."""

    text: str
    tables: Sequence[TextTable]
    """Its tables for the page and the terminal; empty if the document only explains why there are none."""
    rows: pd.DataFrame | None = None  # its numbers, for a CSV file beside it and a plot
    line: tuple[str, str] | None = None  # a label and a sentence for the summary
