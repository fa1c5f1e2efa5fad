"""Shared events: the same answers as tables of the same models, and none of the tables."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.waits import make_de_moor
from scipy.sparse import csr_array

import mmdp
from mmdp.core import kernels
from mmdp.core.errors import MemoryLimitError
from mmdp.core.kernels import events, infinite, rewards
from mmdp.core.kernels.cpu import sweeps
from mmdp.core.kernels.cpu.backend import NumbaBackend
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.rewards import EventRewards
from mmdp.core.testing import (
    compute_plain_returns,
    find_best_markov_value,
    make_random_event_model,
    make_random_model,
    make_switching,
)

SEEDS = range(8)
BACKENDS = ["numpy", "numba", pytest.param("jax", marks=pytest.mark.slow)]
POLICIES = (mmdp.policies.MarkovPolicy.random, mmdp.policies.MarkovPolicy.uniform)


def to_table_model(model: mmdp.MMDP) -> mmdp.MMDP:
    """The same model with tables, made entry by entry from the definition."""
    e = model.problem.storage
    assert isinstance(e, ExogenousEvents)
    P = np.zeros((e.n_times, model.n_models, model.n_states, model.n_actions, model.n_states))
    for t in range(e.n_times):
        x = e.at_time(t)
        for s, a, w, c in np.ndindex(x.next_states.shape):
            P[t, :, s, a, x.next_states[s, a, w, c]] += (
                x.corner_weights[s, a, w, c] * x.probs[x.distribution_id[s, a], w]
            )
    return mmdp.MMDP(P if e.n_times > 1 else P[0], model.rewards, **model.to_kwargs())


def make_stationary_model(seed: int) -> mmdp.MMDP:
    """Four models that do not vary with time, with kinds of rows and corners."""
    rng = np.random.default_rng(seed)
    M, S, A, W, C, K = 4, 3, 2, 3, 2, 2
    exogenous = ExogenousEvents(
        rng.integers(0, S, (1, S, A, W, C)),
        np.moveaxis(rng.dirichlet(np.ones(W), (1, K, M)), 3, 2),
        distribution_id=rng.integers(0, K, (1, S, A)),
        corner_weights=rng.dirichlet(np.ones(C), (1, S, A, W)),
    )
    return mmdp.MMDP(
        exogenous,
        exogenous.make_rewards(rng.normal(size=(S, A, W))),
        discount=0.9,
        weights=rng.dirichlet(np.ones(M)),
        initial=rng.dirichlet(np.ones(S)),
        terminal=rng.normal(size=(M, S)),
    )


@pytest.fixture
def forbid_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for tables of more than two models fails."""
    original = ExogenousEvents.to_table

    def refuse(self: ExogenousEvents) -> object:
        assert self.shape[0] <= 2, "tables were made"
        return original(self)

    monkeypatch.setattr(ExogenousEvents, "to_table", refuse)


def skip_without_jax(backend: str) -> None:
    if backend == "jax":
        pytest.importorskip("jax")


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_are_what_the_definition_says(seed: int) -> None:
    model = make_random_event_model(seed)
    tables = to_table_model(model)
    allowed = model.allowed[:, :, None]
    result = np.where(allowed, model.transitions, 0.0)
    np.testing.assert_allclose(result, tables.transitions, rtol=0, atol=1e-15)
    assert (model.has_choice == tables.has_choice).all()
    assert model.storage == "events"
    assert "events" in repr(model)


@pytest.mark.parametrize("backend", BACKENDS)
def test_solves_equal_brute_force(backend: str) -> None:
    skip_without_jax(backend)
    for seed in range(2):
        model = make_stationary_model(seed)
        best = find_best_markov_value(to_table_model(model), 3)
        result = mmdp.solve(model, 3, backend=backend)
        assert result.value <= best + 1e-9
        assert mmdp.bound(model, 3, backend=backend, time_limit=0.2).value >= best - 1e-9
        np.testing.assert_allclose(
            result.returns, compute_plain_returns(to_table_model(model), result.policy), rtol=1e-9
        )


