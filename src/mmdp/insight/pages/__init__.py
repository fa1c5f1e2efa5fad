"""HTML pages: one frame for reports, papers and cards, filled by Jinja2 with escaping.

A page is self-contained: style, script and pictures are inside it, and its content security
policy refuses everything from elsewhere. A template extends ``pages/frame.html.j2`` and takes its
tables of facts from ``pages/parts.html.j2``; ``label`` and ``listed`` are functions here.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mmdp._version import __version__
from mmdp.core import text

__all__ = ["render_label", "render_list", "render_page"]

FILTERS = (
    "format_bound_percent",
    "format_change",
    "format_distinct",
    "format_duration",
    "format_number",
    "format_percent",
    "format_seconds",
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


def render_label(label: object, max_length: int = text.MAX_LABEL_LENGTH) -> Markup:
    """Render a label: cut if it is long, and whole when pointed at.

    >>> render_label("a < b"), render_label("too long", 4)
    (Markup('a &lt; b'), Markup('<span title="too long">too…</span>'))
    """
    short, whole = text.shorten(label, max_length), text.shorten(label, 1_000_000)
    return Markup("{0}" if short == whole else '<span title="{0}">{1}</span>').format(whole, short)


def render_list(items: Iterable[str], max_shown: int = 5) -> Markup:
    """Render a list in a sentence, with the rest counted if it is long.

    >>> render_list(["a", "b", "c"]), render_list(["a", "b", "<"], 1)
    (Markup('a, b and c'), Markup('a and 2 more'))
    """
    texts = [escape(x) for x in items]
    rest = [f"{len(texts) - max_shown} more"] if len(texts) > max_shown else []
    return Markup(text.join_or([*texts[:max_shown], *rest], " and "))


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
    environment.filters |= {"label": render_label, "listed": render_list}
    environment.globals |= {"asset": _read_asset, "digest": _hash_script, "version": __version__}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


@functools.cache
def _read_asset(name: str) -> Markup:
    """Read a style sheet or script of the package, to be embedded unchanged."""
    return Markup((resources.files("mmdp.insight") / name).read_text(encoding="utf-8"))


def _hash_script(script: str) -> str:
    """Compute the SHA-256 hash of a script for the content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
