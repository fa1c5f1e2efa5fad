"""Models from data: the posterior is the analytic one, bad logs and samples are refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import mmdp
from mmdp.data import posterior
from mmdp.data.domains._riverswim import N_STATES, TRUE_MOVE_PROBS
from mmdp.data.sampling import sample_dirichlet_rows

LOG = pd.DataFrame(
    {
        "state": ["well", "well", "sick", "sick", "well", "well"],
        "action": ["wait", "wait", "treat", "wait", "treat", "wait"],
        "next_state": ["well", "sick", "well", "sick", "well", "sick"],
        "reward": [5.0, 4.0, -3.0, 0.0, 2.0, 6.0],
        "episode": [1, 1, 1, 2, 2, 2],
        "time": [0, 1, 2, 2, 3, 1],
    }
)


def simulate_riverswim_log(n_steps: int = 15, seed: int = 3) -> pd.DataFrame:
    """The log behind the domain: the uniform policy from state 0 under the true model."""
    rng, rows, state = np.random.default_rng(seed), [], 0
    for _ in range(n_steps):
        action = int(rng.random() < 0.5)
        move = int(rng.choice(3, p=TRUE_MOVE_PROBS)) if action else 0
        next_state = min(max(state + move - 1, 0), N_STATES - 1)
        rows.append((state, action, next_state, 5.0 * (1 - action)))
        state = next_state
    return pd.DataFrame(rows, columns=["state", "action", "next_state", "reward"])


def make_river_pattern() -> np.ndarray:
    """(S, A, S'): swimming left always moves left, swimming right reaches the neighbours."""
    mask = np.zeros((N_STATES, 2, N_STATES), dtype=bool)
    for s in range(N_STATES):
        mask[s, 0, max(s - 1, 0)] = True
        mask[s, 1, max(s - 1, 0) : min(s + 2, N_STATES)] = True
    return mask


# ---------------------------------------------------------------------- the posterior
def test_riverswim_posterior_is_the_analytic_dirichlet() -> None:
    log = simulate_riverswim_log()
    result = posterior.fit(
        log,
        n_models=10_000,
        prior=make_river_pattern().astype(float),
        states=N_STATES,
        actions=2,
        seed=1,
    )
    alpha = make_river_pattern().astype(float)
    np.add.at(alpha, (log["state"], log["action"], log["next_state"]), 1.0)
    total = alpha.sum(axis=2, keepdims=True)
    mean = alpha / total
    samples = result.train.transitions
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=1e-2)
    # Var = m (1 - m) / (total + 1), Cov = -m m' / (total + 1)
    np.testing.assert_allclose(samples.var(axis=0), mean * (1 - mean) / (total + 1), atol=1e-2)
    row = samples[:, 1, 1, :3]
    expected = np.diag(mean[1, 1, :3]) - np.outer(mean[1, 1, :3], mean[1, 1, :3])
    np.testing.assert_allclose(np.cov(row.T), expected / (total[1, 1] + 1), atol=1e-2)
    assert result.pair_counts.sum() == 15
    assert len(result.unseen_pairs) == (result.pair_counts == 0).sum()


def test_pooled_riverswim_samples_are_the_domain() -> None:
    counts = np.array([2.0, 4.0, 3.0])
    move_probs = np.random.default_rng(0).dirichlet(1 + counts, size=10_000)

    def build_model(params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        p = np.zeros((*np.shape(params["left"]), 4, 1, 4))
        for s in range(4):
            for name, step in (("left", -1), ("stay", 0), ("right", 1)):
                p[..., s, 0, min(max(s + step, 0), 3)] += params[name]
        return p, np.ones((4, 1))

    model = posterior.from_samples(
        pd.DataFrame(move_probs, columns=["left", "stay", "right"]), build_model
    )
    mean = (1 + counts) / (3 + counts.sum())
    np.testing.assert_allclose(model.transitions.mean(axis=0)[1, 0, :3], mean, atol=1e-2)
    np.testing.assert_array_equal(model.parameters["stay"], move_probs[:, 1])


def test_ninety_percent_interval_covers_the_true_return() -> None:
    """True models from the prior: the posterior interval must cover 90 % of their returns."""
    rng = np.random.default_rng(11)
    n_states, n_actions, horizon, n_steps, n_logs = 3, 2, 12, 40, 200
    rewards = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 3.0]])
    policy = mmdp.policies.MarkovPolicy(np.array([[0, 1, 0]] * horizon), n_actions=2)
    true_transitions = rng.dirichlet(np.ones(n_states), size=(n_logs, n_states, n_actions))
    true_returns = mmdp.evaluate(
        mmdp.MMDP(true_transitions, rewards, initial=[1, 0, 0]), policy
    ).returns
    state = np.zeros(n_logs, dtype=int)
    columns = []
    for _ in range(n_steps):  # all logs advance together
        action = rng.integers(n_actions, size=n_logs)
        cumulative = true_transitions[np.arange(n_logs), state, action].cumsum(axis=1)
        next_state = (rng.random(n_logs)[:, None] > cumulative[:, :-1]).sum(axis=1)
        columns.append((state, action, next_state))
        state = next_state
    states, actions, next_states = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    is_covered = []
    for i in range(n_logs):
        log = {"state": states[i], "action": actions[i], "next_state": next_states[i]}
        result = posterior.fit(
            log, n_models=400, states=3, actions=2, rewards=rewards, initial=[1, 0, 0], seed=i
        )
        returns = mmdp.evaluate(result.train, policy, backend="numpy").returns
        low, high = np.quantile(returns, [0.05, 0.95])
        is_covered.append(low <= true_returns[i] <= high)
    assert 0.85 <= np.mean(is_covered) <= 0.95


