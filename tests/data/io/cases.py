"""Models with every field in every storage, for tests of files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import mmdp
from mmdp.core.kernels import PreparedProblem
from mmdp.core.kernels.events import ExogenousEvents
from mmdp.core.kernels.storage import CustomStorage

M, S, A, W, T = 3, 4, 3, 2, 2
RNG = np.random.default_rng(5)
EVENT_PROBS = np.moveaxis(RNG.dirichlet(np.ones(W), (2, 2, M)), 3, 2)  # (T, kinds, W, M)
NEXT_STATES = RNG.integers(0, S, (T, S, A, W, 2))
CORNER_WEIGHTS, DISTRIBUTION_IDS = (
    RNG.dirichlet(np.ones(2), (T, S, A, W)),
    RNG.integers(0, 2, (T, S, A)),
)
R, EVENT_PAYOFFS = RNG.normal(size=(T, M, S, A)), RNG.normal(size=(T, S, A, W))
ALLOWED = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 0]], bool)
INITIAL = [0.0, 1.0, 0.0, 0.0]


class EinsumStorage(CustomStorage):
    """Half of one model, half of what all have in common, as computed by a plan."""

    shape = (M, S, A)

    def prepare(self, problem: Any, horizon: int) -> PreparedProblem:
        return EinsumProblem(problem, horizon)


class EinsumProblem(PreparedProblem):
    P = RNG.dirichlet(np.ones(S), (M, S, A))

    def expect_next(self, t: int, v: Any) -> Any:
        return np.einsum("msaz,zm->sam", self.P, v)

    def push_forward(self, t: int, b: Any, policy_row: Any) -> Any:
        action_probs = np.eye(A)[policy_row] if policy_row.ndim == 1 else policy_row
        return np.einsum("sm,sa,msaz->zm", b, action_probs, self.P)


def make_event_storage(n_times: int, use_corners: bool) -> tuple[Any, Any]:
    next_states = NEXT_STATES[:n_times] if use_corners else NEXT_STATES[:n_times, ..., :1]
    corner_weights = CORNER_WEIGHTS[:n_times] if use_corners else None
    storage = ExogenousEvents(
        next_states, EVENT_PROBS[:n_times], DISTRIBUTION_IDS[:n_times], corner_weights
    )
    return storage, storage.make_rewards(EVENT_PAYOFFS[:n_times])


@functools.cache
def make_tables(n_times: int) -> tuple[Any, Any]:
    storage, rewards = make_event_storage(T, use_corners=True)
    model = mmdp.MMDP(storage, rewards)
    return (model.transitions, R) if n_times > 1 else (model.transitions[0], R[0])


STORAGES: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "dense": lambda: (*make_tables(1), {"storage": "dense"}),
    "sparse": lambda: (*make_tables(1), {"storage": "sparse"}),
    "events": lambda: (*make_event_storage(1, use_corners=False), {}),
    "corners": lambda: (*make_event_storage(1, use_corners=True), {}),
    "events, rewards by model": lambda: (make_event_storage(1, use_corners=True)[0], R[0], {}),
    "own": lambda: (EinsumStorage(), R[0], {}),
    "dense over time": lambda: (*make_tables(T), {"storage": "dense"}),
    "sparse over time": lambda: (*make_tables(T), {"storage": "sparse"}),
    "events over time": lambda: (*make_event_storage(T, use_corners=True), {}),
    "rewards over time": lambda: (make_tables(1)[0], R, {}),
}
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "allowed": {"allowed": ALLOWED},
    "an action allowed nowhere": {"allowed": ALLOWED & [True, True, False] | [[0, 1, 0]]},
    "rewards by next state": {"next_rewards": True},
    "rewards by next state, allowed": {"next_rewards": True, "allowed": ALLOWED},
    "missing": {"allow_missing": True},
    "initial not given": {"initial": None},
    "initial": {"initial": [0.25, 0.25, 0.0, 0.5]},
    "initial by model": {"initial": [INITIAL, [0.5, 0.5, 0, 0], [0, 0, 0.25, 0.75]]},
    "weights": {"weights": [0.5, 0.2, 0.3]},
    "a weight of 0": {"weights": [0.5, 0.0, 0.5]},
    "discount": {"discount": 0.9},
    "terminal": {"terminal": [0.0, 1.0, -2.0, 0.5]},
    "terminal by model": {"terminal": np.arange(M * S).reshape(M, S)},
    "model transitions": {"model_transitions": [[0.9, 0.1, 0], [0, 1, 0], [0.2, 0.3, 0.5]]},
    "states": {"states": ["a,b", 'a "c"', " d", "e\nf"]},
    "plain labels": {"states": list("wxyz"), "actions": ["go", "no", "so"], "models": list("klm")},
    "actions": {"actions": ["10", "20", "#"]},
    "models": {"models": ["μ", "A=1", "A=2"]},
    "parameters": {"parameters": {"mean": [1.0, 2.5, 1e-300], "model": [0.0, 1.0, 2.0]}},
    "name": {"name": "Reservoir, 3 draws"},
    "citation": {"citation": 'Doe (2020). "Title", pp. 1-2.'},
    "time_labels": {"time_labels": {"age": range(40, 45)}},
    "unit": {"unit": "$"},
    "quantity": {"quantity": "net benefit, per patient"},
    "everything": {
        "allowed": ALLOWED,
        "initial": [INITIAL, [0.5, 0.5, 0, 0], INITIAL],
        "weights": [0.5, 0.2, 0.3],
        "discount": 0.5,
        "terminal": np.eye(M, S),
        "states": list("dcba"),
        "actions": ["x", "y", "z"],
        "models": ["1", "2", "3"],
        "parameters": {"q": [1.0, 2.0, 3.0]},
        "name": "n",
        "citation": "c",
        "time_labels": ["mon", "tue"],
        "unit": "QALYs",
        "quantity": "life years",
    },
}


def has_model(storage: str, field: str) -> bool:
    """Whether this storage can have this field."""
    if "next_rewards" in FIELDS[field]:
        return not storage.startswith(("events", "corners"))
    return "allow_missing" not in FIELDS[field] or not storage.startswith(
        ("events", "corners", "own")
    )


@functools.cache
def make_model(storage: str, field: str) -> mmdp.MMDP:
    """The model with this field in this storage."""
    fields = {"initial": INITIAL, **FIELDS[field]}
    transitions, rewards, options = STORAGES[storage]()
    if fields.pop("next_rewards", False):
        n_times = T if "time" in storage else 1
        next_rewards = np.random.default_rng(1).normal(size=(n_times, M, S, A, S))
        return mmdp.MMDP(
            transitions,
            next_rewards=next_rewards if n_times > 1 else next_rewards[0],
            **options,
            **fields,
        )
    if fields.get("allow_missing"):
        transitions = transitions.copy()
        transitions[..., 1, 2, 0, :] = 0.0  # model 1 lacks action 0 in state 2
    return mmdp.MMDP(transitions, rewards, **options, **fields)


def model_to_dict(model: mmdp.MMDP) -> dict[str, Any]:
    """Everything that a model tells about itself, but for how it is stored."""
    axes = ("state", "action", "model")
    return {
        "transitions": model.transitions,
        "rewards": model.rewards,
        "next_rewards": None
        if (next_rewards := model.next_rewards) is None
        else next_rewards * model.allowed[..., None],
        "allowed": model.allowed,
        "horizon": model.horizon,
        "initial": model.initial,
        "initial_given": model.has_initial,
        "weights": model.weights,
        "discount": model.discount,
        "terminal": model.terminal,
        "model_transitions": model.model_transitions,
        "allow_missing": model.has_missing_actions,
        "parameters": model.parameters,
        "name": model.name,
        "citation": model.citation,
        "time_labels": (model.time_labels.name, model.time_labels.labels),
        "unit": model.unit,
        "quantity": model.quantity,
        **{f"{axis}s": model.label_index(axis).labels for axis in axes},
    }
