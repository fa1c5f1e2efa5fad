"""Models that begin apart: an initial distribution of each model's own."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.core.testing import (
    compute_plain_returns,
    compute_returns,
    enumerate_policies,
    find_best_history_value,
    make_random_model,
    with_model_initials,
)

T = 3


def make_model(seed: int, n_models: int = 3) -> mmdp.MMDP:
    model = make_random_model(seed, n_models=n_models, n_states=3, n_actions=2, horizon=0)
    return with_model_initials(model, seed)


def add_first_step(model: mmdp.MMDP) -> mmdp.MMDP:
    """The same with one first state, from which every action leads to where a model begins."""
    P, r = model.transitions, model.rewards
    M, S, A = r.shape
    p = np.zeros((M, S + 1, A, S + 1))
    p[:, :S, :, :S], p[:, S, :, :S] = P, model.initial[:, None]
    rewards, terminal = np.zeros((M, S + 1, A)), np.zeros((M, S + 1))
    rewards[:, :S], terminal[:, :S] = r, model.terminal
    allowed = np.vstack([model.allowed, np.eye(A, dtype=bool)[:1]])
    return mmdp.MMDP(
        p,
        rewards,
        initial=np.eye(S + 1)[S],
        weights=model.weights,
        discount=model.discount,
        terminal=terminal,
        allowed=allowed,
    )


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("seed", range(4))
def test_returns_use_each_initial_distribution(seed: int, backend: str) -> None:
    model = make_model(seed)
    solution = mmdp.solve(model, T, backend=backend)
    np.testing.assert_allclose(
        solution.returns, compute_plain_returns(model, solution.policy), atol=1e-10
    )
    values = compute_returns(model, enumerate_policies(model, T)) @ model.weights
    assert solution.value <= values.max() + 1e-9
    proven = mmdp.solve(model, T, "exact", backend=backend)
    assert proven.status is mmdp.Status.OPTIMAL
    assert proven.value == pytest.approx(values.max(), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs", "best"])
def test_bounds_hold(seed: int, method: str) -> None:
    model = make_model(seed)
    bound = mmdp.bound(model, T, method=method, time_limit=0.3)
    markov = (compute_returns(model, enumerate_policies(model, T)) @ model.weights).max()
    best_value = find_best_history_value(model, T) if bound.scope == "history" else markov
    assert bound.value >= best_value - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_pairs_of_two_models_are_nearly_exact(seed: int) -> None:
    model = make_model(seed, n_models=2)
    best_value = find_best_history_value(model, T)
    return_spans = model.problem.return_span(T)
    for backend in ("numpy", "numba"):
        bound_value = mmdp.bound(model, T, method="pairs", backend=backend).value
        assert best_value - 1e-9 <= bound_value <= best_value + 0.01 * return_spans


@pytest.mark.parametrize("name", ["qmdp", "mixts", "rollout", "pomcp"])
def test_planners_learn_from_the_first_state(name: str) -> None:
    """Two models that want opposite actions at once, and begin in different states."""
    P = np.zeros((2, 3, 2, 3))
    P[..., 2] = 1.0
    r = np.zeros((2, 3, 2))
    r[0, :2, 0] = r[1, :2, 1] = 1.0
    model = mmdp.MMDP(P, r, initial=[[1, 0, 0], [0, 1, 0]])
    solution = mmdp.solve(model, 1, name)
    assert solution.value == pytest.approx(1.0)
    planner = solution.policy
    assert [
        planner.act(planner.initial_memory(seed), 0, s) for s in (0, 1) for seed in range(5)
    ] == [
        *[0] * 5,
        *[1] * 5,
    ]


@pytest.mark.parametrize("name", ["qmdp", mmdp.methods.MixTS(resample="step")])
def test_planners_do_as_after_a_first_step(name: str | mmdp.methods.MixTS) -> None:
    model = make_model(5).replace(discount=0.9)
    stepped = add_first_step(model)
    one = mmdp.simulate(model, mmdp.solve(model, T, name).policy)
    other = mmdp.simulate(stepped, mmdp.solve(stepped, T + 1, name).policy)
    error = 2 * (one.stderr + other.stderr / 0.9)
    assert one.mean == pytest.approx(other.mean / 0.9, abs=error)


@pytest.mark.parametrize("objective", [mmdp.objectives.CVaR(0.3), mmdp.objectives.WorstCase()])
def test_objectives_and_memory(objective: mmdp.objectives.Objective) -> None:
    model = make_model(2)
    solution = mmdp.solve(model, T, objective=objective)
    returns = compute_returns(model, enumerate_policies(model, T))
    best = max(objective.value(x, model.weights) for x in returns)
    assert solution.value <= best + 1e-9
    controller_solution = mmdp.solve(model, T, policy_class=mmdp.policies.Memory(2))
    assert controller_solution.value <= find_best_history_value(model, T) + 1e-9


def test_infinite_horizon() -> None:
    model = make_model(1).replace(discount=0.9, terminal=None)
    solution = mmdp.solve(model, policy_class="stationary")
    pi, (M, S, _) = solution.policy.actions, model.rewards.shape
    for m in range(M):
        P, r = model.transitions[m][range(S), pi], model.rewards[m][range(S), pi]
        v = np.linalg.solve(np.eye(S) - 0.9 * P, r)
        assert solution.returns[m] == pytest.approx(model.initial[m] @ v)


def test_copies_keep_each_initial_distribution() -> None:
    model = make_model(3)
    assert model.initial.shape == (3, 3)
    np.testing.assert_array_equal(model.subset([2, 0]).initial, model.initial[[2, 0]])
    mean = model.mean_model()
    np.testing.assert_allclose(mean.initial, model.weights @ model.initial)
    alike = model.replace(initial=np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert alike.initial.shape == (3,)
    assert alike.fingerprint() == model.replace(initial=[0.2, 0.3, 0.5]).fingerprint()
    assert alike.fingerprint() != model.fingerprint()


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet", "folder", "pomdpx"])
def test_files_keep_each_initial_distribution(suffix: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = make_model(4)
    model = model.replace(terminal=None, discount=0.9)
    path = tmp_path / ("models" if suffix == "folder" else f"models.{suffix}")
    if suffix == "pomdpx":
        mmdp.interop.save_pomdp(model, path)
    else:
        mmdp.io.save(model, path)
    loaded = mmdp.load(path)
    np.testing.assert_allclose(loaded.initial, model.initial, atol=1e-15)


def test_an_initial_that_is_no_distribution() -> None:
    model = make_model(3)
    with pytest.raises(mmdp.InputError, match=r"initial has shape \(2, 3\); expected .* \(3,\)"):
        model.replace(initial=model.initial[:2])
    with pytest.raises(mmdp.InputError, match="initial must sum to 1, not 1.5, model 1"):
        model.replace(initial=[[1, 0, 0], [1, 0.5, 0], [0, 0, 1]])


def test_many_models_are_solved_in_blocks() -> None:
    model = with_model_initials(
        make_random_model(1, n_models=40, n_states=5, n_actions=3, horizon=0), 1
    )
    one, other = (mmdp.solve(model, T, backend=backend) for backend in ("numpy", "numba"))
    assert one.value == pytest.approx(other.value)
    np.testing.assert_allclose(
        other.returns, compute_plain_returns(model, other.policy), atol=1e-10
    )


def test_a_model_without_an_initial_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    mmdp.save(make_model(4).replace(models=["a", "b", "c"]), tmp_path / "models")
    file = tmp_path / "models" / "initial.csv"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(x for x in lines if not x.startswith("1,")), encoding="utf-8")
    with pytest.raises(
        mmdp.InputError, match="initial of model 1 is 0 in every state; give every model"
    ):
        mmdp.load(tmp_path / "models")


@pytest.mark.parametrize(
    ("text", "initial"),
    [
        ("stock=1,ordered=0", [0, 1, 0]),
        (" stock=0, ordered=1", [1, 0, 0]),
        ("stock=1, ordered=0=1", [0, 1, 0]),
        ("stock=0,ordered=1=0.25,stock=1, ordered=0=0.75", [0.25, 0.75, 0]),
        ("stock=0,ordered=1=0.25,closed=0.75", [0.25, 0, 0.75]),
        ("closed", [0, 0, 1]),
    ],
)
def test_first_states_of_named_axes_as_text(text, initial):
    states = ["stock=0, ordered=1", "stock=1, ordered=0", "closed"]
    model = mmdp.MMDP(np.full((1, 3, 1, 3), 1 / 3), [[1.0], [2.0], [3.0]], states=states)
    assert model.replace(initial=text).initial.tolist() == initial


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("left", "unknown label 'left'"),
        ("up=0.5,left=0.5", "'left=0.5' is neither a state nor shares of states like"),
        ("up=half", "'up=half' is neither a state nor shares"),
        ("up=0.5", "initial must sum to 1"),
    ],
)
def test_first_states_as_text_that_are_refused(text, message):
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.MMDP(np.full((1, 2, 1, 2), 0.5), [[1.0]] * 2, states=["up", "down"], initial=text)
