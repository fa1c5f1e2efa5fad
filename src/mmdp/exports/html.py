"""A policy as one page for a phone, which needs no network and prints as a card."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from mmdp.exports.code import as_json
from mmdp.exports.javascript import functions
from mmdp.exports.rule import Rule
from mmdp.pages import render
from mmdp.policy.flowchart import in_ranges
from mmdp.words import named_axes, named_values, percent

LIMIT = 1_000_000  # cells that a phone can load
PRINTED = 600  # the most lines of a card
SELDOM = 1e-9  # less likely visits are too rare for figures
TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
LISTED = 2_000  # the most labels that a field offers to choose from


def written(rule: Rule) -> str:
    """The page."""
    (axes, others), stakes, first = named_axes(rule.states), _stakes(rule), rule.states[rule.begins]
    used, by_time = _used_axes(rule, axes), bool((rule.table != rule.table[:1]).any())
    facts = {
        "ARGUMENTS": rule.arguments, "AXES": [*axes.items()], "OTHERS": others,
        "BEGINS": rule.begins, "STAKES": stakes, "TURNS": TURNS, "USED": [x in used for x in axes],
    }  # fmt: skip
    more = "\n".join(f"const {name} = {as_json(x)};" for name, x in facts.items())
    return render(
        "exports/card.html.j2", rule=rule, axes=axes, others=others, used=used,
        title=straight(f"{rule.name}: what to do") if rule.name else "What to do",
        by_time=by_time or rule.ways is not None, rest=[x for x in axes if x not in used],
        listed=LISTED, begins=named_values(first) or dict.fromkeys([*axes][:1], first),
        stakes=stakes, card=_card(rule) if rule.tree is None else [], words=straight(rule.words),
        picture=Markup("" if rule.drawn is None else straight(rule.drawn())),
        functions=Markup(f'"use strict";\n{functions(rule)}\n{more}\n'),
    )  # fmt: skip


def _used_axes(rule: Rule, axes: Mapping[str, list[str]]) -> list[str]:
    """The axes of the states that what is done depends on; all of them if there are nodes."""
    used = [*axes]
    if rule.ways is not None:
        return used
    rows = [(s, x) for s, label in enumerate(rule.states) if (x := named_values(label))]
    codes = {x: np.unique([row[x] for _, row in rows], return_inverse=True)[1] for x in axes}
    done = rule.table[:, [s for s, _ in rows], 0].T
    asked = {rule.features[i].name for i in rule.asked}
    for axis in sorted(axes, key=asked.__contains__):  # what the tree does not ask comes first
        rest = np.column_stack([np.zeros(len(rows)), *(codes[x] for x in used if x != axis)])
        groups = np.unique(rest, axis=0, return_inverse=True)[1].reshape(-1)
        one = np.unique(groups, return_index=True)[1]  # a state of each group
        if (done == done[one][groups]).all():
            used.remove(axis)
    return used


def straight(text: str) -> str:
    """Text without the marks by which a label could turn the direction of what follows it.

    >>> straight("\u202etxt.exe is harmless")
    'txt.exe is harmless'
    """
    return text.translate(dict.fromkeys(map(ord, TURNS)))


def _stakes(rule: Rule) -> dict[str, Any] | None:
    """What the next best action costs at each place, and which actions may be mixed there.

    The place of that action is -1 if nobody gets there and -2 if there is nothing to decide. Its
    cost is that of one visit, or of all visits if the rule is the same at all times.
    """
    if rule.freedom is None or rule.randomised or rule.table.size > LIMIT:
        return None
    found = rule.freedom()
    shape = *rule.table.shape, len(rule.actions)  # a model may have actions that are not used
    loss, mixed = (x[..., : shape[3]].reshape(shape) for x in (found.loss, found.mixed))
    others = np.where(np.isnan(loss), np.inf, loss)
    np.put_along_axis(others, rule.table[..., None], np.inf, axis=3)
    visited = found.visited.reshape(rule.table.shape)
    least = others.min(axis=3)
    assert rule.decides is not None
    decides = rule.decides[:, :, None] & np.isfinite(least)
    known = decides & (visited > SELDOM)
    cost = np.where(known, least, 0.0)
    if rule.timed:
        cost /= np.where(known, visited, 1.0)
    cost[np.abs(cost) < 1e-9 * abs(found.value)] = 0.0
    sets, place = np.unique(mixed.reshape(-1, shape[3]), axis=0, return_inverse=True)
    return {
        "next": rule.nested(np.where(known, others.argmin(axis=3), np.where(decides, -1, -2))),
        "cost": rule.nested(np.vectorize(lambda x: float(f"{x:.3g}"), otypes=[float])(cost)),
        "sets": [np.flatnonzero(row).tolist() for row in sets],
        "free": rule.nested(place.reshape(rule.table.shape)),
        "stake": found.stake.amount, "most": straight(found.allowance_text),
        "text": straight(found.text),
        "unit": " " + found.model.unit if found.model.unit else "",
    }  # fmt: skip


def _card(rule: Rule) -> list[list[str]]:
    """The headings and lines of the whole rule; nothing if there are too many."""
    noded = rule.ways is not None
    times = rule.times.name.capitalize() if rule.times.labels else "Times"
    shown = {
        "State": True, "Node": noded, times: rule.timed, "What to do": True, "Next node": noded,
    }  # fmt: skip
    lines = [[*shown], *itertools.islice(_lines(rule), PRINTED + 1)]
    if len(lines) > PRINTED + 1:
        return []
    return [[straight(x) for x in itertools.compress(line, shown.values())] for line in lines]


def _lines(rule: Rule) -> Iterator[list[str]]:
    """The state, the node, the times, what is done then, and the nodes that follow."""
    ways = np.zeros_like(rule.table) if rule.moves is None else rule.moves
    decides: Any = slice(None) if rule.decides is None else np.any(rule.decides, axis=0)
    states = np.arange(len(rule.states))[decides].tolist()
    for s, n in itertools.product(states, range(rule.nodes)):
        cells = enumerate(zip(rule.table[:, s, n], ways[:, s, n], strict=True))
        for (choice, way), run in itertools.groupby(cells, lambda cell: cell[1]):
            times = [t for t, _ in run]
            span = rule.times.run(times[0], times[-1])
            yield [rule.states[s], f"{n}", span, _said(rule, choice), _next(rule, way)]


def _next(rule: Rule, way: int) -> str:
    """The nodes that a node leads to, by the state that is seen next."""
    if rule.ways is None:
        return ""
    to = rule.ways[way]
    found = [f"{x} if {in_ranges(np.flatnonzero(to == x), rule.states)}" for x in np.unique(to)]
    return f"{to[0]}" if len(found) == 1 else "; ".join(found)


def _said(rule: Rule, choice: int) -> str:
    shares = rule.choices[choice]
    if len(shares) == 1:
        return rule.actions[shares[0][0]]
    return ", ".join(f"{rule.actions[a]} {percent(share)}" for a, share in shares)
