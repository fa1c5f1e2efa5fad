"""Export of policies as files that run without mmdp: code, SQL, Excel or HTML."""

from __future__ import annotations

from pathlib import Path

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, Remedy, describe_missing
from mmdp.core.model import MMDP
from mmdp.core.policies import Policy
from mmdp.core.solution import Bound, Solution
from mmdp.core.text import did_you_mean, join_or, pluralize
from mmdp.data.io.writing import PathLike, write_atomic
from mmdp.insight.exports import excel, html
from mmdp.insight.exports.spec import PolicySpec, render_code

__all__ = ["TARGETS", "export", "render_policy"]

TARGETS = {
    "python": ".py",
    "javascript": ".js",
    "sql": ".sql",
    "excel": ".xlsx",
    "html": ".html",
}
# of targets that are no code: rows below a heading; what a phone can load
MAX_CELLS = {"excel": 1_048_575, "html": 1_000_000}


@check_arguments
def export(
    policy: Policy | Solution,
    path: PathLike,
    *,
    to: str | None = None,
    model: MMDP | None = None,
    bound: Bound | None = None,
) -> None:
    """Write a policy as one self-contained file: ``decide(time, state)`` in some language.

    Parameters
    ----------
    policy
        A policy, or a solution: then the file says its value, and its bound if one is proven.
    path
        Where to write. The suffix says the target: ``.py``, ``.js``, ``.sql``, ``.xlsx`` (needs
        openpyxl) or ``.html``, a page for a phone.
    to
        The target by name, ``"python"`` and so on, if the suffix is another.
    model, bound
        The models that a policy is for, and what was proven about it there, if the file shall say
        so: the policy is checked against the models and evaluated. A page also says what the next
        best action would cost in each state, and where people may choose
        (:func:`mmdp.measures.near_optimal_actions`).

    A decision is asked by the time, the state's label and, of a flow chart, the node. A policy
    that draws its actions answers with their shares.

    >>> import pathlib, tempfile, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "rule.py"
    >>> names = {"state_labels": ["well", "ill"], "action_labels": ["wait", "treat"]}
    >>> mmdp.export(mmdp.policies.MarkovPolicy([[0, 1], [0, 0]], **names), file)
    >>> rule = {}
    >>> exec(file.read_text(), rule)
    >>> rule["decide"](0, "ill")
    'treat'
    """
    target = Path(path)
    suffix = target.suffix.lower()
    to = to or next((name for name, x in TARGETS.items() if x == suffix), None)
    if target.is_dir():
        raise InputError(describe_missing(target))
    if to is None:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}",
            [f"write {join_or(TARGETS.values())}", Remedy("to", *TARGETS, verb="name it by")],
        )
    write_atomic(target, render_policy(policy, to, model, bound))


def render_policy(
    policy: Policy | Solution, to: str, model: MMDP | None = None, bound: Bound | None = None
) -> str | bytes:
    """Render the content of the file that :func:`export` writes."""
    if to not in TARGETS:
        raise InputError(
            f"no target is called {did_you_mean(to, TARGETS)}; choose {join_or(TARGETS)}"
        )
    spec = PolicySpec(policy, model, bound)
    if to not in MAX_CELLS:
        return render_code(spec, f"rule{TARGETS[to]}.j2")
    n_cells = max(spec.table.size, spec.node_rows.size)
    if n_cells > MAX_CELLS[to]:
        raise InputError(
            f"{pluralize(n_cells, 'row')} are more than {to} holds ({MAX_CELLS[to]:,})",
            ["choose python, javascript or sql"],
        )
    return excel.render(spec) if to == "excel" else html.render(spec)