SOLVE_KWARGS: list[dict[str, Any]] = [
    {"method": "wsu"},
    {"method": "mvp"},
    {"method": "oracle"},
    {"method": "milp"},
    {"method": mmdp.methods.QMDP(n_episodes=5)},
    {"method": mmdp.methods.MixTS(n_episodes=5, likelihood="both")},
    {"method": mmdp.methods.Rollout(n_episodes=5)},
    {"method": mmdp.methods.POMCP(n_episodes=2, n_queries=9)},
    {"policy_class": mmdp.policies.Tree(max_leaves=2)},
    {"method": mmdp.methods.CADP(sweep_type="paper")},
    {"method": mmdp.methods.CADP(n_init=4)},
    {"method": mmdp.methods.NaturalGradient()},
    {"objective": mmdp.objectives.CVaR(0.4)},
    {"objective": "worst"},
    {"policy_class": mmdp.policies.Tied([0, 1, 1])},
    {"policy_class": mmdp.policies.Monotone()},
]
TABLE_SOLVE_KWARGS: list[dict[str, Any]] = [
    {"policy_class": mmdp.policies.Stationary(), "horizon": np.inf},
    {"method": "exact"},
    {"policy_class": mmdp.policies.Memory(2)},
]


def assert_same_solution(solve_kwargs: dict[str, Any], backend: str, model: mmdp.MMDP) -> None:
    all_kwargs = {"method": "cadp", "horizon": 4, "seed": 0, "backend": backend, **solve_kwargs}
    result, expected = (mmdp.solve(x, **all_kwargs) for x in (model, to_table_model(model)))
    assert result.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(result.returns, expected.returns, rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("solve_kwargs", SOLVE_KWARGS, ids=str)
def test_solves_without_tables_equal_table_solves(
    solve_kwargs: dict[str, Any], backend: str, forbid_tables: None
) -> None:
    skip_without_jax(backend)
    assert_same_solution(solve_kwargs, backend, make_stationary_model(0))


def test_infinite_horizons_need_no_tables(
    forbid_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infinite, "MAX_MATRIX_BYTES", 0)
    model = make_stationary_model(0).replace(discount=0.5)
    result, expected = (
        infinite.InfiniteHorizon.from_problem(x.problem) for x in (model, to_table_model(model))
    )
    assert type(result) is infinite.InfiniteHorizon
    assert (result.compute_model_optima().actions == expected.compute_model_optima().actions).all()
    by_model = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]])
    for policy in (np.array([0, 1, 1]), by_model, np.full((3, 2), 0.5)):
        np.testing.assert_allclose(
            result.compute_values(policy), expected.compute_values(policy), rtol=1e-9
        )
        np.testing.assert_allclose(
            result.compute_occupancy(policy), expected.compute_occupancy(policy), rtol=1e-9
        )


