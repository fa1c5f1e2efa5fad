"""Bounds and episodes of every kernel against the specification, and what the kit notices."""

from __future__ import annotations

import pickle
from typing import ClassVar

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels
from mmdp.core.bounds import bound
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.planner import TREE
from mmdp.core.kernels.prepared import BaseBackend, PreparedProblem
from mmdp.core.kernels.problem import at_time
from mmdp.core.testing import BackendCase, check_backend, make_random_model
from tests.core.kernels.instances import PatchedBackend


def test_many_models_and_states_agree_too():
    """Enough for several threads and several blocks of each loop."""
    model = make_random_model(5, n_models=150, n_states=12, n_actions=3, horizon=0, has_masks=True)
    case = BackendCase(NumbaBackend(2), model, 4, seed=2)
    case.check_bounds()
    case.check_episodes()


# ------------------------------------------------------------------ faults
def make_faulty_backend(method, change_result) -> PatchedBackend:
    """numpy with what one method of its plans returns changed."""

    def make_methods(problem_class):
        def changed_method(prepared, *args, **options):
            return change_result(
                getattr(problem_class, method)(prepared, *args, **options), prepared, args
            )

        return {method: changed_method}

    return PatchedBackend("faulty", make_methods)


def add_occupancy(result, prepared, args):
    if args[-1] is not None:
        args[-1][0, 0, 0, 0] += 1e-6
    return result


def change_direction(result, prepared, args):
    args[-1][0] += (
        1e-6 * np.broadcast_to(prepared.problem.allowed, args[-1].shape[:3])[0][:, :, None]
    )
    return result


def change_in_mode(mode, change_result):
    return lambda result, prepared, args: change_result(result) if args[1].mode == mode else result


BOUND_FAULTS = {
    "least reach": ("compute_visit_bounds", lambda x, *_: x._replace(lo=x.lo + 1e-6)),
    "largest reach": ("compute_visit_bounds", lambda x, *_: x._replace(hi=x.hi * (1 - 1e-6))),
    "own value": ("compute_weighted_optima", lambda x, *_: x + 1e-6 * np.abs(x).max()),
    "own occupancy": ("compute_weighted_optima", add_occupancy),
    "pair value": ("compute_pair_optima", lambda x, *_: x * (1 + 1e-6)),
    "pair occupancy": ("compute_pair_optima", add_occupancy),
    "price": ("compute_common_term", lambda x, *_: (x[0] + 1e-6, x[1])),
    "maximiser": ("compute_common_term", lambda x, *_: (x[0], np.zeros_like(x[1]))),
    "inner product": ("update_direction", lambda x, *_: x + 1e-6 * max(1.0, abs(x))),
    "direction": ("update_direction", change_direction),
}
EPISODE_FAULTS = {
    f"returns in mode {mode}": (
        "simulate",
        change_in_mode(mode, lambda x: (x[0] + 1e-6 * np.abs(x[0]).max(), x[1])),
    )
    for mode in range(5)
} | {
    "unexplained steps": ("simulate", lambda x, *_: (x[0], 0 * x[1])),
    "search": ("search_action", lambda x, prepared, _: (x + 1) % prepared.problem.n_actions),
}


@pytest.mark.parametrize("fault", BOUND_FAULTS)
def test_a_fault_in_bounds_is_noticed(fault):
    model = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, has_masks=False)
    BackendCase(NumpyBackend(), model, 4, seed=1).check_bounds()
    with pytest.raises(AssertionError, match=f"{BOUND_FAULTS[fault][0]}.*faulty"):
        BackendCase(make_faulty_backend(*BOUND_FAULTS[fault]), model, 4, seed=1).check_bounds()


@pytest.mark.parametrize("fault", EPISODE_FAULTS)
def test_a_fault_in_episodes_is_noticed(fault):
    model = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, has_masks=False)
    BackendCase(NumpyBackend(), model, 4, seed=1).check_episodes()
    with pytest.raises(AssertionError, match=f"{EPISODE_FAULTS[fault][0]}.*faulty"):
        BackendCase(make_faulty_backend(*EPISODE_FAULTS[fault]), model, 4, seed=1).check_episodes()


