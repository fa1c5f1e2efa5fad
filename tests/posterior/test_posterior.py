"""Models from data: the posterior is the analytic one, bad logs and draws are refused."""

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
from mmdp import posterior
from mmdp.domains._riverswim import N_STATES, TRUE_MOVES
from mmdp.posterior.dirichlet import dirichlet_rows

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


def riverswim_log(steps: int = 15, seed: int = 3) -> pd.DataFrame:
    """The log behind the domain: the uniform policy from state 0 under the true model."""
    rng, rows, state = np.random.default_rng(seed), [], 0
    for _ in range(steps):
        action = int(rng.random() < 0.5)
        move = int(rng.choice(3, p=TRUE_MOVES)) if action else 0
        after = min(max(state + move - 1, 0), N_STATES - 1)
        rows.append((state, action, after, 5.0 * (1 - action)))
        state = after
    return pd.DataFrame(rows, columns=["state", "action", "next_state", "reward"])


def river_support() -> np.ndarray:
    """(S, A, S'): swimming left always moves left, swimming right reaches the neighbours."""
    mask = np.zeros((N_STATES, 2, N_STATES), dtype=bool)
    for s in range(N_STATES):
        mask[s, 0, max(s - 1, 0)] = True
        mask[s, 1, max(s - 1, 0) : min(s + 2, N_STATES)] = True
    return mask


# ---------------------------------------------------------------------- the posterior
def test_riverswim_posterior_is_the_analytic_dirichlet() -> None:
    log = riverswim_log()
    found = posterior.fit(
        log, models=10_000, prior="symmetric", support=river_support(), states=N_STATES, actions=2,
        seed=1,
    )  # fmt: skip
    alpha = river_support().astype(float)
    np.add.at(alpha, (log["state"], log["action"], log["next_state"]), 1.0)
    total = alpha.sum(axis=2, keepdims=True)
    mean = alpha / total
    draws = found.train.transitions
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=1e-2)
    # Var = m (1 - m) / (total + 1), Cov = -m m' / (total + 1)
    np.testing.assert_allclose(draws.var(axis=0), mean * (1 - mean) / (total + 1), atol=1e-2)
    row = draws[:, 1, 1, :3]
    expected = np.diag(mean[1, 1, :3]) - np.outer(mean[1, 1, :3], mean[1, 1, :3])
    np.testing.assert_allclose(np.cov(row.T), expected / (total[1, 1] + 1), atol=1e-2)
    assert found.visits.sum() == 15
    assert len(found.unseen) == (found.visits == 0).sum()


def test_pooled_riverswim_moves_through_from_draws_are_the_domain() -> None:
    counts = np.array([2.0, 4.0, 3.0])
    moves = np.random.default_rng(0).dirichlet(1 + counts, size=10_000)

    def build(x: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        p = np.zeros((*np.shape(x["left"]), 4, 1, 4))
        for s in range(4):
            for name, step in (("left", -1), ("stay", 0), ("right", 1)):
                p[..., s, 0, min(max(s + step, 0), 3)] += x[name]
        return p, np.ones((4, 1))

    model = posterior.from_draws(pd.DataFrame(moves, columns=["left", "stay", "right"]), build)
    mean = (1 + counts) / (3 + counts.sum())
    np.testing.assert_allclose(model.transitions.mean(axis=0)[1, 0, :3], mean, atol=1e-2)
    np.testing.assert_array_equal(model.parameters["stay"], moves[:, 1])


def test_ninety_percent_interval_covers_the_true_return() -> None:
    """True models from the prior: the posterior interval must cover 90 % of their returns."""
    rng = np.random.default_rng(11)
    n_states, n_actions, horizon, steps, logs = 3, 2, 12, 40, 200
    rewards = np.array([[1.0, 0.0], [0.0, 2.0], [4.0, 3.0]])
    policy = mmdp.MarkovPolicy(np.array([[0, 1, 0]] * horizon), n_actions=2)
    truth = rng.dirichlet(np.ones(n_states), size=(logs, n_states, n_actions))
    exact = mmdp.evaluate(policy, mmdp.MMDP(truth, rewards, initial=[1, 0, 0])).returns
    state = np.zeros(logs, dtype=int)
    columns = []
    for _ in range(steps):  # all logs advance together
        action = rng.integers(n_actions, size=logs)
        cumulative = truth[np.arange(logs), state, action].cumsum(axis=1)
        after = (rng.random(logs)[:, None] > cumulative[:, :-1]).sum(axis=1)
        columns.append((state, action, after))
        state = after
    states, actions, nexts = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    covered = []
    for i in range(logs):
        log = {"state": states[i], "action": actions[i], "next_state": nexts[i]}
        found = posterior.fit(
            log, models=400, states=3, actions=2, rewards=rewards, initial=[1, 0, 0], seed=i
        )
        returns = mmdp.evaluate(policy, found.train, backend="numpy").returns
        low, high = np.quantile(returns, [0.05, 0.95])
        covered.append(low <= exact[i] <= high)
    assert 0.85 <= np.mean(covered) <= 0.95


def test_train_and_test_come_from_the_same_posterior_by_streams_of_their_own() -> None:
    one = posterior.fit(LOG, models=50, test_models=4000, prior="symmetric", seed=5)
    other = posterior.fit(LOG, models=20, test_models=4000, prior="symmetric", seed=5)
    train, test = one
    assert test is not None
    assert train is not None
    assert not np.array_equal(train.transitions[:20], test.transitions[:20])
    np.testing.assert_array_equal(other.test.transitions, test.transitions)
    alpha = np.array([2.0, 3.0])  # well, wait: 1 + counts (well, sick)
    np.testing.assert_allclose(test.transitions.mean(0)[0, 0], alpha / 5, atol=1e-2)


def test_given_prior_is_scaled_and_restricts_the_support() -> None:
    prior = np.array([[[1.0, 3.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 2.0]]])
    found = posterior.fit(LOG, models=20_000, prior=prior, concentration=2.0)
    alpha = 2 * prior
    alpha[0, 0] += [1, 2]
    alpha[0, 1] += [1, 0]
    alpha[1, 0] += [0, 1]
    alpha[1, 1] += [1, 0]
    expected = alpha / alpha.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found.train.transitions.mean(0), expected, atol=1e-2)
    assert (found.train.transitions[:, 0, 1, 1] == 0).all()


