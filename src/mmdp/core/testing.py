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
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.kernels import Backend
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.problem import AscentResult, PolicyTable, at_time
from mmdp.core.methods import Method, Progress
from mmdp.core.model import MMDP
from mmdp.core.policies import MarkovPolicy
from mmdp.core.shapes import AnyArray, AnyIntArray, Array, IndexArray
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
    return _push_policies(model, policy.probabilities[None])[0]


def _push_policies(model: MMDP, probabilities: AnyArray) -> Array:
    """Compute the returns (N, M) of policies (N, T, S, A) by a forward pass."""
    x, (n_policies, horizon, _, n_actions) = model.problem, probabilities.shape
    d, rewards = np.broadcast_to(x.initial, (n_policies, *x.terminal.shape)), np.asarray(x.r)
    total, factor, transitions = np.zeros((n_policies, x.n_models)), 1.0, _get_transitions(model)
    for t in range(horizon):
        occupancy = d[:, :, None] * probabilities[:, t, :, :, None]
        total += factor * (occupancy * at_time(rewards, t)[:, :n_actions]).sum(axis=(1, 2))
        P = at_time(transitions, t)[:, :n_actions]
        d = np.einsum("nsam,sazm->nzm", occupancy, P)
        factor *= x.discount
    return total + factor * (d * x.terminal).sum(axis=1)


# ------------------------------------------------------------------ brute force
def enumerate_policies(model: MMDP, horizon: int) -> IndexArray:
    """List the actions (N, T, S) of all deterministic Markov policies of a tiny model."""
    choices = [np.flatnonzero(row) for row in model.allowed] * horizon
    return np.array(list(itertools.product(*choices))).reshape(-1, horizon, model.n_states)


def compute_returns(model: MMDP, actions: AnyIntArray) -> Array:
    """Compute the returns (N, M) of policies (N, T, S) by a forward pass."""
    return _push_policies(model, np.eye(model.n_actions)[actions])


def compute_mean_returns(model: MMDP, actions: AnyIntArray) -> Array:
    """Compute the mean returns (N,) of policies (N, T, S)."""
    return compute_returns(model, actions) @ model.weights


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
    x, transitions = model.problem, _get_transitions(model)

    def compute_best_value(t: int, s: int, belief: Array) -> float:
        """Compute the value of a belief (M,): model weights times the history probability."""
        if t == horizon:
            return float(belief @ x.terminal[s])
        p, best_value = at_time(transitions, t)[s], -np.inf
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


def _get_transitions(model: MMDP) -> Array:
    """Get the transitions (T or 1, S, A, S', M)."""
    transitions = model.transitions if model.horizon else model.transitions[None]
    return np.moveaxis(transitions, 1, -1)


