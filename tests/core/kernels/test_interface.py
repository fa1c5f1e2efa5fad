"""The one interface: who is chosen, what the conformance kit notices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

import mmdp
from mmdp.core import kernels, timing
from mmdp.core.kernels.numpy.backend import SparseProblem
from mmdp.core.kernels.prepared import PreparedProblem
from mmdp.core.testing import (
    check_backend,
    make_random_event_model,
    make_random_model,
    make_switching,
)
from tests.core.kernels.instances import PatchedBackend, assert_close
from tests.instances import list_seeds
from tests.processes import TIMEOUT


def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(mmdp.InputError, match="no backend is called 'cuda'; choose one of auto"):
        kernels.get_backend("cuda")


def run_in_fresh_process(code: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, **environment},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_small_problems_do_not_wait_for_numba():
    """Neither those of 100 models over 20 decisions, nor those without a last decision."""
    code = """
import sys, math, mmdp
model, _ = mmdp.domains.riverswim(seed=0)
print(mmdp.solve(model, 20).provenance.backend, mmdp.solve(model.replace(discount=0.9), math.inf)
      .provenance.backend, "numba" in sys.modules)
"""
    assert run_in_fresh_process(code) == "numpy numpy False"


def test_the_same_call_gives_the_same_result():
    """Whatever was called before it, also numba, although it may take another backend then."""
    code = """
import mmdp
model, _ = mmdp.domains.riverswim(seed=0)
first = mmdp.solve(model, 20)
mmdp.solve(model.subset(range(3)), 4, backend="numba")
second = mmdp.solve(model, 20)
assert first.policy == second.policy
assert abs(first.value - second.value) <= 1e-12 * abs(first.value)
assert first.details["inits"] == second.details["inits"]
print(first.provenance.backend, second.provenance.backend)
"""
    assert run_in_fresh_process(code) == "numpy numba"


def test_larger_work_never_goes_back_to_numpy():
    """numpy up to some size, numba from there on: by passes, decisions and models alike."""
    x = make_random_model(3, n_models=6, n_states=5, n_actions=3, horizon=0).problem
    for names in (
        [kernels.get_backend("auto", x, 20, n_passes=2**k).name for k in range(30)],
        [kernels.get_backend("auto", x, 2**k).name for k in range(30)],
        [kernels.get_backend("auto", x, 20, n_passes=float("inf")).name],
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
try:
    mmdp.solve(model, 20, "qmdp")
except mmdp.InputError as error:
    print(error)
"""
    lines = run_in_fresh_process(code, NUMBA_DISABLE_JIT="1").splitlines()
    assert lines[0] == "numpy"
    assert "NUMBA_DISABLE_JIT switches off; unset it or choose backend 'numpy'" in lines[1]
    assert "beliefs and dual bounds need numba's compiler" in lines[2]


def test_steps_of_numpy_on_sparse_rows_equal_whole_matrices():
    model, rng = mmdp.domains.garnet(3, 40, 3, branching=2, seed=0).train, np.random.default_rng(0)
    prepared = kernels.get_backend("numpy").prepare(model.problem, 1)
    assert isinstance(prepared, SparseProblem)
    P, v, b = model.transitions, rng.normal(size=(40, 3)), rng.random((40, 3))
    expected = np.einsum("msaz,zm->sam", P, v)
    np.testing.assert_allclose(prepared.expect_next(0, v), expected, atol=1e-12)
    actions, probabilities = rng.integers(3, size=40), rng.dirichlet(np.ones(3), 40)
    for policy_row, pi in ((actions, np.eye(3)[actions]), (probabilities, probabilities)):
        expected = np.einsum("msaz,sa,sm->zm", P, pi, b)
        np.testing.assert_allclose(prepared.push_forward(0, b, policy_row), expected, atol=1e-12)


