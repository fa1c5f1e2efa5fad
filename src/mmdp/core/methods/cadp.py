"""CADP, coordinate ascent dynamic programming (Su and Petrik, UAI 2023).

The search is in :mod:`mmdp.core.search.multistart`, the loop over sweeps in
:mod:`mmdp.core.kernels.ascent`, and the passes of a sweep in plain numpy in
:mod:`mmdp.core.kernels.numpy.passes`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mmdp.core.arguments import NonNegativeFloat, PositiveInt, check_arguments
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.problem import PolicyTable, Problem, SweepType
from mmdp.core.methods.base import Method, MethodResult, ProblemSpec, SolveContext
from mmdp.core.methods.baselines import WSU
from mmdp.core.policies import Memory, Planner, Stationary
from mmdp.core.search import controllers
from mmdp.core.search.context import Details
from mmdp.core.search.gradient import solve_randomized
from mmdp.core.search.multistart import InitCount, MultiStart, default_n_init, pad_init_names
from mmdp.core.search.space import SearchSpace
from mmdp.core.search.spaces import ASCENT_PASSES, MarkovSpace, choose_sweep_type, make_space
from mmdp.core.search.trees import TreeSpace, grow_tree
from mmdp.core.solution import Status
from mmdp.core.timing import TimeUp

COMPARISON_SECONDS = 5.0  # seconds, estimated, for a policy of time and state to compare with


@check_arguments
@dataclass(frozen=True)
class CADP(Method):
    """Coordinate ascent dynamic programming: Algorithm 2 of Su and Petrik (2023), with multistart.

    A sweep computes the model weights b of the current policy forwards in time (Definition 4.1),
    then maximizes sum_m b q backwards in time (Algorithm 1, OptimizePolicy). The return never
    decreases (Theorem 5.1), and the result is a local optimum: no change of the action in a single
    state and time improves it. The improving forward pass of ``"two-way"`` sweeps, multistart and
    the other policy classes and objectives are not in the paper.

    Parameters
    ----------
    init
        Initial policy: ``"wsu"`` (as in the paper), ``"mvp"``, ``"random"``, ``"uniform"``,
        ``"mirror"``, ``"gradient"`` or a policy to improve. ``"mirror"`` and ``"gradient"`` are the
        rounded end of a short ascent from the uniform policy; a policy is a
        :class:`mmdp.policies.MarkovPolicy`.
    n_init
        Number of initial policies; the best result is kept. In this order: ``init``, WSU, MVP,
        mirror, gradient (as above), then in turn a single model's optimum (models sampled by
        weight, each once) and a random policy. ``"auto"`` takes up to 16, as many as fit into about
        a second, and at least two unless one ascent takes over ten seconds. It depends on the size
        of the problem, not on the clock. With another ``init`` or the paper's sweeps it takes one.
        With several, ``details`` has ``init_values``, ``inits`` (their names), ``best_init`` and
        ``spread`` (min, mean, max).
    tol
        Stop when a sweep gains no more than this share of the return span, the range of the
        rewards times sum_t gamma^t; 0 continues to a local optimum. For objectives other than the
        mean an ascent is also given up if 20 more sweeps that gain as much as its
        last one would not reach the best value found so far from another initial policy. An ascent
        on an easier objective, such as CVaR with a wider tail, only finds a start: it ends when a
        sweep gains at most a thousandth of what all of its sweeps have gained.
    max_iter
        Cap on the sweeps of one ascent.
    sweep_type
        ``"paper"``: an iteration is the forward pass for b and the improving backward pass of
        the paper. ``"two-way"``: from the second iteration on the forward pass improves the
        policy too, with q kept from the backward pass. That takes fewer iterations and may end
        in another local optimum. q has T * S * A * M numbers: if they take over 2 GiB, the
        paper's sweeps are used. ``details["sweep_type"]`` says which were.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> mmdp.solve(two, 2, mmdp.methods.CADP(init="mvp")).value
    7.0
    """

    init: str | Planner = "wsu"
    n_init: InitCount = "auto"
    tol: NonNegativeFloat = 0.0
    max_iter: PositiveInt = 1000
    sweep_type: SweepType = "two-way"

    name = "cadp"
    title = "coordinate ascent and dynamic programming"
    best_status = Status.LOCAL_OPTIMUM
    can_resume = True
    ignores_rounding = True  # for the mean of policies without restriction

    def unsupported_reason(self, spec: ProblemSpec) -> str | None:
        """Return why CADP cannot solve the problem with these options; None if it can."""
        policy_class, objective = spec.policy_class, spec.objective
        if policy_class.uses_belief:
            return "its policies keep no belief"
        if not objective.is_mean:
            return spec.reason_if_sharded(f"objective {objective}")
        if policy_class.is_restricted or not policy_class.is_action_mask:
            return spec.reason_if_sharded(f"a {policy_class.name} policy")
        return None

    def estimate_bytes(self, spec: ProblemSpec) -> int:
        """Estimate the memory of a solve in bytes, with weights kept in windows of time."""
        n_bytes, n_steps = super().estimate_bytes(spec), spec.planning_horizon
        if spec.objective.is_mean:  # weights in windows, if those of all times do not fit
            return n_bytes * min(n_steps, 2 * math.isqrt(n_steps) + 2) // n_steps
        n_bytes *= spec.model.n_models if spec.model.is_switching else 1  # for single changes
        by_action = spec.policy_class.randomized and not spec.is_infinite_horizon  # by action too
        return n_bytes * (spec.model.n_actions if by_action else 1)

    def choose_n_init(self, problem: Problem) -> InitCount:
        """Return the number of initial policies: 1 for one model, another init or paper sweeps."""
        is_single = problem.n_models == 1 or self.init != "wsu" or self.sweep_type == "paper"
        return 1 if self.n_init == "auto" and is_single else self.n_init

    def estimate_passes(self, problem: Problem, horizon: int) -> float:
        """Estimate the passes of all ascents."""
        n_init, passes = self.choose_n_init(problem), MarkovSpace.estimate_passes
        if n_init == "auto":
            n_init = default_n_init(
                MarkovSpace.init_names, lambda name: problem.estimate_seconds(horizon, passes(name))
            )
        named = pad_init_names(MarkovSpace.init_names, min(n_init, len(MarkovSpace.init_names)))
        return sum(map(passes, named)) + (n_init - len(named)) * passes("other")

    def run(self, context: SolveContext) -> MethodResult:
        """Search the policy class of the context; return the best local optimum."""
        policy_class, space = context.policy_class, make_space(context, self.sweep_type)
        is_infinite = policy_class.is_infinite_horizon
        if type(policy_class) is Stationary if is_infinite else not policy_class.is_restricted:
            result = self._search_space(context, space)
            if isinstance(policy_class, Memory) and policy_class.max_nodes > 1:
                return controllers.grow_controller(
                    context, result, tol=self.tol, max_sweeps=self.max_iter
                )
            if not is_infinite or "unrestricted_value" in result.details:
                return result
            return add_unrestricted_value(context, result)

        @functools.cache
        def solve_unrestricted() -> MethodResult:
            """Solve without the restriction, as an initial policy and for the restriction cost."""
            subcontext = context.unrestricted_context()
            result = self._search_space(subcontext, make_space(subcontext, self.sweep_type))
            context.details["unrestricted_value"] = context.objective_value(result.required_returns)
            return result

        if isinstance(space, TreeSpace):
            tol = self.tol * context.return_span
            multistart = MultiStart(space, self.init, tol=tol, max_sweeps=self.max_iter)
            result = grow_tree(multistart, solve_unrestricted)
            table_result = result.replace(policy=result.policy.table)
            return add_unrestricted_value(context, table_result, solve_unrestricted).replace(
                policy=result.policy
            )
        result = self._search_space(context, space, solve_unrestricted)
        return add_unrestricted_value(context, result, solve_unrestricted)

    def _search_space(
        self,
        context: SolveContext,
        space: SearchSpace,
        solve_unrestricted: Callable[[], MethodResult] | None = None,
    ) -> MethodResult:
        """Run the multistart search in a space; randomize the result if asked.

        ``solve_unrestricted`` is given if the class leaves out policies.
        """
        n_init, policy_class = self.choose_n_init(context.problem), context.policy_class
        is_default = context.problem.n_models == 1 == n_init and self.init == "wsu"
        F, is_infinite = context.objective, policy_class.is_infinite_horizon
        has_pass = F.is_monotone if is_infinite else F.is_mean  # with nothing left to improve
        if is_default and has_pass and solve_unrestricted is None:
            return _solve_single_model(context)
        tol = self.tol * context.return_span
        result = MultiStart(space, self.init, n_init, tol, self.max_iter, solve_unrestricted).run()
        return solve_randomized(context, result) if policy_class.randomized else result


def _solve_single_model(context: SolveContext) -> MethodResult:
    """Return the optimum of the only model, by backward induction or by policy iteration."""
    details: Details = {"n_sweeps": 1, "sweep_type": "none"}
    if not context.is_infinite_horizon:
        result = WSU().run(context)
        return result.replace(status=Status.OPTIMAL, details=details, covers_unreachable=True)
    optima = context.model_optima
    row, returns = optima.actions[0], context.compute_returns(optima.actions[0])
    value = context.objective_value(returns)
    context.record(row, value, is_last=True)
    details["unrestricted_value"] = value
    status = Status.LOCAL_OPTIMUM if optima.is_complete else Status.TIME_LIMIT
    return MethodResult(row, status, 1, returns=returns, details=details)


# ---------------------------------------------------------------------- the restriction cost
def add_unrestricted_value(
    context: SolveContext,
    result: MethodResult,
    solve_unrestricted: Callable[[], MethodResult] | None = None,
) -> MethodResult:
    """Add the value of an unrestricted policy to the details of a result.

    That is the better of what ``solve_unrestricted`` finds and of an ascent from the restricted
    policy, so the restriction never seems to gain. Trees of all sizes are compared with the same
    policy: an ascent starts from one of them only if it is better. If the time is up, what is known
    by then must suffice.
    """
    values, is_linear, init = [], context.objective.is_mean, result.policy
    if is_randomized(result.policy) and not is_linear:  # a free one that draws is not known
        context.details.pop("unrestricted_value", None)
        return result
    try:
        if solve_unrestricted is not None:
            unrestricted = solve_unrestricted()
            values.append(context.objective_value(unrestricted.required_returns))
            is_better = values[0] >= context.objective_value(result.required_returns)
            if is_better and context.policy_class.uses_growth:
                init = unrestricted.policy
        if not context.is_infinite_horizon:
            space = MarkovSpace(context.unrestricted_context())
            values.append(space.ascend(init, callback=lambda *_: context.check_time()).value)
        elif is_linear:
            values.append(_ascend_markov_prefix(context, init))
    except TimeUp:  # the policy that was asked for is complete
        pass
    details = {**context.details, **result.details}
    if values:
        details["unrestricted_value"] = max(values)
    return result.replace(details=details)


def _ascend_markov_prefix(context: SolveContext, row: PolicyTable) -> float:
    """Compute the value of a policy that is Markov for some steps and then follows the row.

    Its ascent starts from the rule, and both values are exact, so it is never below the rule,
    however few the steps are.
    """
    context.check_time()
    seconds = min(COMPARISON_SECONDS, context.stopwatch.time_left)
    max_horizon = int(seconds / context.problem.estimate_seconds(1, 2 * ASCENT_PASSES))
    T = max(1, min(context.horizon, max_horizon))
    terminal_values = np.ascontiguousarray(context.infinite_horizon.compute_values(row).T)
    prepared = context.prepared.replace(terminal=terminal_values, horizon=T)
    local_optima = prepared.ascend(
        [np.repeat(row[None], T, axis=0), None],
        sweep_type=choose_sweep_type(context),
        callback=lambda *_: context.check_time(),
    )
    context.details["comparison_horizon"] = T
    return max(optimum.value for optimum in local_optima)
