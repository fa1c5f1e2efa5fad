"""The one interface: who is chosen, what the conformance kit notices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

import mmdp
from mmdp import clock, kernels
from mmdp.kernels.plan import Plan
from mmdp.testing import check_kernel, random_model
from tests.kernels.instances import Changed


def test_an_unknown_backend_names_those_there_are():
    with pytest.raises(mmdp.InputError, match="no backend is called 'cuda'; choose one of auto"):
        kernels.get("cuda")


def in_a_fresh_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_small_problems_do_not_wait_for_numba():
    """Also those of 100 models, 51 states and 5 actions, and those without a last decision."""
    code = """
import sys, math, mmdp
model, _ = mmdp.domains.riverswim(seed=0)
print(mmdp.solve(model, 50).provenance.backend, mmdp.solve(model, math.inf).provenance.backend,
      mmdp.solve(mmdp.domains.population(100, 1, seed=0).train, 50).provenance.backend,
      "numba" in sys.modules)
"""
    assert in_a_fresh_process(code) == "numpy numpy numpy False"


def test_the_same_call_takes_the_same_backend():
    """Whatever was called before it, also numba, and however often."""
    code = """
import math, mmdp
from mmdp import kernels
model, _ = mmdp.domains.riverswim(seed=0)
def chosen():
    return (mmdp.solve(model, 50).provenance.backend, mmdp.evaluate(solution, model)
            .provenance.backend, [kernels.get("auto", model.problem, 50, passes=n).name
            for n in (1, 400, 2000, math.inf)])
solution = mmdp.solve(model, 50)
first = chosen()
for _ in range(2):
    assert chosen() == first
mmdp.solve(model.subset(range(3)), 4, backend="numba")
assert chosen() == first
print(*first[:2], *first[2])
"""
    assert in_a_fresh_process(code) == "numpy numpy numpy numpy numba numba"


def test_larger_work_never_goes_back_to_numpy():
    """numpy up to some size, numba from there on: by passes, decisions and models alike."""
    x = random_model(3, n_models=6, n_states=5, n_actions=3, horizon=0).problem
    for names in (
        [kernels.get("auto", x, 20, passes=2**k).name for k in range(30)],
        [kernels.get("auto", x, 2**k).name for k in range(30)],
        [kernels.get("auto", x, 20, passes=float("inf")).name],
    ):
        assert names == sorted(names, reverse=True)
        assert names[-1] == "numba"


def test_without_a_compiler_numpy_does_the_work():
    code = """
import mmdp
model, _ = mmdp.domains.riverswim(seed=0)
print(mmdp.solve(model, 20, "cadp").provenance.backend)
try:
    mmdp.solve(model, 20, backend="numba")
except mmdp.InputError as error:
    print(error)