def test_objects_and_shorthands_give_the_same_models() -> None:
    prior, spread = np.array([[[2.0, 3.0]], [[1.0, 1.0]]]), (1.0, 2.0, 3.0, 4.0)
    short = posterior.fit(
        LOG.iloc[:3], models=3, test_models=2, prior=prior, concentration=2.0, support="all",
        unseen="absorb", absorbing=["sick"], rewards="normal", reward_prior=spread,
    )  # fmt: skip
    long = posterior.fit(
        LOG.iloc[:3], models=3, test_models=2,
        prior=mmdp.Prior(prior, concentration=2.0, unseen="absorb", absorbing=["sick"]),
        rewards=mmdp.Rewards("normal", prior=np.array(spread)),  # type: ignore[arg-type]
    )  # fmt: skip
    for one, other in zip(short, long, strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.transitions, other.transitions)
        np.testing.assert_array_equal(one.rewards, other.rewards)
    assert short.warnings == long.warnings
    assert long.train.rewards[:, 1].tolist() == [[0.0, 0.0]] * 3


def test_tiny_concentrations_give_vertices_not_nan() -> None:
    alpha = np.full(3, 1e-4)
    draws = dirichlet_rows(alpha, np.array([0, 3]), 3000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.sum(axis=0), 1.0)
    np.testing.assert_allclose(draws.mean(axis=1), 1 / 3, atol=0.04)


def test_draws_do_not_depend_on_the_block_size() -> None:
    alpha, indptr = np.arange(1.0, 13.0), np.array([0, 3, 3, 8, 12])
    one = dirichlet_rows(alpha, indptr, 7, np.random.default_rng(3))
    many = dirichlet_rows(alpha, indptr, 7, np.random.default_rng(3), block=10)
    np.testing.assert_array_equal(one, many)


# ---------------------------------------------------------------------- rewards
def test_average_rewards_are_the_means_of_the_log() -> None:
    model = posterior.fit(LOG, models=3, unseen="error").train
    assert model.rewards[0].tolist() == [[5.0, 2.0], [0.0, -3.0]]
    assert (model.rewards == model.rewards[0]).all()


def test_normal_rewards_have_the_moments_of_the_posterior() -> None:
    prior = (1.0, 2.0, 3.0, 4.0)
    found = posterior.fit(LOG, models=40_000, rewards="normal", reward_prior=prior).train
    x = np.array([5.0, 4.0, 6.0])  # well, wait
    kappa, a = 2 + 3, 3 + 1.5
    mean = (2 * 1.0 + x.sum()) / kappa
    b = 4 + ((x - x.mean()) ** 2).sum() / 2 + 2 * 3 * (x.mean() - 1) ** 2 / (2 * kappa)
    drawn = found.rewards[:, 0, 0]
    assert drawn.mean() == pytest.approx(mean, abs=0.02)
    assert drawn.var() == pytest.approx(b / (a - 1) / kappa, rel=0.05)  # of a Student t


@pytest.mark.parametrize("kind", ["array", "table", "function", "file"])
def test_known_rewards_in_every_form_are_the_same(kind: str, tmp_path: Path) -> None:
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
    lookup = {row[:3]: row[3] for row in rows}
    forms: dict[str, Any] = {
        "array": array, "table": table.sample(frac=1.0, random_state=0),
        "function": lambda s, a, n: lookup[s, a, n], "file": tmp_path / "r.csv",
    }  # fmt: skip
    model = posterior.fit(LOG, models=4, rewards=forms[kind]).train
    expected = (model.transitions * array).sum(axis=-1)
    np.testing.assert_allclose(model.rewards, expected)


