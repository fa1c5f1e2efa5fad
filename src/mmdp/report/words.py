"""Numbers and labels as a page shows them."""

from __future__ import annotations

import html
import json
import math
from typing import Any

LONGEST = 48  # characters of a label that is not cut


def number(value: float, digits: int = 4) -> str:
    """About ``digits`` digits, never as a power of ten unless it is tiny or huge.

    >>> number(204.7412), number(42235.35), number(0.012345), number(7.0)
    ('204.7', '42,235', '0.01235', '7')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if value == round(value) and abs(value) < 1e12:
        return f"{value:,.0f}".replace("-", "−")
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 12:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - size)}f}".replace("-", "−")


def percent(share: float) -> str:
    """
    >>> percent(0.0345), percent(0.5), percent(0.0000012)
    ('3.5%', '50%', 'less than 0.01%')
    """
    if not math.isfinite(share):
        return "–"
    if 0 < abs(share) < 0.0001:
        return "less than 0.01%"
    size = abs(100 * share)
    digits = 0 if size >= 10 or size == 0 else 1 if size >= 1 else 2
    return f"{100 * share:.{digits}f}%".replace("-", "−")


def label(text: object, longest: int = LONGEST) -> str:
    """A label as HTML text: escaped; a long one is cut and whole in its title.

    >>> label("<b>"), label("x" * 9, 4)
    ('&lt;b&gt;', '<span title="xxxxxxxxx">xxx…</span>')
    """
    whole = " ".join(str(text).split())
    if len(whole) <= longest:
        return html.escape(whole)
    short = whole[: longest - 1].rstrip() + "…"
    return f'<span title="{html.escape(whole)}">{html.escape(short)}</span>'


def embedded(document: Any) -> str:
    """JSON that can stand inside a script element, whatever the labels hold.

    >>> embedded(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def joined(items: list[str], most: int = 5) -> str:
    """
    >>> joined(["a", "b", "c"]), joined(list("abcdefg"), 3)
    ('a, b and c', 'a, b, c and 4 more')
    """
    if len(items) > most:
        return ", ".join(items[:most]) + f" and {len(items) - most} more"
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1] if items else ""]))
