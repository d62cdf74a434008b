r"""Tables of text, for Markdown, HTML and the terminal, and as LaTeX (`\usepackage{booktabs,longtable,amssymb}`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from orchestrator.text.figures import one_line
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
        """Return the lines in Markdown, without the title; `about` and `remarks` must be Markdown already."""
        below = [line for remark in self.remarks for line in (remark, "")]
        return [*self.about, "", markdown(self.frame), "", *below]


_SIGNS: dict[str, str | int | None] = {
    "×": r"$\times$",
    "±": r"$\pm$",
    "†": r"$^\dagger$",
    "▼": r"$\blacktriangledown$",
    "▲": r"$\blacktriangle$",
    "–": "--",
    "…": r"\ldots{}",
}
"""Characters that pdfTeX lacks or maps differently; the triangles are amssymb's."""

_LONG = 40
"""A column with longer texts is wrapped, because a note on one line would leave the page."""


def latex_table(frame: pd.DataFrame, caption: str) -> str:
    """Return the frame as a longtable; all values and the caption are plain text."""
    text = frame.map(lambda value: one_line(str(value), most=400)).rename(columns=lambda name: one_line(str(name)))
    wrapped = text.map(len).max() > _LONG
    columns = "".join(r"p{0.3\linewidth}" if wrapped[name] else "l" for name in text.columns)
    body = text.to_latex(index=False, escape=True, longtable=True, column_format=columns)
    heading = pd.DataFrame({caption: []}).to_latex(index=False, escape=True).splitlines()[2].removesuffix(r" \\")
    head, begin, rest = body.partition(r"\toprule")
    document = f"% needs booktabs, longtable and amssymb\n{head}\\caption{{{heading}}} \\\\\n{begin}{rest}"
    return document.translate(str.maketrans(_SIGNS))
