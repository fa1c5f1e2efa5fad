"""What tests of pages share: a page taken apart, and labels that try to be code."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import mmdp
from mmdp.insight import report

SCRIPT = "</script><script>window.ran=1;console.log('ran')</script>"
IMAGE = "<img src=x onerror=\"window.ran=1;console.log('ran')\">"
QUOTES = "\"double\" & 'single' `back` ${window.ran=1}"
LONG_LABEL = "a label of eighty characters, no more and no less, that has to be cut somewhere."


class Page(HTMLParser):
    """Elements, attributes and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._current_tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._current_tag = tag

    def handle_endtag(self, tag: str) -> None:
        self._current_tag = ""

    def handle_data(self, data: str) -> None:
        if self._current_tag == "script":
            self.scripts.append(data)
        elif self._current_tag != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def write_page(path: Path, model: mmdp.MMDP, **options: Any) -> Page:
    """The page, without what takes many solves unless it is asked for."""
    default_options = {
        "n_resamples": 0,
        "voi": False,
        "small_tree": False,
        "sample_size": False,
        "frontier": False,
        "max_nodes": 0,
    }
    options = {**default_options, **options}
    return Page(report.write(model, path / "report.html", **options).read_text(encoding="utf-8"))


def read_script_data(page: Page) -> Any:
    return json.loads(page.scripts[0])


def unpack(text: str, dtype: str, shape: tuple[int, int]) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype=dtype).reshape(shape)


READY = "document.getElementById('map').dataset.ready === 'yes'"


class PageBlocks(HTMLParser):
    """Paragraphs, items, cells and the like of a page, as (tag, text) without inline tags."""

    INLINE = frozenset({"a", "b", "strong", "em", "span", "code", "small", "kbd"})
    IGNORED = frozenset({"script", "style", "svg", "select", "label", "canvas", "output", "nav"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.items: list[tuple[str, str]] = []
        self._ignored_depth = 0
        self._tags = [""]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._ignored_depth += tag in self.IGNORED
        if tag not in self.INLINE and tag not in ("meta", "link", "input", "br", "hr"):
            self._tags.append(tag)
            self.items.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._ignored_depth -= tag in self.IGNORED
        if tag not in self.INLINE:
            self._tags.pop()
            self.items.append((self._tags[-1], ""))

    def handle_data(self, data: str) -> None:
        if not self._ignored_depth:
            tag, text = self.items.pop() if self.items else ("", "")
            self.items.append((tag, text + data))

    @property
    def blocks(self) -> list[tuple[str, str]]:
        stripped = ((tag, " ".join(text.split())) for tag, text in self.items)
        return [(tag, text) for tag, text in stripped if text]