def test_train_and_test_use_separate_random_streams() -> None:
    large_fit = posterior.fit(LOG, n_models=50, n_test_models=4000, prior="symmetric", seed=5)
    small_fit = posterior.fit(LOG, n_models=20, n_test_models=4000, prior="symmetric", seed=5)
    train, test = large_fit
    assert test is not None
    assert train is not None
    assert not np.array_equal(train.transitions[:20], test.transitions[:20])
    np.testing.assert_array_equal(small_fit.test.transitions, test.transitions)
    alpha = np.array([2.0, 3.0])  # well, wait: 1 + counts (well, sick)
    np.testing.assert_allclose(test.transitions.mean(0)[0, 0], alpha / 5, atol=1e-2)


def test_given_prior_is_scaled_and_restricts_the_pattern() -> None:
    prior = np.array([[[1.0, 3.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 2.0]]])
    result = posterior.fit(LOG, n_models=20_000, prior=prior, concentration=2.0)
    alpha = 2 * prior
    alpha[0, 0] += [1, 2]
    alpha[0, 1] += [1, 0]
    alpha[1, 0] += [0, 1]
    alpha[1, 1] += [1, 0]
    expected = alpha / alpha.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(result.train.transitions.mean(0), expected, atol=1e-2)
    assert (result.train.transitions[:, 0, 1, 1] == 0).all()


def test_tiny_concentrations_give_vertices_not_nan() -> None:
    alpha = np.full(3, 1e-4)
    samples = sample_dirichlet_rows(alpha, np.array([0, 3]), 3000, np.random.default_rng(0))
    np.testing.assert_allclose(samples.sum(axis=0), 1.0)
    np.testing.assert_allclose(samples.mean(axis=1), 1 / 3, atol=0.04)


def test_samples_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    alpha, indptr = np.arange(1.0, 13.0), np.array([0, 3, 3, 8, 12])
    one_block = sample_dirichlet_rows(alpha, indptr, 7, np.random.default_rng(3))
    monkeypatch.setattr("mmdp.data.sampling.BLOCK_SIZE", 10)
    many_blocks = sample_dirichlet_rows(alpha, indptr, 7, np.random.default_rng(3))
    np.testing.assert_array_equal(one_block, many_blocks)


# ---------------------------------------------------------------------- rewards
def test_average_rewards_are_the_means_of_the_log() -> None:
    model = posterior.fit(LOG, n_models=3, unseen="forbid").train
    assert model.rewards[0].tolist() == [[5.0, 2.0], [0.0, -3.0]]
    assert (model.rewards == model.rewards[0]).all()


def test_normal_rewards_have_the_moments_of_the_posterior() -> None:
    model = posterior.fit(LOG, n_models=40_000, rewards="normal").train
    mu, variance = LOG["reward"].mean(), LOG["reward"].var(ddof=0)  # one observation
    x = np.array([5.0, 4.0, 6.0])  # well, wait
    kappa, a = 1 + 3, 2 + 1.5
    mean = (mu + x.sum()) / kappa
    b = variance + ((x - x.mean()) ** 2).sum() / 2 + 3 * (x.mean() - mu) ** 2 / (2 * kappa)
    sampled_rewards = model.rewards[:, 0, 0]
    assert sampled_rewards.mean() == pytest.approx(mean, abs=0.02)
    assert sampled_rewards.var() == pytest.approx(b / (a - 1) / kappa, rel=0.05)  # of a Student t


