"""Shared events: the same answers as tables of the same models, and none of the tables."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import kernels
from mmdp.errors import MemoryLimitError
from mmdp.kernels import endless, events, rewards
from mmdp.kernels.cpu import climb
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.events import Events
from mmdp.kernels.rewards import ByEvent
from mmdp.testing import (
    best_by_enumeration,
    changing,
    plain_returns,
    random_events,
    random_model,
)

SEEDS = range(8)
BACKENDS = ["numpy", "numba", pytest.param("jax", marks=pytest.mark.slow)]
POLICIES = (mmdp.MarkovPolicy.random, mmdp.MarkovPolicy.uniform)


def tables_of(model: mmdp.MMDP) -> mmdp.MMDP:
    """The same model with tables, made entry by entry from the definition."""
    e = model.problem.storage
    assert isinstance(e, Events)
    P = np.zeros((e.steps, model.n_models, model.n_states, model.n_actions, model.n_states))
    for t in range(e.steps):
        x = e.at(t)
        for s, a, w, c in np.ndindex(x.after.shape):
            P[t, :, s, a, x.after[s, a, w, c]] += (
                x.coefficient[s, a, w, c] * x.chance[x.kind[s, a], w]
            )
    return mmdp.MMDP(P if e.steps > 1 else P[0], model.rewards, **model.fields())


def steady(seed: int) -> mmdp.MMDP:
    """Four models that do not vary with time, with kinds of rows and corners."""
    rng = np.random.default_rng(seed)
    M, S, A, W, C, K = 4, 3, 2, 3, 2, 2
    shared = Events(
        rng.integers(0, S, (1, S, A, W, C)),
        np.moveaxis(rng.dirichlet(np.ones(W), (1, K, M)), 3, 2),
        kind=rng.integers(0, K, (1, S, A)),
        coefficient=rng.dirichlet(np.ones(C), (1, S, A, W)),
    )
    return mmdp.MMDP(
        shared, shared.rewards(rng.normal(size=(S, A, W))), discount=0.9,
        weights=rng.dirichlet(np.ones(M)), initial=rng.dirichlet(np.ones(S)),
        terminal=rng.normal(size=(M, S)),
    )  # fmt: skip


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for tables of more than two models fails."""
    made = Events.table

    def refuse(self: Events) -> object:
        assert self.shape[0] <= 2, "tables were made"
        return made(self)

    monkeypatch.setattr(Events, "table", refuse)


def asked_for(backend: str) -> None:
    if backend == "jax":
        pytest.importorskip("jax")


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_are_what_the_definition_says(seed: int) -> None:
    model = random_events(seed)
    tables = tables_of(model)
    allowed = model.allowed[:, :, None]
    found = np.where(allowed, model.transitions, 0.0)
    np.testing.assert_allclose(found, tables.transitions, rtol=0, atol=1e-15)
    assert (model.deciding == tables.deciding).all()
    assert model.storage == "events"
    assert "events" in repr(model)


@pytest.mark.parametrize("backend", BACKENDS)
def test_solves_equal_brute_force(backend: str) -> None:
    asked_for(backend)
    for seed in range(2):
        model = steady(seed)
        best = best_by_enumeration(tables_of(model), 3)
        found = mmdp.solve(model, 3, backend=backend)
        assert found.value <= best + 1e-9
        assert mmdp.bound(model, 3, backend=backend, time_limit=0.2).value >= best - 1e-9
        np.testing.assert_allclose(
            found.returns, plain_returns(found.policy, tables_of(model)), rtol=1e-9
        )


