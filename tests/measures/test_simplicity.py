"""Simpler policies: the phases tell the most, and no rule beats the best of its kind."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

import mmdp
from mmdp.measures.simplicity import ENOUGH, one_action, one_rule, short_rule


def problem(seed: int) -> tuple[mmdp.MMDP, mmdp.MarkovPolicy, np.ndarray]:
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.ones(3), size=(4, 3, 2))
    allowed = np.ones((3, 2), dtype=bool)
    allowed[seed % 3, 1] = seed % 2 == 0
    model = mmdp.MMDP(
        transitions, rng.normal(size=(4, 3, 2)), initial=[1, 0, 0], allowed=allowed, discount=0.9
    )
    policy = mmdp.MarkovPolicy.random(model, 6, seed=seed)
    return model, policy, mmdp.model_weights(policy, model).sum(axis=1)


def told(actions: np.ndarray, visited: np.ndarray, cuts: tuple[int, ...]) -> float:
    """The decisions that phases between these times tell at most, by trying every action."""
    total = 0.0
    for start, stop in zip((0, *cuts), (*cuts, len(actions)), strict=True):
        for s in range(actions.shape[1]):
            total += max(
                visited[start:stop, s][actions[start:stop, s] == a].sum() for a in range(2)
            )
    return total / visited.sum()


@pytest.mark.parametrize("seed", range(12))
def test_the_phases_tell_as_much_as_any(seed: int) -> None:
    model, policy, visited = problem(seed)
    rule = short_rule(policy, model, visited)
    best = [
        max(told(policy.actions, visited, cuts) for cuts in combinations(range(1, 6), k))
        for k in range(3)
    ]
    enough = min(ENOUGH, max(best) - 1e-12)
    count = next(k for k, share in enumerate(best, 1) if share >= enough)
    assert len(rule.phases) == count
    assert rule.share == pytest.approx(best[count - 1])
    assert [x.start for x in rule.phases[1:]] == [x.stop for x in rule.phases[:-1]]
    for phase in rule.phases:
        assert (rule.policy.actions[phase.start : phase.stop] == phase.row).all()


@pytest.mark.parametrize("seed", range(12))
def test_one_rule_and_one_action(seed: int) -> None:
    model, policy, visited = problem(seed)
    rows = [row for row in product(range(2), repeat=3) if model.allowed[np.arange(3), row].all()]
    values = {
        row: mmdp.evaluate(mmdp.MarkovPolicy([row] * 6, n_actions=2), model).mean for row in rows
    }
    found = one_rule(policy, model, visited)
    assert (found.actions == found.actions[0]).all()
    usual = short_rule(policy, model, visited, phases=1).policy
    value = mmdp.evaluate(found, model).mean
    assert value == pytest.approx(values[tuple(found.actions[0].tolist())])
    assert mmdp.evaluate(usual, model).mean - 1e-12 <= value <= max(values.values()) + 1e-12
    always = one_action(policy, model, visited)
    assert always is not None
    best = max(values[row] for row in rows if len(set(row)) == 1)
    assert mmdp.evaluate(always, model).mean == pytest.approx(best)


def test_no_action_is_allowed_everywhere() -> None:
    model = mmdp.MMDP(
        np.full((1, 2, 2, 2), 0.5), np.zeros((2, 2)), allowed=[[True, False], [False, True]]
    )
    policy = mmdp.MarkovPolicy([[0, 1]])
    assert one_action(policy, model, np.full((1, 2), 0.5)) is None
