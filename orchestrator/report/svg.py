"""Puts a drawn SVG into the page: with CSS variables as colours, classes as styles, and tooltips.

The content security policy allows no style attributes, so each style becomes a class of one style sheet.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

from orchestrator.report import matplotlib

_COLOURS = {on_white: f"var(--{name})" for name, (on_white, _) in matplotlib.variables().items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_DIGITS = re.compile(r"(\.\d\d)\d+")
_FONT = re.compile(r"font(-family)?:[^;]*'[^;]*(;|$)")
_SIZE = re.compile(r"font: (?:(\w+) )?([\d.]+px)")
_ID = re.compile(r"^(?:url\()?#([^)]*)\)?$")
"""A reference to an element by its id."""
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


class StyleSheet:
    """The style sheet of one page: each style of its plots once, under the name of a class."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def class_of(self, style: str) -> str:
        """Return the class of a style; a new style is added."""
        return self._classes.setdefault(style, f"d{len(self._classes)}")

    @property
    def css(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{style}}}" for style, name in self._classes.items())


def inlined(svg: bytes, sheet: StyleSheet, *, prefix: str, label: str, tooltips: Mapping[str, Sequence[str]]) -> str:
    """Return the `<svg>` element for a page.

    `prefix` makes ids unique in the page. Screen readers read `label`; an SVG without a label is hidden from them.
    `tooltips` has the texts of each group's shapes, by the group's id.
    """
    root = ET.fromstring(svg)
    _drop(root, f"{_SVG}metadata")
    for definitions in root.iter(f"{_SVG}defs"):
        _drop(definitions, f"{_SVG}style")  # it would apply to the whole page
    for group in root.iter(f"{_SVG}g"):
        shapes = [*group.iter(f"{_SVG}use")] or [*group.iter(f"{_SVG}path")]
        for shape, text in zip(shapes, tooltips.get(group.get("id", ""), ()), strict=False):
            ET.SubElement(shape, f"{_SVG}title").text = text
    linked = {found[1] for element in root.iter() for value in element.attrib.values() if (found := _ID.search(value))}
    for element in root.iter():
        _simplify(element, sheet, prefix, linked)
    box = root.get("viewBox", "")
    root.attrib.clear()
    read = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    root.attrib.update({"viewBox": box, **read, "class": "drawn"})
    return ET.tostring(root, encoding="unicode")


def _drop(parent: ET.Element, tag: str) -> None:
    for child in parent.findall(tag):
        parent.remove(child)


def _simplify(element: ET.Element, sheet: StyleSheet, prefix: str, linked: set[str]) -> None:
    """Remove the name space, the style attribute and ids without a reference; shorten numbers."""
    element.tag = element.tag.removeprefix(_SVG)
    attributes = element.attrib
    style = attributes.pop("style", "")
    identity = attributes.pop("id", "")
    link = attributes.pop(_LINK, "")
    for name, value in list(attributes.items()):
        attributes[name] = _DIGITS.sub(r"\1", value).replace("url(#", f"url(#{prefix}-")
    if identity in linked:
        attributes["id"] = f"{prefix}-{identity}"
    if link:
        attributes["href"] = f"#{prefix}-{link[1:]}"
    if style:
        size = _SIZE.search(style)
        style = _FONT.sub("", style).strip(" ;")  # the page has its own font
        if size:
            style = f"font-size: {size[2]}; {style}"
        attributes["class"] = sheet.class_of(_COLOUR.sub(lambda found: _COLOURS.get(found[0], found[0]), style))
