"""Every claim of the program against an enumeration that shares no code with it.

A seed makes a tiny instance: an objective, a kind of policy, and features that have caused false
proofs (scales, offsets, ties, masks, models that change and so on). It is enumerated here in
plain numpy with 64 bits of mantissa, and each thing that the program says about it is checked.

What is allowed for, model by model, and nothing more: ``rounding``, the floating-point error of a
return of this size; ``TIE`` of that size for a single change, as the conventions say; and for
"proven optimal" the gap of the method, as a share of what is at stake in the model,
(max r - min r) sum_t gamma^t. A proven bound is rounded up by the program: nothing is allowed.
All objectives are monotone, so errors of the returns become those of a value by F(rho ± error).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mmdp
from mmdp.core.kernels.events import ExogenousEvents
from tests.instances import n_examples

Real = np.longdouble
Array = npt.NDArray[Any]
EPS = float(np.finfo(float).eps)
TIE = 1e-12  # of the size of a return: changes that gain less are ties
GAPS = {"exact": 1e-8, "milp": 1e-6}  # of the methods that prove; a certificate closes 1e-9
MAX_POLICIES = 750  # policies of time and state
OBJECTIVES = (
    "cvar:0.3",
    "cvar:0.5",
    "var:0.4",
    "worst",
    "mean-cvar:0.5:0.5",
    "evar:0.4",
    "entropic",
    "regret:mean",
    "regret:worst",
    "regret:cvar:0.5",
)
METHODS = ("exact", "milp", "gradient", "mirror", "wsu", "mvp")
BOUNDS = ("best", "oracle", "qmdp", "pairs")


# ---------------------------------------------------------------------- instances
@dataclass(frozen=True, eq=False)
class Instance:
    """A problem as plain arrays, what is asked about it, and the same problem for the program.

    P (T, M, S, A, S'), r (T, M, S, A), h (M, S) terminal values, mu (S,), lam (M,), K (M, M) or
    None; T is 1 without a last decision.
    """

    P: Array
    r: Array
    h: Array
    mu: Array
    lam: Array
    gamma: float
    allowed: Array
    K: Array | None
    is_infinite_horizon: bool
    policy_class: str
    objective: str
    model: mmdp.MMDP
    settings: Any = None  # of the kind: see settings_of
    is_randomized: bool = False  # whether actions may be drawn, of Markov and stationary policies

    @property
    def T(self) -> int:
        return len(self.P)

    @property
    def horizon(self) -> float:
        return math.inf if self.is_infinite_horizon else self.T

    @cached_property
    def solve_kwargs(self) -> dict[str, Any]:
        """The arguments of solve()."""
        policy_class = {
            "markov": lambda: mmdp.policies.Markov(randomized=True) if self.is_randomized else None,
            "stationary": lambda: mmdp.policies.Stationary(randomized=self.is_randomized),
            "memory": lambda: mmdp.policies.Memory(2),
            "tied": lambda: mmdp.policies.Tied(self.settings),
            "fixed": lambda: mmdp.policies.Fixed(self.settings),
            "monotone": lambda: mmdp.policies.Monotone(actions=self.settings),
            "tree": lambda: mmdp.policies.Tree(*self.settings),
        }[self.policy_class]()
        return {"objective": self.objective, "policy_class": policy_class}

    # ------------------------------------------------------------ policies
    def list_rules(self, t: int, unrestricted: bool = False) -> list[tuple[int, ...]]:
        """The rules for one time that the kind leaves open, or all of them."""
        allowed = self.allowed
        if self.policy_class == "fixed" and not unrestricted:
            allowed = allowed & self.settings[t]
        rules = itertools.product(*(np.flatnonzero(x).tolist() for x in allowed))
        keep: dict[str, Callable[[tuple[int, ...]], bool]] = {
            "tied": lambda row: (
                len(set(zip(self.settings, row, strict=True))) == len(set(self.settings))
            ),
            "monotone": lambda row: sorted(row, key=self.settings.index) == list(row),
        }
        test = keep.get(self.policy_class)
        return [row for row in rules if unrestricted or test is None or test(row)]

    def list_tables(self, unrestricted: bool = False) -> Array:
        """(N, T, S) every deterministic policy of the kind, or without its restriction."""
        if self.policy_class == "tree" and not unrestricted:
            return self.list_tree_tables(self.settings[0])
        return np.array(
            list(itertools.product(*(self.list_rules(t, unrestricted) for t in range(self.T))))
        )

    def list_tree_tables(self, max_leaves: int) -> Array:
        """(N, T, S) the tables of all trees with at most that many leaves."""
        features, time = self.settings[1:]
        conditions = [
            np.array([[x == y if isinstance(y, str) else x <= y for x in column]] * self.T)
            for column in features.values()
            for y in column
        ]
        if time:
            times = np.arange(self.T)[:, None] + np.zeros(len(self.mu), int)
            conditions += [times <= t for t in range(self.T)]
        first = self.allowed.argmax(axis=1)
        rows = [np.where(self.allowed[:, a], a, first) for a in range(self.allowed.shape[1])]
        tables_by_leaves = [np.array([[row] * self.T for row in rows])]
        for n_leaves in range(2, max_leaves + 1):
            candidates = [tables_by_leaves[-1]]
            for i, q in itertools.product(range(n_leaves - 1), conditions):
                one, other = tables_by_leaves[i][:, None], tables_by_leaves[n_leaves - 2 - i][None]
                candidates.append(np.where(q, one, other).reshape(-1, *q.shape))
            tables_by_leaves.append(np.unique(np.concatenate(candidates), axis=0))
        return tables_by_leaves[-1]

    def to_probabilities(self, tables: Array) -> Array:
        """(N, T, S, A) the policies as probabilities."""
        return np.eye(self.allowed.shape[1], dtype=Real)[tables]

    @cached_property
    def unrestricted_returns(self) -> Array:
        """(N, M) returns of every deterministic policy without the restriction."""
        return self.compute_returns(self.to_probabilities(self.list_tables(unrestricted=True)))

    @cached_property
    def model_optima(self) -> Array:
        """(M,) the optimum of each model; if models change, of one that knows which holds."""
        if self.K is None:
            return self.unrestricted_returns.max(axis=0)
        V = self.h.astype(Real)
        for t in reversed(range(self.T)):
            V = np.where(self.allowed, self.q_values(t, V[None])[0], -np.inf).max(axis=2)
        return V @ self.mu

    # ------------------------------------------------------------ values
    def q_values(self, t: int, V: Array) -> Array:
        """(N, M, S, A) q at t if the values V (N, M, S) follow."""
        next_values = V if self.K is None else np.einsum("mk,nks->nms", self.K.astype(Real), V)
        return self.r[t] + self.gamma * np.einsum("msaz,nmz->nmsa", self.P[t], next_values)

    def compute_returns(self, pi: Array) -> Array:
        """(N, M) returns of the policies (N, T, S, A)."""
        if self.is_infinite_horizon:
            return self.solve_stationary(pi[:, 0]) @ self.mu
        V = np.broadcast_to(self.h, (len(pi), *self.h.shape)).astype(Real)
        for t in reversed(range(self.T)):
            V = np.einsum("nsa,nmsa->nms", pi[:, t], self.q_values(t, V))
        return V @ self.mu

    def solve_stationary(self, pi: Array) -> Array:
        """(N, M, S) values of stationary policies (N, S, A), by elimination: it needs no pivots."""
        S = len(self.mu)
        left = np.eye(S) - self.gamma * np.einsum("nsa,msaz->nmsz", pi, self.P[0])
        right = np.einsum("nsa,msa->nms", pi, self.r[0])
        for i in range(S):
            for j in range(S):
                if j != i:
                    factor = left[..., j, i] / left[..., i, i]
                    left[..., j, :] -= factor[..., None] * left[..., i, :]
                    right[..., j] -= factor * right[..., i]
        values: Array = right / np.diagonal(left, axis1=2, axis2=3)
        return values

    def returns_by_histories(self, policy: mmdp.policies.MemoryPolicy) -> Array:
        """(M,) its returns, by walking every history."""

        def walk(t: int, s: int, memory: Any) -> Array:
            if t == self.T:
                return self.h[:, s].astype(Real)
            a = policy.act(memory, t, s)
            total = self.r[t, :, s, a].copy()
            for z in range(len(self.mu)):
                next_returns = walk(t + 1, z, policy.update(memory, t, s, a, z))
                next_returns = (
                    next_returns if self.K is None else self.K.astype(Real) @ next_returns
                )
                total += self.gamma * self.P[t, :, s, a, z] * next_returns
            return total

        weighted_returns = [
            x * walk(0, s, policy.initial_memory()) for s, x in enumerate(self.mu) if x
        ]
        return np.sum(weighted_returns, axis=0)

    def best_history_value(self) -> Any:
        """The best mean of any policy, by the tree of beliefs."""

        def best(t: int, s: int, belief: Array) -> Any:
            if t == self.T:
                return belief @ self.h[:, s]
            values = []
            for a in np.flatnonzero(self.allowed[s]):
                value = belief @ self.r[t, :, s, a]
                for z in range(len(self.mu)):
                    next_belief = belief * self.P[t, :, s, a, z]
                    next_belief = next_belief if self.K is None else next_belief @ self.K
                    value += self.gamma * best(t + 1, z, next_belief)
                values.append(value)
            return max(values)

        return sum(x * best(0, s, self.lam.astype(Real)) for s, x in enumerate(self.mu) if x)

    # ------------------------------------------------------------ the objective and errors
    def objective_value(
        self, returns: Array, error: Array | float = 0.0, tail: float = 0.0
    ) -> Array:
        """(N,) the objective of returns (N, M) that are moved by an error (M,).

        ``tail`` is added to alpha, in units of the rounding of weights that are added up.
        """
        text = self.objective
        rho = np.asarray(returns, dtype=Real) + error
        if text.startswith("regret:"):
            text, rho = text.removeprefix("regret:"), rho - self.model_optima
        name, *numbers = text.split(":")
        lam, rho = self.lam[self.lam > 0].astype(Real), rho[..., self.lam > 0]
        parameters = [Real(x) for x in numbers]
        if name in ("cvar", "mean-cvar"):
            parameters[0] += tail * EPS * len(lam)
        return OBJECTIVE_FUNCTIONS[name](rho, lam, *parameters)

    @cached_property
    def effective_horizon(self) -> Any:
        """sum_t gamma^t."""
        if self.is_infinite_horizon:
            return 1 / (1 - Real(self.gamma))
        return sum(Real(self.gamma) ** t for t in range(self.T))

    def _sum_over_horizon(self, size: Callable[[Array], Any]) -> Array:
        """(M,) rewards and terminal values by their size, over all decisions."""
        h = (
            0
            if self.is_infinite_horizon
            else self.gamma**self.T * np.array([size(x) for x in self.h])
        )
        totals = (
            self.effective_horizon * np.array([size(self.r[:, m]) for m in range(len(self.lam))])
            + h
        )
        return totals if self.K is None else np.full_like(totals, totals.max())

    @cached_property
    def return_span(self) -> Array:
        """(M,) what is at stake in each model."""
        return self._sum_over_horizon(lambda x: x.max() - x.min())

    @cached_property
    def max_return(self) -> Array:
        """(M,) the largest return that rewards of this size could give."""
        return self._sum_over_horizon(lambda x: np.abs(x).max())

    @cached_property
    def rounding_error(self) -> Array:
        """(M,) the floating-point error of a return, of a regret twice over.

        Without a last decision it is that of a linear system of condition 2 / (1 - gamma).
        """
        sums = len(self.mu) + len(self.lam) + 4
        depth = 2 * self.effective_horizon if self.is_infinite_horizon else self.T + 1
        error: Array = 4 * EPS * self.max_return * sums * depth
        return error

    @cached_property
    def objective_error(self) -> Any:
        """The error of the objective itself: EVaR's, by its temperature."""
        if self.objective.startswith("evar"):
            return 1e-9 * np.ptp(self.unrestricted_returns[:, self.lam > 0])
        return 0.0

    @cached_property
    def reference_error(self) -> Array:
        """(M,) the same error in the numbers of this enumeration."""
        error: Array = self.rounding_error * float(np.finfo(Real).eps) / EPS
        return error

    def lower_value(self, returns: Array, error: Array | float) -> Array:
        return self.objective_value(returns, -np.asarray(error), -1.0) - self.objective_error

    def upper_value(self, returns: Array, error: Array | float) -> Array:
        return self.objective_value(returns, error, 1.0) + self.objective_error


# ---------------------------------------------------------------------- objectives, by definition
def mean(rho: Array, lam: Array) -> Array:
    return rho @ lam


def worst_case(rho: Array, lam: Array) -> Array:
    minimum: Array = rho.min(axis=-1)
    return minimum


def cvar(rho: Array, lam: Array, alpha: Any) -> Array:
    """max over eta of eta - sum lam max(eta - rho, 0) / alpha; a return is among the best eta."""
    shortfall = np.maximum(rho[..., :, None] - rho[..., None, :], 0)  # (N, eta, M)
    value: Array = (rho - shortfall @ lam / alpha).max(axis=-1)
    return value


def var(rho: Array, lam: Array, alpha: Any) -> Array:
    """The least return at or below which there is a weight of alpha."""
    lower_weight = (rho[..., None, :] <= rho[..., :, None]) @ lam  # (N, M)
    quantile: Array = np.where(lower_weight >= alpha - 1e-12, rho, np.inf).min(axis=-1)
    return np.where(np.isfinite(quantile), quantile, rho.max(axis=-1))


def entropic(rho: Array, lam: Array, beta: Any) -> Array:
    terms = np.log(lam) - beta * rho
    largest = np.take_along_axis(rho, terms.argmax(axis=-1)[..., None], axis=-1)
    energy = beta * (rho - largest)
    less = np.expm1(-energy) @ lam
    log = np.where(less > -0.5, np.log1p(np.maximum(less, -0.5)), np.log(np.exp(-energy) @ lam))
    return largest[..., 0] - log / beta


def evar(rho: Array, lam: Array, alpha: Any) -> Array:
    """The maximum over beta, by a grid of beta that is made finer around its best point."""
    minimum, spread = rho.min(axis=-1), np.ptp(rho, axis=-1)
    x = (rho - minimum[..., None]) / np.where(spread > 0, spread, 1)[..., None]
    center, width = np.zeros_like(spread), Real(20)
    best = np.zeros_like(spread)
    for _ in range(12):
        log_beta = center[..., None] + np.linspace(-width, width, 41)
        values = -np.log(np.exp(-np.exp(log_beta)[..., None] * x[..., None, :]) @ lam / alpha)
        values = values / np.exp(log_beta)
        best = np.maximum(best, values.max(axis=-1))
        center = np.take_along_axis(log_beta, values.argmax(axis=-1)[..., None], -1)[..., 0]
        width /= 8
    return minimum + spread * best


OBJECTIVE_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "mean": mean,
    "worst": worst_case,
    "cvar": cvar,
    "var": var,
    "entropic": entropic,
    "evar": evar,
    "mean-cvar": lambda rho, lam, alpha, share: (
        share * mean(rho, lam) + (1 - share) * cvar(rho, lam, alpha)
    ),
}