# ---------------------------------------------------------------------- unseen, episodes, labels
@pytest.mark.parametrize("unseen", ["absorb", "forbid", "prior"])
def test_unseen_pairs_are_listed_and_treated_as_asked(unseen: Any) -> None:
    log = LOG[LOG["action"] == "wait"].assign(action=["wait", "wait", "wait", "treat"])
    found = posterior.fit(log, models=5, unseen=unseen)
    pairs = {(s, a) for s, a in zip(log["state"], log["action"], strict=True)}
    expected = {(s, a) for s in ("well", "sick") for a in ("wait", "treat")} - pairs
    assert set(found.unseen) == expected
    s, a = (found.train.state_labels, found.train.action_labels)
    for state, action in found.unseen:
        i, j = s.index(str(state)), a.index(str(action))
        row = found.train.transitions[:, i, j]
        if unseen == "absorb":
            assert (row[:, i] == 1).all()
            assert (found.train.rewards[:, i, j] == 0).all()
        elif unseen == "forbid":
            assert not found.train.allowed[i, j]
        else:
            assert row.std() > 0
    assert any("never seen" in text for text in found.warnings)


def test_states_that_end_an_episode_absorb_and_are_suggested() -> None:
    log = {"state": ["a", "a"], "action": ["go", "go"], "next_state": ["a", "end"],
           "reward": [1.0, 2.0]}  # fmt: skip
    told = posterior.fit(log, models=2)
    assert any("'end'" in text and "absorbing" in text for text in told.warnings)
    found = posterior.fit(log, models=2, absorbing=["end"])
    assert found.train.transitions[:, 1, 0].tolist() == [[0.0, 1.0]] * 2
    assert found.train.rewards[:, 1, 0].tolist() == [0.0, 0.0]
    assert found.unseen == ()
    with pytest.raises(mmdp.InputError, match=r"unknown state 'edn' \(did you mean 'end'"):
        posterior.fit(log, absorbing=["edn"])


def test_initial_distribution_is_where_episodes_start() -> None:
    # episode 1 starts at time 0 in "well", episode 2 at time 1 in "well" (its last row)
    assert posterior.fit(LOG, models=1).train.initial.tolist() == [1.0, 0.0]
    by_place = LOG.drop(columns="time")
    assert posterior.fit(by_place, models=1).train.initial.tolist() == [0.5, 0.5]
    assert not posterior.fit(LOG.drop(columns="episode"), models=1).train.initial_given
    given = posterior.fit(LOG, models=1, initial={"sick": 1.0}).train.initial
    assert given.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("text", [True, False])
def test_dates_order_an_episode(text: bool, tmp_path: Path) -> None:
    days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03", "2024-02-10", "2024-02-11",
                           "2024-02-09"])  # fmt: skip
    log = LOG.assign(time=days)
    if text:
        log.to_csv(tmp_path / "log.csv", index=False)
    found = posterior.fit(tmp_path / "log.csv" if text else log, models=1)
    assert found.train.initial.tolist() == [1.0, 0.0]
    refused(LOG.assign(time=["soon"] * 6), "row 0: time is 'soon'")


