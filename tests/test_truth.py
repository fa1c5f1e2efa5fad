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
from mmdp.kernels.events import Events
from tests.instances import at_least

Real = np.longdouble
Array = npt.NDArray[Any]
EPS = float(np.finfo(float).eps)
TIE = 1e-12  # of the size of a return: changes that gain less are ties
GAPS = {"exact": 1e-8, "milp": 1e-6}  # of the methods that prove; a certificate closes 1e-9
MOST = 750  # policies of time and state
OBJECTIVES = (
    "cvar:0.3", "cvar:0.5", "var:0.4", "worst", "mean-cvar:0.5:0.5", "evar:0.4", "entropic",
    "regret:mean", "regret:worst", "regret:cvar:0.5",
)  # fmt: skip
METHODS = ("exact", "milp", "gradient", "mirror", "wsu", "mvp")
BOUNDS = ("best", "oracle", "qmdp", "pairs", "dual", "pair-dual", "lp")


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
    endless: bool
    kind: str
    objective: str
    model: mmdp.MMDP
    settings: Any = None  # of the kind: see settings_of
    randomised: bool = False  # whether actions may be drawn, of Markov and stationary policies

    @property
    def T(self) -> int:
        return len(self.P)

    @property
    def horizon(self) -> float:
        return math.inf if self.endless else self.T

    @cached_property
    def question(self) -> dict[str, Any]:
        """The arguments of solve()."""
        policy = {
            "markov": lambda: mmdp.Markov(randomised=True) if self.randomised else None,
            "stationary": lambda: mmdp.Stationary(randomised=self.randomised),
            "memory": lambda: mmdp.Memory(2),
            "tied": lambda: mmdp.Tied(self.settings), "fixed": lambda: mmdp.Fixed(self.settings),
            "monotone": lambda: mmdp.Monotone(actions=self.settings),
            "tree": lambda: mmdp.Tree(*self.settings),
        }[self.kind]()  # fmt: skip
        return {"objective": self.objective, "policy": policy}

    # ------------------------------------------------------------ policies
    def rows(self, t: int, free: bool = False) -> list[tuple[int, ...]]:
        """The rules for one time that the kind leaves open, or all of them."""
        open_ = self.allowed
        if self.kind == "fixed" and not free:
            open_ = open_ & self.settings[t]
        every = itertools.product(*(np.flatnonzero(x).tolist() for x in open_))
        keep: dict[str, Callable[[tuple[int, ...]], bool]] = {
            "tied": lambda row: (
                len(set(zip(self.settings, row, strict=True))) == len(set(self.settings))
            ),
            "monotone": lambda row: sorted(row, key=self.settings.index) == list(row),
        }
        test = keep.get(self.kind)
        return [row for row in every if free or test is None or test(row)]

    def tables(self, free: bool = False) -> Array:
        """(N, T, S) every deterministic policy of the kind, or without its restriction."""
        if self.kind == "tree" and not free:
            return self.trees(self.settings[0])
        return np.array(list(itertools.product(*(self.rows(t, free) for t in range(self.T)))))

    def trees(self, leaves: int) -> Array:
        """(N, T, S) the tables of all trees with at most that many leaves."""
        features, time = self.settings[1:]
        questions = [
            np.array([[x == y if isinstance(y, str) else x <= y for x in column]] * self.T)
            for column in features.values()
            for y in column
        ]
        if time:
            times = np.arange(self.T)[:, None] + np.zeros(len(self.mu), int)
            questions += [times <= t for t in range(self.T)]
        first = self.allowed.argmax(axis=1)
        rows = [np.where(self.allowed[:, a], a, first) for a in range(self.allowed.shape[1])]
        found = [np.array([[row] * self.T for row in rows])]
        for most in range(2, leaves + 1):
            more = [found[-1]]
            for i, q in itertools.product(range(most - 1), questions):
                one, other = found[i][:, None], found[most - 2 - i][None]
                more.append(np.where(q, one, other).reshape(-1, *q.shape))
            found.append(np.unique(np.concatenate(more), axis=0))
        return found[-1]

    def soft(self, tables: Array) -> Array:
        """(N, T, S, A) the policies as probabilities."""
        return np.eye(self.allowed.shape[1], dtype=Real)[tables]

    @cached_property
    def every(self) -> Array:
        """(N, M) returns of every deterministic policy without the restriction."""
        return self.returns(self.soft(self.tables(free=True)))

    @cached_property
    def own(self) -> Array:
        """(M,) the optimum of each model; if models change, of one that knows which holds."""
        if self.K is None:
            return self.every.max(axis=0)
        V = self.h.astype(Real)
        for t in reversed(range(self.T)):
            V = np.where(self.allowed, self.ahead(t, V[None])[0], -np.inf).max(axis=2)
        return V @ self.mu

    # ------------------------------------------------------------ values
    def ahead(self, t: int, V: Array) -> Array:
        """(N, M, S, A) q at t if the values V (N, M, S) follow."""
        after = V if self.K is None else np.einsum("mk,nks->nms", self.K.astype(Real), V)
        return self.r[t] + self.gamma * np.einsum("msaz,nmz->nmsa", self.P[t], after)

    def returns(self, pi: Array) -> Array:
        """(N, M) returns of the policies (N, T, S, A)."""
        if self.endless:
            return self.for_ever(pi[:, 0]) @ self.mu
        V = np.broadcast_to(self.h, (len(pi), *self.h.shape)).astype(Real)
        for t in reversed(range(self.T)):
            V = np.einsum("nsa,nmsa->nms", pi[:, t], self.ahead(t, V))
        return V @ self.mu

    def for_ever(self, pi: Array) -> Array:
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
        found: Array = right / np.diagonal(left, axis1=2, axis2=3)
        return found

    def with_memory(self, policy: mmdp.MemoryPolicy) -> Array:
        """(M,) its returns, by walking every history."""

        def walk(t: int, s: int, memory: Any) -> Array:
            if t == self.T:
                return self.h[:, s].astype(Real)
            a = policy.act(memory, t, s)
            total = self.r[t, :, s, a].copy()
            for z in range(len(self.mu)):
                after = walk(t + 1, z, policy.update(memory, t, s, a, z))
                after = after if self.K is None else self.K.astype(Real) @ after
                total += self.gamma * self.P[t, :, s, a, z] * after
            return total

        starts = [x * walk(0, s, policy.start()) for s, x in enumerate(self.mu) if x]
        return np.sum(starts, axis=0)

    def best_with_history(self) -> Any:
        """The best mean of any policy, by the tree of beliefs."""

        def best(t: int, s: int, belief: Array) -> Any:
            if t == self.T:
                return belief @ self.h[:, s]
            values = []
            for a in np.flatnonzero(self.allowed[s]):
                value = belief @ self.r[t, :, s, a]
                for z in range(len(self.mu)):
                    after = belief * self.P[t, :, s, a, z]
                    after = after if self.K is None else after @ self.K
                    value += self.gamma * best(t + 1, z, after)
                values.append(value)
            return max(values)

        return sum(x * best(0, s, self.lam.astype(Real)) for s, x in enumerate(self.mu) if x)

    # ------------------------------------------------------------ the objective and errors
    def F(self, returns: Array, error: Array | float = 0.0, tail: float = 0.0) -> Array:
        """(N,) the objective of returns (N, M) that are moved by an error (M,).

        ``tail`` is added to alpha, in units of the rounding of weights that are added up.
        """
        text = self.objective
        rho = np.asarray(returns, dtype=Real) + error
        if text.startswith("regret:"):
            text, rho = text.removeprefix("regret:"), rho - self.own
        kind, *numbers = text.split(":")
        lam, rho = self.lam[self.lam > 0].astype(Real), rho[..., self.lam > 0]
        given = [Real(x) for x in numbers]
        if kind in ("cvar", "mean-cvar"):
            given[0] += tail * EPS * len(lam)
        return VALUES[kind](rho, lam, *given)

    @cached_property
    def steps(self) -> Any:
        """sum_t gamma^t."""
        if self.endless:
            return 1 / (1 - Real(self.gamma))
        return sum(Real(self.gamma) ** t for t in range(self.T))

    def _over(self, size: Callable[[Array], Any]) -> Array:
        """(M,) rewards and terminal values by their size, over all decisions."""
        h = 0 if self.endless else self.gamma**self.T * np.array([size(x) for x in self.h])
        found = self.steps * np.array([size(self.r[:, m]) for m in range(len(self.lam))]) + h
        return found if self.K is None else np.full_like(found, found.max())

    @cached_property
    def stake(self) -> Array:
        """(M,) what is at stake in each model."""
        return self._over(lambda x: x.max() - x.min())

    @cached_property
    def size(self) -> Array:
        """(M,) the largest return that rewards of this size could give."""
        return self._over(lambda x: np.abs(x).max())

    @cached_property
    def rounding(self) -> Array:
        """(M,) the floating-point error of a return, of a regret twice over.

        Without a last decision it is that of a linear system of condition 2 / (1 - gamma).
        """
        sums = len(self.mu) + len(self.lam) + 4
        depth = 2 * self.steps if self.endless else self.T + 1
        found: Array = 4 * EPS * self.size * sums * depth
        return found

    @cached_property
    def inexact(self) -> Any:
        """The error of the objective itself: EVaR's, by its temperature."""
        if self.objective.startswith("evar"):
            return 1e-9 * np.ptp(self.every[:, self.lam > 0])
        return 0.0

    @cached_property
    def here(self) -> Array:
        """(M,) the same error in the numbers of this enumeration."""
        found: Array = self.rounding * float(np.finfo(Real).eps) / EPS
        return found

    def least(self, returns: Array, error: Array | float) -> Array:
        return self.F(returns, -np.asarray(error), -1.0) - self.inexact

    def most(self, returns: Array, error: Array | float) -> Array:
        return self.F(returns, error, 1.0) + self.inexact


