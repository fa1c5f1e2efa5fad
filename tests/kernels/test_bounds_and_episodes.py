"""Bounds and episodes of every kernel against the specification, and what the kit notices."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.bounds import bound
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.kernels.plan import Machine, Plan
from mmdp.kernels.planner import TREE
from mmdp.kernels.problem import at
from mmdp.testing import Case, check_kernel, random_model
from tests.kernels.instances import Changed


def test_many_models_and_states_agree_too():
    """Enough for several threads and several blocks of each loop."""
    model = random_model(5, n_models=150, n_states=12, n_actions=3, horizon=0, masks=True)
    case = Case(NumbaKernel(2), model, 4, seed=2)
    case.bounds()
    case.episodes()


# ------------------------------------------------------------------ faults
def faulty(method, change) -> Changed:
    """numpy with what one method of its plans returns changed."""

    def methods(plain):
        def changed(plan, *args, **options):
            return change(getattr(plain, method)(plan, *args, **options), plan, args)

        return {method: changed}

    return Changed("faulty", methods)


def more_use(found, plan, args):
    if args[-1] is not None:
        args[-1][0, 0, 0, 0] += 1e-6
    return found


def other_direction(found, plan, args):
    args[-1][0] += 1e-6 * np.broadcast_to(plan.problem.allowed, args[-1].shape[:3])[0][:, :, None]
    return found


def only_in_mode(mode, change):
    return lambda found, plan, args: change(found) if args[1].mode == mode else found


BOUNDS = {
    "least reach": ("reach", lambda x, *_: x._replace(lo=x.lo + 1e-6)),
    "largest reach": ("reach", lambda x, *_: x._replace(hi=x.hi * (1 - 1e-6))),
    "own value": ("own_values", lambda x, *_: x + 1e-6 * np.abs(x).max()),
    "own occupancy": ("own_values", more_use),
    "pair value": ("pair_values", lambda x, *_: x * (1 + 1e-6)),
    "pair occupancy": ("pair_values", more_use),
    "price": ("common_prices", lambda x, *_: (x[0] + 1e-6, x[1])),
    "maximiser": ("common_prices", lambda x, *_: (x[0], np.zeros_like(x[1]))),
    "inner product": ("descend", lambda x, *_: x + 1e-6 * max(1.0, abs(x))),
    "direction": ("descend", other_direction),
}
EPISODES = {
    f"returns in mode {mode}": (
        "simulate",
        only_in_mode(mode, lambda x: (x[0] + 1e-6 * np.abs(x[0]).max(), x[1])),
    )
    for mode in range(5)
} | {
    "unexplained steps": ("simulate", lambda x, *_: (x[0], 0 * x[1])),
    "search": ("search", lambda x, plan, _: (x + 1) % plan.problem.n_actions),
}


@pytest.mark.parametrize("fault", BOUNDS)
def test_a_fault_in_bounds_is_noticed(fault):
    model = random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, masks=False)
    Case(NumpyKernel(), model, 4, seed=1).bounds()
    with pytest.raises(AssertionError, match=f"{BOUNDS[fault][0]}.*faulty"):
        Case(faulty(*BOUNDS[fault]), model, 4, seed=1).bounds()


@pytest.mark.parametrize("fault", EPISODES)
def test_a_fault_in_episodes_is_noticed(fault):
    model = random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, masks=False)
    Case(NumpyKernel(), model, 4, seed=1).episodes()
    with pytest.raises(AssertionError, match=f"{EPISODES[fault][0]}.*faulty"):
        Case(faulty(*EPISODES[fault]), model, 4, seed=1).episodes()


# ------------------------------------------------------------------ a backend of one's own
class Loops(Plan):
    """All that a backend must write: two plain loops over the entries of the tables."""

    asked: ClassVar[set[str]] = set()

    def expect(self, t, v):
        x = self.problem
        found = np.zeros((x.n_states * x.n_actions, x.n_models))
        for row, after, p in zip(x.rows(), x.indices, at(x.p, t), strict=True):
            found[row] += p * v[after]
        return found.reshape(x.n_states, x.n_actions, -1)

    def push(self, t, b, row):
        x, found = self.problem, np.zeros_like(b)
        pi = row if row.ndim == 2 else np.eye(x.n_actions)[row]
        for place, after, p in zip(x.rows(), x.indices, at(x.p, t), strict=True):
            s, a = divmod(place, x.n_actions)
            found[after] += p * pi[s, a] * b[s]
        return found

    def __getattribute__(self, name):
        Loops.asked.add(name)
        return super().__getattribute__(name)


class Toy(Machine):
    """The machine of these plans."""

    name = "toy"

    def lay_out(self, problem, horizon):
        return Loops(problem, horizon)


def test_a_backend_of_one_file_conforms():
    check_kernel(Toy(), seeds=range(3))


def test_a_backend_of_one_file_solves_bounds_and_plans(monkeypatch):
    """Through the interface alone: no other kernel can be had."""
    model = random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0, discount=0.9)
    methods = (mmdp.CADP(), mmdp.QMDP(episodes=4), mmdp.POMCP(queries=8, episodes=2))
    questions = [(method, mmdp.Mean()) for method in methods]
    questions += [(mmdp.CADP(), mmdp.CVaR(0.4)), (mmdp.Gradient(), mmdp.Mean())]
    expected = [
        mmdp.solve(model, 4, method, objective=objective, seed=0, backend="numpy").value
        for method, objective in questions
    ]
    plain = kernels.get

    def only(backend, *args, **options):
        assert isinstance(backend, Toy), "another kernel was asked for"
        return plain(backend, *args, **options)

    monkeypatch.setattr(kernels, "get", only)
    monkeypatch.setattr(Loops, "asked", set())
    toy = Toy()
    for (method, objective), value in zip(questions, expected, strict=True):
        found = mmdp.solve(model, 4, method, objective=objective, seed=0, backend=toy)
        assert found.provenance.backend == "toy"
        assert found.value == pytest.approx(value, rel=1e-12)
    planner = mmdp.solve(model, 4, methods[2], seed=0, backend=toy).policy
    assert planner.act(planner.start(0), 0, 0) in range(3)
    proven = mmdp.solve(model, 4, "exact", backend=toy, seed=0)
    assert proven.status is mmdp.Status.OPTIMAL
    best = bound(model, 4, backend=toy, incumbent=proven, time_limit=1.0)
    assert best.value >= proven.value
    assert Loops.asked >= {
        "backward", "forward", "ascend", "reach", "own_values", "pair_values", "common_prices",
        "descend", "simulate", "search",
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_planners_travel(backend):
    model = random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0)
    planner = mmdp.solve(
        model, 4, mmdp.POMCP(queries=8, episodes=2), seed=0, backend=backend
    ).policy
    copy = pickle.loads(pickle.dumps(planner))
    assert copy.tables.mode == TREE
    first, second = ([p.act(p.start(3), 0, s) for s in range(4)] for p in (planner, copy))
    assert first == second


@pytest.mark.parametrize("method", [mmdp.QMDP(), mmdp.MixTS(carry=True), mmdp.POMCP(queries=20)])
def test_numpy_and_numba_simulate_the_same_episodes(method):
    model = random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)
    planner = mmdp.solve(model, 5, method, seed=0).policy
    numpy, numba = (
        mmdp.simulate(planner, model, episodes=6, seed=3, backend=backend)
        for backend in ("numpy", "numba")
    )
    np.testing.assert_allclose(numpy.returns, numba.returns, rtol=1e-9)
