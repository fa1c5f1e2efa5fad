"""HTML for notebooks: small tables with all text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from mmdp.core.text import format_number

if TYPE_CHECKING:
    import pandas as pd


def render_facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Render a title and a table of names and texts as HTML.

    >>> render_facts("a < b", [])
    '<div><b>a &lt; b</b><table></table></div>'
    """
    align = 'style="text-align:left"'
    html_rows = (
        f'<tr><th scope="row" {align}>{escape(name)}</th><td {align}>{escape(fact)}</td></tr>'
        for name, fact in rows
    )
    return f"<div><b>{escape(title)}</b><table>{''.join(html_rows)}</table></div>"


def render_frame(title: str, frame: pd.DataFrame) -> str:
    """Render a title and a data frame as HTML."""
    html_table = frame.to_html(index=False, na_rep="", float_format=format_number, border=0)
    return f"<div><b>{escape(title)}</b>{html_table}</div>"
