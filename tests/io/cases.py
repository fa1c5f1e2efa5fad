"""Models with every field in every storage, for tests of files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mmdp
from mmdp.kernels import Plan
from mmdp.kernels.events import Events
from mmdp.kernels.storage import Computed

M, S, A, W, T = 3, 4, 3, 2, 2
RNG = np.random.default_rng(5)
CHANCE = np.moveaxis(RNG.dirichlet(np.ones(W), (2, 2, M)), 3, 2)  # (T, kinds, W, M)
AFTER = RNG.integers(0, S, (T, S, A, W, 2))
SHARE, KIND = RNG.dirichlet(np.ones(2), (T, S, A, W)), RNG.integers(0, 2, (T, S, A))
R, PAID = RNG.normal(size=(T, M, S, A)), RNG.normal(size=(T, S, A, W))
ALLOWED = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 0]], bool)
HOME = [0.0, 1.0, 0.0, 0.0]


class Mixed(Computed):
    """Half of one model, half of what all have in common, as computed by a plan."""

    shape = (M, S, A)

    def plan(self, problem: Any, horizon: int) -> Plan:
        return MixedPlan(problem, horizon)


class MixedPlan(Plan):
    P = RNG.dirichlet(np.ones(S), (M, S, A))

    def expect(self, t: int, v: Any) -> Any:
        return np.einsum("msaz,zm->sam", self.P, v)

    def push(self, t: int, b: Any, row: Any) -> Any:
        share = np.eye(A)[row] if row.ndim == 1 else row
        return np.einsum("sm,sa,msaz->zm", b, share, self.P)


def events(steps: int, corners: bool) -> tuple[Any, Any]:
    after = AFTER[:steps] if corners else AFTER[:steps, ..., :1]
    share = SHARE[:steps] if corners else None
    shared = Events(after, CHANCE[:steps], KIND[:steps], share)
    return shared, shared.rewards(PAID[:steps])


def tables(steps: int) -> tuple[Any, Any]:
    shared, paid = events(T, corners=True)
    x = mmdp.MMDP(shared, paid)
    return (x.transitions, R) if steps > 1 else (x.transitions[0], R[0])


STORAGES: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "dense": lambda: (*tables(1), {"storage": "dense"}),
    "sparse": lambda: (*tables(1), {"storage": "sparse"}),
    "events": lambda: (*events(1, corners=False), {}),
    "corners": lambda: (*events(1, corners=True), {}),
    "events, rewards by model": lambda: (events(1, corners=True)[0], R[0], {}),
    "own": lambda: (Mixed(), R[0], {}),
    "dense over time": lambda: (*tables(T), {"storage": "dense"}),
    "sparse over time": lambda: (*tables(T), {"storage": "sparse"}),
    "events over time": lambda: (*events(T, corners=True), {}),
    "rewards over time": lambda: (tables(1)[0], R, {}),
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
    "initial by model": {"initial": [HOME, [0.5, 0.5, 0, 0], [0, 0, 0.25, 0.75]]},
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
    "times": {"times": {"age": range(40, 45)}},
    "unit": {"unit": "$"},
    "quantity": {"quantity": "net benefit, per patient"},
    "everything": {
        "allowed": ALLOWED, "initial": [HOME, [0.5, 0.5, 0, 0], HOME], "weights": [0.5, 0.2, 0.3],
        "discount": 0.5, "terminal": np.eye(M, S), "states": list("dcba"),
        "actions": ["x", "y", "z"], "models": ["1", "2", "3"], "parameters": {"q": [1.0, 2.0, 3.0]},
        "name": "n", "citation": "c", "times": ["mon", "tue"], "unit": "QALYs",
        "quantity": "life years",
    },
}  # fmt: skip


def build(storage: str, field: str) -> mmdp.MMDP | None:
    """The model, or None if there is no such model."""
    fields = {"initial": HOME, **FIELDS[field]}
    transitions, rewards, more = STORAGES[storage]()
    if fields.pop("next_rewards", False):
        if storage.startswith(("events", "corners")):
            return None
        steps = T if "time" in storage else 1
        per_next = np.random.default_rng(1).normal(size=(steps, M, S, A, S))
        return mmdp.MMDP(
            transitions, next_rewards=per_next if steps > 1 else per_next[0], **more, **fields
        )
    if fields.get("allow_missing"):
        if not isinstance(transitions, np.ndarray):
            return None
        transitions = transitions.copy()
        transitions[..., 1, 2, 0, :] = 0.0  # model 1 lacks action 0 in state 2
    return mmdp.MMDP(transitions, rewards, **more, **fields)


def seen(x: mmdp.MMDP) -> dict[str, Any]:
    """Everything that a model tells about itself, but for how it is stored."""
    kinds = ("state", "action", "model")
    return {
        "transitions": x.transitions, "rewards": x.rewards,
        "next_rewards": None if (y := x.next_rewards) is None else y * x.allowed[..., None],
        "allowed": x.allowed, "horizon": x.horizon, "initial": x.initial,
        "initial_given": x.initial_given, "weights": x.weights, "discount": x.discount,
        "terminal": x.terminal, "model_transitions": x.model_transitions,
        "allow_missing": x.has_missing, "parameters": x.parameters, "name": x.name,
        "citation": x.citation, "times": (x.times.name, x.times.labels), "unit": x.unit,
        "quantity": x.quantity,
        **{f"{kind}s": x.names(kind).labels for kind in kinds},
    }  # fmt: skip
