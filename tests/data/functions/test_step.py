"""from_step: equal to tables made one entry at a time, whatever the axes, events and samples."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.timing import progress_line
from mmdp.data.functions.axes import Axes, format_row
from tests.data.functions.inputs import Inputs

MODES = ["low", "high"]


def enumerate_tables(
    step: Any,
    states: dict[str, Any],
    actions: dict[str, Any],
    events: dict[str, Any],
    event_probs: Any,
    samples: list[dict[str, float]],
    *,
    allowed: Any = None,
    is_terminal: Any = None,
    times: Any = (None,),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(T, M, S, A, S') transitions, (T, M, S, A) rewards, (S, A) mask: one entry at a time.

    ``event_probs(sample, state, action, time)`` has one number per combination of events here.
    """

    def list_combinations(axes: dict[str, Any]) -> list[dict[str, Any]]:
        values = [x.values if isinstance(x, mmdp.Grid) else list(x) for x in axes.values()]
        return [dict(zip(axes, x, strict=True)) for x in itertools.product(*values)]

    def compute_corner_weight(values: dict[str, Any], point: dict[str, Any]) -> float:
        weight = 1.0
        for name, axis in states.items():
            if isinstance(axis, mmdp.Grid):
                width = (axis.high - axis.low) / (axis.n_points - 1)
                weight *= max(0.0, 1 - abs(values[name] - point[name]) / width)
            else:
                weight *= values[name] == point[name]
        return weight

    def to_single_row(fields: dict[str, Any]) -> dict[str, np.ndarray]:
        return {k: np.array([v]) for k, v in fields.items()}

    S, A, W = list_combinations(states), list_combinations(actions), list_combinations(events)
    size = len(S) + (is_terminal is not None)
    p = np.zeros((len(times), len(samples), size, len(A), size))
    r, mask = np.zeros(p.shape[:-1]), np.ones((size, len(A)), bool)
    terminal_mask = [is_terminal is not None and bool(is_terminal(to_single_row(x))[0]) for x in S]
    for (s, x), (a, y) in itertools.product(enumerate(S), enumerate(A)):
        mask[s, a] = (
            terminal_mask[s]
            or allowed is None
            or bool(allowed(to_single_row(x), to_single_row(y))[0])
        )
    for (t, time), (m, sample) in itertools.product(enumerate(times), enumerate(samples)):
        if is_terminal is not None:
            p[t, m, -1, :, -1] = 1
        for (s, x), (a, y) in itertools.product(enumerate(S), enumerate(A)):
            if terminal_mask[s]:
                p[t, m, s, a, -1] = 1
                continue
            if not mask[s, a]:
                continue
            probs = event_probs(sample, x, y, time)
            for w, z in enumerate(W):
                next_values, reward = step(
                    to_single_row(x), to_single_row(y), to_single_row(z), sample, time
                )
                next_values = {
                    name: np.asarray(v).reshape(-1)[0] for name, v in next_values.items()
                }
                r[t, m, s, a] += probs[w] * np.asarray(reward).reshape(-1)[0]
                if is_terminal is not None and is_terminal(to_single_row(next_values))[0]:
                    p[t, m, s, a, -1] += probs[w]
                    continue
                for next_state, grid_point in enumerate(S):
                    p[t, m, s, a, next_state] += probs[w] * compute_corner_weight(
                        next_values, grid_point
                    )
    return p, r, mask


def assert_same_model(model: mmdp.MMDP, p: np.ndarray, r: np.ndarray, mask: np.ndarray) -> None:
    p, r = (p, r) if model.horizon else (p[0], r[0])
    assert (model.allowed == mask).all()
    mask_by_entry = np.broadcast_to(mask, p.shape[:-1])
    np.testing.assert_allclose(model.transitions[mask_by_entry], p[mask_by_entry], atol=1e-12)
    np.testing.assert_allclose(model.rewards, r, atol=1e-12)


