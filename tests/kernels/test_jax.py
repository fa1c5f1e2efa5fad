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
from mmdp import clock, kernels
from mmdp.errors import InputError
from mmdp.kernels.numpy.kernel import NumpyKernel
from mmdp.kernels.problem import Ascent, Job, Problem, Table
from mmdp.objective import as_objective
from mmdp.search.context import Context
from mmdp.search.landscape import Landscape, climbed
from mmdp.search.tables import Tables
from mmdp.testing import check_kernel
from tests.conftest import ROOT
from tests.kernels.instances import (
    CASES,
    A,
    M,
    S,
    T,
    close,
    instance,
    random_model,
    same_ends,
    tables,
)

jax = pytest.importorskip("jax", reason="jax is not installed; pip install 'mmdp[jax]'")

from mmdp.kernels.jax import arrays, ascent  # noqa: E402
from mmdp.kernels.jax.kernel import JaxKernel, JaxPlan  # noqa: E402

TRUTH = NumpyKernel()
ALONE, TOGETHER = (
    JaxKernel(tuning=JaxKernel().tuning._replace(wide=wide)) for wide in (False, True)
)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """What jax compiles inside."""
    found: list[str] = []

    def hear(event: str, seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


# ------------------------------------------------------------------ passes
@pytest.mark.parametrize("kind", ["dense", "padded"])
def test_passes_equal_numpy(kind):
    for seed in range(20):
        x, sharp, soft = instance(seed, kind), *tables(seed, 1), *tables(seed, 1, soft=True)
        for policy in (sharp, soft):
            b = TRUTH.plan(x, T).forward(policy)
            close(JaxKernel().plan(x, T).forward(policy), b)
            same_backward(x, "given", policy=policy, weights=b, keep=("gradient", "q"))
        b = TRUTH.plan(x, T).forward(sharp)
        same_backward(x, "given", policy=sharp, keep=("values", "actions"))
        same_backward(x, "weighted", weights=x.prior_weights(), keep=("values",))
        same_backward(x, "weighted", weights=b, policy=sharp)
        same_backward(x, "own", keep=("actions",))


def same_backward(x: Problem, choice: str, **options: object) -> None:
    found, expected = (k.plan(x, T).backward(choice, **options) for k in (JaxKernel(), TRUTH))
    for name, part in expected._asdict().items():
        assert (part is None) == (getattr(found, name) is None), f"{choice}: {name}"
        if part is not None:
            close(getattr(found, name), part)


@pytest.mark.slow
def test_every_shape_equals_numpy():
    check_kernel(JaxKernel(), seeds=range(4))


# ------------------------------------------------------------------ ascents
@pytest.mark.parametrize(
    ("kind", "sweeps"), [("dense", "two-way"), ("padded", "two-way"), ("padded", "paper")]
)
def test_ascents_equal_numpy(kind, sweeps):
    longest = 0
    for seed in range(25):
        x, starts = instance(seed, kind), [None, *tables(seed, 1), *tables(seed, 1, soft=True)]
        found, expected = (k.plan(x, T).ascend(starts, sweeps=sweeps) for k in (JaxKernel(), TRUTH))
        same_ends(found, expected)
        longest = max(longest, *(end.sweeps for end in expected))
    assert longest > 3


@pytest.mark.parametrize("kind", ["dense", "split"])
def test_starts_together_equal_numpy(kind):
    assert JaxKernel().tuning.wide == (jax.devices()[0].platform != "cpu")
    for seed in range(20):
        x, starts = instance(seed, kind), [*tables(seed, 3), None]
        if kind == "dense":
            starts.insert(2, *tables(seed, 1, soft=True))  # goes alone
        same_ends(TOGETHER.plan(x, T).ascend(starts), TRUTH.plan(x, T).ascend(starts))


def test_as_many_starts_go_together_as_fit():
    x, starts = instance(0, "dense"), tables(0, 5)
    two = JaxKernel(tuning=TOGETHER.tuning._replace(together=2 * 8 * T * S * A * M))
    job = Job(0.0, 1000, two_way=True, watch=None)

    def groups(kernel: JaxKernel, job: Job) -> list[list[int]]:
        plan = kernel.plan(x, T)
        assert isinstance(plan, JaxPlan)
        return [list(group) for group in plan._groups(starts, job)]

    assert groups(two, job) == [[0, 1], [2, 3], [4]]
    assert groups(two, job._replace(two_way=False)) == [[0, 1, 2, 3, 4]]
    assert groups(ALONE, job) == [[0], [1], [2], [3], [4]]


def test_long_rows_are_split():
    x = instance(0, "split")
    with arrays.double():
        on_device = JaxKernel().plan(x, T).held.arrays(x)
    assert on_device.owner is not None
    assert on_device.p.size <= 2 * x.p.size
    for seed in range(10):
        x = instance(seed, "split")
        same_ends(JaxKernel().plan(x, T).ascend([None]), TRUTH.plan(x, T).ascend([None]))


def test_tolerance_and_limit_end_an_ascent():
    ends = set()
    for seed in range(40):
        x, starts = instance(seed, "dense"), [None, *tables(seed, 1, soft=True)]
        for limits in ({"tol": 0.01}, {"max_sweeps": 2}, {"max_sweeps": 1, "tol": 1e9}):
            found, expected = (k.plan(x, T).ascend(starts, **limits) for k in (JaxKernel(), TRUTH))
            same_ends(found, expected)
            ends |= {end.end for end in found}
    assert ends == {"maximum", "tolerance", "limit"}


def test_no_starts_have_no_ends():
    assert JaxKernel().plan(instance(0, "dense"), T).ascend([]) == []


# ------------------------------------------------------------------ watching
@functools.cache
def long_climb() -> tuple[Problem, list[Table], Ascent]:
    """An instance, its start and its end after many of the paper's sweeps."""
    x, start = instance(21, "padded"), tables(21, 1)
    end = TRUTH.plan(x, T).ascend(start, sweeps="paper")[0]
    assert end.sweeps > 8
    return x, start, end


class Stop(Exception):
    pass


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_watch_sees_the_climb_and_changes_nothing(seconds, monkeypatch):
    """With blocks of one sweep, and with blocks that double."""
    monkeypatch.setattr(ascent, "WATCHED", seconds)
    x, start, expected = long_climb()
    seen: list[tuple[Table, float]] = []
    plain = jax.numpy.ones(1).dtype

    def watch(policy: Table, value: float) -> None:
        assert jax.numpy.ones(1).dtype == plain  # our settings of jax are not the watcher's
        seen.append((policy.copy(), value))

    same_ends(JaxKernel().plan(x, T).ascend(start, sweeps="paper", watch=watch), [expected])
    made = len(expected.trace)
    after = [0, 1, 3, 7, made - 1] if seconds > 1 else range(made)
    close([value for _, value in seen], [expected.trace[n] for n in after])
    for policy, value in seen:
        first = TRUTH.plan(x, T).backward("given", policy=policy).first
        close(x.returns(first) @ x.weights, value)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_watch_stops_an_ascent(error):
    x, start, end = long_climb()
    seen: list[float] = []

    def watch(policy: Table, value: float) -> None:
        seen.append(value)
        if len(seen) == 3:
            raise error

    with pytest.raises(error):
        JaxKernel().plan(x, T).ascend(start, sweeps="paper", watch=watch)
    assert seen == sorted(seen)
    assert len(seen) == 3
    assert seen[-1] < end.value
    same_ends(JaxKernel().plan(x, T).ascend(start, sweeps="paper"), [end])  # the kernel works on


def test_watch_of_a_randomised_start_begins_with_its_first_sweep():
    x, start = instance(3, "dense"), tables(3, 1, soft=True)
    seen: dict[str, list[Table]] = {}
    for kernel in (JaxKernel(), TRUTH):
        watch = lambda policy, value, name=kernel.name: seen.setdefault(name, []).append(policy)
        kernel.plan(x, T).ascend(start, watch=watch)
    assert (seen["jax"][0] == seen["numpy"][0]).all()


def test_watch_of_starts_together_sees_the_best():
    for seed in range(10):
        x, starts, seen = instance(seed, "dense"), tables(seed, 4), []
        ends = TOGETHER.plan(x, T).ascend(
            starts, watch=lambda policy, value, seen=seen: seen.append(value)
        )
        assert np.diff(seen).min() >= -1e-9
        assert seen[0] == pytest.approx(ends[0].trace[0], rel=1e-12)
        assert seen[1] == max(end.trace[0] for end in ends)
        assert seen[-1] == max(end.value for end in ends)


def test_a_start_is_seen_before_the_others_are_made():
    x, found = instance(0, "dense"), {}
    for kernel in (ALONE, TOGETHER):
        seen: list[float] = []

        def starts(seen=seen):
            yield None
            yield tables(0, 1)[0]
            assert seen
            raise Stop

        with pytest.raises(Stop):
            kernel.plan(x, T).ascend(
                starts(), watch=lambda policy, value, seen=seen: seen.append(value)
            )
        found[kernel] = seen[0]
    assert found[ALONE] == pytest.approx(found[TOGETHER], rel=1e-12)


def test_compiling_is_counted_and_announced(monkeypatch):
    monkeypatch.setattr(arrays, "LARGE", 0.0)
    heard: list[int] = []
    before, start = clock.spent(), tables(0, 1)[0][: T - 1]
    with compilations() as found, clock.listening(lambda: heard.append(1)):
        JaxKernel().plan(instance(0, "padded"), T - 1).forward(start)
    assert found
    assert heard
    assert clock.spent() > before


def test_watching_compiles_nothing_new(monkeypatch):
    x, start, _ = long_climb()
    run = functools.partial(JaxKernel().plan(x, T).ascend, start, sweeps="paper")
    run()
    with compilations() as found:
        for seconds in (1e-9, 1e9):
            monkeypatch.setattr(ascent, "WATCHED", seconds)
            for limits in ({}, {"max_sweeps": 3}, {"tol": 0.5}, {"tol": 0}):
                run(watch=lambda policy, value: None, **limits)
                run(**limits)
    assert found == []
    with compilations() as found:
        jax.jit(lambda y: y + 1.0)(1.0)
    assert found  # the listener hears


# ------------------------------------------------------------------ objectives
def landscape(kernel: kernels.Kernel, seed: int, kind: str) -> Tables:
    context = Context(random_model(seed, kind), T, kernel)
    context.plan = kernel.plan(instance(seed, kind), T)
    return Tables(context)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("dense", "cvar:{}"), ("padded", "worst"), ("padded", "entropic:{}"),
        ("padded", "regret:mean-cvar:{}:0.4"),
    ],
)  # fmt: skip
def test_rounds_of_single_changes_equal_numpy(kind, text, monkeypatch):
    """All numbers of an objective share what is compiled."""
    moved = 0
    for seed in range(8):
        objective = as_objective(text.format(0.1 + 0.1 * seed))
        device, host = (landscape(kernel, seed, kind) for kernel in (ALONE, TRUTH))
        start = host.inside(*tables(seed, 1))
        given = start, host.returns(start), objective
        expected = climbed(host, *given)
        device.context.own()
        with monkeypatch.context() as only, compilations() as found:
            only.setattr(Landscape, "step", None)
            changed, returns = device.step(*given)
        np.testing.assert_array_equal(changed, expected[0])
        close(returns, expected[1])
        assert bool(found) <= (seed == 0)
        moved += int((changed != start).sum())
    assert moved > 8