# ---------------------------------------------------------------------- a generator
def make_instance(seed: int) -> Instance:
    """A tiny instance; which features it has is drawn too."""
    rng = np.random.default_rng(seed)

    def chance_of(share: float) -> bool:
        return bool(rng.random() < share)

    policy_classes = (
        ["markov"] * 8 + ["stationary"] * 4 + ["tied", "monotone", "fixed"] * 2 + ["memory"]
    )
    policy_class = str(rng.choice([*policy_classes, *["tree"] * 3]))
    is_infinite_horizon = policy_class == "stationary" or (
        policy_class == "tree" and chance_of(0.3)
    )
    M = int(rng.choice([1, 2, 3, 3, 4, 5]))
    while True:
        S, A, T = (int(rng.choice(sizes)) for sizes in ([1, 2, 3, 3], [1, 2, 3, 3], [1, 2, 2, 3]))
        allowed = np.ones((S, A), bool)
        if policy_class in ("markov", "fixed", "stationary", "memory", "tree") and chance_of(0.3):
            allowed = rng.random((S, A)) < 0.7
            allowed[np.arange(S), rng.integers(0, A, S)] = True
        if float(allowed.sum(axis=1).prod()) ** (1 if is_infinite_horizon else T) <= MAX_POLICIES:
            break
    T = 1 if is_infinite_horizon else T
    varies = not is_infinite_horizon and T > 1 and chance_of(0.3)
    is_switching = not is_infinite_horizon and M > 1 and chance_of(0.12)
    tied = chance_of(0.25)
    n = T if varies else 1
    P = rng.gamma(0.5, size=(n, M, S, A, S)) * (rng.random((1, 1, S, A, S)) < 0.7) + 1e-9
    if tied:  # few different numbers, so that many policies are equally good
        P = (
            np.eye(S)[rng.integers(0, S, (n, M, S, A))]
            + np.eye(S)[rng.integers(0, S, (n, 1, S, A))]
        )
    P = P / P.sum(axis=-1, keepdims=True)
    storage: Any = P if varies else P[0]
    if chance_of(0.25):
        storage, P = make_events(rng, n, M, S, A)
    rewards_by_next = chance_of(0.2) and not isinstance(storage, ExogenousEvents)
    shape = P.shape if rewards_by_next else P.shape[:-1]
    r = rng.integers(-2, 3, shape).astype(float) if tied else rng.normal(size=shape)
    h = rng.normal(size=(M, S)) if chance_of(0.4) else np.zeros((M, S))
    scale = np.ones(M)
    if chance_of(0.3):
        scale = 10.0 ** rng.integers(-12, 13, M)
    elif chance_of(0.2):
        scale = np.full(M, 10.0 ** rng.integers(-12, 13))
    r, h = (x * scale.reshape((M,) + (1,) * k) for x, k in ((r, r.ndim - 2), (h, 1)))
    event_rewards = None
    if isinstance(storage, ExogenousEvents) and chance_of(0.5):
        event_rewards, r = make_event_rewards(rng, storage, n, float(scale[0]))
    elif chance_of(0.25):
        offset = rng.choice([-1, 1]) * 10.0 ** rng.uniform(0, 9, M if chance_of(0.5) else 1)
        r = r + (offset * np.ones(M)).reshape((M,) + (1,) * (r.ndim - 2))
    lam = rng.dirichlet(np.full(M, 0.7)) if chance_of(0.7) else np.full(M, 1 / M)
    if M > 1 and chance_of(0.2):
        lam = np.where(np.arange(M) == rng.integers(M), rng.choice([0.0, 1e-12]), lam)
        lam = lam / lam.sum()
    mu = rng.dirichlet(np.ones(S)) if chance_of(0.7) else np.eye(S)[rng.integers(S)]
    gamma = float(
        rng.choice(
            [0.0, 0.5, 0.9, 0.99, 0.999, 0.99999] if is_infinite_horizon else [0, 0.5, 0.9, 1]
        )
    )
    K = rng.dirichlet(np.full(M, 0.5), size=M) if is_switching else None
    objective = "mean" if is_switching or chance_of(0.45) else str(rng.choice(OBJECTIVES))
    R = r.astype(Real)
    expected = (P.astype(Real) * R).sum(axis=-1) if rewards_by_next else R
    if objective == "entropic":
        spread = float(np.ptp(expected[:, lam > 0])) or 1.0
        objective = f"entropic:{float(rng.choice([0.3, 3.0])) / spread!r}"
    model = mmdp.MMDP(
        storage,
        **{
            "next_rewards" if rewards_by_next else "rewards": (r if varies else r[0])
            if event_rewards is None
            else event_rewards
        },
        initial=mu,
        weights=lam,
        discount=gamma,
        terminal=h,
        allowed=allowed,
        model_transitions=K,
        parameters={"x": rng.integers(0, 2, M)},
    )
    mean_rewards = np.broadcast_to(expected, (T, *expected.shape[1:]))
    return Instance(
        np.broadcast_to(P.astype(Real), (T, *P.shape[1:])),
        mean_rewards,
        h,
        mu,
        lam,
        gamma,
        allowed,
        K,
        is_infinite_horizon,
        policy_class,
        objective,
        model,
        make_settings(policy_class, rng, T, S, A, allowed),
    )


