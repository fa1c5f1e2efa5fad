"""Flow charts: policies with a few nodes of memory, grown node by node.

A sweep is a forward pass for b_{t,m}(s, n) and a backward pass that takes in every state and
node the best action together with its best moves (see
:meth:`mmdp.kernels.numpy.controllers.Controllers.node_values`). The first sweep with a new node
improves on the way forward too: what is learned early pays longer than what is learned late, and
a backward pass would put the trial of an action late. Nodes must differ, or nothing is gained. So
a node is added that plans for the posterior over the models after a sampled history: it holds
CADP's policy for these weights, and at first nothing leads to it. Every other history is one of
random actions: a policy that never tries an action learns nothing about it.

Objectives other than the mean first climb the mean with tilted weights, and then by single changes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from mmdp.kernels.controller import Controller
from mmdp.kernels.problem import Array, Ascent, IntArray, Table, at
from mmdp.objective import Mean, Objective
from mmdp.policy import Memory
from mmdp.search.context import Context, Outcome
from mmdp.search.landscape import Changes, Landscape, Slope, Weighted
from mmdp.search.starts import ENDS

FEWEST, MOST = 4, 24  # candidates for a node
BUDGET = 2.0  # seconds that the candidates for a node may take together, estimated by size
SWEEPS = 15  # of one ascent
CLOSE = 1e-6  # relative gain of a sweep at which the ascent of a candidate ends


class Charts(Landscape):
    """Controllers with any number of nodes."""

    sweeps = "nodes"

    def returns(self, point: Controller) -> Array:
        return self.context.plan.node_values(point).returns

    def step(
        self, point: Controller, returns: Array, objective: Objective
    ) -> tuple[Controller, Array]:
        """A sweep for the mean, or for a tilted mean that improves F; else single changes."""
        if isinstance(objective, Weighted):
            return self.sweep(point, objective.weights)
        context = self.context
        now = context.worth(returns, objective)
        for weights in tilts(context, objective, returns):
            found = self.sweep(point, weights)
            if context.worth(found[1], objective) > now:
                return found
        return super().step(point, returns, objective)

    def sweep(self, point: Controller, weights: Array) -> tuple[Controller, Array]:
        self.context.check_time()
        plan = self.context.plan.but(weights=weights)
        found = plan.node_values(point, plan.node_weights(point)[1])
        return found.controller, found.returns

    def opened(self, point: Controller, weights: Array) -> Controller:
        """The controller after a sweep that improves on the way forward too."""
        plan = self.context.plan.but(weights=weights)
        improved, b = plan.node_weights(point, plan.node_values(point, keep=True).values)
        return plan.node_values(improved, b).controller

    def changes(self, point: Controller, slope: Slope) -> Changes:
        """Other moves and actions of single nodes in single states, from the last time to the
        first, and then other first nodes.
        """
        plan, x = self.context.plan, self.context.problem
        d = plan.by_start(lambda each: each.node_weights(point)[1])
        chart = point.copy()
        v = np.repeat(x.terminal[:, None], chart.n_nodes, axis=1)
        for t in reversed(range(plan.horizon)):
            b = x.discount**t * d[t]
            for n in range(chart.n_nodes):
                s, after, values = plan.node_moves(t, v, chart, n)
                held = chart.moves[t, s, n, after]
                chart.moves[t, s, n, after] = yield from self._others(b[s, n], values, held)
            q, actions = plan.node_step(t, v, chart), chart.actions[t].reshape(-1)
            flat = q.reshape(-1, *q.shape[2:])
            s, a = np.nonzero(~at(x.allowed, t).repeat(chart.n_nodes, axis=0))
            flat[s, a] = flat[s, actions[s]]  # an action that is not allowed changes nothing
            actions[:] = yield from self._others(b.reshape(-1, *b.shape[2:]), flat, actions)
            v = flat[np.arange(len(flat)), actions].reshape(v.shape)
        start = plan.by_start(lambda each: each.problem.start())
        chart.first[:] = yield from self._others(start, v, chart.first)
        return chart, self.returns(chart)

    def _others(self, d: Array, values: Array, held: Any) -> Generator[Array, IntArray, IntArray]:
        """Offer other choices than ``held`` (n,), of values (n, k, M), to blocks reached with d;
        the most probable come first. Returns the choices (n,) that are held after that.
        """
        plan = self.context.plan
        change = plan.felt(d[:, None], values - values[np.arange(len(held)), held][:, None])
        chance = plan.felt(d, np.ones_like(values[:, 0])) @ self.context.problem.weights
        order = np.argsort(-chance, kind="stable")
        chosen = np.empty(len(held), np.int32)
        chosen[order] = yield change[order]
        return np.where(chosen >= 0, chosen, held)


def tilts(context: Context, objective: Objective, returns: Array) -> Iterator[Array]:
    """(M,) weights lambda xi for the objective at these returns, for wider tails, for the mean."""
    lam = context.problem.weights
    for each in [objective, *reversed(objective.ladder(lam)), Mean()]:
        if each.concave:
            yield lam * each.tilt(each.counted(returns, context.own), lam)
        if each.linear:
            return


# ---------------------------------------------------------------------- growing
def grow(context: Context, markov: Outcome, *, tol: float, max_sweeps: int) -> Outcome:
    """Add nodes to a Markov policy one by one, each the best of a few candidates."""
    assert isinstance(context.kind, Memory)
    growth, rho = _Growth(context, Charts(context), max_sweeps), markov.returns_known
    value = context.worth(rho)
    best = Ascent(Controller.of_tables(markov.policy), rho, value, [value], 0, "tolerance")
    trace, values, last = [*(markov.trace or [value])], [value], context.kind.nodes
    for nodes in range(2, last + 1):
        best = growth.with_one_more(best, nodes)
        trace += [value for value in best.trace if value > trace[-1]]
        values.append(best.value)
    if last > 1:
        best = growth.up(best.policy, tol)
        trace += [value for value in best.trace if value > trace[-1]]
        values[-1] = best.value
    details = {**markov.details, "nodes": best.policy.n_nodes, "value_by_nodes": values}
    return Outcome(
        best.policy, ENDS[best.end], len(trace) - 1, returns=best.returns, trace=trace,
        details=details,
    )  # fmt: skip


class _Growth:
    """The candidates for one node more."""

    def __init__(self, context: Context, charts: Charts, max_sweeps: int) -> None:
        self.context, self.charts, self.max_sweeps = context, charts, max_sweeps
        self.rng = np.random.default_rng(context.seed)

    def with_one_more(self, held: Ascent, nodes: int) -> Ascent:
        """The best of a few ascents with a new node; what there was if none gains."""
        context, objective = self.context, self.context.objective
        best, weights = held, next(tilts(context, objective, held.returns))
        for i in range(n_candidates(context, nodes)):
            followed = None if i % 2 else held.policy
            posterior = sampled_posterior(context, followed, weights, self.rng)
            wider = held.policy.with_node(planned_for(context, posterior))
            for end in self.ends(wider, weights):
                best = max(best, end, key=lambda end: end.value)
            # the average over the candidates: at the kinks of F it gains most
            new = next(tilts(context, objective, end.returns))
            weights = weights + (new - weights) / (i + 2)
        return best._replace(trace=[held.value]) if best is held else best

    def ends(self, wider: Controller, weights: Array) -> Iterator[Ascent]:
        """Where the ascent ends. If F is not the mean there are two more: the ascent from what is
        best for the mean with these weights, and last what that began with.
        """
        yield self.up(self._opened(wider), CLOSE)
        if self.context.objective.linear:
            return
        found = self.charts.ascend(
            [self.charts.opened(wider, weights)], weights=weights, tol=self._share(CLOSE),
            max_sweeps=self.max_sweeps,
        )[0]  # fmt: skip
        yield self.up(found.policy, CLOSE)
        yield found._replace(value=self.context.worth(found.returns))

    def _opened(self, wider: Controller) -> Controller:
        """The controller after a first sweep that improves on the way forward, if that pays."""
        context, returns = self.context, self.charts.returns(wider)
        for weights in tilts(context, context.objective, returns):
            found = self.charts.opened(wider, weights)
            if context.worth(self.charts.returns(found)) > context.worth(returns):
                return found
        return wider

    def _share(self, tol: float) -> float:
        return tol * self.context.stakes

    def up(self, start: Controller, tol: float) -> Ascent:
        options: Any = {"tol": self._share(tol), "max_sweeps": self.max_sweeps, "watch": self.watch}
        if self.context.objective.linear:
            return self.charts.ascend([start], **options)[0]
        return self.charts.rise(start, self.context.objective, **options)

    def watch(self, chart: Controller, value: float) -> None:
        if value > self.context.best_value:
            self.context.record(chart, value)
        self.context.check_time()


def n_candidates(context: Context, nodes: int) -> int:
    """How many candidates a node gets: a rule by size, not by the clock."""
    ascent = context.problem.seconds(context.horizon, SWEEPS * nodes**2)
    return int(np.clip(BUDGET / ascent, FEWEST, MOST))


def planned_for(context: Context, posterior: Array) -> Table:
    """(T, S) CADP's policy if these were the weights of the models."""
    plan = context.plan.but(weights=posterior)
    tol = CLOSE * context.stakes
    return plan.ascend([None], tol=tol, watch=lambda *_: context.check_time())[0].policy


def sampled_posterior(
    context: Context, controller: Controller | None, prior: Array, rng: np.random.Generator
) -> Array:
    """(M,) weights of the models after a history under the controller, or of random actions."""
    x, posterior = context.problem, prior / prior.sum()
    m = rng.choice(x.n_models, p=posterior)
    s = rng.choice(x.n_states, p=x.begins(m))
    posterior = x.seen_first(posterior, s)
    n = 0 if controller is None else controller.first[s]
    for t in range(rng.integers(1, context.horizon + 1) - 1):
        if controller is None:
            a = rng.choice(np.flatnonzero(at(x.allowed, t)[s]))
        else:
            a = controller.actions[t, s, n]
        row = context.plan.rows(t, s, a)
        p = row.p[:, m]
        if not p.any():  # an action that this model lacks ends the episode
            break
        k = rng.choice(len(p), p=p / p.sum())
        posterior = posterior * row.p[k]
        posterior = x.moved(posterior / posterior.sum())
        m = x.next_model(m, rng)
        n = 0 if controller is None else controller.moves[t, s, n, row.after[k]]
        s = row.after[k]
    return posterior
