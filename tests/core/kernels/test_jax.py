"""The jax kernel against the numpy specification.

Every compiled shape costs a second on a GPU, so many random instances share a few shapes.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels, timing
from mmdp.core.errors import InputError
from mmdp.core.kernels.numpy.backend import NumpyBackend
from mmdp.core.kernels.problem import AscentResult, PolicyTable, Problem
from mmdp.core.objectives import as_objective
from mmdp.core.search.context import SolveContext
from mmdp.core.search.spaces import MarkovSpace
from mmdp.core.testing import check_backend
from tests.conftest import ROOT
from tests.core.kernels.instances import (
    CASES,
    A,
    M,
    S,
    T,
    assert_close,
    assert_same_ascents,
    make_problem,
    make_random_model,
    make_random_policies,
)

jax = pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

from mmdp.core.kernels.jax import arrays  # noqa: E402
from mmdp.core.kernels.jax.backend import JaxBackend, JaxProblem  # noqa: E402

REFERENCE = NumpyBackend()


@contextmanager
def record_compilations() -> Iterator[list[str]]:
    """What jax compiles inside."""
    events: list[str] = []

    def record_event(event: str, seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(record_event)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(record_event)


# ------------------------------------------------------------------ passes
@pytest.mark.parametrize("layout", ["dense", "padded"])
def test_passes_equal_numpy(layout):
    for seed in range(20):
        x, deterministic, randomized = (
            make_problem(seed, layout),
            *make_random_policies(seed, 1),
            *make_random_policies(seed, 1, randomized=True),
        )
        for policy in (deterministic, randomized):
            b = REFERENCE.prepare(x, T).forward(policy)
            assert_close(JaxBackend().prepare(x, T).forward(policy), b)
            assert_same_backward(x, "policy", policy=policy, weights=b, keep=("gradient", "q"))
        b = REFERENCE.prepare(x, T).forward(deterministic)
        assert_same_backward(x, "policy", policy=deterministic, keep=("values",))
        assert_same_backward(x, "weighted", weights=x.prior_weights(), keep=("values",))
        assert_same_backward(x, "weighted", weights=b, policy=deterministic)
        assert_same_backward(x, "per_model", keep=("actions",))


def assert_same_backward(x: Problem, choice: str, **options: object) -> None:
    result, expected = (
        k.prepare(x, T).backward(choice, **options) for k in (JaxBackend(), REFERENCE)
    )
    for name, array in expected._asdict().items():
        assert (array is None) == (getattr(result, name) is None), f"{choice}: {name}"
        if array is not None:
            assert_close(getattr(result, name), array)


@pytest.mark.slow
def test_every_shape_equals_numpy():
    check_backend(JaxBackend(), seeds=range(4))


# ------------------------------------------------------------------ ascents
@pytest.mark.parametrize(
    ("layout", "sweeps"),
    [
        ("dense", "two-way"),
        ("padded", "paper"),
        pytest.param("padded", "two-way", marks=pytest.mark.slow),
    ],
)
def test_ascents_equal_numpy(layout, sweeps):
    max_sweeps = 0
    for seed in range(25):
        x, inits = (
            make_problem(seed, layout),
            [None, *make_random_policies(seed, 1), *make_random_policies(seed, 1, randomized=True)],
        )
        result, expected = (
            k.prepare(x, T).ascend(inits, sweep_type=sweeps) for k in (JaxBackend(), REFERENCE)
        )
        assert_same_ascents(result, expected)
        max_sweeps = max(max_sweeps, *(ascent_result.n_sweeps for ascent_result in expected))
    assert max_sweeps > 3


def test_long_rows_are_split():
    x = make_problem(0, "split")
    with arrays.enable_float64():
        on_device = JaxBackend().prepare(x, T).device_arrays.get_arrays(x)
    assert on_device.part_rows is not None
    assert on_device.p.size <= 2 * x.p.size
    for seed in range(10):
        x = make_problem(seed, "split")
        assert_same_ascents(
            JaxBackend().prepare(x, T).ascend([None]), REFERENCE.prepare(x, T).ascend([None])
        )


def test_tolerance_and_limit_end_an_ascent():
    stop_reasons = set()
    for seed in range(40):
        x, inits = (
            make_problem(seed, "dense"),
            [None, *make_random_policies(seed, 1, randomized=True)],
        )
        for limits in ({"tol": 0.01}, {"max_sweeps": 2}, {"max_sweeps": 1, "tol": 1e9}):
            results, expected = (
                k.prepare(x, T).ascend(inits, **limits) for k in (JaxBackend(), REFERENCE)
            )
            assert_same_ascents(results, expected)
            stop_reasons |= {result.stop_reason for result in results}
    assert stop_reasons == {"local_optimum", "tolerance", "limit"}


def test_no_inits_have_no_results():
    assert JaxBackend().prepare(make_problem(0, "dense"), T).ascend([]) == []


# ------------------------------------------------------------------ watching
@functools.cache
def make_long_ascent() -> tuple[Problem, list[PolicyTable], AscentResult]:
    """An instance, its start and its end after many of the paper's sweeps."""
    x, init = make_problem(21, "padded"), make_random_policies(21, 1)
    result = REFERENCE.prepare(x, T).ascend(init, sweep_type="paper")[0]
    assert result.n_sweeps > 8
    return x, init, result