# ---------------------------------------------------------------------- objectives, by definition
def mean(rho: Array, lam: Array) -> Array:
    return rho @ lam


def worst(rho: Array, lam: Array) -> Array:
    least: Array = rho.min(axis=-1)
    return least


def cvar(rho: Array, lam: Array, alpha: Any) -> Array:
    """max over eta of eta - sum lam max(eta - rho, 0) / alpha; a return is among the best eta."""
    short = np.maximum(rho[..., :, None] - rho[..., None, :], 0)  # (N, eta, M)
    found: Array = (rho - short @ lam / alpha).max(axis=-1)
    return found


def var(rho: Array, lam: Array, alpha: Any) -> Array:
    """The least return at or below which there is a weight of alpha."""
    below = (rho[..., None, :] <= rho[..., :, None]) @ lam  # (N, M)
    found: Array = np.where(below >= alpha - 1e-12, rho, np.inf).min(axis=-1)
    return np.where(np.isfinite(found), found, rho.max(axis=-1))


def entropic(rho: Array, lam: Array, beta: Any) -> Array:
    terms = np.log(lam) - beta * rho
    largest = np.take_along_axis(rho, terms.argmax(axis=-1)[..., None], axis=-1)
    energy = beta * (rho - largest)
    less = np.expm1(-energy) @ lam
    log = np.where(less > -0.5, np.log1p(np.maximum(less, -0.5)), np.log(np.exp(-energy) @ lam))
    return largest[..., 0] - log / beta


