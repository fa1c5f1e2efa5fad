"""Export of a policy as a Python module without imports."""

from __future__ import annotations

from collections.abc import Iterator

from mmdp.insight.exports.code import (
    format_comments,
    make_argument_checks,
    make_lookup_tables,
    make_tree_signature,
    render_tree,
)
from mmdp.insight.exports.spec import PolicySpec

CHECK_CODE = """
_STATE_IDS = {label: i for i, label in enumerate(STATES)}


def _state(label):
    if str(label) not in _STATE_IDS:
        raise ValueError(f"no state is called {label!r}; STATES has all of them")
    return _STATE_IDS[str(label)]


def _check_int(value, count, what):
    if value not in range(count):
        raise ValueError(f"{what} must be a whole number from 0 to {count - 1}, not {value!r}")
    return int(value)
"""
MEMORY_CODE = '''

def initial_node(state):
    """The node that an episode begins in."""
    return _INITIAL_NODES[_state(state)]


def next_node(time, state, node, next_state):
    """The node after the step to next_state."""
    return _NODE_ROWS[_NODE_ROW_IDS{subscripts}][_state(next_state)]
'''
TREE_CHECK_CODE = """

def _check_number(value, what):
    if isinstance(value, str) or not float("-inf") < value < float("inf"):
        raise ValueError(f"{what} must be a number, not {value!r}")


def _check_choice(value, what, known):
    if value not in known:
        raise ValueError(f"{what} must be one of {known}, not {value!r}")
"""
FIRST_ALLOWED = """

def _first_allowed(action, allowed):
    if isinstance(allowed, str) or not {*allowed} <= {*ACTIONS}:
        raise ValueError(f"allowed must be a list of ACTIONS, not {allowed!r}")
    for x in (action, *_FALLBACK):
        if x in allowed:
            return x
    raise ValueError(f"none of {[action, *_FALLBACK]} is allowed, only {allowed!r}")
"""


def render(spec: PolicySpec) -> str:
    """Render a policy as a Python module."""
    checks = make_argument_checks(spec, "_state", "_check_int")
    subscripts = "".join(f"[{x}]" for x in checks.values())
    lines = [*format_comments("#", spec.provenance_lines), ""]
    for name, x in make_lookup_tables(spec).items():
        lines.append(f"{'' if name in ('STATES', 'ACTIONS') else '_'}{name} = {_format_lines(x)}")
    lines += [CHECK_CODE, *_make_tree_lines(spec), *_iter_decide_lines(spec, checks, subscripts)]
    if spec.node_rows is not None:
        lines.append(MEMORY_CODE.format(subscripts=subscripts))
    return "\n".join(lines).rstrip() + "\n"


def _format_lines(value: object) -> str:
    """Format a value as Python code; a list has a line for each item."""
    if not isinstance(value, list):
        return repr(value)
    return "\n".join(["[", *(f"    {x!r}," for x in value), "]"])


def _iter_decide_lines(spec: PolicySpec, checks: dict[str, str], subscripts: str) -> Iterator[str]:
    """Yield the lines of ``decide``."""
    docstring = "The share of each action" if spec.is_randomized else "What to do"
    yield from ("", f"def decide({', '.join(spec.argument_names)}):", f'    """{docstring}."""')
    if spec.is_randomized:
        yield f"    return {{ACTIONS[a]: share for a, share in _CHOICES[_TABLE{subscripts}]}}"
    elif spec.tree is None:
        yield f"    return ACTIONS[_TABLE{subscripts}]"
    else:
        yield f"    s = {checks['state']}"
        if spec.uses_time:
            yield f"    time = {checks['time']}"
        time_argument, allowed = (
            "time, " * spec.tree_uses_time,
            ", _ALLOWED.get(s, ACTIONS)" * spec.needs_mask,
        )
        yield f"    return decide_by_features({time_argument}*_FEATURES[s]{allowed})"


def _make_tree_lines(spec: PolicySpec) -> list[str]:
    """Make the lines of the tree's function and its checks; none without a tree."""
    if spec.tree is None:
        return []
    check_names = ("_check_int", "_check_number", "_check_choice")
    arguments, checks = make_tree_signature(spec, repr, *check_names)
    say = "return _first_allowed({}, allowed)" if spec.needs_mask else "return {}"
    body = render_tree(spec, repr, "==", say, "if {}:")
    mask_text = "; allowed: the actions that the state allows" * spec.needs_mask
    docstring = f'    """What to do by what is asked{mask_text}."""'
    head = ["", f"def decide_by_features({arguments}):", docstring]
    helpers = [TREE_CHECK_CODE, *[FIRST_ALLOWED] * spec.needs_mask]
    return [*helpers, *head, *(f"    {x}" for x in checks), *body, ""]
