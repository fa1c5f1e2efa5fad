"""Every kind of policy, and all that is done with policies.

``EXCEPTIONS`` has what cannot be done and why. It may only shrink: an exception that works fails.
"""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import mmdp
from mmdp import plots, report

T = 4
RNG = np.random.default_rng(5)
MODEL = mmdp.MMDP(
    RNG.dirichlet(np.ones(3), size=(3, 3, 2)), RNG.normal(size=(3, 3, 2)), initial=[0.5, 0.5, 0],
    discount=0.8, states=["well", "ill", "dead"], actions=["wait", "treat"],
)  # fmt: skip
GROUPS = mmdp.Tied([0, 0, 1])
STAGES = {"stage": {"well": 0, "ill": 1, "dead": 2}}


@cache
def policies() -> dict[str, Any]:
    share = RNG.dirichlet(np.ones(2), size=(T, 3))
    labels = {"state_labels": MODEL.state_labels, "action_labels": MODEL.action_labels}
    found = {
        "markov": mmdp.solve(MODEL, T).policy,
        "markov randomised": mmdp.MarkovPolicy.for_model(MODEL, probabilities=share),
        "stationary": mmdp.solve(MODEL, math.inf).policy,
        "stationary randomised": mmdp.StationaryPolicy(probabilities=share[0], **labels),
        "tied": mmdp.solve(MODEL, T, policy=GROUPS).policy,
        "monotone": mmdp.solve(MODEL, T, policy="monotone").policy,
        "fixed": mmdp.solve(MODEL, T, policy=mmdp.Fixed({"ill": "treat"})).policy,
        "memory": mmdp.solve(MODEL, T, policy=mmdp.Memory(nodes=2)).policy,
        "tree": mmdp.solve(MODEL, T, policy=mmdp.Tree(3, STAGES)).policy,
        "tree stationary": mmdp.solve(MODEL, math.inf, policy=mmdp.Tree(3, STAGES)).policy,
        "belief": mmdp.solve(MODEL, T, mmdp.QMDP(episodes=4), backend="numpy").policy,
        "belief for ever": mmdp.solve(
            MODEL, math.inf, mmdp.QMDP(episodes=4), backend="numpy"
        ).policy,
        "belief grid": mmdp.solve(MODEL, T, "grid").policy,
        "belief grid for ever": mmdp.solve(MODEL, math.inf, mmdp.BeliefGrid(points=20)).policy,
    }
    return found


# ---------------------------------------------------------------------- what is done with them
def evaluate(policy: Any, folder: Path) -> None:
    """Exact, or with error bars; both agree."""
    here = mmdp.evaluate(policy, MODEL, backend="numpy")
    seen = mmdp.evaluate(policy, MODEL, episodes=300, seed=2, backend="numpy")
    error = np.hypot(seen.stderr, here.stderr)
    assert abs(here.mean - seen.mean) <= 4 * error + 1e-9
    assert (seen.regret >= -4 * seen.errors - 1e-9).all()


def simulate(policy: Any, folder: Path) -> None:
    for backend in ("numpy", "numba"):
        seen = mmdp.simulate(policy, MODEL, episodes=300, seed=3, backend=backend)
        exact = mmdp.evaluate(policy, MODEL)
        assert abs(seen.mean - exact.mean) <= 4 * np.hypot(seen.stderr, exact.stderr) + 1e-9


def files(policy: Any, folder: Path) -> None:
    grid = policy.kind.learns  # a file of one is JSON, read with its models
    for suffix in ("json",) if grid else ("csv", "json", "parquet"):
        file = folder / f"policy.{suffix}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a table of a tree has no questions
            mmdp.save_policy(policy, file)
        # a table has what a tree does; its questions are in JSON
        kept = policy.rows if isinstance(policy, mmdp.TreePolicy) and suffix != "json" else policy
        for model in (MODEL,) if grid else (MODEL, None):
            again = mmdp.load_policy(file, model)
            assert type(again) is type(kept)
            assert again == kept
        assert grid or again.to_frame().equals(policy.to_frame())