def test_tables_of_some_rows_are_rows_of_the_tables() -> None:
    storage, rows = make_stationary_model(0).problem.storage, np.array([4, 0, 3])
    result, expected = storage.select_rows(rows), storage.to_table().select_rows(rows)
    for m in range(4):
        dense, expected_dense = (
            csr_array((x.p[0, :, m], x.indices, x.indptr), (3, 3)).toarray()
            for x in (result, expected)
        )
        np.testing.assert_allclose(dense, expected_dense, rtol=1e-14)
    for i, row in enumerate(rows):
        for a, b in zip(expected.get_row(0, i), storage.to_table().get_row(0, row), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("solve_kwargs", TABLE_SOLVE_KWARGS, ids=str)
def test_other_solves_read_tables(solve_kwargs: dict[str, Any]) -> None:
    assert_same_solution(solve_kwargs, "numba", make_stationary_model(0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_switching_models(backend: str, forbid_tables: None) -> None:
    skip_without_jax(backend)
    model = make_stationary_model(1)
    for method in ("cadp", "wsu", "oracle"):
        values = [
            mmdp.solve(make_switching(x, 3), 4, method, backend=backend).value
            for x in (model, to_table_model(model))
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_evaluation_and_changed_copies(forbid_tables: None) -> None:
    for seed in SEEDS:
        model = make_random_event_model(seed)
        tables, T = to_table_model(model), model.horizon or 3
        policy = mmdp.solve(model, T).policy
        subset = [0, model.n_models - 1]
        pairs = [
            (model, tables),
            (model.subset(subset), tables.subset(subset)),
            (model.mean_model(), tables.mean_model()),
            (model.replace(discount=0.3), tables.replace(discount=0.3)),
            (pickle.loads(pickle.dumps(model)), tables),
        ]
        for event_model, table_model in pairs:
            assert event_model.storage == "events"
            np.testing.assert_allclose(
                mmdp.evaluate(event_model, policy).returns,
                mmdp.evaluate(table_model, policy).returns,
                rtol=1e-9,
                atol=1e-12,
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_event_rewards_are_replaced_without_tables(
    backend: str, forbid_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_jax(backend)
    model, policy = (
        make_stationary_model(1),
        mmdp.policies.MarkovPolicy.random(make_stationary_model(1), 3),
    )
    tables, r = to_table_model(model), model.problem.r
    prepared = kernels.get_backend(backend, model.problem, 3).prepare(model.problem, 3)
    table_prepared = kernels.get_backend("numpy", tables.problem, 3).prepare(tables.problem, 3)
    negated = prepared.replace(rewards=-r, terminal=-model.problem.terminal)
    assert isinstance(negated.problem.r, EventRewards)
    table_negated = table_prepared.replace(
        rewards=-tables.problem.r, terminal=-tables.problem.terminal
    )
    for from_events, from_tables in (
        (negated, table_negated),
        (
            negated.replace(rewards=r),
            table_prepared.replace(terminal=-table_prepared.problem.terminal),
        ),
    ):
        result, expected = (
            x.backward("per_model").first_values for x in (from_events, from_tables)
        )
        np.testing.assert_allclose(result, expected, rtol=1e-9)
    monkeypatch.setattr(EventRewards, "__array__", None)  # fails if called
    result, expected = (
        mmdp.measures.near_optimal_actions(model, policy, 0.1),
        mmdp.measures.near_optimal_actions(tables, policy, 0.1),
    )
    np.testing.assert_allclose(result.loss, expected.loss, rtol=1e-9, atol=1e-12)
    assert (result.is_interchangeable == expected.is_interchangeable).all()


def test_vector_environments_make_no_tables(forbid_tables: None) -> None:
    pytest.importorskip("gymnasium")
    model = make_stationary_model(2)
    event_env, table_env = (
        mmdp.interop.to_gymnasium_vector(x, 50, horizon=3, seed=4)
        for x in (model, to_table_model(model))
    )
    assert (event_env.reset()[0] == table_env.reset()[0]).all()
    for _ in range(9):
        actions = np.arange(50) % 2
        for result, expected in zip(
            event_env.step(actions)[:4], table_env.step(actions)[:4], strict=True
        ):
            np.testing.assert_allclose(result, expected)


def test_event_rewards_equal_a_plain_loop() -> None:
    for seed in range(1, 16, 2):
        model = make_random_event_model(seed)
        r, storage = model.problem.r, model.problem.storage
        assert isinstance(r, EventRewards)
        assert isinstance(storage, ExogenousEvents)
        expected = np.zeros(r.shape)
        for t, s, a, m in np.ndindex(r.shape):
            x = storage.at_time(t)
            event_rewards = r.reward[t if len(r.reward) > 1 else 0, s, a]
            expected[t, s, a, m] = sum(
                x.probs[x.distribution_id[s, a], w, m] * y for w, y in enumerate(event_rewards)
            )
        np.testing.assert_allclose(np.asarray(r), expected, rtol=0, atol=1e-13)
        t, s, a, m = (np.random.default_rng(seed).integers(0, n, 7) for n in r.shape)
        np.testing.assert_allclose(r[t, s, a, m], expected[t, s, a, m], rtol=0, atol=1e-13)
        np.testing.assert_allclose(r[t, s, a], expected[t, s, a], rtol=0, atol=1e-13)


def test_rewards_in_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_random_event_model(
        next(x for x in range(1, 99, 2) if make_random_event_model(x).n_states > 2)
    )
    tables = to_table_model(model)
    monkeypatch.setattr(rewards, "BLOCK_SIZE", 1)
    assert len(list(rewards.iter_blocks(model.problem.r))) == model.n_states > 1
    assert (model.has_choice == tables.has_choice).all()
    np.testing.assert_allclose(model.rewards, tables.rewards)
    for field, expected_field in zip(model.problem, tables.problem, strict=True):
        assert not isinstance(field, np.ndarray) or np.array_equal(field, expected_field)
    for name in ("return_span", "max_abs_returns", "rounding_errors"):
        result, expected = (getattr(x.problem, name)(4) for x in (model, tables))
        np.testing.assert_allclose(
            result, expected, rtol=0.5 if name == "rounding_errors" else 1e-12
        )


def test_bad_event_rewards_are_named() -> None:
    exogenous = ExogenousEvents(NEXT_STATES, PROBS)
    with pytest.raises(mmdp.InputError, match=r"reward has shape \(1, 2, 1, 3\)"):
        exogenous.make_rewards(np.zeros((2, 1, 3)))
    event_rewards = np.zeros((2, 1, 2))
    event_rewards[1, 0, 1] = np.nan
    with pytest.raises(mmdp.InputError, match="reward is nan at event 1, state 1, action 0"):
        mmdp.MMDP(exogenous, exogenous.make_rewards(event_rewards))
    two_step_events = ExogenousEvents(np.repeat(NEXT_STATES, 2, axis=0), PROBS)
    assert two_step_events.make_rewards(np.zeros((2, 2, 1, 2))).shape[0] == 2
    with pytest.raises(mmdp.InputError, match=r"it must be \(2, 2, 1, 2\)"):
        two_step_events.make_rewards(np.zeros((3, 2, 1, 2)))
    other_events = ExogenousEvents(NEXT_STATES, np.array([[[[0.1] * 3, [0.9] * 3]]]))
    with pytest.raises(mmdp.InputError, match="belong to other events"):
        mmdp.MMDP(other_events, exogenous.make_rewards(np.zeros((2, 1, 2))))


def test_sampled_transitions_equal_those_of_tables() -> None:
    for seed in SEEDS:
        model = make_random_event_model(seed)
        sampler, table_sampler = (
            x.problem.storage.make_sampler() for x in (model, to_table_model(model))
        )
        rng, pairs = np.random.default_rng(seed), np.flatnonzero(model.allowed)
        pair, m = rng.choice(pairs, 50), rng.integers(0, model.n_models, 50)
        next_states = rng.integers(0, model.n_states, 50)
        for t in range(model.horizon or 1):
            u = rng.random(50)
            assert (
                sampler.sample_next(t, pair, m, u)[0] == table_sampler.sample_next(t, pair, m, u)[0]
            ).all()
            np.testing.assert_allclose(
                sampler.likelihood(t, pair, next_states),
                table_sampler.likelihood(t, pair, next_states),
                atol=1e-15,
            )


def test_states_in_another_order(forbid_tables: None) -> None:
    for seed in SEEDS:
        model = make_random_event_model(seed)
        names = [f"s{i}" for i in range(model.n_states)], [f"a{i}" for i in range(model.n_actions)]
        model, reversed_model = (
            model.replace(states=x, actions=y) for x, y in (names, [z[::-1] for z in names])
        )
        reordered = model.reorder_like(reversed_model)
        assert reordered.storage == "events"
        assert reordered.state_labels == reversed_model.state_labels
        T = model.horizon or 3
        policy = mmdp.policies.MarkovPolicy.random(model, T)
        flipped = mmdp.policies.MarkovPolicy.for_model(
            reordered, model.n_actions - 1 - policy.actions[:, ::-1]
        )
        np.testing.assert_allclose(
            mmdp.evaluate(reordered, flipped).returns,
            mmdp.evaluate(model, policy).returns,
            atol=1e-12,
        )


def test_cached_tables_are_reordered_too() -> None:
    model = make_random_event_model(0).replace(discount=0.9)
    model = model.replace(states=[f"s{i}" for i in range(model.n_states)])
    P = model.transitions  # makes the pattern of the tables
    reordered = model.reorder_like(model.replace(states=model.state_labels[::-1]))
    np.testing.assert_array_equal(reordered.transitions, P[..., ::-1, :, ::-1])


@pytest.mark.parametrize("horizon", [6, math.inf])
def test_events_of_one_model_are_merged_once(horizon: float) -> None:
    """The passes of compiled code and infinite horizons read them; other models have their own."""
    model = make_de_moor(2)
    storage = model.problem.storage
    assert isinstance(storage, ExogenousEvents)
    value = mmdp.solve(model, horizon, backend="numba").value
    assert value == pytest.approx(mmdp.solve(to_table_model(model), horizon).value, rel=1e-12)
    merged_rows = vars(storage)["merged_rows"]
    assert merged_rows.n_entries < storage.n_entries / 5
    mmdp.solve(model, horizon, backend="numba")
    assert vars(storage)["merged_rows"] is merged_rows
    states = np.arange(model.n_states)[::-1]
    for other in (storage.map_models(lambda p: p), storage.reorder(states, np.arange(11))[0]):
        assert "merged_rows" not in vars(other)


def test_files_hold_the_events(tmp_path: Path) -> None:
    for seed in SEEDS:
        model = make_random_event_model(seed)
        mmdp.save(model, tmp_path / "shared.npz")
        loaded = mmdp.load(tmp_path / "shared.npz")
        assert loaded.storage == "events"
        assert type(loaded.problem.r) is type(model.problem.r)
        assert loaded.nbytes == model.nbytes
        assert loaded.fingerprint() == model.fingerprint()
        sparse = mmdp.load(tmp_path / "shared.npz", storage="sparse")
        assert sparse.storage == "sparse"
        np.testing.assert_allclose(
            sparse.transitions, to_table_model(model).transitions, atol=1e-15
        )
    with pytest.raises(mmdp.InputError, match="save them as one"):
        mmdp.io.save_shards(model, tmp_path / "parts", 1)


def test_fingerprints_tell_models_apart() -> None:
    model = make_stationary_model(0)
    copy = pickle.loads(pickle.dumps(model))
    assert model.fingerprint() == copy.fingerprint()
    assert model.fingerprint() != make_stationary_model(1).fingerprint()
    assert model.fingerprint() != model.subset([0, 1, 2, 3]).replace(discount=0.8).fingerprint()


@pytest.mark.parametrize(
    "make_model", [make_random_event_model, make_random_model], ids=["events", "tables"]
)
def test_weights_kept_in_windows_change_nothing(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(6):
        model = make_model(seed)
        T = model.horizon or 7
        inits = [None, *(p(model, T).table for p in POLICIES)]
        runs = []
        for memory_share in (sweeps.MAX_MEMORY_SHARE, 0.0):
            monkeypatch.setattr(sweeps, "MAX_MEMORY_SHARE", memory_share)
            for n_threads in (1, 2):
                backend = NumbaBackend(n_threads, min_parallel_work=0)
                runs.append(backend.prepare(model.problem, T).ascend(inits, sweep_type="paper"))
        for reference, *others in zip(*runs, strict=True):
            for other in others:
                assert (other.policy == reference.policy).all()
                assert other.trace == pytest.approx(reference.trace, rel=1e-12)
                assert (other.stop_reason, other.n_sweeps) == (
                    reference.stop_reason,
                    reference.n_sweeps,
                )


@pytest.mark.parametrize(
    "free_memory",
    [pytest.param(1e9, marks=pytest.mark.slow), 0.0],
    ids=["one window", "many windows"],
)
def test_float32_sweeps_end_with_exact_returns(
    free_memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    from mmdp.core.kernels.jax import windowed

    monkeypatch.setattr(windowed, "MAX_WEIGHT_BYTES", 0)
    monkeypatch.setattr(windowed, "get_device_memory", lambda device: free_memory)
    model, T = make_random_event_model(1), 5
    problems = [kernels.get_backend(name).prepare(model.problem, T) for name in ("numpy", "jax")]
    inits = [None, *(p(model, T).table for p in (POLICIES if free_memory else POLICIES[:1]))]
    for exact, float32 in zip(
        *(x.ascend(inits, sweep_type="paper") for x in problems), strict=True
    ):
        assert float32.is_single_precision
        assert not exact.is_single_precision
        assert float32.trace == pytest.approx(exact.trace, rel=1e-5)
        assert (float32.policy == exact.policy).all()
        np.testing.assert_allclose(float32.returns, exact.returns, rtol=1e-12)
    if free_memory == 0.0:
        return
    method = mmdp.methods.CADP(sweep_type="paper", n_init=1)
    solution, expected = (mmdp.solve(model, T, method, backend=name) for name in ("jax", "numpy"))
    assert solution.details["precision"] == "32-bit sweeps, 64-bit returns"
    assert solution.value == pytest.approx(expected.value, rel=1e-9)


def test_rows_add_up_events_that_lead_to_one_state() -> None:
    exogenous = ExogenousEvents(
        np.array([[[[[1], [1], [0]]], [[[1], [1], [1]]]]]), [[[[0.2], [0.3], [0.5]]]]
    )
    model = mmdp.MMDP(exogenous, [[0.0], [1.0]])
    row = model.problem.storage.get_row(0, 0)
    assert row.next_states.tolist() == [0, 1]
    np.testing.assert_allclose(row.p[:, 0], [0.5, 0.5])


NEXT_STATES, PROBS = np.zeros((1, 2, 1, 2, 1), int), np.full((1, 1, 2, 3), 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"next_states": NEXT_STATES[0]}, "next_states must be whole numbers with 5 axes"),
        (
            {"next_states": NEXT_STATES * 1.0},
            "next_states must be whole numbers with 5 axes, not float64",
        ),
        ({"next_states": NEXT_STATES + 2}, "next_states must be from 0 to 1"),
        ({"next_states": NEXT_STATES - 1}, "next_states must be from 0 to 1"),
        ({"probs": PROBS[:, :, :1]}, r"probs has shape \(1, 1, 1, 3\).*\(times or 1, 1, 2, 3\)"),
        ({"probs": PROBS * 0.8}, "probs sums to 0.8, not 1, at t=0, k=0, m=0"),
        ({"probs": -PROBS}, "probs must not be negative"),
        ({"probs": np.nan * PROBS}, "probs must not be negative or NaN"),
        ({"probs": np.repeat(PROBS, 2, axis=1)}, "2 distributions; give distribution_id="),
        ({"distribution_id": np.ones((1, 2, 1), int)}, "distribution_id must be from 0 to 0"),
        ({"next_states": np.repeat(NEXT_STATES, 2, axis=4)}, "2 corners; give corner_weights="),
        (
            {"corner_weights": np.full(NEXT_STATES.shape, 0.5)},
            "corner_weights sums to 0.5.*t=0, s=0, a=0, w=0",
        ),
        (
            {"next_states": np.repeat(NEXT_STATES, 3, 0), "probs": np.repeat(PROBS, 2, 0)},
            "2 and 3 times",
        ),
    ],
)
def test_bad_events_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        ExogenousEvents(**{"next_states": NEXT_STATES, "probs": PROBS, **fields})


def test_rewards_by_next_state_are_refused() -> None:
    with pytest.raises(mmdp.InputError, match="by state and action, not by next state"):
        mmdp.MMDP(ExogenousEvents(NEXT_STATES, PROBS), next_rewards=np.zeros((3, 2, 1, 2)))


def test_tables_that_would_be_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_TABLE_BYTES", 100)
    model = make_stationary_model(0)
    assert mmdp.solve(model, 2).value < np.inf
    for make_tables in (
        lambda: model.transitions,
        lambda: mmdp.solve(model, 2, policy_class=mmdp.policies.Memory(2)),
    ):
        with pytest.raises(MemoryLimitError, match="tables of these shared events would take"):
            make_tables()


def make_dice_model(seed: int, n_times: int = 1, n_sides: int = 6) -> mmdp.MMDP:
    """Models of two dice, of which the sum counts: many events lead to few states."""
    rng = np.random.default_rng(seed)
    M, S, A = 4, 5, 2
    first, second = np.divmod(np.arange(n_sides**2), n_sides)
    state, action = np.ogrid[:S, :A]
    gain = (first + second) // 4 - state[..., None] * action[..., None]
    dice = np.moveaxis(rng.dirichlet(np.ones(n_sides), (n_times, 1, M)), 3, 2)
    exogenous = ExogenousEvents(
        np.clip(state[..., None] + gain - 1, 0, S - 1)[None, ..., None],
        dice[:, :, first] * dice[:, :, second],
    )
    return mmdp.MMDP(
        exogenous,
        exogenous.make_rewards(gain - 0.5 * action[..., None]),
        discount=0.9,
        weights=rng.dirichlet(np.ones(M)),
        initial=rng.dirichlet(np.ones(S)),
    )


@pytest.mark.parametrize("n_times", [1, 3])
def test_many_events_that_lead_to_few_states_are_solved_as_tables(n_times: int) -> None:
    for seed in range(4):
        model = make_dice_model(seed, n_times)
        storage = model.problem.storage
        assert isinstance(storage, ExogenousEvents)
        assert storage.is_faster_as_table
        entries = storage.to_table().indices
        assert storage.table_nbytes == 8 * n_times * 4 * len(entries)
        prepared = kernels.get_backend("numba").prepare(model.problem, 3)
        assert len(prepared.arrays.indices) == len(entries)
        tables = to_table_model(model)
        for objective in ("mean", "cvar:0.4"):
            solution = mmdp.solve(model, 3, objective=objective, backend="numba")
            for other, backend in ((tables, "numba"), (model, "numpy")):
                expected = mmdp.solve(other, 3, objective=objective, backend=backend)
                assert solution.value == pytest.approx(expected.value, rel=1e-12)
                assert solution.policy == expected.policy
        policy = mmdp.policies.MarkovPolicy.random(model, 3)
        returns = mmdp.evaluate(model.replace(rewards=2 * model.rewards), policy).returns
        assert returns == pytest.approx(2 * compute_plain_returns(tables, policy), rel=1e-12)


def test_events_stay_if_tables_would_be_slower_or_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not make_dice_model(0, n_sides=2).problem.storage.is_faster_as_table
    monkeypatch.setattr(events, "MAX_MERGED_BYTES", 100)
    storage = make_dice_model(0).problem.storage
    assert not storage.is_faster_as_table
    prepared = kernels.get_backend("numba").prepare(make_dice_model(0).problem, 3)
    assert len(prepared.arrays.indices) == storage.n_entries


def test_tables_of_events_are_not_sent_with_a_model() -> None:
    model = make_dice_model(0)
    solution = mmdp.solve(model, 3, backend="numba")
    assert "_table" in vars(model.problem.storage)
    copied = pickle.loads(pickle.dumps(model))
    assert "_table" not in vars(copied.problem.storage)
    assert mmdp.solve(copied, 3, backend="numba").policy == solution.policy
