"""A policy as JavaScript, for a browser or for Node."""

from __future__ import annotations

from collections.abc import Iterator

from mmdp.exports.code import as_json, asked_of, comments, data_of, reads, rule_of_tree
from mmdp.exports.rule import Rule

CHECKS = """
const PLACE = new Map(STATES.map((label, i) => [label, i]));

function stateOf(label) {
  const found = PLACE.get(String(label));
  if (found === undefined) throw new RangeError("no state is called " + JSON.stringify(label));
  return found;
}

function whole(value, count, what) {
  if (!Number.isInteger(value) || value < 0 || value >= count)
    throw new RangeError(what + " must be a whole number from 0 to " + (count - 1));
  return value;
}
"""
TREE_CHECKS = """
function number(value, what) {
  if (!Number.isFinite(value)) throw new RangeError(what + " must be a number");
}

function oneOf(value, what, known) {
  if (!known.includes(value)) throw new RangeError(what + " must be one of " + known.join(", "));
}
"""
MEMORY = """
// The node that an episode begins in.
function start(state) {{ return FIRST[stateOf(state)]; }}

// The node after the step to nextState.
function move(time, state, node, nextState) {{
  return WAYS[MOVES{place}][stateOf(nextState)];
}}
"""


def written(rule: Rule) -> str:
    """The text of the file."""
    names = ["STATES", "ACTIONS", "decide"]
    names += ["rule"] * (rule.tree is not None) + ["start", "move"] * (rule.ways is not None)
    ends = f'if (typeof module !== "undefined") module.exports = {{ {", ".join(names)} }};\n'
    return "\n".join([*comments("//", rule.about), '"use strict";', functions(rule), ends])


def functions(rule: Rule) -> str:
    """``decide`` and all that it needs."""
    read = reads(rule, "stateOf", "whole")
    place = "".join(f"[{x}]" for x in read.values())
    text = [f"const {name} = {as_json(x)};" for name, x in data_of(rule).items()]
    text += [CHECKS, *_tree(rule)]
    gives = "The share of each action" if rule.randomised else "What to do"
    text += [f"// {gives}.", f"function decide({', '.join(rule.arguments)}) {{"]
    text += [f"  {line}" for line in _decide(rule, read, place)] + ["}"]
    if rule.ways is not None:
        text.append(MEMORY.format(place=place))
    return "\n".join(text)


def _decide(rule: Rule, read: dict[str, str], place: str) -> Iterator[str]:
    if rule.randomised:
        yield f"const shares = CHOICES[TABLE{place}];"
        yield "return Object.fromEntries(shares.map(([a, share]) => [ACTIONS[a], share]));"
    elif rule.tree is None:
        yield f"return ACTIONS[TABLE{place}];"
    else:
        yield f"const s = {read['state']};"
        if rule.timed:
            yield f"{read['time']};"
        time = "time, " if rule.asks_time else ""
        yield f"const a = ACTIONS.indexOf(rule({time}...FEATURES[s]));"
        yield "return ACTIONS[INSTEAD[s]?.[a] ?? a];"


def _tree(rule: Rule) -> Iterator[str]:
    if rule.tree is None:
        return
    yield TREE_CHECKS
    yield "// What to do by what is asked."
    taken, checks = asked_of(rule, as_json, "whole", "number", "oneOf")
    yield f"function rule({taken}) {{"
    yield from (f"    {check};" for check in checks)
    yield from rule_of_tree(rule, as_json, "===", "return {};", "if ({}) {{", "}")
    yield "}\n"