@pytest.mark.parametrize("kind", ["frame", "csv"])
def test_peak_memory_is_under_four_times_the_table(kind: str, tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), 100_000
    frame = pd.DataFrame(
        {
            "state": rng.integers(50, size=rows), "action": rng.integers(4, size=rows),
            "next_state": rng.integers(50, size=rows), "reward": rng.random(rows).round(3),
            "episode": np.arange(rows) // 20, "time": np.arange(rows) % 20,
        }
    )  # fmt: skip
    size = int(frame.memory_usage(deep=True).sum())
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = frame if kind == "frame" else tmp_path / "log.csv"
    posterior.fit(log, models=2)  # what is loaded on first use does not count
    tracemalloc.start()
    try:
        posterior.fit(log, models=20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_peak_of_the_whole_process_is_under_four_times_the_table(form: str) -> None:
    """Arrow's memory is not Python's, so it is the system that counts here."""
    from benchmarks import fitting

    pytest.importorskip("pyarrow")
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process is read from Linux's /proc")
    found = fitting.run(form, 400_000, models=10)
    assert found["table"] > 15e6
    assert 0 < found["fit_ratio"] < fitting.RATIO
    assert 0 < found["folder_ratio"] < fitting.RATIO


def test_parquet_columns_are_those_of_the_frame(tmp_path: Path) -> None:
    """Text in several row groups, an index, a date: read one by one as the frame has them."""
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(4)
    names = np.array(["z", "b", "m", "a"])
    state = np.concatenate([rng.integers(2, size=50), rng.integers(4, size=50)])
    log = pd.DataFrame(
        {
            "state": names[state], "action": rng.integers(2, size=100),
            "next_state": names[rng.integers(4, size=100)], "reward": rng.normal(size=100),
            "episode": rng.integers(9, size=100),
            "time": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(100), unit="h"),
        },
        index=np.arange(100)[::-1],
    )  # fmt: skip
    log.to_parquet(tmp_path / "log.parquet", row_group_size=30)
    found = posterior.fit(tmp_path / "log.parquet", models=3)
    expected = posterior.fit(log, models=3)
    assert found.train.state_labels == expected.train.state_labels
    np.testing.assert_array_equal(found.train.transitions, expected.train.transitions)
    np.testing.assert_array_equal(found.train.initial, expected.train.initial)
    assert not any("index" in text for text in found.warnings)
    log.loc[7, "state"] = None
    log.to_parquet(tmp_path / "log.parquet")
    refused(tmp_path / "log.parquet", "row 92: state is missing")
    (tmp_path / "log.parquet").write_bytes(b"PAR1" + b"x" * 50 + b"PAR1")
    refused(tmp_path / "log.parquet", "damaged Parquet file")


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "categorical", "ids", "paper"])
def test_every_form_of_the_log_gives_the_same_models(form: str, tmp_path: Path) -> None:
    expected = posterior.fit(LOG, models=6, seed=2).train
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
        kinds = {"state": ["well", "sick"], "next_state": ["well", "sick", "gone"],
                 "action": ["wait", "treat"]}  # fmt: skip
        log = LOG.assign(**{k: pd.Categorical(LOG[k], v) for k, v in kinds.items()})
    elif form in ("ids", "paper"):
        numbers = {"well": 0, "sick": 1, "wait": 0, "treat": 1}
        log = LOG.assign(**{k: LOG[k].map(numbers).astype("int8") for k in LOG.columns[:3]})
        options = {"states": ["well", "sick"], "actions": ["wait", "treat"]}
    if form == "paper":
        log = log.rename(
            columns={"state": "idstatefrom", "action": "idaction", "next_state": "idstateto"}
        )
    found = posterior.fit(log, models=6, seed=2, **options).train
    assert found.state_labels == expected.state_labels
    assert found.action_labels == expected.action_labels
    np.testing.assert_array_equal(found.transitions, expected.transitions)
    np.testing.assert_array_equal(found.rewards, expected.rewards)
    np.testing.assert_array_equal(found.initial, expected.initial)


def test_counts_are_those_of_pandas() -> None:
    rng = np.random.default_rng(0)
    log = pd.DataFrame(rng.integers(7, size=(500, 3)), columns=["state", "action", "next_state"])
    found = posterior.fit(log, models=1, rewards=np.zeros(7))
    expected = log.groupby(["state", "action", "next_state"]).size().reset_index(name="count")
    np.testing.assert_array_equal(found.counts.to_numpy(), expected.to_numpy())


@pytest.mark.parametrize("states", [3, 400])  # counted in a table of cells, and by sorting
@pytest.mark.parametrize("rewards", ["average", "normal"])
def test_a_table_of_counts_is_the_expanded_log(states: int, rewards: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table = pd.DataFrame({
        "state": rng.integers(states, size=40), "action": rng.integers(2, size=40),
        "next_state": rng.integers(states, size=40), "reward": rng.normal(size=40).round(3),
        "n": rng.integers(5, size=40), "country": "x",
    })  # fmt: skip
    assert (table["n"] == 0).any()
    expanded = table.loc[np.repeat(table.index, table["n"])].drop(columns="n")
    table.to_csv(tmp_path / "counts.csv", index=False)
    options: dict[str, Any] = {"models": 3, "support": "seen", "states": states, "actions": 2}
    options["unseen"] = "absorb"
    found = posterior.fit(
        tmp_path / "counts.csv", columns={"count": "n"}, rewards=rewards, **options
    )
    whole = posterior.fit(expanded, rewards=rewards, **options)
    np.testing.assert_array_equal(found.visits, whole.visits)
    pd.testing.assert_frame_equal(found.counts, whole.counts)
    for name in ("transitions", "rewards"):
        given, expected = getattr(found.train, name), getattr(whole.train, name)
        np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)
    again = posterior.fit(found.counts, rewards=np.zeros((states, 2)), **options)
    np.testing.assert_array_equal(again.train.transitions, whole.train.transitions)


def test_counts_that_are_none_are_refused() -> None:
    log = {"state": [0, 1], "action": [0, 0], "next_state": [1, 0], "reward": [1.0, 0.0]}
    refused(log | {"count": [2, 1.5]}, "row 1: count is 1.5, not a whole number from 0 on")
    refused(log | {"count": [2, -1]}, "row 1: count is -1")
    refused(log | {"count": [0, 0]}, "every count is 0")
    refused(log | {"count": [2, 1], "episode": [0, 1]}, "counts and episodes")


