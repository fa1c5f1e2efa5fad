"""Models to and from other tools: the same values there and back."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import mmdp
from mmdp import ecosystem
from mmdp.domains import _cart_pole, _mountain_car
from mmdp.testing import random_controller, random_model

P = [
    [[[0.9, 0.1, 0], [0.2, 0, 0.8]], [[0, 1, 0], [0.8, 0.2, 0]], [[0, 0, 1], [0, 0, 0]]],
    [[[0.5, 0.5, 0], [0.6, 0, 0.4]], [[0, 1, 0], [0.1, 0.9, 0]], [[0, 0, 1], [0, 0, 0]]],
]


def small(**fields: Any) -> mmdp.MMDP:
    """Two models, three states; action 1 is forbidden in the last one."""
    rewards = np.arange(36.0).reshape(2, 3, 2, 3) - 10
    fields = {"initial": [0.5, 0.5, 0.0], "discount": 0.9, "weights": [0.3, 0.7]} | fields
    return mmdp.MMDP(P, next_rewards=rewards, **fields)


# ---------------------------------------------------------------------- gymnasium
@pytest.mark.parametrize("horizon", [None, 5])
@pytest.mark.parametrize("which", ["small", "riverswim", "in time"])
def test_gymnasium_checker_passes(which: str, horizon: int | None) -> None:
    checker = pytest.importorskip("gymnasium.utils.env_checker", reason="gymnasium is not there")
    if which == "riverswim":
        model = mmdp.domains.riverswim(seed=0).train
    elif which == "small":
        model = small(allowed=[[True, True], [True, True], [True, False]])
    else:
        model = mmdp.MMDP(np.full((9, 2, 3, 2, 3), 1 / 3), np.ones((9, 2, 3, 2)))
    env = ecosystem.to_gymnasium(model, 1, horizon)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(spec|render).*")
        checker.check_env(env, skip_render_check=True)
    copy = pickle.loads(pickle.dumps(env))
    assert env.reset(seed=3)[0] == copy.reset(seed=3)[0]


def test_simulated_return_is_the_exact_one() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = small(terminal=[0.0, 3.0, -2.0])
    horizon, episodes = 4, 4000
    policy = mmdp.MarkovPolicy([[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], n_actions=2)
    exact = mmdp.evaluate(policy, model).returns[1]
    env = ecosystem.to_gymnasium(model, 1, horizon, seed=0)
    returns = np.zeros(episodes)
    for i in range(episodes):
        state, _ = env.reset()
        for t in range(horizon):
            state, reward, ended, truncated, info = env.step(policy.actions[t, state])
            returns[i] += 0.9**t * float(reward)
            assert not ended
            assert truncated == (t == horizon - 1)
            assert info["time"] == t + 1
    assert returns.mean() == pytest.approx(exact, abs=4 * returns.std() / np.sqrt(episodes))


def deterministic(n_models: int = 3) -> mmdp.MMDP:
    """Four states in a circle; each model goes another way round, with action 1 twice as far."""
    p = np.zeros((n_models, 4, 2, 4))
    for m in range(n_models):
        for s in range(4):
            for a in range(2):
                p[m, s, a, (s + (m + 1) * (a + 1)) % 4] = 1.0
    rewards = np.arange(n_models * 8.0).reshape(n_models, 4, 2)
    return mmdp.MMDP(p, rewards, initial=[0, 1, 0, 0], discount=0.9, terminal=[0, 1, 2, 3])


@pytest.mark.parametrize("horizon", [None, 3])
def test_vector_environment_is_gymnasiums_own_vector_of_the_models(horizon: int | None) -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = deterministic()
    ours = ecosystem.to_gymnasium_vector(model, horizon=horizon)
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda m=m: ecosystem.to_gymnasium(model, m, horizon) for m in range(3)]
    )
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for space in ("observation_space", "action_space", "single_action_space"):
        assert getattr(ours, space) == getattr(theirs, space)
    found, expected = ours.reset(seed=1), theirs.reset(seed=1)
    np.testing.assert_array_equal(found[0], expected[0])
    actions = np.random.default_rng(0).integers(2, size=(12, 3))
    for chosen in actions:
        found, expected = ours.step(chosen), theirs.step(chosen)
        for one, other in zip(found[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
            assert one.shape == other.shape
        for key in ("time", "action_mask", "_time"):
            np.testing.assert_array_equal(found[4][key], expected[4][key])
        assert ours.observation_space.contains(found[0])


def test_vector_environment_returns_what_evaluate_says() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = small(terminal=[0.0, 3.0, -2.0])
    policy = mmdp.MarkovPolicy([[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], n_actions=2)
    envs = ecosystem.to_gymnasium_vector(model, 6000, horizon=4)
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    states, info = counted.reset(seed=2)
    models, returns = info["model"], np.zeros(6000)
    assert models.mean() == pytest.approx(0.7, abs=0.03)
    for t in range(4):
        states, rewards, ended, truncated, info = counted.step(policy.actions[t, states])
        returns += 0.9**t * rewards
        assert not ended.any()
        assert truncated.all() == (t == 3)
    assert info["episode"]["l"].tolist() == [4] * 6000
    for m in range(2):
        mine = returns[models == m]
        exact = mmdp.evaluate(policy, model).returns[m]
        assert mine.mean() == pytest.approx(exact, abs=4 * mine.std() / np.sqrt(len(mine)))
    again = counted.step(np.zeros(6000, int))
    assert not again[1].any()
    assert (again[4]["model"] != models).any()  # another episode, another model
    for bad in (0, -1, 1.5):
        with pytest.raises(mmdp.InputError, match="num_envs"):
            ecosystem.to_gymnasium_vector(model, bad)  # type: ignore[arg-type]


def test_vector_environment_follows_time_missing_actions_and_seeds() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    rewards = np.arange(4.0).reshape(4, 1, 1, 1) * np.ones((4, 2, 1, 2))
    moving = mmdp.MMDP(np.ones((4, 2, 1, 2, 1)), rewards)
    envs = ecosystem.to_gymnasium_vector(moving)
    envs.reset()
    assert [envs.step([0, 1])[1].tolist() for _ in range(4)] == [[t, t] for t in range(4)]
    gone = mmdp.MMDP([[[[1.0]]], [[[0.0]]]], [[1.0]], allow_missing=True)
    ends = ecosystem.to_gymnasium_vector(gone)
    ends.reset()
    assert ends.step([0, 0])[2].tolist() == [False, True]
    assert ends.step([0, 0])[2].tolist() == [False, False]
    first, second = (ecosystem.to_gymnasium_vector(small(), 50, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])
    np.testing.assert_array_equal(first.step(np.ones(50, int))[0], second.step(np.ones(50, int))[0])


def test_forbidden_action_is_masked_and_replaced() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    env = ecosystem.to_gymnasium(small(initial=[0, 0, 1]), 0, seed=1)
    state, info = env.reset()
    assert state == 2
    assert info["action_mask"].tolist() == [1, 0]
    assert env.step(1)[4]["taken"] == 0


def value_iteration(table: Any, n_states: int, discount: float, steps: int) -> np.ndarray:
    """Optimal values straight from a Gymnasium table: nothing follows termination."""
    v = np.zeros(n_states)
    for _ in range(steps):
        v = np.array(
            [
                max(
                    sum(p * (r + discount * v[n] * (not end)) for p, n, r, end in table[s][a])
                    for a in table[s]
                )
                for s in range(n_states)
            ]
        )
    return v


@pytest.mark.parametrize("name", ["FrozenLake", "Taxi", "CliffWalking"])
def test_tabular_environment_has_the_values_of_its_table(name: str) -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    name = max(key for key in gymnasium.registry if key.startswith(f"{name}-v"))
    env = gymnasium.make(name)
    table = env.unwrapped.P
    model = ecosystem.from_gymnasium(env, models=1, concentration=np.inf, discount=0.95)
    assert model.name == name
    steps = 30
    ours = mmdp.solve(model, steps).value
    values = value_iteration(table, len(table), 0.95, steps)
    start = np.asarray(env.unwrapped.initial_state_distrib)
    assert ours == pytest.approx(float(start @ values) / start.sum(), rel=1e-9)
    uncertain = ecosystem.from_gymnasium(env, models=400, concentration=30, noise=0.1)
    exact = ecosystem.from_gymnasium(env, models=1, concentration=np.inf, noise=0.1)
    rows = exact.problem.p[0, :, 0]
    np.testing.assert_allclose(uncertain.problem.p[0].mean(axis=1), rows, atol=0.03)
    spread = np.sqrt(rows * (1 - rows) / 31)
    np.testing.assert_allclose(uncertain.problem.p[0].std(axis=1), spread, atol=0.02)


def test_state_entered_both_ways_gets_an_end_of_its_own() -> None:
    class Twice:
        P = {  # noqa: RUF012
            0: {0: [(0.5, 1, 1.0, False), (0.5, 1, 5.0, True)]},
            1: {0: [(1.0, 0, 2.0, False)]},
        }

    model = ecosystem.from_gymnasium(Twice(), models=1, concentration=np.inf)
    assert model.n_states == 3
    expected = value_iteration(Twice.P, 2, 1.0, 3)
    found = [mmdp.solve(model.replace(initial=np.eye(3)[s]), 3).value for s in range(2)]
    np.testing.assert_allclose(found, expected)
    with pytest.raises(mmdp.InputError, match="no transition table"):
        ecosystem.from_gymnasium(object())


def test_a_stepped_environment_is_the_same_model_as_its_equations() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    draws = {"force": np.array([0.0008, 0.0012]), "gravity": np.array([0.0021, 0.0029])}
    axes = {"position": mmdp.Grid(-1.2, 0.6, 9), "velocity": mmdp.Grid(-0.07, 0.07, 9)}
    found = ecosystem.from_gymnasium(
        "MountainCar-v0", axes=axes, draws=draws, until=lambda state: state["position"] >= 0.5
    )
    ours = _mountain_car.models(draws, 9)
    np.testing.assert_allclose(found.transitions, ours.transitions, atol=1e-12)
    np.testing.assert_allclose(found.rewards, ours.rewards, atol=1e-12)
    assert found.name == "MountainCar-v0"
    assert found.action_labels == ("act=0", "act=1", "act=2")
    starts = found.function.first(0)[0]["position"]
    assert starts.mean() == pytest.approx(-0.5, abs=0.02)
    assert ((starts > -0.6) & (starts < -0.4)).all()


def test_what_cart_pole_computes_once_follows_the_draw() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    env = gymnasium.make("CartPole-v1")
    ends = {"position": 2.4, "speed": 3.0, "angle": 0.2, "turning": 3.0}
    draws = {"masspole": np.array([0.05, 0.3]), "length": np.array([0.3, 0.9])}
    model = ecosystem.from_gymnasium(
        env, axes={name: mmdp.Grid(-end, end, 3) for name, end in ends.items()}, draws=draws
    )
    state = {name: np.array([0.1, -0.1]) for name in ends}
    for m in range(2):
        draw = {"mass": draws["masspole"][m], "length": draws["length"][m]}
        given = {name: x[m] for name, x in draws.items()}
        found, _ = model.function.step(state=state, action={"act": np.array([0, 1])}, draw=given)
        told, _ = _cart_pole.step(state, {"push": np.array([-1, 1])}, draw)
        for name in ends:
            np.testing.assert_allclose(found[name], told[name], rtol=1e-12)
    assert (env.unwrapped.masspole, env.unwrapped.length) == (0.1, 0.5)  # as it was
    assert mmdp.simulate(
        mmdp.MarkovPolicy.uniform(model, 5), model, off_grid=True, episodes=2
    ).mean == pytest.approx(5)


def test_an_angle_goes_round_and_a_torque_is_one_of_those_given() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    axes = {"angle": mmdp.Grid(-np.pi, np.pi, 9, wraps=True), "speed": mmdp.Grid(-8, 8, 9)}
    model = ecosystem.from_gymnasium(
        "Pendulum-v1", axes=axes, actions={"torque": [-2.0, 0.0, 2.0]}, draws={"g": [9.0, 11.0]}
    )
    speed, torque, t = 6.0, 2.0, 0.05  # from angle pi, where gravity turns nothing
    after = speed + 3 * torque * t
    state = model.state_labels.index("angle=3.14159, speed=6")
    row = model.transitions[0, state, model.action_labels.index("torque=2")]
    reached = {label: p for label, p in zip(model.state_labels, row, strict=True) if p > 1e-12}
    share = after * t / (np.pi / 4)
    assert sum(p for label, p in reached.items() if "angle=-3.14159" in label) == pytest.approx(
        1 - share
    )
    assert sum(p for label, p in reached.items() if "angle=-2.35619" in label) == pytest.approx(
        share
    )
    assert model.rewards[0, state, 2] == pytest.approx(-(np.pi**2 + 3.6 + 0.004))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"draws": {"forces": [1.0]}}, "has no 'forces' (did you mean 'force'?); draws set"),
        ({"axes": {"position": range(3)}}, "axes name 1 value; env.unwrapped.state after a reset"),
        ({"models": 5}, "models, concentration and noise are for tables; with axes give draws"),
        ({"axes": None, "draws": {"force": [1.0]}}, "need axes for the state"),
        ({"axes": None}, "no transition table P[state][action]; give axes= for its state"),
        ({"env": "Pendulum-v1"}, "say which to take, such as actions={'torque': [-2, 0, 2]}"),
    ],
)
def test_what_cannot_be_stepped_is_refused(given: dict[str, Any], told: str) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    axes = {"position": mmdp.Grid(-1.2, 0.6, 3), "velocity": mmdp.Grid(-0.07, 0.07, 3)}
    asked = {"env": "MountainCar-v0", "axes": axes} | given
    with pytest.raises(mmdp.InputError, match=re.escape(told)):
        ecosystem.from_gymnasium(asked.pop("env"), **asked)


class Counter:
    """Adds to a whole number; over at 3. ``noise`` makes it random."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.gain, self.state, self.over = noise, 1.0, (0,), False
        self.action_space = SimpleNamespace(n=2, start=1)
        self.rng = np.random.default_rng(0)

    def reset(self, seed: int | None = None) -> None:
        self.state, self.over = (0,), False

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not self.over
        self.state = (int(self.state[0]) + action,)
        self.over = self.state[0] >= 3
        return self.state, self.gain + self.noise * self.rng.random(), self.over, False, {}


