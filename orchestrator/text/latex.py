r"""The tables as LaTeX, for papers: `\usepackage{booktabs,longtable,amssymb}`."""

from __future__ import annotations

import pandas as pd

from orchestrator.text.figures import one_line

_SIGNS = {
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
"""Characters from which on a column's text is wrapped: a note on one line would leave the page."""


def latex_table(frame: pd.DataFrame, caption: str) -> str:
    """The frame as a longtable; all values and the caption are plain text."""
    text = frame.map(lambda value: one_line(str(value), most=400)).rename(columns=lambda name: one_line(str(name)))
    wrapped = text.map(len).max() > _LONG
    columns = "".join(r"p{0.3\linewidth}" if wrapped[name] else "l" for name in text.columns)
    body = text.to_latex(index=False, escape=True, longtable=True, column_format=columns)
    heading = pd.DataFrame({caption: []}).to_latex(index=False, escape=True).splitlines()[2].removesuffix(r" \\")
    head, begin, rest = body.partition(r"\toprule")
    return _in_tex(f"% needs booktabs, longtable and amssymb\n{head}\\caption{{{heading}}} \\\\\n{begin}{rest}")


def _in_tex(text: str) -> str:
    for sign, tex in _SIGNS.items():
        text = text.replace(sign, tex)
    return text
