"""Models to and from other tools: the same values there and back."""

from __future__ import annotations

import math
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
from mmdp.core.testing import make_random_model
from mmdp.data import interop
from tests.instances import make_random_controller

TRANSITIONS = [
    [[[0.9, 0.1, 0], [0.2, 0, 0.8]], [[0, 1, 0], [0.8, 0.2, 0]], [[0, 0, 1], [0, 0, 0]]],
    [[[0.5, 0.5, 0], [0.6, 0, 0.4]], [[0, 1, 0], [0.1, 0.9, 0]], [[0, 0, 1], [0, 0, 0]]],
]


def make_small_model(**fields: Any) -> mmdp.MMDP:
    """Two models, three states; action 1 is forbidden in the last one."""
    rewards = np.arange(36.0).reshape(2, 3, 2, 3) - 10
    fields = {"initial": [0.5, 0.5, 0.0], "discount": 0.9, "weights": [0.3, 0.7]} | fields
    return mmdp.MMDP(TRANSITIONS, next_rewards=rewards, **fields)


# ---------------------------------------------------------------------- gymnasium
@pytest.mark.parametrize("horizon", [None, 5])
@pytest.mark.parametrize("case", ["small", "riverswim", "in time"])
def test_gymnasium_checker_passes(case: str, horizon: int | None) -> None:
    checker = pytest.importorskip("gymnasium.utils.env_checker", reason="gymnasium is not there")
    if case == "riverswim":
        model = mmdp.domains.riverswim(seed=0).train
    elif case == "small":
        model = make_small_model(allowed=[[True, True], [True, True], [True, False]])
    else:
        model = mmdp.MMDP(np.full((9, 2, 3, 2, 3), 1 / 3), np.ones((9, 2, 3, 2)))
    env = interop.to_gymnasium(model, 1, horizon)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(spec|render).*")
        checker.check_env(env, skip_render_check=True)
    copy = pickle.loads(pickle.dumps(env))
    assert env.reset(seed=3)[0] == copy.reset(seed=3)[0]


