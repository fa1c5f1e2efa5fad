"""The report: one self-contained page about a problem and a policy for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Unpack

from mmdp import plots
from mmdp.arguments import Read, checked
from mmdp.clock import unanswered
from mmdp.errors import InputError
from mmdp.io.writing import PathLike, check_writable, write_whole
from mmdp.model import MMDP
from mmdp.policy import Memory, Policy
from mmdp.report.desk import Desk, Options, PageOptions, Say, check_names
from mmdp.report.effects import read_effects
from mmdp.report.findings import NODES
from mmdp.report.page import document
from mmdp.report.pictures import PICTURES
from mmdp.report.sections import SECTIONS
from mmdp.solution import Solution
from mmdp.solve import solve
from mmdp.words import suggested

__all__ = ["KINDS", "PICTURES", "draw", "read_effects", "write"]

KINDS = (*PICTURES, "chart", "belief")  # what can be drawn
SECONDS = 20.0  # for a page, by estimates


@checked
@unanswered()
def write(
    model: Read[MMDP],
    out: PathLike,
    *,
    horizon: int | None = None,
    policy: Read[Policy | Solution | None] = None,
    seconds: float = SECONDS,
    say: Say | None = None,
    **options: Unpack[PageOptions],
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
    seconds
        Budget for the parts below that are neither asked for (True or a number) nor declined
        (False or 0). It is spent from the top of the page down, by estimates that depend on the
        size of the problem alone; the page says what it left out and how to get it.
    say
        Called with a few words before each section.
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
    seed
        Seed of every random choice.
    title, notes
        Heading of the page, and warnings of your own, as plain text.
    rule
        Whether to look for the smallest tree that gives up at most 1% of what is at stake (see
        :class:`mmdp.Tree`), with which the answer begins. It needs states that are numbered
        or have named axes.
    frontier
        Whether to look for safer policies too (see :func:`mmdp.frontier`).
    information
        Whether to compute the value of knowing each parameter (EVPPI).
    memory
        Nodes to try for policies that remember (see :func:`mmdp.value_of_memory`); the page then
        shows what memory is worth, and the flow chart.
    enough
        Whether to solve with fewer models too, to see if there are enough.
    resamples
        How often models are drawn again to see which decisions change.
    effects, costs, thresholds
        Effect and cost of each action, shaped like rewards, and possible values of one unit of
        effect. The page then has a willingness-to-pay sweep. See :func:`read_effects`.
    compare
        What is done today, or could be, by name: policies, also randomised ones, or fixed
        strategies such as ``{"never treat": "wait"}``, as for
        :func:`mmdp.economics.cost_effectiveness`. Each is a row of the tables and in the pictures,
        and the answer says what this policy gains over it.
    counting
        Discount rates of effects and costs, half-cycle weights: :class:`mmdp.economics.Counting`.
    unseen
        (state, action) pairs, as labels or ids, that the data lacks; by default those that
        the log of fitted models lacks.

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
    check_names(options, PageOptions)
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or math.isnan(seconds) or seconds < 0:
        raise InputError(f"seconds must be a number of at least 0, not {seconds!r}")
    title, notes = options.pop("title", None), tuple(options.pop("notes", ()))
    desk = Desk(model, horizon, policy, say=say, **options)  # type: ignore[misc]
    write_whole(target, document(desk, seconds, title, notes))
    return target


@checked
@unanswered()
def draw(
    kind: str, model: MMDP, out: PathLike, *, horizon: int | None = None,
    policy: Policy | Solution | None = None, say: Say | None = None, **options: Unpack[Options],
) -> Path:  # fmt: skip
    """Write one picture of the report as ``.png`` or ``.svg``.

    ``kind`` is one of ``KINDS``: policy, methods, returns, regret, weights, trace, information,
    memory, frontier, enough, willingness, loss, or chart, the flow chart of a policy with memory,
    as ``.svg`` or, for Graphviz, ``.dot``, or belief, the map of :class:`mmdp.BeliefGrid` by state
    and belief. ``options`` are those of :func:`write` that say what is drawn: ``test, methods,
    objective, memory, effects, costs, thresholds, compare, counting, seed``.

    >>> import tempfile, mmdp
    >>> from mmdp import report
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> report.draw("regret", two, tempfile.mkdtemp() + "/regret.png", horizon=2).name
    'regret.png'
    """
    if kind not in KINDS:
        raise InputError(f"no plot {suggested(kind, KINDS)}; it is one of {', '.join(KINDS)}")
    target = Path(out)
    if kind == "chart":
        return _draw_chart(model, target, horizon, policy, options)
    plots.check_ending(target)
    _check_folder(target)
    if kind == "belief":
        shown = solve(model, horizon, "grid").policy if policy is None else policy
        plan: Any = getattr(shown, "policy", shown)
        if not (plan.exact and plan.kind.learns):
            raise InputError(
                "a belief map shows a plan by state and belief",
                ["write one with mmdp solve --method grid --out policy.json"],
            )
        return plots.save(plots.policy_heatmap(shown), target)
    desk = Desk(model, horizon, policy, say=say, **{"memory": 4, **options})  # type: ignore[arg-type]
    picture = PICTURES[kind]
    section = next(x for x in SECTIONS if x.key == picture.section)
    found = section.compute(desk) if section.tells(desk) else None
    axis = None if found is None else picture.draw(desk, found)
    if axis is None:
        raise InputError(f"there is nothing to draw for {kind!r}: {picture.needs}")
    return plots.save(axis, target)


def _draw_chart(
    model: MMDP, out: Path, horizon: int | None, policy: Any, options: Options
) -> Path:  # fmt: skip
    """The flow chart of a policy with memory; without one, of the best that is found."""
    if out.suffix.lower() not in (".svg", ".dot"):
        raise InputError(f"{out}: a flow chart is written as .svg or .dot")
    _check_folder(out)
    if policy is None:
        kind = Memory(options.get("memory") or NODES)
        policy = solve(model, horizon, policy=kind, seed=options.get("seed", 0))
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