def evar(rho: Array, lam: Array, alpha: Any) -> Array:
    """The maximum over beta, by a grid of beta that is made finer around its best point."""
    least, spread = rho.min(axis=-1), np.ptp(rho, axis=-1)
    x = (rho - least[..., None]) / np.where(spread > 0, spread, 1)[..., None]
    centre, width = np.zeros_like(spread), Real(20)
    best = np.zeros_like(spread)
    for _ in range(12):
        log_beta = centre[..., None] + np.linspace(-width, width, 41)
        values = -np.log(np.exp(-np.exp(log_beta)[..., None] * x[..., None, :]) @ lam / alpha)
        values = values / np.exp(log_beta)
        best = np.maximum(best, values.max(axis=-1))
        centre = np.take_along_axis(log_beta, values.argmax(axis=-1)[..., None], -1)[..., 0]
        width /= 8
    return least + spread * best


VALUES: dict[str, Callable[..., Array]] = {
    "mean": mean, "worst": worst, "cvar": cvar, "var": var, "entropic": entropic, "evar": evar,
    "mean-cvar": lambda rho, lam, alpha, share: share * mean(rho, lam)
    + (1 - share) * cvar(rho, lam, alpha),
}  # fmt: skip


# ---------------------------------------------------------------------- a generator
def instance(seed: int) -> Instance:
    """A tiny instance; which features it has is drawn too."""
    rng = np.random.default_rng(seed)

    def has(share: float) -> bool:
        return bool(rng.random() < share)

    kinds = ["markov"] * 8 + ["stationary"] * 4 + ["tied", "monotone", "fixed"] * 2 + ["memory"]
    kind = str(rng.choice([*kinds, *["tree"] * 3]))
    endless = kind == "stationary" or (kind == "tree" and has(0.3))
    M = int(rng.choice([1, 2, 3, 3, 4, 5]))
    while True:
        S, A, T = (int(rng.choice(sizes)) for sizes in ([1, 2, 3, 3], [1, 2, 3, 3], [1, 2, 2, 3]))
        allowed = np.ones((S, A), bool)
        if kind in ("markov", "fixed", "stationary", "memory", "tree") and has(0.3):
            allowed = rng.random((S, A)) < 0.7
            allowed[np.arange(S), rng.integers(0, A, S)] = True
        if float(allowed.sum(axis=1).prod()) ** (1 if endless else T) <= MOST:
            break
    T = 1 if endless else T
    varies = not endless and T > 1 and has(0.3)
    drifts = not endless and M > 1 and has(0.12)
    tied = has(0.25)
    n = T if varies else 1
    P = rng.gamma(0.5, size=(n, M, S, A, S)) * (rng.random((1, 1, S, A, S)) < 0.7) + 1e-9
    if tied:  # few different numbers, so that many policies are equally good
        P = (
            np.eye(S)[rng.integers(0, S, (n, M, S, A))]
            + np.eye(S)[rng.integers(0, S, (n, 1, S, A))]
        )
    P = P / P.sum(axis=-1, keepdims=True)
    storage: Any = P if varies else P[0]
    if has(0.25):
        storage, P = by_events(rng, n, M, S, A)
    after = has(0.2) and not isinstance(storage, Events)
    shape = P.shape if after else P.shape[:-1]
    r = rng.integers(-2, 3, shape).astype(float) if tied else rng.normal(size=shape)
    h = rng.normal(size=(M, S)) if has(0.4) else np.zeros((M, S))
    scale = np.ones(M)
    if has(0.3):
        scale = 10.0 ** rng.integers(-12, 13, M)
    elif has(0.2):
        scale = np.full(M, 10.0 ** rng.integers(-12, 13))
    r, h = (x * scale.reshape((M,) + (1,) * k) for x, k in ((r, r.ndim - 2), (h, 1)))
    paid = None
    if isinstance(storage, Events) and has(0.5):
        paid, r = by_event(rng, storage, n, float(scale[0]))
    elif has(0.25):
        offset = rng.choice([-1, 1]) * 10.0 ** rng.uniform(0, 9, M if has(0.5) else 1)
        r = r + (offset * np.ones(M)).reshape((M,) + (1,) * (r.ndim - 2))
    lam = rng.dirichlet(np.full(M, 0.7)) if has(0.7) else np.full(M, 1 / M)
    if M > 1 and has(0.2):
        lam = np.where(np.arange(M) == rng.integers(M), rng.choice([0.0, 1e-12]), lam)
        lam = lam / lam.sum()
    mu = rng.dirichlet(np.ones(S)) if has(0.7) else np.eye(S)[rng.integers(S)]
    gamma = float(
        rng.choice([0.0, 0.5, 0.9, 0.99, 0.999, 0.99999] if endless else [0, 0.5, 0.9, 1])
    )
    K = rng.dirichlet(np.full(M, 0.5), size=M) if drifts else None
    objective = "mean" if drifts or has(0.45) else str(rng.choice(OBJECTIVES))
    R = r.astype(Real)
    expected = (P.astype(Real) * R).sum(axis=-1) if after else R
    if objective == "entropic":
        spread = float(np.ptp(expected[:, lam > 0])) or 1.0
        objective = f"entropic:{float(rng.choice([0.3, 3.0])) / spread!r}"
    model = mmdp.MMDP(
        storage, **{"next_rewards" if after else "rewards": (r if varies else r[0])
                    if paid is None else paid},
        initial=mu, weights=lam, discount=gamma, terminal=h, allowed=allowed, model_transitions=K,
        parameters={"x": rng.integers(0, 2, M)},
    )  # fmt: skip
    plain = np.broadcast_to(expected, (T, *expected.shape[1:]))
    return Instance(
        np.broadcast_to(P.astype(Real), (T, *P.shape[1:])), plain, h, mu, lam, gamma, allowed, K,
        endless, kind, objective, model, settings_of(kind, rng, T, S, A, allowed),
    )  # fmt: skip


