"""Models that begin apart: an initial distribution of each model's own."""

from __future__ import annotations

import numpy as np
import pytest

import mmdp
from mmdp.testing import (
    all_policies,
    beginning_apart,
    best_with_memory,
    plain_returns,
    random_model,
    returns_of,
)  # fmt: skip

T = 3


def apart(seed: int, n_models: int = 3) -> mmdp.MMDP:
    model = random_model(seed, n_models=n_models, n_states=3, n_actions=2, horizon=0)
    return beginning_apart(model, seed)


def with_a_first_step(model: mmdp.MMDP) -> mmdp.MMDP:
    """The same with one first state, from which every action leads to where a model begins."""
    P, r = model.transitions, model.rewards
    M, S, A = r.shape
    p = np.zeros((M, S + 1, A, S + 1))
    p[:, :S, :, :S], p[:, S, :, :S] = P, model.initial[:, None]
    rewards, terminal = np.zeros((M, S + 1, A)), np.zeros((M, S + 1))
    rewards[:, :S], terminal[:, :S] = r, model.terminal
    allowed = np.vstack([model.allowed, np.eye(A, dtype=bool)[:1]])
    return mmdp.MMDP(p, rewards, initial=np.eye(S + 1)[S], weights=model.weights,
                     discount=model.discount, terminal=terminal, allowed=allowed)  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("seed", range(4))
def test_returns_are_those_of_each_beginning(seed: int, backend: str) -> None:
    model = apart(seed)
    found = mmdp.solve(model, T, backend=backend)
    np.testing.assert_allclose(found.returns, plain_returns(found.policy, model), atol=1e-10)
    values = returns_of(all_policies(model, T), model) @ model.weights
    assert found.value <= values.max() + 1e-9
    proven = mmdp.solve(model, T, "exact", backend=backend)
    assert proven.status is mmdp.Status.OPTIMAL
    assert proven.value == pytest.approx(values.max(), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["oracle", "qmdp", "pairs", "dual", "pair-dual", "lp", "best"])
def test_bounds_hold(seed: int, method: str) -> None:
    model = apart(seed)
    found = mmdp.bound(model, T, method=method, time_limit=0.3)
    markov = (returns_of(all_policies(model, T), model) @ model.weights).max()
    most = best_with_memory(model, T) if found.bounds == "history" else markov
    assert found.value >= most - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_pairs_of_two_models_are_nearly_exact(seed: int) -> None:
    model = apart(seed, n_models=2)
    most = best_with_memory(model, T)
    stakes = model.problem.stakes(T)
    for backend in ("numpy", "numba"):
        found = mmdp.bound(model, T, method="pairs", backend=backend).value
        assert most - 1e-9 <= found <= most + 0.01 * stakes


@pytest.mark.parametrize("name", ["qmdp", "mixts", "rollout", "pomcp"])
def test_planners_learn_from_the_first_state(name: str) -> None:
    """Two models that want opposite actions at once, and begin in different states."""
    P = np.zeros((2, 3, 2, 3))
    P[..., 2] = 1.0
    r = np.zeros((2, 3, 2))
    r[0, :2, 0] = r[1, :2, 1] = 1.0
    model = mmdp.MMDP(P, r, initial=[[1, 0, 0], [0, 1, 0]])
    found = mmdp.solve(model, 1, name)
    assert found.value == pytest.approx(1.0)
    planner = found.policy
    assert [planner.act(planner.start(seed), 0, s) for s in (0, 1) for seed in range(5)] == [
        *[0] * 5, *[1] * 5,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["qmdp", mmdp.MixTS(resample="step")])
def test_planners_do_as_after_a_first_step(name: str | mmdp.MixTS) -> None:
    model = apart(5).replace(discount=0.9)
    stepped = with_a_first_step(model)
    one = mmdp.simulate(mmdp.solve(model, T, name).policy, model)
    other = mmdp.simulate(mmdp.solve(stepped, T + 1, name).policy, stepped)
    error = 2 * (one.stderr + other.stderr / 0.9)
    assert one.mean == pytest.approx(other.mean / 0.9, abs=error)


@pytest.mark.parametrize("objective", [mmdp.CVaR(0.3), mmdp.WorstCase()])
def test_objectives_and_memory(objective: mmdp.Objective) -> None:
    model = apart(2)
    found = mmdp.solve(model, T, objective=objective)
    every = returns_of(all_policies(model, T), model)
    best = max(objective.value(x, model.weights) for x in every)
    assert found.value <= best + 1e-9
    chart = mmdp.solve(model, T, policy=mmdp.Memory(2))
    assert chart.value <= best_with_memory(model, T) + 1e-9


def test_without_a_last_decision() -> None:
    model = apart(1).replace(discount=0.9, terminal=None)
    found = mmdp.solve(model, policy="stationary")
    pi, (M, S, _) = found.policy.actions, model.rewards.shape
    for m in range(M):
        P, r = model.transitions[m][range(S), pi], model.rewards[m][range(S), pi]
        v = np.linalg.solve(np.eye(S) - 0.9 * P, r)
        assert found.returns[m] == pytest.approx(model.initial[m] @ v)


def test_copies_keep_each_beginning() -> None:
    model = apart(3)
    assert model.initial.shape == (3, 3)
    np.testing.assert_array_equal(model.subset([2, 0]).initial, model.initial[[2, 0]])
    mean = model.mean_model()
    np.testing.assert_allclose(mean.initial, model.weights @ model.initial)
    alike = model.replace(initial=np.tile([0.2, 0.3, 0.5], (3, 1)))
    assert alike.initial.shape == (3,)
    assert alike.fingerprint() == model.replace(initial=[0.2, 0.3, 0.5]).fingerprint()
    assert alike.fingerprint() != model.fingerprint()


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet", "folder", "pomdpx"])
def test_files_keep_each_beginning(suffix: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = apart(4)
    model = model.replace(terminal=None, discount=0.9)
    place = tmp_path / ("models" if suffix == "folder" else f"models.{suffix}")
    if suffix == "pomdpx":
        mmdp.ecosystem.save_pomdp(model, place)
    else:
        mmdp.io.save(model, place)
    again = mmdp.load(place)
    np.testing.assert_allclose(again.initial, model.initial, atol=1e-15)


def test_a_beginning_that_is_no_distribution() -> None:
    model = apart(3)
    with pytest.raises(mmdp.InputError, match=r"initial has shape \(2, 3\); expected \(states,\)"):
        model.replace(initial=model.initial[:2])
    with pytest.raises(mmdp.InputError, match="initial of model 1 must sum to 1, not 1.5"):
        model.replace(initial=[[1, 0, 0], [1, 0.5, 0], [0, 0, 1]])


def test_many_models_are_solved_in_blocks() -> None:
    model = beginning_apart(random_model(1, n_models=40, n_states=5, n_actions=3, horizon=0), 1)
    one, other = (mmdp.solve(model, T, backend=backend) for backend in ("numpy", "numba"))
    assert one.value == pytest.approx(other.value)
    np.testing.assert_allclose(other.returns, plain_returns(other.policy, model), atol=1e-10)


def test_a_model_without_a_beginning_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    mmdp.save(apart(4).replace(models=["a", "b", "c"]), tmp_path / "models")
    file = tmp_path / "models" / "initial.csv"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(x for x in lines if not x.startswith("1,")), encoding="utf-8")
    with pytest.raises(mmdp.InputError, match="initial of model 1 is nowhere; give every model"):
        mmdp.load(tmp_path / "models")