@pytest.mark.parametrize("form", ["array", "table", "file"])
def test_known_rewards_in_every_form_are_the_same(form: str, tmp_path: Path) -> None:
    array = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    states, actions = ["well", "sick"], ["wait", "treat"]
    rows = [
        (s, a, n, array[i, j, k])
        for i, s in enumerate(states)
        for j, a in enumerate(actions)
        for k, n in enumerate(states)
    ]
    table = pd.DataFrame(rows, columns=["state", "action", "next_state", "reward"])
    table.to_csv(tmp_path / "r.csv", index=False)
    forms: dict[str, Any] = {
        "array": array,
        "table": table.sample(frac=1.0, random_state=0),
        "file": tmp_path / "r.csv",
    }
    model = posterior.fit(LOG, n_models=4, rewards=forms[form]).train
    expected = (model.transitions * array).sum(axis=-1)
    np.testing.assert_allclose(model.rewards, expected)


# ---------------------------------------------------------------------- unseen, episodes, labels
@pytest.mark.parametrize("unseen", ["absorb", "forbid", "prior"])
def test_unseen_pairs_are_listed_and_treated_as_asked(unseen: Any) -> None:
    log = LOG[LOG["action"] == "wait"].assign(action=["wait", "wait", "wait", "treat"])
    result = posterior.fit(log, n_models=5, unseen=unseen)
    pairs = {(s, a) for s, a in zip(log["state"], log["action"], strict=True)}
    expected = {(s, a) for s in ("well", "sick") for a in ("wait", "treat")} - pairs
    assert set(result.unseen_pairs) == expected
    s, a = (result.train.state_labels, result.train.action_labels)
    for state, action in result.unseen_pairs:
        i, j = s.index(str(state)), a.index(str(action))
        row = result.train.transitions[:, i, j]
        if unseen == "absorb":
            assert (row[:, i] == 1).all()
            assert (result.train.rewards[:, i, j] == 0).all()
        elif unseen == "forbid":
            assert not result.train.allowed[i, j]
        else:
            assert row.std() > 0
    assert any("never seen" in text for text in result.warnings)


def test_states_that_end_an_episode_absorb_and_are_suggested() -> None:
    log = {
        "state": ["a", "a"],
        "action": ["go", "go"],
        "next_state": ["a", "end"],
        "reward": [1.0, 2.0],
    }
    default_fit = posterior.fit(log, n_models=2)
    assert any("'end'" in text and "absorbing" in text for text in default_fit.warnings)
    result = posterior.fit(log, n_models=2, absorbing=["end"])
    assert result.train.transitions[:, 1, 0].tolist() == [[0.0, 1.0]] * 2
    assert result.train.rewards[:, 1, 0].tolist() == [0.0, 0.0]
    assert result.unseen_pairs == ()
    with pytest.raises(mmdp.InputError, match=r"unknown state 'edn' \(did you mean 'end'"):
        posterior.fit(log, absorbing=["edn"])


def test_initial_distribution_is_where_episodes_start() -> None:
    # episode 1 starts at time 0 in "well", episode 2 at time 1 in "well" (its last row)
    assert posterior.fit(LOG, n_models=1).train.initial.tolist() == [1.0, 0.0]
    log_without_time = LOG.drop(columns="time")
    assert posterior.fit(log_without_time, n_models=1).train.initial.tolist() == [0.5, 0.5]
    assert not posterior.fit(LOG.drop(columns="episode"), n_models=1).train.has_initial
    initial = posterior.fit(LOG, n_models=1, initial={"sick": 1.0}).train.initial
    assert initial.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("from_file", [True, False])
def test_dates_order_an_episode(from_file: bool, tmp_path: Path) -> None:
    days = pd.to_datetime(
        ["2024-01-01", "2024-01-02", "2024-01-03", "2024-02-10", "2024-02-11", "2024-02-09"]
    )
    log = LOG.assign(time=days)
    if from_file:
        log.to_csv(tmp_path / "log.csv", index=False)
    result = posterior.fit(tmp_path / "log.csv" if from_file else log, n_models=1)
    assert result.train.initial.tolist() == [1.0, 0.0]
    check_refused(LOG.assign(time=["soon"] * 6), "row 0: time is 'soon'")