def by_events(rng: Any, n: int, M: int, S: int, A: int) -> tuple[Events, Array]:
    """Shared events, and the same as tables (n, M, S, A, S')."""
    W, C, K = (int(rng.integers(1, most)) for most in (5, 3, 4))
    t = [n if rng.random() < 0.7 else 1 for _ in range(4)]
    after = rng.integers(0, S, (t[0], S, A, W, C))
    chance = rng.gamma(0.5, size=(t[1], K, W, M)) + 1e-9
    chance /= chance.sum(axis=2, keepdims=True)
    kind = rng.integers(0, K, (t[2], S, A))
    share = rng.random((t[3], S, A, W, C)) * (rng.random((t[3], S, A, W, C)) < 0.7) + 1e-9
    share /= share.sum(axis=4, keepdims=True)
    P = np.zeros((n, M, S, A, S))
    for time, s, a, w, c in np.ndindex(n, S, A, W, C):
        i = [time if len(x) > 1 else 0 for x in (after, chance, kind, share)]
        to = after[i[0], s, a, w, c]
        P[time, :, s, a, to] += share[i[3], s, a, w, c] * chance[i[1], kind[i[2], s, a], w]
    return Events(after, chance, kind, share), P


def by_event(rng: Any, events: Events, n: int, scale: float) -> tuple[Any, Array]:
    """Rewards by event, and the same as tables (n, M, S, A)."""
    _, S, A, W, _ = events.after.shape
    chance, kind = events.chance, events.kind
    assert kind is not None
    paid = scale * rng.normal(size=(n if rng.random() < 0.5 else 1, S, A, W))
    r = np.zeros((n, chance.shape[3], S, A))
    for time, s, a, w in np.ndindex(n, S, A, W):
        i = [time if len(x) > 1 else 0 for x in (paid, chance, kind)]
        r[time, :, s, a] += paid[i[0], s, a, w] * chance[i[1], kind[i[2], s, a], w]
    return events.rewards(paid), r


