"""Conformance tests for backends and methods, the package's and your own.

``check_backend(backend)`` compares a backend with the numpy specification on every storage and
shape; ``check_method(method)`` checks what a Solution promises. Both raise an
AssertionError that says what differs. ``make_random_model`` makes tiny instances;
``compute_plain_returns``, ``find_best_markov_value`` and ``find_best_history_value`` are slow
and independent of the backends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels import Backend, Problem
from mmdp.core.kernels.controller import Controller
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)
from mmdp.core.kernels.problem import ActionChoice, ModelPairs, PolicyTable, at_time
from mmdp.core.methods import Method, Progress
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy
from mmdp.core.solution import Solution, Status
from mmdp.core.solve import solve
from mmdp.core.timing import TimeUp
from mmdp.core.transitions import StorageOption

__all__ = [
    "check_backend",
    "check_method",
    "compute_mean_returns",
    "compute_plain_returns",
    "compute_returns",
    "enumerate_policies",
    "find_best_history_value",
    "find_best_markov_value",
    "make_random_event_model",
    "make_random_model",
]

Array = npt.NDArray[np.float64]


def make_random_model(
    seed: int,
    *,
    n_models: int | None = None,
    n_states: int | None = None,
    n_actions: int | None = None,
    horizon: int | None = None,
    has_masks: bool | None = None,
    discount: float | None = None,
    storage: StorageOption = "auto",
) -> MMDP:
    """Make a small random MMDP: sparse rows, skewed weights, masks, sometimes time-varying.

    What is not given is drawn from the seed; ``horizon=0`` makes it stationary.

    >>> make_random_model(3).n_models == make_random_model(3).n_models
    True
    """
    rng = np.random.default_rng(seed)
    M, S, A = (
        int(size if size is not None else rng.integers(low, high))
        for size, low, high in ((n_models, 1, 7), (n_states, 1, 6), (n_actions, 1, 5))
    )
    if horizon is None:
        horizon = int(rng.integers(1, 6)) if rng.random() < 0.4 else 0
    T = max(horizon, 1)
    has_masks = bool(rng.random() < 0.5) if has_masks is None else has_masks
    p = rng.gamma(0.5, size=(T, M, S, A, S)) * (rng.random((1, 1, S, A, S)) < 0.7)
    p[..., 0] += 1e-3
    p /= p.sum(axis=-1, keepdims=True)
    allowed = np.ones((S, A), dtype=bool)
    if has_masks:
        allowed = rng.random((S, A)) < 0.7
        allowed[np.arange(S), rng.integers(0, A, S)] = True
    r = rng.normal(size=(T, M, S, A)) * rng.choice([1.0, 100.0])
    return MMDP(
        p if horizon else p[0],
        r if horizon else r[0],
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.0, 0.5, 0.9, 1.0])) if discount is None else discount,
        terminal=rng.normal(size=(M, S)) if rng.random() < 0.5 else None,
        allowed=allowed,
        storage=storage,
    )


def make_random_event_model(seed: int) -> MMDP:
    """Make a small random MMDP with exogenous events, masks, and sometimes time variation.

    >>> make_random_event_model(3).storage
    'events'
    """
    rng = np.random.default_rng(seed)
    M, S, A, W, C, K = (int(rng.integers(1, high)) for high in (20, 6, 4, 5, 4, 3))
    T = int(rng.integers(2, 6)) if rng.random() < 0.4 else 1

    def sample_n_times() -> int:
        return T if rng.random() < 0.7 else 1

    event_probs = rng.gamma(0.5, size=(sample_n_times(), K, W, M)) * (rng.random((K, W, 1)) < 0.8)
    event_probs[:, :, 0] += 1e-3
    allowed = rng.random((S, A)) < 0.7
    allowed[np.arange(S), rng.integers(0, A, S)] = True
    events = ExogenousEvents(
        rng.integers(0, S, (sample_n_times(), S, A, W, C)),
        event_probs / event_probs.sum(axis=2, keepdims=True),
        distribution_id=rng.integers(0, K, (sample_n_times(), S, A)) if K > 1 else None,
        corner_weights=rng.dirichlet(np.ones(C), (sample_n_times(), S, A, W)) if C > 1 else None,
    )
    event_rewards = events.make_rewards(rng.normal(size=(sample_n_times(), S, A, W)))
    model_rewards = rng.normal(size=(T, M, S, A)[int(rng.random() < 0.5) :])
    return MMDP(
        events,
        event_rewards if seed % 2 else model_rewards,
        initial=rng.dirichlet(np.ones(S)),
        weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.5, 0.9, 1.0])),
        terminal=rng.normal(size=(M, S)),
        allowed=allowed if rng.random() < 0.5 else None,
    )


def compute_plain_returns(model: MMDP, policy: MarkovPolicy) -> Array:
    """Compute the returns (M,) of a policy by a forward pass with whole matrices."""
    P, r = model.transitions, model.rewards
    P, r = P if P.ndim == 5 else P[None], r if r.ndim == 4 else r[None]
    returns, factor = np.zeros(model.n_models), 1.0
    d = np.broadcast_to(model.problem.initial.T, (model.n_models, model.n_states))
    policy_actions = slice(policy.n_actions)
    for t, pi in enumerate(policy.probabilities):
        occupancy = d[:, :, None] * pi
        returns += factor * (
            occupancy * np.where(occupancy > 0, at_time(r, t)[..., policy_actions], 0)
        ).sum(axis=(1, 2))
        d = np.einsum("msa,msaz->mz", occupancy, at_time(P, t)[:, :, policy_actions])
        factor *= model.discount
    return returns + factor * (d * model.terminal).sum(axis=1)


# ------------------------------------------------------------------ brute force
def enumerate_policies(model: MMDP, horizon: int) -> npt.NDArray[np.int64]:
    """List the actions (N, T, S) of all deterministic Markov policies of a tiny model."""
    choices = [np.flatnonzero(row) for row in model.allowed] * horizon
    return np.array(list(itertools.product(*choices))).reshape(-1, horizon, model.n_states)


def compute_returns(model: MMDP, actions: npt.NDArray[np.integer]) -> Array:
    """Compute the returns (N, M) of policies (N, T, S) by a forward pass."""
    x, s = model.problem, np.arange(model.n_states)
    d = np.broadcast_to(x.initial, (len(actions), x.n_states, x.n_models))
    total, factor = np.zeros((len(actions), x.n_models)), 1.0
    for t in range(actions.shape[1]):
        a = actions[:, t]
        total = total + factor * (d * at_time(x.r, t)[s, a]).sum(axis=1)
        d = np.einsum("nsm,nszm->nzm", d, _to_dense_transitions(x, t)[s, a])
        factor *= x.discount
    return total + factor * (d * x.terminal).sum(axis=1)


def compute_mean_returns(model: MMDP, actions: npt.NDArray[np.integer]) -> Array:
    """Compute the mean returns (N,) of policies (N, T, S)."""
    values: Array = compute_returns(model, actions) @ model.weights
    return values


def find_best_markov_value(model: MMDP, horizon: int) -> float:
    """Compute the optimal Markov value of a tiny model by trying every deterministic policy.

    >>> one = MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> find_best_markov_value(one, 2)
    6.0
    """
    return float(compute_mean_returns(model, enumerate_policies(model, horizon)).max())


def find_best_history_value(model: MMDP, horizon: int) -> float:
    """Compute the optimal value of history-dependent policies by the whole tree of beliefs.

    >>> tiny = make_random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    >>> round(find_best_history_value(tiny, 3), 3), round(find_best_markov_value(tiny, 3), 3)
    (0.66, 0.557)
    """
    x = model.problem

    def compute_best_value(t: int, s: int, belief: Array) -> float:
        """Compute the value of a belief (M,): model weights times the history probability."""
        if t == horizon:
            return float(belief @ x.terminal[s])
        p, best_value = _to_dense_transitions(x, t)[s], -np.inf
        for a in np.flatnonzero(at_time(x.allowed, t)[s]):
            value = float(belief @ at_time(x.r, t)[s, a])
            for next_state in range(x.n_states):
                next_belief = belief * p[a, next_state]
                if next_belief.any():
                    value += x.discount * compute_best_value(t + 1, next_state, next_belief)
            best_value = max(best_value, value)
        return best_value

    return float(
        sum(compute_best_value(0, s, b) for s, b in enumerate(x.initial * x.weights) if b.any())
    )


def _to_dense_transitions(problem: Problem, t: int) -> Array:
    """Get the transitions (S, A, S', M) at time t."""
    full = np.zeros((problem.n_states * problem.n_actions, problem.n_states, problem.n_models))
    full[problem.get_entry_rows(), problem.indices] = at_time(problem.p, t)
    return full.reshape(problem.n_states, problem.n_actions, problem.n_states, problem.n_models)


# ------------------------------------------------------------------ kernels
def check_backend(
    backend: Backend, *, seeds: Iterable[int] = range(30), rtol: float = 1e-9
) -> None:
    """Compare a backend with the numpy specification on every storage, mask and time shape.

    Its plans need ``expect`` and ``push`` alone. Some models change, some have initial
    distributions of their own.

    >>> from mmdp.core import kernels
    >>> check_backend(kernels.get_backend("numpy"), seeds=[0, 1])
    """
    for seed in seeds:
        base_model = make_random_model(seed)
        table_models = (_change_storage(base_model, storage) for storage in ("dense", "sparse"))
        for model in (*table_models, make_random_event_model(seed)):
            model = with_model_initials(model, seed) if seed % 3 == 1 else model
            horizon = model.horizon or 1 + seed % 7
            fixed_case = BackendCase(backend, model, horizon, seed=seed, rtol=rtol)
            fixed_case.check_operator()
            fixed_case.check_bounds()
            cases = [fixed_case]
            if seed % 3 == 0:
                cases.append(
                    BackendCase(backend, make_switching(model, seed), horizon, seed=seed, rtol=rtol)
                )
            for case in cases:
                case.check_passes()
                case.check_ascents()
                case.check_controllers()
                case.check_episodes()


def _change_storage(model: MMDP, storage: StorageOption) -> MMDP:
    """Convert a model to the other storage format."""
    return MMDP(
        model.transitions,
        model.rewards,
        initial=model.initial,
        weights=model.weights,
        discount=model.discount,
        terminal=model.terminal,
        allowed=model.allowed,
        storage=storage,
    )


def make_switching(model: MMDP, seed: int) -> MMDP:
    """Add a random chain of model transitions to a model."""
    rng = np.random.default_rng(seed + 8)
    model_transitions = rng.dirichlet(np.ones(model.n_models), model.n_models)
    return model.replace(model_transitions=model_transitions)


def with_model_initials(model: MMDP, seed: int) -> MMDP:
    """Give each model a random initial distribution over some of the states.

    >>> with_model_initials(make_random_model(1, n_models=4, n_states=3), 1).initial.shape
    (4, 3)
    """
    rng = np.random.default_rng(seed + 10)
    initial = rng.dirichlet(np.ones(model.n_states), model.n_models)
    initial[rng.random(initial.shape) < 0.3] = 0.0
    initial[:, 0] += 1e-3
    return model.replace(initial=initial / initial.sum(axis=1, keepdims=True))


def make_random_controller(problem: Problem, horizon: int, n_nodes: int, seed: int) -> Controller:
    """Make a random controller with this many nodes and allowed actions."""
    rng, shape = np.random.default_rng(seed + 5), (horizon, problem.n_states, n_nodes)
    scores = (
        rng.random((*shape, problem.n_actions)) * _broadcast_allowed(problem, horizon)[:, :, None]
    )
    node_transitions = rng.integers(0, n_nodes, (*shape, problem.n_states))
    initial_nodes = rng.integers(0, n_nodes, problem.n_states)
    return Controller(
        scores.argmax(axis=3).astype(np.int32),
        node_transitions.astype(np.uint8),
        initial_nodes.astype(np.uint8),
    )


def _restrict_by_time(problem: Problem, horizon: int, seed: int) -> Problem:
    """Allow random actions by time in the problem, for half of the seeds."""
    rng = np.random.default_rng(seed + 2)
    if seed % 2:
        return problem
    mask = (rng.random((horizon, problem.n_states, problem.n_actions)) < 0.7) & problem.allowed
    has_no_action = ~mask.any(axis=2)
    mask[has_no_action] = np.broadcast_to(problem.allowed, mask.shape)[has_no_action]
    return problem.restrict_actions(mask)


def _broadcast_allowed(problem: Problem, horizon: int) -> npt.NDArray[np.bool_]:
    """Broadcast the allowed actions to (T, S, A)."""
    return np.broadcast_to(problem.allowed, (horizon, problem.n_states, problem.n_actions))


def _make_random_policies(problem: Problem, horizon: int, seed: int) -> tuple[PolicyTable, Array]:
    """Make a random deterministic policy (T, S) and a randomized one (T, S, A)."""
    rng = np.random.default_rng(seed + 1)
    p = rng.random((horizon, problem.n_states, problem.n_actions)) * problem.allowed
    actions = p.argmax(axis=2).astype(np.int32)
    p[rng.random(p.shape) < 0.2] *= 1e-3
    return actions, p / p.sum(axis=2, keepdims=True)


def _make_random_pairs(problem: Problem, rng: np.random.Generator) -> list[ModelPairs]:
    """Make random pairs of models on several grids, and pairs of a model with itself."""
    order, half = rng.permutation(problem.n_models), problem.n_models // 2
    first, second = order[:half].copy(), order[half : 2 * half].copy()
    grids = [ModelPairs(first, second, reach, width) for reach, width in ((3, 0.5), (8, 0.1))]
    return [*grids, ModelPairs(order, order, 0, 1.0)]


class BackendCase:
    """A model on which a backend is compared with the specification, one group at a time.

    >>> from mmdp.core import kernels
    >>> model = make_random_model(3)
    >>> BackendCase(kernels.get_backend("numpy"), model, model.horizon or 4).check_passes()
    """

    def __init__(
        self, backend: Backend, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
    ) -> None:
        self.backend, self.model, self.horizon, self.seed = backend, model, horizon, seed
        self.rtol, self.description = rtol, f"{backend.name}, seed {seed}, {model!r}"
        self.problem = _restrict_by_time(model.problem, horizon, seed)
        self.reference_problem, self.tested_problem = (
            k.prepare(self.problem, horizon) for k in (NumpyBackend(), backend)
        )
        self.actions, self.probabilities = _make_random_policies(self.problem, horizon, seed)

    def check(self, condition: npt.ArrayLike, message: str) -> None:
        """Raise AssertionError with the message and the case unless all conditions hold."""
        assert np.all(condition), f"{message} ({self.description})"

    def check_close(self, actual: object, expected: object, name: str) -> None:
        """Check that two arrays, or numbers, are equal up to rounding."""
        actual, expected = np.asarray(actual), np.asarray(expected)
        self.check(
            actual.shape == expected.shape,
            f"{name}: shape {actual.shape} instead of {expected.shape}",
        )
        is_finite = np.isfinite(expected)
        is_same_kind = np.isfinite(actual) == is_finite
        self.check(
            is_same_kind & (is_finite | (actual == expected)), f"{name}: other entries are infinite"
        )
        scale = max(1.0, float(np.abs(expected[is_finite]).max(initial=0.0)))
        max_difference = float(np.abs(actual[is_finite] - expected[is_finite]).max(initial=0.0))
        self.check(max_difference <= self.rtol * scale, f"{name}: differs by {max_difference:g}")

    def check_operator(self) -> None:
        """Check the single steps of the operator, for models that switch too."""
        problem, horizon, rng = (
            self.model.problem,
            self.horizon,
            np.random.default_rng(self.seed + 6),
        )
        shape, (actions, probabilities) = (
            (problem.n_states, problem.n_models),
            _make_random_policies(problem, horizon, self.seed),
        )
        for variant in (problem, make_switching(self.model, self.seed).problem):
            prepared, model_transitions = (
                self.backend.prepare(variant, horizon),
                variant.push_models(np.eye(problem.n_models)),
            )
            for t in range(min(horizon, 2)):
                v, b, P = (
                    rng.normal(size=shape),
                    rng.random(shape),
                    _to_dense_transitions(problem, t),
                )
                expected = np.einsum("sazm,zm->sam", P, v @ model_transitions.T)
                allowed = at_time(problem.allowed, t)  # nothing is said about other rows
                self.check_close(prepared.expect_next(t, v)[allowed], expected[allowed], "expect")
                q = at_time(problem.r, t) + problem.discount * expected
                self.check_close(prepared.q_step(t, v)[allowed], q[allowed], "step")
                for row in (actions[t], probabilities[t]):
                    pi = np.eye(problem.n_actions)[row] if row.ndim == 1 else row
                    pushed_weights = np.einsum("sa,sazm,sm->zm", pi, P, b) @ model_transitions
                    self.check_close(prepared.push_forward(t, b, row), pushed_weights, "push")
            s = int(rng.integers(problem.n_states))
            a = int(rng.choice(np.flatnonzero(at_time(problem.allowed, 0)[s])))
            row, full = prepared.get_row(0, s, a), np.zeros(shape)
            full[row.next_states] = row.p
            self.check_close(full, _to_dense_transitions(problem, 0)[s, a], "rows")
            lam, r, terminal = (
                problem.weights[::-1],
                np.asarray(problem.r)[:, ::-1],
                problem.terminal + 1.0,
            )
            replaced_problem = prepared.replace(weights=lam, rewards=r, terminal=terminal)
            new_problem = prepared.problem._replace(weights=lam, r=r, terminal=terminal)
            expected_problem = self.backend.prepare(new_problem, horizon)
            first_values, expected_values = (
                variant_prepared.backward("policy", policy=actions).first_values
                for variant_prepared in (replaced_problem, expected_problem)
            )
            self.check_close(first_values, expected_values, "but")
            self.check_close(
                replaced_problem.forward(probabilities),
                expected_problem.forward(probabilities),
                "but, forward",
            )

    def check_passes(self) -> None:
        """Check the forward pass and every choice of backward pass."""
        for policy in (self.actions, self.probabilities):
            b = self.reference_problem.forward(policy)
            self.check_close(self.tested_problem.forward(policy), b, "model weights b")
            self._check_backward("policy", policy=policy, keep=("values", "q"))
            self._check_backward(
                "policy", policy=policy, weights=b, keep=("values", "q", "gradient")
            )
            self._check_backward("policy", policy=policy, keep=("actions",))
        b = self.reference_problem.forward(self.actions)
        for weights, incumbent in (
            (self.problem.prior_weights(), None),
            (b, self.actions),
            (b, None),
        ):
            self._check_backward("weighted", weights=weights, policy=incumbent, keep=("values",))
        self._check_backward("per_model", keep=("actions",))
        minimal_pass = self.tested_problem.backward("per_model")
        self.check(minimal_pass.actions is None, "actions kept unasked")
        self.check(minimal_pass.values is None, "values kept unasked")

    def _check_backward(self, choice: ActionChoice, **options: Any) -> None:
        """Compare a backward pass of both backends, in all that it keeps."""
        actual, expected = (
            prepared.backward(choice, **options)
            for prepared in (self.tested_problem, self.reference_problem)
        )
        for name in ("first_values", "values", "gradient", "q"):
            a, b = getattr(actual, name), getattr(expected, name)
            self.check((a is None) == (b is None), f"{choice}: {name} kept or not")
            if a is not None:
                self.check_close(a, b, f"{choice}: {name}")
        if expected.actions is None:
            return
        actions = actual.actions
        assert actions is not None, f"{choice}: no actions ({self.description})"
        self.check(actions.shape == expected.actions.shape, f"{choice}: shape")
        if choice == "per_model":  # ties differ: actions must attain the values
            q = self.reference_problem.backward(choice, keep=("values", "q"))
            attained_values = np.take_along_axis(q.q, actions[:, :, None].astype(np.int64), 2)[
                :, :, 0
            ]
            self.check_close(attained_values, q.values[:-1], "per_model: values of the actions")
        else:
            self.check(actions == expected.actions, f"{choice}: actions")

    def check_ascents(self) -> None:
        """Check the ascents of CADP: both sweep types and all inits."""
        cases: list[tuple[str, dict[str, float]]] = [
            ("two-way", {}),
            ("paper", {}),
            ("two-way", {"max_sweeps": 1}),
            ("paper", {"tol": 0.05}),
            ("paper", {"max_sweeps": 0}),
        ]
        for sweep_type, limits in cases:
            self._check_ascent(f"ascend, {sweep_type}", {"sweep_type": sweep_type, **limits})

        def raise_time_up(policy: PolicyTable, value: float) -> None:
            raise TimeUp

        try:
            self.tested_problem.ascend([None], callback=raise_time_up)
        except TimeUp:
            return
        self.check(False, "an exception of the callback is lost")

    def _check_ascent(self, name: str, options: dict[str, Any]) -> None:
        """Compare the ascents of both backends from several inits, and their callbacks."""
        x, reference_problem, inits = (
            self.problem,
            self.reference_problem,
            [None, self.actions, self.probabilities],
        )
        reported_policies: list[tuple[PolicyTable, float]] = []

        def record(policy: PolicyTable, value: float) -> None:
            reported_policies.append((policy.copy(), value))

        results = self.tested_problem.ascend(iter(inits), callback=record, **options)
        expected_results = reference_problem.ascend(inits, **options)
        self.check(len(results) == len(expected_results), f"{name}: one result for each init")
        for policy, value in reported_policies:
            exact_value = (
                x.compute_returns(reference_problem.backward("policy", policy=policy).first_values)
                @ x.weights
            )
            self.check_close(value, exact_value, f"{name}: value of a policy given to the callback")
        highest, best = (
            max(value for _, value in reported_policies),
            max(result.value for result in results),
        )
        self.check_close(highest, best, f"{name}: best unseen")
        for result, expected_result in zip(results, expected_results, strict=True):
            self.check(
                result.stop_reason == expected_result.stop_reason,
                f"{name}: ends by {result.stop_reason}, not {expected_result.stop_reason}",
            )
            sweeps_text = f"{result.n_sweeps} sweeps, not {expected_result.n_sweeps}"
            self.check(result.n_sweeps == expected_result.n_sweeps, f"{name}: {sweeps_text}")
            self.check_close(result.trace, expected_result.trace, f"{name}: trace")
            self.check_close(result.returns, expected_result.returns, f"{name}: returns")
            initial_values = reference_problem.backward("policy", policy=result.policy).first_values
            self.check_close(
                result.returns, x.compute_returns(initial_values), f"{name}: returns of its policy"
            )
            actions = result.policy[:, :, None].astype(np.int64)
            is_allowed = np.take_along_axis(_broadcast_allowed(x, self.horizon), actions, 2)
            self.check(is_allowed, f"{name}: an action that is not allowed")

    def check_controllers(self) -> None:
        """Check the passes over states and nodes of random controllers."""
        prepared_problems = self.tested_problem, self.reference_problem
        controller = make_random_controller(
            self.problem, self.horizon, 1 + self.seed % 4, self.seed
        )
        for sweep in range(3):
            original_controller = controller.copy()
            weights, b = (
                prepared.compute_node_weights(controller)[1] for prepared in prepared_problems
            )
            self.check_close(weights, b, "controllers: weights")
            actual, expected = (
                prepared.compute_node_values(controller, keep_values=True)
                for prepared in prepared_problems
            )
            self.check_close(actual.returns, expected.returns, "controllers: returns")
            self.check_close(actual.values, expected.values, "controllers: values")
            if sweep == 1:
                improvements: list[tuple[Controller, Array]] = [
                    prepared.compute_node_weights(controller, expected.values)
                    for prepared in prepared_problems
                ]
            else:
                improvements = [
                    prepared.compute_node_values(controller, b)[:2]
                    for prepared in prepared_problems
                ]
            (actual_controller, actual_values), (expected_controller, expected_values) = (
                improvements
            )
            self.check_close(
                actual_values, expected_values, f"controllers: improved, sweep {sweep}"
            )
            for name in controller._fields:
                actual_field, expected_field, current_field, original_field = (
                    getattr(c, name)
                    for c in (
                        actual_controller,
                        expected_controller,
                        controller,
                        original_controller,
                    )
                )
                self.check(
                    actual_field == expected_field, f"controllers: improved {name}, sweep {sweep}"
                )
                self.check(current_field == original_field, f"controllers: {name} changed in place")
            controller = expected_controller

    def check_bounds(self) -> None:
        """Check the passes of upper bounds, with multipliers and without."""
        x, tested_problem, reference_problem = (
            self.problem,
            self.tested_problem,
            self.reference_problem,
        )
        rng, reach = np.random.default_rng(self.seed + 3), reference_problem.compute_visit_bounds()
        states = rng.permutation(x.n_states)[: max(1, x.n_states // 2)]
        for name, actual, expected_array in zip(
            ("L", "B"), tested_problem.compute_visit_bounds(), reach, strict=True
        ):
            self.check_close(actual, expected_array, f"compute_visit_bounds: {name}")
        for name, actual, expected_array in zip(
            ("L", "B"), tested_problem.compute_visit_bounds(states), reach, strict=True
        ):
            self.check_close(
                actual, expected_array[:, states], f"compute_visit_bounds: {name} of some states"
            )
        shape = (self.horizon, x.n_states, x.n_actions, x.n_models)
        y = rng.normal(size=shape) * (rng.random(shape) < rng.choice([0.3, 1.0]))
        y *= rng.random((*shape[:2], 1, 1)) < 0.7  # some states without prices
        for multipliers in (None, y):
            self._check_groups(_make_random_pairs(x, rng), multipliers)
        (common_value, maximizers), (expected_value, expected_maximizers) = (
            prepared.compute_common_term(y, reach)
            for prepared in (tested_problem, reference_problem)
        )
        self.check_close(common_value, expected_value, "compute_common_term: H")
        self.check(maximizers == expected_maximizers, "compute_common_term: maximiser")
        u, d = (
            np.zeros(shape),
            rng.normal(size=shape) * _broadcast_allowed(x, self.horizon)[:, :, :, None],
        )
        reference_problem.compute_weighted_optima(y, u)
        direction = d.copy()
        inner_product = tested_problem.update_direction(
            y, u, expected_maximizers, reach, 0.7, direction
        )
        expected = reference_problem.update_direction(y, u, expected_maximizers, reach, 0.7, d)
        self.check_close(direction, d, "update_direction: direction")
        self.check_close(inner_product, expected, "update_direction: inner product")

    def _check_groups(self, pairs: list[ModelPairs], multipliers: Array | None) -> None:
        """Check the values of single models and of pairs, and their occupancies."""
        x = self.problem
        for group in (None, *pairs):
            name, results = (
                "compute_weighted_optima" if group is None else "compute_pair_optima",
                [],
            )
            for prepared in (self.tested_problem, self.reference_problem):
                occupancy = np.zeros((self.horizon, x.n_states, x.n_actions, x.n_models))
                compute_values = (
                    prepared.compute_weighted_optima
                    if group is None
                    else partial(prepared.compute_pair_optima, group)
                )
                results.append((compute_values(multipliers, occupancy), occupancy))
            (actual_values, actual_occupancy), (expected_values, expected_occupancy) = results
            self.check_close(actual_values, expected_values, name)
            self.check_close(actual_occupancy, expected_occupancy, f"{name}: occupancy")
        self.check_close(
            self.tested_problem.compute_weighted_optima(multipliers),
            self.reference_problem.compute_weighted_optima(multipliers),
            "compute_weighted_optima without u",
        )

    def check_episodes(self) -> None:
        """Check the episodes of every type of planner, and the decisions of a tree search.

        They run in the planner's models and in others, where it can explain some steps only.
        """
        x, horizon, seed = self.problem, self.horizon, self.seed
        other_model = make_random_model(
            seed + 1000,
            n_states=x.n_states,
            n_actions=x.n_actions,
            has_masks=False,
            horizon=horizon if len(x.p) > 1 else 0,
        )
        rng = np.random.default_rng(seed + 4)
        for name, planner in self._make_planners().items():
            for problem in (x, other_model.problem):
                has_next_rewards = (
                    seed % 2 and problem.storage.format != "events"
                )  # these have none
                next_rewards = rng.normal(size=problem.p.shape) if has_next_rewards else None
                n_episodes = 1 if planner.mode == TREE else 3
                prepared_pair = [
                    prepared.prepare(problem, horizon)
                    for prepared in (self.backend, NumpyBackend())
                ]
                actual, expected = (
                    prepared.simulate(next_rewards, planner, n_episodes, seed + 7)
                    for prepared in prepared_pair
                )
                self.check_close(actual[0], expected[0], f"simulate, {name}: returns")
                self.check(actual[1] == expected[1], f"simulate, {name}: steps unexplained")
                if not planner.carries_belief:
                    last_returns = prepared_pair[0].simulate(
                        next_rewards, planner, 1, seed + 7, first_episode=n_episodes - 1
                    )[0]
                    self.check_close(
                        last_returns, expected[0][:, -1:], f"simulate, {name}: a later episode"
                    )
            for s in range(x.n_states if planner.mode == TREE else 0):
                search_args = planner, horizon // 2, s, x.weights, seed + s
                action, expected_action = (
                    prepared.search_action(*search_args)
                    for prepared in (self.tested_problem, self.reference_problem)
                )
                self.check(
                    action == expected_action,
                    f"search_action, {name}: action {action} instead of {expected_action}",
                )

    def _make_planners(self) -> dict[str, PlannerTables]:
        """Make one planner of every type, with the options that change the simulation."""
        x, horizon, reference_problem, actions = (
            self.problem,
            self.horizon,
            self.reference_problem,
            self.actions,
        )
        model_optima = reference_problem.backward("per_model", keep=("q", "actions"))
        values = reference_problem.backward("policy", policy=actions, keep=("values",)).values
        sampled_tables = PlannerTables(SAMPLED, x, model_actions=model_optima.actions)
        max_reward = max(1.0, float(np.abs(np.asarray(x.r)).max()))
        tree = PlannerTables(TREE, x, n_queries=6, exploration=np.full(horizon, max_reward))
        controller = make_random_controller(x, horizon, 3, self.seed)
        return {
            "actions": PlannerTables(ACTIONS, x, actions=actions),
            "probabilities": PlannerTables(PROBABILITIES, x, probabilities=self.probabilities),
            "nodes": PlannerTables(NODES, x, controller=controller),
            "values": PlannerTables(VALUES, x, q=model_optima.q),
            "sampled": sampled_tables,
            "sampled each step, by rewards too": sampled_tables._replace(
                resamples_each_step=True, reward_sd=max_reward
            ),
            "sampled, carried, by rewards alone": sampled_tables._replace(
                carries_belief=True, reward_sd=max_reward, uses_transitions=False
            ),
            "tree with values": tree._replace(values=values),
            "tree with rollouts": tree._replace(values=values, uses_rollout=True, actions=actions),
            "tree at random": tree,
        }


# ------------------------------------------------------------------ methods
def check_method(
    method: str | Method,
    model: MMDP | None = None,
    horizon: int | None = None,
    *,
    seeds: Iterable[int] = range(10),
    backend: str | Backend = "auto",
) -> None:
    """Check a method: exact value, allowed actions, seeds and limits respected.

    Runs on ``model``, or on random models if there is none.

    >>> check_method("wsu", seeds=[0, 1])
    """
    cases = (
        [(model, horizon)] if model is not None else [(make_random_model(s), None) for s in seeds]
    )
    for case, n_steps in cases:
        n_steps = n_steps or case.horizon or 4
        solution = solve(case, n_steps, method, seed=1, backend=backend)
        _check_solution(solution, case, n_steps)
        repeated_solution = solve(case, n_steps, method, seed=1, backend=backend)
        assert repeated_solution.value == solution.value, (
            f"{solution.method} is not reproducible by seed"
        )
        reports: list[Progress] = []
        stopped_solution = solve(
            case, n_steps, method, seed=1, backend=backend, time_limit=1e-9, callback=reports.append
        )
        _check_solution(stopped_solution, case, n_steps)
        best_values = [progress.best_value for progress in reports]
        assert best_values == sorted(best_values), (
            f"{solution.method}: the best value falls in the callback"
        )


def _check_solution(solution: Solution, model: MMDP, horizon: int) -> None:
    """Check the returns, value, status and bound of a solution."""
    name = solution.method
    tolerance = 1e-9 * max(1.0, float(np.abs(solution.returns).max()))
    oracle = solve(model, horizon, "oracle", backend="numpy")
    assert solution.returns.shape == (model.n_models,), f"{name}: one return per model"
    assert abs(solution.value - solution.returns @ model.weights) <= tolerance, f"{name}: value"
    slack = tolerance + 4 * solution.evaluation.stderr
    assert solution.value <= oracle.value + slack, f"{name}: value above Oracle"
    assert isinstance(solution.status, Status), f"{name}: status"
    assert solution.provenance.horizon == horizon, f"{name}: horizon"
    if solution.bound is not None:
        assert solution.value <= solution.bound + tolerance, f"{name}: value above its bound"
    if solution.markov_policy is not None:
        solution.markov_policy.check(model, horizon)
        plain_returns = compute_plain_returns(model, solution.markov_policy)
        max_difference = float(np.abs(solution.returns - plain_returns).max())
        assert max_difference <= tolerance, (
            f"{name}: returns differ from plain evaluation by {max_difference:g}"
        )
        assert max(solution.trace) <= solution.value + tolerance, f"{name}: a better iterate lost"
