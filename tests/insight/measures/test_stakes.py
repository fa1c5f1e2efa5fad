"""What is at stake, and where people may choose, against plain numpy on models of three fields."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import mmdp
from mmdp.core.text import format_number
from mmdp.insight.measures import ValueAtStake, value_at_stake
from mmdp.insight.measures.stakes import make_constant_policies
from tests.cli.calls import run
from tests.insight.report.pages import write_page


def compute_returns(model: mmdp.MMDP, table: np.ndarray) -> np.ndarray:
    """(M,) of a table (T, S), by pushing the distribution of the states forward."""
    P, r, states = model.transitions, model.rewards, np.arange(model.n_states)
    returns_by_model = np.zeros(model.n_models)
    for m in range(model.n_models):
        state_probs = model.initial
        for t, row in enumerate(table):
            returns_by_model[m] += model.discount**t * float(state_probs @ r[m, states, row])
            state_probs = state_probs @ P[m, states, row]
    return returns_by_model


def make_hips(reward_offset: float = 0.0) -> mmdp.MMDP:
    """A failed hip is revised or left; then nothing is decided, in one of two kinds of years."""
    P, r = np.zeros((2, 4, 2, 4)), np.zeros((2, 4, 2))
    P[:, 0, 0, 1] = P[:, 0, 1, 2] = 1.0
    for m, (left_death_prob, revised_death_prob) in enumerate(((0.2, 0.1), (0.3, 0.25))):
        for s, p in ((1, left_death_prob), (2, revised_death_prob)):
            P[m, s, :, 3], P[m, s, :, s] = p, 1 - p
    P[:, 3, :, 3] = 1.0
    r[:, 0, 1], r[:, 1], r[:, 2] = -250.0, 500.0, 800.0
    return mmdp.MMDP(
        P,
        r + reward_offset,
        initial=[1, 0, 0, 0],
        unit="£",
        actions=["leave it", "revise"],
        states=["failed hip", "in pain", "well", "dead"],
    )


def make_fishery(reward_offset: float = 0.0) -> mmdp.MMDP:
    """Few, some or many fish; they grow by chance, and a catch takes them down."""
    P, r = np.zeros((3, 3, 3, 3)), np.zeros((3, 3, 3))
    for m, growth_prob in enumerate((0.2, 0.5, 0.7)):
        for s, a in itertools.product(range(3), range(3)):
            n_left = max(s - a, 0)
            P[m, s, a, min(n_left + 1, 2)] += growth_prob
            P[m, s, a, n_left] += 1 - growth_prob
            r[m, s, a] = 3.0 * min(s, a) - 0.5 * a
    return mmdp.MMDP(
        P, r + reward_offset, initial=[0, 0, 1], discount=0.95, actions=["0", "1", "2"]
    )


def make_shop(reward_offset: float = 0.0) -> mmdp.MMDP:
    """Room for two items; a full shop cannot order."""
    P, r = np.zeros((2, 3, 2, 3)), np.zeros((2, 3, 2))
    for m, sale_prob in enumerate((0.3, 0.8)):
        for s, a in itertools.product(range(3), range(2)):
            for n_sold, p in ((0, 1 - sale_prob), (min(1, s), sale_prob)):
                P[m, s, a, min(s - n_sold + a, 2)] += p
                r[m, s, a] += p * 5 * n_sold
            r[m, s, a] -= 3 * a + 0.2 * s
    allowed = [[True, True], [True, True], [True, False]]
    return mmdp.MMDP(
        P, r + reward_offset, initial=[0, 1, 0], allowed=allowed, actions=["wait", "order"]
    )


MODEL_FACTORIES = {"hips": make_hips, "fishery": make_fishery, "shop": make_shop}


def enumerate_constant_policies(
    model: mmdp.MMDP, policy: mmdp.policies.MarkovPolicy
) -> tuple[float, float, list[float]]:
    """The value, what is at stake, and the values of all constant policies, the best first."""
    T = len(policy.actions)
    first_allowed = model.allowed.argmax(axis=1)
    rows = [np.where(model.allowed[:, a], a, first_allowed) for a in range(model.n_actions)]
    constant_values = sorted(
        (float(np.mean(compute_returns(model, np.tile(x, (T, 1))))) for x in rows), reverse=True
    )
    value = float(np.mean(compute_returns(model, policy.actions)))
    differences = [abs(value - x) for x in constant_values if abs(value - x) > 1e-9]
    return value, differences[0], constant_values


@pytest.mark.parametrize("name", MODEL_FACTORIES)
@pytest.mark.parametrize("reward_offset", [0.0, 53_000.0])
def test_value_at_stake_against_constant_policies(name: str, reward_offset: float) -> None:
    model = MODEL_FACTORIES[name](reward_offset)
    solution = mmdp.solve(model, 8)
    value, amount, constant_values = enumerate_constant_policies(model, solution.policy)
    at_stake = value_at_stake(model, solution)
    assert at_stake.amount == pytest.approx(amount, rel=1e-6)
    constant_policies = make_constant_policies(solution.policy, model)
    values = [mmdp.evaluate(model, x.policy).mean for x in constant_policies]
    # a full shop has no choice, so that always ordering is a policy all the same
    assert values == pytest.approx(constant_values)
    assert solution.value == pytest.approx(value)
    named_at_stake = value_at_stake(
        model, solution, comparators={"today": solution, "then": constant_policies[-1].policy}
    )
    assert named_at_stake == ValueAtStake(
        pytest.approx(value - constant_values[-1], rel=1e-6), "then", model.unit
    )


@pytest.mark.parametrize("name", MODEL_FACTORIES)
def test_a_reward_offset_changes_no_action_sets(name: str) -> None:
    model, offset_model = MODEL_FACTORIES[name](), MODEL_FACTORIES[name](53_000.0)
    solution = mmdp.solve(model, 6)
    for tolerance in (0.0, 0.05, 0.5):
        near_optimal, offset_near_optimal = (
            mmdp.measures.near_optimal_actions(x, solution.policy, tolerance)
            for x in (model, offset_model)
        )
        assert (near_optimal.is_interchangeable == offset_near_optimal.is_interchangeable)[
            near_optimal.visit_probs > 0
        ].all()
        assert (near_optimal.is_near_optimal_alone == offset_near_optimal.is_near_optimal_alone)[
            ~np.isnan(near_optimal.loss)
        ].all()
        assert offset_near_optimal.max_loss == pytest.approx(
            tolerance * enumerate_constant_policies(model, solution.policy)[1]
        )


def test_a_card_omits_costly_alternatives(tmp_path: Path) -> None:
    """Leaving it costs all that the rule gains, though that is a hundredth of the net benefit."""
    model = make_hips(53_000.0)
    solution = mmdp.solve(model, 2)
    gain = compute_returns(model, solution.policy.actions) - compute_returns(
        model, np.zeros((2, 4), int)
    )
    assert 0 < gain.mean() < 0.01 * solution.value
    near_optimal = mmdp.measures.near_optimal_actions(model, solution)
    assert near_optimal.is_interchangeable[0, 0].sum() == 1
    assert near_optimal.share_interchangeable == 0.0
    assert near_optimal.at_stake == ValueAtStake(pytest.approx(gain.mean()), "always leave it", "£")
    mmdp.export(solution, tmp_path / "card.html", model=model)
    text = (tmp_path / "card.html").read_text(encoding="utf-8")
    assert "of decisions are free" not in text
    lines = re.findall(r'<th scope="row">(.*?)</th>', text)
    assert set(lines) == {"failed hip"}  # nothing else is decided


def test_a_page_counts_states_with_a_choice(tmp_path: Path) -> None:
    model = make_hips(53_000.0)
    page = write_page(tmp_path, model, horizon=12, comparators={"today": "leave it"})
    table = mmdp.solve(model, 12).policy.actions
    gain = np.mean(compute_returns(model, table) - compute_returns(model, np.zeros((12, 4), int)))
    assert f"It returns £{gain:,.0f} more than today" in page.text
    assert f"What is at stake: £{gain:,.0f} between today and this policy." in page.text
    assert "In 3 states no action changes anything" in page.text
    section_text = page.text.split("What to do ")[1].split("How safe")[0]
    assert "revise in state failed hip" in section_text
    assert "well" not in section_text
    runners = mmdp.measures.policy_table(model, mmdp.solve(model, 12))
    assert set(runners.loc[runners["runner_up"].notna(), "state"]) == {"failed hip"}


def test_a_policy_without_a_table_is_compared_too() -> None:
    model = make_hips()
    grid = mmdp.solve(model, 8, "grid")
    assert value_at_stake(model, grid).amount == pytest.approx(
        value_at_stake(model, mmdp.solve(model, 8)).amount
    )


def test_a_state_with_a_choice_at_some_times_only() -> None:
    """Every second year a licence may be renewed; in between nothing is decided."""
    P = np.tile(np.eye(1), (4, 2, 1, 2, 1))
    r = np.zeros((4, 2, 1, 2))
    r[::2, :, :, 1] = 1.0
    model = mmdp.MMDP(P, r, actions=["wait", "renew"])
    assert model.has_choice.tolist() == [True]
    near_optimal = mmdp.measures.near_optimal_actions(model, mmdp.solve(model, 4))
    assert near_optimal.visit_probs[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert near_optimal.share_interchangeable == 0.0  # 50% if the years in between counted


def test_value_at_stake_with_one_action_allowed_everywhere() -> None:
    model = mmdp.MMDP(
        np.full((1, 2, 3, 2), 0.5),
        [[1.0, -9.0, 0.0], [0.5, 0.0, -3.0]],
        initial=[1, 0],
        allowed=[[1, 1, 0], [1, 0, 1]],
    )
    best = mmdp.solve(model, 3)
    at_stake = mmdp.measures.value_at_stake(model, best)
    other_values = [
        mmdp.evaluate(model, mmdp.policies.MarkovPolicy([row] * 3)).mean for row in ([1, 0], [0, 2])
    ]
    assert at_stake.amount == pytest.approx(best.value - max(other_values))
    assert at_stake.reference == "action 2 wherever it is allowed"


# ---------------------------------------------------------------------- one stake everywhere
def machine() -> mmdp.MMDP:
    """Wear of 0 to 3; running pays less the more it is worn, and repair costs."""
    P = np.zeros((3, 4, 2, 4))
    for m, p in enumerate((0.2, 0.5, 0.8)):
        for s in range(4):
            P[m, s, 0, s] = 1 - p
            P[m, s, 0, min(s + 1, 3)] += p
            P[m, s, 1, 0] = 1.0
    r = [[9.0, -1.0], [7.0, -1.0], [2.0, -1.0], [-4.0, -1.0]]
    return mmdp.MMDP(
        P,
        r,
        initial=[1, 0, 0, 0],
        states=[f"wear {s}" for s in range(4)],
        unit="k€",
        actions=["run", "repair"],
    )


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_what_is_at_stake_is_the_same_on_page_card_and_terminal(
    objective: str, tmp_path: Path
) -> None:
    """A tree of one leaf is a constant action: the best policy known is not the page's own."""
    model, T = machine(), 8
    tree = mmdp.solve(model, T, policy_class=mmdp.policies.Tree(1), objective=objective)
    free = mmdp.solve(model, T, objective=objective)
    always = [np.full((T, 4), a) for a in range(2)]
    values = [mmdp.evaluate(model, mmdp.policies.MarkovPolicy(x)).value(objective) for x in always]
    best = max(free.value, tree.value + tree.restriction_cost)
    assert tree.value == pytest.approx(max(values))
    assert best > max(values) + 1
    in_worst = " in the worst case" * (objective == "worst")
    amount_text = f"{format_number(best - max(values), 3)} k€"
    text = f"{amount_text}{in_worst} between always run and the best policy"
    assert mmdp.measures.value_at_stake(model, tree).description == f"{text} found"
    assert mmdp.measures.near_optimal_actions(model, tree).at_stake == mmdp.measures.value_at_stake(
        model, tree
    )
    cost_text = f"being a tree costs {amount_text}"
    for page in (
        write_page(tmp_path, model, policy=tree),  # and as from a file, which has no solution:
        write_page(tmp_path, model, policy=tree.policy, objective=objective),
    ):
        assert f"What is at stake: {text} found." in page.text
        assert f"{cost_text} (100% of what is at stake)." in page.text
    mmdp.save(model, tmp_path / "machine")
    asked = ("solve", tmp_path / "machine", "-T", T, "--max-leaves", 1, "--objective", objective)
    shown = " ".join(run(*asked).out.split())
    assert tree.restriction_cost_text == cost_text
    assert f" restriction {cost_text} " in shown
    other = mmdp.measures.value_at_stake(
        model.subset([0]), tree
    )  # what is known is of other models
    assert other.policy == "this policy"


