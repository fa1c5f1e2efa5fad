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
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.clock import Stop
from mmdp.kernels import Kernel, Plan, Problem
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
            for check in (check_steps, check_bounds):
                check(kernel, model, horizon, seed=seed, rtol=rtol)
            for case in (model, changing(model, seed)) if seed % 3 == 0 else (model,):
                for check in (check_passes, check_ascents, check_controllers, check_episodes):
                    check(kernel, case, horizon, seed=seed, rtol=rtol)


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


def by_time(model: MMDP, horizon: int, seed: int) -> Problem:
    """The model's problem, for half of the seeds with actions allowed at random by time."""
    x, rng = model.problem, np.random.default_rng(seed + 2)
    if seed % 2:
        return x
    mask = (rng.random((horizon, x.n_states, x.n_actions)) < 0.7) & x.allowed
    stuck = ~mask.any(axis=2)
    mask[stuck] = np.broadcast_to(x.allowed, mask.shape)[stuck]
    return x.restricted(mask)


def check_steps(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare the operator itself with products of whole matrices; models that change too."""
    rng = np.random.default_rng(seed + 6)
    x = model.problem
    shape, where = (x.n_states, x.n_models), f"{kernel.name}, seed {seed}, {model!r}"
    sharp, soft = _random_policies(x, horizon, seed)
    for y in (x, changing(model, seed).problem):
        plan, change = kernel.plan(y, horizon), y.moved(np.eye(x.n_models))
        for t in range(min(horizon, 2)):
            v, b, P = rng.normal(size=shape), rng.random(shape), _transitions(x, t)
            expected = np.einsum("sazm,zm->sam", P, v @ change.T)
            _same(plan.expect(t, v), expected, rtol, f"expect ({where})")
            q = at(x.r, t) + x.discount * expected
            _same(plan.step(t, v), q, rtol, f"step ({where})")
            for row in (sharp[t], soft[t]):
                pi = np.eye(x.n_actions)[row] if row.ndim == 1 else row
                after = np.einsum("sa,sazm,sm->zm", pi, P, b) @ change
                _same(plan.push(t, b, row), after, rtol, f"push ({where})")
        s, a = int(rng.integers(x.n_states)), int(rng.integers(x.n_actions))
        row, full = plan.rows(0, s, a), np.zeros(shape)
        full[row.after] = row.p
        _same(full, _transitions(x, 0)[s, a], rtol, f"rows ({where})")
        other = plan.but(
            weights=x.weights[::-1], rewards=np.asarray(x.r)[:, ::-1], terminal=x.terminal + 1.0
        )
        fresh = kernel.plan(
            plan.problem._replace(
                weights=x.weights[::-1], r=np.asarray(x.r)[:, ::-1], terminal=x.terminal + 1.0
            ),
            horizon,
        )
        found, again = (k.backward("given", policy=sharp).first for k in (other, fresh))
        _same(found, again, rtol, f"but ({where})")
        _same(other.forward(soft), fresh.forward(soft), rtol, f"but, forward ({where})")


def check_passes(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare the forward and every kind of backward pass with the specification."""
    x = by_time(model, horizon, seed)
    truth, mine = NumpyKernel().plan(x, horizon), kernel.plan(x, horizon)
    where = f"{kernel.name}, seed {seed}, {model!r}"
    sharp, soft = _random_policies(x, horizon, seed)
    for policy in (sharp, soft):
        b = truth.forward(policy)
        _same(mine.forward(policy), b, rtol, f"model weights b ({where})")
        for weights in (None, b):
            options: dict[str, Any] = {
                "policy": policy, "weights": weights, 
                "keep": ("values", "q") + (() if weights is None else ("gradient",)),
            }  # fmt: skip
            _same_backward(mine, truth, "given", options, rtol, where)
        kept = {"policy": policy, "keep": ("actions",)}
        _same_backward(mine, truth, "given", kept, rtol, where)
    b = truth.forward(sharp)
    for weights, incumbent in ((x.prior_weights(), None), (b, sharp), (b, None)):
        options = {"weights": weights, "policy": incumbent, "keep": ("values",)}
        _same_backward(mine, truth, "weighted", options, rtol, where)
    _same_backward(mine, truth, "own", {"keep": ("actions",)}, rtol, where)
    lean = mine.backward("own")
    assert lean.actions is None, f"actions kept unasked ({where})"
    assert lean.values is None, f"values kept unasked ({where})"


def check_ascents(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare CADP's ascents with the specification: both kinds of sweeps, all kinds of starts."""
    x = by_time(model, horizon, seed)
    truth, mine = NumpyKernel().plan(x, horizon), kernel.plan(x, horizon)
    starts = [None, *_random_policies(x, horizon, seed)]
    cases: list[tuple[str, dict[str, float]]] = [
        ("two-way", {}), ("paper", {}), ("two-way", {"max_sweeps": 1}), ("paper", {"tol": 0.05}),
        ("paper", {"max_sweeps": 0}),
    ]  # fmt: skip
    for sweeps, limits in cases:
        where = f"ascend, {sweeps}, {kernel.name}, seed {seed}, {model!r}"
        options: Any = {"sweeps": sweeps, **limits}
        seen: list[tuple[Any, float]] = []

        def watch(policy: Any, value: float, seen: list[tuple[Any, float]] = seen) -> None:
            seen.append((policy.copy(), value))

        found = mine.ascend(iter(starts), watch=watch, **options)
        expected = truth.ascend(starts, **options)
        assert len(found) == len(expected), f"{where}: one end per start"
        best = max(end.value for end in found)
        for policy, value in seen:
            first = truth.backward("given", policy=policy).first
            exact = np.array([x.returns(first) @ x.weights])
            _same(np.array([value]), exact, rtol, f"{where}: value of a watched policy")
        highest = max(value for _, value in seen)
        assert abs(highest - best) <= rtol * max(1.0, abs(best)), f"{where}: best unseen"
        for end, other in zip(found, expected, strict=True):
            assert end.end == other.end, f"{where}: ends by {end.end}, not {other.end}"
            assert end.sweeps == other.sweeps, f"{where}: {end.sweeps} sweeps, not {other.sweeps}"
            _same(np.array(end.trace), np.array(other.trace), rtol, f"{where}: trace")
            _same(end.returns, other.returns, rtol, f"{where}: returns")
            exact = truth.backward("given", policy=end.policy).first
            _same(end.returns, x.returns(exact), rtol, f"{where}: returns of its policy")
            legal = np.take_along_axis(
                np.broadcast_to(x.allowed, (horizon, *x.allowed.shape[1:])),
                end.policy[:, :, None].astype(np.int64), 2,
            )  # fmt: skip
            assert legal.all(), f"{where}: an action that is not allowed"
    _check_watch_stops(mine, f"{kernel.name}, seed {seed}, {model!r}")


def _check_watch_stops(mine: Plan, where: str) -> None:
    def stop(policy: Any, value: float) -> None:
        raise Stop

    try:
        mine.ascend([None], watch=stop)
    except Stop:
        return
    raise AssertionError(f"what watch raises is lost ({where})")


def check_controllers(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare the passes over states and nodes with the specification, from random controllers."""
    x = by_time(model, horizon, seed)
    truth, mine = NumpyKernel().plan(x, horizon), kernel.plan(x, horizon)
    controller, both = random_controller(x, horizon, 1 + seed % 4, seed), (mine, truth)
    where = f"controllers, {kernel.name}, seed {seed}, {model!r}"
    for sweep in range(3):
        b, before = truth.node_weights(controller)[1], controller.copy()
        _same(mine.node_weights(controller)[1], b, rtol, f"{where}: weights")
        expected = truth.node_values(controller, keep=True)
        found = mine.node_values(controller, keep=True)
        _same(found.returns, expected.returns, rtol, f"{where}: returns")
        _same(found.values, expected.values, rtol, f"{where}: values")
        if sweep == 1:
            passes = [k.node_weights(controller, expected.values) for k in both]
            (one, weights), (better, other) = passes
            _same(weights, other, rtol, f"{where}: improved weights")
        else:
            ends = [k.node_values(controller, b) for k in both]
            (one, returns, _), (better, others, _) = ends
            _same(returns, others, rtol, f"{where}: improved returns, sweep {sweep}")
        for name in controller._fields:
            improved, its, now, old = (getattr(c, name) for c in (one, better, controller, before))
            assert (improved == its).all(), f"{where}: improved {name}, sweep {sweep}"
            assert (now == old).all(), f"{where}: {name} changed in place"
        controller = better


def random_controller(x: Problem, horizon: int, nodes: int, seed: int) -> Controller:
    """A controller with this many nodes, drawn from the allowed actions and from all moves."""
    rng, shape = np.random.default_rng(seed + 5), (horizon, x.n_states, nodes)
    scores = rng.random((*shape, x.n_actions)) * _open(x, horizon)[:, :, None]
    moves = rng.integers(0, nodes, (*shape, x.n_states))
    first = rng.integers(0, nodes, x.n_states)
    return Controller(
        scores.argmax(axis=3).astype(np.int32), moves.astype(np.uint8), first.astype(np.uint8)
    )


def _same_backward(
    mine: Plan, truth: Plan, choice: Any, options: dict[str, Any], rtol: float, where: str
) -> None:
    found, expected = (k.backward(choice, **options) for k in (mine, truth))
    for name in ("first", "values", "gradient", "q"):
        a, b = getattr(found, name), getattr(expected, name)
        assert (a is None) == (b is None), f"{choice}: {name} kept or not ({where})"
        if a is not None:
            _same(a, b, rtol, f"{choice}: {name} ({where})")
    if expected.actions is not None:
        assert found.actions is not None, f"{choice}: no actions ({where})"
        assert found.actions.shape == expected.actions.shape, f"{choice}: shape ({where})"
        if choice == "own":  # ties may be broken otherwise: the actions must attain the values
            q = truth.backward(choice, keep=("values", "q"))
            taken = np.take_along_axis(q.q, found.actions[:, :, None].astype(np.int64), 2)[:, :, 0]
            _same(taken, q.values[:-1], rtol, f"own: values of the actions ({where})")
        else:
            assert (found.actions == expected.actions).all(), f"{choice}: actions ({where})"


def _same(a: Array, b: Array, rtol: float, what: str) -> None:
    assert a.shape == b.shape, f"{what}: shape {a.shape} instead of {b.shape}"
    finite = np.isfinite(b)
    same = np.isfinite(a) == finite
    assert (same & (finite | (a == b))).all(), f"{what}: other entries are infinite"
    scale = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
    worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    assert worst <= rtol * scale, f"{what}: differs by {worst:g}"


def _random_policies(x: Problem, horizon: int, seed: int) -> tuple[npt.NDArray[Any], Array]:
    """(T, S) actions and (T, S, A) probabilities."""
    rng = np.random.default_rng(seed + 1)
    p = rng.random((horizon, x.n_states, x.n_actions)) * x.allowed
    sharp = p.argmax(axis=2).astype(np.int32)
    p[rng.random(p.shape) < 0.2] *= 1e-3
    return sharp, p / p.sum(axis=2, keepdims=True)


def check_bounds(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare what upper bounds need with the specification, with prices and without."""
    x = by_time(model, horizon, seed)
    truth, mine = NumpyKernel().plan(x, horizon), kernel.plan(x, horizon)
    where, rng = f"{kernel.name}, seed {seed}, {model!r}", np.random.default_rng(seed + 3)
    reach = truth.reach()
    for name, one, other in zip(("L", "B"), mine.reach(), reach, strict=True):
        _same(one, other, rtol, f"reach: {name} ({where})")
    some = rng.permutation(x.n_states)[: max(1, x.n_states // 2)]
    for name, one, other in zip(("L", "B"), mine.reach(some), reach, strict=True):
        _same(one, other[:, some], rtol, f"reach: {name} of some states ({where})")
    shape = (horizon, x.n_states, x.n_actions, x.n_models)
    y = rng.normal(size=shape) * (rng.random(shape) < rng.choice([0.3, 1.0]))
    y *= rng.random((*shape[:2], 1, 1)) < 0.7  # some states without prices
    for prices in (None, y):
        _same_groups(mine, truth, _random_pairs(x, rng), prices, rtol, where)
    h, best = truth.common_prices(y, reach)
    found, chosen = mine.common_prices(y, reach)
    _same(found, h, rtol, f"common_prices: H ({where})")
    assert (chosen == best).all(), f"common_prices: maximiser ({where})"
    u, d = np.zeros(shape), rng.normal(size=shape) * _open(x, horizon)[:, :, :, None]
    truth.own_values(y, u)
    moved = d.copy()
    size = mine.descend(y, u, best, reach, 0.7, moved)
    expected = truth.descend(y, u, best, reach, 0.7, d)
    _same(moved, d, rtol, f"descend: direction ({where})")
    _same(np.array(size), np.array(expected), rtol, f"descend: inner product ({where})")


def _same_groups(
    mine: Plan, truth: Plan, pairs: list[Pairs], y: Array | None, rtol: float, where: str
) -> None:
    """Values of single models and of pairs, and their occupancies."""
    x = truth.problem
    shape = (truth.horizon, x.n_states, x.n_actions, x.n_models)
    for group in (None, *pairs):
        name, values, uses = "own_values" if group is None else "pair_values", [], []
        for one in (mine, truth):
            u = np.zeros(shape)
            if group is None:
                values.append(one.own_values(y, u))
            else:
                values.append(one.pair_values(group, y, u))
            uses.append(u)
        _same(values[0], values[1], rtol, f"{name} ({where})")
        _same(uses[0], uses[1], rtol, f"{name}: occupancy ({where})")
    bare = mine.own_values(y)
    _same(bare, truth.own_values(y), rtol, f"own_values without u ({where})")


def _random_pairs(x: Problem, rng: np.random.Generator) -> list[Pairs]:
    """Pairs on several grids, and every model with itself."""
    order, half = rng.permutation(x.n_models), x.n_models // 2
    first, second = order[:half].copy(), order[half : 2 * half].copy()
    grids = [Pairs(first, second, reach, width) for reach, width in ((3, 0.5), (8, 0.1))]
    return [*grids, Pairs(order, order, 0, 1.0)]


def _open(x: Problem, horizon: int) -> npt.NDArray[np.bool_]:
    return np.broadcast_to(x.allowed, (horizon, x.n_states, x.n_actions))


def check_episodes(
    kernel: Kernel, model: MMDP, horizon: int, *, seed: int = 0, rtol: float = 1e-9
) -> None:
    """Compare episodes of every kind of planner, one by one, and the decisions of a search.

    They run in the planner's models and in others, where it can explain some steps only.
    """
    x = by_time(model, horizon, seed)
    truth, mine = NumpyKernel().plan(x, horizon), kernel.plan(x, horizon)
    others = random_model(
        seed + 1000, n_states=x.n_states, n_actions=x.n_actions, masks=False,
        horizon=horizon if len(x.p) > 1 else 0,
    )  # fmt: skip
    rng = np.random.default_rng(seed + 4)
    for name, planner in _planners(truth, seed).items():
        where = f"{name}, {kernel.name}, seed {seed}, {model!r}"
        for world in (x, others.problem):
            by_next = seed % 2 and world.storage.form != "events"  # these have none
            seen = rng.normal(size=world.p.shape) if by_next else None
            episodes = 1 if planner.mode == TREE else 3
            plans = [k.plan(world, horizon) for k in (kernel, NumpyKernel())]
            found, expected = (k.simulate(seen, planner, episodes, seed + 7) for k in plans)
            _same(found[0], expected[0], rtol, f"simulate: returns ({where})")
            assert (found[1] == expected[1]).all(), f"simulate: steps unexplained ({where})"
            if not planner.carry:
                last = plans[0].simulate(seen, planner, 1, seed + 7, first=episodes - 1)
                _same(last[0], expected[0][:, -1:], rtol, f"simulate: a later episode ({where})")
        if planner.mode == TREE:
            for s in range(x.n_states):
                a, b = (
                    k.search(planner, horizon // 2, s, x.weights, seed + s) for k in (mine, truth)
                )
                assert a == b, f"search: action {a} instead of {b} ({where})"


def _planners(truth: Plan, seed: int) -> dict[str, PlannerTables]:
    """One of every kind, with the options that change what the simulator does."""
    x, horizon = truth.problem, truth.horizon
    sharp, soft = _random_policies(x, horizon, seed)
    own = truth.backward("own", keep=("q", "actions"))
    values = truth.backward("given", policy=sharp, keep=("values",)).values
    sampled = PlannerTables(SAMPLED, x, own=own.actions)
    spread = max(1.0, float(np.abs(np.asarray(x.r)).max()))
    tree = PlannerTables(TREE, x, queries=6, exploration=np.full(horizon, spread))
    return {
        "actions": PlannerTables(ACTIONS, x, actions=sharp),
        "probabilities": PlannerTables(PROBABILITIES, x, probabilities=soft),
        "nodes": PlannerTables(NODES, x, controller=random_controller(x, horizon, 3, seed)),
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
