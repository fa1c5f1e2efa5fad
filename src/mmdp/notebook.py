"""What notebooks show: small HTML with everything escaped, and no style outside of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from mmdp.words import counted, number, shortened

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#999999",
)  # fmt: skip
WIDTH, ROW, LEFT, LETTER = 420, 16, 130, 7  # pixels
MOST_STATES, MOST_ACTIONS, MOST_CELLS = 40, len(COLOURS), 4000


def facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A title and a table of names and facts.

    >>> facts("a < b", [])
    '<div><b>a &lt; b</b><table></table></div>'
    """
    left = 'style="text-align:left"'
    lines = (
        f'<tr><th scope="row" {left}>{escape(name)}</th><td {left}>{escape(told)}</td></tr>'
        for name, told in rows
    )
    return f"<div><b>{escape(title)}</b><table>{''.join(lines)}</table></div>"


def table(title: str, frame: pd.DataFrame) -> str:
    """A title and a table of figures, as pandas shows it."""
    shown = frame.to_html(index=False, na_rep="", float_format=number, border=0)
    return f"<div><b>{escape(title)}</b>{shown}</div>"


def policy_map(
    actions: Sequence[Sequence[int]], states: Sequence[str], names: Sequence[str]
) -> str:  # fmt: skip
    """Actions (T, S) as a picture, time to the right and a row per state; hovering names a cell.

    Large policies are cut to their first states and times, and say so.
    """
    n_states = min(len(states), MOST_STATES)
    times = min(len(actions), max(1, MOST_CELLS // n_states))
    table = [list(row[:n_states]) for row in actions[:times]]
    used = sorted({action for row in table for action in row})
    colour = {action: COLOURS[i % MOST_ACTIONS] for i, action in enumerate(used)}
    tall = ROW * n_states
    cells = "".join(
        _row(s, [row[s] for row in table], states[s], names, colour) for s in range(n_states)
    )
    legend = " ".join(
        f'<span style="white-space:nowrap"><span style="color:{colour[a]}">&#9632;</span> '
        f"{escape(shortened(names[a]))}</span>"
        for a in used
    )
    told = f"actions by state, from time 0 to {times - 1}" if len(actions) > 1 else "by state"
    left = [f"{counted(len(states) - n_states, 'more state')}"] * (n_states < len(states))
    left += [f"{counted(len(actions) - times, 'more time')}"] * (times < len(actions))
    more = f" (and {', '.join(left)})" if left else ""
    return (
        f'<div><svg role="img" aria-label="{told}" xmlns="http://www.w3.org/2000/svg" '
        f'width="{LEFT + WIDTH}" height="{tall}" font-size="12" font-family="sans-serif">{cells}'
        f"</svg><div>{legend}</div><div>{told}{more}</div></div>"
    )


def _row(
    s: int, actions: Sequence[int], state: str, names: Sequence[str], colour: dict[int, str]
) -> str:
    """A state: its label and a bar for every run of equal actions."""
    label = escape(shortened(state, LEFT // LETTER))
    parts = [f'<text x="0" y="{ROW * s + 12}" fill="currentColor">{label}</text>']
    unit = WIDTH / len(actions)
    for first, last, action in _runs(actions):
        when = f"time {first}" if first == last else f"times {first} to {last}"
        told = escape(f"{shortened(state)}, {when}: {shortened(names[action])}")
        parts.append(
            f'<rect x="{LEFT + unit * first:.1f}" y="{ROW * s + 1}" '
            f'width="{unit * (last + 1 - first):.1f}" height="{ROW - 2}" '
            f'fill="{colour[action]}"><title>{told}</title></rect>'
        )
    return "".join(parts)


def _runs(actions: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """First and last place of each run of equal actions, and the action.

    >>> list(_runs([2, 2, 0]))
    [(0, 1, 2), (2, 2, 0)]
    """
    for action, places in groupby(range(len(actions)), key=lambda t: actions[t]):
        run = list(places)
        yield run[0], run[-1], action