QUESTIONS: list[dict[str, Any]] = [
    {"method": "wsu"}, {"method": "mvp"}, {"method": "oracle"}, {"method": "milp"},
    {"method": mmdp.QMDP(episodes=5)}, {"method": mmdp.MixTS(episodes=5, likelihood="both")},
    {"method": mmdp.Rollout(episodes=5)}, {"method": mmdp.POMCP(episodes=2, queries=9)},
    {"policy": mmdp.Tree(leaves=2)},
    {"method": mmdp.CADP(sweeps="paper")}, {"method": mmdp.CADP(starts=4)},
    {"method": mmdp.Gradient()}, {"objective": mmdp.CVaR(0.4)}, {"objective": "worst"},
    {"policy": mmdp.Tied([0, 1, 1])}, {"policy": mmdp.Monotone()},
]  # fmt: skip
BY_TABLES: list[dict[str, Any]] = [
    {"policy": mmdp.Stationary(), "horizon": np.inf},
    {"method": "exact"}, {"policy": mmdp.Memory(2)},
]  # fmt: skip


def same_answer(question: dict[str, Any], backend: str, model: mmdp.MMDP) -> None:
    asked = {"method": "cadp", "horizon": 4, "seed": 0, "backend": backend, **question}
    found, expected = (mmdp.solve(x, **asked) for x in (model, tables_of(model)))
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.returns, expected.returns, rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_questions_are_answered_without_tables(
    question: dict[str, Any], backend: str, no_tables: None
) -> None:
    asked_for(backend)
    same_answer(question, backend, steady(0))


def test_infinite_horizons_do_without_tables_too(
    no_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless, "MATRICES", 0)
    model = steady(0).replace(discount=0.5)
    mine, theirs = (endless.Endless.of(x.problem) for x in (model, tables_of(model)))
    assert isinstance(mine, endless.Stepped)
    assert (mine.own().actions == theirs.own().actions).all()
    for policy in (np.array([0, 1, 1]), np.full((3, 2), 0.5)):
        np.testing.assert_allclose(mine.values(policy), theirs.values(policy), rtol=1e-9)
        np.testing.assert_allclose(mine.visits(policy), theirs.visits(policy), rtol=1e-9)


