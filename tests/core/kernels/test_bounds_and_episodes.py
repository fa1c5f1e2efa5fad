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
from mmdp.core.kernels.problem import ModelPairs, at_time
from mmdp.core.testing import BackendCase, check_backend, make_random_model
from tests.core.kernels.instances import PatchedBackend, make_planners


def test_many_models_and_states_do_not_depend_on_threads():
    """Enough for several threads and several blocks of each loop."""
    model = make_random_model(5, n_models=150, n_states=12, n_actions=3, horizon=0, has_masks=True)
    BackendCase(NumbaBackend(2), model, 4, seed=2).check_bounds()
    x, rng = model.problem, np.random.default_rng(0)
    one, two = (NumbaBackend(n, min_parallel_work=0).prepare(x, 4) for n in (1, 2))
    for name, planner in make_planners(x, 4, 2).items():
        n_episodes = 1 if planner.mode == TREE else 3
        first, second = (k.simulate(None, planner, n_episodes, 9)[0] for k in (one, two))
        np.testing.assert_array_equal(first, second, name)
        if not planner.carries_belief:  # the last episode alone
            last = two.simulate(None, planner, 1, 9, n_episodes - 1)[0]
            np.testing.assert_array_equal(last, first[:, -1:], name)
    y = rng.normal(size=(4, *np.shape(x.r)[1:]))
    pairs = ModelPairs(*np.array_split(rng.permutation(x.n_models), 2), 8, 0.1)
    occupancies = np.zeros((2, *y.shape))
    for optima in ("compute_weighted_optima", "compute_pair_optima"):
        args = (pairs,) if optima == "compute_pair_optima" else ()
        values = [
            getattr(k, optima)(*args, y, u) for k, u in zip((one, two), occupancies, strict=True)
        ]
        np.testing.assert_array_equal(*values)
        np.testing.assert_array_equal(*occupancies)


# ------------------------------------------------------------------ faults
BOUND_FAULTS = {
    "least reach": ("compute_visit_bounds", lambda x: x._replace(lo=x.lo + 1e-6)),
    "largest reach": ("compute_visit_bounds", lambda x: x._replace(hi=x.hi * (1 - 1e-6))),
    "own value": ("compute_weighted_optima", lambda x: x + 1e-6 * np.abs(x).max()),
}


@pytest.mark.parametrize("fault", BOUND_FAULTS)
def test_a_fault_in_bounds_is_noticed(fault):
    method, change_result = BOUND_FAULTS[fault]

    def make_methods(problem_class):
        return {
            method: lambda prepared, *args: change_result(
                getattr(problem_class, method)(prepared, *args)
            )
        }

    model = make_random_model(4, n_models=6, n_states=4, n_actions=3, horizon=0, has_masks=False)
    BackendCase(NumpyBackend(), model, 4, seed=1).check_bounds()
    with pytest.raises(AssertionError, match=f"{method}.*faulty"):
        BackendCase(PatchedBackend("faulty", make_methods), model, 4, seed=1).check_bounds()


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