def test_large_sparse_log_keeps_to_the_transitions_seen() -> None:
    rng = np.random.default_rng(0)
    state = rng.integers(3000, size=20_000)
    log = {"state": state, "action": rng.integers(2, size=20_000),
           "next_state": (state + rng.integers(4, size=20_000)) % 3000}  # fmt: skip
    found = posterior.fit(
        log, models=5, support="seen", unseen="absorb", rewards=np.zeros(3000), states=3000
    )
    assert found.train.storage == "sparse"
    seen = len(found.counts) + len(found.unseen)
    assert len(found.train.problem.indices) == seen


def test_fit_folder_is_read_back_and_never_overwrites(tmp_path: Path) -> None:
    found = posterior.fit_folder(LOG, tmp_path / "new" / "models", models=4, test_models=3)
    back = mmdp.load(tmp_path / "new" / "models")
    np.testing.assert_array_equal(back.transitions, found.train.transitions)
    assert back.state_labels == ("well", "sick")
    assert mmdp.load(tmp_path / "new" / "models", split="test").n_models == 3
    document = json.loads((tmp_path / "new" / "models" / "fit.json").read_text())
    assert document["transitions"] == 6
    with pytest.raises(mmdp.InputError, match="holds training.csv already"):
        posterior.fit_folder(LOG, tmp_path / "new" / "models")
    posterior.fit_folder(LOG, tmp_path / "new" / "models", overwrite=True, models=2)
    assert mmdp.load(tmp_path / "new" / "models").n_models == 2
    assert not (tmp_path / "new" / "models" / "test.csv").exists()


def test_models_are_written_as_pandas_would(tmp_path: Path) -> None:
    from mmdp.io import folders

    rng = np.random.default_rng(0)
    count = folders.ROWS + 3
    columns = {
        "idstatefrom": rng.integers(5, size=count).astype(np.int32),
        "idoutcome": rng.integers(2000, size=count).astype(np.int32),
        "probability": rng.random(count) ** 30,  # down to 1e-100
        "reward": np.where(rng.random(count) < 0.5, -1.0, rng.normal(size=count) * 1e20),
    }
    folders._write_rows(columns, tmp_path / "a.csv")
    pd.DataFrame(columns).to_csv(tmp_path / "b.csv", index=False, lineterminator="\n")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


# ---------------------------------------------------------------------- bad logs
def refused(log: Any, match: str, **options: Any) -> None:
    with pytest.raises(mmdp.InputError, match=match) as caught:
        posterior.fit(log, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["state", "action", "next_state", "reward", "episode"])
def test_missing_values_name_the_line(column: str, tmp_path: Path) -> None:
    log = LOG.astype(object).copy()
    log.loc[2, column] = None
    log.to_csv(tmp_path / "log.csv", index=False)
    refused(tmp_path / "log.csv", rf"log.csv, line 4: {column} is .*(missing|not a number)")
    refused(log, rf"row 2: {column} is .*(missing|not a number)")


def test_unknown_state_is_named_with_its_line_and_a_suggestion(tmp_path: Path) -> None:
    LOG.assign(next_state=["well"] * 5 + ["sikc"]).to_csv(tmp_path / "log.csv", index=False)
    refused(
        tmp_path / "log.csv", r"line 7: next_state 'sikc' \(did you mean 'sick'\?\)",
        states=["well", "sick"],
    )  # fmt: skip
    ids = {"state": [0, 1], "action": [0, 0], "next_state": [1, 5], "reward": [0, 0]}
    refused(ids, "row 1: next_state is 5, which is not one of the 3 states 0..2", states=3)


@pytest.mark.parametrize(
    ("wrong", "right"), [("nextstate", "next_state"), ("acton", "action"), ("rewrd", "reward")]
)
def test_misspelt_column_is_told_the_right_name(wrong: str, right: str) -> None:
    refused(LOG.rename(columns={right: wrong}), rf"{wrong!r} \(did you mean {right!r}\?\)")


def test_other_columns_are_left_out_and_named() -> None:
    found = posterior.fit(LOG.assign(hospital="A"), models=1)
    assert any("hospital" in text for text in found.warnings)
    renamed = LOG.rename(columns={"state": "from", "next_state": "to"})
    columns = {"state": "from", "next_state": "to"}
    np.testing.assert_array_equal(
        posterior.fit(renamed, models=2, columns=columns).train.transitions,
        posterior.fit(LOG, models=2).train.transitions,
    )


def test_ten_billion_cells_are_refused_with_their_size() -> None:
    log = {"state": [0, 99_999], "action": [0, 0], "next_state": [1, 0], "reward": [0.0, 1.0]}
    refused(log, r"10,000,000,000 possible transitions \(100,000 states, 1 action\).*GB", models=1)
    log["state"] = [0, 3_000_000_000]
    refused(log, "3,000,000,001 states")


