"""Short logs: what ends, what was seen once, what a reward belongs to, and whether ranges cover."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

import mmdp
from mmdp.data import posterior

SINGLE_VISIT_LOG = {
    "state": ["up", "up"],
    "action": ["risky", "safe"],
    "next_state": ["win", "lose"],
    "reward": [1.0, 0.0],
    "terminated": [True, True],
}


# ---------------------------------------------------------------------- what ends
@pytest.mark.parametrize("form", ["bool", "int", "text", "csv"])
def test_states_that_end_every_episode_stay_and_earn_nothing(form: str, tmp_path: Path) -> None:
    terminated: Any = {"bool": [False, True, True], "int": [0, 1, 1]}.get(
        form, ["false", "True", "1"]
    )
    log = pd.DataFrame(
        {
            "state": [0] * 3,
            "action": [0, 0, 1],
            "next_state": [0, 1, 2],
            "reward": [0.0, 5.0, 1.0],
            "terminated": terminated,
            "truncated": 0,
        }
    )
    log.to_csv(tmp_path / "log.csv", index=False)
    result = mmdp.fit(tmp_path / "log.csv" if form == "csv" else log, n_models=5)
    for state in (1, 2):
        assert (result.train.transitions[:, state, :, state] == 1).all()
    assert not result.train.rewards[:, 1:].any()
    assert result.unseen_pairs == ()
    assert not any("columns not used" in text for text in result.warnings)


def test_a_state_that_ends_some_episodes_only_is_split() -> None:
    log = {
        "state": ["a", "b", "a", "b"],
        "action": ["go"] * 4,
        "next_state": ["b", "a", "b", "c"],
        "reward": [1.0, 0.0, 1.0, 2.0],
        "terminated": [False, False, True, True],
    }
    result = mmdp.fit(log, n_models=4000)
    train = result.train
    assert train.state_labels == ("a", "b", "c", "terminated")
    assert (train.transitions[:, [2, 3], 0, [2, 3]] == 1).all()
    assert any("'b'" in text and "'terminated'" in text for text in result.warnings)
    np.testing.assert_allclose(train.transitions.mean(0)[0, 0], [0, 0.5, 0, 0.5], atol=0.02)
    # in b each of the three rows, and half an observation of a and of c
    np.testing.assert_allclose(train.transitions.mean(0)[1, 0], [0.5, 0, 0.5, 0], atol=0.02)
    with pytest.raises(mmdp.InputError, match="row 1: terminated is 'soon'; write true or false"):
        mmdp.fit(log | {"terminated": [False, "soon", True, True]})


def test_an_episode_does_not_go_on_after_its_end() -> None:
    log = {
        "episode": [1, 2, 1, 1],
        "time": [1, 1, 3, 2],
        "state": ["a", "a", "b", "a"],
        "action": ["go"] * 4,
        "next_state": ["a", "b", "a", "b"],
        "terminated": [False, True, False, True],
    }
    message = "row 2: an earlier row has terminated this episode; mark only the last row"
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.fit(log, n_models=2, rewards=np.zeros((2, 1)))
    stays = log | {"next_state": ["a", "b", "b", "b"]}  # in its last state it may stay
    mmdp.fit(stays, n_models=2, rewards=np.zeros((2, 1)))
    apart = log | {"episode": [1, 2, 3, 1]}
    assert mmdp.fit(apart, n_models=2, rewards=np.zeros((3, 1))).train.n_states == 3  # with its end


def test_values_are_those_of_episodes_that_end() -> None:
    """A chain that pays 1 on its way out: no policy of any model returns more than 1."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(30):
        s = 0
        for t in range(20):
            a = int(rng.integers(2))
            next_state = min(max(s + (1 if rng.random() < (0.7 if a else 0.4) else -1), 0), 4)
            rows.append((episode, t, s, a, next_state, float(next_state == 4), next_state == 4))
            s = next_state
            if s == 4:
                break
    names = ["episode", "time", "state", "action", "next_state", "reward", "terminated"]
    log = pd.DataFrame(rows, columns=names)
    for rewards in ("average", "normal"):
        train = mmdp.fit(log, n_models=50, rewards=rewards, seed=1).train
        best = mmdp.solve(train, 40, "oracle").returns
        assert best.max() <= (1 + 1e-12 if rewards == "average" else 1.3)
    unended_model = mmdp.fit(log.drop(columns="terminated"), n_models=50).train
    assert mmdp.solve(unended_model, 40, "oracle").returns.max() > 1