@pytest.mark.parametrize("seed", list_seeds(6, 30))
@pytest.mark.parametrize("storage", ["dense", "sparse", "events"])
def test_steps_of_numpy_equal_whole_matrices(storage, seed):
    """Also of models that switch: their matrices are products with the chain of the models."""
    model = (
        make_random_event_model(seed)
        if storage == "events"
        else make_random_model(seed, storage=storage)
    )
    rng, shape = np.random.default_rng(seed), (model.n_states, model.n_models)
    whole = model.transitions if model.horizon else model.transitions[None]
    horizon = model.horizon or 2
    for variant in (model, make_switching(model, seed)):
        x, K = variant.problem, variant.model_transitions
        prepared = kernels.get_backend("numpy").prepare(x, horizon)
        for t in range(horizon):
            P, v, b = whole[t % len(whole)], rng.normal(size=shape), rng.random(shape)
            expected = np.einsum("msaz,zm->sam", P, v @ K.T)
            is_open = x.allowed[0]  # nothing is said about other rows
            assert_close(prepared.expect_next(t, v)[is_open], expected[is_open])
            q = np.asarray(x.r)[t % len(x.r)] + x.discount * expected
            assert_close(prepared.q_step(t, v)[is_open], q[is_open])
            pi = rng.random(x.allowed.shape[1:]) * is_open
            actions, probabilities = pi.argmax(axis=1), pi / pi.sum(axis=1, keepdims=True)
            for row, probs in ((actions, np.eye(x.n_actions)[actions]), (probabilities,) * 2):
                expected = np.einsum("msaz,sa,sm->zm", P, probs, b) @ K
                assert_close(prepared.push_forward(t, b, row), expected)
    s, a = np.argwhere(model.allowed)[0]
    row = model.problem.storage.get_row(0, int(s) * model.n_actions + int(a))
    full = np.zeros(shape)
    full[row.next_states] = row.p
    assert_close(full, whole[0][:, s, a].T)


# ------------------------------------------------------------------ the conformance kit
def make_backend_with_ascend(changed_ascend) -> PatchedBackend:
    """A kernel whose plans ascend as ``change(plain, plan, starts, options)`` says."""

    def make_methods(problem_class):
        return {
            "ascend": lambda prepared, inits, **options: changed_ascend(
                problem_class.ascend, prepared, inits, options
            )
        }

    return PatchedBackend("wrong", make_methods)