def test_other_bad_input_is_one_line() -> None:
    refused(LOG.drop(columns="reward"), "no column 'reward'")
    refused(LOG.iloc[:0], "no rows")
    refused("nowhere.csv", "no such file")
    refused(LOG, "concentration must be a positive", concentration=0)
    refused(LOG, "models must be a whole number", models=0)
    refused(LOG, "unseen must be one of", unseen="ignore")
    refused(LOG, "support must be .*one of .all. or .seen.", support="some")
    refused(LOG, "prior must be a Prior, .*one of 'pooled' or 'symmetric'", prior="flat")
    refused(LOG, "fit has no option 'suport' .did you mean 'support'", suport="seen")
    refused(LOG, "fit has no option 'model' .did you mean 'models'", model=3)
    refused(LOG, "Prior has its own support", prior=mmdp.Prior(), support="seen")
    refused(LOG, "Rewards has its own prior", rewards=mmdp.Rewards(), reward_prior=(0, 1, 2, 1))
    refused(LOG, 'is for rewards="normal"', rewards="average", reward_prior=(0, 1, 2, 1))
    refused(LOG, r"does not broadcast to \(S, A, S'\)", prior=np.ones((3, 3)))
    mask = np.ones((2, 2, 2), dtype=bool)
    mask[0, 0, 1] = False
    refused(LOG, "state 'well', action 'wait' leading to 'sick'", support=mask)
    refused(LOG.iloc[:3], "2 state-action pairs never seen", unseen="error")
    refused(LOG.iloc[:3], "no next state is possible.*the log never shows", support="seen")
    refused(LOG, "rewards of shape", rewards=np.zeros((5, 5)))
    refused(LOG, "raised ZeroDivisionError", rewards=lambda s, a, n: 1 / 0)


# ---------------------------------------------------------------------- draws
def two_state(x: dict[str, Any]) -> dict[str, Any]:
    """Vectorised: the probability of failing is p, of repair q."""
    p, q = np.asarray(x["p"]), np.asarray(x["q"])
    rows = np.stack([np.stack([1 - p, p], -1), np.stack([q, 1 - q], -1)], axis=-2)
    return {"transitions": rows[..., None, :], "rewards": np.stack([10 - p, 0 * p], -1)[..., None]}


def scalar_only(x: dict[str, Any]) -> dict[str, Any]:
    if x["p"] > 2:  # an array has no single truth value
        raise AssertionError
    return two_state(x)


@pytest.mark.parametrize("build", [two_state, scalar_only])
@pytest.mark.parametrize("vectorized", [None, False])
def test_draws_become_models_whatever_the_function_takes(build: Any, vectorized: Any) -> None:
    rng = np.random.default_rng(0)
    draws = pd.DataFrame({"p": rng.random(30), "q": rng.random(30)})
    model = posterior.from_draws(draws, build, vectorized=vectorized, discount=0.9)
    assert model.n_models == 30
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], draws["p"])
    np.testing.assert_allclose(model.rewards[:, 0, 0], 10 - draws["p"])
    np.testing.assert_array_equal(model.parameters["q"], draws["q"])


def test_a_function_that_broadcasts_wrongly_is_called_a_draw_at_a_time() -> None:
    def build(x: dict[str, Any]) -> tuple[Any, Any]:
        p = np.mean(x["p"])  # of all draws when vectorised
        row = np.array([1 - p, p])
        return np.tile(row, (*np.shape(x["p"]), 2, 1, 1)), [[0.0], [1.0]]

    model = posterior.from_draws({"p": np.array([0.1, 0.7])}, build)
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], [0.1, 0.7])


def test_inference_data_is_read_by_its_shape() -> None:
    values = np.random.default_rng(0).random((4, 5, 2))
    dataset = SimpleNamespace(data_vars={"pq": SimpleNamespace(values=values)})
    idata = SimpleNamespace(posterior=dataset)

    def build(x: dict[str, Any]) -> dict[str, Any]:
        return two_state({"p": x["pq"][..., 0], "q": x["pq"][..., 1]})

    model = posterior.from_draws(idata, build)
    assert model.n_models == 20
    np.testing.assert_allclose(model.transitions[:, 1, 0, 0], values.reshape(20, 2)[:, 1])
    assert list(model.parameters) == ["pq[0]", "pq[1]"]


def test_sparse_and_time_varying_draws() -> None:
    def sparse(x: dict[str, Any]) -> Any:
        p = float(x["p"])
        return [scipy.sparse.csr_array([[1 - p, p], [0.0, 1.0]])], np.zeros((2, 1))

    draws = {"p": np.array([0.2, 0.4, 0.9])}
    model = posterior.from_draws(draws, sparse)
    np.testing.assert_allclose(model.transitions[:, 0, 0, 1], draws["p"])

    def in_time(x: dict[str, Any]) -> Any:
        p = float(x["p"])
        steps = [[[[1 - p / t, p / t]], [[0.0, 1.0]]] for t in (1, 2)]
        return steps, [[[1.0], [0.0]], [[2.0], [0.0]]]

    model = posterior.from_draws(draws, in_time)
    assert model.horizon == 2
    np.testing.assert_allclose(model.transitions[1, :, 0, 0, 1], draws["p"] / 2)
    np.testing.assert_allclose(model.rewards[:, 0, 0, 0], [1.0, 2.0])


