"""Policies as files that run without mmdp: a function, a table or a page for a phone."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp.arguments import checked
from mmdp.errors import InputError
from mmdp.exports.rule import Rule, rule_of
from mmdp.io.writing import PathLike, write_whole
from mmdp.policy import Policy
from mmdp.solution import Bound, Solution
from mmdp.words import counted, either, suggested

if TYPE_CHECKING:
    from mmdp.model import MMDP

__all__ = ["TARGETS", "export", "exported"]

# A target is a module of this package with ``written(rule)``, and ``LIMIT`` if it has one: the
# most cells of a table.
TARGETS = {
    "python": ".py", "javascript": ".js", "sql": ".sql", "excel": ".xlsx", "html": ".html",
}  # fmt: skip


@checked
def export(
    policy: Policy | Solution, path: PathLike, *, to: str | None = None,
    model: MMDP | None = None, bound: Bound | None = None,
) -> None:  # fmt: skip
    """Write a policy as one file that needs nothing else: ``decide(time, state)`` in some language.

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
        best action would cost in each state, and where people may choose (:func:`mmdp.freedom`).

    A decision is asked by the time, the state's label and, of a flow chart, the node. A policy
    that draws its actions answers with their shares.

    >>> import pathlib, tempfile, mmdp
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "rule.py"
    >>> names = {"state_labels": ["well", "ill"], "action_labels": ["wait", "treat"]}
    >>> mmdp.export(mmdp.MarkovPolicy([[0, 1], [0, 0]], **names), file)
    >>> rule = {}
    >>> exec(file.read_text(), rule)
    >>> rule["decide"](0, "ill")
    'treat'
    """
    target = Path(path)
    if to is None:
        to = next((x for x, suffix in TARGETS.items() if suffix == target.suffix.lower()), None)
    if to is None:
        raise InputError(
            f"{target}: unknown suffix {target.suffix!r}; write {either(TARGETS.values())}, or "
            "name the target by to="
        )
    write_whole(target, exported(policy, to, model, bound))


def exported(
    policy: Policy | Solution, to: str, model: MMDP | None = None, bound: Bound | None = None
) -> str | bytes:
    """What :func:`export` writes."""
    if to not in TARGETS:
        raise InputError(f"no target is called {suggested(to, TARGETS)}; choose {either(TARGETS)}")
    writer, rule = importlib.import_module(f"mmdp.exports.{to}"), rule_of(policy, model, bound)
    _check_size(rule, to, getattr(writer, "LIMIT", None))
    found: str | bytes = writer.written(rule)
    return found


def _check_size(rule: Rule, to: str, limit: int | None) -> None:
    """Refuse a table that is too long for its target; a tree is short."""
    rows = len(rule.states) if rule.tree is not None else rule.table.size
    if rule.ways is not None:
        rows = max(rows, rule.ways.size)
    if limit is not None and rows > limit:
        raise InputError(
            f"{counted(rows, 'row')} are more than {to} holds ({limit:,})",
            ["solve with policy=mmdp.Tree(leaves=6), a rule of a few questions",
             "choose python, javascript, c or sql"],
        )  # fmt: skip
