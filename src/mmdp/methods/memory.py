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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mmdp.kernels import Problem
from mmdp.kernels.controller import Controller
from mmdp.kernels.problem import Array, Table, at
from mmdp.methods import starts
from mmdp.methods.base import Context, Outcome
from mmdp.policy import Memory
from mmdp.solution import Status

if TYPE_CHECKING:
    from mmdp.methods.cadp import CADP

FEWEST, MOST = 4, 24  # candidates for a node
BUDGET = 2.0  # seconds that the candidates for a node may take together, estimated by size
SWEEPS = 15  # that one ascent takes
CLOSE = 1e-6  # relative gain of a sweep at which the ascent of a candidate ends


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
    best = Climbed(start, markov.returns, [context.mean(markov.returns)], markov.status)
    trace, values = [*(markov.trace or best.trace)], [best.value]
    rng = np.random.default_rng(context.seed)
    for nodes in range(2, context.kind.nodes + 1):
        last = nodes == context.kind.nodes
        found = _with_one_more(context, best, nodes, rng, options)
        for end in (found, climb(context, found, options.tol, options)) if last else (found,):
            trace += end.trace[1:]
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
    held = best
    for i in range(n_candidates(context.problem, context.horizon, nodes)):
        followed = None if i % 2 else held.controller
        table = planned_for(context, sampled_posterior(context, followed, rng))
        wider = held._replace(controller=held.controller.with_node(table), fresh=True)
        found = climb(context, wider, CLOSE, options)
        best = max(best, found, key=lambda end: end.value)
    return best._replace(trace=[held.value]) if best is held else best


def climb(context: Context, start: Climbed, tol: float, options: CADP) -> Climbed:
    """Sweep until a sweep gains no more than ``tol`` of the value, or nothing."""
    x, T, kernel = context.problem, context.horizon, context.kernel
    controller, returns, trace = start.controller, start.returns, [start.value]
    values = kernel.node_values(x, T, controller, keep=True).values if start.fresh else None
    for _ in range(options.max_iterations):
        improved, b = kernel.node_weights(x, T, controller, values)
        improved, new, values = kernel.node_values(x, T, improved, b)
        gain = context.mean(new) - trace[-1]
        if gain <= 0:
            return Climbed(controller, returns, trace, Status.LOCAL_OPTIMUM)
        controller, returns = improved, new
        trace.append(context.mean(new))
        context.record(controller, trace[-1])
        if gain <= tol * max(1.0, abs(trace[-1])):
            return Climbed(controller, returns, trace, Status.COMPLETED)
    return Climbed(controller, returns, trace, Status.ITERATION_LIMIT)


def n_candidates(problem: Problem, horizon: int, nodes: int) -> int:
    """How many candidates a node gets: a rule by size, not by the clock."""
    sweep = nodes**2 * problem.work(horizon) / starts.RATE + horizon * starts.STEP
    return int(np.clip(BUDGET / (SWEEPS * sweep), FEWEST, MOST))


def planned_for(context: Context, posterior: Array) -> Table:
    """(T, S) CADP's policy if these were the weights of the models."""
    x = context.problem._replace(weights=posterior)
    return context.kernel.ascend(x, context.horizon, [None], tol=CLOSE)[0].policy


def sampled_posterior(
    context: Context, controller: Controller | None, rng: np.random.Generator
) -> Array:
    """(M,) weights of the models after a history under the controller, or of random actions."""
    x, posterior = context.problem, context.problem.weights
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
