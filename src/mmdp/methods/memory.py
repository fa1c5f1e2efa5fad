"""CADP over controllers: policies with a few nodes of memory, grown node by node.

A sweep is a forward pass for b_{t,m}(s, n) and a backward pass that takes in every state and
node the best action together with its best moves (see
:meth:`mmdp.kernels.problem.Kernel.node_values`). The return never falls. The first sweep with a
new node improves on the way forward too: what is learned early pays longer than what is learned
late, and a backward pass would put the trial of an action late. Nodes must differ, or
nothing is gained. So a node is added that plans for the posterior over the models after a
sampled history: it holds CADP's policy for these weights, and at first nothing leads to it.
Every other history is one of random actions: a policy that never tries an action learns nothing
about it.

For another objective F than the mean a sweep takes the tilted weights lambda xi, for which F rises
fastest at the current returns, and counts only if F itself rises. If it does not, the weights of
wider tails are tried, and at last those of the mean. A candidate also begins at the end of the
ascent for a tilted mean, with the average of the weights so far: at the kinks of F it gains most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mmdp.kernels import Problem
from mmdp.kernels.controller import Controller
from mmdp.kernels.problem import Array, Table, at
from mmdp.methods import starts
from mmdp.methods.base import Context, Outcome
from mmdp.objective import Mean
from mmdp.policy import Memory
from mmdp.solution import Status

if TYPE_CHECKING:
    from mmdp.methods.cadp import CADP

FEWEST, MOST = 4, 24  # candidates for a node
BUDGET = 2.0  # seconds that the candidates for a node may take together, estimated by size
SWEEPS = 15  # that one ascent takes
CLOSE = (
    1e-6  # gain of a sweep, as a share of what is at stake, at which the ascent of a candidate ends
)


class Climbed(NamedTuple):
    """The end of an ascent; ``trace`` holds the value of the start and after every sweep."""

    controller: Controller
    returns: Array
    trace: list[float]
    status: Status
    fresh: bool = False  # a node was added that nothing leads to yet

    @property
    def value(self) -> float:
        return self.trace[-1]


def grow(context: Context, options: CADP) -> Outcome:
    """Add nodes to CADP's Markov policy one by one, each the best of a few candidates."""
    assert isinstance(context.kind, Memory)
    markov = options.climb(context)
    if context.kind.nodes == 1:
        return markov
    assert markov.returns is not None
    start = Controller.of_tables(markov.policy)
    best = Climbed(start, markov.returns, [context.worth(markov.returns)], markov.status)
    trace, values = [*(markov.trace or best.trace)], [best.value]
    rng = np.random.default_rng(context.seed)
    for nodes in range(2, context.kind.nodes + 1):
        last = nodes == context.kind.nodes
        found = _with_one_more(context, best, nodes, rng, options)
        for end in (found, climb(context, found, options.tol, options)) if last else (found,):
            trace += [value for value in end.trace if value > trace[-1]]
            best = end
        values.append(best.value)
    details = {**markov.details, "nodes": best.controller.n_nodes, "value_by_nodes": values}
    return Outcome(
        best.controller, best.status, len(trace) - 1, returns=best.returns, trace=trace,
        details=details,
    )  # fmt: skip


def _with_one_more(
    context: Context, best: Climbed, nodes: int, rng: np.random.Generator, options: CADP
) -> Climbed:
    """The best of a few ascents with a new node; what there was if none gains."""
    held, weights = best, next(tilted(context, best.returns))
    for i in range(n_candidates(context.problem, context.horizon, nodes)):
        followed = None if i % 2 else held.controller
        table = planned_for(context, sampled_posterior(context, followed, weights, rng))
        wider = held._replace(controller=held.controller.with_node(table), fresh=True)
        for end in _ends(context, wider, weights, options):
            best = max(best, end, key=lambda end: end.value)
        weights = weights + (next(tilted(context, end.returns)) - weights) / (i + 2)  # the average
    return best._replace(trace=[held.value]) if best is held else best


