"""Reports: one self-contained HTML page about a problem and a policy for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from markupsafe import Markup

from mmdp.core.arguments import Unchecked, check_arguments
from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.policies import Memory, MemoryPolicy, Policy, TreePolicy, as_policy
from mmdp.core.solution import Solution
from mmdp.core.solve import solve
from mmdp.core.text import did_you_mean
from mmdp.core.timing import progress_line, propagate_interrupts
from mmdp.data.io.writing import PathLike, check_writable, write_atomic
from mmdp.insight import plots
from mmdp.insight.economics.discounting import read_effects
from mmdp.insight.measures.simplicity import leaf_table
from mmdp.insight.pages import render_page
from mmdp.insight.report import sentences
from mmdp.insight.report.context import Callback, ReportContext, ReportOptions
from mmdp.insight.report.figures import PAGE_FIGURES, render_figure
from mmdp.insight.report.findings import DEFAULT_MAX_NODES, SectionResults
from mmdp.insight.report.interactive import HeatMap, PolicyComparison
from mmdp.insight.report.sections import SECTIONS, choose_sections, compute_sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "PAGE_FIGURES", "draw", "read_effects", "write"]

FIGURES = (*PAGE_FIGURES, "chart", "belief")  # names that draw() accepts
DEFAULT_TIME_LIMIT = 20.0  # seconds for a page, by estimates


@check_arguments
@propagate_interrupts()
def write(
    model: Unchecked[MMDP],
    path: PathLike,
    *,
    horizon: int | None = None,
    policy: Unchecked[Policy | Solution | None] = None,
    time_limit: float = DEFAULT_TIME_LIMIT,
    callback: Callback | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
    **options: Unpack[ReportOptions],
) -> Path:
    """Write a report about a problem and a policy as one self-contained HTML page.

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`; a given policy has its own horizon.
    path
        A name that ends in ``.html``; written whole or not at all.
    policy
        The policy to report about, or the solution it comes from. Without one the first of
        ``methods`` computes it. A stationary one is followed over ``horizon`` decisions. If a
        solution is of a restricted policy class, such as tied, the page compares within it.
    time_limit
        Leave out sections that would take longer than about this many seconds in all; the policy
        and the methods to compare are always solved for. Sections that are requested below (True or
        a number) are always included, and none that are declined (False or 0). The seconds are
        spent from the top of the page down, by estimates that depend on the size of the problem
        alone; the page names the sections left out and how to request them.
    callback
        Called with a short text before each section.
    title, notes
        Heading of the page, and warnings of your own, as plain text.
    test_model
        Test models, on which every policy is evaluated too.
    methods
        Methods to compare; Oracle is always the last line.
    bound
        A proven upper bound, from :func:`mmdp.bound`, or its value (for policies of time
        and state); the page then says how close to the best the policy is.
    objective
        Objective of the policy (see :func:`mmdp.solve`), by which simpler policies and the bound
        are compared. By default that of the solution or of the bound, otherwise the mean. Without
        a policy, one is computed for it.
    seed
        Seed of every random choice.
    small_tree
        Whether to look for the smallest tree that gives up at most 1% of what is at stake (see
        :class:`mmdp.policies.Tree`), which the summary then shows. It needs states that are
        numbered or have named axes.
    frontier
        Whether to look for safer policies too. See :func:`mmdp.measures.risk_frontier`.
    voi
        Whether to compute the value of knowing each parameter (EVPPI).
    max_nodes
        Nodes of memory to try; the page then shows what memory is worth, and the flow chart. See
        :func:`mmdp.measures.value_by_nodes`.
    sample_size
        Whether to solve with fewer models too, to see if there are enough.
    n_resamples
        How often models are drawn again to see which decisions change.
    effects, costs
        Effect and cost of each action, shaped like rewards. See :func:`read_effects`.
    wtp_grid
        Values of one unit of effect to try, for a willingness-to-pay sweep.
    comparators
        Current practice or other policies by name: a policy, or the action that is always taken.
        ``{"never treat": "wait"}``, for example; also randomized policies, and the strategies of
        :func:`mmdp.economics.cost_effectiveness`. Each is a row of the tables and in the figures,
        and the summary says what this policy gains over it.
    discounting
        Discount rates of effects and costs, half-cycle weights:
        :class:`mmdp.economics.OutcomeDiscounting`.
    unseen_pairs
        (state, action) pairs, as labels or ids, that the data lacks; by default those that
        the log of fitted models lacks.

    >>> import tempfile, mmdp
    >>> from mmdp.insight import report
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> file = report.write(two, tempfile.mkdtemp() + "/report.html", horizon=2)
    >>> "returns <strong>7</strong> on average" in file.read_text(encoding="utf-8")
    True
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{target}: choose a name that ends in .html")
    _check_output_path(target)
    if time_limit < 0:
        raise InputError(
            f"time_limit={time_limit!r} is not a number >= 0 (seconds); pass 0 to compute only "
            "what is asked for"
        )
    progress_line.update("the policy and its returns")
    context = ReportContext(model, horizon, policy, callback=callback, **options)
    write_atomic(target, _render_report(context, time_limit, title, notes))
    return target


def _render_report(
    context: ReportContext, time_limit: float, title: str | None, notes: Sequence[str]
) -> str:
    """Render the HTML page; skip unrequested sections beyond about ``time_limit`` seconds."""
    selected, skipped = choose_sections(context, time_limit)
    results = SectionResults(**compute_sections(context, selected))
    comparison, model = PolicyComparison(context, results), context.model
    heat_map = HeatMap(context, comparison.used_actions, results.stability)
    applicable = [x for x in SECTIONS if x.is_applicable(context)]
    context.callback("drawing")
    figures = {
        name: render_figure(name, context, getattr(results, x.section))
        for name, x in PAGE_FIGURES.items()
        if x.is_on_page or (name == "policy" and len(heat_map.axis_values) > 1)
    }
    for figure, result in (("chart", results.memory), ("controller", results.controller)):
        if result is not None:
            figures[figure] = Markup(result.policy.to_flow_chart().to_svg(figure))
    needed_seconds = sum(
        x.estimate_seconds(context) for x in applicable if x.is_requested(context) is not False
    )
    return render_page(
        "report/templates/page.html.j2",
        title=title or "Decision report" + f": {model.name}" * bool(model.name),
        notes=notes,
        time_limit=time_limit,
        needed_seconds=math.ceil(needed_seconds),
        sections=[
            x
            for x in applicable
            if x.heading and (x.shows_when_skipped or getattr(results, x.key) is not None)
        ],
        skipped=skipped,
        context=context,
        model=model,
        evaluation=context.evaluation,
        results=results,
        say=sentences,
        comparison=comparison,
        heat_map=heat_map,
        figures=figures,
        map_data=heat_map.to_script_data(),
        compare_data=comparison.to_script_data(heat_map) if model.n_models > 1 else None,
    )


@check_arguments
@propagate_interrupts()
def draw(
    model: MMDP,
    figure: str,
    path: PathLike,
    *,
    horizon: int | None = None,
    policy: Policy | Solution | None = None,
    callback: Callback | None = None,
    **options: Unpack[ReportOptions],
) -> Path:
    """Draw one figure of the report and write it as ``.png`` or ``.svg``.

    ``figure`` is one of ``FIGURES``: policy, tree (a given tree, otherwise a small one that is
    found), methods, returns, regret, weights, trace, voi,
    memory, frontier, sample_size, willingness, loss, or chart, the flow chart of a policy with
    memory, or belief, the map of
    :class:`mmdp.methods.BeliefGrid` by state and belief. ``options`` are those of :func:`write`
    that say what is drawn: ``test_model, methods, objective, max_nodes, effects, costs, wtp_grid,
    comparators, discounting, seed``.

    >>> import tempfile, mmdp
    >>> from mmdp.insight import report
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> report.draw(two, "regret", tempfile.mkdtemp() + "/regret.png", horizon=2).name
    'regret.png'
    """
    if figure not in FIGURES:
        raise InputError(
            f"there is no figure {did_you_mean(figure, FIGURES)}; choose one of "
            f"{', '.join(FIGURES)}"
        )
    target = Path(path)
    plots.check_figure_suffix(target)
    _check_output_path(target)
    shown_policy = policy.policy if isinstance(policy, Solution) else policy
    if figure == "chart":
        ax = _draw_flow_chart(model, horizon, policy, options)
    elif figure == "belief":
        ax = _draw_belief_map(solve(model, horizon, "grid") if policy is None else policy)
    elif figure == "tree" and policy is not None and isinstance(shown_policy, TreePolicy):
        objective = options.get("objective") or policy.objective
        ax = plots.tree(shown_policy, leaf_table(model, shown_policy, objective=objective))
    else:
        drawn_options: ReportOptions = {"max_nodes": 4, **options}
        context = ReportContext(model, horizon, policy, callback=callback, **drawn_options)
        ax = _draw_page_figure(context, figure)
    return plots.save_figure(ax, target)


def _draw_page_figure(context: ReportContext, figure: str) -> Axes:
    """Draw a figure of the page."""
    report_figure = PAGE_FIGURES[figure]
    section = next(x for x in SECTIONS if x.key == report_figure.section)
    result = section.compute(context) if section.is_applicable(context) else None
    ax = None if result is None else report_figure.draw(context, result)
    if ax is None:
        raise InputError(f"there is nothing to draw for {figure!r}: {report_figure.requirement}")
    return ax


def _draw_belief_map(policy: Policy | Solution) -> Axes:
    """Draw the map of a belief policy on a grid."""
    purpose = "a belief map shows a plan by state and belief"
    remedy = "write one with mmdp solve --method grid --out policy.json"
    plan = as_policy(policy, purpose, remedy)
    if not (plan.has_exact_returns and plan.policy_class.uses_belief):
        raise InputError(purpose, [remedy])
    return plots.policy_heatmap(plan)


def _draw_flow_chart(
    model: MMDP, horizon: int | None, policy: Policy | Solution | None, options: ReportOptions
) -> Axes:
    """Draw the flow chart of a finite-state controller; solve for one if none is given."""
    if policy is None:
        policy_class = Memory(options.get("max_nodes") or DEFAULT_MAX_NODES)
        policy = solve(model, horizon, policy_class=policy_class, seed=options.get("seed", 0))
    controller = policy.policy if isinstance(policy, Solution) else policy
    if not isinstance(controller, MemoryPolicy):
        raise InputError(
            f"a flow chart shows a policy with memory, not a {type(controller).__name__}",
            ["solve with policy_class=Memory(3), or mmdp solve --max-nodes 3"],
        )
    return controller.merge_nodes(model).to_flow_chart(model).plot()


def _check_output_path(path: Path) -> None:
    """Refuse an output path that cannot be written, before anything is computed."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: no folder {path.parent}; make it first")
    check_writable(path)
