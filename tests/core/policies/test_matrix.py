"""Every policy class, and all that is done with policies.

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
from mmdp.insight import plots, report

T = 4
RNG = np.random.default_rng(5)
MODEL = mmdp.MMDP(
    RNG.dirichlet(np.ones(3), size=(3, 3, 2)),
    RNG.normal(size=(3, 3, 2)),
    initial=[0.5, 0.5, 0],
    discount=0.8,
    states=["well", "ill", "dead"],
    actions=["wait", "treat"],
)
GROUPS = mmdp.policies.Tied([0, 0, 1])
STAGES = {"stage": {"well": 0, "ill": 1, "dead": 2}}


@cache
def make_policies() -> dict[str, Any]:
    probs = RNG.dirichlet(np.ones(2), size=(T, 3))
    labels = {"state_labels": MODEL.state_labels, "action_labels": MODEL.action_labels}
    by_class = {
        "markov": mmdp.solve(MODEL, T).policy,
        "markov randomized": mmdp.policies.MarkovPolicy.for_model(MODEL, probabilities=probs),
        "stationary": mmdp.solve(MODEL, math.inf).policy,
        "stationary randomized": mmdp.policies.StationaryPolicy(probabilities=probs[0], **labels),
        "tied": mmdp.solve(MODEL, T, policy_class=GROUPS).policy,
        "monotone": mmdp.solve(MODEL, T, policy_class="monotone").policy,
        "fixed": mmdp.solve(MODEL, T, policy_class=mmdp.policies.Fixed({"ill": "treat"})).policy,
        "memory": mmdp.solve(MODEL, T, policy_class=mmdp.policies.Memory(max_nodes=2)).policy,
        "tree": mmdp.solve(MODEL, T, policy_class=mmdp.policies.Tree(3, STAGES)).policy,
        "tree stationary": mmdp.solve(
            MODEL, math.inf, policy_class=mmdp.policies.Tree(3, STAGES)
        ).policy,
        "belief": mmdp.solve(MODEL, T, mmdp.methods.QMDP(n_episodes=4), backend="numpy").policy,
        "belief for ever": mmdp.solve(
            MODEL, math.inf, mmdp.methods.QMDP(n_episodes=4), backend="numpy"
        ).policy,
        "belief grid": mmdp.solve(MODEL, T, "grid").policy,
        "belief grid for ever": mmdp.solve(
            MODEL, math.inf, mmdp.methods.BeliefGrid(max_points=20)
        ).policy,
    }
    return by_class


# ---------------------------------------------------------------------- what is done with them
def check_evaluate(policy: Any, folder: Path) -> None:
    """Exact, or with error bars; both agree."""
    exact = mmdp.evaluate(MODEL, policy, backend="numpy")
    simulated = mmdp.evaluate(MODEL, policy, n_episodes=300, seed=2, backend="numpy")
    error = np.hypot(simulated.stderr, exact.stderr)
    assert abs(exact.mean - simulated.mean) <= 4 * error + 1e-9
    assert (simulated.regret >= -4 * simulated.standard_errors - 1e-9).all()


def check_simulate(policy: Any, folder: Path) -> None:
    for backend in ("numpy", "numba"):
        simulated = mmdp.simulate(MODEL, policy, n_episodes=300, seed=3, backend=backend)
        exact = mmdp.evaluate(MODEL, policy)
        assert (
            abs(simulated.mean - exact.mean) <= 4 * np.hypot(simulated.stderr, exact.stderr) + 1e-9
        )


def check_files(policy: Any, folder: Path) -> None:
    uses_belief = policy.policy_class.uses_belief  # a file of one is JSON, read with its models
    for suffix in ("json",) if uses_belief else ("csv", "json", "parquet"):
        file = folder / f"policy.{suffix}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a table of a tree has no questions
            mmdp.save_policy(policy, file)
        # a table has what a tree does; its questions are in JSON
        expected = (
            policy.table_policy
            if isinstance(policy, mmdp.policies.TreePolicy) and suffix != "json"
            else policy
        )
        for model in (MODEL,) if uses_belief else (MODEL, None):
            loaded = mmdp.load_policy(file, model)
            assert type(loaded) is type(expected)
            assert loaded == expected
        assert uses_belief or loaded.to_frame().equals(policy.to_frame())


def check_agent(policy: Any, folder: Path) -> None:
    """It earns in the models what the policy is worth there."""
    agent, rng, n_steps = mmdp.interop.Agent(policy, seed=1), np.random.default_rng(0), T
    if policy.horizon == math.inf:
        n_steps = 30
    returns = [_run_episode(agent, rng, n_steps) for _ in range(400)]
    exact, error = mmdp.evaluate(MODEL, policy, backend="numpy"), np.std(returns) / 20
    assert abs(np.mean(returns) - exact.mean) <= 4 * error + 2 * exact.stderr


def _run_episode(agent: Any, rng: np.random.Generator, n_steps: int) -> float:
    x, m, s = MODEL, int(rng.integers(3)), int(rng.choice(3, p=MODEL.initial))
    agent.reset()
    total, reward = 0.0, None
    for t in range(n_steps):
        a = agent(s, reward)
        reward = float(x.rewards[m, s, a])
        total += x.discount**t * reward
        s = int(rng.choice(3, p=x.transitions[m, s, a]))
    return total


def check_copies(policy: Any, folder: Path) -> None:
    for copied in (pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)):
        assert type(copied) is type(policy)
        assert copied == policy
        assert repr(copied) == repr(policy)
    with pytest.raises(AttributeError, match="frozen"):
        policy.horizon = 3
    with pytest.raises(TypeError):
        hash(policy)
    assert policy != 3


def check_html(policy: Any, folder: Path) -> None:
    html = policy._repr_html_()
    ElementTree.fromstring(f"<div>{html}</div>")
    assert 'alt="Actions' in html or "time step" in html or "infinite horizon" in html


def check_report(policy: Any, folder: Path) -> None:
    file = report.write(
        MODEL,
        folder / "page.html",
        horizon=T,
        policy=policy,
        methods=["wsu"],
        n_resamples=0,
        voi=False,
        sample_size=False,
        max_nodes=0,
        frontier=False,
    )
    assert "returns <strong>" in file.read_text(encoding="utf-8")


def check_plot(policy: Any, folder: Path) -> None:
    ax = plots.policy_heatmap(policy)
    assert "well" in ax.get_yticklabels()[0].get_text()
    plots.save_figure(ax, folder / "policy.svg")


OPERATIONS: dict[str, Callable[[Any, Path], None]] = {
    "evaluate": check_evaluate,
    "simulate": check_simulate,
    "save/load": check_files,
    "agent": check_agent,
    "pickle": check_copies,
    "notebook": check_html,
    "page": check_report,
    "plot": check_plot,
}
POLICY_NAMES = (
    "markov",
    "markov randomized",
    "stationary",
    "stationary randomized",
    "tied",
    "monotone",
    "fixed",
    "memory",
    "tree",
    "tree stationary",
    "belief",
    "belief for ever",
    "belief grid",
    "belief grid for ever",
)
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
@pytest.mark.parametrize("policy_name", POLICY_NAMES)
def test_every_policy_and_operation(policy_name: str, operation: str, tmp_path: Path) -> None:
    policy, check = make_policies()[policy_name], OPERATIONS[operation]
    if (policy_name, operation) not in EXCEPTIONS:
        return check(policy, tmp_path)
    with pytest.raises(mmdp.InputError) as refused:  # the day it works, its line above must go
        check(policy, tmp_path)
    assert "\n" not in str(refused.value)


def test_the_matrix_has_every_policy_class() -> None:
    assert {*make_policies()} == {*POLICY_NAMES}
    assert {policy_name.split()[0] for policy_name in POLICY_NAMES} == {
        *mmdp.policies.POLICY_CLASSES
    }
    assert all(EXCEPTIONS.values())