# ------------------------------------------------------------------ backends
def check_backend(
    backend: Backend, *, seeds: Iterable[int] = range(30), rtol: float = 1e-9
) -> None:
    """Compare a backend with the numpy specification on every storage, mask and time shape.

    Its prepared problems need ``expect_next`` and ``push_forward`` alone. Some models change, some
    have initial distributions of their own. What is compiled for every backend (controllers, pairs
    of models, episodes) is not compared.

    >>> from mmdp.core import kernels
    >>> check_backend(kernels.get_backend("numpy"), seeds=[0, 1])
    """
    for seed in seeds:
        for model in (
            make_random_model(seed, storage="dense"),
            make_random_model(seed, storage="sparse"),
            make_random_event_model(seed),
        ):
            model = with_model_initials(model, seed) if seed % 3 == 1 else model
            horizon = model.horizon or 1 + seed % 7
            variants = [model, make_switching(model, seed)] if seed % 3 == 0 else [model]
            for variant in variants:
                case = BackendCase(backend, variant, horizon, seed=seed, rtol=rtol)
                case.check_operator()
                case.check_passes()
                case.check_ascents()
                if variant is model:
                    case.check_bounds()


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
        x = model.problem
        shape = horizon, x.n_states, x.n_actions
        if seed % 2 == 0:  # other actions at other times
            mask = (np.random.default_rng(seed + 2).random(shape) < 0.7) & x.allowed
            mask = np.where(mask.any(axis=2, keepdims=True), mask, x.allowed)
            x = x.restrict_actions(mask)
        self.problem = x
        tables = x._replace(storage=x.storage.to_table(), r=np.asarray(x.r))
        self.tested = backend.prepare(x, horizon)
        self.reference = NumpyBackend().prepare(tables, horizon)
        rng = np.random.default_rng(seed + 1)
        p = rng.random(shape) * x.allowed
        self.actions = p.argmax(axis=2).astype(np.int32)
        p[rng.random(shape) < 0.2] *= 1e-3
        self.probabilities = p / p.sum(axis=2, keepdims=True)

    def check(self, condition: npt.ArrayLike, message: str) -> None:
        """Raise AssertionError with the message and the case unless all conditions hold."""
        assert np.all(condition), f"{message} ({self.description})"

    def check_same(self, actual: Any, expected: Any, name: str) -> None:
        """Check that results are equal, tuples field by field and numbers up to rounding."""
        if isinstance(expected, (tuple, list)):
            is_same_length = isinstance(actual, (tuple, list)) and len(actual) == len(expected)
            self.check(is_same_length, f"{name}: not {len(expected)} results")
            fields = getattr(expected, "_fields", range(len(expected)))
            for field, x, y in zip(fields, actual, expected, strict=True):
                self.check_same(x, y, f"{name}: {field}")
        elif expected is None or actual is None or isinstance(expected, str):
            self.check(actual == expected, f"{name}: {actual}, not {expected}")
        else:
            expected = np.asarray(expected)
            is_rounded = expected.dtype.kind == "f"
            scale = np.abs(expected[np.isfinite(expected)]).max(initial=1.0) * is_rounded
            description = f"{name}: {self.description}"
            np.testing.assert_allclose(actual, expected, 0, self.rtol * scale, False, description)

    def compare(self, method: str, *args: Any, case: str = "", **options: Any) -> Any:
        """Check that a method does what the specification does; return its result."""
        actual, expected = (
            getattr(prepared, method)(*args, **options)
            for prepared in (self.tested, self.reference)
        )
        self.check_same(actual, expected, method + case)
        return expected

    def check_operator(self) -> None:
        """Check the single steps of the operator, and those after numbers are replaced."""
        x, rng = self.problem, np.random.default_rng(self.seed + 6)
        for t in range(min(self.horizon, 2)):
            v, b = rng.normal(size=x.terminal.shape), rng.random(x.terminal.shape)
            allowed = at_time(x.allowed, t)  # nothing is said about other rows
            for method in ("expect_next", "q_step"):
                actual, expected = (
                    getattr(prepared, method)(t, v)[allowed]
                    for prepared in (self.tested, self.reference)
                )
                self.check_same(actual, expected, method)
            for row in (self.actions[t], self.probabilities[t]):
                self.compare("push_forward", t, b, row)
        lam, r, terminal = x.weights[::-1], np.asarray(x.r)[:, ::-1], x.terminal + 1.0
        new_problem = x._replace(weights=lam, r=r, terminal=terminal)
        actual, expected = (
            (
                prepared.backward("policy", policy=self.actions).first_values,
                prepared.forward(self.probabilities),
            )
            for prepared in (
                self.tested.replace(weights=lam, rewards=r, terminal=terminal),
                NumpyBackend().prepare(new_problem, self.horizon),
            )
        )
        self.check_same(actual, expected, "replace")

    def check_passes(self) -> None:
        """Check the forward pass and every choice of backward pass."""
        for policy in (self.probabilities, self.actions):
            b = self.compare("forward", policy)
            for options in (
                {"keep": ("values", "q")},
                {"keep": ("values", "q", "gradient"), "weights": b},
                {"keep": ("actions",)},
            ):
                self.compare("backward", "policy", case=", policy", policy=policy, **options)
        prior = self.problem.prior_weights()
        for weights, incumbent in ((prior, None), (b, self.actions), (b, None)):
            options = {"weights": weights, "policy": incumbent, "keep": ("values",)}
            self.compare("backward", "weighted", case=", weighted", **options)
        name = "backward, per_model"
        self.compare("backward", "per_model", case=", per_model")
        expected = self.reference.backward("per_model", keep=("values", "q"))
        actual = self.tested.backward("per_model", keep=("actions",))
        self.check_same(actual.first_values, expected.first_values, name)
        self.check(np.shape(actual.actions) == expected.values[1:].shape, f"{name}: actions")
        actions = actual.actions[:, :, None].astype(np.int64)  # ties differ
        attained_values = np.take_along_axis(expected.q, actions, 2)[:, :, 0]
        self.check_same(attained_values, expected.values[:-1], f"{name}: values of the actions")

    def check_ascents(self) -> None:
        """Check the ascents of CADP: both sweep types and all inits."""
        for sweep_type, limits in (
            ("two-way", {}),
            ("paper", {}),
            ("two-way", {"max_sweeps": 1}),
            ("paper", {"tol": 0.05}),
            ("paper", {"max_sweeps": 0}),
        ):
            self._check_ascent(f"ascend, {sweep_type}", {"sweep_type": sweep_type, **limits})

        def raise_time_up(policy: PolicyTable, value: float) -> None:
            raise TimeUp

        try:
            self.tested.ascend([None], callback=raise_time_up)
        except TimeUp:
            return
        self.check(False, "an exception of the callback is lost")

    def _check_ascent(self, name: str, options: dict[str, Any]) -> None:
        """Compare the ascents of both backends from several inits, and their callbacks."""
        x, inits = self.problem, [None, self.actions, self.probabilities]
        reports: list[tuple[PolicyTable, float]] = []

        def record(policy: PolicyTable, value: float) -> None:
            reports.append((policy.copy(), value))

        def compute_policy_returns(policy: PolicyTable) -> Array:
            backward_pass = self.reference.backward("policy", policy=policy)
            return x.compute_returns(backward_pass.first_values)

        def without_policy(results: list[AscentResult]) -> list[AscentResult]:  # ties differ
            return [result._replace(policy=None, is_single_precision=False) for result in results]

        results = self.tested.ascend(iter(inits), callback=record, **options)
        expected_results = self.reference.ascend(inits, **options)
        self.check_same(without_policy(results), without_policy(expected_results), name)
        for policy, value in reports:
            exact_value = compute_policy_returns(policy) @ x.weights
            self.check_same(value, exact_value, f"{name}: value of a policy given to the callback")
        best_reported = max(value for _, value in reports)
        self.check_same(best_reported, max(y.value for y in results), f"{name}: best unseen")
        for result in results:
            returns = compute_policy_returns(result.policy)
            self.check_same(result.returns, returns, f"{name}: returns of its policy")
            is_allowed = np.eye(x.n_actions)[result.policy] <= x.allowed
            self.check(is_allowed, f"{name}: an action that is not allowed")

    def check_bounds(self) -> None:
        """Check the bounds of visits and the optima with multipliers, which are passes."""
        x, rng = self.problem, np.random.default_rng(self.seed + 3)
        self.compare("compute_visit_bounds")
        y = rng.normal(size=(self.horizon, *np.shape(x.r)[1:]))
        for multipliers in (None, y):
            self.compare("compute_weighted_optima", multipliers)


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
    for case in map(make_random_model, seeds) if model is None else [model]:
        n_steps = case.horizon or horizon or 4
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
