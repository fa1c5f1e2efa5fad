"""What from_step refuses, in words that name the place and the remedy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mmdp


def shop(step: Any = None, **more: Any) -> mmdp.MMDP:
    """A shop with stock 0..5, orders 0..3 and demands 0..2."""
    return mmdp.from_step(
        step or sell, **{"states": {"stock": range(6)}, "actions": {"order": range(4)},
        "events": {"demand": range(3)}, "chance": lambda draw: [0.2, 0.3, 0.5],
        "draws": {"mean": [1.0, 2.0]}, **more},
    )  # fmt: skip


def sell(state: Any, action: Any, event: Any) -> Any:
    left = np.maximum(state["stock"] - event["demand"], 0)
    return {"stock": np.minimum(left + action["order"], 5)}, 5 * (state["stock"] - left)


def refused(*told: str) -> Any:
    return pytest.raises(mmdp.InputError, match=".*".join(map(re.escape, told)))


# ---------------------------------------------------------------------- next states
def overflow(state: Any, action: Any, event: Any) -> Any:
    left = np.maximum(state["stock"] - event["demand"], 0)
    return {"stock": left + action["order"]}, 0.0


def test_a_next_state_off_its_axis_names_the_row_and_the_remedy() -> None:
    with refused(
        "step at stock=3, order=3, demand=0: next stock is 6, which is not on its axis (0 to 5)",
        "clip it, or extend the axis",
    ):
        shop(overflow)


def test_a_next_state_between_points_is_to_be_rounded() -> None:
    with refused("next stock is 0.5", "round it, or make the axis an mmdp.Grid"):
        shop(lambda state, action, event: ({"stock": np.maximum(state["stock"] - 0.5, 0)}, 0.0))


def test_a_next_state_off_a_grid_is_refused() -> None:
    with refused("x=1, u=1: next x is 1.5, which is not on its axis (0 to 1)"):
        mmdp.from_step(
            lambda state, action: ({"x": state["x"] + 0.5 * action["u"] * (state["x"] > 0.9)}, 0),
            states={"x": mmdp.Grid(0, 1, 5)}, actions={"u": [0, 1]},
        )  # fmt: skip


def test_a_next_label_that_is_not_on_the_axis_is_refused() -> None:
    def switch(state: Any, action: Any) -> Any:
        return {"mode": np.where(state["mode"] == "on", "broken", "on")}, 0.0

    with refused("mode=on, u=0: next mode is broken", "(on, off); use one of its labels"):
        mmdp.from_step(switch, states={"mode": ["on", "off"]}, actions={"u": [0]})


def test_numbers_in_place_of_labels_are_refused() -> None:
    with refused("next mode as int64, its axis has on, off; return labels"):
        mmdp.from_step(
            lambda state, action: ({"mode": 0}, 0.0), states={"mode": ["on", "off"]},
            actions={"u": [0]},
        )  # fmt: skip


def test_nan_is_refused_in_next_states_and_rewards() -> None:
    with refused("stock=0, order=0, demand=0: next stock is nan", "check the formula"):
        shop(lambda state, action, event: ({"stock": state["stock"] * np.nan}, 0.0))
    with refused("stock=2, order=0, demand=0: the reward is nan; give a finite number"):
        shop(lambda state, action, event: (
            {"stock": state["stock"]}, np.where(state["stock"] == 2, np.nan, 1.0)
        ))  # fmt: skip


def test_the_draw_and_the_time_are_named_if_they_matter() -> None:
    def late(state: Any, action: Any, draw: Any, time: Any) -> Any:
        return {"stock": state["stock"] + (draw["mean"] > 1.5) * (time == "june")}, 0.0

    with refused("stock=5, order=0, draw 1, time june: next stock is 6"):
        shop(late, events=None, chance=None, times=["may", "june"])


def test_what_is_not_allowed_or_never_happens_is_not_checked() -> None:
    def sharp(state: Any, action: Any, event: Any) -> Any:
        return {"stock": state["stock"] + action["order"] + 100 * (event["demand"] == 2)}, 0.0

    model = shop(
        sharp, chance=lambda draw: [0.5, 0.5, 0.0],
        allowed=lambda state, action: state["stock"] + action["order"] <= 5,
    )  # fmt: skip
    assert not model.allowed[4, 2]
    assert model.transitions[0, 4, 1, 5] == 1


# ---------------------------------------------------------------------- how a step is written
def test_an_if_on_arrays_has_a_message_of_its_own() -> None:
    def branch(state: Any, action: Any, event: Any) -> Any:
        return ({"stock": 0}, 1.0) if state["stock"] > 2 else ({"stock": 1}, 0.0)

    with refused("step: an `if`, `and`, `or` or `max` on whole arrays", "np.where"):
        shop(branch)


def test_random_numbers_have_a_message_of_their_own() -> None:
    rng = np.random.default_rng(0)

    def noisy(state: Any, action: Any, event: Any) -> Any:
        return {"stock": state["stock"]}, rng.normal(size=len(state["stock"]))

    with refused("step returns other numbers when it is called again", "events= and chance="):
        shop(noisy)


def test_a_step_that_mixes_rows_is_refused_with_an_example() -> None:
    def mixed(state: Any, action: Any, event: Any) -> Any:
        return {"stock": state["stock"]}, state["stock"] - state["stock"].mean()

    with refused("step is not elementwise: at stock=", "the reward is", "72 rows", "of them"):
        shop(mixed)


def test_a_chance_that_mixes_rows_is_refused() -> None:
    def mixed(draw: Any, state: Any) -> Any:
        p = (1 + state["stock"]) / (1 + state["stock"]).sum()
        return np.concatenate([p, 1 - p, 0 * p], axis=1)

    with refused("chance is not elementwise: at stock="):
        shop(chance=mixed)


def test_rounding_is_no_mixing() -> None:
    def rounding(state: Any, action: Any, event: Any) -> Any:
        return {"stock": state["stock"]}, state["stock"] * (1 + 1e-15 * (len(state["stock"]) > 50))

    assert shop(rounding).n_states == 6


def test_inputs_are_read_only() -> None:
    def spoil(state: Any, action: Any, event: Any) -> Any:
        state["stock"][:] = 0
        return {"stock": state["stock"]}, 0.0

    def assign(state: Any, action: Any, event: Any) -> Any:
        state["stock"] = 0
        return state, 0.0

    for step in (spoil, assign):
        with refused("step: it changes what it was given", "copy"):
            shop(step)


def test_numbers_stand_for_all_rows_and_labels_arrive_as_labels() -> None:
    def step(state: Any, action: Any) -> Any:
        assert set(np.unique(state["mode"])) <= {"on", "off"}
        return {"mode": "on"}, 2

    model = mmdp.from_step(step, states={"mode": ["off", "on"]}, actions={"u": ["go"]})
    assert model.transitions[0, :, 0, 1].tolist() == [1, 1]
    assert model.rewards.tolist() == [[[2], [2]]]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda state: {"stock": 0}, "step must return a dict of next values by axis and the rew"),
        (lambda state: ({}, 0), "step returns no 'stock'; return every axis"),
        (lambda state: ({"stock": 0, "stok": 1}, 0), "returns 'stok', which is no axis of states"),
        (lambda state: ({"stock": np.zeros(3)}, 0), "next stock has shape (3,) for 72 rows"),
        (lambda state: ({"stock": 0}, "much"), "the reward that step returns is not a number"),
        (lambda state: ({"stock": state["stok"]}, 0), "step: state has no 'stok'"),
        (lambda state, draw: ({"stock": 0}, draw["men"]), "draw has no 'men' (did you mean 'mean'"),
        (lambda state: 1 / 0, "step: it raised ZeroDivisionError: division by zero"),
        (lambda s: ({"stock": 0}, 0), "step has a parameter 's'; it may have state, action, event"),
        (3, "step must be a function, not int"),
    ],
)  # fmt: skip
def test_a_step_that_returns_or_asks_for_something_else_is_refused(step: Any, told: str) -> None:
    with refused(told):
        shop(step)


# ---------------------------------------------------------------------- chances
@pytest.mark.parametrize(
    ("chance", "told"),
    [
        (lambda draw: [0.2, 0.3, 0.4], "chance: the probabilities of demand sum to 0.9, not 1"),
        (lambda draw: np.array([1, 1, 0]) * draw["mean"] / 2, "chance at draw 1: the prob"),
        (lambda draw: [0.5, 0.7, -0.2], "chance: a probability is -0.2; give none below 0"),
        (lambda draw: [0.5, np.nan, 0.5], "chance: a probability is not a number; check"),
        (lambda draw: [0.5, 0.5], "chance returned shape (2,); give (3,), one prob"),
        (lambda draw: "even", "chance has something that is not a number"),
        (lambda draw: {"demnd": [1, 0, 0]}, "chance returned demnd; give demand"),
        (lambda draw, state: np.repeat(0.3 + 0.01 * state["stock"], 3, axis=1),
         "chance at stock=0: the probabilities of demand sum to 0.9"),
    ],
)  # fmt: skip
def test_chances_that_are_no_distribution_are_refused(chance: Any, told: str) -> None:
    with refused(told):
        shop(chance=chance)


# ---------------------------------------------------------------------- the other arguments
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"states": {"my stock": range(3)}}, "'my stock'; give it a name like a variable's"),
        ({"states": {}}, "states must be a dict of axes by name"),
        ({"states": range(6)}, "states must be a dict of axes by name"),
        ({"states": {"stock": 6}}, "axis stock: 6 is neither a range"),
        ({"states": {"stock": []}}, "axis stock has no values"),
        ({"states": {"stock": [1, 1]}}, "axis stock has 1 twice"),
        ({"states": {"stock": [1, "a"]}}, "all numbers or all text"),
        ({"states": {"stock": [1, np.nan]}}, "not finite"),
        ({"events": {"order": range(3)}}, "two axes are called 'order'"),
        ({"events": None}, "chance is given without events; give both, or neither"),
        ({"chance": None}, "events is given without chance"),
        ({"times": 5}, "no function has a parameter time; leave out times="),
        ({"chance": lambda time: [1, 0, 0]}, "chance has a parameter time; give times="),
        ({"chance": lambda time: [1, 0, 0], "times": []}, "times is empty"),
        ({"chance": lambda time: [1, 0, 0], "times": 1.5}, "times must be a number, a range"),
        ({"initial": {"stok": 0}}, "initial must name a value for each of stock"),
        ({"initial": {"stock": 9}}, "initial stock is 9, which is not on its axis (0 to 5)"),
        ({"initial": lambda state: 0 * state["stock"]}, "weights of 0 or more, some above 0"),
        ({"allowed": lambda state, action: action["order"]}, "allowed must return True or False"),
        ({"allowed": lambda state, action: state["stock"] > 0},
         "no action is allowed in stock=0; allow one"),
        ({"allowed": lambda action, time: action["order"] <= time, "times": 2},
         "allowed differs between times"),
        ({"until": lambda state: 1.0}, "until must return True or False"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_used_are_refused(more: dict[str, Any], told: str) -> None:
    with refused(told):
        shop(**more)


@pytest.mark.parametrize("what", ["states", "actions", "events"])
@pytest.mark.parametrize("name", ["time", "state", "action", "model", "node"])
def test_words_of_tables_are_no_names_of_axes(what: str, name: str) -> None:
    with refused(f"an axis of {what} is called '{name}', a word that tables and policies need"):
        shop(**{what: {name: range(3)}})


@pytest.mark.parametrize("given", [(1, 0, 5), (0, 1, 1), (0, 1, 2.5), (0, float("inf"), 3)])
def test_a_grid_that_is_none_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(mmdp.InputError, match="Grid|points"):
        mmdp.Grid(*given)


def test_all_over_everywhere() -> None:
    for chance in (lambda draw: [0.2, 0.3, 0.5], lambda state: np.full((1, 3), 1 / 3)):
        with refused("until holds in every state"):
            shop(chance=chance, until=lambda state: state["stock"] >= 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"terminal": lambda state: "a"}, "terminal has something that is not a number"),
        ({"initial": lambda state: "a"}, "initial has something that is not a number"),
        ({"initial": lambda state: None}, "weights of 0 or more, some above 0"),
        ({"initial": {"stock": {0: "a"}}}, "initial has something that is not a number"),
        ({"initial": {"stock": []}}, "initial must name a value for each of stock"),
        ({"initial": {"stock": [[0, 1]]}}, "a sample of each, of one length"),
        ({"initial": {"stock": [0, 9]}}, "initial stock is 9, which is not on its axis (0 to 5)"),
        ({"draws": {"mean": []}}, "the same number of draws, at least one"),
    ],
)
def test_what_is_no_number(given: dict[str, Any], told: str) -> None:
    with refused(told):
        shop(**given)


def test_chances_by_lot() -> None:
    lot = np.random.default_rng(0)
    with refused("chance returns other numbers when it is called again"):
        shop(chance=lambda draw: lot.dirichlet(np.ones(3)))


def test_axes_are_read_once() -> None:
    assert shop(states={"stock": (x for x in range(6))}).n_states == 6


def test_an_unknown_argument_is_named() -> None:
    axes = {"states": {"x": range(3)}, "actions": {"a": range(2)}}
    with pytest.raises(mmdp.InputError, match="no argument 'wieghts' .did you mean 'weights'"):
        mmdp.from_step(lambda state, action: (state, 0.0), wieghts=[1], **axes)