class Own(mmdp.CVaR):
    """A user's class that computes in numpy, though it is derived from one that need not."""

    def value(self, returns, weights):
        return super().value(np.sort(returns, axis=-1), weights)


@pytest.mark.parametrize("objective", [Own(0.4), mmdp.EVaR(0.3)], ids=str)
def test_objectives_that_compute_in_numpy_equal_numpy(objective):
    for seed in range(3):
        device, host = (landscape(kernel, seed, "padded") for kernel in (ALONE, TRUTH))
        start = host.inside(*tables(seed, 1))
        given = start, host.returns(start), objective
        found, expected = device.step(*given), climbed(host, *given)
        np.testing.assert_array_equal(found[0], expected[0])
        close(found[1], expected[1])
        assert (found[0] != start).any()


# ------------------------------------------------------------------ the device and its settings
def test_settings_of_jax_stay_as_they_are():
    before, ones = jax.config.jax_enable_x64, jax.numpy.ones(3).dtype
    found = JaxKernel().plan(instance(3, "dense"), T).ascend([None])[0]
    assert found.returns.dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(3).dtype == ones


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """The sizes of the arrays that go to a device."""
    sizes: list[int] = []
    plain = arrays.Place.put

    def put(self, array, models=None):
        sizes.append(0 if array is None else np.size(array))
        return plain(self, array, models)

    monkeypatch.setattr(arrays.Place, "put", put)
    return sizes


