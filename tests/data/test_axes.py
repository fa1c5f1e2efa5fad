"""No axis is taken for another, even if models, times, states and actions are as many.

Every array here has random entries, so that a swap of two axes changes it, and every check
compares with the array that was given, index by index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp.data import io, posterior
from mmdp.insight import report

N = 3  # models, times, states and actions
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(N), size=(N, N, N, N))  # t, m, s, a, s_next
R = RNG.normal(size=(N, N, N, N))  # t, m, s, a
BY_NEXT = RNG.normal(size=(N, N, N, N, N))
TERMINAL = RNG.normal(size=(N, N))  # m, s
INITIAL, WEIGHTS = RNG.dirichlet(np.ones(N)), RNG.dirichlet(np.ones(N))
PARAMETERS = {"rate": RNG.normal(size=N)}


def make_varying_model() -> mmdp.MMDP:
    return mmdp.MMDP(
        P,
        R,
        initial=INITIAL,
        weights=WEIGHTS,
        terminal=TERMINAL,
        discount=0.9,
        parameters=PARAMETERS,
    )


def make_constant_model() -> mmdp.MMDP:
    return mmdp.MMDP(P[0], R[0], initial=INITIAL, weights=WEIGHTS, parameters=PARAMETERS)


def test_every_shape_of_rewards_is_read_as_documented() -> None:
    for model in (mmdp.MMDP(P[0], R[0, 0]), mmdp.MMDP(P, R[0, 0])):
        assert (model.rewards == R[0, 0]).all()
    assert (mmdp.MMDP(P[0], R[0]).rewards == R[0]).all()
    assert (mmdp.MMDP(P, R[0]).rewards == R[0]).all()
    assert (mmdp.MMDP(P, R).rewards == R).all()
    for rewards in (BY_NEXT[0, 0], BY_NEXT[0], BY_NEXT):
        model = mmdp.MMDP(P, next_rewards=rewards)
        expected = np.einsum("tmsan,tmsan->tmsa", P, np.broadcast_to(rewards, BY_NEXT.shape))
        np.testing.assert_allclose(model.rewards, expected, rtol=1e-12)
    with pytest.raises(mmdp.InputError, match="per time or per next state.*next_rewards="):
        mmdp.MMDP(P[0], R)


def test_every_other_argument_keeps_its_axes() -> None:
    model = make_varying_model()
    assert (model.transitions == P).all()
    assert (model.terminal == TERMINAL).all()
    assert (mmdp.MMDP(P, R, terminal=TERMINAL[0]).terminal == TERMINAL[0]).all()
    allowed = np.tril(np.ones((N, N), dtype=bool))
    assert (mmdp.MMDP(P, R, allowed=allowed).allowed == allowed).all()


def test_a_policy_is_worth_what_loops_say() -> None:
    model, actions = make_varying_model(), RNG.integers(N, size=(N, N))  # t, s
    states = np.arange(N)
    values = TERMINAL
    for t in reversed(range(N)):
        p, r = P[t][:, states, actions[t]], R[t][:, states, actions[t]]
        values = r + 0.9 * np.einsum("msn,mn->ms", p, values)
    for backend in ("numpy", "numba"):
        evaluation = mmdp.evaluate(model, mmdp.policies.MarkovPolicy(actions), backend=backend)
        np.testing.assert_allclose(evaluation.returns, values @ INITIAL, rtol=1e-12)


@pytest.mark.parametrize("name", ["m.npz", "m.csv", "m.parquet", "folder"])
@pytest.mark.parametrize("make", [make_varying_model, make_constant_model])
def test_files_give_every_axis_back(tmp_path: Path, name: str, make: Any) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    model = make()
    mmdp.save(model, tmp_path / name)
    loaded = mmdp.load(tmp_path / name)
    for field in ("transitions", "rewards", "terminal", "initial", "weights"):
        np.testing.assert_array_equal(getattr(loaded, field), getattr(model, field), field)
    np.testing.assert_array_equal(loaded.parameters["rate"], PARAMETERS["rate"])
    from_frame = io.from_frame(io.to_frame(model))
    np.testing.assert_array_equal(from_frame.transitions, model.transitions)
    np.testing.assert_array_equal(from_frame.rewards, model.rewards)


def test_effects_keep_their_axes(tmp_path: Path) -> None:
    model, file = make_constant_model(), tmp_path / "effects.csv"
    table = pd.DataFrame(list(np.ndindex(N, N, N)), columns=["model", "state", "action"])
    table.assign(effect=R[0].ravel(), cost=R[1].ravel()).to_csv(file, index=False)
    effects, costs = report.read_effects(file, model)
    np.testing.assert_array_equal(effects, R[0])
    np.testing.assert_array_equal(costs, R[1])


# ---------------------------------------------------------------------- draws
def build_by_time(x: dict[str, Any]) -> dict[str, Any]:
    """Draws first, then time, if x holds arrays."""
    number = np.asarray(x["draw"]).astype(int)
    return {
        "transitions": np.moveaxis(P, 1, 0)[number],
        "rewards": np.moveaxis(R, 1, 0)[number],
        "terminal": TERMINAL[number],
    }


def build_same_transitions(x: dict[str, Any]) -> dict[str, Any]:
    """Only the rewards depend on the draw."""
    number = np.asarray(x["draw"]).astype(int)
    return {"transitions": P[:, 0], "rewards": np.moveaxis(R, 1, 0)[number]}


def build_same_rewards(x: dict[str, Any]) -> tuple[Any, Any]:
    """Rewards by time that do not depend on the draw: (T, S, A), as many times as draws."""
    number = np.asarray(x["draw"]).astype(int)
    return np.moveaxis(P, 1, 0)[number], R[:, 0]


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("count", [1, 2, N])
def test_samples_come_before_time(vectorized: bool, count: int) -> None:
    samples = {"draw": np.arange(float(count))}
    model = posterior.from_samples(samples, build_by_time, vectorized=vectorized)
    np.testing.assert_array_equal(model.transitions, P[:, :count])
    np.testing.assert_array_equal(model.rewards, R[:, :count])
    np.testing.assert_array_equal(model.terminal, TERMINAL[:count])
    model = posterior.from_samples(samples, build_same_transitions, vectorized=vectorized)
    np.testing.assert_array_equal(model.rewards, R[:, :count])
    np.testing.assert_array_equal(model.transitions, np.repeat(P[:, :1], count, axis=1))
    model = posterior.from_samples(samples, build_same_rewards, vectorized=vectorized)
    np.testing.assert_array_equal(model.rewards, np.repeat(R[:, :1], count, axis=1))


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_rewards_by_time_over_transitions_that_do_not_vary(vectorized: bool, count: int) -> None:
    rewards = RNG.normal(size=(4, count, N, 2))  # t, m, s, a

    def build(x: dict[str, Any]) -> tuple[Any, Any]:
        number = np.asarray(x["draw"]).astype(int)
        return P[0, :, :, :2][number % N], np.moveaxis(rewards, 1, 0)[number]

    samples = {"draw": np.arange(float(count))}
    model = posterior.from_samples(samples, build, vectorized=vectorized)
    np.testing.assert_array_equal(model.rewards, rewards)


def build_time_first(x: dict[str, Any]) -> tuple[Any, Any]:
    """Against the rule: draws behind time. For one draw it cannot be seen."""
    number = np.asarray(x["draw"]).astype(int)
    return P[:, number], R[:, number]


def test_samples_behind_time_are_refused_or_built_singly() -> None:
    samples = {"draw": np.arange(float(N))}
    np.testing.assert_array_equal(posterior.from_samples(samples, build_time_first).rewards, R)


def test_rewards_of_one_sample_by_time_or_next_state() -> None:
    samples = {"draw": np.arange(float(N))}

    def build_ambiguous(x: dict[str, Any]) -> tuple[Any, Any]:
        return P[0, int(x["draw"])], R[:, int(x["draw"])]

    with pytest.raises(mmdp.InputError, match=r"per time .* or per next state .*next_rewards"):
        posterior.from_samples(samples, build_ambiguous)

    def build_named(x: dict[str, Any]) -> dict[str, Any]:
        number = int(x["draw"])
        return {"transitions": P[0, number], "next_rewards": BY_NEXT[0, number]}

    model = posterior.from_samples(samples, build_named)
    np.testing.assert_allclose(model.rewards, (P[0] * BY_NEXT[0]).sum(axis=-1), rtol=1e-12)


def test_fields_shared_by_all_samples_are_checked() -> None:
    def build(x: dict[str, Any]) -> dict[str, Any]:
        number = int(x["draw"])
        return {"transitions": P[0, number], "rewards": R[0, number], "discount": 0.5 + number / 9}

    with pytest.raises(mmdp.InputError, match=r"sample 1 .*another discount than for sample 0"):
        posterior.from_samples({"draw": np.arange(float(N))}, build)


# ---------------------------------------------------------------------- logs
def test_a_prior_by_state_or_by_action_must_say_which() -> None:
    log = {"state": [0, 1, 2], "action": [0, 1, 2], "next_state": [1, 2, 0], "reward": [1.0] * 3}
    prior = RNG.random((N, N))
    with pytest.raises(mmdp.InputError, match=r"\(S, 1, S'\) or \(1, A, S'\)"):
        posterior.fit(log, n_models=2, prior=prior)
    by_state = posterior.fit(log, n_models=4000, prior=prior[:, None, :]).train
    expected = prior[0] / prior[0].sum()  # state 0 with action 1 was never seen
    np.testing.assert_allclose(by_state.transitions[:, 0, 1].mean(axis=0), expected, atol=0.05)