def agent(policy: Any, folder: Path) -> None:
    """It earns in the models what the policy is worth there."""
    follower, rng, steps = mmdp.ecosystem.Agent(policy, seed=1), np.random.default_rng(0), T
    if policy.horizon == math.inf:
        steps = 30
    earned = [_episode(follower, rng, steps) for _ in range(400)]
    exact, error = mmdp.evaluate(policy, MODEL, backend="numpy"), np.std(earned) / 20
    assert abs(np.mean(earned) - exact.mean) <= 4 * error + 2 * exact.stderr


def _episode(follower: Any, rng: np.random.Generator, steps: int) -> float:
    x, m, s = MODEL, int(rng.integers(3)), int(rng.choice(3, p=MODEL.initial))
    follower.reset()
    total, reward = 0.0, None
    for t in range(steps):
        a = follower(s, reward)
        reward = float(x.rewards[m, s, a])
        total += x.discount**t * reward
        s = int(rng.choice(3, p=x.transitions[m, s, a]))
    return total


def travel(policy: Any, folder: Path) -> None:
    for again in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)):
        assert type(again) is type(policy)
        assert again == policy
        assert repr(again) == repr(policy)
    with pytest.raises(AttributeError, match="frozen"):
        policy.horizon = 3
    with pytest.raises(TypeError):
        hash(policy)
    assert policy != 3


def notebook(policy: Any, folder: Path) -> None:
    html = policy._repr_html_()
    ElementTree.fromstring(f"<div>{html}</div>")
    assert "time" in html or "by state" in html or "for ever" in html


def page(policy: Any, folder: Path) -> None:
    file = report.write(
        MODEL, folder / "page.html", horizon=T, policy=policy, methods=["wsu"], resamples=0,
        information=False, enough=False, memory=0, frontier=False,
    )  # fmt: skip
    assert "returns <strong>" in file.read_text(encoding="utf-8")


def plot(policy: Any, folder: Path) -> None:
    axis = plots.policy_heatmap(policy)
    assert "well" in axis.get_yticklabels()[0].get_text()
    plots.save(axis, folder / "policy.svg")


OPERATIONS: dict[str, Callable[[Any, Path], None]] = {
    "evaluate": evaluate, "simulate": simulate, "save/load": files, "agent": agent,
    "pickle": travel, "notebook": notebook, "page": page, "plot": plot,
}  # fmt: skip
KINDS = (
    "markov", "markov randomised", "stationary", "stationary randomised", "tied", "monotone",
    "fixed", "memory", "tree", "tree stationary", "belief", "belief for ever",
    "belief grid", "belief grid for ever",
)  # fmt: skip
EXCEPTIONS = {
    ("belief", "save/load"): "it is as large as its models; keep these, and plan again",
    ("belief for ever", "save/load"): "the same",
    ("belief", "plot"): "what it does depends on a point of a simplex, which no map has room for",
    ("belief for ever", "plot"): "the same",
    ("belief", "page"): "a page goes by exact returns, and these are simulated",
    ("belief for ever", "page"): "the same",
    ("belief grid", "page"): "its flow chart would have a box for each point of the grid",
    ("belief grid for ever", "page"): "the same",
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_and_operation(kind: str, operation: str, tmp_path: Path) -> None:
    policy, done = policies()[kind], OPERATIONS[operation]
    if (kind, operation) not in EXCEPTIONS:
        return done(policy, tmp_path)
    with pytest.raises(mmdp.InputError) as refused:  # the day it works, its line above must go
        done(policy, tmp_path)
    assert "\n" not in str(refused.value)


def test_the_matrix_has_every_kind() -> None:
    assert {*policies()} == {*KINDS}
    assert {kind.split()[0] for kind in KINDS} == {*mmdp.policy.KINDS}
    assert all(EXCEPTIONS.values())