@pytest.mark.parametrize("objective", [mmdp.Mean(), mmdp.CVaR(0.3)])
@pytest.mark.parametrize("kind", ["dense", "padded"])
def test_p_goes_to_the_device_once_per_solve(kind, objective, sent):
    model = random_model(5, kind)
    found = mmdp.solve(model, T, mmdp.CADP(), objective=objective, backend="jax")
    expected = mmdp.solve(model, T, mmdp.CADP(), objective=objective, backend="numpy")
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    assert sent.count(model.problem.p.size) == 1
    others = {np.size(part) for part in model.problem[1:]}
    assert model.problem.p.size not in others | {M * S * A, T * S * M, T * S * A}


def test_a_plan_with_other_numbers_shares_the_transitions(sent):
    x = instance(5, "dense")
    plan = JaxKernel().plan(x, T)
    assert isinstance(plan, JaxPlan)
    with arrays.double():
        first, again = (plan.held.arrays(x) for _ in range(2))
        cheaper = plan.but(discount=0.25)
        other = cheaper.held.arrays(cheaper.problem)
    assert first.p is again.p is other.p
    assert first.r is again.r is other.r
    assert other.discount == 0.25
    assert sent.count(x.p.size) == 1
    richer = plan.but(rewards=x.r + 1.0)
    policy = tables(5, 1)[0]
    before, after = (each.backward("given", policy=policy).first for each in (plan, richer))
    np.testing.assert_allclose(after - before, (x.discount ** np.arange(T)).sum(), rtol=1e-9)
    assert sent.count(x.p.size) == 1


