"""Export of a policy as JavaScript, for browsers and Node."""

from __future__ import annotations

from collections.abc import Iterator

from mmdp.insight.exports.code import (
    as_json,
    format_comments,
    make_argument_checks,
    make_lookup_tables,
    make_tree_signature,
    render_tree,
)
from mmdp.insight.exports.spec import PolicySpec

CHECK_CODE = """
const STATE_IDS = new Map(STATES.map((label, i) => [label, i]));

function stateOf(label) {
  const found = STATE_IDS.get(String(label));
  if (found === undefined) throw new RangeError("no state is called " + JSON.stringify(label));
  return found;
}

function checkInt(value, count, what) {
  if (!Number.isInteger(value) || value < 0 || value >= count)
    throw new RangeError(what + " must be a whole number from 0 to " + (count - 1));
  return value;
}
"""
TREE_CHECK_CODE = """
function checkNumber(value, what) {
  if (!Number.isFinite(value)) throw new RangeError(what + " must be a number");
}

function checkChoice(value, what, known) {
  if (!known.includes(value)) throw new RangeError(what + " must be one of " + known.join(", "));
}
"""
FIRST_ALLOWED = """
function firstAllowed(action, allowed) {
  if (!Array.isArray(allowed) || !allowed.every(x => ACTIONS.includes(x)))
    throw new RangeError("allowed must be a list of ACTIONS");
  const found = [action, ...FALLBACK].find(x => allowed.includes(x));
  if (found === undefined) throw new RangeError("what the rule can do is not allowed");
  return found;
}
"""
MEMORY_CODE = """
// The node that an episode begins in.
function initialNode(state) {{ return INITIAL_NODES[stateOf(state)]; }}

// The node after the step to nextState.
function nextNode(time, state, node, nextState) {{
  return NODE_ROWS[NODE_ROW_IDS{subscripts}][stateOf(nextState)];
}}
"""


def render(spec: PolicySpec) -> str:
    """Render a policy as a JavaScript file."""
    exported_names = ["STATES", "ACTIONS", "decide"]
    exported_names += ["decideByFeatures"] * (spec.tree is not None)
    exported_names += ["initialNode", "nextNode"] * (spec.node_rows is not None)
    exports_line = (
        f'if (typeof module !== "undefined") module.exports = {{ {", ".join(exported_names)} }};\n'
    )
    return "\n".join(
        [
            *format_comments("//", spec.provenance_lines),
            '"use strict";',
            render_functions(spec),
            exports_line,
        ]
    )


def render_functions(spec: PolicySpec) -> str:
    """Render ``decide`` with its tables and helper functions."""
    checks = make_argument_checks(spec, "stateOf", "checkInt")
    subscripts = "".join(f"[{x}]" for x in checks.values())
    lines = [f"const {name} = {as_json(x)};" for name, x in make_lookup_tables(spec).items()]
    lines += [CHECK_CODE, *_iter_tree_lines(spec)]
    comment = "The share of each action" if spec.is_randomized else "What to do"
    lines += [f"// {comment}.", f"function decide({', '.join(spec.argument_names)}) {{"]
    lines += [f"  {line}" for line in _iter_decide_lines(spec, checks, subscripts)] + ["}"]
    if spec.node_rows is not None:
        lines.append(MEMORY_CODE.format(subscripts=subscripts))
    return "\n".join(lines)


def _iter_decide_lines(spec: PolicySpec, checks: dict[str, str], subscripts: str) -> Iterator[str]:
    """Yield the lines of the body of ``decide``."""
    if spec.is_randomized:
        yield f"const shares = CHOICES[TABLE{subscripts}];"
        yield "return Object.fromEntries(shares.map(([a, share]) => [ACTIONS[a], share]));"
    elif spec.tree is None:
        yield f"return ACTIONS[TABLE{subscripts}];"
    else:
        yield f"const s = {checks['state']};"
        if spec.uses_time:
            yield f"{checks['time']};"
        time_argument, allowed = (
            "time, " * spec.tree_uses_time,
            ", ALLOWED[s] ?? ACTIONS" * spec.needs_mask,
        )
        yield f"return decideByFeatures({time_argument}...FEATURES[s]{allowed});"


def _iter_tree_lines(spec: PolicySpec) -> Iterator[str]:
    """Yield the lines of the tree's function and its checks; none without a tree."""
    if spec.tree is None:
        return
    yield TREE_CHECK_CODE
    if spec.needs_mask:
        yield FIRST_ALLOWED
    mask_text = "; allowed: the actions that the state allows" * spec.needs_mask
    yield f"// What to do by what is asked{mask_text}."
    arguments, checks = make_tree_signature(spec, as_json, "checkInt", "checkNumber", "checkChoice")
    yield f"function decideByFeatures({arguments}) {{"
    yield from (f"    {check};" for check in checks)
    say = "return firstAllowed({}, allowed);" if spec.needs_mask else "return {};"
    yield from render_tree(spec, as_json, "===", say, "if ({}) {{", "}")
    yield "}\n"