def settings_of(kind: str, rng: Any, T: int, S: int, A: int, allowed: Array) -> Any:
    """The groups of a tied policy, the order of a monotone one, the open actions of a fixed one;
    leaves, features and time of a tree.
    """
    if kind == "tied":
        return rng.integers(0, 2, S).tolist()
    if kind == "monotone":
        return rng.permutation(A).tolist()
    if kind == "tree":
        numbers, words = rng.permutation(S).tolist(), [f"c{x}" for x in rng.integers(0, 3, S)]
        words[0] = "c3"  # no feature is the same everywhere
        features = {"x": numbers if rng.random() < 0.6 else words}
        return int(rng.integers(1, 5)), features, bool(rng.random() < 0.7)
    open_ = (rng.random((T, S, A)) < 0.6) & allowed
    return np.where(open_.any(axis=2, keepdims=True), open_, allowed)


# ---------------------------------------------------------------------- claims
@dataclass
class Audit:
    """The claims that were checked, and those that are false."""

    checked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    false: list[str] = field(default_factory=list)
    seed: int = 0

    def holds(self, claim: str, true: Any, *facts: object) -> None:
        self.checked[claim] += 1
        if not bool(np.all(true)):
            told = ", ".join(f"{x:.17g}" if isinstance(x, (float, Real)) else str(x) for x in facts)
            self.false.append(f"seed {self.seed}: {claim}: {told}")

    def of(self, seed: int) -> None:
        """Ask the program about an instance, and check what it says."""
        self.seed, x, rng = seed, instance(seed), np.random.default_rng(seed + 10**6)
        x = self.through_a_file(x, np.random.default_rng(seed + 2 * 10**6))
        methods = ["cadp"]
        if x.kind in ("markov", "stationary"):
            methods.append(str(rng.choice(METHODS if x.kind == "markov" else METHODS[:1])))
        for method in methods:
            certify = 0.05 if method in ("cadp", "wsu") and rng.random() < 0.4 else False
            self.asked(method, partial(self.solve, x, method, certify, rng))
        name = str(rng.choice(BOUNDS))
        self.asked(f"bound {name}", lambda: self.bound(x, bounded(x, name), rng))
        self.asked("evaluate", lambda: self.evaluation(x, rng))
        if x.objective == "mean" and x.kind == "markov" and rng.random() < 0.2:
            self.asked("information", lambda: self.information(x))
        if x.kind in ("markov", "stationary") and rng.random() < 0.2:
            drawn = dataclasses.replace(x, randomised=True)
            self.asked("randomised", partial(self.solve, drawn, "cadp", False, rng))
        if x.kind == "markov" and x.objective == "mean" and 2 <= len(x.lam) <= 3:
            self.asked("grid", lambda: self.belief(x))

    def through_a_file(self, x: Instance, rng: Any) -> Instance:
        """The same instance with its model read from a file; some as it is."""
        name = str(rng.choice(["", "", "folder", "m.npz", "m.parquet", "m.csv"]))
        if not name:
            return x
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            try:
                mmdp.save(x.model, path)
            except mmdp.InputError as error:
                self.refused[f"save {name}: {str(error)[:60]}"] += 1
                return x
            return dataclasses.replace(x, model=mmdp.load(path))

    def asked(self, what: str, call: Callable[[], None]) -> None:
        """Refusals are no claims; any other error is a fault."""
        try:
            call()
        except mmdp.InputError as error:
            self.refused[f"{what}: {str(error)[:60]}"] += 1
        except Exception as error:
            self.holds("no crash", False, what, f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ a solution
    def solve(self, x: Instance, method: str, certify: float | bool, rng: Any) -> None:
        found = solved(x, method, certify)
        told = f"{x.kind} {x.objective} {found.method}"
        rho = returns_of(x, found.policy)
        digits = 8 * EPS * abs(x.F(rho))  # of the value itself
        low, high = x.least(rho, x.rounding) - digits, x.most(rho, x.rounding) + digits
        self.holds("value", low <= found.value <= high, told, found.value, x.F(rho))
        near = np.abs(found.returns - rho) <= x.rounding
        self.holds("returns", near, told, found.returns, rho)
        near = np.abs(found.evaluation.oracle - x.own) <= x.rounding
        self.holds("own optima", near, told, found.evaluation.oracle, x.own)
        if x.kind != "memory":
            self.holds("kind", of_kind(x, found.policy), told)
        slack = high - low
        if found.method in ("cadp", "gradient", "mirror"):
            # a search that draws actions gives up a little of its best value to draw fewer
            rises = x.randomised or np.diff(found.trace) >= -slack
            self.holds("trace rises", rises, told, found.trace)
            end = x.randomised or abs(found.trace[-1] - found.value) <= slack
            self.holds("trace ends at the value", end or found.method != "cadp", told, found.trace)
        if found.status is mmdp.Status.LOCAL_OPTIMUM and x.kind not in ("memory", "tree"):
            assert found.policy.deterministic
            self.local(x, found.policy.actions.reshape(x.T, -1), rho, told)
        if found.certificate is not None:
            self.bound(x, found.certificate, rng, rho[None])
        if found.status is mmdp.Status.OPTIMAL:
            self.optimal(x, found, rho, rng, told)
        self.price(x, found, rho, told)
        if x.objective == "mean":
            self.evpi(x, found.evpi, rho, told)

    def local(self, x: Instance, table: Array, rho: Array, told: str) -> None:
        near = x.returns(x.soft(np.array(list(neighbours(x, table)))))
        tie = TIE * x.size + x.rounding
        better = x.least(near, tie) > x.most(rho, tie)
        self.holds("local optimum", not better.any(), told, x.F(near).max(), x.F(rho))

    def optimal(self, x: Instance, found: mmdp.Solution, rho: Array, rng: Any, told: str) -> None:
        name = "deterministic" if found.certificate is None else found.certificate.bounds
        gap = GAPS.get(found.method, 1e-9) * x.stake + x.rounding
        rivals = covered(x, name, rng)
        better = x.least(rivals, gap) > x.most(rho, gap)
        facts = (told, name, x.F(rivals).max(), x.F(rho))
        self.holds("optimal", not better.any(), *facts)

    def bound(self, x: Instance, found: Any, rng: Any, *more: Array) -> None:
        told = f"{x.kind} {x.objective} {found.method} {found.bounds}"
        values = x.least(np.concatenate([covered(x, found.bounds, rng), *more]), x.here)
        self.holds("bound", found.value >= values.max(), told, found.value, values.max())
        if "history" in found.bounds and x.objective == "mean" and not x.endless:
            best = x.best_with_history()
            self.holds("bound on memory", found.value >= best, told, found.value, best)

    def price(self, x: Instance, found: mmdp.Solution, rho: Array, told: str) -> None:
        free = found.details.get("unrestricted")
        if free is None:
            return
        self.holds("price", found.price is not None and found.price >= 0, told, found.price)
        slack = x.most(rho, x.rounding) - x.least(rho, x.rounding)
        self.holds("restriction never pays", free >= found.value - slack, told, free, found.value)
        if not x.endless:
            best = x.most(x.every, x.rounding).max()
            self.holds("free value is reached", free <= best, told, free, best)
        costs = re.search(r"costs ([-\d.,e+]+%?).*at most ([-\d.,e+]+%?)", found.price_text)
        if costs:
            least, most = (float(y.strip("%,").replace(",", "")) for y in costs.groups())
            self.holds("price is at most", least <= most, told, found.price_text)
        if (costs := re.search(r"at most ([-\d.,e+]+)", found.price_text)) and not x.endless:
            most = float(costs[1].strip(",").replace(",", ""))
            true = x.least(x.every, x.rounding).max() - found.value
            self.holds("price is at most what it is", true <= most, told, true, found.price_text)

    def belief(self, x: Instance) -> None:
        """A policy that acts on its belief: its returns over all histories, and its bound."""
        found = mmdp.solve(x.model, x.T, mmdp.BeliefGrid(points=20), backend="numpy")
        rho, best = x.with_memory(found.policy), x.best_with_history()
        near = np.abs(found.returns - rho) <= x.rounding
        self.holds("returns of a belief policy", near, found.returns, rho)
        slack = x.rounding @ x.lam
        self.holds("no policy is better than the best", found.value <= best + slack, found.value)
        assert found.certificate is not None
        bound = found.certificate.value
        self.holds("bound of a belief policy", bound >= best - slack, bound, best)

    # ------------------------------------------------------------ information, evaluation
    def evpi(self, x: Instance, evpi: float, rho: Array, told: str) -> None:
        slack = 2 * x.rounding @ x.lam
        self.holds("EVPI is not negative", evpi >= -slack, told, evpi)
        true = (x.own - rho) @ x.lam
        self.holds("EVPI", abs(evpi - true) <= slack, told, evpi, true)

    def information(self, x: Instance) -> None:
        found = mmdp.solve(x.model, x.T, backend="numpy")
        slack = 4 * x.rounding @ x.lam
        evppi = mmdp.measures.evppi(x.model, x.T, "x", method=found, estimator="exact")
        self.holds("EVPPI is not negative", evppi >= 0, evppi)
        self.holds("EVPPI is at most EVPI", evppi <= max(found.evpi, 0) + slack, evppi, found.evpi)
        if x.K is None and abs(found.value - x.F(x.every).max()) <= slack:
            groups = x.model.parameters["x"]
            parts = [x.every[:, groups == g] @ x.lam[groups == g] for g in set(groups.tolist())]
            true = sum(part.max() for part in parts) - x.F(x.every).max()
            tie = TIE * x.size @ x.lam
            self.holds("EVPPI", evppi <= true + slack + tie, evppi, true)

    def evaluation(self, x: Instance, rng: Any) -> None:
        pi = random_policies(x, rng, 1)[0].astype(float)
        policy: Any = mmdp.MarkovPolicy(probabilities=pi)
        if x.endless:
            policy = mmdp.StationaryPolicy(probabilities=pi[0])
        found = mmdp.evaluate(policy, x.model, backend="numpy").returns
        true = x.returns(pi[None].astype(Real))[0]
        self.holds("evaluate", np.abs(found - true) <= x.rounding, found, true)


def solved(x: Instance, method: str, certify: float | bool) -> mmdp.Solution:
    few: dict[str, Any] = {"exact": mmdp.Exact(polish=0.0), "cadp": mmdp.CADP(starts=3)}
    limit: dict[str, Any] = {} if certify else {"time_limit": 5.0}
    return mmdp.solve(
        x.model,
        x.horizon,
        few.get(method, method),
        **x.question,
        certify=certify,
        backend="numpy",
        **limit,
    )


def bounded(x: Instance, name: str) -> Any:
    return mmdp.bound(
        x.model, x.horizon, name, objective=x.objective, time_limit=0.05, backend="numpy"
    )


def returns_of(x: Instance, policy: Any) -> Array:
    """(M,) returns of a policy that the program found."""
    if isinstance(policy, mmdp.MemoryPolicy):
        return x.with_memory(policy)
    policy = getattr(policy, "rows", policy)  # a tree's own table
    table = np.asarray(policy.probabilities, dtype=Real)
    return x.returns(table.reshape(1, x.T, *table.shape[-2:]))[0]


def of_kind(x: Instance, policy: Any) -> bool:
    """Whether a deterministic policy is of the kind, and any takes only what is allowed."""
    policy = getattr(policy, "rows", policy)
    taken = policy.probabilities.reshape(x.T, *x.allowed.shape) > 0
    if not policy.deterministic:
        return not (taken & ~x.allowed).any()
    actions = policy.actions.reshape(x.T, -1)
    if x.kind == "tree":
        return bool((x.tables() == actions).all(axis=(1, 2)).any())
    return all(tuple(actions[t].tolist()) in x.rows(t) for t in range(x.T))


def neighbours(x: Instance, table: Array) -> Iterator[Array]:
    """The policies that a local optimum is not worse than.

    They differ at one time: in one state or group, or for the mean of a monotone policy anyhow.
    """
    groups = np.array(x.settings if x.kind == "tied" else range(table.shape[1]))
    for t in range(x.T):
        for row in x.rows(t):
            changed = set(groups[np.array(row) != table[t]].tolist())
            if len(changed) <= 1 or (x.kind == "monotone" and x.objective == "mean"):
                other = table.copy()
                other[t] = row
                yield other


def covered(x: Instance, name: str, rng: Any) -> Array:
    """(N, M) returns of policies of the set that a claim names, those that do well among them."""
    pure = x.tables(free=name != "deterministic")
    returns = x.returns(x.soft(pure))
    if "deterministic" in name:
        return returns
    order = np.argsort(-x.F(returns))[:6]
    chosen = {*order.tolist(), *returns.argmax(axis=0).tolist(), *rng.integers(0, len(pure), 4)}
    good = x.soft(pure[sorted(chosen)])
    share = np.array([0.1, 0.3, 0.5, 0.7, 0.9], dtype=Real)
    i, j = np.triu_indices(len(good), 1)
    mixed = [w * good[i] + (1 - w) * good[j] for w in share] + [random_policies(x, rng, 40)]
    found = [returns, *(x.returns(pi) for pi in mixed)]
    if x.endless and "stationary" not in name:  # another rule at first
        found += [_begun(x, good)]
    if "history" in name:  # a lottery before the first decision
        first = returns[sorted(chosen)]
        found += [w * first[i] + (1 - w) * first[j] for w in share]
    return np.concatenate(found)


def _begun(x: Instance, pi: Array) -> Array:
    """(N, M) returns of policies that follow one rule once and another for ever."""
    q = x.ahead(0, x.for_ever(pi[:, 0]))  # (N, M, S, A)
    V = np.einsum("ksa,nmsa->nkms", pi[:, 0], q)
    return (V @ x.mu).reshape(-1, len(x.lam))


def random_policies(x: Instance, rng: Any, count: int) -> Array:
    """(N, T, S, A) randomised policies."""
    weights = (rng.gamma(0.4, size=(count, x.T, *x.allowed.shape)) + 1e-6) * x.allowed
    weights = weights.astype(Real)
    found: Array = weights / weights.sum(axis=-1, keepdims=True)
    return found


# ---------------------------------------------------------------------- the tests
def audit(seeds: Iterable[int]) -> Audit:
    found = Audit()
    for seed in seeds:
        found.of(seed)
    print(f"\n{found.checked.total():,} claims: {dict(found.checked.most_common())}")
    print(f"refused: {found.refused.total():,}")
    return found


def check(seeds: Iterable[int]) -> None:
    false = audit(seeds).false
    assert not false, "\n".join([f"{len(false)} false claims", *false[:40]])


def test_every_claim_on_a_few_instances() -> None:
    check(range(60))


@pytest.mark.slow
def test_every_claim_on_many_instances() -> None:
    """10 minutes."""
    check(range(60, at_least(3000)))
