"""What notebooks show: small HTML with everything escaped, and no style outside of itself."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from mmdp.words import number

if TYPE_CHECKING:
    import pandas as pd


def facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A title and a table of names and facts.

    >>> facts("a < b", [])
    '<div><b>a &lt; b</b><table></table></div>'
    """
    left = 'style="text-align:left"'
    lines = (
        f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(fact)}</td></tr>'
        for name, fact in rows
    )
    return f"<div><b>{escape(title)}</b><table>{''.join(lines)}</table></div>"


def table(title: str, frame: pd.DataFrame) -> str:
    """A title and a table of figures, as pandas shows it."""
    shown = frame.to_html(index=False, na_rep="", float_format=number, border=0)
    return f"<div><b>{escape(title)}</b>{shown}</div>"