class StopError(Exception):
    pass


def test_a_callback_sees_the_ascent_and_changes_nothing():
    """It is called with the init and after every sweep."""
    x, init, expected = make_long_ascent()
    calls: list[tuple[PolicyTable, float]] = []
    default_dtype = jax.numpy.ones(1).dtype

    def record(policy: PolicyTable, value: float) -> None:
        assert (
            jax.numpy.ones(1).dtype == default_dtype
        )  # our settings of jax are not the callback's
        calls.append((policy.copy(), value))

    assert_same_ascents(
        JaxBackend().prepare(x, T).ascend(init, sweep_type="paper", callback=record), [expected]
    )
    assert_close([value for _, value in calls], expected.trace)
    for policy, value in calls:
        first_values = REFERENCE.prepare(x, T).backward("policy", policy=policy).first_values
        assert_close(x.compute_returns(first_values) @ x.weights, value)


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
def test_a_callback_stops_an_ascent(error):
    x, init, expected = make_long_ascent()
    values: list[float] = []

    def raise_on_third_call(policy: PolicyTable, value: float) -> None:
        values.append(value)
        if len(values) == 3:
            raise error

    with pytest.raises(error):
        JaxBackend().prepare(x, T).ascend(init, sweep_type="paper", callback=raise_on_third_call)
    assert values == sorted(values)
    assert len(values) == 3
    assert values[-1] < expected.value
    assert_same_ascents(
        JaxBackend().prepare(x, T).ascend(init, sweep_type="paper"), [expected]
    )  # the kernel works on


def test_callbacks_of_randomized_inits_begin_after_one_sweep():
    x, init = make_problem(3, "dense"), make_random_policies(3, 1, randomized=True)
    policies: dict[str, list[PolicyTable]] = {}
    for backend in (JaxBackend(), REFERENCE):
        callback = lambda policy, value, name=backend.name: policies.setdefault(name, []).append(
            policy
        )
        backend.prepare(x, T).ascend(init, callback=callback)
    assert (policies["jax"][0] == policies["numpy"][0]).all()


def test_a_callback_sees_one_init_after_the_other():
    for seed in range(5):
        x, inits = make_problem(seed, "dense"), [*make_random_policies(seed, 2), None]
        values: list[float] = []
        callback = lambda policy, value, values=values: values.append(value)
        results = JaxBackend().prepare(x, T).ascend(inits, callback=callback)
        assert_same_ascents(results, REFERENCE.prepare(x, T).ascend(inits))
        first_calls = [values.index(result.trace[0]) for result in results]
        assert first_calls == sorted(first_calls)
        assert values[0] == results[0].trace[0]
        assert values[-1] == results[-1].value


