"""Models without a last decision: exact values by linear algebra, models first.

Without a discount (gamma = 1) episodes must end by themselves: see :mod:`mmdp.core.kernels.proper`.

Symbols besides those of :mod:`mmdp.core.kernels.problem`, for a stationary policy pi:

=========  ======================================================  ==================
P          p_m(s' | s, a)                                          (M, S, A, S')
F          (I - gamma P_m^pi)^-1                                   (M, S, S)
v          F_m r_m^pi, the values                                  (M, S)
d          mu F_m, the discounted visits                           (M, S)
=========  ======================================================  ==================

``InfiniteHorizon.from_problem(problem)`` has full matrices (M, S, A, S) if these fit. Values are
iterated if there are many states.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.cpu.threads import limit_blas_threads
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.kernels.problem import EPS, PolicyTable, Problem
from mmdp.core.kernels.proper import get_proper_info
from mmdp.core.shapes import AnyArray, Array, IndexArray, IntArray, Mask
from mmdp.core.timing import TimeUp

CacheKey = tuple[tuple[int, ...], str, bytes, float]  # shape, dtype, content of a policy; rtol

MAX_MATRIX_BYTES = 2**28  # bytes that P may take; beyond that values are iterated
REL_TOL = 1e-14  # last change of iterated values, relative to the rewards
TAIL_WEIGHT = 1e-4  # weight of what lies beyond the horizon at which planning by time ends
MAX_PLANNING_HORIZON = 1000  # decisions of that horizon at most
MAX_VALUE_BYTES = 2**29  # bytes that values by time, state and model may take there
APPROXIMATION_RTOL = 0.01  # share of an error that is left when values are approximated
MAX_CHANGE_RATIO, BICGSTAB_RTOL = 0.5, 1e-6  # what a correction must and may make of a change
MAX_BICGSTAB_ITER = 64  # of a correction
MAX_ROUNDING_CHANGE = 1000  # times the tolerance: the change at which iterations may stall
MAX_DIRECT_STATES = 256  # states up to which values are found by factorising
BLOCK_MULTIPLY_ADDS = 2**28  # multiply-adds of factorisations between two looks
DIRECT_SPEEDUP = 30  # times that a multiply-add is faster in a factorisation than in an iteration
MAX_ITER_UNDISCOUNTED = 100_000  # iterations until values without a discount are given up


def check_infinite_horizon(
    problem: Problem, n_times: int | None, state_labels: Sequence[str] = ()
) -> None:
    """Raise InputError if the values over an infinite horizon do not exist."""
    if n_times is not None:
        raise InputError(
            f"the model varies over {n_times} time steps, so it has no infinite horizon",
            [Remedy("horizon", n_times), "give rates that do not vary"],
        )
    if reason := problem.reason_if_switching(
        "an infinite horizon is for models that stay as they are"
    ):
        raise InputError(reason, [Remedy("horizon", 50, verb="give a number, for example")])
    if problem.discount == 1:
        get_proper_info(problem, state_labels)


def choose_planning_horizon(problem: Problem) -> int:
    """Choose the finite horizon at which planning by time stands for an infinite one."""
    x = problem
    truncation = find_truncation_horizon(x, TAIL_WEIGHT)[0]
    max_in_memory = MAX_VALUE_BYTES // (8 * x.n_states * x.n_models)
    return max(1, min(truncation, MAX_PLANNING_HORIZON, max_in_memory))


def find_truncation_horizon(problem: Problem, tail_share: float) -> tuple[int, float]:
    """Return a horizon after which at most ``tail_share`` of the weight is left, and that weight.

    An episode of N decisions at most, on average, goes on for e N with probability 1/e at most.
    """
    g = problem.discount
    if g < 1:
        horizon = 1 if g == 0 else math.ceil(math.log(tail_share) / math.log(g))
        return horizon, g**horizon / (1 - g)
    effective_horizon, n_rounds = (
        InfiniteHorizon.from_problem(problem).effective_horizon,
        math.ceil(-math.log(tail_share)),
    )
    return n_rounds * math.ceil(math.e * effective_horizon), math.exp(-n_rounds) * effective_horizon


class ModelOptima(NamedTuple):
    """The optimal policy of each model: actions (M, S) and values (M, S).

    ``error_bound`` (M,): no policy has values that are higher by more than this. If not
    ``is_complete``, the time was up before, and other actions may be better.
    """

    actions: IntArray
    values: Array
    error_bound: Array
    is_complete: bool


class LinearSystem(NamedTuple):
    """The equation x = rhs + gamma P^pi x of a policy for x (M, S), or its transpose.

    Solvers that iterate begin with ``init``, by default with rhs. They end when the error of the
    equation has fallen to a share ``rtol`` of that at the beginning, or to rounding.
    """

    policy: PolicyTable
    rhs: Array
    is_transposed: bool = False
    rtol: float = 0.0
    init: Array | None = None


class InfiniteHorizon:
    """Values of policies that are the same at all times, over an infinite horizon.

    A policy is (S,) actions, (M, S) actions of each model, or (S, A) probabilities.
    ``check_time`` is called every so often and may raise :class:`mmdp.core.timing.TimeUp`.
    Linear systems are solved by iteration on the entries, with all models as one system.
    """

    uses_factorization = False  # whether iterating took too long before
    approximation_rtol = APPROXIMATION_RTOL  # of the values in policy iteration before the last

    def __init__(self, problem: Problem, check_time: Callable[[], object] = lambda: None) -> None:
        self.problem, self.check_time = problem, check_time
        self.last_cache: dict[str, tuple[CacheKey, Array]] = {}  # of the last policy
        self.retained_cache: dict[str, tuple[CacheKey, Array]] = {}
        self.r: Array = np.moveaxis(problem.r[0], 2, 0)  # (M, S, A)
        self.transient: Array = np.ones((1, 1))  # (M, S) 0 where nothing follows
        if problem.discount == 1:
            self.proper_info = get_proper_info(problem)
            self.transient = self.proper_info.transient
            self.r = self.r * self.transient[:, :, None]
            self.problem = problem._replace(r=np.moveaxis(self.r, 0, 2)[None])
        if problem.n_models == 1:
            if isinstance(problem.storage, ExogenousEvents):
                self.problem = self.problem._replace(storage=problem.storage.merged_rows)
            table = self.problem.storage.to_table()
            self.single_matrix = _make_matrix(
                table.p[0, :, 0], table.indices, table.indptr, problem.n_states
            )

    @staticmethod
    def from_problem(
        problem: Problem, check_time: Callable[[], object] = lambda: None
    ) -> InfiniteHorizon:
        """Choose a solver by the size and the storage of a problem."""
        x = problem
        size = 8 * x.n_models * x.n_states**2 * x.n_actions
        is_direct = size <= MAX_MATRIX_BYTES and (x.n_models > 1 or x.n_states <= MAX_DIRECT_STATES)
        return (DirectSolver if is_direct else InfiniteHorizon)(x, check_time)

    def with_clock(self, check_time: Callable[[], object]) -> InfiniteHorizon:
        """Return a copy that calls another ``check_time``."""
        clone = copy.copy(self)
        clone.check_time = check_time
        return clone

    def retain_cache(self) -> None:
        """Keep the cached results of the last policy until the next call."""
        self.retained_cache.update(self.last_cache)

    def compute_values(self, policy: PolicyTable, rtol: float = 0.0) -> Array:
        """Compute the values v (M, S) of a policy, or approximate them; see LinearSystem."""
        rewards = (self._to_probs(policy) * self.r).sum(axis=2)
        return self._get_solution("v", LinearSystem(policy, rewards, rtol=rtol))

    def compute_occupancy(self, policy: PolicyTable) -> Array:
        """Compute the discounted visits d (M, S) of a policy."""
        initial = np.broadcast_to(self.problem.initial.T, self.r.shape[:2])
        return self._get_solution("d", LinearSystem(policy, initial, is_transposed=True))

    def _get_solution(self, name: str, system: LinearSystem) -> Array:
        """Return the solution for the last or a retained policy, else solve from the last one."""
        policy = system.policy
        key = policy.shape, policy.dtype.str, policy.tobytes(), system.rtol
        if name in self.retained_cache and self.retained_cache[name][0] == key:
            self.last_cache[name] = self.retained_cache[name]
        last_key, init = self.last_cache.get(name, (None, None))
        if last_key != key:
            self.last_cache[name] = key, self.solve_linear(system._replace(init=init))
        return self.last_cache[name][1]

    def compute_returns(self, policy: PolicyTable) -> Array:
        """Compute the return (M,) of a policy in every model."""
        return self.problem.compute_returns(self.compute_values(policy).T)

    def compute_model_optima(
        self, allowed: Mask | None = None, init: ModelOptima | None = None
    ) -> ModelOptima:
        """Compute the optimal policy of each model over the allowed actions, by policy iteration.

        Values are approximated as long as max(T v - v), T v = max_a q, falls, and exact from then
        on. For any v at all the optimum is at most v + n max(T v - v), with n the most decisions
        that count. If the time is up, that is proven for the last v.
        """
        feasible = self.problem.allowed[0] if allowed is None else allowed
        m, s = np.indices(self.r.shape[:2])
        r = np.where(feasible, self.r, -np.inf)
        actions = r.argmax(axis=2)
        if init is not None:
            actions = np.where(feasible[s, init.actions], init.actions, actions)
        effective_horizon, last_total = self.effective_horizon, np.full(len(r), -np.inf)
        v, is_expired = (
            np.broadcast_to(effective_horizon * r.max(axis=(1, 2))[:, None], r.shape[:2]),
            False,
        )
        rtol, last_gain = self.approximation_rtol, math.inf
        while True:
            try:
                self.check_time()
                v = self.compute_values(actions, rtol)
            except TimeUp:
                is_expired = True
            q = np.where(feasible, self.compute_q(v), -np.inf)
            best_actions = q.argmax(axis=2)
            best_q, tol = q[m, s, best_actions], self._q_rounding_error() * np.abs(v).max(axis=1)
            is_better = best_q > q[m, s, actions] + tol[:, None]
            gain = np.maximum(best_q - v, 0.0).max(axis=1)
            if rtol == 0:
                # with rounding, following ties or values that do not rise could go in circles
                is_better &= (v.sum(axis=1) > last_total)[:, None]
                last_total = v.sum(axis=1)
            if is_expired or (rtol == 0 and not is_better.any()):
                error_bound = effective_horizon * (gain + tol)
                return ModelOptima(actions.astype(np.int32), best_q, error_bound, not is_expired)
            if not is_better.any() or not gain.max() < last_gain:
                rtol = 0.0
            actions, last_gain = np.where(is_better, best_actions, actions), gain.max()

    def _q_rounding_error(self) -> float:
        """Return the relative rounding error of q."""
        return EPS * (self.problem.storage.max_row_length + 4)

    def rounding_errors(self) -> Array:
        """Bound (M,) the effect of rounding on the return of each model."""
        x = self.problem
        n_terms = (x.n_states + x.n_models) * self.effective_horizon
        return 16 * EPS * n_terms * x.max_abs_returns(math.inf, self.effective_horizon)

    def return_span(self) -> float:
        """Return the range of possible returns; see :meth:`Problem.return_span`."""
        return self.problem.return_span(math.inf, self.effective_horizon)

    @cached_property
    def effective_horizon(self) -> float:
        """The most decisions that count, sum_t gamma^t; those of the longest policy if gamma is 1.

        For any u with u >= 1 - e + P u for every action, u / (1 - e) is such a number.
        """
        x = self.problem
        if x.discount < 1:
            return 1 / (1 - x.discount)
        if self.proper_info.effective_horizon is None:
            step_counter = self.with_clock(lambda: None)  # nothing is known without it
            step_counter.r, step_counter.effective_horizon = np.ones_like(self.r), 0.0
            step_counter.last_cache, step_counter.retained_cache = {}, {}
            u = step_counter.compute_model_optima().values
            q = np.where(x.allowed[0], step_counter.compute_q(u), -np.inf)
            e = float(np.maximum(q.max(axis=2) - u, 0.0).max())
            self.proper_info.effective_horizon = float(u.max()) / (1 - e) if e < 1 else math.inf
        return self.proper_info.effective_horizon

    def _to_probs(self, policy: PolicyTable) -> Array:
        """Convert a policy to action probabilities (M or 1, S, A)."""
        if policy.ndim == 2 and policy.dtype.kind == "f":
            return np.asarray(policy[None], dtype=np.float64)
        return np.eye(self.problem.n_actions)[np.atleast_2d(policy)]

    # ------------------------------------------------------------ by iteration
    @cached_property
    def prepared(self) -> PreparedProblem:
        """The problem of one decision, prepared on the default backend."""
        from mmdp.core.kernels import get_backend

        return get_backend("auto", self.problem, n_passes=MAX_PLANNING_HORIZON).prepare(
            self.problem, 1
        )

    def compute_q(self, v: Array) -> Array:
        """Compute (M, S, A) q = r + gamma P v."""
        if self.problem.n_models == 1:
            expected = (self.single_matrix @ v[0]).reshape(self.r.shape)
        else:
            expected = self.prepared.expect_next(0, np.ascontiguousarray(v.T)).transpose(2, 0, 1)
        return self.r + self.problem.discount * self.transient[:, :, None] * expected

    def solve_linear(self, system: LinearSystem) -> Array:
        """Solve for x (M, S).

        x = rhs + gamma P x is repeated until nothing changes beyond rounding. In between, x moves
        by what BiCGSTAB finds for the last change, if that makes it smaller. A repetition makes the
        change smaller by gamma, in the largest value or, transposed, in the sum.
        """
        storage, S = self.problem.storage, self.problem.n_states
        n_entries = max(1.0, storage.n_entries / self.problem.n_actions)
        max_iter = S**3 / (DIRECT_SPEEDUP * n_entries)
        if self.uses_factorization:
            return self._solve_by_model(system)
        measure, step = np.sum if system.is_transposed else np.max, self._make_step(system)
        exponents = np.frexp(measure(np.abs(system.rhs), axis=1))[1]
        scale = np.ldexp(1.0, exponents)[:, None]  # of each model, or large ones would hide others
        rhs = np.ascontiguousarray((system.rhs / scale).T)
        x = last_x = rhs if system.init is None else np.ascontiguousarray((system.init / scale).T)

        def norm(y: Array) -> float:
            return float(measure(np.abs(y), axis=0).max())

        last_change = previous_change = math.inf
        min_change, is_repetition = REL_TOL * norm(rhs), False
        for n in itertools.count():
            self.check_time()
            if n >= max_iter:
                self.uses_factorization = True
                return self._solve_by_model(system)
            if n >= MAX_ITER_UNDISCOUNTED and self.problem.discount == 1:
                raise _make_improper_error()
            new_x = rhs + step(x)
            change, tol = norm(new_x - x), max(min_change, 4 * EPS * norm(new_x))
            has_stalled = is_repetition and change >= previous_change  # by rounding
            if n == 0:
                min_change = max(min_change, system.rtol * change)
            if change <= (MAX_ROUNDING_CHANGE if has_stalled else 1) * tol:
                return np.ascontiguousarray(new_x.T * scale)
            previous_change, is_repetition = change, change >= MAX_CHANGE_RATIO * last_change
            if not is_repetition:
                last_change, last_x = change, new_x
                x = x + self._compute_correction(step, new_x - x, system.rtol)
            else:
                x = new_x if change < last_change else last_x
        raise AssertionError

    def _make_step(self, system: LinearSystem) -> Callable[[Array], Array]:
        """Make x (S, M) -> gamma P^pi x, or its transpose."""
        policy, M = system.policy, self.problem.n_models
        is_by_model = policy.ndim == 2 and policy.dtype.kind != "f"
        if M == 1 or (is_by_model and system.is_transposed):
            matrices = [self._build_model_matrix(policy, m) for m in range(M)]
            matrices = [A.T if system.is_transposed else A for A in matrices]
            if M == 1:
                return lambda x: (matrices[0] @ x[:, 0])[:, None]
            return lambda x: np.stack([A @ y for A, y in zip(matrices, x.T, strict=True)], 1)
        factor = self.problem.discount * self.transient.T
        if system.is_transposed:
            push = partial(self.prepared.push_forward, 0, policy_row=policy)  # of weights >= 0
            return lambda x: push(factor * np.maximum(x, 0.0)) - push(factor * np.maximum(-x, 0.0))
        if is_by_model:
            actions = policy.T[:, None]
            return lambda x: (
                factor * np.take_along_axis(self.prepared.expect_next(0, x), actions, 1)[:, 0]
            )
        without_rewards = self.prepared.replace(rewards=np.zeros((1, 1, 1, M)), discount=1.0)
        return lambda x: (
            factor
            * without_rewards.replace(terminal=x)
            .backward("policy", policy=policy[None])
            .first_values
        )

    def _solve_by_model(self, system: LinearSystem) -> Array:
        """Solve the system of one model after the other."""
        solution = np.empty(system.rhs.shape)
        for m, rhs in enumerate(system.rhs):
            self.check_time()
            A = np.eye(len(rhs)) - self._build_model_matrix(system.policy, m).toarray()
            A = A.T if system.is_transposed else A
            solution[m] = _solve_or_raise(A, rhs[:, None])[:, 0]
        return solution

    def _build_model_matrix(self, policy: PolicyTable, m: int) -> Any:
        """Build the matrix (S, S) of gamma P^pi in a model, from the rows of the policy."""
        x, (S, A) = self.problem, self.r.shape[1:]
        if x.n_models == 1 and policy.dtype.kind != "f":
            matrix = self.single_matrix[np.arange(S) * A + policy.reshape(-1)]
        else:
            all_probs = self._to_probs(policy)
            probs = all_probs[min(m, len(all_probs) - 1)].ravel()
            rows = np.flatnonzero(probs)
            table = x.storage.select_rows(rows)
            data = table.p[0, :, m] * probs[rows][table.get_entry_rows()]
            indptr = table.indptr[np.searchsorted(rows, np.arange(S + 1) * A)]
            matrix = _make_matrix(data, table.indices, indptr, S)
        matrix.data *= x.discount
        if x.discount == 1:
            matrix.data *= np.repeat(self.transient[m], np.diff(matrix.indptr))
        return matrix

    def _compute_correction(
        self, step: Callable[[Array], Array], residual: Array, rtol: float
    ) -> Array:
        """Approximate d = residual + gamma P d (S, M) by BiCGSTAB, for each model by itself.

        If that does not converge in a model, its d is the residual.
        """

        def dot(x: Array, y: Array) -> Array:
            return np.einsum("sm,sm->m", x, y)  # BLAS would start threads for it

        def divide(x: Array, y: Array) -> Array:
            return x / np.where(y == 0, np.inf, y)

        d, r, p = np.zeros_like(residual), residual, residual
        size = rho = dot(r, r)
        for _ in range(MAX_BICGSTAB_ITER):
            self.check_time()
            p_change = p - step(p)
            alpha = divide(rho, dot(residual, p_change))
            r = r - alpha * p_change
            r_change = r - step(r)
            omega = divide(dot(r_change, r), dot(r_change, r_change))
            d += alpha * p + omega * r
            r = r - omega * r_change
            if (dot(r, r) <= max(BICGSTAB_RTOL, rtol) ** 2 * size).all():
                break
            last_rho, rho = rho, dot(residual, r)
            p = r + divide(rho * alpha, last_rho * omega) * (p - omega * p_change)
        return np.where(dot(r, r) < size, d, residual)


class DirectSolver(InfiniteHorizon):
    """Values by full matrices, which are factorized if there are few states."""

    def __init__(self, problem: Problem, check_time: Callable[[], object] = lambda: None) -> None:
        super().__init__(problem, check_time)
        x, (M, S, A) = self.problem, self.r.shape
        self.P = np.empty((M, S, A, S))
        for m in range(M):
            matrix = _make_matrix(x.p[0, :, m], x.indices, x.indptr, S)
            matrix.toarray(out=self.P[m].reshape(S * A, S))
        self.P *= self.transient[:, :, None, None]
        if S <= MAX_DIRECT_STATES:
            self.approximation_rtol = 0.0

    def compute_q(self, v: Array) -> Array:
        return self.r + self.problem.discount * np.matmul(self.P, v[:, None, :, None])[..., 0]

    def solve_linear(self, system: LinearSystem) -> Array:
        if self.problem.n_states > MAX_DIRECT_STATES:
            return super().solve_linear(system)
        A, rhs = self._build_matrix(system.policy), system.rhs[:, :, None]
        A = np.swapaxes(A, 1, 2) if system.is_transposed else A
        return self._map_model_blocks(lambda m: _solve_or_raise(A[m], rhs[m])[:, :, 0])

    def compute_inverse(self, policy: IntArray) -> Array:
        """Compute (M, S, S) F = (I - gamma P^pi)^-1."""
        A = self._build_matrix(policy)
        return self._map_model_blocks(lambda m: _solve_or_raise(A[m], np.eye(A.shape[1])))

    def _map_model_blocks(self, compute_block: Callable[[slice], AnyArray]) -> Array:
        """Compute the results of all models block by block, checking the time before each."""
        M, S = self.r.shape[:2]
        size, results = max(1, BLOCK_MULTIPLY_ADDS // S**3), []
        for start in range(0, M, size):
            self.check_time()
            results.append(compute_block(slice(start, start + size)))
        return np.concatenate(results, dtype=np.float64)

    def _build_matrix(self, policy: PolicyTable) -> Array:
        """Build (M, S, S) I - gamma P^pi."""
        if policy.dtype.kind == "f":
            P = np.einsum("sa,msaz->msz", policy, self.P)
        else:
            m, s = np.indices(self.r.shape[:2])
            P = self.P[m, s, policy]
        return np.eye(P.shape[1]) - self.problem.discount * P


def _make_matrix(data: Array, indices: IntArray, indptr: IndexArray, n_states: int) -> Any:
    """Make the sparse matrix (rows, S) of these entries."""
    from scipy.sparse import csr_matrix  # its indices have 32 bits, unlike those of csr_array

    return csr_matrix((data, indices, indptr), (len(indptr) - 1, n_states))


def _solve_or_raise(A: Array, rhs: Array) -> Array:
    """Solve A x = rhs for x (..., S, n); raise InputError if A is singular."""
    try:
        with limit_blas_threads():
            return np.asarray(np.linalg.solve(A, rhs), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise _make_improper_error() from None


def _make_improper_error() -> InputError:
    """Make the error for models in which an episode may never end."""
    return InputError(
        "at discount 1 episodes must end, and in some model a policy (almost) never ends them: "
        "their returns are infinite",
        ["set a discount such as 0.9999", Remedy("horizon", 50, verb="give a number, for example")],
    )