@pytest.mark.parametrize("form", ["frame", "csv"])
def test_peak_memory_is_under_four_times_the_table(form: str, tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 100_000
    frame = pd.DataFrame(
        {
            "state": rng.integers(50, size=rows),
            "action": rng.integers(4, size=rows),
            "next_state": rng.integers(50, size=rows),
            "reward": rng.random(rows).round(3),
            "episode": np.arange(rows) // 20,
            "time": np.arange(rows) % 20,
        }
    )
    size = int(frame.memory_usage(deep=True).sum())
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = frame if form == "frame" else tmp_path / "log.csv"
    posterior.fit(log, n_models=2)  # what is loaded on first use does not count
    tracemalloc.start()
    try:
        posterior.fit(log, n_models=20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


@pytest.mark.parametrize(
    ("form", "target"),
    [
        ("parquet", "folder"),
        ("csv", "fit"),
        pytest.param("parquet", "fit", marks=pytest.mark.slow),
        pytest.param("csv", "folder", marks=pytest.mark.slow),
    ],
)
def test_peak_of_the_whole_process_is_under_four_times_the_table(form: str, target: str) -> None:
    """Arrow's memory is not Python's, so it is the system that counts here.

    What its threads hold at the same moment varies from run to run.
    """
    from benchmarks.memory import run_fit

    pytest.importorskip("pyarrow")
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process is read from Linux's /proc")
    results = [run_fit(form, target, 400_000, 10) for _ in range(3)]
    assert results[0]["table"] > 15e6
    assert 0 < min(result["ratio"] for result in results) < 4


def test_parquet_columns_are_those_of_the_frame(tmp_path: Path) -> None:
    """Text in several row groups, an index, a date: read one by one as the frame has them."""
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(4)
    names = np.array(["z", "b", "m", "a"])
    state = np.concatenate([rng.integers(2, size=50), rng.integers(4, size=50)])
    log = pd.DataFrame(
        {
            "state": names[state],
            "action": rng.integers(2, size=100),
            "next_state": names[rng.integers(4, size=100)],
            "reward": rng.normal(size=100),
            "episode": rng.integers(9, size=100),
            "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(100), unit="h"),
        },
        index=np.arange(100)[::-1],
    )
    log.to_parquet(tmp_path / "log.parquet", row_group_size=30)
    result = posterior.fit(tmp_path / "log.parquet", n_models=3)
    expected = posterior.fit(log, n_models=3)
    assert result.train.state_labels == expected.train.state_labels
    np.testing.assert_array_equal(result.train.transitions, expected.train.transitions)
    np.testing.assert_array_equal(result.train.initial, expected.train.initial)
    assert not any("index" in text for text in result.warnings)
    log.loc[7, "state"] = None
    log.to_parquet(tmp_path / "log.parquet")
    check_refused(tmp_path / "log.parquet", "row 92: state is missing")
    (tmp_path / "log.parquet").write_bytes(b"PAR1" + b"x" * 50 + b"PAR1")
    check_refused(tmp_path / "log.parquet", "damaged Parquet file")


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "categorical", "ids", "paper"])
def test_every_form_of_the_log_gives_the_same_models(form: str, tmp_path: Path) -> None:
    expected = posterior.fit(LOG, n_models=6, seed=2).train
    log: Any = LOG
    options: dict[str, Any] = {}
    if form == "csv":
        LOG.to_csv(tmp_path / "log.csv", index=False)
        log = tmp_path / "log.csv"
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        LOG.to_parquet(tmp_path / "log.parquet")
        log = str(tmp_path / "log.parquet")
    elif form == "categorical":
        categories = {
            "state": ["well", "sick"],
            "next_state": ["well", "sick", "gone"],
            "action": ["wait", "treat"],
        }
        log = LOG.assign(**{k: pd.Categorical(LOG[k], v) for k, v in categories.items()})
    elif form in ("ids", "paper"):
        ids = {"well": 0, "sick": 1, "wait": 0, "treat": 1}
        log = LOG.assign(**{k: LOG[k].map(ids).astype("int8") for k in LOG.columns[:3]})
        options = {"states": ["well", "sick"], "actions": ["wait", "treat"]}
    if form == "paper":
        log = log.rename(
            columns={"state": "idstatefrom", "action": "idaction", "next_state": "idstateto"}
        )
    model = posterior.fit(log, n_models=6, seed=2, **options).train
    assert model.state_labels == expected.state_labels
    assert model.action_labels == expected.action_labels
    np.testing.assert_array_equal(model.transitions, expected.transitions)
    np.testing.assert_array_equal(model.rewards, expected.rewards)
    np.testing.assert_array_equal(model.initial, expected.initial)