def test_an_ascent_ends_before_the_next_init_is_made():
    x, values = make_problem(0, "dense"), []
    expected = REFERENCE.prepare(x, T).ascend([None])[0]

    def inits():
        yield None
        assert_close(values[-1], expected.value)
        raise StopError

    with pytest.raises(StopError):
        JaxBackend().prepare(x, T).ascend(
            inits(), callback=lambda policy, value: values.append(value)
        )
    assert_close(values[0], expected.trace[0])


def test_compiling_is_counted_and_announced(monkeypatch):
    monkeypatch.setattr(arrays, "ANNOUNCE_SECONDS", 0.0)
    texts: list[object] = []
    monkeypatch.setattr(timing.progress_line, "update", texts.append)
    before, policy = timing.get_compile_seconds(), make_random_policies(0, 1)[0][: T - 1]
    with record_compilations() as events:
        JaxBackend().prepare(make_problem(0, "padded"), T - 1).forward(policy)
    assert events
    assert "compiling for this machine, once" in texts
    assert timing.get_compile_seconds() > before


def test_callbacks_compile_nothing_new():
    x, init, _ = make_long_ascent()
    run = functools.partial(JaxBackend().prepare(x, T).ascend, init, sweep_type="paper")
    run()
    with record_compilations() as events:
        for limits in ({}, {"max_sweeps": 3}, {"tol": 0.5}, {"tol": 0}):
            run(callback=lambda policy, value: None, **limits)
            run(**limits)
    assert events == []
    with record_compilations() as events:
        jax.jit(lambda y: y + 1.0)(1.0)
    assert events  # the listener hears


# ------------------------------------------------------------------ objectives
def make_space(backend: kernels.Backend, seed: int, layout: str) -> MarkovSpace:
    context = SolveContext(make_random_model(seed, layout), T, backend)
    context.problem = make_problem(seed, layout)
    return MarkovSpace(context)


@pytest.mark.parametrize(
    ("layout", "objective_format"),
    [
        ("dense", "cvar:{}"),
        ("padded", "regret:mean-cvar:{}:0.4"),
        pytest.param("padded", "worst", marks=pytest.mark.slow),
        pytest.param("padded", "entropic:{}", marks=pytest.mark.slow),
    ],
)
def test_rounds_of_single_changes_equal_numpy(layout, objective_format, monkeypatch):
    """All numbers of an objective share what is compiled."""
    n_changes = 0
    for seed in range(8):
        objective = as_objective(objective_format.format(0.1 + 0.1 * seed))
        device, host = (make_space(backend, seed, layout) for backend in (JaxBackend(), REFERENCE))
        init = host.project(*make_random_policies(seed, 1))
        inputs = init, host.compute_returns(init), objective
        expected = host.improve(*inputs)
        device.context.oracle_returns()
        with monkeypatch.context() as patch, record_compilations() as events:
            patch.setattr(device, "evaluator", None)  # nothing is computed in numpy
            changed, returns = device.improve(*inputs)
        np.testing.assert_array_equal(changed, expected[0])
        assert_close(returns, expected[1])
        assert bool(events) <= (seed == 0)
        n_changes += int((changed != init).sum())
    assert n_changes > 8


class UserCVaR(mmdp.objectives.CVaR):
    """A user's class that computes in numpy, though it is derived from one that need not."""

    def value(self, returns, weights):
        return super().value(np.sort(returns, axis=-1), weights)


@pytest.mark.parametrize("objective", [UserCVaR(0.4), mmdp.objectives.EVaR(0.3)], ids=str)
def test_objectives_that_compute_in_numpy_equal_numpy(objective):
    for seed in range(3):
        device, host = (
            make_space(backend, seed, "padded") for backend in (JaxBackend(), REFERENCE)
        )
        init = host.project(*make_random_policies(seed, 1))
        inputs = init, host.compute_returns(init), objective
        result, expected = device.improve(*inputs), host.improve(*inputs)
        np.testing.assert_array_equal(result[0], expected[0])
        assert_close(result[1], expected[1])
        assert (result[0] != init).any()


