"""Pages read sentence by sentence, against numbers computed apart: plain numpy, all policies."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import mmdp
from mmdp.cli.app import app
from mmdp.core.text import format_bound, format_bound_percent, format_number, format_percent
from mmdp.insight.report import findings
from mmdp.insight.report.context import ReportContext
from tests.insight.report.pages import Page, write_page
from tests.instances import seed_ranges

GAMMA, START, WEIGHTS = 0.9, np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.3, 0.4])


class ReferenceReturns:
    """Returns of every policy of time and state over T steps, by matrix products."""

    def __init__(self, P: np.ndarray, r: np.ndarray, T: int, states: int, actions: int) -> None:
        self.P, self.r, self.T = P, r, T
        tables = itertools.product(range(actions), repeat=T * states)
        self.tables = np.array(list(tables)).reshape(-1, T, states)
        self.returns = np.array(
            [self.evaluate(table) for table in self.tables]
        )  # (policies, models)
        self.means = self.returns @ WEIGHTS
        self.oracle = self.returns.max(axis=0)

    def evaluate(self, table: np.ndarray) -> np.ndarray:
        """(M,) returns of one policy."""
        returns, states = [], np.arange(table.shape[1])
        for P, r in zip(self.P, self.r, strict=True):
            x, total = START[: len(states)], 0.0
            for t, row in enumerate(table):
                total += GAMMA**t * float(x @ r[states, row])
                x = x @ P[states, row]
            returns.append(total)
        return np.array(returns)

    def visit_probs(self, table: np.ndarray) -> np.ndarray:
        """(T, S) probability of each state at each time."""
        states, probs = np.arange(table.shape[1]), []
        x = [START[: len(states)] for _ in self.P]
        for row in table:
            probs.append(sum(w * y for w, y in zip(WEIGHTS, x, strict=True)))
            x = [y @ P[states, row] for y, P in zip(x, self.P, strict=True)]
        return np.array(probs)

    def compute_stake(self, returns: np.ndarray) -> float:
        """To the best policy of one action that does not have the same mean."""
        same = [(self.tables == a).all(axis=(1, 2)).argmax() for a in range(self.tables.max() + 1)]
        differences = np.abs(np.sort(self.means[same])[::-1] - returns @ WEIGHTS)
        return float(differences[differences > 1e-12][0])

    def quantile(self, returns: np.ndarray, level: float) -> float:
        order = np.argsort(returns)
        return float(returns[order][np.cumsum(WEIGHTS[order]) >= level - 1e-12][0])

    def cvar(self, returns: np.ndarray, level: float) -> float:
        """Mean of the worst models of that weight in all."""
        remaining, total = level, 0.0
        for m in np.argsort(returns):
            total += min(remaining, WEIGHTS[m]) * returns[m]
            remaining -= min(remaining, WEIGHTS[m])
        return total / level


def common_sentences(
    reference: ReferenceReturns,
    returns: np.ndarray,
    best: np.ndarray | None = None,
    restricted: bool = False,
    better: float | None = None,
) -> list[str]:
    """Sentences that every page has, from the returns (M,) of its policy.

    ``best``: those of the best policy known of the kind; ``better``: the mean that CADP finds, if
    that is more.
    """
    stake = reference.compute_stake(returns if best is None else best)
    mean, oracle_mean = float(returns @ WEIGHTS), float(reference.oracle @ WEIGHTS)
    missing = format_bound(oracle_mean - mean, 3)
    part, free_mean = 0.01 * stake, reference.means.max()
    gain = oracle_mean - (free_mean if restricted else mean if better is None else better)
    share = f" ({format_bound_percent(gain / stake)} of what is at stake)" if gain <= stake else ""
    base = "this policy" if better is None else "the best policy"
    if restricted:
        base = f"the best policy of time and state that was found ({format_number(free_mean)})"
    near_weight = WEIGHTS[reference.oracle - returns <= part + 1e-12].sum()
    least = (reference.oracle - returns).min()
    near_text = (
        f"In every model the policy loses at least {format_bound(-least, 3).removeprefix('−')}"
        + (f" ({format_percent(least / stake)} of what is at stake)" if least <= stake else "")
        + " against"
    )
    if near_weight:
        near_text = (
            f"In {format_percent(near_weight)} of the models the policy is within "
            f"{format_number(part, 3)} (1.0% of what is at stake) of"
        )
    return [
        f"returns {format_number(mean)} on average over the 4 models.",
        f"It returns {format_number(returns[0])} in model 0, {format_number(returns[1])} in "
        f"model 1, {format_number(returns[2])} in "
        f"model 2 and {format_number(returns[3])} in model 3.",
        f"{format_number(returns.min())} worst model "
        f"{format_number(reference.cvar(returns, 0.1))} worst tenth, mean (CVaR 10%)",
        f"A policy that learns which models are plausible could return at most "
        f"{format_bound(gain, 3)}{share} more than {base}",
        f"so this policy is at most {missing}",
        f"{format_number(np.sqrt(WEIGHTS @ (returns - mean) ** 2))} standard deviation over models",
        f"{format_number(oracle_mean - mean, 3)} regret, mean "
        f"{format_number((reference.oracle - returns).max(), 3)} largest regret",
        f"{near_text} the model's optimum",
    ]


def check_sentences(page: Page, sentences: list[str]) -> None:
    for sentence in sentences:
        assert sentence in page.text, f"{sentence!r} is not in {page.text[:6000]}"


def format_cost(best: float, other: float, stake: float) -> str:
    loss = best - other
    share = (
        f" ({format_percent(loss / stake)} of what is at stake)"
        if loss < stake * (1 - 1e-9)
        else ""
    )
    return f"costs {format_number(loss, 3)}{share}" if loss > 1e-9 * abs(best) else "costs nothing"


# ---------------------------------------------------------------------- tied
def tied_problem(seed: int) -> tuple[ReferenceReturns, mmdp.MMDP]:
    rng = np.random.default_rng(seed)
    P, r = rng.dirichlet(np.ones(3), size=(4, 3, 2)), rng.normal(size=(4, 3, 2)).round(1)
    model = mmdp.MMDP(
        P,
        r,
        initial=START,
        discount=GAMMA,
        weights=WEIGHTS,
        states=["mild", "bad", "well"],
        actions=["wait", "treat"],
        parameters={"x": [1, 1, 2, 2]},
    )
    return ReferenceReturns(P, r, 2, 3, 2), model


@pytest.mark.parametrize("seeds", seed_ranges(1, 10))
def test_the_page_of_a_tied_policy(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        check_tied_page(seed, tmp_path)


def check_tied_page(seed: int, tmp_path: Path) -> None:
    x, model = tied_problem(seed)
    tied = (x.tables[:, :, 0] == x.tables[:, :, 1]).all(axis=1)
    solution = mmdp.solve(
        model,
        2,
        mmdp.methods.CADP(n_init=64),
        policy_class=mmdp.policies.Tied({"mild": 1, "bad": 1, "well": 2}),
    )
    best = x.means[tied].max()
    assert solution.value == pytest.approx(best)
    page = write_page(tmp_path, model, policy=solution, voi=True)
    returns = x.evaluate(solution.policy.actions)
    oracle_mean = float(x.oracle @ WEIGHTS)
    class_evpi = float(x.returns[tied].max(axis=0) @ WEIGHTS) - best
    groups = [np.array([0, 1]), np.array([2, 3])]
    grouped_evpi = sum((x.returns[tied][:, g] @ WEIGHTS[g]).max() for g in groups) - best
    constant = tied & (x.tables[:, 0] == x.tables[:, 1]).all(axis=1)
    same = [x.means[(x.tables == a).all(axis=(1, 2))][0] for a in range(2)]
    best_action = int(np.argmax(same))
    free = x.returns[x.means.argmax()]
    stake = x.compute_stake(free)
    check_sentences(
        page,
        [
            *common_sentences(x, returns, free, restricted=True),
            "Knowing the model before the first decision is worth about "
            f"{format_number(class_evpi, 3)} with tied policies and at most "
            f"{format_bound(oracle_mean - best, 3)} ",
            "The value with tied policies is estimated by a search for the best such policy in "
            "each model.",
            f"Knowing x alone is worth {format_number(grouped_evpi, 3)}.",
            f"x {format_number(grouped_evpi)} {format_percent(grouped_evpi / class_evpi)} exact",
            "Someone who knew the true model and could use any policy could return "
            f"{format_number(oracle_mean)} on "
            f"average, {format_number(oracle_mean - best, 3)} more than this policy. In the model "
            "where the difference "
            f"is largest, it is {format_number((x.oracle - returns).max(), 3)}.",
            "Compared with the best policy found without the restriction "
            f"({format_number(x.means.max())}), being tied "
            f"{format_cost(x.means.max(), best, stake)}",
            "tied: decisions depend on the time and the group of the state (the same action in "
            "mild, "
            "bad)",
        ],
    )
    if (solution.policy.actions != best_action).any():  # otherwise there is nothing simpler
        check_sentences(
            page,
            [f"Always {model.action_labels[best_action]} {format_cost(best, max(same), stake)}."],
        )
    one = format_cost(best, x.means[constant].max(), stake)
    assert x.means[constant].max() >= max(same)
    if "One rule for all steps" in page.text:  # otherwise it is the short rule
        assert f"One rule for all steps {one}{' or less' if 'nothing' not in one else ''}." in (
            page.text
        )
    assert "finds one that returns" not in page.text
    for line in ("CADP (tied)", "tied policies"):
        assert line in page.text


def test_two_tied_states_of_which_each_model_wants_another_action(tmp_path: Path) -> None:
    """Free to choose, knowing the model is worth nothing; tied, it is worth 0.1 of 0.2."""
    r = [[[0.6, 0.0], [0.0, 0.2]], [[0.2, 0.0], [0.0, 0.6]]]
    P = np.broadcast_to(np.eye(2)[:, None], (2, 2, 2, 2))
    model = mmdp.MMDP(P, r, initial=[0.5, 0.5], states=["left", "right"])
    tied = mmdp.solve(model, 1, policy_class=mmdp.policies.Tied([0, 0]))
    assert tied.value == pytest.approx(0.2)  # each action: (0.6 + 0.2) / 2 / 2
    assert mmdp.solve(model, 1).evpi == pytest.approx(0)
    assert mmdp.measures.evpi(model, 1, method=tied) == pytest.approx(0.1)  # 0.3 in each model
    assert mmdp.measures.evppi(model, 1, [1.0, 2.0], method=tied) == pytest.approx(0.1)
    text = write_page(tmp_path, model, policy=tied).text
    assert "Knowing the model before the first decision is worth at most 0.200 " in text
    model = model.replace(parameters={"x": [1.0, 2.0]})
    sentence = (
        "Knowing the model before the first decision is worth about 0.100 with tied policies and "
        "at most 0.200 "
    )
    assert sentence in write_page(tmp_path, model, policy=tied, voi=True).text
    assert "CADP finds" not in text
    free = mmdp.policies.MarkovPolicy.for_model(model, [[0, 1]])
    assert findings.compare_methods(ReportContext(model, None, free)).oracle_gain == pytest.approx(
        0
    )


def test_a_better_policy_of_the_class_is_reported() -> None:
    x, model = tied_problem(1)
    policy_class = mmdp.policies.Tied([0, 0, 1])
    worst = mmdp.policies.MarkovPolicy(
        1 - mmdp.solve(model, 2, policy_class=policy_class).policy.actions
    )
    poor_solution = mmdp.solve(
        model, 2, mmdp.methods.CADP(init=worst, n_init=1, max_iter=1), policy_class=policy_class
    )
    best = ReportContext(model, None, poor_solution).best_solution
    tied = (x.tables[:, :, 0] == x.tables[:, :, 1]).all(axis=1)
    assert best is not None
    assert best.provenance.policy_class.name == "tied"
    assert poor_solution.value <= best.value <= x.means[tied].max() + 1e-9


@pytest.mark.parametrize(
    "policy_class",
    [mmdp.policies.Tied([0, 0, 1]), mmdp.policies.Monotone(), mmdp.policies.Fixed([1, -1, -1])],
)
@pytest.mark.parametrize("seed", range(3))
def test_simpler_policies_are_of_the_class(
    policy_class: mmdp.policies.PolicyClass, seed: int
) -> None:
    _, model = tied_problem(seed)
    solution = mmdp.solve(model, 6, policy_class=policy_class)
    context = ReportContext(model, None, solution)
    for alternative in (
        findings.summarize(context).phased_row,
        *findings.find_simpler_policies(context),
    ):
        actions = alternative.policy.actions
        if policy_class.name == "tied":
            assert (actions[:, 0] == actions[:, 1]).all()
        elif policy_class.name == "monotone":
            assert (np.diff(actions, axis=1) >= 0).all()
        else:
            assert (actions[:, 0] == 1).all()


def test_the_policy_class_is_shown() -> None:
    _, model = tied_problem(0)
    order = mmdp.policies.Monotone(states=[["well", "mild"], ["bad"]], actions=["treat", "wait"])
    assert order.describe(model, 2) == "states well < mild; actions treat < wait"
    assert (
        mmdp.policies.Monotone().describe(model, 2)
        == "states mild < bad < well; actions wait < treat"
    )
    assert mmdp.policies.Fixed({"bad": "treat"}).describe(model, 2) == "bad: treat"
    assert (
        mmdp.policies.Fixed([[-1, -1, -1], [0, -1, 1]]).describe(model, 2)
        == "mild: by time; well: by time"
    )
    assert mmdp.policies.Tied([0, 1, 2]).describe(model, 2) == ""


# ---------------------------------------------------------------------- what is done today
@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_gain_over_current_practice(objective: str, tmp_path: Path) -> None:
    """A fixed action, and a randomized table, whose return is the mean over all its tables."""
    x, model = tied_problem(3)
    other, test = tied_problem(4)
    probs = np.random.default_rng(0).dirichlet(np.ones(2), size=(2, 3))
    randomized_policy = mmdp.policies.MarkovPolicy.for_model(model, probabilities=probs)
    solution = mmdp.solve(model, 2, objective=objective)
    page = write_page(
        tmp_path,
        model,
        policy=solution,
        test_model=test,
        comparators={"clinicians": randomized_policy, "never": "wait"},
    )
    table = solution.policy.actions
    objective_value = (lambda y: y @ WEIGHTS) if objective == "mean" else np.min

    def evaluate_randomized(numbers: ReferenceReturns) -> np.ndarray:
        table_probs = np.take_along_axis(probs[None], numbers.tables[..., None], 3)[..., 0]
        return table_probs.prod(axis=(1, 2)) @ numbers.returns

    for name, evaluate_other in {
        "clinicians": evaluate_randomized,
        "never": lambda n: n.evaluate(np.zeros((2, 3), int)),
    }.items():
        phrases = []
        for numbers in (x, other):
            returns, other_returns = numbers.evaluate(table), evaluate_other(numbers)
            gain, better = (
                objective_value(returns) - objective_value(other_returns),
                returns > other_returns + 1e-9,
            )
            direction = (
                ("more", "higher")[objective == "worst"]
                if gain >= 0
                else ("less", "lower")[objective == "worst"]
            )
            conjunction = "and it returns more " if objective == "worst" else "and more "
            part = f"({format_percent(WEIGHTS[better].sum())} of the weight)"
            part = f" {part}" if abs(WEIGHTS[better].sum() - better.mean()) > 1e-6 else ""
            phrases.append(
                (
                    format_number(abs(gain), 3),
                    direction,
                    f"{conjunction}in {'all' if better.all() else f'{better.sum()} of'} 4 models"
                    f"{part}",
                )
            )
        (gain, direction, better_text), (test_gain, test_direction, test_better_text) = phrases
        than_text = "than that of" if objective == "worst" else "than"
        check_sentences(
            page,
            [
                f"{gain} {direction} {than_text} {name}, {better_text}; on the held-out models "
                f"{test_gain} {test_direction}, "
                f"{test_better_text}."
            ],
        )
        assert (
            f"{name} {format_number(evaluate_other(x) @ WEIGHTS, 5)}" in page.text
        )  # a row of the tables


# ---------------------------------------------------------------------- many models, or dice
def test_how_safe_it_is_over_many_models(tmp_path: Path) -> None:
    """One state and step: a model returns the reward of the one action, drawn apart."""
    rewards = np.random.default_rng(2).normal(size=25) * 10_000
    model = mmdp.MMDP(np.ones((25, 1, 2, 1)), np.stack([rewards, rewards - 1], 1)[:, None])
    order = np.sort(rewards)
    tail = (order[0] + order[1] + 0.5 * order[2]) / 2.5  # a tenth of 25
    check_sentences(
        write_page(tmp_path, model, horizon=1),
        [
            f"In 21 of 25 models it returns between {format_number(order[2])} and "
            f"{format_number(order[22])}. The worst is model {rewards.argmin()} with "
            f"{format_number(order[0])}; "
            f"the worst tenth average {format_number(tail)}.",
        ],
    )


def test_a_randomized_policy(tmp_path: Path) -> None:
    x, model = tied_problem(6)
    probs = np.random.default_rng(1).dirichlet(np.ones(2), size=(2, 3))
    probs[0, 0], probs[1, 1:] = [1.0, 0.0], [0.0, 1.0]
    policy = mmdp.policies.MarkovPolicy.for_model(model, probabilities=probs)
    table_probs = np.take_along_axis(probs[None], x.tables[..., None], 3)[..., 0].prod(axis=(1, 2))
    visits = sum(p * x.visit_probs(table) for p, table in zip(table_probs, x.tables, strict=True))
    summary = findings.summarize(ReportContext(model, None, policy))
    for a in range(2):
        action_share = (visits * probs[:, :, a]).sum() / visits.sum()
        assert dict(summary.frequent_actions)[model.action_labels[a]] == pytest.approx(action_share)
    sentence = visits[probs.max(axis=2) < 1].sum() / visits.sum()
    page = write_page(tmp_path, model, policy=policy)
    check_sentences(
        page,
        [
            *common_sentences(
                x, table_probs @ x.returns, x.returns[x.means.argmax()], better=x.means.max()
            ),
            f"In {format_percent(sentence)} of the decisions that come up it draws the action "
            "at random",
        ],
    )
    differ = json.loads(page.scripts[1])["shareDiffering"]
    names = json.loads(page.scripts[1])["names"]
    table = mmdp.solve(model, 2).policy.actions
    other = (visits * (1 - np.take_along_axis(probs, table[..., None], 2)[..., 0])).sum()
    assert differ[names.index("this policy")][names.index("CADP")] == pytest.approx(other / 2)


def test_words_say_where_actions_are_randomized(tmp_path: Path) -> None:
    """Two models that differ by less than anyone reads: their spread is 0 on the page."""
    r = np.tile([1.0, 2.0], (2, 2, 1))
    model = mmdp.MMDP(
        np.full((2, 2, 2, 2), 0.5),
        r * [[[1.0]], [[1.0 + 1e-9]]],
        states=["up", "down"],
        actions=["wait", "treat"],
    )
    policy = mmdp.policies.StationaryPolicy(
        probabilities=[[1, 0], [0.3, 0.7]],
        state_labels=["up", "down"],
        action_labels=["wait", "treat"],
    ).to_markov(3)
    page = write_page(tmp_path, model, policy=policy)
    assert "At every step: wait in state up, treat in state down (70% of the time)." in page.text
    assert "0 standard deviation over models" in page.text


# ---------------------------------------------------------------------- off the grid
def pond(state: Any, action: Any, sample: Any) -> Any:
    """A level that falls by a share and rises by what is added; nothing is left to chance."""
    level = state["level"] * sample["keep"] + 0.3 * action["add"]
    return {"level": level}, np.minimum(level, 1.0) - 0.1 * action["add"]


def test_the_value_without_the_grid_is_shown(tmp_path: Path) -> None:
    """Episodes by hand; a wide bound explains the difference, a close one does not."""
    model = mmdp.from_step(
        pond,
        states={"level": mmdp.Grid(0, 2, 5)},
        actions={"add": range(3)},
        samples={"keep": [0.5, 0.7]},
        initial={"level": 0.3},
        discount=0.9,
    )
    solution, simulated = mmdp.solve(model, 6), []
    for keep in (0.5, 0.7):
        level, total = 0.3, 0.0
        for t in range(6):
            add = int(solution.policy.actions[t, round(level / 0.5)])
            level = level * keep + 0.3 * add
            total += 0.9**t * (min(level, 1.0) - 0.1 * add)
        simulated.append(total)
    difference = solution.value - np.mean(simulated)
    assert abs(difference) > 0.001
    page = write_page(tmp_path, model, policy=solution)
    less = "less" if difference > 0 else "more"
    check_sentences(
        page,
        [
            f"it returns {format_number(solution.value)} on average; simulated with your function "
            "itself, "
            f"{format_number(np.mean(simulated))} ± 0 ",
            f"Without the grid the policy returns {format_number(abs(difference), 3)} {less} "
            "than the model says, "
            "which is more than chance explains: make the grid finer.",
        ],
    )
    for share, coarse in ((2, False), (0.5, True)):
        context = ReportContext(
            model, None, solution, bound=solution.value + share * abs(difference)
        )
        assert findings.check_off_grid(context)[0].is_coarse == coarse


# ---------------------------------------------------------------------- memory
def test_the_page_of_a_policy_with_memory(tmp_path: Path) -> None:
    """Its returns by hand: a chain over states and nodes."""
    model, _ = mmdp.domains.two_models()
    policy = mmdp.solve(model, 9, policy_class=mmdp.policies.Memory(2)).policy
    returns = []
    for m in range(2):
        x, total = np.zeros((4, 2)), 0.0
        x[np.arange(4), policy.initial_nodes] = model.initial
        for t in range(9):
            x_next = np.zeros_like(x)
            for s, n in itertools.product(range(4), range(2)):
                a = policy.actions[t, s, n]
                total += x[s, n] * model.rewards[m, s, a]
                for s2 in range(4):
                    x_next[s2, policy.node_transitions[t, s, n, s2]] += (
                        x[s, n] * model.transitions[m, s, a, s2]
                    )
            x = x_next
        returns.append(total)
    best = mmdp.solve(model, 9)
    gain = np.mean(returns) - best.value
    constant_policies = [
        mmdp.policies.MarkovPolicy(np.full((9, 4), a), n_actions=model.n_actions) for a in range(2)
    ]
    stake = best.value - min(mmdp.evaluate(model, x).mean for x in constant_policies)
    assert (best.policy.actions[:, 0] == 0).all()  # so it is compared with the other action
    better = int((np.array(returns) > best.returns + 1e-9).sum())
    mmdp.save(model, tmp_path / "two.npz")
    mmdp.save_policy(policy, tmp_path / "chart.json")
    out = tmp_path / "page.html"
    words = ("report", tmp_path / "two.npz", "--policy", tmp_path / "chart.json", "-o", out)
    result = CliRunner().invoke(app, [*map(str, words), "--time-limit", "0.1"])
    assert result.exit_code == 0, result.output
    page = Page(out.read_text(encoding="utf-8"))
    check_sentences(
        page,
        [
            f"with 2 nodes of memory, returns {format_number(np.mean(returns))} on average",
            f"That is {format_number(gain, 3)} ({format_percent(gain / stake)} of what is at "
            "stake) more than CADP "
            f"finds without memory, and more in {better} of 2 models.",
            f"the given policy, 2 nodes {format_number(np.mean(returns), 5)}",
        ],
    )
    assert "Node 1" in page.text  # the flow chart


# ---------------------------------------------------------------------- a small rule
def list_small_tree_tables() -> dict[int, np.ndarray]:
    """All tables (2, 3) of trees with one leaf, or two, by number of leaves: by numpy alone."""
    one = [np.full((2, 3), a) for a in range(2)]
    conditions = [np.broadcast_to(np.arange(3) <= threshold, (2, 3)) for threshold in range(2)]
    conditions += [np.broadcast_to(np.array([[True], [False]]), (2, 3))]
    two = [np.where(condition, a, 1 - a) for condition in conditions for a in range(2)]
    return {1: np.array(one), 2: np.array(one + two)}


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_the_smallest_rule_within_one_percent(objective: str, tmp_path: Path) -> None:
    leaf_counts = []
    for seed in (11, 3, 0) if objective == "mean" else (0, 7):
        x, model = tied_problem(seed)
        model = model.replace(states=["stock 0", "stock 1", "stock 2"])
        model = model.replace(rewards=model.rewards + 3)  # 1% of the value is then much more
        objective_value = (
            (lambda y: y @ WEIGHTS) if objective == "mean" else (lambda y: y.min(axis=-1))
        )
        x = ReferenceReturns(x.P, x.r + 3, 2, 3, 2)
        best = objective_value(x.returns).max()
        policy = mmdp.solve(model, 2, mmdp.methods.CADP(n_init=32), objective=objective)
        assert policy.value == pytest.approx(best)
        page = write_page(tmp_path, model, policy=policy, small_tree=True)
        value_by_leaves = {
            k: max(objective_value(x.evaluate(y)) for y in tables)
            for k, tables in list_small_tree_tables().items()
        }
        constant = sorted(objective_value(x.evaluate(y)) for y in list_small_tree_tables()[1])
        stake = best - max(y for y in constant if y < best - 1e-9)
        min_value = best - 0.01 * stake - 1e-9
        leaves = next((k for k, value in value_by_leaves.items() if value >= min_value), None)
        section = page.text.split("What to do ")[1].split("How safe")[0]
        leaf_counts.append(leaves)
        if leaves is None:
            assert "A rule of 1 leaf " not in page.text
            assert "A rule of 2 leaves " not in page.text
            continue
        value_loss = best - value_by_leaves[leaves]
        verb = "costs" if objective == "mean" else "worsens the worst case by"
        percent = format_percent(value_loss / stake)
        share = f"{verb} {format_number(value_loss, 3)} ({percent} of what is at stake)"
        loss = share if value_loss > 1e-9 * best else "costs nothing"
        assert f"A rule of {leaves} {'leaf' if leaves == 1 else 'leaves'} {loss}." in page.text
        assert ("always: " if leaves == 1 else "otherwise: ") in section
    assert leaf_counts == ([2, 1, None] if objective == "mean" else [None, 2])


# ---------------------------------------------------------------------- absorbing
def test_the_page_of_a_problem_with_an_absorbing_state(tmp_path: Path) -> None:
    """Discharged patients stay so: whatever the table says about them is no decision."""
    rng = np.random.default_rng(5)
    P = np.zeros((4, 3, 2, 3))
    P[:, :2] = rng.dirichlet([1.0, 1.0, 4.0], size=(4, 2, 2))
    P[:, 2, :, 2] = 1.0
    r = rng.normal(size=(4, 3, 2)).round(1)
    r[:, 2] = 0.0
    model = mmdp.MMDP(
        P,
        r,
        initial=START,
        discount=GAMMA,
        weights=WEIGHTS,
        states=["ill", "very ill", "discharged"],
        actions=["drug 0", "drug 1"],
    )
    x = ReferenceReturns(P, r, 3, 3, 2)
    solution = mmdp.solve(model, 3)
    page = write_page(tmp_path, model, policy=solution)
    table, returns = solution.policy.actions, x.evaluate(solution.policy.actions)
    visits = x.visit_probs(table)
    action_shares = [visits[:, :2][table[:, :2] == a].sum() / visits[:, :2].sum() for a in range(2)]
    context = ReportContext(model, None, solution)
    summary = findings.summarize(context)
    usual_actions = dict(summary.frequent_actions)
    for a in range(2):
        assert usual_actions.get(f"drug {a}", 0.0) == pytest.approx(action_shares[a])
    best, oracle_mean = float(returns @ WEIGHTS), float(x.oracle @ WEIGHTS)
    same = [x.means[(x.tables[:, :, :2] == a).all(axis=(1, 2))].max() for a in range(2)]
    best_action = int(np.argmax(same))
    check_sentences(
        page,
        [
            *common_sentences(x, returns),
            # 648% of what is at stake would say nothing
            "Knowing the model before the first decision is worth at most "
            f"{format_bound(oracle_mean - best, 3)} , "
            "compared with this policy.",
            f"could return {format_number(oracle_mean)} on average, "
            f"{format_number(oracle_mean - best, 3)} more than this policy.",
            f"the difference is largest, it is {format_number((x.oracle - returns).max(), 3)}.",
            f"Always drug {best_action} "
            f"{format_cost(best, same[best_action], x.compute_stake(returns))}.",
            "In 1 state no action changes anything, so it is not shown and does not count as a "
            "decision: discharged.",
            f"ill {format_number(visits[:, 0].sum(), 3)} 0",
            f"very ill {format_number(visits[:, 1].sum(), 3)} 0",
        ],
    )
    words = page.text.split("What to do ")[1].split("How safe")[0]
    assert "discharged" not in words
    assert "discharged" not in page.text.split("Action by time")[1].split("What safety costs")[0]
    share = visits[:, :2][context.phased_policy.policy.actions[:, :2] == table[:, :2]].sum()
    assert context.phased_policy.agreement == pytest.approx(share / visits[:, :2].sum())
    assert page.scripts[0].count("discharged") == 0


# ---------------------------------------------------------------------- stationary
def test_the_page_of_a_stationary_policy(tmp_path: Path) -> None:
    """One rule for ever, shown over three decisions: compared with other rules of that kind."""
    rng = np.random.default_rng(8)
    P, r = rng.dirichlet(np.ones(3), size=(4, 3, 2)), rng.normal(size=(4, 3, 2)).round(1)
    model = mmdp.MMDP(P, r, initial=START, discount=GAMMA, weights=WEIGHTS)
    rule = mmdp.solve(model, math.inf)
    x = ReferenceReturns(P, r, 3, 3, 2)
    returns = x.evaluate(np.tile(rule.policy.actions, (3, 1)))
    best, oracle_mean = float(returns @ WEIGHTS), float(x.oracle @ WEIGHTS)
    same = max(x.means[(x.tables == a).all(axis=(1, 2))][0] for a in range(2))
    page = write_page(tmp_path, model, policy=rule, horizon=3)
    check_sentences(
        page,
        [
            *common_sentences(x, returns, restricted=True),
            "Knowing the model before the first decision is worth at most "
            f"{format_bound(oracle_mean - best, 3)} ",
            f"and could use any policy could return {format_number(oracle_mean)} on average, "
            f"{format_number(oracle_mean - best, 3)} more than this policy.",
            "stationary: decisions depend on the state alone",
            "Following these words to the letter costs nothing.",
            format_cost(best, same, x.compute_stake(returns)),
        ],
    )
    assert "finds one that returns" not in page.text
    assert "being stationary costs" not in page.text  # that is for ever, not three decisions
    with pytest.raises(mmdp.InputError, match="stationary; pass horizon=50"):
        write_page(tmp_path, model, policy=rule)


def test_a_file_of_a_stationary_policy_is_shown_as_such(tmp_path: Path) -> None:
    """What is proven for ever does not hold for ten decisions and a terminal value."""
    train, _ = mmdp.domains.load_published("hiv")
    mmdp.save(train.subset(range(8)), tmp_path / "hiv")
    model = mmdp.load(tmp_path / "hiv")
    rule = mmdp.solve(model, math.inf, certify_time=0.3)
    mmdp.save_policy(rule, tmp_path / "rule.json")
    out = tmp_path / "page.html"
    arguments = (
        "report",
        tmp_path / "hiv",
        "--policy",
        tmp_path / "rule.json",
        "-T",
        10,
        "-o",
        out,
    )
    result = CliRunner().invoke(app, [str(x) for x in arguments])
    assert result.exit_code == 0, result.output
    text = Page(out.read_text(encoding="utf-8")).text
    assert "stationary: decisions depend on the state alone" in text
    assert "No proof is shown: the one in the file is for the mean over an infinite horizon" in text
    evaluation = mmdp.evaluate(model, rule.policy.to_markov(10))
    assert f"so this policy is at most {format_bound(evaluation.bayes_regret, 3)}" in text


def test_near_optimal_actions_section(tmp_path: Path) -> None:
    """One state, three decisions: the second action costs .01 of 4 each time, the third all."""
    two = mmdp.MMDP([[[[1.0], [1.0], [1.0]]]] * 2, [[[4.0, 3.98, 0]], [[4.0, 4.0, 0]]])
    options = {"horizon": 3, "comparators": {"today": 2}}
    page = write_page(tmp_path, two, **options).text
    assert 3 * (4 - (3.98 + 4.0) / 2) <= 0.01 * 12  # any mixture of the first two
    part = "0.120 (1% of what is at stake, 12 between today and this policy)"
    sentence = "All decisions are free: choosing among their actions at will costs at most"
    assert f"{sentence} {part} in all." in page
    costly_page = write_page(tmp_path, two.replace(rewards=[[4.0, 3.0, 0.0]]), **options).text
    assert f"No decision is free if at most {part} may be lost." in costly_page
    # whatever is added to every reward, the same actions are free
    assert (
        f"{sentence} {part} in all."
        in write_page(tmp_path, two.replace(rewards=two.rewards + 1e6), **options).text
    )