def test_counts_are_those_of_pandas() -> None:
    rng = np.random.default_rng(0)
    log = pd.DataFrame(rng.integers(7, size=(500, 3)), columns=["state", "action", "next_state"])
    result = posterior.fit(log, n_models=1, rewards=np.zeros(7))
    expected = log.groupby(["state", "action", "next_state"]).size().reset_index(name="count")
    np.testing.assert_array_equal(result.counts.to_numpy(), expected.to_numpy())


@pytest.mark.parametrize("n_states", [3, 400])  # counted in a table of cells, and by sorting
@pytest.mark.parametrize("rewards", ["average", "normal"])
def test_a_table_of_counts_is_the_expanded_log(n_states: int, rewards: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table = pd.DataFrame(
        {
            "state": rng.integers(n_states, size=40),
            "action": rng.integers(2, size=40),
            "next_state": rng.integers(n_states, size=40),
            "reward": rng.normal(size=40).round(3),
            "n": rng.integers(5, size=40),
            "country": "x",
        }
    )
    assert (table["n"] == 0).any()
    expanded = table.loc[np.repeat(table.index, table["n"])].drop(columns="n")
    table.to_csv(tmp_path / "counts.csv", index=False)
    options: dict[str, Any] = {"n_models": 3, "support": "seen", "states": n_states, "actions": 2}
    options["unseen"] = "absorb"
    result = posterior.fit(
        tmp_path / "counts.csv", columns={"count": "n"}, rewards=rewards, **options
    )
    log_fit = posterior.fit(expanded, rewards=rewards, **options)
    np.testing.assert_array_equal(result.pair_counts, log_fit.pair_counts)
    pd.testing.assert_frame_equal(result.counts, log_fit.counts)
    for name in ("transitions", "rewards"):
        actual, expected = getattr(result.train, name), getattr(log_fit.train, name)
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)
    refit = posterior.fit(result.counts, rewards=np.zeros((n_states, 2)), **options)
    np.testing.assert_array_equal(refit.train.transitions, log_fit.train.transitions)


def test_invalid_counts_are_refused() -> None:
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    check_refused(log | {"count": [2, 1.5]}, "row 1: count is 1.5, not a whole number >= 0")
    check_refused(log | {"count": [2, -1]}, "row 1: count is -1")
    check_refused(log | {"count": [0, 0]}, "every count is 0")
    check_refused(log | {"count": [2, 1], "episode": [0, 1]}, "columns 'count' and 'episode'")


def test_large_sparse_log_keeps_to_the_transitions_seen() -> None:
    rng = np.random.default_rng(0)
    state = rng.integers(3000, size=20_000)
    log = {
        "state": state,
        "action": rng.integers(2, size=20_000),
        "next_state": (state + rng.integers(4, size=20_000)) % 3000,
    }
    result = posterior.fit(
        log, n_models=5, support="seen", unseen="absorb", rewards=np.zeros(3000), states=3000
    )
    assert result.train.storage == "sparse"
    n_pairs = len(result.counts) + len(result.unseen_pairs)
    assert len(result.train.problem.indices) == n_pairs


def test_fit_folder_is_read_back_and_never_overwrites(tmp_path: Path) -> None:
    result = posterior.fit_folder(LOG, tmp_path / "new" / "models", n_models=4, n_test_models=3)
    loaded = mmdp.load(tmp_path / "new" / "models")
    np.testing.assert_array_equal(loaded.transitions, result.train.transitions)
    assert loaded.state_labels == ("well", "sick")
    assert mmdp.load(tmp_path / "new" / "models", split="test").n_models == 3
    document = json.loads((tmp_path / "new" / "models" / "fit.json").read_text())
    assert document["transitions"] == 6
    with pytest.raises(mmdp.InputError, match="holds training.csv already"):
        posterior.fit_folder(LOG, tmp_path / "new" / "models")
    posterior.fit_folder(LOG, tmp_path / "new" / "models", overwrite=True, n_models=2)
    assert mmdp.load(tmp_path / "new" / "models").n_models == 2
    assert not (tmp_path / "new" / "models" / "test.csv").exists()