# ------------------------------------------------------------------ the device and its settings
def test_settings_of_jax_stay_as_they_are():
    before, ones = jax.config.jax_enable_x64, jax.numpy.ones(3).dtype
    result = JaxBackend().prepare(make_problem(3, "dense"), T).ascend([None])[0]
    assert result.returns.dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(3).dtype == ones


@pytest.fixture
def transfer_sizes(monkeypatch) -> list[int]:
    """The sizes of the arrays that go to a device."""
    sizes: list[int] = []
    original = arrays.DevicePlacement.put

    def put(self, array, **options):
        sizes.append(0 if array is None else np.size(array))
        return original(self, array, **options)

    monkeypatch.setattr(arrays.DevicePlacement, "put", put)
    return sizes


@pytest.mark.parametrize(
    ("layout", "objective"),
    [
        ("padded", mmdp.objectives.Mean()),
        ("dense", mmdp.objectives.CVaR(0.3)),
        pytest.param("dense", mmdp.objectives.Mean(), marks=pytest.mark.slow),
        pytest.param("padded", mmdp.objectives.CVaR(0.3), marks=pytest.mark.slow),
    ],
)
def test_p_is_transferred_once_per_solve(layout, objective, transfer_sizes):
    model = make_random_model(5, layout)
    solution = mmdp.solve(model, T, mmdp.methods.CADP(), objective=objective, backend="jax")
    expected = mmdp.solve(model, T, mmdp.methods.CADP(), objective=objective, backend="numpy")
    assert solution.value == pytest.approx(expected.value, rel=1e-9)
    assert transfer_sizes.count(model.problem.p.size) == 1
    other_sizes = {np.size(array) for array in model.problem[1:]}
    assert model.problem.p.size not in other_sizes | {M * S * A, T * S * M, T * S * A}


def test_replaced_problems_share_the_transitions(transfer_sizes):
    x = make_problem(5, "dense")
    prepared = JaxBackend().prepare(x, T)
    assert isinstance(prepared, JaxProblem)
    with arrays.enable_float64():
        first, second = (prepared.device_arrays.get_arrays(x) for _ in range(2))
        discounted = prepared.replace(discount=0.25)
        discounted_arrays = discounted.device_arrays.get_arrays(discounted.problem)
    assert first.p is second.p is discounted_arrays.p
    assert first.r is second.r is discounted_arrays.r
    assert discounted_arrays.discount == 0.25
    assert transfer_sizes.count(x.p.size) == 1
    higher_rewards = prepared.replace(rewards=x.r + 1.0)
    policy = make_random_policies(5, 1)[0]
    before, after = (
        variant.backward("policy", policy=policy).first_values
        for variant in (prepared, higher_rewards)
    )
    np.testing.assert_allclose(after - before, (x.discount ** np.arange(T)).sum(), rtol=1e-9)
    assert transfer_sizes.count(x.p.size) == 1


def test_device_arrays_are_freed_with_the_problem():
    prepared = JaxBackend().prepare(make_problem(5, "dense"), T)
    prepared.forward(make_random_policies(5, 1)[0])
    with arrays.enable_float64():
        p = weakref.ref(prepared.device_arrays.get_arrays(prepared.problem).p)
    del prepared
    gc.collect()
    assert p() is None


TWO_DEVICE_SCRIPT = """
import json
import jax, numpy as np
from mmdp.core.kernels.jax.arrays import enable_float64
from mmdp.core.kernels.jax.backend import JaxBackend
from tests.core.kernels.instances import CASES, T, make_problem

assert len(jax.devices()) == 2
backend = JaxBackend(devices=jax.devices())
results = []
for layout, inits in CASES:
    x = make_problem(2, layout)
    with enable_float64():
        p = backend.prepare(x, T).device_arrays.get_arrays(x).p
    assert len(p.sharding.device_set) == 2 and p.addressable_shards[0].data.shape[-1] == 3
    ascents = backend.prepare(x, T).ascend(inits)
    results.append([[y.value, y.n_sweeps, y.returns.tolist()] for y in ascents])
    results.append(backend.prepare(x, T).forward(ascents[0].policy).tolist())
print(json.dumps(results))
"""