def test_a_whole_state_is_stepped_and_ends_where_a_step_does() -> None:
    counter = Counter()
    model = ecosystem.from_gymnasium(counter, axes={"count": range(3)}, draws={"gain": [1.0, 5.0]})
    assert model.state_labels == ("count=0", "count=1", "count=2", "ended")
    assert model.action_labels == ("act=1", "act=2")
    following = model.transitions[0].argmax(axis=2).tolist()
    assert following == [[1, 2], [2, 3], [3, 3], [3, 3]]
    assert model.rewards[:, :, 0].tolist() == [[1, 1, 1, 0], [5, 5, 5, 0]]
    assert counter.gain == 1.0
    np.testing.assert_allclose(model.initial, [1, 0, 0, 0])


def test_an_environment_that_draws_lots_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match="returns other numbers when it is called again"):
        ecosystem.from_gymnasium(Counter(0.5), axes={"count": range(3)})


# ---------------------------------------------------------------------- quantecon
def test_quantecon_finds_our_value_and_gives_the_model_back() -> None:
    pytest.importorskip("quantecon", reason="quantecon is not there")
    model = small(allowed=[[True, True], [True, True], [True, False]])
    problems = [ecosystem.to_quantecon(model, m) for m in range(2)]
    for m, ddp in enumerate(problems):
        values = ddp.solve(method="policy_iteration").v
        ours = mmdp.solve(model.subset([m]), 400).value
        assert model.initial @ values == pytest.approx(ours, rel=1e-9)
    back = ecosystem.from_quantecon(problems, initial=model.initial, weights=model.weights)
    np.testing.assert_allclose(back.transitions, model.transitions)
    np.testing.assert_allclose(back.rewards, model.rewards)
    np.testing.assert_array_equal(back.allowed, model.allowed)
    assert back.discount == 0.9


