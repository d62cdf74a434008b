"""The report's pictures, as a notebook shows them at the end of a cell."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.storage.layout import Layout

_IN_DOCUMENT = re.compile(r"!\[(?P<title>[^\]]*)\]\([^)]*?(?P<name>\w+)\.png\)")


@dataclass(frozen=True, kw_only=True)
class NotebookPicture:
    """One picture; `svg` is the file's content."""

    name: str
    title: str
    svg: str

    def _repr_html_(self) -> str:
        """As an image of its own, so that no style of it reaches the notebook."""
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img alt="{html.escape(self.title)}" src="data:image/svg+xml;base64,{data}">'


class NotebookPictures(Mapping[str, NotebookPicture]):
    """By name (`speedup`, `accuracy`, `loss`, …), in the report's order; shows all of them."""

    def __init__(self, pictures: Mapping[str, NotebookPicture]) -> None:
        self._pictures = dict(pictures)

    @staticmethod
    def of(layout: Layout) -> NotebookPictures:
        """The pictures of the last report; FileNotFoundError where a sweep has none (`report.html=false`)."""
        if not layout.document.is_file():
            raise FileNotFoundError(f"there is no {layout.document}: no trial has ended yet, or report.html=false")
        found = [(each["name"], each["title"]) for each in _IN_DOCUMENT.finditer(layout.document.read_text())]
        files = {name: (title, Path(layout.pictures / f"{name}.svg")) for name, title in found}
        return NotebookPictures(
            {
                name: NotebookPicture(name=name, title=title, svg=file.read_text())
                for name, (title, file) in files.items()
                if file.is_file()
            }
        )

    def __getitem__(self, name: str) -> NotebookPicture:
        """KeyError names what there is."""
        if name not in self._pictures:
            raise KeyError(f"{name!r} is not one of {', '.join(self._pictures)}")
        return self._pictures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pictures)

    def __len__(self) -> int:
        return len(self._pictures)

    def _repr_html_(self) -> str:
        """One below the other."""
        return "\n".join(f"<p>{picture._repr_html_()}</p>" for picture in self._pictures.values())