class RandomStepProblem:
    """A random problem with two axes of states, one a grid if asked, and two events."""

    def __init__(
        self,
        seed: int,
        *,
        grid: bool = False,
        by_sample: bool = False,
        by_state: bool = False,
        timed: bool = False,
        masked: bool = False,
        has_terminal: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.by_sample, self.by_state, self.timed = by_sample, by_state, timed
        self.states = {"x": mmdp.Grid(0, 3, 4) if grid else range(4), "mode": MODES}
        self.actions, self.events = {"u": range(3)}, {"d": range(3), "e": ["no", "yes"]}
        self.samples = {"q": rng.uniform(0.1, 0.9, 4), "c": rng.uniform(0, 1, 4)}
        self.times = list(range(3)) if timed else [None]
        self.next_x = (
            rng.uniform(0, 3, (4, 2, 3, 3, 2)) if grid else rng.integers(0, 4, (4, 2, 3, 3, 2))
        )
        self.payoffs = rng.normal(size=(4, 2, 3, 3, 2))
        self.allowed_mask = rng.random((4, 2, 3)) < 0.6
        self.allowed_mask[..., 0] = True
        self.allowed = self._is_allowed if masked else None
        self.is_terminal = (lambda state: state["x"] > 2.5) if has_terminal else None

    def _find_indices(self, state: Inputs, action: Inputs, event: Inputs) -> tuple[Any, ...]:
        x, mode = np.rint(state["x"]).astype(int), (state["mode"] == "high").astype(int)
        return x, mode, action["u"], event["d"], (event["e"] == "yes").astype(int)

    def _is_allowed(self, state: Inputs, action: Inputs) -> Any:
        x, mode = np.rint(state["x"]).astype(int), (state["mode"] == "high").astype(int)
        return self.allowed_mask[x, mode, action["u"]]

    def compute_step(
        self, state: Inputs, action: Inputs, event: Inputs, sample: Inputs, time: Any
    ) -> Any:
        indices = self._find_indices(state, action, event)
        mode = np.where(event["e"] == "yes", "high", state["mode"])
        next_x = self.next_x[indices]
        if self.by_sample:
            next_x = np.where(sample["q"] > 0.5, next_x, 3 - next_x)
        reward = self.payoffs[indices] + (0 if time is None else time * sample["c"])
        return {"x": next_x, "mode": mode}, reward

    @property
    def step(self) -> Any:
        if self.timed:
            return lambda state, action, event, sample, time: self.compute_step(
                state, action, event, sample, time
            )
        if self.by_sample:
            return lambda state, action, event, sample: self.compute_step(
                state, action, event, sample, None
            )
        return lambda state, action, event: self.compute_step(state, action, event, {}, None)

    def compute_probs(self, sample: Inputs, x: Any) -> tuple[Any, Any]:
        q = sample["q"] * (1 + x * self.by_state) / 4
        d = np.concatenate([q / 2, 1 - q, q / 2], axis=-1)
        e = np.concatenate([1 - q / 3, q / 3], axis=-1)
        return d, e

    @property
    def event_probs(self) -> Any:
        def compute_independent_probs(sample: Inputs) -> Any:
            d, e = self.compute_probs(sample, np.zeros(1))
            return {"e": e, "d": d}

        def compute_state_probs(sample: Inputs, state: Inputs) -> Any:
            d, e = self.compute_probs(sample, state["x"])
            return d[:, :, None] * e[:, None, :]

        return compute_state_probs if self.by_state else compute_independent_probs

    def compute_joint_probs(self, sample: Inputs, x: Any, y: Any, time: Any) -> Any:
        d, e = self.compute_probs(sample, np.array([float(x["x"])]))
        return np.outer(d, e).reshape(-1)

    def make_model(self) -> mmdp.MMDP:
        return mmdp.from_step(
            self.step,
            states=self.states,
            actions=self.actions,
            events=self.events,
            event_probs=self.event_probs,
            samples=self.samples,
            discount=0.9,
            allowed=self.allowed,
            is_terminal=self.is_terminal,
            time_labels=3 if self.timed else None,
        )

    def enumerate_tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        samples = [{k: v[i] for k, v in self.samples.items()} for i in range(4)]
        return enumerate_tables(
            self.compute_step,
            self.states,
            self.actions,
            self.events,
            self.compute_joint_probs,
            samples,
            allowed=self.allowed,
            is_terminal=self.is_terminal,
            times=self.times,
        )


TRAITS = ("grid", "by_sample", "by_state", "timed", "masked", "has_terminal")


@pytest.mark.parametrize(
    "traits", [x for n in (0, 1, 2) for x in itertools.combinations(TRAITS, n)] + [TRAITS]
)
def test_a_model_from_a_step_equals_tables_made_one_entry_at_a_time(
    traits: tuple[str, ...],
) -> None:
    problem = RandomStepProblem(len("".join(traits)), **dict.fromkeys(traits, True))
    model = problem.make_model()
    assert_same_model(model, *problem.enumerate_tables())
    assert isinstance(model.problem.storage, ExogenousEvents) == (not problem.by_sample)


def test_shared_and_stored_forms_have_the_same_solution() -> None:
    model = RandomStepProblem(7, grid=True, masked=True, has_terminal=True).make_model()
    stored_model = mmdp.MMDP(
        model.transitions,
        model.rewards,
        discount=0.9,
        allowed=model.allowed,
        initial=model.initial,
        states=model.state_labels,
    )
    event_solution, table_solution = mmdp.solve(model, 6), mmdp.solve(stored_model, 6)
    assert event_solution.value == pytest.approx(table_solution.value, rel=1e-12)
    np.testing.assert_array_equal(event_solution.policy.table, table_solution.policy.table)


# ---------------------------------------------------------------------- what is shared
def make_line(samples: dict[str, list[float]], step: Any, **options: Any) -> mmdp.MMDP:
    """A line of four places."""
    return mmdp.from_step(
        step,
        states={"x": range(4)},
        actions={"u": [0, 1]},
        **{
            "events": {"slip": [False, True]},
            "event_probs": lambda sample: [1 - sample["p"], sample["p"]],
            "samples": samples,
            **options,
        },
    )


def step_line(state: Inputs, action: Inputs, event: Inputs) -> Any:
    return {"x": np.minimum(state["x"] + action["u"] * ~event["slip"], 3)}, state["x"]


def test_a_step_independent_of_samples_is_called_once() -> None:
    rows: list[int] = []

    def step_recording_rows(state: Inputs, action: Inputs, event: Inputs, sample: Inputs) -> Any:
        rows.append(len(state["x"]))
        return step_line(state, action, event)

    model = make_line({"p": [0.1, 0.2, 0.3]}, step_recording_rows)
    assert isinstance(model.problem.storage, ExogenousEvents)
    assert sum(x == 16 for x in rows) == 1


def test_common_next_states_stay_shared_while_rewards_differ() -> None:
    def step_with_price(state: Inputs, action: Inputs, event: Inputs, sample: Inputs) -> Any:
        next_values, reward = step_line(state, action, event)
        return next_values, reward * sample["price"]

    model = make_line({"p": [0.1, 0.2], "price": [1.0, 3.0]}, step_with_price)
    assert isinstance(model.problem.storage, ExogenousEvents)
    np.testing.assert_allclose(model.rewards[:, :, 0], [[0, 1, 2, 3], [0, 3, 6, 9]])


def test_next_states_that_differ_are_stored() -> None:
    def step_with_jump(state: Inputs, action: Inputs, event: Inputs, sample: Inputs) -> Any:
        return {"x": np.minimum(state["x"] + sample["jump"] * action["u"], 3)}, 0.0

    model = make_line({"p": [0.1, 0.2], "jump": [1, 2]}, step_with_jump)
    assert not isinstance(model.problem.storage, ExogenousEvents)
    np.testing.assert_array_equal(model.transitions[:, 0, 1].argmax(axis=1), [1, 2])


def test_equal_event_probs_are_stored_once() -> None:
    def compute_slip_probs(sample: Inputs, state: Inputs) -> Any:
        p = np.where(state["x"] > 1, sample["p"], 0.0)
        return np.concatenate([1 - p, p], axis=1)

    model = make_line({"p": [0.1, 0.2]}, step_line, event_probs=compute_slip_probs)
    storage = model.problem.storage
    assert isinstance(storage, ExogenousEvents)
    assert storage.probs.shape == (1, 2, 2, 2)
    np.testing.assert_allclose(model.transitions[1, :, 1].max(axis=1), [1, 1, 0.8, 1])


def test_without_events_a_step_is_deterministic() -> None:
    model = mmdp.from_step(
        lambda state, action: ({"x": state["x"] // 2}, 1.0),
        states={"x": range(5)},
        actions={"go": ["on"]},
    )
    np.testing.assert_array_equal(model.transitions[0, :, 0].argmax(axis=1), [0, 0, 1, 1, 2])
    assert model.action_labels == ("go=on",)


# ---------------------------------------------------------------------- grids and labels
def test_interpolation_weights_sum_to_one_and_keep_multilinear_functions() -> None:
    axes = Axes.parse({"x": mmdp.Grid(-1, 2, 7), "k": [0, 5], "y": mmdp.Grid(0, 1, 3)}, "states")
    rng = np.random.default_rng(0)
    values = {"x": rng.uniform(-1, 2, 50), "k": rng.choice([0, 5], 50), "y": rng.random(50)}
    values["x"][:2], values["y"][:2] = [-1, 2], [1, 0]
    ids, weights = axes.find_corners(axes.locate(values))
    assert weights.shape == (50, 4)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)

    def multilinear(v: Any) -> Any:
        return 2 + 3 * v["x"] - v["y"] + 4 * v["x"] * v["y"] + v["k"] ** 2 * (1 + v["y"])

    on_points = multilinear(axes.values_at(np.arange(axes.size)))
    np.testing.assert_allclose(
        (on_points[ids] * weights).sum(axis=1), multilinear(values), rtol=1e-12
    )


def test_labels_name_every_axis() -> None:
    axes = Axes.parse({"stock": range(2), "level": mmdp.Grid(0, 1, 3), "mode": MODES}, "states")
    assert axes.make_labels()[3] == "stock=0, level=0.5, mode=high"
    values = axes.all_values
    assert [format_row(values, i) for i in range(axes.size)] == axes.make_labels()


def test_numbers_that_are_close_keep_their_digits_in_labels() -> None:
    axes = Axes.parse({"x": [1.00000001, 1.00000002]}, "states")
    assert axes.make_labels() == ["x=1.00000001", "x=1.00000002"]


# ---------------------------------------------------------------------- first and last states
def make_simple(**options: Any) -> mmdp.MMDP:
    return mmdp.from_step(
        lambda state, action: ({"x": state["x"], "y": state["y"]}, 0.0),
        states={"x": mmdp.Grid(0, 1, 3), "y": range(2)},
        actions={"u": [0]},
        **options,
    )


def test_an_initial_state_between_points_is_interpolated() -> None:
    model = make_simple(initial={"x": 0.375, "y": {0: 0.25, 1: 0.75}})
    np.testing.assert_allclose(model.initial, [0.0625, 0.1875, 0.1875, 0.5625, 0, 0])


def test_sampled_initial_states_are_interpolated() -> None:
    model = mmdp.from_step(
        lambda state, action: (dict(state), 0.0),
        states={"x": mmdp.Grid(0, 1, 3), "y": range(2)},
        actions={"u": [0]},
        initial={"x": [0.25, 1.0], "y": [1, 0]},
    )
    np.testing.assert_allclose(model.initial.reshape(3, 2), [[0, 0.25], [0, 0.25], [0.5, 0]])


def test_a_grid_that_wraps_takes_every_number() -> None:
    def step_turn(state: Inputs, action: Inputs) -> Any:
        return {"angle": state["angle"] + action["by"]}, np.cos(state["angle"] * np.pi / 180)

    model = mmdp.from_step(
        step_turn,
        states={"angle": mmdp.Grid(0, 360, 5, wraps=True)},
        actions={"by": [-90.0, 45.0, 720.0]},
        initial={"angle": 450},
    )
    assert model.initial.tolist() == [0, 1, 0, 0, 0]
    p = model.transitions[0]
    assert p[0, 0].tolist() == [0, 0, 0, 1, 0]
    assert p[3, 1].tolist() == [0, 0, 0, 0.5, 0.5]  # 315 is between 270 and 360
    for s in range(4):
        assert p[s, 2, s] == 1  # twice round
    values = mmdp.evaluate(
        model.replace(initial=np.eye(5)[0]), mmdp.policies.MarkovPolicy([[1] * 5] * 3)
    )
    evaluation = mmdp.evaluate(
        model.replace(initial=np.eye(5)[4]), mmdp.policies.MarkovPolicy([[1] * 5] * 3)
    )
    assert values.mean == pytest.approx(evaluation.mean)  # 360 is 0 again


def test_initial_may_be_a_function_of_the_state() -> None:
    model = make_simple(initial=lambda state: (state["x"] <= 0.5) & (state["y"] == 1))
    np.testing.assert_allclose(model.initial, [0, 0.5, 0, 0.5, 0, 0])


def test_initial_may_depend_on_the_sample() -> None:
    samples = {"x": [0.0, 0.25], "p": [0.5, 1.0]}
    initials = {
        "a value": lambda sample: {"x": sample["x"], "y": {0: sample["p"], 1: 1 - sample["p"]}},
        "weights": lambda state, sample: (
            np.maximum(1 - 2 * np.abs(state["x"] - sample["x"]), 0)
            * np.where(state["y"] == 0, sample["p"], 1 - sample["p"])
        ),
    }
    for initial in initials.values():
        model = make_simple(samples=samples, initial=initial)
        expected = [[0.5, 0.5, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0, 0]]
        np.testing.assert_allclose(model.initial, expected)
    common_model = make_simple(samples=samples, initial=lambda state, sample: state["y"])
    np.testing.assert_allclose(
        common_model.initial, [0, 1 / 3] * 3
    )  # which does not read the sample


def test_terminal_values_may_depend_on_the_sample() -> None:
    model = make_simple(
        samples={"price": [1.0, 2.0]},
        terminal_reward=lambda state, sample: state["x"] * sample["price"],
        is_terminal=lambda state: state["y"] == 1,
    )
    np.testing.assert_allclose(model.terminal[1], [0, 0, 1, 0, 2, 0, 0])
    assert model.state_labels[-1] == "ended"


def test_samples_become_parameters_of_the_model() -> None:
    model = make_simple(samples={"price": [1.0, 2.0]}, weights=[0.25, 0.75], name="shop")
    assert model.parameters["price"].tolist() == [1, 2]
    assert model.weights.tolist() == [0.25, 0.75]
    assert model.name == "shop"


# ---------------------------------------------------------------------- progress
def test_a_long_call_shows_progress() -> None:
    shown = []

    def step(state: Inputs, action: Inputs, sample: Inputs) -> Any:
        shown.append(progress_line.current_call.activity)
        return {"x": state["x"]}, sample["gain"]

    step.rows_per_call = 2  # type: ignore[attr-defined]
    axes: Any = {"states": {"x": range(3)}, "actions": {"u": [0, 1]}}
    mmdp.from_step(step, **axes, samples={"gain": [1.0, 2.0]})
    # 2 samples of 3 states and 2 actions, 2 rows at a time; at first no sample was read
    counts = [(0, 6), *((n, 12) for n in range(2, 12, 2))]
    assert list(dict.fromkeys(shown)) == [f"step, {n} of {total} rows" for n, total in counts]


def test_time_labels_of_the_model() -> None:
    def make_model(**options: Any) -> mmdp.MMDP:
        axes: Any = {"states": {"x": range(2)}, "actions": {"a": range(2)}, "initial": {"x": 0}}
        return mmdp.from_step(options.pop("step"), **axes, **options)

    def step_paid(state: Inputs, action: Inputs, time: Any) -> Any:
        return {"x": action["a"]}, 1.0 * time

    ages = (x for x in (40, 45, 50))
    model = make_model(step=step_paid, time_labels={"age": ages})
    assert model.time_labels.describe_range(0, 2) == "age 40 to 50"
    assert model.rewards[:, 0, 0, 0].tolist() == [40.0, 45.0, 50.0]
    assert make_model(step=step_paid, time_labels=range(3)).time_labels == ("time", ())
    assert make_model(step=step_paid, time_labels=[2, 3]).time_labels.get_labels(2) == ["2", "3"]
    stationary_model = make_model(
        step=lambda state, action: ({"x": action["a"]}, 0.0), time_labels={"week": range(3)}
    )
    assert (stationary_model.horizon, stationary_model.time_labels.describe_range(1)) == (
        None,
        "week 1",
    )
