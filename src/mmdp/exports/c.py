"""A policy as C, with no library but the standard one."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mmdp.exports.code import branches, level, names_of
from mmdp.exports.rule import Rule
from mmdp.policy.tree import Split

FIND = """
/* The place of a label among n; -1 if it is not there. */
static int find(const char *label, const char *const *among, int n) {
    int i;
    for (i = 0; label && i < n; i++)
        if (strcmp(label, among[i]) == 0) return i;
    return -1;
}
"""
PLACE = """
/* The place of a decision in the tables; -1 if there is none. */
static int place({taken}) {{
    int s = find(state, mmdp_states, {S});
    if (s < 0{checks}) return -1;
    return {place};
}}
"""
ACTION = """
/* What to do; NULL if an argument is not known. */
const char *mmdp_decide({taken}) {{
    int i = place({given});
    return i < 0 ? NULL : mmdp_actions[table[i]];
}}
"""
SHARE = """
/* The share of an action; -1 if an argument is not known. */
double mmdp_share({taken}, const char *action) {{
    int i = place({given}), a = find(action, mmdp_actions, {A});
    return i < 0 || a < 0 ? -1.0 : choices[table[i]][a];
}}
"""
MEMORY = """
/* The node that an episode begins in; -1 if the state is not known. */
int mmdp_start(const char *state) {{
    int s = find(state, mmdp_states, {S});
    return s < 0 ? -1 : first[s];
}}

/* The node after the step to next_state; -1 if an argument is not known. */
int mmdp_move({taken}, const char *next_state) {{
    int i = place({given}), next = find(next_state, mmdp_states, {S});
    return i < 0 || next < 0 ? -1 : ways[moves[i]][next];
}}
"""
BY_TREE = """
/* What to do; NULL if an argument is not known. */
const char *mmdp_decide({taken}) {{
    int i = place({given}), s = find(state, mmdp_states, {S}), a;
    if (i < 0) return NULL;
    a = find(mmdp_rule({asked}), mmdp_actions, {A});
    return a < 0 ? NULL : mmdp_actions[instead[s][a]];
}}
"""
PLAIN = {ord(x): x for x in string.ascii_letters + string.digits + " .,-+_=()"}
TYPES = {"time": "int time", "state": "const char *state", "node": "int node"}


def written(rule: Rule) -> str:
    """The text of the file."""
    S, A, N = len(rule.states), len(rule.actions), rule.nodes
    inside = {"time": f"time < 0 || time >= {len(rule.table)}", "node": f"node < 0 || node >= {N}"}
    checks = "".join(f" || {inside[x]}" for x in rule.arguments if x in inside)
    flat = f"time * {S} + s" if rule.timed else "s"
    words: dict[str, Any] = {
        "S": S, "A": A, "checks": checks, "given": ", ".join(rule.arguments),
        "taken": ", ".join(TYPES[x] for x in rule.arguments),
        "place": f"({flat}) * {N} + node" if rule.ways is not None else flat,
    }  # fmt: skip
    about = " ".join(rule.about).replace("*/", "* /").replace("/*", "/ *").replace("?", ".")
    text = [f"/* {about} */", "#include <stddef.h>", "#include <string.h>", ""]
    text += [_array("const char *const mmdp_states[]", map(literal, rule.states))]
    text += [_array("const char *const mmdp_actions[]", map(literal, rule.actions))]
    text += [*_data(rule), FIND, PLACE.format(**words)]
    if rule.tree is not None:
        text += [*_tree(rule), BY_TREE.format(**words, asked=_asked(rule))]
    else:
        text.append((SHARE if rule.randomised else ACTION).format(**words))
    if rule.ways is not None:
        text.append(MEMORY.format(**words))
    return "\n".join(text)


def literal(text: str) -> str:
    """A string of C, in ASCII.

    >>> print(literal('a "b"?' + chr(10)))
    "a \\042b\\042\\077\\012"
    """
    return '"' + "".join(PLAIN.get(x) or f"\\{x:03o}" for x in text.encode()) + '"'


def _array(head: str, items: Iterable[Any]) -> str:
    return f"{head} = {{\n  {', '.join(map(str, items))}\n}};"


def _matrix(head: str, rows: Any) -> str:
    """Numbers in rows of one length, as C takes them."""
    n = len(rows[0])
    return _array(f"static const {head}[][{n}]", (f"{{{', '.join(map(repr, r))}}}" for r in rows))


def _data(rule: Rule) -> Iterator[str]:
    if rule.tree is not None and rule.instead is not None:
        yield _matrix("int instead", rule.instead.tolist())
        for i, name in names_of(rule).items():
            asked = rule.features[i]
            if asked.ordered:
                yield _array(f"static const double of_{name}[]", map(repr, asked.values))
            else:
                yield _array(f"static const char *const of_{name}[]", map(literal, asked.values))
        return
    yield _array("static const int table[]", rule.table.reshape(-1).tolist())
    if rule.randomised:
        shares = np.zeros((len(rule.choices), len(rule.actions)))
        for row, choice in zip(shares, rule.choices, strict=True):
            for a, share in choice:
                row[a] = share
        yield _matrix("double choices", shares.tolist())
    if rule.ways is not None and rule.moves is not None and rule.first is not None:
        yield _array("static const int moves[]", rule.moves.reshape(-1).tolist())
        yield _matrix("int ways", rule.ways.tolist())
        yield _array("static const int first[]", rule.first.tolist())


def _asked(rule: Rule) -> str:
    """The arguments of the rule in the state s."""
    return ", ".join([*["time"] * rule.asks_time, *(f"of_{x}[s]" for x in names_of(rule).values())])


def _tree(rule: Rule) -> Iterator[str]:
    assert rule.tree is not None
    names = names_of(rule)

    def ask(node: Split) -> str:
        name, found = names.get(node.feature, "time"), level(rule, node)
        return (
            f"strcmp({name}, {literal(found)}) == 0" if isinstance(found, str)
            else f"{name} <= {found!r}"
        )  # fmt: skip

    taken = ["int time"] * rule.asks_time + [
        f"{'double ' if rule.features[i].ordered else 'const char *'}{name}"
        for i, name in names.items()
    ]
    yield "\n/* What to do by what is asked; NULL if an argument is not known. */"
    yield f"const char *mmdp_rule({', '.join(taken) or 'void'}) {{"
    if rule.asks_time:
        yield f"    if (time < 0 || time >= {len(rule.table)}) return NULL;"
    for i, name in names.items():
        asked = rule.features[i]
        if asked.ordered:
            yield f"    if ({name} != {name}) return NULL;"
        else:
            known = " && ".join(f"strcmp({name}, {literal(str(x))})" for x in asked.levels)
            yield f"    if (!{name} || ({known})) return NULL;"
    say = lambda action: f"return {literal(rule.actions[action])};"
    yield from branches(rule.tree, ask, say, "if ({}) {{", "}")
    yield "}"