# ---------------------------------------------------------------------- what was seen once
def test_the_default_prior_pools_the_next_states_of_a_state() -> None:
    """Rows are Dirichlet(counts + 1/2), on what followed the state after any action."""
    log = {
        "state": [0] * 7,
        "action": [0, 0, 0, 0, 1, 1, 1],
        "next_state": [1, 1, 2, 3, 1, 2, 2],
        "reward": [0.0] * 7,
    }
    result = mmdp.fit(log, n_models=20_000, actions=3, absorbing=[1, 2, 3], initial={0: 1.0})
    P = result.train.transitions[:, 0]
    for a, counts in enumerate(([2, 1, 1], [1, 2, 0], [0, 0, 0])):
        alpha = np.array(counts) + 0.5
        mean, total = alpha / alpha.sum(), alpha.sum()
        np.testing.assert_allclose(P[:, a, 1:].mean(0), mean, atol=0.01)
        np.testing.assert_allclose(P[:, a, 1:].var(0), mean * (1 - mean) / (total + 1), atol=0.01)
    assert not P[:, :, 0].any()
    assert result.unseen_pairs == ((0, 2),)


def test_what_was_seen_once_is_not_certain() -> None:
    result = mmdp.fit(SINGLE_VISIT_LOG, n_models=200, n_test_models=200, initial={"up": 1.0})
    solution = mmdp.solve(result.train, 1)
    evaluation = mmdp.evaluate(result.test, solution)
    assert evaluation.sd > 0.2
    assert evaluation.worst < 0.2
    one_row_log = {"state": ["a"], "action": ["go"], "next_state": ["b"], "reward": [1.0]}
    row = mmdp.fit(one_row_log, n_models=4000, states=["a", "b", "c"], absorbing=["b", "c"]).train
    # b: 1 + 1/2 + 1/6, the others 1/6 each, of 2
    np.testing.assert_allclose(row.transitions.mean(0)[0, 0], [1 / 12, 10 / 12, 1 / 12], atol=0.02)
    seen_fit = mmdp.fit(SINGLE_VISIT_LOG, n_models=5, support="seen")
    assert any("2 of 2 pairs seen lead to one state for certain" in x for x in seen_fit.warnings)
    assert not any("certain" in text for text in result.warnings)


# ---------------------------------------------------------------------- what a reward belongs to
def test_rewards_are_by_next_state_if_the_log_shows_it() -> None:
    rng = np.random.default_rng(3)
    state, action, next_state = (rng.integers(3, size=600) for _ in range(3))
    log: dict[str, Any] = {"state": state, "action": action, "next_state": next_state}
    by_next = rng.normal(size=(3, 3, 3))
    model = mmdp.fit(log | {"reward": by_next[state, action, next_state]}, n_models=6).train
    np.testing.assert_allclose(model.rewards, (model.transitions * by_next).sum(-1))
    noisy_rewards = by_next[state, action, next_state] + 0.5 * rng.normal(size=600)
    model = mmdp.fit(log | {"reward": noisy_rewards}, n_models=6).train
    means = (
        pd.DataFrame(log | {"r": noisy_rewards})
        .groupby(["state", "action", "next_state"])["r"]
        .mean()
    )
    expected = (model.transitions * means.to_numpy().reshape(3, 3, 3)).sum(-1)
    np.testing.assert_allclose(model.rewards, expected)
    pair_rewards = by_next[state, action, 0] + rng.normal(size=600)
    model = mmdp.fit(log | {"reward": pair_rewards}, n_models=6).train
    means = pd.DataFrame(log | {"r": pair_rewards}).groupby(["state", "action"])["r"].mean()
    np.testing.assert_allclose(model.rewards[2], means.to_numpy().reshape(3, 3))


