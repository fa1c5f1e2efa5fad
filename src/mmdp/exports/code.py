"""What targets that are programs share: names, comments and questions as nested ifs."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mmdp.exports.rule import Rule, Shares
from mmdp.policy.tree import Leaf, Node, Split

# Words of some language, and what a file of ours uses inside the rule, in small letters.
WORDS = """
arguments auto await boolean byte case catch char const debugger default delete do double enum eval
export extends extern false final float function goto implements inline int interface let long
module native new none null number oneof package private protected public register restrict return
rule short signed sizeof static strcmp struct super switch this throw time transient true typedef
typeof undefined union unsigned var void volatile whole
"""
RESERVED = {*WORDS.split(), *keyword.kwlist}


def names_of(rule: Rule) -> dict[int, str]:
    """A name for each feature that the tree asks about, allowed in every language.

    >>> from mmdp.policy.tree import Feature, Leaf, Split
    >>> import numpy as np
    >>> two = (Feature.of("blood pressure", [1, 2]), Feature.of("class", [1, 2]))
    >>> tree = Split(0, 0, Leaf(0), Split(1, 0, Leaf(0), Leaf(1)))
    >>> rule = Rule(["a", "b"], ["x", "y"], False, [], np.zeros((1, 2, 1), int), [], tree=tree,
    ...             features=two)
    >>> names_of(rule)
    {0: 'blood_pressure', 1: 'class_'}
    """
    found: dict[int, str] = {}
    for i in rule.asked:
        name = re.sub(r"\W+", "_", rule.features[i].name, flags=re.ASCII).strip("_") or "feature"
        name = f"x{name}" if name[0].isdigit() else name
        while name.lower() in RESERVED or name in found.values():
            name += "_"
        found[i] = name
    return found


def rule_of_tree(
    rule: Rule, write: Callable[[Any], str], equal: str, say: str, opening: str, closing: str = ""
) -> Iterator[str]:
    """The questions of a tree as nested ifs that end in ``say``, in a language like these two."""
    names = names_of(rule)

    def ask(node: Split) -> str:
        sign = "<=" if rule.features[node.feature].ordered else equal
        return f"{names.get(node.feature, 'time')} {sign} {write(level(rule, node))}"

    assert rule.tree is not None
    done = lambda action: say.format(write(rule.actions[action]))
    return branches(rule.tree, ask, done, opening, closing)


def branches(
    node: Node, ask: Callable[[Split], str], say: Callable[[int], str], opening: str,
    closing: str = "", indent: str = "    ",
) -> Iterator[str]:  # fmt: skip
    """Nested ifs: ``opening`` has the question at {}. A leaf ends the function."""
    if isinstance(node, Leaf):
        yield indent + say(node.action)
        return
    yield indent + opening.format(ask(node))
    yield from branches(node.yes, ask, say, opening, closing, indent + "    ")
    if closing:
        yield indent + closing
    yield from branches(node.no, ask, say, opening, closing, indent)


def level(rule: Rule, node: Split) -> float | str:
    """What a question compares with."""
    found = rule.features[node.feature].level(node.cut)
    whole = isinstance(found, float) and found.is_integer() and abs(found) < 2**31
    return int(found) if whole else found


def data_of(rule: Rule) -> dict[str, Any]:
    """What a program looks decisions up in, by name.

    A tree has the values that it asks about for each state, and by state and action of the leaf
    what is done instead, as far as that differs.
    """
    found: dict[str, Any] = {"STATES": rule.states, "ACTIONS": rule.actions}
    if rule.instead is None:
        found["TABLE"] = rule.nested(rule.table)
    else:
        instead: dict[int, dict[int, int]] = {}
        for s, a in np.argwhere(rule.instead != np.arange(len(rule.actions))).tolist():
            instead.setdefault(s, {})[a] = int(rule.instead[s, a])
        found |= {"FEATURES": values_of(rule), "INSTEAD": instead}
    if rule.randomised:
        found["CHOICES"] = rule.choices
    if rule.ways is not None and rule.moves is not None and rule.first is not None:
        found |= {"MOVES": rule.nested(rule.moves), "WAYS": rule.ways.tolist()}
        found["FIRST"] = rule.first.tolist()
    return found


def reads(rule: Rule, state: str, whole: str) -> dict[str, str]:
    """How each argument is checked and turned into its place, by these two functions."""
    sizes = {"time": len(rule.table), "node": rule.nodes}
    return {
        x: f"{state}(state)" if x == "state" else f'{whole}({x}, {sizes[x]}, "{x}")'
        for x in rule.arguments
    }


def asked_of(
    rule: Rule, write: Callable[[Any], str], whole: str, number: str, one_of: str
) -> tuple[str, list[str]]:
    """The arguments of the rule of a tree, and how each is checked by these three functions."""
    names = names_of(rule)
    checks = [f'{whole}(time, {len(rule.table)}, "time")'] * rule.asks_time
    for i, name in names.items():
        x = rule.features[i]
        check, known = (number, "") if x.ordered else (one_of, f", {write(list(x.levels))}")
        checks.append(f"{check}({name}, {write(x.name)}{known})")
    return ", ".join(["time"] * rule.asks_time + [*names.values()]), checks


def values_of(rule: Rule) -> list[list[Any]]:
    """For each state the values that the tree asks about."""
    columns = [rule.features[i].values for i in rule.asked]
    return [[column[s] for column in columns] for s in range(len(rule.states))]


def rows_of(rule: Rule) -> Iterator[tuple[list[Any], Shares, list[int]]]:
    """The table row by row: what is asked by, what is done, and the way on if there are nodes."""
    for (t, s, n), choice in np.ndenumerate(rule.table):
        place = {"time": t, "state": rule.states[s], "node": n}
        by = [] if rule.moves is None else [int(rule.moves[t, s, n])]
        yield [place[x] for x in rule.arguments], rule.choices[choice], by


def comments(mark: str, lines: Sequence[str]) -> list[str]:
    """Each line behind a mark; none can end a comment or continue in the next line."""
    return [f"{mark} {' '.join(line.split())}".rstrip("\\ ") for line in lines]


def as_json(value: Any) -> str:
    """JSON in ASCII that is harmless inside a page too.

    >>> as_json("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