def test_what_other_tools_cannot_hold_is_refused(tmp_path: Path) -> None:
    in_time = mmdp.MMDP(np.full((9, 2, 3, 2, 3), 1 / 3), np.ones((9, 2, 3, 2)))
    with pytest.raises(mmdp.InputError, match="varies with time"):
        ecosystem.to_quantecon(in_time)
    with pytest.raises(mmdp.InputError, match="no model 7"):
        ecosystem.to_quantecon(small(), 7)
    with pytest.raises(mmdp.InputError, match="unknown suffix"):
        ecosystem.save_pomdp(small(), tmp_path / "a.txt")
    with pytest.raises(mmdp.InputError, match="terminal"):
        ecosystem.save_pomdp(small(terminal=[1, 0, 0]), tmp_path / "a.pomdp")
    with pytest.raises(mmdp.InputError, match="no folder"):
        ecosystem.save_pomdp(small(), tmp_path / "none" / "a.pomdp")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- POMDP files
class Pomdp:
    """T (A, X, X), O (X, Z), R (A, X, X), start (X,) read from a file, by another way."""

    def __init__(self, n_actions: int, states: list[str], observations: list[str]) -> None:
        self.states, self.observations = states, observations
        x = len(states)
        self.t = np.zeros((n_actions, x, x))
        self.o = np.zeros((x, len(observations)))
        self.r = np.zeros((n_actions, x, x))
        self.start = np.zeros(x)

    def policy_return(self, policy: np.ndarray, discount: float, first: np.ndarray) -> float:
        """Return of actions (T, observations) when the observation at the start is ``first``."""
        b, total = first, 0.0  # (X, Z): joint of the hidden state and the last observation
        for t, actions in enumerate(policy):
            after = np.zeros_like(b)
            for z, a in enumerate(actions):
                total += discount**t * float((b[:, z, None] * self.t[a] * self.r[a]).sum())
                after += (b[:, z] @ self.t[a])[:, None] * self.o
            b = after
        return total