# ---------------------------------------------------------------------- bad logs
def check_refused(log: Any, match: str, **options: Any) -> None:
    with pytest.raises(mmdp.InputError, match=match) as error_info:
        posterior.fit(log, **options)
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("column", ["state", "action", "next_state", "reward", "episode"])
def test_missing_values_name_the_line(column: str, tmp_path: Path) -> None:
    log = LOG.astype(object).copy()
    log.loc[2, column] = None
    log.to_csv(tmp_path / "log.csv", index=False)
    check_refused(tmp_path / "log.csv", rf"log.csv, line 4: {column} is .*(missing|not a number)")
    check_refused(log, rf"row 2: {column} is .*(missing|not a number)")


def test_unknown_state_is_named_with_its_line_and_a_suggestion(tmp_path: Path) -> None:
    LOG.assign(next_state=["well"] * 5 + ["sikc"]).to_csv(tmp_path / "log.csv", index=False)
    check_refused(
        tmp_path / "log.csv",
        r"line 7: next_state 'sikc' \(did you mean 'sick'\?\)",
        states=["well", "sick"],
    )
    ids = {"state": [0, 1], "action": [0, 0], "next_state": [1, 5], "reward": [0, 0]}
    check_refused(ids, "row 1: next_state is 5, which is not one of the 3 states 0..2", states=3)


@pytest.mark.parametrize(
    ("wrong", "right"), [("nextstate", "next_state"), ("acton", "action"), ("rewrd", "reward")]
)
def test_misspelled_columns_get_a_suggestion(wrong: str, right: str) -> None:
    check_refused(LOG.rename(columns={right: wrong}), rf"{wrong!r} \(did you mean {right!r}\?\)")


def test_other_columns_are_left_out_and_named() -> None:
    result = posterior.fit(LOG.assign(hospital="A"), n_models=1)
    assert any("hospital" in text for text in result.warnings)
    renamed = LOG.rename(columns={"state": "from", "next_state": "to"})
    columns = {"state": "from", "next_state": "to"}
    np.testing.assert_array_equal(
        posterior.fit(renamed, n_models=2, columns=columns).train.transitions,
        posterior.fit(LOG, n_models=2).train.transitions,
    )


def test_ten_billion_cells_are_refused_with_their_size() -> None:
    log = {"state": [0, 99_999], "action": [0, 0], "next_state": [1, 0], "reward": [0.0, 1.0]}
    check_refused(
        log, r"10,000,000,000 possible transitions \(100,000 states, 1 action\).*GB", n_models=1
    )
    log["state"] = [0, 3_000_000_000]
    check_refused(log, "3,000,000,001 states")


def test_other_bad_input_is_one_line() -> None:
    check_refused(LOG.drop(columns="reward"), "no column 'reward'")
    check_refused(LOG.iloc[:0], "no rows")
    check_refused("nowhere.csv", "no such file")
    check_refused(LOG, "concentration must be a positive", concentration=0)
    check_refused(LOG, "n_models must be a whole number", n_models=0)
    check_refused(LOG, "unseen must be one of", unseen="ignore")
    check_refused(LOG, "support must be one of .all. or .seen.", support="some")
    check_refused(LOG, "prior must be .*one of 'pooled' or 'symmetric'", prior="flat")
    check_refused(LOG, "has no argument 'suport' .did you mean 'support'", suport="seen")
    check_refused(LOG, "has no argument 'model' .did you mean 'n_models'", model=3)
    check_refused(LOG, r"does not broadcast to \(S, A, S'\)", prior=np.ones((3, 3)))
    prior = np.ones((2, 2, 2))
    prior[0, 0, 1] = 0
    check_refused(LOG, "state 'well', action 'wait' leading to 'sick'", prior=prior)
    check_refused(LOG.iloc[:3], "no next state is possible.*the log lacks", support="seen")
    check_refused(LOG, "rewards has shape", rewards=np.zeros((5, 5)))
    check_refused(LOG, "an array or a table, not function", rewards=lambda s, a, n: 1)
    check_refused(LOG, "absorbing='sick' is text", absorbing="sick")


# ---------------------------------------------------------------------- samples
def build_two_state(params: dict[str, Any]) -> dict[str, Any]:
    """Vectorised: the probability of failing is p, of repair q."""
    p, q = np.asarray(params["p"]), np.asarray(params["q"])
    rows = np.stack([np.stack([1 - p, p], -1), np.stack([q, 1 - q], -1)], axis=-2)
    return {"transitions": rows[..., None, :], "rewards": np.stack([10 - p, 0 * p], -1)[..., None]}


