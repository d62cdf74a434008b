"""A drawn SVG as a part of a page: themed by CSS variables, without a style attribute, with words for who points at it.

A strict content security policy allows no style attributes, so each style becomes a class of one style sheet.
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
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


class StyleSheet:
    """Styles that were attributes, each once; the class names belong to one page."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def class_of(self, style: str) -> str:
        """The class of a style."""
        return self._classes.setdefault(style, f"d{len(self._classes)}")

    @property
    def css(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{style}}}" for style, name in self._classes.items())


def inlined(svg: bytes, sheet: StyleSheet, *, prefix: str, label: str, tooltips: Mapping[str, Sequence[str]]) -> str:
    """The `<svg>` element of a page.

    `prefix` keeps identities apart in the page, `label` is read aloud instead of the picture, `tooltips` says what each
    shape of a group shows, by the group's identity.
    """
    root = ET.fromstring(svg)
    _drop(root, f"{_SVG}metadata")
    for definitions in root.iter(f"{_SVG}defs"):
        _drop(definitions, f"{_SVG}style")  # it would hold for the whole page
    for group in root.iter(f"{_SVG}g"):
        _tell(group, tooltips.get(group.get("id", ""), ()))
    linked = {value for element in root.iter() for value in _links(element)}
    for element in root.iter():
        _plain(element, sheet, prefix, linked)
    box = root.get("viewBox", "")
    root.attrib.clear()
    read = {"role": "img", "aria-label": label} if label else {"aria-hidden": "true"}
    root.attrib.update({"viewBox": box, **read, "class": "drawn"})
    return ET.tostring(root, encoding="unicode")


def _drop(parent: ET.Element, tag: str) -> None:
    for child in parent.findall(tag):
        parent.remove(child)


def _tell(group: ET.Element, tooltips: Sequence[str]) -> None:
    """Give each shape of a group its words, in order."""
    shapes = [*group.iter(f"{_SVG}use")] or [path for path in group.iter(f"{_SVG}path")]
    for shape, words in zip(shapes, tooltips, strict=False):
        ET.SubElement(shape, f"{_SVG}title").text = words


def _links(element: ET.Element) -> list[str]:
    clip = re.fullmatch(r"url\(#(.*)\)", element.get("clip-path", ""))
    return [link for link in (element.get(_LINK, "")[1:], clip[1] if clip else "") if link]


def _plain(element: ET.Element, sheet: StyleSheet, prefix: str, linked: set[str]) -> None:
    """Without name space, style attribute and identities that nobody refers to."""
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
        attributes["class"] = sheet.class_of(_themed(style))


def _themed(style: str) -> str:
    """With the page's colours and font."""
    size = _SIZE.search(style)
    without_font = _FONT.sub("", style).strip(" ;")
    if size:
        without_font = f"font-size: {size[2]}; {without_font}"
    return _COLOUR.sub(lambda found: _COLOURS.get(found[0], found[0]), without_font)