def make_events(rng: Any, n: int, M: int, S: int, A: int) -> tuple[ExogenousEvents, Array]:
    """Shared events, and the same as tables (n, M, S, A, S')."""
    W, C, K = (int(rng.integers(1, upper)) for upper in (5, 3, 4))
    t = [n if rng.random() < 0.7 else 1 for _ in range(4)]
    next_states = rng.integers(0, S, (t[0], S, A, W, C))
    probs = rng.gamma(0.5, size=(t[1], K, W, M)) + 1e-9
    probs /= probs.sum(axis=2, keepdims=True)
    distribution_id = rng.integers(0, K, (t[2], S, A))
    share = rng.random((t[3], S, A, W, C)) * (rng.random((t[3], S, A, W, C)) < 0.7) + 1e-9
    share /= share.sum(axis=4, keepdims=True)
    P = np.zeros((n, M, S, A, S))
    for time, s, a, w, c in np.ndindex(n, S, A, W, C):
        i = [time if len(x) > 1 else 0 for x in (next_states, probs, distribution_id, share)]
        next_state = next_states[i[0], s, a, w, c]
        P[time, :, s, a, next_state] += (
            share[i[3], s, a, w, c] * probs[i[1], distribution_id[i[2], s, a], w]
        )
    return ExogenousEvents(next_states, probs, distribution_id, share), P