def test_a_transition_never_seen_earns_what_its_next_state_earns() -> None:
    log = {
        "state": ["a", "a", "a", "b"],
        "action": ["x", "x", "y", "x"],
        "next_state": ["b", "c", "b", "d"],
        "reward": [0.0, 3.0, 0.0, 7.0],
        "count": [3, 2, 4, 1],
        "terminated": [0, 1, 0, 1],
    }
    model = mmdp.fit(log, n_models=3).train
    P = model.transitions
    np.testing.assert_allclose(model.rewards[:, 0], 3.0 * P[:, 0, :, 2])  # y too, if it leads to c
    # from b: to d 7, as seen; to a never seen by anyone: the log's average; to c as from a
    next_rewards = np.array([13 / 10, 0.0, 3.0, 7.0])
    np.testing.assert_allclose(model.rewards[:, 1], P[:, 1] @ next_rewards)


# ---------------------------------------------------------------------- whether ranges cover
def make_ferry(sinking_prob: float) -> tuple[np.ndarray, np.ndarray]:
    """Wait, cross quickly (which may fail) or slowly: (S, A, S') chances and rewards."""
    P, R = np.zeros((2, 3, 3, 3))
    for s in (0, 1):
        P[s, 0, s] = 1
        for a, (prob, fare) in ((1, (sinking_prob, 1.0)), (2, (0.01, 0.6))):
            P[s, a, [1 - s, 2]], R[s, a, 1 - s] = (1 - prob, prob), fare
    P[2, :, 2] = 1
    return P, R


def simulate_ferry_log(
    P: np.ndarray, R: np.ndarray, n_episodes: int, rng: Any
) -> dict[str, list[Any]]:
    rows = []
    for episode in range(n_episodes):
        s = 0
        for t in range(20):
            a, u = int(rng.integers(3)), rng.random()
            next_state = int((u > P[s, a].cumsum()).sum())
            rows.append((episode, t, s, a, next_state, R[s, a, next_state], next_state == 2))
            s = next_state
            if s == 2:
                break
    names = ("episode", "time", "state", "action", "next_state", "reward", "terminated")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def count_covered(n_logs: int, n_episodes: int, **options: Any) -> int:
    """How many 90% ranges have the true return of the policy that was computed from the log."""
    n_covered = 0
    for i in range(n_logs):
        rng = np.random.default_rng([7, i])
        P, R = make_ferry(rng.uniform(0.02, 0.3))
        true_model = mmdp.MMDP([P], [(P * R).sum(-1)], initial=[1, 0, 0], discount=0.95)
        fitted = mmdp.fit(
            simulate_ferry_log(P, R, n_episodes, rng),
            n_models=60,
            n_test_models=120,
            discount=0.95,
            states=3,
            actions=3,
            seed=i,
            **options,
        )
        solution = mmdp.solve(fitted.train, 20, "mvp", backend="numpy")
        low, high = np.quantile(mmdp.evaluate(fitted.test, solution).returns, [0.05, 0.95])
        n_covered += bool(low <= mmdp.evaluate(true_model, solution).mean <= high)
    return n_covered


def test_ranges_cover_the_true_return() -> None:
    assert count_covered(20, 10) >= 16
    assert count_covered(20, 10, support="seen", unseen="forbid") <= 12