def test_what_a_plan_holds_goes_with_it():
    plan = JaxKernel().plan(instance(5, "dense"), T)
    plan.forward(tables(5, 1)[0])
    with arrays.double():
        p = weakref.ref(plan.held.arrays(plan.problem).p)
    del plan
    gc.collect()
    assert p() is None


MESH = """
import json
import jax, numpy as np
from mmdp.kernels.jax.arrays import double
from mmdp.kernels.jax.kernel import JaxKernel
from mmdp.kernels.jax.rows import Tuning
from tests.kernels.instances import CASES, T, instance

assert len(jax.devices()) == 2
kernel = JaxKernel(devices=jax.devices(), tuning=Tuning(wide=True))
found = []
for kind, starts in CASES:
    x = instance(2, kind)
    with double():
        p = kernel.plan(x, T).held.arrays(x).p
    assert len(p.sharding.device_set) == 2 and p.addressable_shards[0].data.shape[-1] == 3
    ends = kernel.plan(x, T).ascend(starts)
    found.append([[end.value, end.sweeps, end.returns.tolist()] for end in ends])
    found.append(kernel.plan(x, T).forward(ends[0].policy).tolist())
print(json.dumps(found))
"""


def test_models_spread_over_two_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", MESH], env=env, capture_output=True, text=True, check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = iter(json.loads(run.stdout))
    for kind, starts in CASES:
        x = instance(2, kind)
        ends = TRUTH.plan(x, T).ascend(starts)
        for (value, sweeps, returns), end in zip(next(found), ends, strict=True):
            close(value, end.value)
            close(returns, end.returns)
            assert sweeps == end.sweeps
        close(next(found), TRUTH.plan(x, T).forward(ends[0].policy))


# ------------------------------------------------------------------ the front door
def test_solve_takes_the_kernel():
    model = random_model(1, "padded")
    method = mmdp.CADP(sweeps="paper", starts=1)
    seen: list[float] = []
    for backend in ("jax", JaxKernel()):
        solution = mmdp.solve(
            model, T, method, backend=backend, time_limit=60,
            callback=lambda progress: seen.append(progress.best),
        )  # fmt: skip
        assert solution.provenance.backend == "jax"
        expected = mmdp.solve(model, T, method, backend="numpy")
        close(solution.returns, expected.returns)
        assert seen
        assert seen[-1] == pytest.approx(expected.value, rel=1e-9)


def test_without_jax_the_remedy_is_named(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("mmdp.kernels.jax"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match=r"pip install 'mmdp\[jax\]'"):
        kernels.get("jax")


def test_models_that_a_device_cannot_hold_are_refused_with_their_size(monkeypatch):
    x = instance(0, "dense")
    needed = 8 * M * (T * S * A * S + T * S * (1 + A))
    monkeypatch.setattr(arrays, "room_on", lambda device: needed - 1)
    with pytest.raises(InputError, match=r"5 models would take 1\d\d kB on a device.*'numba'"):
        JaxKernel().plan(x, T).ascend([None])
    monkeypatch.setattr(arrays, "room_on", lambda device: needed)
    same_ends(JaxKernel().plan(x, T).ascend([None]), TRUTH.plan(x, T).ascend([None]))
