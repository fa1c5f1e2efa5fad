"""Search for finite-state controllers, grown node by node.

A sweep is a forward pass for b_{t,m}(s, n) and a backward pass that takes in every state and node
the best action together with its best node transitions (``PreparedProblem.compute_node_values`` in
:mod:`mmdp.core.kernels.prepared`). The first sweep with a new node improves in the
forward pass too: information that is gained early is useful for longer, and a backward pass would
put the trial of an action late. Nodes must differ to gain anything. So a node is added that
plans for the posterior over the models after a sampled history: it holds CADP's policy for these
weights, and at first no transition leads to it. Every other history is one of random actions: a
policy that never tries an action learns nothing about it.

Other objectives first ascend on the mean with risk weights, and then by single changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mmdp.core.evaluate import ControllerEvaluator, take_actions
from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.problem import AscentResult, PolicyTable, at_time
from mmdp.core.objectives import Mean, Objective
from mmdp.core.policies import Memory
from mmdp.core.search.context import Candidate, MethodResult, SolveContext
from mmdp.core.search.multistart import END_STATUS
from mmdp.core.search.space import (
    AscentDirection,
    ChangeGenerator,
    SearchSpace,
    WeightedMean,
    offer_alternatives,
)
from mmdp.core.shapes import Array
from mmdp.core.timing import TimeUp

MIN_CANDIDATES, MAX_CANDIDATES = 4, 24  # candidates for a node
TIME_BUDGET = 2.0  # seconds that the candidates for a node may take together, estimated by size
SWEEPS_PER_ASCENT = 15  # of one ascent
COPY_SECONDS = 8e-9  # per byte of node transitions, of all copies made for one candidate
REL_TOL = 1e-6  # relative gain of a sweep at which the ascent of a candidate ends


class ControllerSpace(SearchSpace):
    """Search space of finite-state controllers with any number of nodes."""

    sweep_type = "nodes"

    def __init__(self, context: SolveContext) -> None:
        self.context, self.evaluator = context, ControllerEvaluator(context.prepared)

    def improve(
        self, candidate: Controller, returns: Array, objective: Objective
    ) -> tuple[Controller, Array]:
        """Sweep for a (reweighted) mean that improves F; otherwise change single blocks."""
        if isinstance(objective, WeightedMean):
            return self.sweep(candidate, objective.weights)
        improved = self.improve_by_sweep(candidate, returns, objective)
        return super().improve(candidate, returns, objective) if improved is None else improved

    def improve_by_sweep(
        self,
        candidate: Controller,
        returns: Array,
        objective: Objective,
        *,
        improves_forward: bool = False,
    ) -> tuple[Controller, Array] | None:
        """Run the first sweep for a (reweighted) mean that improves F; None if there is none."""
        context = self.context
        current_value = context.objective_value(returns, objective)
        for weights in iter_risk_weights(context, objective, returns):
            sweep_result = self.sweep(candidate, weights, improves_forward=improves_forward)
            if context.objective_value(sweep_result[1], objective) > current_value:
                return sweep_result
        return None

    def sweep(
        self, candidate: Controller, weights: Array, *, improves_forward: bool = False
    ) -> tuple[Controller, Array]:
        """Run one sweep for the mean with these model weights; return controller and returns.

        The backward pass improves the controller, and the forward pass if asked.
        """
        self.context.check_time()
        prepared, values = self.context.prepared.replace(weights=weights), None
        if improves_forward:
            values = prepared.compute_node_values(candidate, keep_values=True).values
            self.context.check_time()
        candidate, b = prepared.compute_node_weights(candidate, values)
        self.context.check_time()
        backward_pass = prepared.compute_node_values(candidate, b)
        return backward_pass.controller, backward_pass.returns

    def iter_changes(self, candidate: Controller, direction: AscentDirection) -> ChangeGenerator:
        """Iterate over single changes of transitions, actions and initial nodes, backwards."""
        prepared, x = self.context.prepared, self.context.problem
        d, controller = self.evaluator.compute_occupancy(candidate), candidate.copy()
        v = np.repeat(x.terminal[:, None], controller.n_nodes, axis=1)
        for t in reversed(range(prepared.horizon)):
            b = x.discount**t * d[t]
            for n in range(controller.n_nodes):
                s, next_states, values = prepared.compute_transition_values(t, v, controller, n)
                current = controller.node_transitions[t, s, n, next_states]
                controller.node_transitions[t, s, n, next_states] = yield from offer_alternatives(
                    prepared, b[s, n], values, current
                )
            q = self.evaluator.compute_q(t, v, controller)
            flat_q, actions = q.reshape(-1, *q.shape[2:]), controller.actions[t].reshape(-1)
            actions[:] = yield from offer_alternatives(
                prepared, b.reshape(-1, *b.shape[2:]), flat_q, actions
            )
            v = take_actions(q, controller.actions[t])
        initial = prepared.forward_by_start(
            lambda prepared_start: prepared_start.problem.initial_joint()
        )
        controller.initial_nodes[:] = yield from offer_alternatives(
            prepared, initial, v, controller.initial_nodes
        )
        return controller, self.compute_returns(controller)


def iter_risk_weights(
    context: SolveContext, objective: Objective, returns: Array
) -> Iterator[Array]:
    """Iterate over risk weights lambda xi (M,): of the objective, of easier ones, of the mean."""
    lam = context.problem.weights
    for easier_objective in [objective, *reversed(objective.continuation_path(lam)), Mean()]:
        if easier_objective.is_concave:
            yield lam * easier_objective.dual_density(
                easier_objective.relative_returns(returns, context.oracle_returns), lam
            )
        if easier_objective.is_mean:
            return


# ---------------------------------------------------------------------- growing
def grow_controller(
    context: SolveContext, markov_result: MethodResult, *, tol: float, max_sweeps: int
) -> MethodResult:
    """Add nodes to a Markov policy one by one, each the best of a few candidates."""
    assert isinstance(context.policy_class, Memory)
    grower = _ControllerGrower(context, ControllerSpace(context), max_sweeps)
    rho = markov_result.required_returns
    value = context.objective_value(rho)
    controller = Controller.from_tables(markov_result.policy)
    best = AscentResult(controller, rho, value, [value], 0, "tolerance")
    trace, values = [*(markov_result.trace or [value])], [value]
    for n_nodes in range(2, context.policy_class.max_nodes + 1):
        best = grower.add_node(best, n_nodes)
        trace += [value for value in best.trace if value > trace[-1]]
        values.append(best.value)
    best = grower.ascend(best.policy, tol)
    trace += [value for value in best.trace if value > trace[-1]]
    values[-1] = best.value
    details = {**markov_result.details, "n_nodes": best.policy.n_nodes, "value_by_nodes": values}
    return MethodResult(
        best.policy,
        END_STATUS[best.stop_reason],
        len(trace) - 1,
        returns=best.returns,
        trace=trace,
        details=details,
    )


class _ControllerGrower:
    """Generates and improves the candidates for an additional node."""

    def __init__(self, context: SolveContext, space: ControllerSpace, max_sweeps: int) -> None:
        self.context, self.space, self.max_sweeps = context, space, max_sweeps
        self.rng = np.random.default_rng(context.seed)

    def add_node(self, incumbent: AscentResult, n_nodes: int) -> AscentResult:
        """Return the best controller with one more node; the incumbent if none is better."""
        context, objective = self.context, self.context.objective
        best, weights = incumbent, next(iter_risk_weights(context, objective, incumbent.returns))
        n_transitions = context.horizon * context.problem.n_states**2 * n_nodes
        candidate_seconds = COPY_SECONDS * n_transitions
        for i in range(count_candidates(context, n_nodes)):
            if candidate_seconds > context.stopwatch.time_left:
                raise TimeUp
            behavior = None if i % 2 else incumbent.policy
            posterior = sample_posterior(context, behavior, weights, self.rng)
            extended = incumbent.policy.add_node(solve_for_weights(context, posterior))
            for optimum in self.iter_local_optima(extended, weights):
                best = max(best, optimum, key=lambda optimum: optimum.value)
            # the average over the candidates: at the kinks of F it gains most
            new_weights = next(iter_risk_weights(context, objective, optimum.returns))
            weights = weights + (new_weights - weights) / (i + 2)
        return best._replace(trace=[incumbent.value]) if best is incumbent else best

    def iter_local_optima(self, controller: Controller, weights: Array) -> Iterator[AscentResult]:
        """Iterate over local optima reached from a controller.

        For objectives other than the mean there are two more: the ascent from the local optimum of
        the mean with these weights, and last that optimum itself.
        """
        space, objective = self.space, self.context.objective
        improved = space.improve_by_sweep(
            controller, space.compute_returns(controller), objective, improves_forward=True
        )
        yield self.ascend(controller if improved is None else improved[0], REL_TOL)
        if objective.is_mean:
            return
        mean_optimum = space.ascend_mean(
            space.sweep(controller, weights, improves_forward=True)[0],
            weights=weights,
            tol=REL_TOL * self.context.return_span,
            max_sweeps=self.max_sweeps,
        )
        yield self.ascend(mean_optimum.policy, REL_TOL)
        yield mean_optimum._replace(value=self.context.objective_value(mean_optimum.returns))

    def ascend(self, init: Controller, tol: float) -> AscentResult:
        """Ascend from a controller to a local optimum of the objective."""
        return self.space.ascend(
            init,
            tol=tol * self.context.return_span,
            max_sweeps=self.max_sweeps,
            callback=self.record_if_better,
        )

    def record_if_better(self, controller: Candidate, value: float) -> None:
        """Record a controller that improves on the incumbent, and check the time."""
        if value > self.context.best_value:
            self.context.record(controller, value)
        self.context.check_time()


def count_candidates(context: SolveContext, n_nodes: int) -> int:
    """Choose the number of candidates for a node from the size of the problem."""
    ascent_seconds = context.problem.estimate_seconds(
        context.horizon, SWEEPS_PER_ASCENT * n_nodes**2
    )
    return int(np.clip(TIME_BUDGET / ascent_seconds, MIN_CANDIDATES, MAX_CANDIDATES))


def solve_for_weights(context: SolveContext, posterior: Array) -> PolicyTable:
    """Compute CADP's policy (T, S) for other model weights."""
    prepared = context.prepared.replace(weights=posterior)
    tol = REL_TOL * context.return_span
    return prepared.ascend([None], tol=tol, callback=lambda *_: context.check_time())[0].policy


def sample_posterior(
    context: SolveContext, controller: Controller | None, prior: Array, rng: np.random.Generator
) -> Array:
    """Sample a history of the controller (or of random actions); return posterior weights (M,)."""
    x, posterior = context.problem, prior / prior.sum()
    m = rng.choice(x.n_models, p=posterior)
    s = rng.choice(x.n_states, p=x.get_initial(m))
    posterior = x.condition_on_initial(posterior, s)
    n = 0 if controller is None else controller.initial_nodes[s]
    for t in range(rng.integers(1, context.horizon + 1) - 1):
        if controller is None:
            a = rng.choice(np.flatnonzero(at_time(x.allowed, t)[s]))
        else:
            a = controller.actions[t, s, n]
        row = x.storage.get_row(t, s * x.n_actions + a)
        p = row.p[:, m]
        if not p.any():  # an action that this model lacks ends the episode
            break
        k = rng.choice(len(p), p=p / p.sum())
        posterior = posterior * row.p[k]
        posterior = x.push_models(posterior / posterior.sum())
        m = x.sample_next_model(m, rng)
        n = 0 if controller is None else controller.node_transitions[t, s, n, row.next_states[k]]
        s = row.next_states[k]
    return posterior