def build_scalar_only(params: dict[str, Any]) -> dict[str, Any]:
    if params["p"] > 2:  # an array has no single truth value
        raise AssertionError
    return build_two_state(params)


@pytest.mark.parametrize("build_model", [build_two_state, build_scalar_only])
@pytest.mark.parametrize("vectorized", [True, False])
def test_samples_become_models_for_any_function(build_model: Any, vectorized: Any) -> None:
    rng = np.random.default_rng(0)
    samples = pd.DataFrame({"p": rng.random(30), "q": rng.random(30)})
    model = posterior.from_samples(samples, build_model, vectorized=vectorized, discount=0.9)
    assert model.n_models == 30
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], samples["p"])
    np.testing.assert_allclose(model.rewards[:, 0, 0], 10 - samples["p"])
    np.testing.assert_array_equal(model.parameters["q"], samples["q"])


def test_wrong_broadcasting_falls_back_to_single_samples() -> None:
    def build_model(params: dict[str, Any]) -> tuple[Any, Any]:
        p = np.mean(params["p"])  # of all samples when vectorized
        row = np.array([1 - p, p])
        return np.tile(row, (*np.shape(params["p"]), 2, 1, 1)), [[0.0], [1.0]]

    model = posterior.from_samples({"p": np.array([0.1, 0.7])}, build_model)
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], [0.1, 0.7])


def test_inference_data_is_read_by_its_shape() -> None:
    values = np.random.default_rng(0).random((4, 5, 2))
    dataset = SimpleNamespace(data_vars={"pq": SimpleNamespace(values=values)})
    idata = SimpleNamespace(posterior=dataset)

    def build_model(params: dict[str, Any]) -> dict[str, Any]:
        return build_two_state({"p": params["pq"][..., 0], "q": params["pq"][..., 1]})

    model = posterior.from_samples(idata, build_model)
    assert model.n_models == 20
    np.testing.assert_allclose(model.transitions[:, 1, 0, 0], values.reshape(20, 2)[:, 1])
    assert list(model.parameters) == ["pq[0]", "pq[1]"]


def test_sparse_and_time_varying_samples() -> None:
    def build_sparse(params: dict[str, Any]) -> Any:
        p = float(params["p"])
        return [scipy.sparse.csr_array([[1 - p, p], [0.0, 1.0]])], np.zeros((2, 1))

    samples = {"p": np.array([0.2, 0.4, 0.9])}
    model = posterior.from_samples(samples, build_sparse)
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], samples["p"])

    def build_time_varying(params: dict[str, Any]) -> Any:
        p = float(params["p"])
        transitions = [[[[1 - p / t, p / t]], [[0.0, 1.0]]] for t in (1, 2)]
        return transitions, [[[1.0], [0.0]], [[2.0], [0.0]]]

    model = posterior.from_samples(samples, build_time_varying)
    assert model.horizon == 2
    np.testing.assert_allclose(model.transitions[1, :, 0, 0, 1], samples["p"] / 2)
    np.testing.assert_allclose(model.rewards[:, 0, 0, 0], [1.0, 2.0])


@pytest.mark.parametrize("vectorized", [True, False])
def test_invalid_rows_name_the_model(vectorized: Any) -> None:
    samples = {"p": np.array([0.1, 0.5, 1.25]), "q": np.array([0.2, 0.3, 0.4])}
    with pytest.raises(mmdp.InputError, match="model 2, state 0, action 0"):
        posterior.from_samples(samples, build_two_state, vectorized=vectorized)


def test_bad_samples_give_a_one_line_error() -> None:
    def check_samples_refused(samples: Any, build_model: Any, match: str, **options: Any) -> None:
        with pytest.raises(mmdp.InputError, match=match):
            posterior.from_samples(samples, build_model, **options)

    good = {"p": [0.1, 0.2], "q": [0.1, 0.2]}
    check_samples_refused(
        {"p": [0.1, np.nan], "q": [0, 0]}, build_two_state, "sample 1: parameter 'p' is missing"
    )
    check_samples_refused({"p": [0.1], "q": [0, 0]}, build_two_state, "same number of samples")
    check_samples_refused({}, build_two_state, "samples=dict is not readable")
    check_samples_refused(good, lambda x: 3, r"sample 0 \(p = 0.1.*build must return")
    check_samples_refused(good, lambda x: 1 / 0, r"sample 0 .*raised ZeroDivisionError")
    check_samples_refused({"name": ["a", "b"]}, build_two_state, "parameter 'name'")


