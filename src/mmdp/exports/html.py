"""A policy as one page for a phone, which needs no network and prints as a card."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from operator import itemgetter

from markupsafe import Markup

from mmdp.exports.code import as_json
from mmdp.exports.javascript import functions
from mmdp.exports.rule import Rule
from mmdp.pages import render
from mmdp.words import percent

LIMIT = 1_000_000  # cells that a phone can load
PRINTED = 600  # the most lines of a card


def written(rule: Rule) -> str:
    """The page."""
    asked = f"const ARGUMENTS = {as_json(rule.arguments)}, TIMES = {len(rule.table)};"
    card = [] if rule.tree is not None else list(itertools.islice(_card(rule), PRINTED + 1))
    return render(
        "exports/card.html.j2", title="What to do", rule=rule, card=card, most=PRINTED,
        functions=Markup(f'"use strict";\n{functions(rule)}\n{asked}\n'),
    )  # fmt: skip


def _card(rule: Rule) -> Iterator[tuple[str, str, str]]:
    """The state (and node), the times, and what is done then."""
    for s, state in enumerate(rule.states):
        for n in range(rule.nodes):
            name = state if rule.ways is None else f"{state}, node {n}"
            for choice, run in itertools.groupby(enumerate(rule.table[:, s, n]), itemgetter(1)):
                times = [t for t, _ in run]
                span = f"{times[0]}–{times[-1]}" if len(times) > 1 else f"{times[0]}"
                yield name, span, _said(rule, choice)


def _said(rule: Rule, choice: int) -> str:
    shares = rule.choices[choice]
    if len(shares) == 1:
        return rule.actions[shares[0][0]]
    return ", ".join(f"{rule.actions[a]} {percent(share)}" for a, share in shares)