@pytest.mark.parametrize("vectorized", [None, True, False])
def test_invalid_rows_name_the_draw_and_its_parameters(vectorized: Any) -> None:
    draws = {"p": np.array([0.1, 0.5, 1.25]), "q": np.array([0.2, 0.3, 0.4])}
    with pytest.raises(mmdp.InputError, match=r"draw 2 \(p = 1.25, q = 0.4\).*state 0, action 0"):
        posterior.from_draws(draws, two_state, vectorized=vectorized)


def test_bad_draws_are_one_line() -> None:
    def refuse(draws: Any, build: Any, match: str, **options: Any) -> None:
        with pytest.raises(mmdp.InputError, match=match):
            posterior.from_draws(draws, build, **options)

    good = {"p": [0.1, 0.2], "q": [0.1, 0.2]}
    refuse({"p": [0.1, np.nan], "q": [0, 0]}, two_state, "draw 1: parameter 'p' is missing")
    refuse({"p": [0.1], "q": [0, 0]}, two_state, "same number of draws")
    refuse({}, two_state, "draws must be")
    refuse(good, lambda x: 3, r"draw 0 \(p = 0.1.*build must return")
    refuse(good, lambda x: 1 / 0, r"draw 0 .*raised ZeroDivisionError")
    refuse(good, scalar_only, "build with arrays raised", vectorized=True)
    refuse({"name": ["a", "b"]}, two_state, "parameter 'name'")


def test_weights_from_log_likelihood_do_not_overflow() -> None:
    ll = np.array([[-1e5, -1.0], [-1e5, -2.0], [-np.inf, 0.0]])
    expected = np.array([1.0, np.exp(-1.0), 0.0])
    np.testing.assert_allclose(
        posterior.weights_from_log_likelihood(ll), expected / expected.sum(), rtol=1e-9
    )
    for bad in ([np.nan, 0.0], [-np.inf, -np.inf], []):
        with pytest.raises(mmdp.InputError):
            posterior.weights_from_log_likelihood(bad)
    assert posterior.effective_models([0.25] * 4) == 4.0


def test_what_an_unseen_pair_earns_is_told() -> None:
    log = {"state": ["a", "a", "b"], "action": ["x", "y", "x"], "next_state": ["a", "a", "a"],
           "reward": [1.0, 2.0, 6.0]}  # fmt: skip
    told = "what was never seen earns the log's average reward, 3; if you know better"
    for rewards in ("average", "normal"):
        assert any(told in x for x in posterior.fit(log, models=2, rewards=rewards).warnings)
    found = posterior.fit(log, models=2)
    assert found.train.rewards[0, 1].tolist() == [6.0, 3.0]
    for known in ({"rewards": np.ones((2, 2))}, {"unseen": "forbid"}, {"unseen": "absorb"}):
        assert not any(
            "average reward" in x for x in posterior.fit(log, models=2, **known).warnings
        )


@pytest.mark.parametrize("horizon", [None, 3])
def test_sparse_matrices_of_every_draw(horizon: int | None) -> None:
    """By action, or by time and action: the same models as dense arrays make."""

    def dense(x: dict[str, Any]) -> Any:
        def at(t: int) -> Any:
            stay, p = np.eye(3), x["p"] / (t + 1)
            return np.stack([(1 - p) * stay + p * np.roll(stay, 1, axis=1), stay], axis=1)

        rows = at(0) if horizon is None else np.stack([at(t) for t in range(horizon)])
        return rows, np.arange(6.0).reshape(3, 2)

    def sparse(x: dict[str, Any]) -> Any:
        rows, rewards = dense(x)
        if horizon is None:
            return [scipy.sparse.csr_array(rows[:, a]) for a in range(2)], rewards
        return [[scipy.sparse.csr_array(y[:, a]) for a in range(2)] for y in rows], rewards

    draws = {"p": [0.1, 0.2, 0.4]}
    found, expected = (posterior.from_draws(draws, build, vectorized=False, discount=0.9)
                       for build in (sparse, dense))  # fmt: skip
    assert found.fingerprint() == expected.fingerprint()
    assert found.horizon == expected.horizon == horizon
    with pytest.raises(mmdp.InputError, match=r"draw 1 \(p = 1.2\).*go down to -"):
        posterior.from_draws({"p": [0.1, 1.2]}, sparse, vectorized=False)


