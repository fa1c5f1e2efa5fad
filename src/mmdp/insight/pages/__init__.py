"""HTML pages: one frame for reports, papers and cards, filled by Jinja2 with escaping.

A page is self-contained: style, script and pictures are inside it, and its content security
policy refuses everything from elsewhere. A template extends ``pages/frame.html.j2`` and takes its
small parts (labels, lists, tables of facts) from ``pages/parts.html.j2``.
"""

from __future__ import annotations

import base64
import functools
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mmdp._version import __version__
from mmdp.core import text

__all__ = ["render_page"]

FILTERS = (
    "digits_for",
    "format_bound",
    "format_bound_percent",
    "format_change",
    "format_distinct",
    "format_duration",
    "format_lead",
    "format_number",
    "format_percent",
    "format_seconds",
    "format_with_unit",
    "pluralize",
    "shorten",
    "summarize_axes",
)


def render_page(template: str, **variables: object) -> str:
    """Render a template, named by its path in the package: ``report/templates/page.html.j2``.

    >>> page = render_page("pages/frame.html.j2", title="<script>")
    >>> "<title>&lt;script&gt;</title>" in page, "default-src 'none'" in page
    (True, True)
    """
    return make_environment().get_template(template).render(variables)


@functools.cache
def make_environment() -> Environment:
    """Make the Jinja2 environment with filters, assets and strict variables."""
    environment = Environment(
        loader=PackageLoader("mmdp.insight", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(text, name) for name in FILTERS}
    environment.globals |= {"asset": _read_asset, "digest": _hash_script, "version": __version__}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@functools.cache
def _read_asset(name: str) -> Markup:
    """Read a style sheet or script of the package, to be embedded unchanged."""
    loader = make_environment().loader
    assert loader is not None
    return Markup(loader.get_source(make_environment(), name)[0])


def _hash_script(script: str) -> str:
    """Compute the SHA-256 hash of a script for the content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