def test_models_are_sharded_over_two_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", TWO_DEVICE_SCRIPT],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr
    results = iter(json.loads(process.stdout))
    for layout, inits in CASES:
        x = make_problem(2, layout)
        expected = REFERENCE.prepare(x, T).ascend(inits)
        for (value, sweeps, returns), ascent_result in zip(next(results), expected, strict=True):
            assert_close(value, ascent_result.value)
            assert_close(returns, ascent_result.returns)
            assert sweeps == ascent_result.n_sweeps
        assert_close(next(results), REFERENCE.prepare(x, T).forward(expected[0].policy))


# ------------------------------------------------------------------ the front door
def test_solve_accepts_the_backend():
    model = make_random_model(1, "padded")
    method = mmdp.methods.CADP(sweep_type="paper", n_init=1)
    values: list[float] = []
    for backend in ("jax", JaxBackend()):
        solution = mmdp.solve(
            model,
            T,
            method,
            backend=backend,
            time_limit=60,
            callback=lambda progress: values.append(progress.best_value),
        )
        assert solution.provenance.backend == "jax"
        expected = mmdp.solve(model, T, method, backend="numpy")
        assert_close(solution.returns, expected.returns)
        assert values
        assert values[-1] == pytest.approx(expected.value, rel=1e-9)


def test_without_jax_the_remedy_is_named(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("mmdp.core.kernels.jax"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match=r"pip install 'mmdp\[jax\]'"):
        kernels.get_backend("jax")


def test_models_that_a_device_cannot_hold_are_refused_with_their_size(monkeypatch):
    x = make_problem(0, "dense")
    needed = 8 * M * (T * S * A * S + T * S * (1 + A))
    monkeypatch.setattr(arrays, "get_device_memory", lambda device: needed - 1)
    with pytest.raises(InputError, match=r"5 models would take 1\d\d kB on a device.*'numba'"):
        JaxBackend().prepare(x, T).ascend([None])
    monkeypatch.setattr(arrays, "get_device_memory", lambda device: needed)
    assert_same_ascents(
        JaxBackend().prepare(x, T).ascend([None]), REFERENCE.prepare(x, T).ascend([None])
    )


def test_transitions_stay_on_the_device_as_long_as_their_model() -> None:
    model = mmdp.domains.garnet(n_models=3, n_states=4, n_actions=2, branching=2).train
    backend = JaxBackend()
    first, second = (backend.prepare(model.problem, 3) for _ in range(2))
    first.backward("per_model")
    assert second.device_arrays.transitions["p"] is first.device_arrays.transitions["p"]
    other = model.replace(discount=0.5)  # the same tables
    third = backend.prepare(other.problem, 3)
    expected = kernels.get_backend("numpy").prepare(other.problem, 3).backward("per_model")
    assert third.device_arrays.transitions is first.device_arrays.transitions
    np.testing.assert_allclose(third.backward("per_model").first_values, expected.first_values)
    n_kept = len(arrays.DeviceArrays._caches.items)
    del model, other, first, second, third, expected
    gc.collect()
    assert len(arrays.DeviceArrays._caches.items) == n_kept - 1


def test_transitions_of_other_models_leave_a_device_that_is_full(monkeypatch) -> None:
    first, second = (
        JaxBackend().prepare(
            mmdp.domains.garnet(
                n_models=3, n_states=4, n_actions=2, branching=2, seed=seed
            ).train.problem,
            3,
        )
        for seed in (0, 1)
    )
    expected = first.backward("per_model").first_values
    monkeypatch.setattr(arrays.DevicePlacement, "free_memory", 100.0)
    second.backward("per_model")
    assert second.device_arrays.transitions
    assert not first.device_arrays.transitions
    np.testing.assert_array_equal(first.backward("per_model").first_values, expected)