def test_a_single_action_keeps_to_the_decisions_that_are_given(tmp_path: Path) -> None:
    """In state 3 repair is given: "always run" is to run in all other states."""
    model, T, table = machine(), 8, np.zeros((8, 4), int)
    table[:, 3] = 1
    fixed = mmdp.solve(model, T, policy_class=mmdp.policies.Fixed({"wear 3": "repair"}))
    expected = fixed.best_value - compute_returns(model, table).mean()
    assert (
        compute_returns(model, np.zeros((T, 4), int)).mean() < compute_returns(model, table).mean()
    )
    at_stake = mmdp.measures.value_at_stake(model, fixed)
    assert at_stake.amount == pytest.approx(expected)
    assert f"What is at stake: {at_stake.description}." in (
        write_page(tmp_path, model, policy=fixed).text
    )


def test_a_share_above_all_that_is_at_stake_is_left_out(tmp_path: Path) -> None:
    """Each model wants another action: 0.005 is at stake, and knowing the model gains 0.5."""
    two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[1.0, 0.0]], [[0.0, 1.01]]])
    stake = ValueAtStake(2.0, "always run")
    assert stake.format_share(2.0) == " (100% of what is at stake)"
    assert stake.format_share(2.0 + 1e-12, round_up=True) == " (100% of what is at stake)"
    assert (
        stake.format_share(2.1)
        == stake.format_share(2.1, round_up=True)
        == stake.format_share(0.0)
        == ""
    )
    text = write_page(tmp_path, two, horizon=1).text
    assert "is worth at most 0.500 , compared with this policy." in text
    shares = [float(x.replace(",", "")) for x in re.findall(r"\(([\d.,]+)% of what is", text)]
    assert shares
    assert max(shares) <= 100


