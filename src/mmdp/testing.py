"""Conformance kits: what every kernel and every method must pass, ours and yours.

``check_kernel(kernel)`` compares a kernel with the numpy specification on every storage and
shape; ``check_method(method)`` checks what a Solution promises. Both raise an
AssertionError that says what differs. ``random_model`` makes tiny instances;
``plain_returns``, ``best_by_enumeration`` and ``best_with_memory`` are slow and independent of
the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.controller import Controller
from mmdp.kernels.events import Events
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.kernels.planner import (
    ACTIONS,
    NODES,
    PROBABILITIES,
    SAMPLED,
    TREE,
    VALUES,
    PlannerTables,
)  # fmt: skip
from mmdp.kernels.problem import Pairs, at
from mmdp.methods import Method, Progress
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.solution import Solution, Status
from mmdp.solve import solve

Array = npt.NDArray[np.float64]


def random_model(
    seed: int,
    *,
    n_models: int | None = None,
    n_states: int | None = None,
    n_actions: int | None = None,
    horizon: int | None = None,
    masks: bool | None = None,
    discount: float | None = None,
    storage: Any = "auto",
) -> MMDP:
    """A small random MMDP: sparse rows, skewed weights, masks, sometimes time-varying.

    What is not given is drawn from the seed; ``horizon=0`` makes it stationary.

    >>> random_model(3).n_models == random_model(3).n_models
    True
    """
    rng = np.random.default_rng(seed)
    M, S, A = (
        int(given if given is not None else rng.integers(low, high))
        for given, low, high in ((n_models, 1, 7), (n_states, 1, 6), (n_actions, 1, 5))
    )
    if horizon is None:
        horizon = int(rng.integers(1, 6)) if rng.random() < 0.4 else 0
    T = max(horizon, 1)
    masks = bool(rng.random() < 0.5) if masks is None else masks
    p = rng.gamma(0.5, size=(T, M, S, A, S)) * (rng.random((1, 1, S, A, S)) < 0.7)
    p[..., 0] += 1e-3
    p /= p.sum(axis=-1, keepdims=True)
    allowed = np.ones((S, A), dtype=bool)
    if masks:
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


def random_events(seed: int) -> MMDP:
    """A small random MMDP of shared events: kinds of rows, corners, masks, sometimes by time.

    >>> random_events(3).storage
    'events'
    """
    rng = np.random.default_rng(seed)
    M, S, A, W, C, K = (int(rng.integers(1, high)) for high in (20, 6, 4, 5, 4, 3))
    T = int(rng.integers(2, 6)) if rng.random() < 0.4 else 1

    def times() -> int:
        return T if rng.random() < 0.7 else 1

    chance = rng.gamma(0.5, size=(times(), K, W, M)) * (rng.random((K, W, 1)) < 0.8)
    chance[:, :, 0] += 1e-3
    allowed = rng.random((S, A)) < 0.7
    allowed[np.arange(S), rng.integers(0, A, S)] = True
    events = Events(
        rng.integers(0, S, (times(), S, A, W, C)), chance / chance.sum(axis=2, keepdims=True),
        kind=rng.integers(0, K, (times(), S, A)) if K > 1 else None,
        coefficient=rng.dirichlet(np.ones(C), (times(), S, A, W)) if C > 1 else None,
    )  # fmt: skip
    paid = events.rewards(rng.normal(size=(times(), S, A, W)))
    by_model = rng.normal(size=(T, M, S, A)[int(rng.random() < 0.5) :])
    return MMDP(
        events, paid if seed % 2 else by_model,
        initial=rng.dirichlet(np.ones(S)), weights=rng.dirichlet(np.full(M, 0.7)),
        discount=float(rng.choice([0.5, 0.9, 1.0])), terminal=rng.normal(size=(M, S)),
        allowed=allowed if rng.random() < 0.5 else None,
    )  # fmt: skip


def plain_returns(policy: MarkovPolicy, model: MMDP) -> Array:
    """(M,) returns by pushing the state distribution forward with whole matrices."""
    P, r = model.transitions, model.rewards
    P, r = P if P.ndim == 5 else P[None], r if r.ndim == 4 else r[None]
    returns, factor = np.zeros(model.n_models), 1.0
    d = np.broadcast_to(model.problem.initial.T, (model.n_models, model.n_states))
    taken = slice(policy.n_actions)
    for t, pi in enumerate(policy.probabilities):
        share = d[:, :, None] * pi
        returns += factor * (share * np.where(share > 0, at(r, t)[..., taken], 0)).sum(axis=(1, 2))
        d = np.einsum("msa,msaz->mz", share, at(P, t)[:, :, taken])
        factor *= model.discount
    return returns + factor * (d * model.terminal).sum(axis=1)


# ------------------------------------------------------------------ brute force
def all_policies(model: MMDP, horizon: int) -> npt.NDArray[np.int64]:
    """(N, T, S) the actions of every deterministic Markov policy (for tiny models only)."""
    choices = [np.flatnonzero(row) for row in model.allowed] * horizon
    return np.array(list(itertools.product(*choices))).reshape(-1, horizon, model.n_states)


def returns_of(actions: npt.NDArray[np.integer[Any]], model: MMDP) -> Array:
    """(N, M) returns of the policies (N, T, S), by pushing the distribution forward."""
    x, s = model.problem, np.arange(model.n_states)
    d = np.broadcast_to(x.initial, (len(actions), x.n_states, x.n_models))
    total, factor = np.zeros((len(actions), x.n_models)), 1.0
    for t in range(actions.shape[1]):
        a = actions[:, t]
        total = total + factor * (d * at(x.r, t)[s, a]).sum(axis=1)
        d = np.einsum("nsm,nszm->nzm", d, _transitions(x, t)[s, a])
        factor *= x.discount
    return total + factor * (d * x.terminal).sum(axis=1)


def values_of(actions: npt.NDArray[np.integer[Any]], model: MMDP) -> Array:
    """(N,) mean returns of the policies (N, T, S)."""
    values: Array = returns_of(actions, model) @ model.weights
    return values


def best_by_enumeration(model: MMDP, horizon: int) -> float:
    """The optimal Markov value by trying every deterministic policy (for tiny models only).

    >>> one = MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]])
    >>> best_by_enumeration(one, 2)
    6.0
    """
    return float(values_of(all_policies(model, horizon), model).max())


def best_with_memory(model: MMDP, horizon: int) -> float:
    """The optimal value of policies that remember, by walking the whole tree of beliefs.

    >>> tiny = random_model(1, n_models=3, n_states=2, n_actions=2, horizon=0, discount=0.9)
    >>> round(best_with_memory(tiny, 3), 3), round(best_by_enumeration(tiny, 3), 3)
    (0.66, 0.557)
    """
    x = model.problem

    def best(t: int, s: int, belief: Array) -> float:
        """``belief``: (M,) the weights of the models times the chance of the history."""
        if t == horizon:
            return float(belief @ x.terminal[s])
        p, found = _transitions(x, t)[s], -np.inf
        for a in np.flatnonzero(at(x.allowed, t)[s]):
            value = float(belief @ at(x.r, t)[s, a])
            for z in range(x.n_states):
                after = belief * p[a, z]
                if after.any():
                    value += x.discount * best(t + 1, z, after)
            found = max(found, value)
        return found

    return float(sum(best(0, s, b) for s, b in enumerate(x.initial * x.weights) if b.any()))


def _transitions(x: Problem, t: int) -> Array:
    """(S, A, S', M) at t."""
    full = np.zeros((x.n_states * x.n_actions, x.n_states, x.n_models))
    full[x.rows(), x.indices] = at(x.p, t)
    return full.reshape(x.n_states, x.n_actions, x.n_states, x.n_models)


# ------------------------------------------------------------------ kernels
def check_kernel(kernel: Kernel, *, seeds: Iterable[int] = range(30), rtol: float = 1e-9) -> None:
    """Compare a kernel with the numpy specification on every storage, mask and time shape.

    Its plans need ``expect`` and ``push`` alone. Some models change, some have initial
    distributions of their own.

    >>> from mmdp import kernels
    >>> check_kernel(kernels.get("numpy"), seeds=[0, 1])
    """
    for seed in seeds:
        base = random_model(seed)
        tables = (_restored(base, storage) for storage in ("dense", "sparse"))
        for model in (*tables, random_events(seed)):
            model = beginning_apart(model, seed) if seed % 3 == 1 else model
            horizon = model.horizon or 1 + seed % 7
            still = Case(kernel, model, horizon, seed=seed, rtol=rtol)
            still.steps()
            still.bounds()
            cases = [still]
            if seed % 3 == 0:
                cases.append(Case(kernel, changing(model, seed), horizon, seed=seed, rtol=rtol))
            for case in cases:
                case.passes()
                case.ascents()
                case.controllers()
                case.episodes()


def _restored(model: MMDP, storage: Any) -> MMDP:
    """The same model in the other storage."""
    return MMDP(
        model.transitions, model.rewards, initial=model.initial, weights=model.weights,
        discount=model.discount, terminal=model.terminal, allowed=model.allowed, storage=storage,
    )  # fmt: skip


def changing(model: MMDP, seed: int) -> MMDP:
    """The same models, which change by a random chain."""
    rng = np.random.default_rng(seed + 8)
    chain = rng.dirichlet(np.ones(model.n_models), model.n_models)
    return model.replace(model_transitions=chain)


def beginning_apart(model: MMDP, seed: int) -> MMDP:
    """The same models, each with an initial distribution of its own; not all states in each.

    >>> beginning_apart(random_model(1, n_models=4, n_states=3), 1).initial.shape
    (4, 3)
    """
    rng = np.random.default_rng(seed + 10)
    first = rng.dirichlet(np.ones(model.n_states), model.n_models)
    first[rng.random(first.shape) < 0.3] = 0.0
    first[:, 0] += 1e-3
    return model.replace(initial=first / first.sum(axis=1, keepdims=True))


def random_controller(x: Problem, horizon: int, nodes: int, seed: int) -> Controller:
    """A controller with this many nodes, drawn from the allowed actions and from all moves."""
    rng, shape = np.random.default_rng(seed + 5), (horizon, x.n_states, nodes)
    scores = rng.random((*shape, x.n_actions)) * _open(x, horizon)[:, :, None]
    moves = rng.integers(0, nodes, (*shape, x.n_states))
    first = rng.integers(0, nodes, x.n_states)
    return Controller(
        scores.argmax(axis=3).astype(np.int32), moves.astype(np.uint8), first.astype(np.uint8)
    )


def _by_time(x: Problem, horizon: int, seed: int) -> Problem:
    """The problem, for half of the seeds with actions allowed at random by time."""
    rng = np.random.default_rng(seed + 2)
    if seed % 2:
        return x
    mask = (rng.random((horizon, x.n_states, x.n_actions)) < 0.7) & x.allowed
    stuck = ~mask.any(axis=2)
    mask[stuck] = np.broadcast_to(x.allowed, mask.shape)[stuck]
    return x.restricted(mask)


def _open(x: Problem, horizon: int) -> npt.NDArray[np.bool_]:
    return np.broadcast_to(x.allowed, (horizon, x.n_states, x.n_actions))


def _random_policies(x: Problem, horizon: int, seed: int) -> tuple[npt.NDArray[Any], Array]:
    """(T, S) actions and (T, S, A) probabilities."""
    rng = np.random.default_rng(seed + 1)
    p = rng.random((horizon, x.n_states, x.n_actions)) * x.allowed
    sharp = p.argmax(axis=2).astype(np.int32)
    p[rng.random(p.shape) < 0.2] *= 1e-3
    return sharp, p / p.sum(axis=2, keepdims=True)


def _random_pairs(x: Problem, rng: np.random.Generator) -> list[Pairs]:
    """Pairs on several grids, and every model with itself."""
    order, half = rng.permutation(x.n_models), x.n_models // 2
    first, second = order[:half].copy(), order[half : 2 * half].copy()
    grids = [Pairs(first, second, reach, width) for reach, width in ((3, 0.5), (8, 0.1))]
    return [*grids, Pairs(order, order, 0, 1.0)]


class Case:
    """One model on which a kernel is compared with the specification, one group at a time.

    >>> from mmdp import kernels
    >>> Case(kernels.get("numpy"), random_model(3), random_model(3).horizon or 4).passes()
    """

    def __init__(
        self, kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
    ) -> None:
        self.kernel, self.model, self.horizon, self.seed = kernel, model, horizon, seed
        self.rtol, self.where = rtol, f"{kernel.name}, seed {seed}, {model!r}"
        self.problem = _by_time(model.problem, horizon, seed)
        self.truth, self.mine = (k.plan(self.problem, horizon) for k in (NumpyKernel(), kernel))
        self.sharp, self.soft = _random_policies(self.problem, horizon, seed)

    def holds(self, fine: Any, what: str) -> None:
        assert np.all(fine), f"{what} ({self.where})"

    def same(self, a: Any, b: Any, what: str) -> None:
        """Whether two arrays, or numbers, are equal up to rounding."""
        a, b = np.asarray(a), np.asarray(b)
        self.holds(a.shape == b.shape, f"{what}: shape {a.shape} instead of {b.shape}")
        finite = np.isfinite(b)
        same = np.isfinite(a) == finite
        self.holds(same & (finite | (a == b)), f"{what}: other entries are infinite")
        scale = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
        worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
        self.holds(worst <= self.rtol * scale, f"{what}: differs by {worst:g}")

    def steps(self) -> None:
        """The operator itself, and products of whole matrices; models that change too."""
        x, horizon, rng = self.model.problem, self.horizon, np.random.default_rng(self.seed + 6)
        shape, (sharp, soft) = (x.n_states, x.n_models), _random_policies(x, horizon, self.seed)
        for y in (x, changing(self.model, self.seed).problem):
            plan, change = self.kernel.plan(y, horizon), y.moved(np.eye(x.n_models))
            for t in range(min(horizon, 2)):
                v, b, P = rng.normal(size=shape), rng.random(shape), _transitions(x, t)
                expected = np.einsum("sazm,zm->sam", P, v @ change.T)
                allowed = at(x.allowed, t)  # nothing is said about other rows
                self.same(plan.expect(t, v)[allowed], expected[allowed], "expect")
                q = at(x.r, t) + x.discount * expected
                self.same(plan.step(t, v)[allowed], q[allowed], "step")
                for row in (sharp[t], soft[t]):
                    pi = np.eye(x.n_actions)[row] if row.ndim == 1 else row
                    after = np.einsum("sa,sazm,sm->zm", pi, P, b) @ change
                    self.same(plan.push(t, b, row), after, "push")
            s = int(rng.integers(x.n_states))
            a = int(rng.choice(np.flatnonzero(at(x.allowed, 0)[s])))
            row, full = plan.rows(0, s, a), np.zeros(shape)
            full[row.after] = row.p
            self.same(full, _transitions(x, 0)[s, a], "rows")
            lam, r, last = x.weights[::-1], np.asarray(x.r)[:, ::-1], x.terminal + 1.0
            other = plan.but(weights=lam, rewards=r, terminal=last)
            again = plan.problem._replace(weights=lam, r=r, terminal=last)
            fresh = self.kernel.plan(again, horizon)
            one, two = (k.backward("given", policy=sharp).first for k in (other, fresh))
            self.same(one, two, "but")
            self.same(other.forward(soft), fresh.forward(soft), "but, forward")

    def passes(self) -> None:
        """The forward and every kind of backward pass."""
        for policy in (self.sharp, self.soft):
            b = self.truth.forward(policy)
            self.same(self.mine.forward(policy), b, "model weights b")
            self._backward("given", policy=policy, keep=("values", "q"))
            self._backward("given", policy=policy, weights=b, keep=("values", "q", "gradient"))
            self._backward("given", policy=policy, keep=("actions",))
        b = self.truth.forward(self.sharp)
        for weights, incumbent in (
            (self.problem.prior_weights(), None), (b, self.sharp), (b, None),
        ):  # fmt: skip
            self._backward("weighted", weights=weights, policy=incumbent, keep=("values",))
        self._backward("own", keep=("actions",))
        lean = self.mine.backward("own")
        self.holds(lean.actions is None, "actions kept unasked")
        self.holds(lean.values is None, "values kept unasked")

    def _backward(self, choice: Any, **options: Any) -> None:
        found, expected = (k.backward(choice, **options) for k in (self.mine, self.truth))
        for name in ("first", "values", "gradient", "q"):
            a, b = getattr(found, name), getattr(expected, name)
            self.holds((a is None) == (b is None), f"{choice}: {name} kept or not")
            if a is not None:
                self.same(a, b, f"{choice}: {name}")
        if expected.actions is None:
            return
        taken = found.actions
        assert taken is not None, f"{choice}: no actions ({self.where})"
        self.holds(taken.shape == expected.actions.shape, f"{choice}: shape")
        if choice == "own":  # ties may be broken otherwise: the actions must attain the values
            q = self.truth.backward(choice, keep=("values", "q"))
            attained = np.take_along_axis(q.q, taken[:, :, None].astype(np.int64), 2)[:, :, 0]
            self.same(attained, q.values[:-1], "own: values of the actions")
        else:
            self.holds(taken == expected.actions, f"{choice}: actions")

    def ascents(self) -> None:
        """CADP's ascents: both kinds of sweeps, all kinds of starts."""
        cases: list[tuple[str, dict[str, float]]] = [
            ("two-way", {}), ("paper", {}), ("two-way", {"max_sweeps": 1}),
            ("paper", {"tol": 0.05}), ("paper", {"max_sweeps": 0}),
        ]  # fmt: skip
        for sweeps, limits in cases:
            self._ascend(f"ascend, {sweeps}", {"sweeps": sweeps, **limits})

        def stop(policy: Any, value: float) -> None:
            raise Stop

        try:
            self.mine.ascend([None], watch=stop)
        except Stop:
            return
        self.holds(False, "what watch raises is lost")

    def _ascend(self, what: str, options: dict[str, Any]) -> None:
        x, truth, starts = self.problem, self.truth, [None, self.sharp, self.soft]
        seen: list[tuple[Any, float]] = []

        def watch(policy: Any, value: float) -> None:
            seen.append((policy.copy(), value))

        found = self.mine.ascend(iter(starts), watch=watch, **options)
        expected = truth.ascend(starts, **options)
        self.holds(len(found) == len(expected), f"{what}: one end per start")
        for policy, value in seen:
            exact = x.returns(truth.backward("given", policy=policy).first) @ x.weights
            self.same(value, exact, f"{what}: value of a watched policy")
        highest, best = max(value for _, value in seen), max(end.value for end in found)
        self.same(highest, best, f"{what}: best unseen")
        for end, other in zip(found, expected, strict=True):
            self.holds(end.end == other.end, f"{what}: ends by {end.end}, not {other.end}")
            made = f"{end.sweeps} sweeps, not {other.sweeps}"
            self.holds(end.sweeps == other.sweeps, f"{what}: {made}")
            self.same(end.trace, other.trace, f"{what}: trace")
            self.same(end.returns, other.returns, f"{what}: returns")
            first = truth.backward("given", policy=end.policy).first
            self.same(end.returns, x.returns(first), f"{what}: returns of its policy")
            actions = end.policy[:, :, None].astype(np.int64)
            legal = np.take_along_axis(_open(x, self.horizon), actions, 2)
            self.holds(legal, f"{what}: an action that is not allowed")

    def controllers(self) -> None:
        """The passes over states and nodes, from random controllers."""
        both = self.mine, self.truth
        controller = random_controller(self.problem, self.horizon, 1 + self.seed % 4, self.seed)
        for sweep in range(3):
            before = controller.copy()
            weights, b = (k.node_weights(controller)[1] for k in both)
            self.same(weights, b, "controllers: weights")
            found, expected = (k.node_values(controller, keep=True) for k in both)
            self.same(found.returns, expected.returns, "controllers: returns")
            self.same(found.values, expected.values, "controllers: values")
            if sweep == 1:
                ends: Any = [k.node_weights(controller, expected.values) for k in both]
            else:
                ends = [k.node_values(controller, b)[:2] for k in both]
            (one, mine), (better, theirs) = ends
            self.same(mine, theirs, f"controllers: improved, sweep {sweep}")
            for name in controller._fields:
                new, its, now, old = (getattr(c, name) for c in (one, better, controller, before))
                self.holds(new == its, f"controllers: improved {name}, sweep {sweep}")
                self.holds(now == old, f"controllers: {name} changed in place")
            controller = better

    def bounds(self) -> None:
        """What upper bounds need, with prices and without."""
        x, mine, truth = self.problem, self.mine, self.truth
        rng, reach = np.random.default_rng(self.seed + 3), truth.reach()
        some = rng.permutation(x.n_states)[: max(1, x.n_states // 2)]
        for name, one, other in zip(("L", "B"), mine.reach(), reach, strict=True):
            self.same(one, other, f"reach: {name}")
        for name, one, other in zip(("L", "B"), mine.reach(some), reach, strict=True):
            self.same(one, other[:, some], f"reach: {name} of some states")
        shape = (self.horizon, x.n_states, x.n_actions, x.n_models)
        y = rng.normal(size=shape) * (rng.random(shape) < rng.choice([0.3, 1.0]))
        y *= rng.random((*shape[:2], 1, 1)) < 0.7  # some states without prices
        for prices in (None, y):
            self._groups(_random_pairs(x, rng), prices)
        (found, chosen), (h, best) = (k.common_prices(y, reach) for k in (mine, truth))
        self.same(found, h, "common_prices: H")
        self.holds(chosen == best, "common_prices: maximiser")
        u, d = np.zeros(shape), rng.normal(size=shape) * _open(x, self.horizon)[:, :, :, None]
        truth.own_values(y, u)
        moved = d.copy()
        size = mine.descend(y, u, best, reach, 0.7, moved)
        expected = truth.descend(y, u, best, reach, 0.7, d)
        self.same(moved, d, "descend: direction")
        self.same(size, expected, "descend: inner product")

    def _groups(self, pairs: list[Pairs], y: Array | None) -> None:
        """Values of single models and of pairs, and their occupancies."""
        x = self.problem
        for group in (None, *pairs):
            name, found = "own_values" if group is None else "pair_values", []
            for plan in (self.mine, self.truth):
                u = np.zeros((self.horizon, x.n_states, x.n_actions, x.n_models))
                asked = plan.own_values if group is None else partial(plan.pair_values, group)
                found.append((asked(y, u), u))
            (mine, used), (values, uses) = found
            self.same(mine, values, name)
            self.same(used, uses, f"{name}: occupancy")
        self.same(self.mine.own_values(y), self.truth.own_values(y), "own_values without u")

    def episodes(self) -> None:
        """Episodes of every kind of planner, one by one, and the decisions of a search.

        They run in the planner's models and in others, where it can explain some steps only.
        """
        x, horizon, seed = self.problem, self.horizon, self.seed
        others = random_model(
            seed + 1000, n_states=x.n_states, n_actions=x.n_actions, masks=False,
            horizon=horizon if len(x.p) > 1 else 0,
        )  # fmt: skip
        rng = np.random.default_rng(seed + 4)
        for name, planner in self._planners().items():
            for world in (x, others.problem):
                by_next = seed % 2 and world.storage.form != "events"  # these have none
                seen = rng.normal(size=world.p.shape) if by_next else None
                count = 1 if planner.mode == TREE else 3
                plans = [k.plan(world, horizon) for k in (self.kernel, NumpyKernel())]
                found, expected = (k.simulate(seen, planner, count, seed + 7) for k in plans)
                self.same(found[0], expected[0], f"simulate, {name}: returns")
                self.holds(found[1] == expected[1], f"simulate, {name}: steps unexplained")
                if not planner.carry:
                    last = plans[0].simulate(seen, planner, 1, seed + 7, first=count - 1)[0]
                    self.same(last, expected[0][:, -1:], f"simulate, {name}: a later episode")
            for s in range(x.n_states if planner.mode == TREE else 0):
                asked = planner, horizon // 2, s, x.weights, seed + s
                a, b = (k.search(*asked) for k in (self.mine, self.truth))
                self.holds(a == b, f"search, {name}: action {a} instead of {b}")

    def _planners(self) -> dict[str, PlannerTables]:
        """One of every kind, with the options that change what the simulator does."""
        x, horizon, truth, sharp = self.problem, self.horizon, self.truth, self.sharp
        own = truth.backward("own", keep=("q", "actions"))
        values = truth.backward("given", policy=sharp, keep=("values",)).values
        sampled = PlannerTables(SAMPLED, x, own=own.actions)
        spread = max(1.0, float(np.abs(np.asarray(x.r)).max()))
        tree = PlannerTables(TREE, x, queries=6, exploration=np.full(horizon, spread))
        controller = random_controller(x, horizon, 3, self.seed)
        return {
            "actions": PlannerTables(ACTIONS, x, actions=sharp),
            "probabilities": PlannerTables(PROBABILITIES, x, probabilities=self.soft),
            "nodes": PlannerTables(NODES, x, controller=controller),
            "values": PlannerTables(VALUES, x, q=own.q),
            "sampled": sampled,
            "sampled each step, by rewards too": sampled._replace(each_step=True, reward_sd=spread),
            "sampled, carried, by rewards alone": sampled._replace(
                carry=True, reward_sd=spread, use_transitions=False
            ),
            "tree with values": tree._replace(values=values),
            "tree with rollouts": tree._replace(values=values, by_rollout=True, actions=sharp),
            "tree at random": tree,
        }


# ------------------------------------------------------------------ methods
def check_method(
    method: str | Method,
    model: MMDP | None = None,
    horizon: int | None = None,
    *,
    seeds: Iterable[int] = range(10),
    backend: str | Kernel = "auto",
) -> None:
    """Check what a Solution promises: an exact value, a legal policy, seeds and limits respected.

    Runs on ``model``, or on random models if there is none.

    >>> check_method("wsu", seeds=[0, 1])
    """
    cases = [(model, horizon)] if model is not None else [(random_model(s), None) for s in seeds]
    for case, steps in cases:
        steps = steps or case.horizon or 4
        solution = solve(case, steps, method, seed=1, backend=backend)
        _check_solution(solution, case, steps)
        again = solve(case, steps, method, seed=1, backend=backend)
        assert again.value == solution.value, f"{solution.method} is not reproducible by seed"
        seen: list[Progress] = []
        stopped = solve(
            case, steps, method, seed=1, backend=backend, time_limit=1e-9, callback=seen.append
        )
        _check_solution(stopped, case, steps)
        best = [progress.best for progress in seen]
        assert best == sorted(best), f"{solution.method}: the best value falls in the callback"


def _check_solution(solution: Solution, model: MMDP, horizon: int) -> None:
    name = solution.method
    tolerance = 1e-9 * max(1.0, float(np.abs(solution.returns).max()))
    oracle = solve(model, horizon, "oracle", backend="numpy")
    assert solution.returns.shape == (model.n_models,), f"{name}: one return per model"
    assert abs(solution.value - solution.returns @ model.weights) <= tolerance, f"{name}: value"
    above = tolerance + 4 * solution.evaluation.stderr
    assert solution.value <= oracle.value + above, f"{name}: value above Oracle"
    assert isinstance(solution.status, Status), f"{name}: status"
    assert solution.provenance.horizon == horizon, f"{name}: horizon"
    if solution.bound is not None:
        assert solution.value <= solution.bound + tolerance, f"{name}: value above its bound"
    if solution.markov is not None:
        solution.markov.check(model, horizon)
        exact = plain_returns(solution.markov, model)
        worst = float(np.abs(solution.returns - exact).max())
        assert worst <= tolerance, f"{name}: returns differ from plain evaluation by {worst:g}"
        assert max(solution.trace) <= solution.value + tolerance, f"{name}: a better iterate lost"