FAULTS = {
    "returns": lambda result: result._replace(returns=result.returns + 1e-6),
    "trace": lambda result: result._replace(trace=[*result.trace, result.value]),
    "n_sweeps": lambda result: result._replace(n_sweeps=result.n_sweeps + 1),
    "stop_reason": lambda result: result._replace(
        stop_reason="limit" if result.stop_reason == "local_optimum" else "local_optimum"
    ),
    "policy": lambda result: result._replace(policy=np.zeros_like(result.policy)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ascent_is_noticed(fault):
    with pytest.raises(AssertionError, match="ascend, two-way.*wrong"):
        check_backend(
            make_backend_with_ascend(
                lambda ascend, prepared, inits, options: [
                    FAULTS[fault](result) for result in ascend(prepared, inits, **options)
                ]
            ),
            seeds=range(6),
        )


def test_an_ascent_that_stops_early_is_noticed():
    def ascend_once(ascend, prepared, inits, options):
        return ascend(prepared, inits, **{**options, "max_sweeps": 1})

    with pytest.raises(AssertionError, match="ascend, two-way.*wrong"):
        check_backend(make_backend_with_ascend(ascend_once), seeds=range(6))


@pytest.mark.parametrize(
    "fault",
    [
        lambda plain: {"callback": lambda policy, value: plain(0 * policy, value)},
        lambda plain: {
            "callback": lambda policy, value: _call_and_ignore_errors(plain, policy, value)
        },
        lambda plain: {"tol": 0.0},
    ],
)
def test_ascents_that_break_the_protocol_are_noticed(fault):
    """Another policy to watch, what it raises lost, the tolerance ignored."""

    def ascend_wrongly(ascend, prepared, inits, options):
        wrong_options = fault(options.get("callback") or (lambda policy, value: None))
        return ascend(prepared, inits, **{**options, **wrong_options})

    with pytest.raises(AssertionError, match="wrong"):
        check_backend(make_backend_with_ascend(ascend_wrongly), seeds=range(12))


def test_wrong_actions_of_model_optima_are_noticed():
    def make_methods(problem_class):
        def backward(prepared, mode, **options):
            result = problem_class.backward(prepared, mode, **options)
            if mode == "per_model" and options.get("keep") == ("actions",):
                result = result._replace(actions=0 * result.actions)
            return result

        return {"backward": backward}

    with pytest.raises(AssertionError, match="per_model: values of the actions.*wrong"):
        check_backend(PatchedBackend("wrong", make_methods), seeds=range(6))


def _call_and_ignore_errors(callback, policy, value):
    with contextlib.suppress(Exception):
        callback(policy, value)


def test_masks_of_another_shape_are_refused():
    x = make_random_model(
        3, n_models=4, n_states=3, n_actions=2, horizon=0, has_masks=False
    ).problem
    for mask in (np.ones((1, 3, 2)), np.ones((1, 2, 2), bool), np.ones((3, 2), bool)):
        with pytest.raises(mmdp.InputError, match="allowed actions must be booleans of shape"):
            x.restrict_actions(mask)
    with pytest.raises(mmdp.InputError, match="no action is allowed in state 0 at time 0"):
        x.restrict_actions(np.zeros((2, 3, 2), bool))
    short_mask = x.restrict_actions(np.ones((3, 3, 2), bool))
    for backend in ("numpy", "numba"):
        with pytest.raises(mmdp.InputError, match="allowed covers 3 time steps, the horizon is 5"):
            kernels.get_backend(backend).prepare(short_mask, 5).ascend([None])


def test_objects_that_are_no_backend_are_refused():
    with pytest.raises(mmdp.InputError, match=r"backend must be one of auto, .*, not 3"):
        kernels.get_backend(3)


def test_an_error_of_the_callback_ends_the_ascent():
    model = make_random_model(6, n_models=5, n_states=5, n_actions=3, horizon=0)
    for backend in ("numpy", "numba"):

        def stop(policy, value):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            kernels.get_backend(backend).prepare(model.problem, 5).ascend([None], callback=stop)


# ------------------------------------------------------------------ compiling
def test_compiling_does_not_count_against_a_time_limit(monkeypatch):
    """A limit that compiling alone would use up three times over."""
    model = make_random_model(3, n_models=6, n_states=5, n_actions=3, horizon=0)
    original = PreparedProblem.ascend

    def ascend_slowly(self, *args, **options):
        with timing.measure_compilation():
            monkeypatch.setattr(timing.time, "perf_counter", lambda: real() + 30.0)
        return original(self, *args, **options)

    real = timing.time.perf_counter
    expected = mmdp.solve(model, 6, backend="numpy")
    monkeypatch.setattr(PreparedProblem, "ascend", ascend_slowly)
    solution = mmdp.solve(model, 6, backend="numpy", time_limit=10.0)
    assert solution.status is expected.status
    assert solution.value == expected.value


def test_compiling_is_shown_until_it_is_done():
    with timing.progress_line.open("solve") as call:
        call.activity = "cadp"
        with timing.measure_compilation():
            timing.notify_compilation()
            assert str(call.activity).startswith("compiling")
        assert call.activity == "cadp"


def test_nested_compilation_is_counted_once(monkeypatch):
    now = [1.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "_compile_seconds", 0.0)
    with timing.measure_compilation():
        with timing.measure_compilation():
            now[0] += 2
        now[0] += 4
    assert timing.get_compile_seconds() == 6


def test_a_randomized_init_is_swept_despite_the_limit():
    """Its answer is a table of actions, not of probabilities."""
    model = make_random_model(4, n_models=4, n_states=3, n_actions=3, horizon=0, has_masks=False)
    uniform = np.full((4, 3, 3), 1 / 3)
    deterministic = np.zeros((4, 3), np.int32)
    for backend in (kernels.get_backend("numpy"), kernels.get_backend("numba")):
        from_uniform, from_deterministic = backend.prepare(model.problem, 4).ascend(
            [uniform, deterministic], max_sweeps=0
        )
        assert (from_uniform.policy.shape, from_uniform.n_sweeps, from_uniform.stop_reason) == (
            (4, 3),
            1,
            "limit",
        )
        assert (from_deterministic.policy == deterministic).all()
        assert (from_deterministic.n_sweeps, from_deterministic.stop_reason) == (0, "limit")