def test_a_comparator_that_is_one_action_is_told_once(tmp_path: Path) -> None:
    model = machine()
    page = write_page(tmp_path, model, horizon=8, comparators={"today": "run"})
    assert "Always run" not in page.text
    names = json.loads(page.scripts[1])["names"]
    assert names.count("today") == 1
    assert "always run" not in names
    text = write_page(tmp_path, model, horizon=8, comparators={"today": "repair"}).text
    assert "Always run costs" in text


@pytest.mark.parametrize("objective", ["worst", "cvar:0.4", "regret:worst"])
def test_one_rule_for_all_steps_is_never_told_to_be_worse_than_a_single_action(
    objective: str, tmp_path: Path
) -> None:
    """A single action is such a rule, and the rule is sought by the mean."""
    told = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        model = mmdp.MMDP(
            rng.dirichlet(np.ones(3), size=(5, 3, 2)),
            rng.normal(size=(5, 3, 2)) * 3,
            initial=[1, 0, 0],
        )
        best = mmdp.solve(model, 3, objective=objective)
        always = [
            mmdp.evaluate(model, mmdp.policies.MarkovPolicy(np.full((3, 3), a))).value(objective)
            for a in range(2)
        ]
        text = write_page(tmp_path, model, policy=best).text
        if found := re.search(r"One rule for all steps worsens the [^.]*? by ([\d.]+)", text):
            assert float(found[1]) <= best.value - max(always) + 0.01
            told += 1
    assert told
