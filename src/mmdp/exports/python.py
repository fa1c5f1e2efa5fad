"""A policy as a Python module without imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmdp.exports.code import asked_of, comments, data_of, reads, rule_of_tree
from mmdp.exports.rule import Rule

CHECKS = """
_PLACE = {label: i for i, label in enumerate(STATES)}


def _state(label):
    if str(label) not in _PLACE:
        raise ValueError(f"no state is called {label!r}; STATES has all of them")
    return _PLACE[str(label)]


def _whole(value, count, what):
    if value not in range(count):
        raise ValueError(f"{what} must be a whole number from 0 to {count - 1}, not {value!r}")
    return int(value)
"""
MEMORY = '''

def start(state):
    """The node that an episode begins in."""
    return _FIRST[_state(state)]


def move(time, state, node, next_state):
    """The node after the step to next_state."""
    return _WAYS[_MOVES{place}][_state(next_state)]
'''
TREE_CHECKS = """

def _number(value, what):
    if isinstance(value, str) or not float("-inf") < value < float("inf"):
        raise ValueError(f"{what} must be a number, not {value!r}")


def _one_of(value, what, known):
    if value not in known:
        raise ValueError(f"{what} must be one of {known}, not {value!r}")
"""


def written(rule: Rule) -> str:
    """The text of the module."""
    read = reads(rule, "_state", "_whole")
    place = "".join(f"[{x}]" for x in read.values())
    text = [*comments("#", rule.about), ""]
    for name, x in data_of(rule).items():
        text.append(f"{'' if name in ('STATES', 'ACTIONS') else '_'}{name} = {_lines(x)}")
    text += [CHECKS, *_tree(rule), *_decide(rule, read, place)]
    if rule.ways is not None:
        text.append(MEMORY.format(place=place))
    return "\n".join(text).rstrip() + "\n"


def _lines(value: Any) -> str:
    """A list with a line for each item."""
    if not isinstance(value, list):
        return repr(value)
    return "\n".join(["[", *(f"    {x!r}," for x in value), "]"])


def _decide(rule: Rule, read: dict[str, str], place: str) -> Iterator[str]:
    gives = "The share of each action" if rule.randomised else "What to do"
    yield from ("", f"def decide({', '.join(rule.arguments)}):", f'    """{gives}."""')
    if rule.randomised:
        yield f"    return {{ACTIONS[a]: share for a, share in _CHOICES[_TABLE{place}]}}"
    elif rule.tree is None:
        yield f"    return ACTIONS[_TABLE{place}]"
    else:
        yield f"    s = {read['state']}"
        if rule.timed:
            yield f"    time = {read['time']}"
        time = "time, " if rule.asks_time else ""
        yield f"    a = ACTIONS.index(rule({time}*_FEATURES[s]))"
        yield "    return ACTIONS[_INSTEAD.get(s, {}).get(a, a)]"


def _tree(rule: Rule) -> list[str]:
    if rule.tree is None:
        return []
    taken, checks = asked_of(rule, repr, "_whole", "_number", "_one_of")
    body = rule_of_tree(rule, repr, "==", "return {}", "if {}:")
    head = ["", f"def rule({taken}):", '    """What to do by what is asked."""']
    return [TREE_CHECKS, *head, *(f"    {x}" for x in checks), *body, ""]