def test_draws_may_share_their_sparse_pattern_or_not() -> None:
    """Matrices that are the same but for their numbers hold one pattern; others keep theirs."""

    def rows(x: dict[str, Any]) -> Any:
        p = float(x["p"])
        return np.array([[1 - p, p, 0.0], [0.0, 1.0, 0.0], [0.5 * (p < 0.5), 0.0, 1.0]])

    def sparse(x: dict[str, Any]) -> Any:
        p = rows(x)
        made = scipy.sparse.csr_array(p / p.sum(axis=1, keepdims=True))
        held.append(made)
        return [made], np.zeros((3, 1))

    held: list[Any] = []
    chances = [0.1, 0.2, 0.7, 0.3]
    model = posterior.from_draws({"p": np.array(chances)}, sparse, vectorized=False)
    for m, p in enumerate(chances):
        expected = rows({"p": p})
        expected /= expected.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(model.matrix(m, 0).toarray(), expected)
    assert [x.indices is held[0].indices for x in held] == [True, True, False, True]


def test_tunnels_are_a_cohort_that_knows_when_it_came() -> None:
    """Against a loop over patients' states and times since entering, with costs on the way."""
    rng, T, n = np.random.default_rng(3), 6, 3
    draws = {"p": rng.uniform(0.2, 0.9, n)}
    leave = rng.uniform(0.1, 0.5, (T, 2))
    reward = rng.normal(size=(T, 3, 2, 3))

    def build(x: dict[str, Any]) -> dict[str, Any]:
        p = np.zeros((T, 3, 2, 3))
        p[:, 0] = [0.5, 0.3, 0.2]
        p[:, 1, :, 0] = leave * x["p"] / x["since"]
        p[:, 1, :, 2] = 0.1 * min(x["since"], 7)
        p[:, 1, :, 1] = 1 - p[:, 1].sum(axis=-1)
        p[:, 2, :, 1], p[:, 2, :, 2] = 1 / x["since"], 1 - 1 / x["since"]
        return {"transitions": p, "next_rewards": reward * x["since"]}

    lengths = {"sick": 3, "sicker": 2}
    model = mmdp.from_draws(
        draws, build, tunnels=lengths, states=["well", "sick", "sicker"], initial=[0.5, 0.5, 0],
        actions=["wait", "treat"], discount=0.9,
    )  # fmt: skip
    names = ["well", "sick 1", "sick 2", "sick 3+", "sicker 1", "sicker 2+"]
    assert list(model.state_labels) == names
    whole = ["well", *["sick"] * 3, *["sicker"] * 2]
    assert posterior.without_tunnels(model, lengths) == whole
    actions = rng.integers(2, size=(T, 6))
    policy = mmdp.MarkovPolicy.for_model(model, actions)
    longest = {0: 1, 1: 3, 2: 2}
    for m, p in enumerate(draws["p"]):
        at = {k: build({"p": p, "since": k}) for k in (1, 2, 3)}
        share, total = {(0, 1): 0.5, (1, 1): 0.5}, 0.0
        for t in range(T):
            following: dict[tuple[int, int], float] = {}
            for (s, k), weight in share.items():
                a = actions[t, {0: 0, 1: 1, 2: 4}[s] + k - 1]
                for s2, chance in enumerate(at[k]["transitions"][t, s, a]):
                    total += weight * chance * 0.9**t * at[k]["next_rewards"][t, s, a, s2]
                    to = (s2, min(k + 1, longest[s]) if s2 == s else 1)
                    following[to] = following.get(to, 0.0) + weight * chance
            share = following
        assert mmdp.evaluate(policy, model).returns[m] == pytest.approx(total, rel=1e-12)
    unseen = mmdp.solve(model, policy=mmdp.Tied(whole))
    assert (unseen.policy.actions[:, 1:4] == unseen.policy.actions[:, 1:2]).all()


def test_tunnels_that_cannot_be_are_refused() -> None:
    def refuse(match: str, tunnels: Any, **more: Any) -> None:
        with pytest.raises(mmdp.InputError, match=match):
            posterior.from_draws({"p": [0.5], "q": [0.5]} | more, two_state, tunnels=tunnels)

    refuse("no label '7'", {7: 3})
    refuse("0 parts; give a whole number", {1: 0})
    refuse("such as", {})
    refuse("rename the parameter", {1: 2}, since=[1.0])


def test_draws_and_fits_take_labels_of_times_and_a_unit() -> None:
    named: Any = {"times": {"age": range(40, 50)}, "unit": "$"}

    def build(x: Any) -> Any:
        p = x["p"] / x.get("since", 1)
        return np.array([[[1 - p, p]], [[0.0, 1.0]]]), [[1.0], [0.0]]

    log = {"state": ["a", "b"], "action": ["x", "x"], "next_state": ["b", "a"], "reward": [1, 2]}
    draws, tunnels = {"p": [0.1, 0.3]}, {"well": 2}
    for model in (
        mmdp.from_draws(draws, build, states=["well", "dead"], **named),
        mmdp.from_draws(draws, build, states=["well", "dead"], tunnels=tunnels, **named),
        mmdp.fit(log, models=2, **named).train,
    ):
        assert (model.times.span(0, 10), model.unit) == ("age 40 to 50", "$")