@pytest.mark.parametrize("question", BY_TABLES, ids=str)
def test_other_questions_read_tables(question: dict[str, Any]) -> None:
    same_answer(question, "numba", steady(0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_that_change(backend: str, no_tables: None) -> None:
    asked_for(backend)
    model = steady(1)
    for method in ("cadp", "wsu", "oracle"):
        values = [
            mmdp.solve(changing(x, 3), 4, method, backend=backend).value
            for x in (model, tables_of(model))
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_evaluation_and_changed_copies(no_tables: None) -> None:
    for seed in SEEDS:
        model = random_events(seed)
        tables, T = tables_of(model), model.horizon or 3
        policy = mmdp.solve(model, T).policy
        some = [0, model.n_models - 1]
        pairs = [
            (model, tables), (model.subset(some), tables.subset(some)),
            (model.mean_model(), tables.mean_model()),
            (model.replace(discount=0.3), tables.replace(discount=0.3)),
            (pickle.loads(pickle.dumps(model)), tables),
        ]  # fmt: skip
        for mine, theirs in pairs:
            assert mine.storage == "events"
            np.testing.assert_allclose(
                mmdp.evaluate(policy, mine).returns, mmdp.evaluate(policy, theirs).returns,
                rtol=1e-9, atol=1e-12,
            )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_plans_with_other_rewards_by_event_hold_no_table(
    backend: str, no_tables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for(backend)
    model, policy = steady(1), mmdp.MarkovPolicy.random(steady(1), 3)
    tables, r = tables_of(model), model.problem.r
    plan = kernels.get(backend, model.problem, 3).plan(model.problem, 3)
    exact = kernels.get("numpy", tables.problem, 3).plan(tables.problem, 3)
    other = plan.but(rewards=-r, terminal=-model.problem.terminal)
    assert isinstance(other.problem.r, ByEvent)
    lost = exact.but(rewards=-tables.problem.r, terminal=-tables.problem.terminal)
    for mine, theirs in (
        (other, lost),
        (other.but(rewards=r), exact.but(terminal=-exact.problem.terminal)),
    ):
        found, expected = (x.backward("own").first for x in (mine, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    monkeypatch.setattr(ByEvent, "__array__", None)  # fails if called
    found, expected = mmdp.freedom(policy, model, 0.1), mmdp.freedom(policy, tables, 0.1)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-9, atol=1e-12)
    assert (found.mixed == expected.mixed).all()


def test_environments_side_by_side_make_no_tables(no_tables: None) -> None:
    pytest.importorskip("gymnasium")
    model = steady(2)
    one, two = (mmdp.ecosystem.to_gymnasium_vector(x, 50, horizon=3, seed=4)
                for x in (model, tables_of(model)))  # fmt: skip
    assert (one.reset()[0] == two.reset()[0]).all()
    for _ in range(9):
        actions = np.arange(50) % 2
        for mine, theirs in zip(one.step(actions)[:4], two.step(actions)[:4], strict=True):
            np.testing.assert_allclose(mine, theirs)


def test_rewards_by_event_are_those_of_a_plain_loop() -> None:
    for seed in range(1, 16, 2):
        model = random_events(seed)
        r, e = model.problem.r, model.problem.storage
        assert isinstance(r, ByEvent)
        assert isinstance(e, Events)
        expected = np.zeros(r.shape)
        for t, s, a, m in np.ndindex(r.shape):
            x = e.at(t)
            paid = r.reward[t if len(r.reward) > 1 else 0, s, a]
            expected[t, s, a, m] = sum(x.chance[x.kind[s, a], w, m] * y for w, y in enumerate(paid))
        np.testing.assert_allclose(np.asarray(r), expected, rtol=0, atol=1e-13)
        t, s, a, m = (np.random.default_rng(seed).integers(0, n, 7) for n in r.shape)
        np.testing.assert_allclose(r[t, s, a, m], expected[t, s, a, m], rtol=0, atol=1e-13)
        np.testing.assert_allclose(r[t, s, a], expected[t, s, a], rtol=0, atol=1e-13)


def test_rewards_in_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_events(next(x for x in range(1, 99, 2) if random_events(x).n_states > 2))
    tables = tables_of(model)
    monkeypatch.setattr(rewards, "BLOCK", 1)
    assert len(list(rewards.blocks(model.problem.r))) == model.n_states > 1
    assert (model.deciding == tables.deciding).all()
    np.testing.assert_allclose(model.rewards, tables.rewards)
    for mine, theirs in zip(model.problem, tables.problem, strict=True):
        assert not isinstance(mine, np.ndarray) or np.array_equal(mine, theirs)
    for ask in ("stakes", "magnitudes", "roundings"):
        found, expected = (getattr(x.problem, ask)(4) for x in (model, tables))
        np.testing.assert_allclose(found, expected, rtol=0.5 if ask == "roundings" else 1e-12)


def test_bad_rewards_by_event_are_named() -> None:
    shared = Events(AFTER, CHANCE)
    with pytest.raises(mmdp.InputError, match=r"reward has shape \(1, 2, 1, 3\)"):
        shared.rewards(np.zeros((2, 1, 3)))
    paid = np.zeros((2, 1, 2))
    paid[1, 0, 1] = np.nan
    with pytest.raises(mmdp.InputError, match="reward is nan at state 1, action 0, event 1"):
        mmdp.MMDP(shared, shared.rewards(paid))
    twice = Events(np.repeat(AFTER, 2, axis=0), CHANCE)
    assert twice.rewards(np.zeros((2, 2, 1, 2))).shape[0] == 2
    with pytest.raises(mmdp.InputError, match=r"it must be \(2, 2, 1, 2\)"):
        twice.rewards(np.zeros((3, 2, 1, 2)))
    other = Events(AFTER, np.array([[[[0.1] * 3, [0.9] * 3]]]))
    with pytest.raises(mmdp.InputError, match="belong to other events"):
        mmdp.MMDP(other, shared.rewards(np.zeros((2, 1, 2))))


def test_moves_are_those_of_tables() -> None:
    for seed in SEEDS:
        model = random_events(seed)
        mine, theirs = (x.problem.storage.moves() for x in (model, tables_of(model)))
        rng, rows = np.random.default_rng(seed), np.flatnonzero(model.allowed)
        row, m = rng.choice(rows, 50), rng.integers(0, model.n_models, 50)
        after = rng.integers(0, model.n_states, 50)
        for t in range(model.horizon or 1):
            u = rng.random(50)
            assert (mine.drawn(t, row, m, u) == theirs.drawn(t, row, m, u)).all()
            np.testing.assert_allclose(
                mine.likelihood(t, row, after), theirs.likelihood(t, row, after), atol=1e-15
            )


def test_states_in_another_order(no_tables: None) -> None:
    for seed in SEEDS:
        model = random_events(seed)
        names = [f"s{i}" for i in range(model.n_states)], [f"a{i}" for i in range(model.n_actions)]
        model, other = (
            model.replace(states=x, actions=y) for x, y in (names, [z[::-1] for z in names])
        )
        moved = model.ordered_like(other)
        assert moved.storage == "events"
        assert moved.state_labels == other.state_labels
        T = model.horizon or 3
        policy = mmdp.MarkovPolicy.random(model, T)
        flipped = mmdp.MarkovPolicy.for_model(moved, model.n_actions - 1 - policy.actions[:, ::-1])
        np.testing.assert_allclose(
            mmdp.evaluate(flipped, moved).returns, mmdp.evaluate(policy, model).returns, atol=1e-12
        )


def test_tables_that_were_read_are_in_another_order_too() -> None:
    model = random_events(0).replace(discount=0.9)
    model = model.replace(states=[f"s{i}" for i in range(model.n_states)])
    P = model.transitions  # makes the pattern of the tables
    moved = model.ordered_like(model.replace(states=model.state_labels[::-1]))
    np.testing.assert_array_equal(moved.transitions, P[..., ::-1, :, ::-1])


def test_files_hold_the_events(tmp_path: Path) -> None:
    for seed in SEEDS:
        model = random_events(seed)
        mmdp.save(model, tmp_path / "shared.npz")
        found = mmdp.load(tmp_path / "shared.npz")
        assert found.storage == "events"
        assert type(found.problem.r) is type(model.problem.r)
        assert found.memory == model.memory
        assert found.fingerprint() == model.fingerprint()
        sparse = mmdp.load(tmp_path / "shared.npz", storage="sparse")
        assert sparse.storage == "sparse"
        np.testing.assert_allclose(sparse.transitions, tables_of(model).transitions, atol=1e-15)
    with pytest.raises(mmdp.InputError, match="save them as one"):
        mmdp.io.save_parts(model, tmp_path / "parts", 1)


def test_fingerprints_tell_models_apart() -> None:
    model = steady(0)
    again = pickle.loads(pickle.dumps(model))
    assert model.fingerprint() == again.fingerprint()
    assert model.fingerprint() != steady(1).fingerprint()
    assert model.fingerprint() != model.subset([0, 1, 2, 3]).replace(discount=0.8).fingerprint()


@pytest.mark.parametrize("make", [random_events, random_model], ids=["events", "tables"])
def test_weights_kept_in_windows_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        model = make(seed)
        T = model.horizon or 7
        starts = [None, *(p(model, T).table for p in POLICIES)]
        ends = []
        for share in (climb.SHARE, 0.0):
            monkeypatch.setattr(climb, "SHARE", share)
            for threads in (1, 2):
                kernel = NumbaKernel(threads, threads_pay_from=0)
                ends.append(kernel.plan(model.problem, T).ascend(starts, sweeps="paper"))
        for whole, *others in zip(*ends, strict=True):
            for end in others:
                assert (end.policy == whole.policy).all()
                assert end.trace == pytest.approx(whole.trace, rel=1e-12)
                assert (end.end, end.sweeps) == (whole.end, whole.sweeps)


@pytest.mark.parametrize(
    "room", [pytest.param(1e9, marks=pytest.mark.slow), 0.0], ids=["one window", "many windows"]
)
def test_sweeps_in_short_numbers_end_with_exact_returns(
    room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    from mmdp.kernels.jax import events as windowed

    monkeypatch.setattr(windowed, "LARGE", 0)
    monkeypatch.setattr(windowed, "room_on", lambda device: room)
    model, T = random_events(1), 5
    plans = [kernels.get(name).plan(model.problem, T) for name in ("numpy", "jax")]
    starts = [None, *(p(model, T).table for p in (POLICIES if room else POLICIES[:1]))]
    for exact, short in zip(*(x.ascend(starts, sweeps="paper") for x in plans), strict=True):
        assert short.short
        assert not exact.short
        assert short.trace == pytest.approx(exact.trace, rel=1e-5)
        assert (short.policy == exact.policy).all()
        np.testing.assert_allclose(short.returns, exact.returns, rtol=1e-12)
    if room == 0.0:
        return
    method = mmdp.CADP(sweeps="paper", starts=1)
    solved, plain = (mmdp.solve(model, T, method, backend=name) for name in ("jax", "numpy"))
    assert solved.details["numbers"] == "32-bit sweeps, 64-bit returns"
    assert solved.value == pytest.approx(plain.value, rel=1e-9)


def test_rows_add_up_events_that_lead_to_one_state() -> None:
    shared = Events(np.array([[[[[1], [1], [0]]], [[[1], [1], [1]]]]]), [[[[0.2], [0.3], [0.5]]]])
    model = mmdp.MMDP(shared, [[0.0], [1.0]])
    row = model.problem.storage.plan(model.problem, 1).rows(0, 0, 0)
    assert row.after.tolist() == [0, 1]
    np.testing.assert_allclose(row.p[:, 0], [0.5, 0.5])


AFTER, CHANCE = np.zeros((1, 2, 1, 2, 1), int), np.full((1, 1, 2, 3), 0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after": AFTER[0]}, "after must be whole numbers with 5 axes"),
        ({"after": AFTER * 1.0}, "after must be whole numbers with 5 axes, not float64"),
        ({"after": AFTER + 2}, "after must be from 0 to 1"),
        ({"after": AFTER - 1}, "after must be from 0 to 1"),
        ({"chance": CHANCE[:, :, :1]}, r"chance has shape \(1, 1, 1, 3\).*\(times or 1, 1, 2, 3\)"),
        ({"chance": CHANCE * 0.8}, "chance sums to 0.8, not 1, at t=0, k=0, m=0"),
        ({"chance": -CHANCE}, "chance must not be negative"),
        ({"chance": np.nan * CHANCE}, "chance must not be negative or NaN"),
        ({"chance": np.repeat(CHANCE, 2, axis=1)}, "2 kinds of rows; say with kind="),
        ({"kind": np.ones((1, 2, 1), int)}, "kind must be from 0 to 0"),
        ({"after": np.repeat(AFTER, 2, axis=4)}, "2 corners; give their shares"),
        ({"coefficient": np.full(AFTER.shape, 0.5)}, "coefficient sums to 0.5.*t=0, s=0, a=0, w=0"),
        ({"after": np.repeat(AFTER, 3, 0), "chance": np.repeat(CHANCE, 2, 0)}, "2 and 3 times"),
    ],
)  # fmt: skip
def test_bad_events_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        Events(**{"after": AFTER, "chance": CHANCE, **given})


def test_rewards_by_next_state_are_refused() -> None:
    with pytest.raises(mmdp.InputError, match="by state and action, not by next state"):
        mmdp.MMDP(Events(AFTER, CHANCE), next_rewards=np.zeros((3, 2, 1, 2)))


def test_tables_that_would_be_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST", 100)
    model = steady(0)
    assert mmdp.solve(model, 2).value < np.inf
    for ask in (
        lambda: model.transitions,
        lambda: mmdp.solve(model, 2, policy=mmdp.Memory(2)),
    ):
        with pytest.raises(MemoryLimitError, match="tables of these shared events would take"):
            ask()