"""
    found = in_a_fresh_process(code, NUMBA_DISABLE_JIT="1").splitlines()
    assert found[0] == "numpy"
    assert "NUMBA_DISABLE_JIT switches off; unset it or choose backend 'numpy'" in found[1]


# ------------------------------------------------------------------ the conformance kit
def with_ascend(change) -> Changed:
    """A kernel whose plans ascend as ``change(plain, plan, starts, options)`` says."""

    def methods(plain):
        return {
            "ascend": lambda plan, starts, **options: change(plain.ascend, plan, starts, options)
        }

    return Changed("wrong", methods)


FAULTS = {
    "returns": lambda end: end._replace(returns=end.returns + 1e-6),
    "trace": lambda end: end._replace(trace=[*end.trace, end.value]),
    "sweeps": lambda end: end._replace(sweeps=end.sweeps + 1),
    "end": lambda end: end._replace(end="limit" if end.end == "maximum" else "maximum"),
    "policy": lambda end: end._replace(policy=np.zeros_like(end.policy)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ascent_is_noticed(fault):
    with pytest.raises(AssertionError, match="ascend, two-way.*wrong"):
        check_kernel(
            with_ascend(
                lambda ascend, plan, starts, options: [
                    FAULTS[fault](end) for end in ascend(plan, starts, **options)
                ]
            ),
            seeds=range(6),
        )


def test_an_ascent_that_stops_early_is_noticed():
    def early(ascend, plan, starts, options):
        return ascend(plan, starts, **{**options, "max_sweeps": 1})

    with pytest.raises(AssertionError, match="ascend, two-way.*wrong"):
        check_kernel(with_ascend(early), seeds=range(6))


@pytest.mark.parametrize(
    "fault",
    [
        lambda plain: {"watch": lambda policy, value: plain(0 * policy, value)},
        lambda plain: {"watch": lambda policy, value: _swallowed(plain, policy, value)},
        lambda plain: {"tol": 0.0},
    ],
)
def test_a_broken_promise_of_an_ascent_is_noticed(fault):
    """Another policy to watch, what it raises lost, the tolerance ignored."""

    def broken(ascend, plan, starts, options):
        changed = fault(options.get("watch") or (lambda policy, value: None))
        return ascend(plan, starts, **{**options, **changed})

    with pytest.raises(AssertionError, match="wrong"):
        check_kernel(with_ascend(broken), seeds=range(12))


def _swallowed(watch, policy, value):
    with contextlib.suppress(Exception):
        watch(policy, value)


def test_masks_of_another_shape_are_refused():
    x = random_model(3, n_models=4, n_states=3, n_actions=2, horizon=0, masks=False).problem
    for mask in (np.ones((1, 3, 2)), np.ones((1, 2, 2), bool), np.ones((3, 2), bool)):
        with pytest.raises(mmdp.InputError, match="allowed actions must be booleans of shape"):
            x.restricted(mask)
    with pytest.raises(mmdp.InputError, match="no action is allowed in state 0 at time 0"):
        x.restricted(np.zeros((2, 3, 2), bool))
    short = x.restricted(np.ones((3, 3, 2), bool))
    for backend in ("numpy", "numba"):
        with pytest.raises(mmdp.InputError, match="allowed covers 3 time steps, the horizon is 5"):
            kernels.get(backend).plan(short, 5).ascend([None])


def test_what_is_no_kernel_is_refused():
    with pytest.raises(mmdp.InputError, match="backend must be a name or a kernel, not 3"):
        kernels.get(3)


def test_what_watch_raises_ends_the_ascent():
    model = random_model(6, n_models=5, n_states=5, n_actions=3, horizon=0)
    for backend in ("numpy", "numba"):

        def stop(policy, value):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            kernels.get(backend).plan(model.problem, 5).ascend([None], watch=stop)


# ------------------------------------------------------------------ compiling
def test_compiling_does_not_count_against_a_time_limit(monkeypatch):
    """A limit that compiling alone would use up three times over."""
    model = random_model(3, n_models=6, n_states=5, n_actions=3, horizon=0)
    plain = Plan.ascend

    def slow(self, *args, **options):
        with clock.compiling():
            monkeypatch.setattr(clock.time, "perf_counter", lambda: real() + 30.0)
        return plain(self, *args, **options)

    real = clock.time.perf_counter
    expected = mmdp.solve(model, 6, backend="numpy")
    monkeypatch.setattr(Plan, "ascend", slow)
    found = mmdp.solve(model, 6, backend="numpy", time_limit=10.0)
    assert found.status is expected.status
    assert found.value == expected.value


def test_listeners_hear_of_compiling_once():
    heard = []
    with clock.listening(lambda: heard.append(1)):
        clock.announce()
    clock.announce()
    assert heard == [1]


def test_compiling_inside_compiling_counts_once(monkeypatch):
    now = [1.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock, "_spent", 0.0)
    with clock.compiling():
        with clock.compiling():
            now[0] += 2
        now[0] += 4
    assert clock.spent() == 6


def test_a_randomised_start_is_swept_whatever_the_limit():
    """Its answer is a table of actions, not of probabilities."""
    model = random_model(4, n_models=4, n_states=3, n_actions=3, horizon=0, masks=False)
    uniform = np.full((4, 3, 3), 1 / 3)
    sharp = np.zeros((4, 3), np.int32)
    for kernel in (kernels.get("numpy"), kernels.get("numba")):
        soft, plain = kernel.plan(model.problem, 4).ascend([uniform, sharp], max_sweeps=0)
        assert (soft.policy.shape, soft.sweeps, soft.end) == ((4, 3), 1, "limit")
        assert (plain.policy == sharp).all()
        assert (plain.sweeps, plain.end) == (0, "limit")
