"""What from_step refuses, in words that name the place and the remedy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mmdp
from tests.data.functions.inputs import Inputs


def make_shop(step: Any = None, **options: Any) -> mmdp.MMDP:
    """A shop with stock 0..5, orders 0..3 and demands 0..2."""
    return mmdp.from_step(
        step or step_sell,
        **{
            "states": {"stock": range(6)},
            "actions": {"order": range(4)},
            "events": {"demand": range(3)},
            "event_probs": lambda sample: [0.2, 0.3, 0.5],
            "samples": {"mean": [1.0, 2.0]},
            **options,
        },
    )


def step_sell(state: Inputs, action: Inputs, event: Inputs) -> Any:
    stock_left = np.maximum(state["stock"] - event["demand"], 0)
    return {"stock": np.minimum(stock_left + action["order"], 5)}, 5 * (state["stock"] - stock_left)


def expect_error(*messages: str) -> Any:
    return pytest.raises(mmdp.InputError, match=".*".join(map(re.escape, messages)))


# ---------------------------------------------------------------------- next states
def step_overflow(state: Inputs, action: Inputs, event: Inputs) -> Any:
    stock_left = np.maximum(state["stock"] - event["demand"], 0)
    return {"stock": stock_left + action["order"]}, 0.0


def test_a_next_state_off_its_axis_names_the_row_and_the_remedy() -> None:
    with expect_error(
        "step at stock=3, order=3, demand=0: next stock is 6, which is not on its axis (0 to 5)",
        "clip it, or extend the axis",
    ):
        make_shop(step_overflow)


def test_a_next_state_between_points_is_to_be_rounded() -> None:
    with expect_error("next stock is 0.5", "round it, or make the axis an mmdp.Grid"):
        make_shop(
            lambda state, action, event: ({"stock": np.maximum(state["stock"] - 0.5, 0)}, 0.0)
        )


def test_a_missing_label_is_off_its_axis() -> None:
    with expect_error("next mode is None, which is not on its axis (on, off)", "one of its labels"):
        mmdp.from_step(
            lambda state: ({"mode": np.where(state["mode"] == "on", "off", None)}, 0.0),
            states={"mode": ["on", "off"]},
            actions={"wait": range(1)},
        )


def test_a_next_state_off_a_grid_is_refused() -> None:
    with expect_error("x=1, u=1: next x is 1.5, which is not on its axis (0 to 1)"):
        mmdp.from_step(
            lambda state, action: ({"x": state["x"] + 0.5 * action["u"] * (state["x"] > 0.9)}, 0),
            states={"x": mmdp.Grid(0, 1, 5)},
            actions={"u": [0, 1]},
        )


def test_a_next_label_that_is_not_on_the_axis_is_refused() -> None:
    def step_switch(state: Inputs, action: Inputs) -> Any:
        return {"mode": np.where(state["mode"] == "on", "broken", "on")}, 0.0

    with expect_error("mode=on, u=0: next mode is broken", "(on, off); use one of its labels"):
        mmdp.from_step(step_switch, states={"mode": ["on", "off"]}, actions={"u": [0]})


def test_numbers_in_place_of_labels_are_refused() -> None:
    with expect_error("mode=on, u=0: next mode is 0", "its axis (on, off); use one of its labels"):
        mmdp.from_step(
            lambda state, action: ({"mode": 0}, 0.0),
            states={"mode": ["on", "off"]},
            actions={"u": [0]},
        )


def test_labels_in_place_of_numbers_are_refused() -> None:
    with expect_error("stock=0, order=0, demand=0: next stock is much", "(0 to 5); give a number"):
        make_shop(lambda state, action, event: ({"stock": "much"}, 0.0))
    with expect_error("initial stock is much, which is not on its axis (0 to 5); give a number"):
        make_shop(initial={"stock": "much"})


def test_nan_is_refused_in_next_states_and_rewards() -> None:
    with expect_error("stock=0, order=0, demand=0: next stock is nan", "check the formula"):
        make_shop(lambda state, action, event: ({"stock": state["stock"] * np.nan}, 0.0))
    with expect_error("stock=2, order=0, demand=0: the reward is nan; give a finite number"):
        make_shop(
            lambda state, action, event: (
                {"stock": state["stock"]},
                np.where(state["stock"] == 2, np.nan, 1.0),
            )
        )


def test_the_sample_and_the_time_are_named() -> None:
    def step_in_june(state: Inputs, action: Inputs, sample: Inputs, time: Any) -> Any:
        return {"stock": state["stock"] + (sample["mean"] > 1.5) * (time == "june")}, 0.0

    with expect_error("stock=5, order=0, sample 1, time june: next stock is 6"):
        make_shop(step_in_june, events=None, event_probs=None, time_labels=["may", "june"])


def test_disallowed_or_impossible_rows_are_not_checked() -> None:
    def step_overflow_if_demand(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return {"stock": state["stock"] + action["order"] + 100 * (event["demand"] == 2)}, 0.0

    model = make_shop(
        step_overflow_if_demand,
        event_probs=lambda sample: [0.5, 0.5, 0.0],
        allowed=lambda state, action: state["stock"] + action["order"] <= 5,
    )
    assert not model.allowed[4, 2]
    assert model.transitions[0, 4, 1, 5] == 1


# ---------------------------------------------------------------------- how a step is written
def test_an_if_on_arrays_has_a_message_of_its_own() -> None:
    def step_with_if(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return ({"stock": 0}, 1.0) if state["stock"] > 2 else ({"stock": 1}, 0.0)

    with expect_error("step: an `if`, `and`, `or`, `min` or `max` on whole arrays", "np.where"):
        make_shop(step_with_if)


def test_parameters_without_samples_have_a_message() -> None:
    with expect_error("event_probs: it reads 'p' of the sample, but samples= is not given"):
        make_shop(samples=None, event_probs=lambda sample: [1 - sample["p"], sample["p"], 0.0])


def test_random_numbers_have_a_message_of_their_own() -> None:
    rng = np.random.default_rng(0)

    def step_with_noise(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return {"stock": state["stock"]}, rng.normal(size=len(state["stock"]))

    with expect_error(
        "step returns other numbers when it is called again", "events= and event_probs="
    ):
        make_shop(step_with_noise)


def test_a_step_that_mixes_rows_is_refused_with_an_example() -> None:
    def step_mixing_rows(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return {"stock": state["stock"]}, state["stock"] - state["stock"].mean()

    with expect_error("step is not elementwise: at stock=", "the reward is", "72 rows", "of them"):
        make_shop(step_mixing_rows)


def test_event_probs_that_mix_rows_are_refused() -> None:
    def compute_mixed_probs(sample: Inputs, state: Inputs) -> Any:
        p = (1 + state["stock"]) / (1 + state["stock"]).sum()
        return np.concatenate([p, 1 - p, 0 * p], axis=1)

    with expect_error("event_probs is not elementwise: at stock="):
        make_shop(event_probs=compute_mixed_probs)


def test_rounding_is_not_mixing_of_rows() -> None:
    def step_with_rounding(state: Inputs, action: Inputs, event: Inputs) -> Any:
        return {"stock": state["stock"]}, state["stock"] * (1 + 1e-15 * (len(state["stock"]) > 50))

    assert make_shop(step_with_rounding).n_states == 6


def test_inputs_are_read_only() -> None:
    def step_changing_array(state: Inputs, action: Inputs, event: Inputs) -> Any:
        state["stock"][:] = 0
        return {"stock": state["stock"]}, 0.0

    def step_changing_dict(state: Inputs, action: Inputs, event: Inputs) -> Any:
        state["stock"] = 0
        return state, 0.0

    for step in (step_changing_array, step_changing_dict):
        with expect_error("step: it changes what it was given", "copy"):
            make_shop(step)


def test_numbers_stand_for_all_rows_and_labels_arrive_as_labels() -> None:
    def step(state: Inputs, action: Inputs) -> Any:
        assert set(np.unique(state["mode"])) <= {"on", "off"}
        return {"mode": "on"}, 2

    model = mmdp.from_step(step, states={"mode": ["off", "on"]}, actions={"u": ["go"]})
    assert model.transitions[0, :, 0, 1].tolist() == [1, 1]
    assert model.rewards.tolist() == [[[2], [2]]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda state: {"stock": 0}, "step must return a dict of next values by axis and the rew"),
        (
            lambda state: (0, {"stock": 0}),
            "return {'stock': ...}, reward; it returned the reward f",
        ),
        (
            lambda state: ({"stock": min(state["stock"], 3)}, 0),
            "`min` or `max` on whole arrays; it is called with many rows at once: write np.where("
            "condition, a, b), &, |, np.minimum and np.maximum",
        ),
        (lambda state: ({}, 0), "step returns no 'stock'; return every axis"),
        (lambda state: ({"stock": 0, "stok": 1}, 0), "returns 'stok', which is no axis of states"),
        (lambda state: ({"stock": np.zeros(3)}, 0), "next stock has shape (3,) for 72 rows"),
        (lambda state: ({"stock": 0}, "much"), "the reward that step returns is not a number"),
        (lambda state: ({"stock": state["stok"]}, 0), "step: state has no 'stok'"),
        (
            lambda state, sample: ({"stock": 0}, sample["men"]),
            "sample has no 'men' (did you mean 'mean'",
        ),
        (lambda state: 1 / 0, "step: it raised ZeroDivisionError: division by zero"),
        (
            lambda s: ({"stock": 0}, 0),
            "step has an unknown parameter 's'; it may have state, action, event",
        ),
        (3, "step must be a function, not int"),
    ],
)
def test_a_step_with_wrong_inputs_or_outputs_is_refused(step: Any, message: str) -> None:
    with expect_error(message):
        make_shop(step)


# ---------------------------------------------------------------------- chances
@pytest.mark.parametrize(
    ("event_probs", "message"),
    [
        (
            lambda sample: [0.2, 0.3, 0.4],
            "event_probs: the probabilities of demand sum to 0.9, not 1",
        ),
        (
            lambda sample: np.array([1, 1, 0]) * sample["mean"] / 2,
            "event_probs at sample 1: the prob",
        ),
        (lambda sample: [0.5, 0.7, -0.2], "event_probs: a probability is -0.2; give none below 0"),
        (lambda sample: [0.5, np.nan, 0.5], "event_probs: a probability is not a number; check"),
        (lambda sample: [0.5, 0.5], "event_probs returned shape (2,); give (3,), one prob"),
        (lambda sample: "even", "event_probs is not a number"),
        (lambda sample: {"demnd": [1, 0, 0]}, "event_probs returned demnd; return demand"),
        (
            lambda sample, state: np.repeat(0.3 + 0.01 * state["stock"], 3, axis=1),
            "event_probs at stock=0: the probabilities of demand sum to 0.9",
        ),
    ],
)
def test_event_probs_that_are_no_distribution_are_refused(event_probs: Any, message: str) -> None:
    with expect_error(message):
        make_shop(event_probs=event_probs)


# ---------------------------------------------------------------------- the other arguments
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": {"my stock": range(3)}}, "the axis name 'my stock' is not an identifier"),
        ({"states": {}}, "states must be a dict of axes by name"),
        ({"states": range(6)}, "states must be a dict of axes by name"),
        ({"states": {"stock": 6}}, "axis stock: 6 is not a range"),
        ({"states": {"stock": []}}, "axis stock has no values"),
        ({"states": {"stock": [1, 1]}}, "axis stock has 1 twice"),
        ({"states": {"stock": [1, "a"]}}, "all numbers or all text"),
        ({"states": {"stock": [1, np.nan]}}, "not finite"),
        ({"events": {"order": range(3)}}, "two axes are called 'order'"),
        ({"events": None}, "event_probs is given without events; give both, or neither"),
        ({"event_probs": None}, "events is given without event_probs"),
        ({"time_labels": 5}, "no function has a parameter time; leave out time_labels="),
        (
            {"event_probs": lambda time: [1, 0, 0]},
            "event_probs has a parameter time; give time_labels=",
        ),
        ({"event_probs": lambda time: [1, 0, 0], "time_labels": []}, "time_labels is empty"),
        (
            {"event_probs": lambda time: [1, 0, 0], "time_labels": 1.5},
            "time_labels must be a number, a range",
        ),
        (
            {"initial": {"stok": 0}},
            "unknown axis 'stok' (did you mean 'stock'?); the axes are stock",
        ),
        ({"initial": {"stock": 9}}, "initial stock is 9, which is not on its axis (0 to 5)"),
        ({"initial": lambda state: 0 * state["stock"]}, "weights of 0 or more, some above 0"),
        ({"allowed": lambda state, action: action["order"]}, "allowed must return True or False"),
        (
            {"allowed": lambda state, action: state["stock"] > 0},
            "no action is allowed in stock=0; allow one",
        ),
        (
            {"allowed": lambda action, time: action["order"] <= time, "time_labels": 2},
            "allowed has an unknown parameter 'time'",
        ),
        ({"is_terminal": lambda state: 1.0}, "is_terminal must return True or False"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with expect_error(message):
        make_shop(**options)


@pytest.mark.parametrize("argument", ["states", "actions", "events"])
@pytest.mark.parametrize("name", ["time", "state", "action", "model", "node"])
def test_reserved_column_names_are_refused_as_axes(argument: str, name: str) -> None:
    with expect_error(f"{argument}: the axis name '{name}' is a column of tables and policies"):
        make_shop(**{argument: {name: range(3)}})


@pytest.mark.parametrize("grid_args", [(1, 0, 5), (0, 1, 1), (0, 1, 2.5), (0, float("inf"), 3)])
def test_an_invalid_grid_is_refused(grid_args: tuple[Any, ...]) -> None:
    with pytest.raises(mmdp.InputError, match="Grid|points"):
        mmdp.Grid(*grid_args)


def test_a_model_with_terminal_states_only_is_refused() -> None:
    for event_probs in (lambda sample: [0.2, 0.3, 0.5], lambda state: np.full((1, 3), 1 / 3)):
        with expect_error("is_terminal holds in every state"):
            make_shop(event_probs=event_probs, is_terminal=lambda state: state["stock"] >= 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terminal_reward": lambda state: "a"}, "terminal_reward is not a number"),
        ({"initial": lambda state: "a"}, "initial is not a number"),
        ({"initial": lambda state: None}, "weights of 0 or more, some above 0"),
        ({"initial": {"stock": {0: "a"}}}, "initial is not a number"),
        ({"initial": {"stock": []}}, "initial must name a value for each of stock"),
        ({"initial": {"stock": {}}}, "initial must name a value for each of stock"),
        ({"initial": {"stock": [[0, 1]]}}, "a sample of each, of one length"),
        ({"initial": {"stock": [0, 9]}}, "initial stock is 9, which is not on its axis (0 to 5)"),
        ({"samples": {"mean": []}}, "the same number of samples, at least one"),
    ],
)
def test_bad_initial_terminal_and_samples_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with expect_error(message):
        make_shop(**options)


def test_random_event_probs_are_refused() -> None:
    rng = np.random.default_rng(0)
    with expect_error("event_probs returns other numbers when it is called again"):
        make_shop(event_probs=lambda sample: rng.dirichlet(np.ones(3)))


def test_axes_are_read_once() -> None:
    assert make_shop(states={"stock": (x for x in range(6))}).n_states == 6


def test_an_unknown_argument_is_named() -> None:
    axes = {"states": {"x": range(3)}, "actions": {"a": range(2)}}
    with pytest.raises(mmdp.InputError, match="no argument 'wieghts' .did you mean 'weights'"):
        mmdp.from_step(lambda state, action: (state, 0.0), wieghts=[1], **axes)