def make_event_rewards(
    rng: Any, events: ExogenousEvents, n: int, scale: float
) -> tuple[Any, Array]:
    """Rewards by event, and the same as tables (n, M, S, A)."""
    _, S, A, W, _ = events.next_states.shape
    probs, distribution_id = events.probs, events.distribution_id
    assert distribution_id is not None
    rewards = scale * rng.normal(size=(n if rng.random() < 0.5 else 1, S, A, W))
    r = np.zeros((n, probs.shape[3], S, A))
    for time, s, a, w in np.ndindex(n, S, A, W):
        i = [time if len(x) > 1 else 0 for x in (rewards, probs, distribution_id)]
        r[time, :, s, a] += rewards[i[0], s, a, w] * probs[i[1], distribution_id[i[2], s, a], w]
    return events.make_rewards(rewards), r


def make_settings(policy_class: str, rng: Any, T: int, S: int, A: int, allowed: Array) -> Any:
    """The groups of a tied policy, the order of a monotone one, the open actions of a fixed one;
    leaves, features and time of a tree.
    """
    if policy_class == "tied":
        return rng.integers(0, 2, S).tolist()
    if policy_class == "monotone":
        return rng.permutation(A).tolist()
    if policy_class == "tree":
        numbers, words = rng.permutation(S).tolist(), [f"c{x}" for x in rng.integers(0, 3, S)]
        words[0] = "c3"  # no feature is the same everywhere
        features = {"x": numbers if rng.random() < 0.6 else words}
        return int(rng.integers(1, 5)), features, bool(rng.random() < 0.7)
    allowed_actions = (rng.random((T, S, A)) < 0.6) & allowed
    return np.where(allowed_actions.any(axis=2, keepdims=True), allowed_actions, allowed)