def test_effective_sample_size_of_equal_weights_is_their_number() -> None:
    assert posterior.effective_sample_size([0.25] * 4) == 4.0


def test_rewards_of_unseen_pairs_are_reported() -> None:
    log = {
        "state": ["a", "a", "b"],
        "action": ["x", "y", "x"],
        "next_state": ["a", "a", "a"],
        "reward": [1.0, 2.0, 6.0],
    }
    message = "a pair never seen earns the log's average reward, 3; give a table"
    for rewards in ("average", "normal"):
        assert any(message in x for x in posterior.fit(log, n_models=2, rewards=rewards).warnings)
    result = posterior.fit(log, n_models=2)
    assert result.train.rewards[0, 1].tolist() == [6.0, 3.0]
    for options in ({"rewards": np.ones((2, 2))}, {"unseen": "forbid"}, {"unseen": "absorb"}):
        assert not any(
            "average reward" in x for x in posterior.fit(log, n_models=2, **options).warnings
        )


@pytest.mark.parametrize("horizon", [None, 3])
def test_sparse_matrices_of_every_sample(horizon: int | None) -> None:
    """By action, or by time and action: the same models as dense arrays make."""

    def build_dense(params: dict[str, Any]) -> Any:
        def make_transitions(t: int) -> Any:
            identity, p = np.eye(3), params["p"] / (t + 1)
            return np.stack(
                [(1 - p) * identity + p * np.roll(identity, 1, axis=1), identity], axis=1
            )

        rows = (
            make_transitions(0)
            if horizon is None
            else np.stack([make_transitions(t) for t in range(horizon)])
        )
        return rows, np.arange(6.0).reshape(3, 2)

    def build_sparse(params: dict[str, Any]) -> Any:
        rows, rewards = build_dense(params)
        if horizon is None:
            return [scipy.sparse.csr_array(rows[:, a]) for a in range(2)], rewards
        return [[scipy.sparse.csr_array(y[:, a]) for a in range(2)] for y in rows], rewards

    samples = {"p": [0.1, 0.2, 0.4]}
    model, expected = (
        posterior.from_samples(samples, build_model, vectorized=False, discount=0.9)
        for build_model in (build_sparse, build_dense)
    )
    assert model.fingerprint() == expected.fingerprint()
    assert model.horizon == expected.horizon == horizon
    with pytest.raises(mmdp.InputError, match="probability -0.2 at model 1, state"):
        posterior.from_samples({"p": [0.1, 1.2]}, build_sparse, vectorized=False)


def test_samples_and_fits_take_time_labels() -> None:
    options: Any = {"time_labels": {"age": range(40, 50)}, "unit": "$"}

    def build_model(params: Any) -> Any:
        p = params["p"]
        return np.array([[[1 - p, p]], [[0.0, 1.0]]]), [[1.0], [0.0]]

    log = {"state": ["a", "b"], "action": ["x", "x"], "next_state": ["b", "a"], "reward": [1, 2]}
    samples = {"p": [0.1, 0.3]}
    for model in (
        mmdp.from_samples(samples, build_model, states=["well", "dead"], **options),
        mmdp.fit(log, n_models=2, **options).train,
    ):
        assert (model.time_labels.describe_range(0, 10), model.unit) == ("age 40 to 50", "$")


def test_models_keep_the_prior_that_they_were_fitted_with(tmp_path: Path) -> None:
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 2.0]}
    prior = np.ones((2, 1, 2))
    model = posterior.fit(log, n_models=2, prior=prior).train
    prior[:] = 7.0
    assert model.evidence is not None
    assert model.evidence.prior["pseudo_counts"].tolist() == [[[1.0, 1.0]]] * 2
    rows = [np.ones((1, 2))] * 2  # a list of arrays is no JSON
    assert posterior.fit_folder(log, tmp_path / "models", prior=rows).train.n_states == 2


def test_a_step_function_keeps_its_samples() -> None:
    samples = {"pay": np.array([1.0, 2.0])}
    model = mmdp.from_step(
        lambda state, action, sample: ({"x": state["x"]}, sample["pay"]),
        states={"x": range(2)},
        actions={"a": range(2)},
        samples=samples,
    )
    samples["pay"][:] = 9.0
    policy = mmdp.policies.MarkovPolicy.uniform(model, 3)
    simulation = mmdp.simulate(model, policy, off_grid=True, n_episodes=2)
    assert simulation.returns.tolist() == [3.0, 6.0]
