"""Text from elsewhere (axis values, exceptions, file names, journals) that a terminal, a table or a page can show."""

from __future__ import annotations

import re

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which drive terminals, signs that change the order of the text, and halves of characters."""


def printable(text: str) -> str:
    r"""Return the text with harmful characters as escapes such as `\x1b`; line feeds and tabs stay."""
    return HARMFUL.sub(_escaped, text)


def printable_line(text: str) -> str:
    r"""Return the text as one line: line feeds and tabs are escapes (`\n`), too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