# ---------------------------------------------------------------------- claims
@dataclass
class Audit:
    """The claims that were checked, and those that are false."""

    n_checked: Counter[str] = field(default_factory=Counter)
    n_refused: Counter[str] = field(default_factory=Counter)
    false_claims: list[str] = field(default_factory=list)
    seed: int = 0

    def check_claim(self, claim: str, is_true: Any, *facts: object) -> None:
        self.n_checked[claim] += 1
        if not bool(np.all(is_true)):
            facts_text = ", ".join(
                f"{x:.17g}" if isinstance(x, (float, Real)) else str(x) for x in facts
            )
            self.false_claims.append(f"seed {self.seed}: {claim}: {facts_text}")

    def audit_seed(self, seed: int) -> None:
        """Ask the program about an instance, and check what it says."""
        self.seed, x, rng = seed, make_instance(seed), np.random.default_rng(seed + 10**6)
        x = self.reload_from_file(x, np.random.default_rng(seed + 2 * 10**6))
        methods = ["cadp"]
        if x.policy_class in ("markov", "stationary"):
            methods.append(str(rng.choice(METHODS if x.policy_class == "markov" else METHODS[:1])))
        for method in methods:
            certify = 0.05 if method in ("cadp", "wsu") and rng.random() < 0.4 else None
            self.call_unless_refused(method, partial(self.audit_solution, x, method, certify, rng))
        name = str(rng.choice(BOUNDS))
        self.call_unless_refused(
            f"bound {name}", lambda: self.audit_bound(x, bound_instance(x, name), rng)
        )
        self.call_unless_refused("evaluate", lambda: self.audit_evaluation(x, rng))
        if x.objective == "mean" and x.policy_class == "markov" and rng.random() < 0.2:
            self.call_unless_refused("information", lambda: self.audit_information(x))
        if x.policy_class in ("markov", "stationary") and rng.random() < 0.2:
            randomized = dataclasses.replace(x, is_randomized=True)
            self.call_unless_refused(
                "randomised", partial(self.audit_solution, randomized, "cadp", False, rng)
            )
        if x.policy_class == "markov" and x.objective == "mean" and 2 <= len(x.lam) <= 3:
            self.call_unless_refused("grid", lambda: self.audit_belief_policy(x))

    def reload_from_file(self, x: Instance, rng: Any) -> Instance:
        """The same instance with its model read from a file; some as it is."""
        name = str(rng.choice(["", "", "folder", "m.npz", "m.parquet", "m.csv"]))
        if not name:
            return x
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            try:
                mmdp.save(x.model, path)
            except mmdp.InputError as error:
                self.n_refused[f"save {name}: {str(error)[:60]}"] += 1
                return x
            return dataclasses.replace(x, model=mmdp.load(path))

    def call_unless_refused(self, label: str, call: Callable[[], None]) -> None:
        """Refusals are no claims; any other error is a fault."""
        try:
            call()
        except mmdp.InputError as error:
            self.n_refused[f"{label}: {str(error)[:60]}"] += 1
        except Exception as error:
            self.check_claim("no crash", False, label, f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ a solution
    def audit_solution(self, x: Instance, method: str, certify: float | None, rng: Any) -> None:
        solution = solve_instance(x, method, certify)
        label = f"{x.policy_class} {x.objective} {solution.method}"
        rho = compute_policy_returns(x, solution.policy)
        digits = 8 * EPS * abs(x.objective_value(rho))  # of the value itself
        low, high = (
            x.lower_value(rho, x.rounding_error) - digits,
            x.upper_value(rho, x.rounding_error) + digits,
        )
        self.check_claim(
            "value", low <= solution.value <= high, label, solution.value, x.objective_value(rho)
        )
        is_close = np.abs(solution.returns - rho) <= x.rounding_error
        self.check_claim("returns", is_close, label, solution.returns, rho)
        is_close = np.abs(solution.evaluation.oracle - x.model_optima) <= x.rounding_error
        self.check_claim("own optima", is_close, label, solution.evaluation.oracle, x.model_optima)
        if x.policy_class != "memory":
            self.check_claim("kind", is_in_class(x, solution.policy), label)
        slack = high - low
        if solution.method in ("cadp", "gradient", "mirror"):
            # a search that draws actions gives up a little of its best value to draw fewer
            is_increasing = x.is_randomized or np.diff(solution.trace) >= -slack
            self.check_claim("trace rises", is_increasing, label, solution.trace)
            end = x.is_randomized or abs(solution.trace[-1] - solution.value) <= slack
            self.check_claim(
                "trace ends at the value", end or solution.method != "cadp", label, solution.trace
            )
        if solution.status is mmdp.Status.LOCAL_OPTIMUM and x.policy_class not in (
            "memory",
            "tree",
        ):
            assert solution.policy.is_deterministic
            self.audit_local_optimum(x, solution.policy.actions.reshape(x.T, -1), rho, label)
        if solution.certificate is not None:
            self.audit_bound(x, solution.certificate, rng, rho[None])
        if solution.status is mmdp.Status.OPTIMAL:
            self.audit_optimality(x, solution, rho, rng, label)
        self.audit_restriction_cost(x, solution, rho, label)
        if x.objective == "mean":
            self.audit_evpi(x, solution.evpi, rho, label)

    def audit_local_optimum(self, x: Instance, table: Array, rho: Array, label: str) -> None:
        neighbor_returns = x.compute_returns(
            x.to_probabilities(np.array(list(iter_neighbors(x, table))))
        )
        tie = TIE * x.max_return + x.rounding_error
        better = x.lower_value(neighbor_returns, tie) > x.upper_value(rho, tie)
        self.check_claim(
            "local optimum",
            not better.any(),
            label,
            x.objective_value(neighbor_returns).max(),
            x.objective_value(rho),
        )

    def audit_optimality(
        self, x: Instance, solution: mmdp.Solution, rho: Array, rng: Any, label: str
    ) -> None:
        name = "deterministic" if solution.certificate is None else solution.certificate.scope
        gap = GAPS.get(solution.method, 1e-9) * x.return_span + x.rounding_error
        alternatives = sample_covered_returns(x, name, rng)
        better = x.lower_value(alternatives, gap) > x.upper_value(rho, gap)
        facts = (label, name, x.objective_value(alternatives).max(), x.objective_value(rho))
        self.check_claim("optimal", not better.any(), *facts)

    def audit_bound(self, x: Instance, bound: Any, rng: Any, *facts: Array) -> None:
        label = f"{x.policy_class} {x.objective} {bound.method} {bound.scope}"
        values = x.lower_value(
            np.concatenate([sample_covered_returns(x, bound.scope, rng), *facts]),
            x.reference_error,
        )
        self.check_claim("bound", bound.value >= values.max(), label, bound.value, values.max())
        if "history" in bound.scope and x.objective == "mean" and not x.is_infinite_horizon:
            best = x.best_history_value()
            self.check_claim("bound on memory", bound.value >= best, label, bound.value, best)

    def audit_restriction_cost(
        self, x: Instance, solution: mmdp.Solution, rho: Array, label: str
    ) -> None:
        unrestricted = solution.details.get("unrestricted_value")
        if unrestricted is None:
            return
        self.check_claim(
            "price",
            solution.restriction_cost is not None and solution.restriction_cost >= 0,
            label,
            solution.restriction_cost,
        )
        slack = x.upper_value(rho, x.rounding_error) - x.lower_value(rho, x.rounding_error)
        self.check_claim(
            "restriction never pays",
            unrestricted >= solution.value - slack,
            label,
            unrestricted,
            solution.value,
        )
        if not x.is_infinite_horizon:
            best = x.upper_value(x.unrestricted_returns, x.rounding_error).max()
            self.check_claim(
                "free value is reached", unrestricted <= best, label, unrestricted, best
            )
        costs = re.search(
            r"costs ([-\d.,e+]+%?).*at most ([-\d.,e+]+%?)", solution.restriction_cost_text
        )
        if costs:
            lower, upper = (float(y.strip("%,").replace(",", "")) for y in costs.groups())
            self.check_claim(
                "price is at most", lower <= upper, label, solution.restriction_cost_text
            )
        if (
            costs := re.search(r"at most ([-\d.,e+]+)", solution.restriction_cost_text)
        ) and not x.is_infinite_horizon:
            upper = float(costs[1].strip(",").replace(",", ""))
            true = x.lower_value(x.unrestricted_returns, x.rounding_error).max() - solution.value
            self.check_claim(
                "price is at most what it is",
                true <= upper,
                label,
                true,
                solution.restriction_cost_text,
            )

    def audit_belief_policy(self, x: Instance) -> None:
        """A policy that acts on its belief: its returns over all histories, and its bound."""
        solution = mmdp.solve(x.model, x.T, mmdp.methods.BeliefGrid(max_points=20), backend="numpy")
        rho, best = x.returns_by_histories(solution.policy), x.best_history_value()
        is_close = np.abs(solution.returns - rho) <= x.rounding_error
        self.check_claim("returns of a belief policy", is_close, solution.returns, rho)
        slack = x.rounding_error @ x.lam
        self.check_claim(
            "no policy is better than the best", solution.value <= best + slack, solution.value
        )
        assert solution.certificate is not None
        bound = solution.certificate.value
        self.check_claim("bound of a belief policy", bound >= best - slack, bound, best)

    # ------------------------------------------------------------ information, evaluation
    def audit_evpi(self, x: Instance, evpi: float, rho: Array, label: str) -> None:
        slack = 2 * x.rounding_error @ x.lam
        self.check_claim("EVPI is not negative", evpi >= -slack, label, evpi)
        true = (x.model_optima - rho) @ x.lam
        self.check_claim("EVPI", abs(evpi - true) <= slack, label, evpi, true)

    def audit_information(self, x: Instance) -> None:
        solution = mmdp.solve(x.model, x.T, backend="numpy")
        slack = 4 * x.rounding_error @ x.lam
        evppi = mmdp.measures.evppi(x.model, x.T, "x", method=solution, estimator="exact")
        self.check_claim("EVPPI is not negative", evppi >= 0, evppi)
        self.check_claim(
            "EVPPI is at most EVPI", evppi <= max(solution.evpi, 0) + slack, evppi, solution.evpi
        )
        if (
            x.K is None
            and abs(solution.value - x.objective_value(x.unrestricted_returns).max()) <= slack
        ):
            groups = x.model.parameters["x"]
            parts = [
                x.unrestricted_returns[:, groups == g] @ x.lam[groups == g]
                for g in set(groups.tolist())
            ]
            true = (
                sum(part.max() for part in parts) - x.objective_value(x.unrestricted_returns).max()
            )
            tie = TIE * x.max_return @ x.lam
            self.check_claim("EVPPI", evppi <= true + slack + tie, evppi, true)

    def audit_evaluation(self, x: Instance, rng: Any) -> None:
        pi = sample_policies(x, rng, 1)[0].astype(float)
        policy: Any = mmdp.policies.MarkovPolicy(probabilities=pi)
        if x.is_infinite_horizon:
            policy = mmdp.policies.StationaryPolicy(probabilities=pi[0])
        returns = mmdp.evaluate(x.model, policy, backend="numpy").returns
        true = x.compute_returns(pi[None].astype(Real))[0]
        self.check_claim("evaluate", np.abs(returns - true) <= x.rounding_error, returns, true)


def solve_instance(x: Instance, method: str, certify: float | None) -> mmdp.Solution:
    methods: dict[str, Any] = {
        "exact": mmdp.methods.Exact(),
        "cadp": mmdp.methods.CADP(n_init=3),
    }
    limit: dict[str, Any] = {} if certify else {"time_limit": 5.0}
    return mmdp.solve(
        x.model,
        x.horizon,
        methods.get(method, method),
        **x.solve_kwargs,
        certify_time=certify,
        backend="numpy",
        **limit,
    )


def bound_instance(x: Instance, name: str) -> Any:
    return mmdp.bound(
        x.model, x.horizon, name, objective=x.objective, time_limit=0.05, backend="numpy"
    )


def compute_policy_returns(x: Instance, policy: Any) -> Array:
    """(M,) returns of a policy that the program found."""
    if isinstance(policy, mmdp.policies.MemoryPolicy):
        return x.returns_by_histories(policy)
    policy = getattr(policy, "rows", policy)  # a tree's own table
    table = np.asarray(policy.probabilities, dtype=Real)
    return x.compute_returns(table.reshape(1, x.T, *table.shape[-2:]))[0]


def is_in_class(x: Instance, policy: Any) -> bool:
    """Whether a deterministic policy is of the kind, and any takes only what is allowed."""
    policy = getattr(policy, "rows", policy)
    used_actions = policy.probabilities.reshape(x.T, *x.allowed.shape) > 0
    if not policy.is_deterministic:
        return not (used_actions & ~x.allowed).any()
    actions = policy.actions.reshape(x.T, -1)
    if x.policy_class == "tree":
        return bool((x.list_tables() == actions).all(axis=(1, 2)).any())
    return all(tuple(actions[t].tolist()) in x.list_rules(t) for t in range(x.T))


def iter_neighbors(x: Instance, table: Array) -> Iterator[Array]:
    """The policies that a local optimum is not worse than.

    They differ at one time: in one state or group, or for the mean of a monotone policy anyhow.
    """
    groups = np.array(x.settings if x.policy_class == "tied" else range(table.shape[1]))
    for t in range(x.T):
        for row in x.list_rules(t):
            changed = set(groups[np.array(row) != table[t]].tolist())
            if len(changed) <= 1 or (x.policy_class == "monotone" and x.objective == "mean"):
                other = table.copy()
                other[t] = row
                yield other


def sample_covered_returns(x: Instance, name: str, rng: Any) -> Array:
    """(N, M) returns of policies of the set that a claim names, those that do well among them."""
    pure = x.list_tables(unrestricted=name != "deterministic")
    returns = x.compute_returns(x.to_probabilities(pure))
    if "deterministic" in name:
        return returns
    order = np.argsort(-x.objective_value(returns))[:6]
    table_ids = {*order.tolist(), *returns.argmax(axis=0).tolist(), *rng.integers(0, len(pure), 4)}
    good_policies = x.to_probabilities(pure[sorted(table_ids)])
    share = np.array([0.1, 0.3, 0.5, 0.7, 0.9], dtype=Real)
    i, j = np.triu_indices(len(good_policies), 1)
    mixtures = [w * good_policies[i] + (1 - w) * good_policies[j] for w in share] + [
        sample_policies(x, rng, 40)
    ]
    all_returns = [returns, *(x.compute_returns(pi) for pi in mixtures)]
    if x.is_infinite_horizon and "stationary" not in name:  # another rule at first
        all_returns += [_returns_after_first_rule(x, good_policies)]
    if "history" in name:  # a lottery before the first decision
        first = returns[sorted(table_ids)]
        all_returns += [w * first[i] + (1 - w) * first[j] for w in share]
    return np.concatenate(all_returns)


def _returns_after_first_rule(x: Instance, pi: Array) -> Array:
    """(N, M) returns of policies that follow one rule once and another for ever."""
    q = x.q_values(0, x.solve_stationary(pi[:, 0]))  # (N, M, S, A)
    V = np.einsum("ksa,nmsa->nkms", pi[:, 0], q)
    return (V @ x.mu).reshape(-1, len(x.lam))


def sample_policies(x: Instance, rng: Any, count: int) -> Array:
    """(N, T, S, A) randomised policies."""
    weights = (rng.gamma(0.4, size=(count, x.T, *x.allowed.shape)) + 1e-6) * x.allowed
    weights = weights.astype(Real)
    probs: Array = weights / weights.sum(axis=-1, keepdims=True)
    return probs


# ---------------------------------------------------------------------- the tests
def run_audit(seeds: Iterable[int]) -> Audit:
    audit_result = Audit()
    for seed in seeds:
        audit_result.audit_seed(seed)
    print(
        f"\n{audit_result.n_checked.total():,} claims: {dict(audit_result.n_checked.most_common())}"
    )
    print(f"refused: {audit_result.n_refused.total():,}")
    return audit_result


def check_claims(seeds: Iterable[int]) -> None:
    """Fail on a false claim, and if so much is refused that hardly anything is claimed."""
    seeds = list(seeds)
    audit_result = run_audit(seeds)
    assert audit_result.n_checked.total() > 8 * len(seeds), audit_result.n_refused
    false = audit_result.false_claims
    assert not false, "\n".join([f"{len(false)} false claims", *false[:40]])


def test_every_claim_on_a_few_instances() -> None:
    check_claims(range(60))


def test_bounds_on_entropic_risk_over_infinite_horizons() -> None:
    """Instances on which a bound was below the value by its last digit."""
    check_claims((6691, 9410))


@pytest.mark.slow
def test_every_claim_on_many_instances() -> None:
    """10 minutes."""
    check_claims(range(60, n_examples(3000)))
