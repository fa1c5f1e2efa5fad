"""The report: one self-contained page about a problem and a policy for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mmdp import plots
from mmdp.bounds import Bound
from mmdp.clock import unanswered
from mmdp.economics import Counting
from mmdp.errors import InputError
from mmdp.io.reading import header, read_csv
from mmdp.io.writing import PathLike, check_writable, write_whole
from mmdp.methods.base import Method
from mmdp.methods.table import COMPARED
from mmdp.model import MMDP
from mmdp.objective import Objective
from mmdp.policy import Memory, Policy
from mmdp.report.effects import read_effects
from mmdp.report.facts import NODES, Facts, Say
from mmdp.report.page import page
from mmdp.report.pictures import PICTURES
from mmdp.solution import Solution
from mmdp.solve import solve
from mmdp.words import suggested

__all__ = ["KINDS", "PICTURES", "draw", "read_effects", "read_unseen", "write"]

KINDS = (*PICTURES, "chart")  # what can be drawn


@unanswered()
def write(
    model: MMDP,
    out: PathLike,
    *,
    horizon: int | None = None,
    policy: Policy | Solution | None = None,
    test: MMDP | None = None,
    methods: Sequence[str | Method] = COMPARED,
    bound: Bound | float | None = None,
    objective: str | Objective | None = None,
    title: str | None = None,
    seed: int | None = 0,
    resamples: int | None = None,
    information: bool | None = None,
    enough: bool | None = None,
    memory: int | None = None,
    frontier: bool | None = None,
    effects: npt.ArrayLike | None = None,
    costs: npt.ArrayLike | None = None,
    thresholds: Sequence[float] = (),
    comparators: Mapping[str, Any] | None = None,
    counting: Counting | None = None,
    unseen: Sequence[tuple[str | int, str | int]] = (),
    notes: Sequence[str] = (),
    say: Say | None = None,
) -> Path:
    """Write one HTML page that needs nothing else: no network, no other file.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`; a given policy has its own horizon.
    out
        A name that ends in ``.html``; written whole or not at all.
    policy
        The policy to report about, or the solution it comes from. Without one the first of
        ``methods`` computes it. A stationary one is followed over ``horizon`` decisions. If a
        solution is of a restricted kind, such as tied, what the page compares it with is too.
    test
        Test models, on which every policy is evaluated too.
    methods
        Methods to compare; Oracle is always the last line.
    bound
        A proven upper bound, from :func:`mmdp.bounds.bound`, or its value (for policies of time
        and state); the page then says how close to the best the policy is.
    objective
        What the policy is meant for (see :func:`mmdp.solve`), which is then what simpler policies
        and the bound are compared by. By default that of the solution or of the bound, otherwise
        the mean. Without a policy, one is computed for it.
    title
        Heading of the page.
    seed
        Seed of every random choice.
    resamples
        How often models are drawn again to see which decisions change; 0 for never. By
        default 20 if the problem is small.
    information
        Whether to compute the value of knowing each parameter (EVPPI); by default if the
        problem is small.
    enough
        Whether to solve with fewer models too, to see if there are enough; by default if the
        problem is small.
    memory
        Nodes to try for policies that remember (see :func:`mmdp.value_of_memory`); the page then
        shows what memory is worth, and the flow chart. 0: leave it out. By default 3 if the
        problem is tiny.
    frontier
        Whether to look for safer policies too (see :func:`mmdp.frontier`); by default if the
        problem is small.
    effects, costs, thresholds
        Effect and cost of each action, shaped like rewards, and possible values of one unit of
        effect. The page then has a willingness-to-pay sweep. See :func:`read_effects`.
    comparators
        Policies and fixed strategies by name, such as ``{"never treat": "wait"}``, to put beside
        it; see :func:`mmdp.economics.cost_effectiveness`.
    counting
        Discount rates of effects and costs, half-cycle weights: :class:`mmdp.economics.Counting`.
    unseen
        (state, action) pairs, as labels or ids, that the data lacks; see
        :func:`read_unseen`.
    notes
        Other warnings, as plain text.
    say
        Called with a few words before each piece of work.

    >>> import tempfile, mmdp
    >>> from mmdp import report
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = report.write(two, tempfile.mkdtemp() + "/report.html", horizon=2)
    >>> "returns <strong>7</strong> on average" in file.read_text(encoding="utf-8")
    True
    """
    target = Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{target}: choose a name that ends in .html")
    _check_folder(target)
    facts = Facts(
        model, horizon=horizon, policy=policy, test=test, methods=methods, bound=bound,
        objective=objective, resamples=resamples, information=information, enough=enough,
        memory=memory, frontier=frontier, effects=effects, costs=costs, thresholds=thresholds,
        comparators=comparators, counting=counting, unseen=unseen, seed=seed, say=say,
    )  # fmt: skip
    write_whole(target, page(facts, title, tuple(notes)))
    return target


@unanswered()
def draw(kind: str, model: MMDP, out: PathLike, **options: Any) -> Path:
    """Write one picture of the report as ``.png`` or ``.svg``.

    ``kind`` is one of ``KINDS``: policy, methods, returns, regret, weights, trace, information,
    memory, frontier, enough, willingness, loss, or chart, the flow chart of a policy with memory,
    as ``.svg`` or, for Graphviz, ``.dot``. ``options`` are those of
    :func:`write` that say what is drawn: ``horizon, policy, test, methods, objective, memory,
    effects, costs, thresholds, comparators, counting, seed, say``.

    >>> import tempfile, mmdp
    >>> from mmdp import report
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> report.draw("regret", two, tempfile.mkdtemp() + "/regret.png", horizon=2).name
    'regret.png'
    """
    if kind not in KINDS:
        raise InputError(f"no plot {suggested(kind, KINDS)}; it is one of {', '.join(KINDS)}")
    if kind == "chart":
        return _draw_chart(model, Path(out), **options)
    plots.check_ending(Path(out))
    _check_folder(Path(out))
    options = {"memory": 4, **options}
    axis = PICTURES[kind].draw(
        Facts(model, information=True, enough=True, frontier=True, **options)
    )
    if axis is None:
        raise InputError(f"there is nothing to draw for {kind!r}: {_MISSING[kind]}")
    return plots.save(axis, Path(out))


def _draw_chart(
    model: MMDP, out: Path, *, horizon: int | None = None, policy: Any = None, memory: int = NODES,
    seed: int | None = 0, **_: Any,
) -> Path:  # fmt: skip
    """The flow chart of a policy with memory; without one, of the best that is found."""
    if out.suffix.lower() not in (".svg", ".dot"):
        raise InputError(f"{out}: a flow chart is written as .svg or .dot")
    _check_folder(out)
    if policy is None:
        policy = solve(model, horizon, policy=Memory(memory), seed=seed)
    found = policy.policy if isinstance(policy, Solution) else policy
    if not hasattr(found, "flow_chart"):
        raise InputError(
            f"a flow chart shows a policy with memory, not a {type(found).__name__}",
            ["solve with policy=Memory(3), or mmdp solve --memory 3"],
        )
    chart = found.merged(model).flow_chart(model)
    write_whole(out, chart.svg() if out.suffix.lower() == ".svg" else chart.dot())
    return out


def _check_folder(target: Path) -> None:
    """Refuse a place that cannot be written before the work begins."""
    if not target.parent.is_dir():
        raise InputError(f"{target}: no folder {target.parent}; make it first")
    check_writable(target)


_MISSING = {
    "weights": "it needs two models or more, and (T, M, S) weights that fit into memory",
    "trace": "no method is cadp; add it to the methods",
    "memory": "it needs two models or more",
    "frontier": "it needs two models or more",
    "enough": "it needs ten models or more, and a method to solve with",
    "willingness": "it needs effects, costs and thresholds",
    "loss": "it needs effects, costs and thresholds",
    "information": "the models carry fewer than two parameters; see MMDP(parameters=...)",
}


def read_unseen(folder: PathLike) -> list[tuple[str, str]]:
    """The state-action pairs that the log of a fitted folder lacks (``unseen.csv``).

    Empty if the folder has no such file.

    >>> read_unseen("no such folder")
    []
    """
    file = Path(folder) / "unseen.csv"
    if not file.is_file():
        return []
    names = header(file)
    if names != ["state", "action"]:
        raise InputError(f"{file}: columns {','.join(names)}; expected state,action")
    table = read_csv(file, names)
    return list(zip(table["state"], table["action"], strict=True))