def read_pomdp(path: Path) -> Pomdp:
    head: dict[str, list[str]] = {}
    found: Pomdp | None = None
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        key, _, rest = line.partition(":")
        if key not in "TOR":
            head[key] = rest.split()
            continue
        if found is None:
            found = Pomdp(len(head["actions"]), head["states"], head["observations"])
            found.start[:] = [float(x) for x in head["start"]]
        *places, last = (x.strip() for x in rest.split(":"))
        where, number = last.split()
        places.append(where)
        a = slice(None) if places[0] == "*" else head["actions"].index(places[0])
        if key == "T":
            found.t[a, found.states.index(places[1]), found.states.index(places[2])] = float(number)
        elif key == "O":
            found.o[found.states.index(places[1]), found.observations.index(places[2])] = float(
                number
            )
        else:
            i, j = (found.states.index(x) for x in places[1:3])
            found.r[a, i, j] = float(number)
    assert found is not None
    return found


@pytest.mark.parametrize("initial", [[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
def test_pomdp_file_has_the_returns_of_the_model(tmp_path: Path, initial: list[float]) -> None:
    model = small(
        initial=initial, states=["a\nb # x", "-->", "<c>"],
        allowed=[[True, True], [True, True], [True, False]],
    )  # fmt: skip
    ecosystem.save_pomdp(model, tmp_path / "m.pomdp")
    read = read_pomdp(tmp_path / "m.pomdp")
    np.testing.assert_allclose(read.t.sum(axis=2), 1.0)
    np.testing.assert_allclose(read.o.sum(axis=1), 1.0)
    policy = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    expected = mmdp.evaluate(mmdp.MarkovPolicy(policy, n_actions=2), model).mean
    if "start" in read.states:  # one step without reward comes first
        first = np.zeros((len(read.states), len(read.observations)))
        first[read.states.index("start"), -1] = 1.0
        extended = np.column_stack([np.vstack([[0, 0, 0], policy]), np.zeros(4, dtype=int)])
        assert read.policy_return(extended, 0.9, first) == pytest.approx(0.9 * expected)
    else:
        first = read.start[:, None] * read.o
        assert read.policy_return(policy, 0.9, first) == pytest.approx(expected)


def read_pomdpx(path: Path, model: mmdp.MMDP) -> tuple[Any, ...]:
    root = ElementTree.parse(path).getroot()
    tables: dict[str, list[tuple[list[str], str]]] = {}
    for tag in ("InitialStateBelief", "StateTransitionFunction", "ObsFunction", "RewardFunction"):
        for part in root.find(tag):  # type: ignore[union-attr]
            tables[part.findtext("Var") or ""] = [
                ((e.findtext("Instance") or "").split(), e[1].text or "")
                for e in part.iter("Entry")
            ]
    shape = (model.n_models, model.n_states, model.n_actions, model.n_states)
    p, r = np.zeros(shape), np.zeros(shape)
    for array, name in ((p, "state_1"), (r, "reward")):
        for places, value in tables[name]:
            a, m, s, n = (int(x[1:]) for x in places)
            array[m, s, a, n] = float(value)
    weights, initial = ([float(x) for x in tables[k][0][1].split()] for k in ("model_0", "state_0"))
    assert tables["model_1"] == [(["*", "-", "-"], "identity")]
    assert all(places[1] == places[2] for places, _ in tables["seen"])
    return p, r, weights, initial, float(root.findtext("Discount") or "")


def test_pomdpx_file_holds_the_model(tmp_path: Path) -> None:
    model = small(states=["a--b", "-->", "<script>"], actions=["x & y", "z-"])
    ecosystem.save_pomdp(model, tmp_path / "m.pomdpx")
    p, r, weights, initial, discount = read_pomdpx(tmp_path / "m.pomdpx", model)
    back = mmdp.MMDP(p, next_rewards=r, weights=weights, initial=initial, discount=discount)
    possible = model.transitions > 0
    np.testing.assert_allclose(p[possible], model.transitions[possible])
    assert mmdp.solve(back, 5).value == pytest.approx(mmdp.solve(model, 5).value)


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_agent_earns_the_exact_value_in_gymnasium(nodes: int) -> None:
    pytest.importorskip("gymnasium")
    model = random_model(8, n_models=2, n_states=3, n_actions=2, horizon=0, discount=0.9)
    controller = random_controller(model.problem, 6, nodes, 0)
    policy = mmdp.MemoryPolicy.for_model(model, controller)
    exact = mmdp.evaluate(policy, model).returns[1]
    env = mmdp.ecosystem.to_gymnasium(model, 1, horizon=6, seed=0)
    agent = mmdp.ecosystem.Agent(policy.node(0) if nodes == 1 else policy)
    totals = []
    for _ in range(400):
        state, _ = env.reset()
        agent.reset()
        total, reward = 0.0, None
        for t in range(6):
            state, reward, _, over, _ = env.step(agent(state, reward))
            total += model.discount**t * reward
        assert over
        totals.append(total)
    assert abs(np.mean(totals) - exact) < 4 * np.std(totals) / 20
    with pytest.raises(mmdp.InputError, match="the policy ends after 6 steps"):
        agent(state)


def test_an_agent_sees_states_by_number_or_label() -> None:
    model = small(states=["up", "down", "gone"])
    agent = mmdp.ecosystem.Agent(mmdp.solve(model, 4))
    by_label = [agent(state) for state in ("up", "down")]
    agent.reset()
    assert [agent(state) for state in (0, 1)] == by_label
    for state in ("dwn", -1, 3):
        with pytest.raises(mmdp.InputError, match="the policy knows no state"):
            agent(state)


@pytest.mark.parametrize("seen", [np.array([0, 1]), np.array([0.3]), 0.3, [0], None])
def test_an_agent_refuses_what_is_not_one_state(seen: Any) -> None:
    agent = mmdp.ecosystem.Agent(mmdp.solve(mmdp.domains.two_models().train, 5))
    with pytest.raises(mmdp.InputError, match="give its number, from 0, or its label"):
        agent(seen)
    assert agent(np.int64(0)) == mmdp.ecosystem.Agent(agent.policy)(0.0)


def test_a_first_step_that_the_discount_undoes_is_refused(tmp_path: Path) -> None:
    model = small(initial=[0.5, 0.5, 0.0], discount=0.0)
    with pytest.raises(mmdp.InputError, match=r"at discount 0 nothing counts after it"):
        ecosystem.save_pomdp(model, tmp_path / "a.pomdp")
    assert not list(tmp_path.iterdir())
