"""What is at stake, and where people may choose, against plain numpy on models of three fields."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.measures import Stake, stake
from mmdp.measures.stakes import constant_policies
from tests.report.pages import written


def returns(model: mmdp.MMDP, table: np.ndarray) -> np.ndarray:
    """(M,) of a table (T, S), by pushing the distribution of the states forward."""
    P, r, states = model.transitions, model.rewards, np.arange(model.n_states)
    found = np.zeros(model.n_models)
    for m in range(model.n_models):
        x = model.initial
        for t, row in enumerate(table):
            found[m] += model.discount**t * float(x @ r[m, states, row])
            x = x @ P[m, states, row]
    return found


def hips(origin: float = 0.0) -> mmdp.MMDP:
    """A failed hip is revised or left; then nothing is decided, in one of two kinds of years."""
    P, r = np.zeros((2, 4, 2, 4)), np.zeros((2, 4, 2))
    P[:, 0, 0, 1] = P[:, 0, 1, 2] = 1.0
    for m, (left, revised) in enumerate(((0.2, 0.1), (0.3, 0.25))):
        for s, p in ((1, left), (2, revised)):
            P[m, s, :, 3], P[m, s, :, s] = p, 1 - p
    P[:, 3, :, 3] = 1.0
    r[:, 0, 1], r[:, 1], r[:, 2] = -250.0, 500.0, 800.0
    return mmdp.MMDP(
        P, r + origin, initial=[1, 0, 0, 0], unit="£", actions=["leave it", "revise"],
        states=["failed hip", "in pain", "well", "dead"],
    )  # fmt: skip


def fishery(origin: float = 0.0) -> mmdp.MMDP:
    """Few, some or many fish; they grow by chance, and a catch takes them down."""
    P, r = np.zeros((3, 3, 3, 3)), np.zeros((3, 3, 3))
    for m, grow in enumerate((0.2, 0.5, 0.7)):
        for s, a in itertools.product(range(3), range(3)):
            left = max(s - a, 0)
            P[m, s, a, min(left + 1, 2)] += grow
            P[m, s, a, left] += 1 - grow
            r[m, s, a] = 3.0 * min(s, a) - 0.5 * a
    return mmdp.MMDP(P, r + origin, initial=[0, 0, 1], discount=0.95, actions=["0", "1", "2"])


def shop(origin: float = 0.0) -> mmdp.MMDP:
    """Room for two items; a full shop cannot order."""
    P, r = np.zeros((2, 3, 2, 3)), np.zeros((2, 3, 2))
    for m, sale in enumerate((0.3, 0.8)):
        for s, a in itertools.product(range(3), range(2)):
            for sold, p in ((0, 1 - sale), (min(1, s), sale)):
                P[m, s, a, min(s - sold + a, 2)] += p
                r[m, s, a] += p * 5 * sold
            r[m, s, a] -= 3 * a + 0.2 * s
    allowed = [[True, True], [True, True], [True, False]]
    return mmdp.MMDP(P, r + origin, initial=[0, 1, 0], allowed=allowed, actions=["wait", "order"])


MODELS = {"hips": hips, "fishery": fishery, "shop": shop}


def by_hand(model: mmdp.MMDP, policy: mmdp.MarkovPolicy) -> tuple[float, float, list[float]]:
    """The value, what is at stake, and the values of all constant policies, the best first."""
    T = len(policy.actions)
    first = model.allowed.argmax(axis=1)
    rows = [np.where(model.allowed[:, a], a, first) for a in range(model.n_actions)]
    same = sorted((float(np.mean(returns(model, np.tile(x, (T, 1))))) for x in rows), reverse=True)
    value = float(np.mean(returns(model, policy.actions)))
    apart = [abs(value - x) for x in same if abs(value - x) > 1e-9]
    return value, apart[0], same


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("origin", [0.0, 53_000.0])
def test_the_difference_to_the_best_action_that_is_always_taken(name: str, origin: float) -> None:
    model = MODELS[name](origin)
    solution = mmdp.solve(model, 8)
    value, amount, same = by_hand(model, solution.policy)
    found = stake(solution, model)
    assert found.amount == pytest.approx(amount, rel=1e-6)
    always = constant_policies(solution.policy, model)
    values = [mmdp.evaluate(x.policy, model).mean for x in always]
    # a full shop has no choice, so that always ordering is a policy all the same
    assert values == pytest.approx(same)
    assert solution.value == pytest.approx(value)
    named = stake(solution, model, compare={"today": solution, "then": always[-1].policy})
    assert named == Stake(pytest.approx(value - same[-1], rel=1e-6), "then", model.unit)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_added_to_every_reward_frees_no_action(name: str) -> None:
    model, moved = MODELS[name](), MODELS[name](53_000.0)
    solution = mmdp.solve(model, 6)
    for tolerance in (0.0, 0.05, 0.5):
        plain, other = (mmdp.freedom(solution.policy, x, tolerance) for x in (model, moved))
        assert (plain.mixed == other.mixed)[plain.visited > 0].all()
        assert (plain.alone == other.alone)[~np.isnan(plain.loss)].all()
        assert other.allowance == pytest.approx(tolerance * by_hand(model, solution.policy)[1])


def test_a_card_offers_no_failed_hip_to_be_left(tmp_path: Path) -> None:
    """Leaving it costs all that the rule gains, though that is a hundredth of the net benefit."""
    model = hips(53_000.0)
    solution = mmdp.solve(model, 2)
    gain = returns(model, solution.policy.actions) - returns(model, np.zeros((2, 4), int))
    assert 0 < gain.mean() < 0.01 * solution.value
    free = mmdp.freedom(solution, model)
    assert free.mixed[0, 0].sum() == 1
    assert free.share == 0.0
    assert free.stake == Stake(pytest.approx(gain.mean()), "always leave it", "£")
    mmdp.export(solution, tmp_path / "card.html", model=model)
    text = (tmp_path / "card.html").read_text(encoding="utf-8")
    assert "of decisions are free" not in text
    lines = re.findall(r'<th scope="row">(.*?)</th>', text)
    assert set(lines) == {"failed hip"}  # nothing else is decided


def test_a_page_counts_decisions_that_decide(tmp_path: Path) -> None:
    model = hips(53_000.0)
    page = written(tmp_path, model, horizon=12, compare={"today": "leave it"})
    table = mmdp.solve(model, 12).policy.actions
    gain = np.mean(returns(model, table) - returns(model, np.zeros((12, 4), int)))
    assert f"It returns £{gain:,.0f} more than today" in page.text
    assert f"What is at stake: £{gain:,.0f} compared with today." in page.text
    assert "In 3 states no action changes anything" in page.text
    words = page.text.split("What to do ")[1].split("How safe")[0]
    assert "revise in state failed hip" in words
    assert "well" not in words
    runners = mmdp.measures.policy_table(mmdp.solve(model, 12), model)
    assert set(runners.loc[runners["runner_up"].notna(), "state"]) == {"failed hip"}


def test_a_policy_without_a_table_is_compared_too() -> None:
    model = hips()
    grid = mmdp.solve(model, 8, "grid")
    assert stake(grid, model).amount == pytest.approx(stake(mmdp.solve(model, 8), model).amount)


def test_a_state_that_decides_at_some_times_alone() -> None:
    """Every second year a licence may be renewed; in between nothing is decided."""
    P = np.tile(np.eye(1), (4, 2, 1, 2, 1))
    r = np.zeros((4, 2, 1, 2))
    r[::2, :, :, 1] = 1.0
    model = mmdp.MMDP(P, r, actions=["wait", "renew"])
    assert model.deciding.tolist() == [True]
    free = mmdp.freedom(mmdp.solve(model, 4), model)
    assert free.visited[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert free.share == 0.0  # 50% if the years in between counted


def test_something_is_at_stake_if_one_action_alone_is_open_everywhere() -> None:
    model = mmdp.MMDP(
        np.full((1, 2, 3, 2), 0.5), [[1.0, -9.0, 0.0], [0.5, 0.0, -3.0]], initial=[1, 0],
        allowed=[[1, 1, 0], [1, 0, 1]],
    )  # fmt: skip
    best = mmdp.solve(model, 3)
    found = mmdp.measures.stake(best, model)
    others = [mmdp.evaluate(mmdp.MarkovPolicy([row] * 3), model).mean for row in ([1, 0], [0, 2])]
    assert found.amount == pytest.approx(best.value - max(others))
    assert found.other == "action 2 wherever it is allowed"
