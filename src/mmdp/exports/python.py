"""A policy as a Python module without imports."""

from __future__ import annotations

from typing import Any

from mmdp.exports.code import branches, comments, level, names_of, values_of
from mmdp.exports.rule import Rule
from mmdp.policy.tree import Split

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
    data: dict[str, Any] = {"STATES": rule.states, "ACTIONS": rule.actions}
    if rule.tree is None:
        data["_TABLE"] = rule.nested(rule.table)
        answer = "ACTIONS[_TABLE{place}]"
    else:
        data["_FEATURES"] = values_of(rule)
        data["_INSTEAD"] = instead_of(rule)
        answer = "_INSTEAD.get((STATES[s], found), found)"
    if rule.randomised:
        data["_CHOICES"] = [dict(shares) for shares in rule.choices]
        answer = "{{ACTIONS[a]: share for a, share in _CHOICES[_TABLE{place}].items()}}"
    if rule.ways is not None and rule.moves is not None and rule.first is not None:
        data["_MOVES"], data["_WAYS"] = rule.nested(rule.moves), rule.ways.tolist()
        data["_FIRST"] = rule.first.tolist()
    read = {
        "time": f'_whole(time, {len(rule.table)}, "time")', "state": "_state(state)",
        "node": f'_whole(node, {rule.nodes}, "node")',
    }  # fmt: skip
    place = "".join(f"[{read[x]}]" for x in rule.arguments)
    text = [*comments("#", rule.about), ""]
    text += [f"{name} = {_lines(x)}" for name, x in data.items()]
    text += [CHECKS, *_tree(rule), *_decide(rule, read, answer.format(place=place))]
    if rule.ways is not None:
        text.append(MEMORY.format(place=place))
    return "\n".join(text).rstrip() + "\n"


def _lines(value: Any) -> str:
    """A list with a line for each item."""
    if not isinstance(value, list):
        return repr(value)
    return "\n".join(["[", *(f"    {x!r}," for x in value), "]"])


def instead_of(rule: Rule) -> dict[tuple[str, str], str]:
    """What is done in a state that does not allow the action of its leaf."""
    assert rule.instead is not None
    return {
        (rule.states[s], rule.actions[a]): rule.actions[done]
        for s, row in enumerate(rule.instead.tolist())
        for a, done in enumerate(row)
        if a != done
    }


def _decide(rule: Rule, read: dict[str, str], answer: str) -> list[str]:
    gives = "The share of each action" if rule.randomised else "What to do"
    text = ["", f"def decide({', '.join(rule.arguments)}):", f'    """{gives}."""']
    if rule.tree is not None:
        text.append(f"    s = {read['state']}")
        if rule.timed:
            text.append(f"    time = {read['time']}")
        time = "time, " if rule.asks_time else ""
        text.append(f"    found = rule({time}*_FEATURES[s])")
    return [*text, f"    return {answer}"]


def _tree(rule: Rule) -> list[str]:
    if rule.tree is None:
        return []
    names = names_of(rule)

    def ask(node: Split) -> str:
        asked = rule.features[node.feature]
        sign = "<=" if asked.ordered else "=="
        return f"{'time' if asked.timed else names[node.feature]} {sign} {level(rule, node)!r}"

    taken = [*(["time"] if rule.asks_time else []), *names.values()]
    checks = [f'_whole(time, {len(rule.table)}, "time")'] if rule.asks_time else []
    for i, name in names.items():
        asked = rule.features[i]
        known = "" if asked.ordered else f", {list(asked.levels)!r}"
        kind = "_number" if asked.ordered else "_one_of"
        checks.append(f"{kind}({name}, {asked.name!r}{known})")
    say = lambda action: f"return {rule.actions[action]!r}"
    body = branches(rule.tree, ask, say, "if {}:")
    head = ["", f"def rule({', '.join(taken)}):", '    """What to do by what is asked."""']
    return [TREE_CHECKS, *head, *(f"    {x}" for x in checks), *body, ""]