def _ends(context: Context, start: Climbed, weights: Array, options: CADP) -> Iterator[Climbed]:
    """Where the ascent ends. For an objective other than the mean there are two more: the ascent
    from what is best for the mean with these weights, and last what it began with.
    """
    yield climb(context, start, CLOSE, options)
    if context.objective != Mean():
        inner = context.quiet(weights=weights)
        found = climb(inner, start._replace(trace=[inner.mean(start.returns)]), CLOSE, options)
        found = found._replace(trace=[context.worth(found.returns)])
        yield climb(context, found, CLOSE, options)
        yield found


def climb(context: Context, start: Climbed, tol: float, options: CADP) -> Climbed:
    """Sweep until a sweep gains no more than ``tol`` of what is at stake, or nothing."""
    tol *= context.problem.stakes(context.horizon)
    controller, returns, trace = start.controller, start.returns, [start.value]
    values = None
    if start.fresh:
        x, T = context.problem, context.horizon
        values = context.kernel.node_values(x, T, controller, keep=True).values
    for _ in range(options.max_iterations):
        sweeps = _sweeps(context, controller, returns, values)
        found = next((end for end in sweeps if context.worth(end[1]) > trace[-1]), None)
        if found is None:
            mean = context.objective == Mean()
            status = Status.LOCAL_OPTIMUM if mean else Status.COMPLETED
            return Climbed(controller, returns, trace, status)
        (controller, returns), values = found, None
        trace.append(context.worth(returns))
        context.record(controller, trace[-1])
        if trace[-1] - trace[-2] <= tol:
            return Climbed(controller, returns, trace, Status.COMPLETED)
    return Climbed(controller, returns, trace, Status.ITERATION_LIMIT)


def _sweeps(
    context: Context, controller: Controller, returns: Array, values: Array | None
) -> Iterator[tuple[Controller, Array]]:
    """What a sweep with each of the tilted weights makes of the controller, and its returns."""
    T, kernel = context.horizon, context.kernel
    for weights in tilted(context, returns):
        context.check_time()
        x = context.problem._replace(weights=weights)
        improved, b = kernel.node_weights(x, T, controller, values)
        improved, new, _ = kernel.node_values(x, T, improved, b)
        yield improved, new


def tilted(context: Context, returns: Array) -> Iterator[Array]:
    """(M,) weights lambda xi for the objective at these returns, for wider tails, for the mean."""
    F, lam = context.objective, context.problem.weights
    for each in [F, *reversed(F.ladder(lam)), *([] if Mean() == F else [Mean()])]:
        if each.concave:
            yield lam * each.tilt(each.counted(returns, context.own), lam)


def n_candidates(problem: Problem, horizon: int, nodes: int) -> int:
    """How many candidates a node gets: a rule by size, not by the clock."""
    sweep = nodes**2 * problem.work(horizon) / starts.RATE + horizon * starts.STEP
    return int(np.clip(BUDGET / (SWEEPS * sweep), FEWEST, MOST))


def planned_for(context: Context, posterior: Array) -> Table:
    """(T, S) CADP's policy if these were the weights of the models."""
    x, T = context.problem._replace(weights=posterior), context.horizon
    return context.kernel.ascend(x, T, [None], tol=CLOSE * x.stakes(T))[0].policy


def sampled_posterior(
    context: Context, controller: Controller | None, prior: Array, rng: np.random.Generator
) -> Array:
    """(M,) weights of the models after a history under the controller, or of random actions."""
    x, posterior = context.problem, prior / prior.sum()
    m = rng.choice(x.n_models, p=posterior)
    s = rng.choice(x.n_states, p=x.initial)
    n = 0 if controller is None else controller.first[s]
    for t in range(rng.integers(1, context.horizon + 1) - 1):
        if controller is None:
            a = rng.choice(np.flatnonzero(at(x.allowed, t)[s]))
        else:
            a = controller.actions[t, s, n]
        row = s * x.n_actions + a
        entries = slice(x.indptr[row], x.indptr[row + 1])
        p = at(x.p, t)[entries, m]
        if not p.any():  # an action that this model lacks ends the episode
            break
        k = entries.start + rng.choice(len(p), p=p / p.sum())
        posterior = posterior * at(x.p, t)[k]
        posterior = x.moved(posterior / posterior.sum())
        if x.drift is not None:
            m = rng.choice(x.n_models, p=x.drift[m] / x.drift[m].sum())
        n = 0 if controller is None else controller.moves[t, s, n, x.indices[k]]
        s = x.indices[k]
    return posterior
