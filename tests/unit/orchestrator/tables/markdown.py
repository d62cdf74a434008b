"""Reads Markdown tables, so that tests compare values and not layout."""

import re


def table_rows(markdown: str) -> list[dict[str, str]]:
    """Return the rows of the document's first table by heading."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    heading, _, *rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(heading, row, strict=True)) for row in rows]