# ------------------------------------------------------------------ a backend of one's own
class LoopProblem(PreparedProblem):
    """All that a backend must write: two plain loops over the entries of the tables."""

    names_read: ClassVar[set[str]] = set()

    def expect_next(self, t, v):
        x = self.problem
        result = np.zeros((x.n_states * x.n_actions, x.n_models))
        for pair, next_state, p in zip(x.get_entry_rows(), x.indices, at_time(x.p, t), strict=True):
            result[pair] += p * v[next_state]
        return result.reshape(x.n_states, x.n_actions, -1)

    def push_forward(self, t, b, policy_row):
        x, result = self.problem, np.zeros_like(b)
        pi = policy_row if policy_row.ndim == 2 else np.eye(x.n_actions)[policy_row]
        for pair, next_state, p in zip(x.get_entry_rows(), x.indices, at_time(x.p, t), strict=True):
            s, a = divmod(pair, x.n_actions)
            result[next_state] += p * pi[s, a] * b[s]
        return result

    def __getattribute__(self, name):
        LoopProblem.names_read.add(name)
        return super().__getattribute__(name)


class ToyBackend(BaseBackend):
    """The machine of these plans."""

    name = "toy"

    def prepare_storage(self, problem, horizon):
        return LoopProblem(problem, horizon)


def test_a_backend_of_one_file_conforms():
    check_backend(ToyBackend(), seeds=range(3))


def test_a_backend_of_one_file_solves_and_bounds(monkeypatch):
    """Through the interface alone: no other kernel can be had."""
    model = make_random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0, discount=0.9)
    methods = (
        mmdp.methods.CADP(),
        mmdp.methods.QMDP(n_episodes=4),
        mmdp.methods.POMCP(n_queries=8, n_episodes=2),
    )
    cases = [(method, mmdp.objectives.Mean()) for method in methods]
    cases += [
        (mmdp.methods.CADP(), mmdp.objectives.CVaR(0.4)),
        (mmdp.methods.NaturalGradient(), mmdp.objectives.Mean()),
    ]
    expected = [
        mmdp.solve(model, 4, method, objective=objective, seed=0, backend="numpy").value
        for method, objective in cases
    ]
    original = kernels.get_backend

    def get_toy_only(backend, *args, **options):
        assert isinstance(backend, ToyBackend), "another kernel was asked for"
        return original(backend, *args, **options)

    monkeypatch.setattr(kernels, "get_backend", get_toy_only)
    monkeypatch.setattr(LoopProblem, "names_read", set())
    toy = ToyBackend()
    for (method, objective), value in zip(cases, expected, strict=True):
        solution = mmdp.solve(model, 4, method, objective=objective, seed=0, backend=toy)
        assert solution.provenance.backend == "toy"
        assert solution.value == pytest.approx(value, rel=1e-12)
    planner = mmdp.solve(model, 4, methods[2], seed=0, backend=toy).policy
    assert planner.act(planner.initial_memory(0), 0, 0) in range(3)
    exact_solution = mmdp.solve(model, 4, "exact", backend=toy, seed=0)
    assert exact_solution.status is mmdp.Status.OPTIMAL
    best_bound = bound(model, 4, backend=toy, incumbent=exact_solution, time_limit=1.0)
    assert best_bound.value >= exact_solution.value
    assert LoopProblem.names_read >= {
        "backward",
        "forward",
        "ascend",
        "compute_visit_bounds",
        "compute_weighted_optima",
        "compute_pair_optima",
        "compute_common_term",
        "update_direction",
        "simulate",
        "search_action",
    }


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_planners_survive_pickling(backend):
    model = make_random_model(6, n_models=5, n_states=4, n_actions=3, horizon=0)
    planner = mmdp.solve(
        model, 4, mmdp.methods.POMCP(n_queries=8, n_episodes=2), seed=0, backend=backend
    ).policy
    copy = pickle.loads(pickle.dumps(planner))
    assert copy.tables.mode == TREE
    first, second = ([p.act(p.initial_memory(3), 0, s) for s in range(4)] for p in (planner, copy))
    assert first == second


@pytest.mark.parametrize(
    "method",
    [mmdp.methods.QMDP(), mmdp.methods.MixTS(carry_belief=True), mmdp.methods.POMCP(n_queries=20)],
)
def test_numpy_and_numba_simulate_the_same_episodes(method):
    model = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, discount=0.9)
    planner = mmdp.solve(model, 5, method, seed=0).policy
    numpy, numba = (
        mmdp.simulate(model, planner, n_episodes=6, seed=3, backend=backend)
        for backend in ("numpy", "numba")
    )
    np.testing.assert_allclose(numpy.returns, numba.returns, rtol=1e-9)
