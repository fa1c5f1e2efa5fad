"""Pages: one HTML frame for the report and the paper, filled by Jinja2 with escaping on.

A page is self-contained: style, script and pictures are inside it, and its content security
policy refuses everything from elsewhere. A template extends ``pages/frame.html.j2`` and takes its
small parts (labels, lists, tables of facts) from ``pages/parts.html.j2``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mmdp import words
from mmdp._version import __version__

__all__ = ["render"]

FORMATS = (
    "apart", "at_most", "at_most_percent", "by_axis", "change", "clock", "counted", "duration",
    "in_unit", "leading", "number", "percent", "shortened",
)  # fmt: skip


def render(template: str, **facts: Any) -> str:
    """The page of a template, named from the package on: ``report/templates/page.html.j2``.

    >>> page = render("pages/frame.html.j2", title="<script>")
    >>> "<title>&lt;script&gt;</title>" in page, "default-src 'none'" in page
    (True, True)
    """
    return _environment().get_template(template).render(facts)


@functools.cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mmdp", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {name: getattr(words, name) for name in FORMATS}
    found.globals |= {"asset": _asset, "digest": _digest, "version": __version__}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return found


@functools.cache
def _asset(name: str) -> Markup:
    """One of our style sheets or scripts, to be put into the page unchanged."""
    loader = _environment().loader
    assert loader is not None
    return Markup(loader.get_source(_environment(), name)[0])


def _digest(script: str) -> str:
    """The hash by which the security policy knows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