def test_simulated_return_is_the_exact_one() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = make_small_model(terminal=[0.0, 3.0, -2.0])
    horizon, n_episodes = 4, 4000
    policy = mmdp.policies.MarkovPolicy([[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], n_actions=2)
    exact = mmdp.evaluate(model, policy).returns[1]
    env = interop.to_gymnasium(model, 1, horizon, seed=0)
    returns = np.zeros(n_episodes)
    for i in range(n_episodes):
        state, _ = env.reset()
        for t in range(horizon):
            state, reward, terminated, truncated, info = env.step(policy.actions[t, state])
            returns[i] += 0.9**t * float(reward)
            assert not terminated
            assert truncated == (t == horizon - 1)
            assert info["time"] == t + 1
    assert returns.mean() == pytest.approx(exact, abs=4 * returns.std() / np.sqrt(n_episodes))


def make_circle_model(n_models: int = 3) -> mmdp.MMDP:
    """Four states in a circle; each model goes another way round, with action 1 twice as far."""
    p = np.zeros((n_models, 4, 2, 4))
    for m in range(n_models):
        for s in range(4):
            for a in range(2):
                p[m, s, a, (s + (m + 1) * (a + 1)) % 4] = 1.0
    rewards = np.arange(n_models * 8.0).reshape(n_models, 4, 2)
    return mmdp.MMDP(p, rewards, initial=[0, 1, 0, 0], discount=0.9, terminal=[0, 1, 2, 3])


@pytest.mark.parametrize("horizon", [None, 3])
def test_vector_environment_equals_gymnasium_sync_vector(horizon: int | None) -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = make_circle_model()
    vector_env = interop.to_gymnasium_vector(model, horizon=horizon)
    reference_env = gymnasium.vector.SyncVectorEnv(
        [lambda m=m: interop.to_gymnasium(model, m, horizon) for m in range(3)]
    )
    assert vector_env.metadata["autoreset_mode"] == reference_env.metadata["autoreset_mode"]
    for space in ("observation_space", "action_space", "single_action_space"):
        assert getattr(vector_env, space) == getattr(reference_env, space)
    result, expected = vector_env.reset(seed=1), reference_env.reset(seed=1)
    np.testing.assert_array_equal(result[0], expected[0])
    actions = np.random.default_rng(0).integers(2, size=(12, 3))
    for action in actions:
        result, expected = vector_env.step(action), reference_env.step(action)
        for array, expected_array in zip(result[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(array, expected_array)
            assert array.dtype == expected_array.dtype
            assert array.shape == expected_array.shape
        for key in ("time", "action_mask", "_time"):
            np.testing.assert_array_equal(result[4][key], expected[4][key])
        assert vector_env.observation_space.contains(result[0])


def test_vector_environment_returns_what_evaluate_says() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = make_small_model(terminal=[0.0, 3.0, -2.0])
    policy = mmdp.policies.MarkovPolicy([[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], n_actions=2)
    envs = interop.to_gymnasium_vector(model, 6000, horizon=4)
    recorded_envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    states, info = recorded_envs.reset(seed=2)
    models, returns = info["model"], np.zeros(6000)
    assert models.mean() == pytest.approx(0.7, abs=0.03)
    for t in range(4):
        states, rewards, terminated, truncated, info = recorded_envs.step(policy.actions[t, states])
        returns += 0.9**t * rewards
        assert not terminated.any()
        assert truncated.all() == (t == 3)
    assert info["episode"]["l"].tolist() == [4] * 6000
    for m in range(2):
        model_returns = returns[models == m]
        exact = mmdp.evaluate(model, policy).returns[m]
        assert model_returns.mean() == pytest.approx(
            exact, abs=4 * model_returns.std() / np.sqrt(len(model_returns))
        )
    next_episode = recorded_envs.step(np.zeros(6000, int))
    assert not next_episode[1].any()
    assert (next_episode[4]["model"] != models).any()  # another episode, another model
    for bad_count in (0, -1, 1.5):
        with pytest.raises(mmdp.InputError, match="num_envs"):
            interop.to_gymnasium_vector(model, bad_count)  # type: ignore[arg-type]


def test_vector_environment_follows_time_missing_actions_and_seeds() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    rewards = np.arange(4.0).reshape(4, 1, 1, 1) * np.ones((4, 2, 1, 2))
    time_varying_model = mmdp.MMDP(np.ones((4, 2, 1, 2, 1)), rewards)
    envs = interop.to_gymnasium_vector(time_varying_model)
    envs.reset()
    assert [envs.step([0, 1])[1].tolist() for _ in range(4)] == [[t, t] for t in range(4)]
    missing_model = mmdp.MMDP([[[[1.0]]], [[[0.0]]]], [[1.0]], allow_missing=True)
    missing_envs = interop.to_gymnasium_vector(missing_model)
    missing_envs.reset()
    assert missing_envs.step([0, 0])[2].tolist() == [False, True]
    assert missing_envs.step([0, 0])[2].tolist() == [False, False]
    first, second = (interop.to_gymnasium_vector(make_small_model(), 50, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])
    np.testing.assert_array_equal(first.step(np.ones(50, int))[0], second.step(np.ones(50, int))[0])


def test_a_seed_of_reset_holds_for_the_episodes_after_it() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    model = mmdp.domains.riverswim(seed=0).train
    for make in (interop.to_gymnasium, lambda x, seed: interop.to_gymnasium_vector(x, seed=seed)):
        envs = [make(model, seed=seed) for seed in (1, 1, 2)]
        first, second, other = ([env.reset()[0] for _ in range(9)] for env in envs)
        np.testing.assert_array_equal(first, second)
        assert np.any(np.array(first) != other)
        first, other = (
            [env.reset(seed=seed)[0] for seed in (5, *[None] * 9)]
            for env in (make(model, seed=1), make(model, seed=2))
        )
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(
    "convert",
    [
        interop.to_gymnasium,
        interop.to_gymnasium_vector,
        interop.to_quantecon,
        mmdp.io.to_frame,
        lambda model: interop.save_pomdp(model, "models.pomdp"),
    ],
)
def test_a_shard_of_the_models_is_not_converted(convert: Any) -> None:
    """The numbers of its models are those of all models, but it holds the tables of a few."""
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    pytest.importorskip("quantecon", reason="quantecon is not there")
    shard = mmdp.domains.garnet(n_models=4, n_states=5).train.take_shard(1, 2)
    with pytest.raises(mmdp.InputError, match="needs all models in one process"):
        convert(shard)


def test_forbidden_action_is_masked_and_replaced() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    env = interop.to_gymnasium(make_small_model(initial=[0, 0, 1]), 0, seed=1)
    state, info = env.reset()
    assert state == 2
    assert info["action_mask"].tolist() == [1, 0]
    assert env.step(1)[4]["taken"] == 0


def iterate_values(table: Any, n_states: int, discount: float, n_steps: int) -> np.ndarray:
    """Optimal values straight from a Gymnasium table: nothing follows termination."""
    v = np.zeros(n_states)
    for _ in range(n_steps):
        v = np.array(
            [
                max(
                    sum(
                        p * (r + discount * v[next_state] * (not is_terminal))
                        for p, next_state, r, is_terminal in table[s][a]
                    )
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
    model = interop.from_gymnasium(env, n_models=1, concentration=np.inf, discount=0.95)
    assert model.name == name
    n_steps = 30
    value = mmdp.solve(model, n_steps).value
    values = iterate_values(table, len(table), 0.95, n_steps)
    initial = np.asarray(env.unwrapped.initial_state_distrib)
    assert value == pytest.approx(float(initial @ values) / initial.sum(), rel=1e-9)
    uncertain = interop.from_gymnasium(env, n_models=400, concentration=30)
    rows = model.problem.p[0, :, 0]
    np.testing.assert_allclose(uncertain.problem.p[0].mean(axis=1), rows, atol=0.03)
    expected_sd = np.sqrt(rows * (1 - rows) / 31)
    np.testing.assert_allclose(uncertain.problem.p[0].std(axis=1), expected_sd, atol=0.02)


def test_state_entered_both_ways_gets_a_terminal_copy() -> None:
    class TabularEnv:
        P = {  # noqa: RUF012
            0: {0: [(0.5, 1, 1.0, False), (0.5, 1, 5.0, True)]},
            1: {0: [(1.0, 0, 2.0, False)]},
        }

    model = interop.from_gymnasium(TabularEnv(), n_models=1, concentration=np.inf)
    assert model.n_states == 3
    expected = iterate_values(TabularEnv.P, 2, 1.0, 3)
    values = [mmdp.solve(model.replace(initial=np.eye(3)[s]), 3).value for s in range(2)]
    np.testing.assert_allclose(values, expected)
    with pytest.raises(mmdp.InputError, match="no transition table"):
        interop.from_gymnasium(object())


@pytest.mark.parametrize(
    "table",
    [{}, {0: {}}, {0: {0: [(1.0, 0, 1.0)]}}, {"a": {0: []}}, {0: {1: []}}, {0: None}, {0: {0: 1}}],
)
def test_other_tables_of_environments_are_refused(table: Any) -> None:
    with pytest.raises(mmdp.InputError, match=r"must list \(probability, next, reward, terminated"):
        interop.from_gymnasium(SimpleNamespace(P=table))


def make_discrete_dp(rewards: Any, beta: float = 0.9) -> Any:
    tables = {"R": np.array(rewards), "Q": np.full((2, 2, 2), 0.5), "beta": beta}
    return SimpleNamespace(**tables, s_indices=None, a_indices=None)


def test_rewards_of_quantecon_that_are_not_numbers_are_refused() -> None:
    """NaN is not -inf, which forbids the action."""
    with pytest.raises(mmdp.InputError, match="reward is nan; give a finite number"):
        interop.from_quantecon(make_discrete_dp([[1.0, np.nan], [1.0, 2.0]]))
    with pytest.raises(mmdp.InputError, match="no rows; expected one row per transition"):
        interop.from_quantecon(make_discrete_dp(np.full((2, 2), -np.inf)))


def test_problems_of_quantecon_share_a_discount() -> None:
    problems = [make_discrete_dp(np.ones((2, 2)), beta) for beta in (0.9, 0.5)]
    with pytest.raises(mmdp.InputError, match="different discounts"):
        interop.from_quantecon(problems)
    assert interop.from_quantecon(problems, discount=0.8).discount == 0.8


def step_car(state: Any, action: Any, sample: Any) -> Any:
    """MountainCar's equations."""
    pull = sample["gravity"] * np.cos(3 * state["position"])
    velocity = np.clip(state["velocity"] + sample["force"] * action["push"] - pull, -0.07, 0.07)
    position = np.clip(state["position"] + velocity, -1.2, 0.6)
    is_stopped = (position == -1.2) & (velocity < 0)
    return {"position": position, "velocity": np.where(is_stopped, 0.0, velocity)}, -1.0


def test_a_stepped_environment_equals_its_equations() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    samples = {"force": np.array([0.0008, 0.0012]), "gravity": np.array([0.0021, 0.0029])}
    axes = {"position": mmdp.Grid(-1.2, 0.6, 9), "velocity": mmdp.Grid(-0.07, 0.07, 9)}
    model = interop.from_gymnasium(
        "MountainCar-v0",
        axes=axes,
        samples=samples,
        is_terminal=lambda state: state["position"] >= 0.5,
    )
    expected = mmdp.from_step(
        step_car,
        states=axes,
        actions={"push": [-1, 0, 1]},
        samples=samples,
        is_terminal=lambda state: state["position"] >= 0.5,
    )
    np.testing.assert_allclose(model.transitions, expected.transitions, atol=1e-12)
    np.testing.assert_allclose(model.rewards, expected.rewards, atol=1e-12)
    assert model.name == "MountainCar-v0"
    assert model.action_labels == ("act=0", "act=1", "act=2")
    initial_positions = model.step_spec.list_initial_states(0)[0]["position"]
    assert initial_positions.mean() == pytest.approx(-0.5, abs=0.02)
    assert ((initial_positions > -0.6) & (initial_positions < -0.4)).all()


def step_cart_pole(state: Any, push: Any, mass: float, length: float) -> Any:
    """CartPole's equations, with half the length of the pole."""
    angle, turning, total_mass = state["angle"], state["turning"], 1.0 + mass
    swing = mass * length / total_mass
    thrust = 10.0 * push / total_mass + swing * turning**2 * np.sin(angle)
    inertia = length * (4 / 3 - mass * np.cos(angle) ** 2 / total_mass)
    turning_change = (9.8 * np.sin(angle) - np.cos(angle) * thrust) / inertia
    return {
        "position": state["position"] + 0.02 * state["speed"],
        "speed": state["speed"] + 0.02 * (thrust - swing * turning_change * np.cos(angle)),
        "angle": angle + 0.02 * turning,
        "turning": turning + 0.02 * turning_change,
    }


def test_derived_attributes_of_cart_pole_follow_the_sample() -> None:
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not there")
    env = gymnasium.make("CartPole-v1")
    limits = {"position": 2.4, "speed": 3.0, "angle": 0.2, "turning": 3.0}
    samples = {"masspole": np.array([0.05, 0.3]), "length": np.array([0.3, 0.9])}
    model = interop.from_gymnasium(
        env,
        axes={name: mmdp.Grid(-limit, limit, 3) for name, limit in limits.items()},
        samples=samples,
    )
    state = {name: np.array([0.1, -0.1]) for name in limits}
    for m in range(2):
        next_state, _ = model.step_spec.call("step", state | {"act": np.array([0, 1])}, m)
        expected = step_cart_pole(
            state, np.array([-1, 1]), samples["masspole"][m], samples["length"][m]
        )
        for name in limits:
            np.testing.assert_allclose(next_state[name], expected[name], rtol=1e-12)
    assert (env.unwrapped.masspole, env.unwrapped.length) == (0.1, 0.5)  # as it was
    assert mmdp.simulate(
        model, mmdp.policies.MarkovPolicy.uniform(model, 5), off_grid=True, n_episodes=2
    ).mean == pytest.approx(5)


def test_angles_wrap_and_torques_are_discrete() -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    axes = {"angle": mmdp.Grid(-np.pi, np.pi, 9, wraps=True), "speed": mmdp.Grid(-8, 8, 9)}
    model = interop.from_gymnasium(
        "Pendulum-v1", axes=axes, actions={"torque": [-2.0, 0.0, 2.0]}, samples={"g": [9.0, 11.0]}
    )
    speed, torque, time_step = 6.0, 2.0, 0.05  # from angle pi, where gravity turns nothing
    next_speed = speed + 3 * torque * time_step
    state = model.state_labels.index("angle=3.14159, speed=6")
    row = model.transitions[0, state, model.action_labels.index("torque=2")]
    probs_by_label = {
        label: p for label, p in zip(model.state_labels, row, strict=True) if p > 1e-12
    }
    corner_weight = next_speed * time_step / (np.pi / 4)
    assert sum(
        p for label, p in probs_by_label.items() if "angle=-3.14159" in label
    ) == pytest.approx(1 - corner_weight)
    assert sum(
        p for label, p in probs_by_label.items() if "angle=-2.35619" in label
    ) == pytest.approx(corner_weight)
    assert model.rewards[0, state, 2] == pytest.approx(-(np.pi**2 + 3.6 + 0.004))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": {"forces": [1.0]}}, "has no 'forces' (did you mean 'force'?); samples set"),
        ({"axes": {"position": range(3)}}, "axes name 1 value; env.unwrapped.state after a reset"),
        (
            {"n_models": 5},
            "n_models and concentration are for tables; with axes give samples",
        ),
        ({"axes": None, "samples": {"force": [1.0]}}, "need axes for the state"),
        ({"axes": None}, "no transition table P[state][action]; give axes= for its state"),
        ({"env": "Pendulum-v1"}, "say which to take, such as actions={'torque': [-2, 0, 2]}"),
    ],
)
def test_unsupported_environments_are_refused(options: dict[str, Any], message: str) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not there")
    axes = {"position": mmdp.Grid(-1.2, 0.6, 3), "velocity": mmdp.Grid(-0.07, 0.07, 3)}
    arguments = {"env": "MountainCar-v0", "axes": axes} | options
    with pytest.raises(mmdp.InputError, match=re.escape(message)):
        interop.from_gymnasium(arguments.pop("env"), **arguments)


class CounterEnv:
    """Adds to a whole number; over at 3. ``noise`` makes it random."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.gain, self.state, self.is_over = noise, 1.0, (0,), False
        self.action_space = SimpleNamespace(n=2, start=1)
        self.rng = np.random.default_rng(0)

    def reset(self, seed: int | None = None) -> None:
        self.state, self.is_over = (0,), False

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not self.is_over
        self.state = (int(self.state[0]) + action,)
        self.is_over = self.state[0] >= 3
        return self.state, self.gain + self.noise * self.rng.random(), self.is_over, False, {}


def test_an_integer_state_ends_where_the_step_does() -> None:
    counter = CounterEnv()
    model = interop.from_gymnasium(counter, axes={"count": range(3)}, samples={"gain": [1.0, 5.0]})
    assert model.state_labels == ("count=0", "count=1", "count=2", "ended")
    assert model.action_labels == ("act=1", "act=2")
    next_states = model.transitions[0].argmax(axis=2).tolist()
    assert next_states == [[1, 2], [2, 3], [3, 3], [3, 3]]
    assert model.rewards[:, :, 0].tolist() == [[1, 1, 1, 0], [5, 5, 5, 0]]
    assert counter.gain == 1.0
    np.testing.assert_allclose(model.initial, [1, 0, 0, 0])


def test_a_random_environment_is_refused() -> None:
    with pytest.raises(mmdp.InputError, match="returns other numbers when it is called again"):
        interop.from_gymnasium(CounterEnv(0.5), axes={"count": range(3)})


# ---------------------------------------------------------------------- quantecon
def test_quantecon_round_trip_and_value() -> None:
    pytest.importorskip("quantecon", reason="quantecon is not there")
    model = make_small_model(allowed=[[True, True], [True, True], [True, False]])
    problems = [interop.to_quantecon(model, m) for m in range(2)]
    for m, ddp in enumerate(problems):
        values = ddp.solve(method="policy_iteration").v
        expected = mmdp.solve(model.subset([m]), 400).value
        assert model.initial @ values == pytest.approx(expected, rel=1e-9)
    restored = interop.from_quantecon(problems, initial=model.initial, weights=model.weights)
    np.testing.assert_allclose(restored.transitions, model.transitions)
    np.testing.assert_allclose(restored.rewards, model.rewards)
    np.testing.assert_array_equal(restored.allowed, model.allowed)
    assert restored.discount == 0.9


def test_models_that_other_tools_cannot_store_are_refused(tmp_path: Path) -> None:
    time_varying_model = mmdp.MMDP(np.full((9, 2, 3, 2, 3), 1 / 3), np.ones((9, 2, 3, 2)))
    with pytest.raises(mmdp.InputError, match="varies with time"):
        interop.to_quantecon(time_varying_model)
    with pytest.raises(mmdp.InputError, match="no model 7"):
        interop.to_quantecon(make_small_model(), 7)
    with pytest.raises(mmdp.InputError, match="unknown suffix"):
        interop.save_pomdp(make_small_model(), tmp_path / "a.txt")
    with pytest.raises(mmdp.InputError, match="terminal"):
        interop.save_pomdp(make_small_model(terminal=[1, 0, 0]), tmp_path / "a.pomdp")
    with pytest.raises(mmdp.InputError, match="no folder"):
        interop.save_pomdp(make_small_model(), tmp_path / "none" / "a.pomdp")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- POMDP files
class PomdpArrays:
    """T (A, X, X), O (X, Z), R (A, X, X), start (X,) read from a file, by another way."""

    def __init__(self, n_actions: int, states: list[str], observations: list[str]) -> None:
        self.states, self.observations = states, observations
        n_states = len(states)
        self.transitions = np.zeros((n_actions, n_states, n_states))
        self.observation_probs = np.zeros((n_states, len(observations)))
        self.rewards = np.zeros((n_actions, n_states, n_states))
        self.initial = np.zeros(n_states)

    def compute_return(
        self, policy: np.ndarray, discount: float, initial_joint: np.ndarray
    ) -> float:
        """Return of actions (T, observations) when the observation at the start is ``first``."""
        b, total = initial_joint, 0.0  # (X, Z): joint of the hidden state and the last observation
        for t, actions in enumerate(policy):
            next_joint = np.zeros_like(b)
            for z, a in enumerate(actions):
                total += discount**t * float(
                    (b[:, z, None] * self.transitions[a] * self.rewards[a]).sum()
                )
                next_joint += (b[:, z] @ self.transitions[a])[:, None] * self.observation_probs
            b = next_joint
        return total


def read_pomdp(path: Path) -> PomdpArrays:
    head: dict[str, list[str]] = {}
    pomdp: PomdpArrays | None = None
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        key, _, rest = line.partition(":")
        if key not in "TOR":
            head[key] = rest.split()
            continue
        if pomdp is None:
            pomdp = PomdpArrays(len(head["actions"]), head["states"], head["observations"])
            pomdp.initial[:] = [float(x) for x in head["start"]]
        *names, last_field = (x.strip() for x in rest.split(":"))
        last_name, number = last_field.split()
        names.append(last_name)
        a = slice(None) if names[0] == "*" else head["actions"].index(names[0])
        if key == "T":
            pomdp.transitions[a, pomdp.states.index(names[1]), pomdp.states.index(names[2])] = (
                float(number)
            )
        elif key == "O":
            pomdp.observation_probs[
                pomdp.states.index(names[1]), pomdp.observations.index(names[2])
            ] = float(number)
        else:
            i, j = (pomdp.states.index(x) for x in names[1:3])
            pomdp.rewards[a, i, j] = float(number)
    assert pomdp is not None
    return pomdp


@pytest.mark.parametrize("initial", [[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
def test_pomdp_file_has_the_returns_of_the_model(tmp_path: Path, initial: list[float]) -> None:
    model = make_small_model(
        initial=initial,
        states=["a\nb # x", "-->", "<c>"],
        allowed=[[True, True], [True, True], [True, False]],
    )
    interop.save_pomdp(model, tmp_path / "m.pomdp")
    pomdp = read_pomdp(tmp_path / "m.pomdp")
    np.testing.assert_allclose(pomdp.transitions.sum(axis=2), 1.0)
    np.testing.assert_allclose(pomdp.observation_probs.sum(axis=1), 1.0)
    policy = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    expected = mmdp.evaluate(model, mmdp.policies.MarkovPolicy(policy, n_actions=2)).mean
    if "start" in pomdp.states:  # one step without reward comes first
        initial_joint = np.zeros((len(pomdp.states), len(pomdp.observations)))
        initial_joint[pomdp.states.index("start"), -1] = 1.0
        extended = np.column_stack([np.vstack([[0, 0, 0], policy]), np.zeros(4, dtype=int)])
        assert pomdp.compute_return(extended, 0.9, initial_joint) == pytest.approx(0.9 * expected)
    else:
        initial_joint = pomdp.initial[:, None] * pomdp.observation_probs
        assert pomdp.compute_return(policy, 0.9, initial_joint) == pytest.approx(expected)


def read_pomdpx(path: Path, model: mmdp.MMDP) -> tuple[Any, ...]:
    root = ElementTree.parse(path).getroot()
    tables: dict[str, list[tuple[list[str], str]]] = {}
    for tag in ("InitialStateBelief", "StateTransitionFunction", "ObsFunction", "RewardFunction"):
        for factor in root.find(tag):  # type: ignore[union-attr]
            tables[factor.findtext("Var") or ""] = [
                ((entry.findtext("Instance") or "").split(), entry[1].text or "")
                for entry in factor.iter("Entry")
            ]
    shape = (model.n_models, model.n_states, model.n_actions, model.n_states)
    p, r = np.zeros(shape), np.zeros(shape)
    for array, name in ((p, "state_1"), (r, "reward")):
        for names, value in tables[name]:
            a, m, s, next_state = (int(x[1:]) for x in names)
            array[m, s, a, next_state] = float(value)
    weights, initial = ([float(x) for x in tables[k][0][1].split()] for k in ("model_0", "state_0"))
    assert tables["model_1"] == [(["*", "-", "-"], "identity")]
    assert all(names[1] == names[2] for names, _ in tables["seen"])
    return p, r, weights, initial, float(root.findtext("Discount") or "")


def test_pomdpx_file_holds_the_model(tmp_path: Path) -> None:
    model = make_small_model(states=["a--b", "-->", "<script>"], actions=["x & y", "z-"])
    interop.save_pomdp(model, tmp_path / "m.pomdpx")
    p, r, weights, initial, discount = read_pomdpx(tmp_path / "m.pomdpx", model)
    restored = mmdp.MMDP(p, next_rewards=r, weights=weights, initial=initial, discount=discount)
    possible = model.transitions > 0
    np.testing.assert_allclose(p[possible], model.transitions[possible])
    assert mmdp.solve(restored, 5).value == pytest.approx(mmdp.solve(model, 5).value)


@pytest.mark.parametrize("n_nodes", [1, 3])
def test_an_agent_earns_the_exact_value_in_gymnasium(n_nodes: int) -> None:
    pytest.importorskip("gymnasium")
    model = make_random_model(8, n_models=2, n_states=3, n_actions=2, horizon=0, discount=0.9)
    controller = make_random_controller(model.problem, 6, n_nodes, 0)
    policy = mmdp.policies.MemoryPolicy.for_model(model, controller)
    exact = mmdp.evaluate(model, policy).returns[1]
    env = mmdp.interop.to_gymnasium(model, 1, horizon=6, seed=0)
    agent = mmdp.interop.Agent(policy.node_policy(0) if n_nodes == 1 else policy)
    totals = []
    for _ in range(400):
        state, _ = env.reset()
        agent.reset()
        total, reward = 0.0, None
        for t in range(6):
            state, reward, _, truncated, _ = env.step(agent(state, reward))
            total += model.discount**t * reward
        assert truncated
        totals.append(total)
    assert abs(np.mean(totals) - exact) < 4 * np.std(totals) / 20
    with pytest.raises(mmdp.InputError, match="the policy ends after 6 steps"):
        agent(state)


def test_an_agent_sees_states_by_number_or_label() -> None:
    model = make_small_model(states=["up", "down", "gone"])
    agent = mmdp.interop.Agent(mmdp.solve(model, 4))
    by_label = [agent(state) for state in ("up", "down")]
    agent.reset()
    assert [agent(state) for state in (0, 1)] == by_label
    for state in ("dwn", -1, 3):
        with pytest.raises(mmdp.InputError, match="the policy knows no state"):
            agent(state)


def test_an_agent_acts_in_many_states_at_once() -> None:
    labels = [f"stock={s}, mode={mode}" for s in range(3) for mode in ("on", "off")]
    policy = mmdp.policies.MarkovPolicy([[0, 1, 2, 3, 4, 5]] * 2, state_labels=labels)
    agent = mmdp.interop.Agent(policy)
    states = [{"stock": 1.9, "mode": "on"}, "stock=0, mode=off", 5]
    assert agent.act(states).tolist() == [4, 1, 5]
    assert [agent(state) for state in states[:2]] == [4, 1]
    memory = mmdp.policies.MemoryPolicy([[[0, 1]]] * 3, [[[[1], [1]]]] * 3)
    with pytest.raises(mmdp.InputError, match="each environment needs an agent"):
        mmdp.interop.Agent(memory).act([0, 0])


@pytest.mark.parametrize("policy_class", ["markov", "stationary"])
def test_an_agent_acts_on_an_array_of_states_as_state_by_state(policy_class: str) -> None:
    model = make_random_model(3, n_models=2, n_states=6, n_actions=4, horizon=0, discount=0.9)
    horizon = math.inf if policy_class == "stationary" else 4
    policy = mmdp.solve(model, horizon, policy_class=policy_class).policy
    agent = mmdp.interop.Agent(policy)
    states = np.random.default_rng(0).integers(6, size=40)
    for t in range(3):
        expected = [policy.act(None, t, s) for s in states.tolist()]
        assert agent.act(states).tolist() == agent.act(states.tolist()).tolist() == expected
        agent(0)
    with pytest.raises(mmdp.InputError, match="the policy knows no state 6"):
        agent.act(np.array([0, 6]))


def test_named_values_go_to_the_nearest_point_of_a_wide_axis() -> None:
    points = np.linspace(-1.0, 1.0, 41)
    labels = [f"x={x:.6g}, mode={mode}" for mode in ("on", "off") for x in points]
    policy = mmdp.policies.StationaryPolicy(np.arange(82), state_labels=labels)
    agent = mmdp.interop.Agent(policy)
    for x in np.random.default_rng(1).uniform(-1, 1, 200).tolist():
        nearest = int(np.abs(points - x).argmin())
        assert agent({"x": x, "mode": "off"}) == 41 + nearest
        assert policy.action(x=x, mode="on") == str(nearest)
    assert agent({"x": 0.025, "mode": "on"}) == 20  # halfway between 0 and 0.05: the lower
    with pytest.raises(mmdp.InputError, match="x must be from -1 to 1, not 1.1"):
        agent({"x": 1.1, "mode": "on"})


@pytest.mark.parametrize("observation", [np.array([0, 1]), np.array([0.3]), 0.3, [0], None])
def test_an_agent_refuses_what_is_not_one_state(observation: Any) -> None:
    agent = mmdp.interop.Agent(mmdp.solve(mmdp.domains.two_models().train, 5))
    with pytest.raises(mmdp.InputError, match="give its number, from 0, or its label"):
        agent(observation)
    assert agent(np.int64(0)) == mmdp.interop.Agent(agent.policy)(0.0)


def test_zero_discount_with_a_first_step_is_refused(tmp_path: Path) -> None:
    model = make_small_model(initial=[0.5, 0.5, 0.0], discount=0.0)
    with pytest.raises(mmdp.InputError, match=r"at discount 0 nothing counts after it"):
        interop.save_pomdp(model, tmp_path / "a.pomdp")
    assert not list(tmp_path.iterdir())
