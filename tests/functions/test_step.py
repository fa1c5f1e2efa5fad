"""from_step: equal to tables made one entry at a time, whatever the axes, events and draws."""

from __future__ import annotations

import io
import itertools
import re
import sys
from typing import Any

import numpy as np
import pytest

import mmdp
from mmdp import clock
from mmdp.functions.axes import Axes
from mmdp.kernels.events import Events

MODES = ["low", "high"]


def brute(
    step: Any, states: dict[str, Any], actions: dict[str, Any], events: dict[str, Any],
    chance: Any, draws: list[dict[str, float]], *, allowed: Any = None, until: Any = None,
    times: Any = (None,),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """(T, M, S, A, S') transitions, (T, M, S, A) rewards, (S, A) mask: one entry at a time.

    ``chance(draw, state, action, time)`` has one number per combination of events here.
    """

    def combos(axes: dict[str, Any]) -> list[dict[str, Any]]:
        values = [x.values if isinstance(x, mmdp.Grid) else list(x) for x in axes.values()]
        return [dict(zip(axes, x, strict=True)) for x in itertools.product(*values)]

    def share(here: dict[str, Any], there: dict[str, Any]) -> float:
        found = 1.0
        for name, axis in states.items():
            if isinstance(axis, mmdp.Grid):
                width = (axis.high - axis.low) / (axis.points - 1)
                found *= max(0.0, 1 - abs(here[name] - there[name]) / width)
            else:
                found *= here[name] == there[name]
        return found

    def one(x: dict[str, Any]) -> dict[str, np.ndarray]:
        return {k: np.array([v]) for k, v in x.items()}

    S, A, W = combos(states), combos(actions), combos(events)
    size = len(S) + (until is not None)
    p = np.zeros((len(times), len(draws), size, len(A), size))
    r, mask = np.zeros(p.shape[:-1]), np.ones((size, len(A)), bool)
    over = [until is not None and bool(until(one(x))[0]) for x in S]
    for (s, x), (a, y) in itertools.product(enumerate(S), enumerate(A)):
        mask[s, a] = over[s] or allowed is None or bool(allowed(one(x), one(y))[0])
    for (t, time), (m, draw) in itertools.product(enumerate(times), enumerate(draws)):
        if until is not None:
            p[t, m, -1, :, -1] = 1
        for (s, x), (a, y) in itertools.product(enumerate(S), enumerate(A)):
            if over[s]:
                p[t, m, s, a, -1] = 1
                continue
            if not mask[s, a]:
                continue
            k = chance(draw, x, y, time)
            for w, z in enumerate(W):
                after, reward = step(one(x), one(y), one(z), draw, time)
                after = {name: np.asarray(v).reshape(-1)[0] for name, v in after.items()}
                r[t, m, s, a] += k[w] * np.asarray(reward).reshape(-1)[0]
                if until is not None and until(one(after))[0]:
                    p[t, m, s, a, -1] += k[w]
                    continue
                for to, there in enumerate(S):
                    p[t, m, s, a, to] += k[w] * share(after, there)
    return p, r, mask


def same(model: mmdp.MMDP, p: np.ndarray, r: np.ndarray, mask: np.ndarray) -> None:
    p, r = (p, r) if model.horizon else (p[0], r[0])
    assert (model.allowed == mask).all()
    where = np.broadcast_to(mask, p.shape[:-1])
    np.testing.assert_allclose(model.transitions[where], p[where], atol=1e-12)
    np.testing.assert_allclose(model.rewards, r, atol=1e-12)


class Random:
    """A random problem with two axes of states, one a grid if asked, and two events."""

    def __init__(
        self, seed: int, *, grid: bool = False, by_draw: bool = False, by_state: bool = False,
        timed: bool = False, masked: bool = False, ends: bool = False,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.by_draw, self.by_state, self.timed = by_draw, by_state, timed
        self.states = {"x": mmdp.Grid(0, 3, 4) if grid else range(4), "mode": MODES}
        self.actions, self.events = {"u": range(3)}, {"d": range(3), "e": ["no", "yes"]}
        self.draws = {"q": rng.uniform(0.1, 0.9, 4), "c": rng.uniform(0, 1, 4)}
        self.times = list(range(3)) if timed else [None]
        self.jump = (
            rng.uniform(0, 3, (4, 2, 3, 3, 2)) if grid else rng.integers(0, 4, (4, 2, 3, 3, 2))
        )
        self.pay = rng.normal(size=(4, 2, 3, 3, 2))
        self.open = rng.random((4, 2, 3)) < 0.6
        self.open[..., 0] = True
        self.allowed = self._allowed if masked else None
        self.until = (lambda state: state["x"] > 2.5) if ends else None

    def _place(self, state: Any, action: Any, event: Any) -> tuple[Any, ...]:
        x, mode = np.rint(state["x"]).astype(int), (state["mode"] == "high").astype(int)
        return x, mode, action["u"], event["d"], (event["e"] == "yes").astype(int)

    def _allowed(self, state: Any, action: Any) -> Any:
        x, mode = np.rint(state["x"]).astype(int), (state["mode"] == "high").astype(int)
        return self.open[x, mode, action["u"]]

    def run(self, state: Any, action: Any, event: Any, draw: Any, time: Any) -> Any:
        at = self._place(state, action, event)
        mode = np.where(event["e"] == "yes", "high", state["mode"])
        jump = self.jump[at]
        if self.by_draw:
            jump = np.where(draw["q"] > 0.5, jump, 3 - jump)
        paid = self.pay[at] + (0 if time is None else time * draw["c"])
        return {"x": jump, "mode": mode}, paid

    @property
    def step(self) -> Any:
        if self.timed:
            return lambda state, action, event, draw, time: self.run(
                state, action, event, draw, time
            )
        if self.by_draw:
            return lambda state, action, event, draw: self.run(state, action, event, draw, None)
        return lambda state, action, event: self.run(state, action, event, {}, None)

    def shares(self, draw: Any, x: Any) -> tuple[Any, Any]:
        q = draw["q"] * (1 + x * self.by_state) / 4
        d = np.concatenate([q / 2, 1 - q, q / 2], axis=-1)
        e = np.concatenate([1 - q / 3, q / 3], axis=-1)
        return d, e

    @property
    def chance(self) -> Any:
        def independent(draw: Any) -> Any:
            d, e = self.shares(draw, np.zeros(1))
            return {"e": e, "d": d}

        def by_state(draw: Any, state: Any) -> Any:
            d, e = self.shares(draw, state["x"])
            return d[:, :, None] * e[:, None, :]

        return by_state if self.by_state else independent

    def one_chance(self, draw: Any, x: Any, y: Any, time: Any) -> Any:
        d, e = self.shares(draw, np.array([float(x["x"])]))
        return np.outer(d, e).reshape(-1)

    def model(self) -> mmdp.MMDP:
        return mmdp.from_step(
            self.step, states=self.states, actions=self.actions, events=self.events,
            chance=self.chance, draws=self.draws, discount=0.9, allowed=self.allowed,
            until=self.until, times=3 if self.timed else None,
        )  # fmt: skip

    def brute(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        draws = [{k: v[i] for k, v in self.draws.items()} for i in range(4)]
        return brute(
            self.run, self.states, self.actions, self.events, self.one_chance, draws,
            allowed=self.allowed, until=self.until, times=self.times,
        )  # fmt: skip


TRAITS = ("grid", "by_draw", "by_state", "timed", "masked", "ends")


@pytest.mark.parametrize("traits", [x for n in (0, 1, 2) for x in itertools.combinations(TRAITS, n)]
                         + [TRAITS])  # fmt: skip
def test_a_model_from_a_step_equals_tables_made_one_entry_at_a_time(
    traits: tuple[str, ...],
) -> None:
    problem = Random(len("".join(traits)), **dict.fromkeys(traits, True))
    model = problem.model()
    same(model, *problem.brute())
    assert isinstance(model.problem.storage, Events) == (not problem.by_draw)


def test_shared_and_stored_forms_have_the_same_solution() -> None:
    model = Random(7, grid=True, masked=True, ends=True).model()
    stored = mmdp.MMDP(
        model.transitions, model.rewards, discount=0.9, allowed=model.allowed,
        initial=model.initial,
        states=model.state_labels,
    )  # fmt: skip
    shared, tables = mmdp.solve(model, 6), mmdp.solve(stored, 6)
    assert shared.value == pytest.approx(tables.value, rel=1e-12)
    np.testing.assert_array_equal(shared.policy.table, tables.policy.table)


# ---------------------------------------------------------------------- what is shared
def line(draws: dict[str, list[float]], step: Any, **more: Any) -> mmdp.MMDP:
    """A line of four places."""
    return mmdp.from_step(
        step, states={"x": range(4)}, actions={"u": [0, 1]},
        **{"events": {"slip": [False, True]}, "chance": lambda draw: [1 - draw["p"], draw["p"]],
           "draws": draws, **more},
    )  # fmt: skip


def move(state: Any, action: Any, event: Any) -> Any:
    return {"x": np.minimum(state["x"] + action["u"] * ~event["slip"], 3)}, state["x"]


def test_a_step_that_reads_no_draw_is_called_once_for_all_draws() -> None:
    rows: list[int] = []

    def watched(state: Any, action: Any, event: Any, draw: Any) -> Any:
        rows.append(len(state["x"]))
        return move(state, action, event)

    model = line({"p": [0.1, 0.2, 0.3]}, watched)
    assert isinstance(model.problem.storage, Events)
    assert sum(x == 16 for x in rows) == 1


def test_next_states_that_agree_over_draws_stay_shared_while_rewards_differ() -> None:
    def priced(state: Any, action: Any, event: Any, draw: Any) -> Any:
        after, reward = move(state, action, event)
        return after, reward * draw["price"]

    model = line({"p": [0.1, 0.2], "price": [1.0, 3.0]}, priced)
    assert isinstance(model.problem.storage, Events)
    np.testing.assert_allclose(model.rewards[:, :, 0], [[0, 1, 2, 3], [0, 3, 6, 9]])


def test_next_states_that_differ_are_stored() -> None:
    def jumps(state: Any, action: Any, event: Any, draw: Any) -> Any:
        return {"x": np.minimum(state["x"] + draw["jump"] * action["u"], 3)}, 0.0

    model = line({"p": [0.1, 0.2], "jump": [1, 2]}, jumps)
    assert not isinstance(model.problem.storage, Events)
    np.testing.assert_array_equal(model.transitions[:, 0, 1].argmax(axis=1), [1, 2])


def test_chances_that_few_rows_tell_apart_are_stored_once() -> None:
    def calm(draw: Any, state: Any) -> Any:
        p = np.where(state["x"] > 1, draw["p"], 0.0)
        return np.concatenate([1 - p, p], axis=1)

    model = line({"p": [0.1, 0.2]}, move, chance=calm)
    storage = model.problem.storage
    assert isinstance(storage, Events)
    assert storage.chance.shape == (1, 2, 2, 2)
    np.testing.assert_allclose(model.transitions[1, :, 1].max(axis=1), [1, 1, 0.8, 1])


def test_without_events_a_step_is_deterministic() -> None:
    model = mmdp.from_step(
        lambda state, action: ({"x": state["x"] // 2}, 1.0), states={"x": range(5)},
        actions={"go": ["on"]},
    )  # fmt: skip
    np.testing.assert_array_equal(model.transitions[0, :, 0].argmax(axis=1), [0, 0, 1, 1, 2])
    assert model.action_labels == ("go=on",)


# ---------------------------------------------------------------------- grids and labels
def test_interpolation_weights_sum_to_one_and_keep_multilinear_functions() -> None:
    axes = Axes.read({"x": mmdp.Grid(-1, 2, 7), "k": [0, 5], "y": mmdp.Grid(0, 1, 3)}, "states")
    rng = np.random.default_rng(0)
    values = {"x": rng.uniform(-1, 2, 50), "k": rng.choice([0, 5], 50), "y": rng.random(50)}
    values["x"][:2], values["y"][:2] = [-1, 2], [1, 0]
    ids, weights = axes.place(values)
    assert weights is not None
    assert weights.shape == (50, 4)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)

    def f(v: Any) -> Any:
        return 2 + 3 * v["x"] - v["y"] + 4 * v["x"] * v["y"] + v["k"] ** 2 * (1 + v["y"])

    on_points = f(axes.at(np.arange(axes.size)))
    np.testing.assert_allclose((on_points[ids] * weights).sum(axis=1), f(values), rtol=1e-12)


def test_labels_name_every_axis() -> None:
    axes = Axes.read({"stock": range(2), "level": mmdp.Grid(0, 1, 3), "mode": MODES}, "states")
    assert axes.labels()[3] == "stock=0, level=0.5, mode=high"
    assert [axes.label(i) for i in range(axes.size)] == axes.labels()


def test_numbers_that_are_close_keep_their_digits_in_labels() -> None:
    axes = Axes.read({"x": [1.00000001, 1.00000002]}, "states")
    assert axes.labels() == ["x=1.00000001", "x=1.00000002"]


# ---------------------------------------------------------------------- first and last states
def simple(**more: Any) -> mmdp.MMDP:
    return mmdp.from_step(
        lambda state, action: ({"x": state["x"], "y": state["y"]}, 0.0),
        states={"x": mmdp.Grid(0, 1, 3), "y": range(2)}, actions={"u": [0]}, **more,
    )  # fmt: skip


def test_a_start_between_points_is_shared_by_them() -> None:
    model = simple(initial={"x": 0.375, "y": {0: 0.25, 1: 0.75}})
    np.testing.assert_allclose(model.initial, [0.0625, 0.1875, 0.1875, 0.5625, 0, 0])


def test_a_sample_of_starts_is_shared_by_the_points_around_them() -> None:
    model = mmdp.from_step(
        lambda state, action: (dict(state), 0.0), states={"x": mmdp.Grid(0, 1, 3), "y": range(2)},
        actions={"u": [0]}, initial={"x": [0.25, 1.0], "y": [1, 0]},
    )  # fmt: skip
    np.testing.assert_allclose(model.initial.reshape(3, 2), [[0, 0.25], [0, 0.25], [0.5, 0]])


def test_a_grid_that_wraps_has_a_place_for_every_number() -> None:
    def turn(state: Any, action: Any) -> Any:
        return {"angle": state["angle"] + action["by"]}, np.cos(state["angle"] * np.pi / 180)

    model = mmdp.from_step(
        turn, states={"angle": mmdp.Grid(0, 360, 5, wraps=True)},
        actions={"by": [-90.0, 45.0, 720.0]}, initial={"angle": 450},
    )  # fmt: skip
    assert model.initial.tolist() == [0, 1, 0, 0, 0]
    p = model.transitions[0]
    assert p[0, 0].tolist() == [0, 0, 0, 1, 0]
    assert p[3, 1].tolist() == [0, 0, 0, 0.5, 0.5]  # 315 is between 270 and 360
    for s in range(4):
        assert p[s, 2, s] == 1  # twice round
    values = mmdp.evaluate(mmdp.MarkovPolicy([[1] * 5] * 3), model.replace(initial=np.eye(5)[0]))
    again = mmdp.evaluate(mmdp.MarkovPolicy([[1] * 5] * 3), model.replace(initial=np.eye(5)[4]))
    assert values.mean == pytest.approx(again.mean)  # 360 is 0 again


def test_a_start_may_be_a_function_of_the_state() -> None:
    model = simple(initial=lambda state: (state["x"] <= 0.5) & (state["y"] == 1))
    np.testing.assert_allclose(model.initial, [0, 0.5, 0, 0.5, 0, 0])


def test_models_may_begin_apart_by_their_draws() -> None:
    draws = {"x": [0.0, 0.25], "p": [0.5, 1.0]}
    found = {
        "a value": lambda draw: {"x": draw["x"], "y": {0: draw["p"], 1: 1 - draw["p"]}},
        "weights": lambda state, draw: (
            np.maximum(1 - 2 * np.abs(state["x"] - draw["x"]), 0)
            * np.where(state["y"] == 0, draw["p"], 1 - draw["p"])
        ),
    }
    for initial in found.values():
        model = simple(draws=draws, initial=initial)
        want = [[0.5, 0.5, 0, 0, 0, 0], [0.5, 0, 0.5, 0, 0, 0]]
        np.testing.assert_allclose(model.initial, want)
    alike = simple(draws=draws, initial=lambda state, draw: state["y"])
    np.testing.assert_allclose(alike.initial, [0, 1 / 3] * 3)  # which does not read the draw


def test_values_of_ending_may_depend_on_the_draw() -> None:
    model = simple(
        draws={"price": [1.0, 2.0]}, terminal=lambda state, draw: state["x"] * draw["price"],
        until=lambda state: state["y"] == 1,
    )  # fmt: skip
    np.testing.assert_allclose(model.terminal[1], [0, 0, 1, 0, 2, 0, 0])
    assert model.state_labels[-1] == "ended"


def test_draws_are_kept_as_parameters_and_fields_reach_the_model() -> None:
    model = simple(draws={"price": [1.0, 2.0]}, weights=[0.25, 0.75], name="shop")
    assert model.parameters["price"].tolist() == [1, 2]
    assert model.weights.tolist() == [0.25, 0.75]
    assert model.name == "shop"


# ---------------------------------------------------------------------- progress
class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_call_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: Any, action: Any, draw: Any) -> Any:
        return {"x": state["x"]}, draw["gain"]

    step.rows = 2  # type: ignore[attr-defined]
    given: Any = {
        "states": {"x": range(3)}, "actions": {"u": [0, 1]}, "draws": {"gain": [1.0, 2.0]}
    }  # fmt: skip
    for after in (0.0, 60.0):
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(clock, "SHOW_AFTER", after)
        monkeypatch.setattr(clock, "AGAIN", 0.0)
        mmdp.from_step(step, **given)
        lines = [text.strip() for text in screen.getvalue().split("\r") if text.strip()]
        seen = [re.findall(r"(\d+) of (\d+) rows", text)[0] for text in lines]
        # 2 draws of 3 states and 2 actions, 2 rows at a time
        assert seen == ([] if after else [(str(n), "12") for n in (2, 4, 6, 8, 10)])


def test_who_listens_hears_it_in_place_of_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clock, "SHOW_AFTER", 0.0)
    bar, lines = clock.Bar("step"), list[str]()
    with clock.heard(lines.append), bar:
        bar.at(0, 2_000)
        bar.at(1_500, 2_000)
    bar.at(1_900, 2_000)
    assert [text.split(" rows")[0] for text in lines] == ["step: 1,500 of 2,000"]
    assert capsys.readouterr().err == ""


def test_off_a_terminal_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clock, "SHOW_AFTER", 0.0)
    mmdp.from_step(
        lambda state, action: ({"x": 0}, 0.0), states={"x": range(3)}, actions={"u": [0]}
    )
    assert capsys.readouterr().err == ""