def test_simulated_coverage_is_that_of_beta_posteriors() -> None:
    """One row of two next states: the chances that quantiles of a Beta cover are known."""
    log = {
        "state": [0] * 2,
        "action": [0, 0],
        "next_state": [1, 2],
        "reward": [1.0, 0.0],
        "count": [8, 12],
        "terminated": [True, True],
    }
    model = mmdp.fit(log, n_models=5, initial={0: 1.0}).train
    policy = mmdp.solve(model, 1).policy
    coverage = posterior.coverage(model, policy, n_logs=150, n_models=200)
    rng = np.random.default_rng(1)
    p = rng.beta(8.5, 12.5, size=20_000)
    wins = rng.binomial(20, p)
    low, high = (beta.ppf(x, wins + 0.5, 20 - wins + 0.5) for x in (0.05, 0.95))
    expected = np.mean((low <= p) & (p <= high))
    assert abs(coverage.n_covered / coverage.n_logs - expected) < 0.07
    assert coverage.n_logs == 150


def test_the_log_stays_with_the_models(tmp_path: Path) -> None:
    log = simulate_ferry_log(*make_ferry(0.1), 3, np.random.default_rng(0))
    short_log = {name: column[:6] for name, column in log.items()}
    options: Any = {"states": ["here", "there", "sunk"], "actions": ["wait", "run", "row"]}
    result = posterior.fit_folder(
        short_log, tmp_path / "models", n_models=4, n_test_models=3, **options
    )
    train = result.train
    assert result.unseen_pairs == posterior.find_unseen_pairs(train)
    assert len(result.unseen_pairs) > 1
    policy = mmdp.solve(train, 5).policy
    expected = posterior.coverage(train, policy, n_logs=5)
    copies = (
        mmdp.load(tmp_path / "models"),
        train.subset([0, 2]),
        train.replace(discount=1.0),
        train.replace(rewards=train.rewards),
        train.take_shard(0, 2),
        train.truncate_before(0),
        pickle.loads(pickle.dumps(train)),
        result.test,
    )
    for model in copies:
        assert model is not None
        assert posterior.find_unseen_pairs(model) == result.unseen_pairs
    assert posterior.coverage(mmdp.load(tmp_path / "models"), policy, n_logs=5) == expected
    renamed_model = train.replace(states=["x", "y", "z"])
    assert {s for s, _ in posterior.find_unseen_pairs(renamed_model)} <= {"x", "y", "z"}
    assert posterior.coverage(renamed_model, mmdp.solve(renamed_model, 5), n_logs=5) == expected
    with pytest.raises(mmdp.InputError, match="models made by fit"):
        posterior.coverage(mmdp.domains.two_models().train, policy)


@pytest.mark.parametrize(
    "options",
    [
        {"support": "seen", "unseen": "forbid"},
        {"prior": "symmetric"},
        {"unseen": "absorb"},
        {"prior": np.ones((1, 3, 3))},
        {"rewards": "normal"},
    ],
)
def test_every_prior_can_be_checked(options: Any) -> None:
    log = simulate_ferry_log(*make_ferry(0.1), 2, np.random.default_rng(1))
    model = mmdp.fit(log, n_models=4, **options).train
    coverage = posterior.coverage(model, mmdp.solve(model, 3), n_logs=3, n_models=20)
    assert 0 <= coverage.n_covered <= coverage.n_logs == 3


# ---------------------------------------------------------------------- what is no log
def test_columns_that_are_not_one_entry_per_transition_are_refused() -> None:
    episode = {"observations": [0, 1, 2], "actions": [0, 1], "rewards": [0.0, 1.0]}
    pairs = np.zeros((3, 2))
    for log, message in (
        (episode, "no column 'state'"),
        (
            {"state": [0, 1], "action": [0, 1, 1], "next_state": [1, 0]},
            "columns of different sizes",
        ),
        ({"state": pairs, "action": [0, 1, 1], "next_state": pairs}, "columns of different sizes"),
        (pd.DataFrame({"state": [[0, 1]], "action": 0, "next_state": [[1, 1]]}), "state is a list"),
    ):
        with pytest.raises(mmdp.InputError, match=message):
            mmdp.fit(log)
