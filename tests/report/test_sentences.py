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
from mmdp.report import findings, sections
from mmdp.report.desk import Desk
from mmdp.words import at_most, at_most_percent, number, percent
from tests.instances import shares
from tests.report.pages import Page, written

GAMMA, START, WEIGHTS = 0.9, np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.3, 0.4])


class Numbers:
    """Returns of every policy of time and state over T steps, by matrix products."""

    def __init__(self, P: np.ndarray, r: np.ndarray, T: int, states: int, actions: int) -> None:
        self.P, self.r, self.T = P, r, T
        tables = itertools.product(range(actions), repeat=T * states)
        self.tables = np.array(list(tables)).reshape(-1, T, states)
        self.returns = np.array([self.of(table) for table in self.tables])  # (policies, models)
        self.means = self.returns @ WEIGHTS
        self.oracle = self.returns.max(axis=0)

    def of(self, table: np.ndarray) -> np.ndarray:
        """(M,) returns of one policy."""
        found, states = [], np.arange(table.shape[1])
        for P, r in zip(self.P, self.r, strict=True):
            x, total = START[: len(states)], 0.0
            for t, row in enumerate(table):
                total += GAMMA**t * float(x @ r[states, row])
                x = x @ P[states, row]
            found.append(total)
        return np.array(found)

    def visits(self, table: np.ndarray) -> np.ndarray:
        """(T, S) probability of each state at each time."""
        states, seen = np.arange(table.shape[1]), []
        x = [START[: len(states)] for _ in self.P]
        for row in table:
            seen.append(sum(w * y for w, y in zip(WEIGHTS, x, strict=True)))
            x = [y @ P[states, row] for y, P in zip(x, self.P, strict=True)]
        return np.array(seen)

    def stake(self, own: np.ndarray) -> float:
        """To the best policy of one action that does not have the same mean."""
        same = [(self.tables == a).all(axis=(1, 2)).argmax() for a in range(self.tables.max() + 1)]
        apart = np.abs(np.sort(self.means[same])[::-1] - own @ WEIGHTS)
        return float(apart[apart > 1e-12][0])

    def quantile(self, returns: np.ndarray, level: float) -> float:
        order = np.argsort(returns)
        return float(returns[order][np.cumsum(WEIGHTS[order]) >= level - 1e-12][0])

    def tail(self, returns: np.ndarray, level: float) -> float:
        """Mean of the worst models of that weight in all."""
        left, total = level, 0.0
        for m in np.argsort(returns):
            total += min(left, WEIGHTS[m]) * returns[m]
            left -= min(left, WEIGHTS[m])
        return total / level


def general(x: Numbers, own: np.ndarray) -> list[str]:
    """Sentences that every page has, from the returns (M,) of its policy."""
    mean, knows = float(own @ WEIGHTS), float(x.oracle @ WEIGHTS)
    missing = at_most(knows - mean)
    part = 0.01 * x.stake(own)
    near = WEIGHTS[x.oracle - own <= part + 1e-12].sum()
    return [
        f"returns {number(mean)} on average over the 4 models.",
        f"It returns {number(own[0])} in model 0, {number(own[1])} in model 1, {number(own[2])} in "
        f"model 2 and {number(own[3])} in model 3.",
        f"{number(own.min())} worst model {number(x.tail(own, 0.1))} worst tenth, mean (CVaR 10%)",
        f"A policy that learns which models are plausible could gain at most {missing}"
        f" ({at_most_percent((knows - mean) / x.stake(own))} of what is at stake).",
        f"so at most {missing} is missing",
        f"{number(np.sqrt(WEIGHTS @ (own - mean) ** 2))} standard deviation over models",
        f"{number(knows - mean)} regret, mean {number((x.oracle - own).max())} largest regret",
        f"In {percent(near)} of the models the policy is within {number(part, 3)} "
        "(1.0% of what is at stake) of that model's own optimum",
    ]


def check(page: Page, sentences: list[str]) -> None:
    for sentence in sentences:
        assert sentence in page.text, f"{sentence!r} is not in {page.text[:6000]}"


def costs(best: float, other: float, stake: float) -> str:
    lost = best - other
    share = f" ({percent(lost / stake)} of what is at stake)"
    return f"costs {number(lost, 3)}{share}" if lost > 1e-9 * abs(best) else "costs nothing"


# ---------------------------------------------------------------------- tied
def tied_problem(seed: int) -> tuple[Numbers, mmdp.MMDP]:
    rng = np.random.default_rng(seed)
    P, r = rng.dirichlet(np.ones(3), size=(4, 3, 2)), rng.normal(size=(4, 3, 2)).round(1)
    model = mmdp.MMDP(
        P, r, initial=START, discount=GAMMA, weights=WEIGHTS, states=["mild", "bad", "well"],
        actions=["wait", "treat"], parameters={"x": [1, 1, 2, 2]},
    )  # fmt: skip
    return Numbers(P, r, 2, 3, 2), model


@pytest.mark.parametrize("seeds", shares(1, 10))
def test_the_page_of_a_tied_policy(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        read_tied_page(seed, tmp_path)


def read_tied_page(seed: int, tmp_path: Path) -> None:
    x, model = tied_problem(seed)
    tied = (x.tables[:, :, 0] == x.tables[:, :, 1]).all(axis=1)
    solution = mmdp.solve(
        model, 2, mmdp.CADP(starts=64), policy=mmdp.Tied({"mild": 1, "bad": 1, "well": 2})
    )
    best = x.means[tied].max()
    assert solution.value == pytest.approx(best)
    page = written(tmp_path, model, policy=solution, information=True)
    own = x.of(solution.policy.actions)
    knows = float(x.oracle @ WEIGHTS)
    within = float(x.returns[tied].max(axis=0) @ WEIGHTS) - best
    groups = [np.array([0, 1]), np.array([2, 3])]
    partly = sum((x.returns[tied][:, g] @ WEIGHTS[g]).max() for g in groups) - best
    constant = tied & (x.tables[:, 0] == x.tables[:, 1]).all(axis=1)
    same = [x.means[(x.tables == a).all(axis=(1, 2))][0] for a in range(2)]
    always = int(np.argmax(same))
    free, stake = costs(x.means.max(), best, x.stake(own)), x.stake(own)
    check(page, [
        *general(x, own),
        f"is worth about {number(within, 3)} to someone who is bound to tied policies, and at most "
        f"{at_most(knows - best)} ",
        f"bound to tied policies it is worth about {number(within, 3)} ,",
        f"is worth at most {at_most(knows - best)} on average",
        f"Knowing x alone is worth {number(partly, 3)}.",
        f"x {number(partly)} {percent(partly / within)} exact",
        f"Someone who knew the true model and could choose freely could return {number(knows)} on "
        f"average, {number(knows - best)} more. In the model where it matters most, that is "
        f"{number((x.oracle - own).max())} more.",
        f"Compared with a free choice, being tied {free}",
        "tied: decisions depend on the time and the group of the state (the same action in mild, "
        "bad)",
    ])  # fmt: skip
    if (solution.policy.actions != always).any():  # otherwise there is nothing simpler
        check(page, [f"Always {model.action_labels[always]} {costs(best, max(same), stake)}."])
    one = costs(best, x.means[constant].max(), stake)
    if "One rule for all steps" in page.text:  # otherwise it is the short rule
        assert f"One rule for all steps {one}{' or less' if 'nothing' not in one else ''}." in (
            page.text
        )
    assert "finds one that returns" not in page.text
    for line in ("CADP (tied)", "tied policies"):
        assert line in page.text


def test_two_tied_states_of_which_each_model_wants_another_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free to choose, knowing the model is worth nothing; tied, it is worth 0.1 of 0.2."""
    r = [[[0.6, 0.0], [0.0, 0.2]], [[0.2, 0.0], [0.0, 0.6]]]
    P = np.broadcast_to(np.eye(2)[:, None], (2, 2, 2, 2))
    model = mmdp.MMDP(P, r, initial=[0.5, 0.5], states=["left", "right"])
    tied = mmdp.solve(model, 1, policy=mmdp.Tied([0, 0]))
    assert tied.value == pytest.approx(0.2)  # each action: (0.6 + 0.2) / 2 / 2
    assert mmdp.solve(model, 1).evpi == pytest.approx(0)
    assert mmdp.measures.evpi(model, 1, method=tied) == pytest.approx(0.1)  # 0.3 in each model
    assert mmdp.measures.evppi(model, 1, [1.0, 2.0], method=tied) == pytest.approx(0.1)
    text = written(tmp_path, model, policy=tied).text
    told = "about 0.100 to someone who is bound to tied policies, and at most 0.2000 "
    assert told in text
    monkeypatch.setattr(sections, "QUICK_OWN", 0)  # then it is known from the parameters' table
    model = model.replace(parameters={"x": [1.0, 2.0]})
    assert told in written(tmp_path, model, policy=tied, information=True).text
    assert "CADP finds" not in text
    free = mmdp.MarkovPolicy.for_model(model, [[0, 1]])
    assert findings.methods(Desk(model, None, free)).evpi == pytest.approx(0)


def test_a_better_policy_of_the_kind_is_told() -> None:
    x, model = tied_problem(1)
    kind = mmdp.Tied([0, 0, 1])
    worst = mmdp.MarkovPolicy(1 - mmdp.solve(model, 2, policy=kind).policy.actions)
    given = mmdp.solve(model, 2, mmdp.CADP(init=worst, starts=1, max_iterations=1), policy=kind)
    best = findings.best_of(Desk(model, None, given))
    tied = (x.tables[:, :, 0] == x.tables[:, :, 1]).all(axis=1)
    assert best is not None
    assert best.provenance.policy.name == "tied"
    assert given.value <= best.value <= x.means[tied].max() + 1e-9


@pytest.mark.parametrize("kind", [mmdp.Tied([0, 0, 1]), mmdp.Monotone(), mmdp.Fixed([1, -1, -1])])
@pytest.mark.parametrize("seed", range(3))
def test_simpler_policies_are_of_the_kind(kind: mmdp.policy.PolicyKind, seed: int) -> None:
    _, model = tied_problem(seed)
    found = mmdp.solve(model, 6, policy=kind)
    desk = Desk(model, None, found)
    for rival in (findings.answer(desk).short, *findings.simpler(desk)):
        actions = rival.policy.actions
        if kind.name == "tied":
            assert (actions[:, 0] == actions[:, 1]).all()
        elif kind.name == "monotone":
            assert (np.diff(actions, axis=1) >= 0).all()
        else:
            assert (actions[:, 0] == 1).all()


def test_the_kind_is_told() -> None:
    _, model = tied_problem(0)
    order = mmdp.Monotone(states=[["well", "mild"], ["bad"]], actions=["treat", "wait"])
    assert order.text(model, 2) == "states well < mild; actions treat < wait"
    assert mmdp.Monotone().text(model, 2) == "states mild < bad < well; actions wait < treat"
    assert mmdp.Fixed({"bad": "treat"}).text(model, 2) == "bad: treat"
    assert mmdp.Fixed([[-1, -1, -1], [0, -1, 1]]).text(model, 2) == "mild: by time; well: by time"
    assert mmdp.Tied([0, 1, 2]).text(model, 2) == ""


# ---------------------------------------------------------------------- what is done today
@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_what_is_gained_over_what_is_done_today(objective: str, tmp_path: Path) -> None:
    """A fixed action, and a randomised table, whose return is the mean over all its tables."""
    x, model = tied_problem(3)
    other, test = tied_problem(4)
    chance = np.random.default_rng(0).dirichlet(np.ones(2), size=(2, 3))
    coin = mmdp.MarkovPolicy.for_model(model, probabilities=chance)
    solution = mmdp.solve(model, 2, objective=objective)
    page = written(
        tmp_path, model, policy=solution, test=test, compare={"clinicians": coin, "never": "wait"}
    )
    table = solution.policy.actions
    worth = (lambda y: y @ WEIGHTS) if objective == "mean" else np.min

    def tossed(numbers: Numbers) -> np.ndarray:
        each = np.take_along_axis(chance[None], numbers.tables[..., None], 3)[..., 0]
        return each.prod(axis=(1, 2)) @ numbers.returns

    for name, theirs in {
        "clinicians": tossed,
        "never": lambda n: n.of(np.zeros((2, 3), int)),
    }.items():
        said = []
        for numbers in (x, other):
            mine, his = numbers.of(table), theirs(numbers)
            gain, better = worth(mine) - worth(his), mine > his + 1e-9
            up = (
                ("more", "higher")[objective == "worst"]
                if gain >= 0
                else ("less", "lower")[objective == "worst"]
            )
            too = "and it returns more " if objective == "worst" else "and more "
            part = f"({percent(WEIGHTS[better].sum())} of the weight)"
            part = f" {part}" if abs(WEIGHTS[better].sum() - better.mean()) > 1e-6 else ""
            said.append((number(abs(gain), 3), up, f"{too}in {better.sum()} of 4 models{part}"))
        (gain, up, where), (held, held_up, there) = said
        than = "than that of" if objective == "worst" else "than"
        check(page, [
            f"{gain} {up} {than} {name}, {where}; on the held-out models {held} {held_up}, "
            f"{there}."
        ])  # fmt: skip
        assert f"{name} {number(theirs(x) @ WEIGHTS, 5)}" in page.text  # a row of the tables


# ---------------------------------------------------------------------- many models, or dice
def test_how_safe_it_is_over_many_models(tmp_path: Path) -> None:
    """One state and step: a model returns the reward of the one action, drawn apart."""
    rewards = np.random.default_rng(2).normal(size=25) * 10_000
    model = mmdp.MMDP(np.ones((25, 1, 2, 1)), np.stack([rewards, rewards - 1], 1)[:, None])
    order = np.sort(rewards)
    tail = (order[0] + order[1] + 0.5 * order[2]) / 2.5  # a tenth of 25
    check(written(tmp_path, model, horizon=1), [
        f"In 21 of 25 models it returns between {number(order[2])} and "
        f"{number(order[22])}. The worst is model {rewards.argmin()} with {number(order[0])}; "
        f"the worst tenth average {number(tail)}.",
    ])  # fmt: skip


def test_a_policy_that_draws_its_actions(tmp_path: Path) -> None:
    x, model = tied_problem(6)
    chance = np.random.default_rng(1).dirichlet(np.ones(2), size=(2, 3))
    chance[0, 0], chance[1, 1:] = [1.0, 0.0], [0.0, 1.0]
    dice = mmdp.MarkovPolicy.for_model(model, probabilities=chance)
    each = np.take_along_axis(chance[None], x.tables[..., None], 3)[..., 0].prod(axis=(1, 2))
    visits = sum(p * x.visits(table) for p, table in zip(each, x.tables, strict=True))
    answer = findings.answer(Desk(model, None, dice))
    for a in range(2):
        taken = (visits * chance[:, :, a]).sum() / visits.sum()
        assert dict(answer.usual)[model.action_labels[a]] == pytest.approx(taken)
    lot = visits[chance.max(axis=2) < 1].sum() / visits.sum()
    page = written(tmp_path, model, policy=dice)
    check(page, [
        *general(x, each @ x.returns),
        f"In {percent(lot)} of the decisions that come up it draws the action by lot",
    ])  # fmt: skip
    differ = json.loads(page.scripts[1])["differ"]
    names = json.loads(page.scripts[1])["names"]
    table = mmdp.solve(model, 2).policy.actions
    other = (visits * (1 - np.take_along_axis(chance, table[..., None], 2)[..., 0])).sum()
    assert differ[names.index("this policy")][names.index("CADP")] == pytest.approx(other / 2)


def test_words_say_where_actions_are_drawn(tmp_path: Path) -> None:
    """Two models that differ by less than anyone reads: their spread is 0 on the page."""
    r = np.tile([1.0, 2.0], (2, 2, 1))
    model = mmdp.MMDP(
        np.full((2, 2, 2, 2), 0.5), r * [[[1.0]], [[1.0 + 1e-9]]], states=["up", "down"],
        actions=["wait", "treat"],
    )  # fmt: skip
    coin = mmdp.StationaryPolicy(
        probabilities=[[1, 0], [0.3, 0.7]], state_labels=["up", "down"],
        action_labels=["wait", "treat"],
    ).over(3)  # fmt: skip
    page = written(tmp_path, model, policy=coin)
    assert "At every step: wait in state up, treat in state down (70% of the time)." in page.text
    assert "0 standard deviation over models" in page.text


# ---------------------------------------------------------------------- off the grid
def pond(state: Any, action: Any, draw: Any) -> Any:
    """A level that falls by a share and rises by what is added; nothing is left to chance."""
    level = state["level"] * draw["keep"] + 0.3 * action["add"]
    return {"level": level}, np.minimum(level, 1.0) - 0.1 * action["add"]


def test_the_value_without_the_grid_is_shown(tmp_path: Path) -> None:
    """Episodes by hand; a wide bound explains the difference, a close one does not."""
    model = mmdp.from_step(
        pond, states={"level": mmdp.Grid(0, 2, 5)}, actions={"add": range(3)},
        draws={"keep": [0.5, 0.7]}, initial={"level": 0.3}, discount=0.9,
    )  # fmt: skip
    found, played = mmdp.solve(model, 6), []
    for keep in (0.5, 0.7):
        level, total = 0.3, 0.0
        for t in range(6):
            add = int(found.policy.actions[t, round(level / 0.5)])
            level = level * keep + 0.3 * add
            total += 0.9**t * (min(level, 1.0) - 0.1 * add)
        played.append(total)
    apart = found.value - np.mean(played)
    assert abs(apart) > 0.001
    page = written(tmp_path, model, policy=found)
    less = "less" if apart > 0 else "more"
    check(page, [
        f"it returns {number(found.value)} on average; played with your function as it is, "
        f"{number(np.mean(played))} ± 0 ",
        f"Without the grid the policy returns {number(abs(apart), 3)} {less} than the model says, "
        "more than chance explains: make the grid finer.",
    ])  # fmt: skip
    for share, coarse in ((2, False), (0.5, True)):
        desk = Desk(model, None, found, bound=found.value + share * abs(apart))
        assert findings.off_grid(desk)[0].coarse == coarse


# ---------------------------------------------------------------------- memory
def test_the_page_of_a_policy_with_memory(tmp_path: Path) -> None:
    """Its returns by hand: a chain over states and nodes."""
    model, _ = mmdp.domains.two_models()
    policy = mmdp.solve(model, 9, policy=mmdp.Memory(2)).policy
    own = []
    for m in range(2):
        x, total = np.zeros((4, 2)), 0.0
        x[np.arange(4), policy.first] = model.initial
        for t in range(9):
            after = np.zeros_like(x)
            for s, n in itertools.product(range(4), range(2)):
                a = policy.actions[t, s, n]
                total += x[s, n] * model.rewards[m, s, a]
                for s2 in range(4):
                    after[s2, policy.moves[t, s, n, s2]] += x[s, n] * model.transitions[m, s, a, s2]
            x = after
        own.append(total)
    best = mmdp.solve(model, 9)
    gain = np.mean(own) - best.value
    always = [mmdp.MarkovPolicy(np.full((9, 4), a), n_actions=model.n_actions) for a in range(2)]
    stake = best.value - min(mmdp.evaluate(x, model).mean for x in always)
    assert (best.policy.actions[:, 0] == 0).all()  # so it is compared with the other action
    better = int((np.array(own) > best.returns + 1e-9).sum())
    mmdp.save(model, tmp_path / "two.npz")
    mmdp.save_policy(policy, tmp_path / "chart.json")
    out = tmp_path / "page.html"
    words = ("report", tmp_path / "two.npz", "--policy", tmp_path / "chart.json", "-o", out)
    done = CliRunner().invoke(app, [*map(str, words), "--seconds", "0.1"])
    assert done.exit_code == 0, done.output
    page = Page(out.read_text(encoding="utf-8"))
    check(page, [
        f"with 2 nodes of memory, returns {number(np.mean(own))} on average",
        f"That is {number(gain, 3)} ({percent(gain / stake)} of what is at stake) more than CADP "
        f"finds without memory, and more in {better} of 2 models.",
        f"the given policy, 2 nodes {number(np.mean(own), 5)}",
    ])  # fmt: skip
    assert "Node 1" in page.text  # the flow chart


# ---------------------------------------------------------------------- a small rule
def small_tables() -> dict[int, np.ndarray]:
    """All tables (2, 3) of trees with one leaf, or two, by number of leaves: by numpy alone."""
    one = [np.full((2, 3), a) for a in range(2)]
    where = [np.broadcast_to(np.arange(3) <= cut, (2, 3)) for cut in range(2)]
    where += [np.broadcast_to(np.array([[True], [False]]), (2, 3))]
    two = [np.where(yes, a, 1 - a) for yes in where for a in range(2)]
    return {1: np.array(one), 2: np.array(one + two)}


@pytest.mark.parametrize("objective", ["mean", "worst"])
def test_the_smallest_rule_within_one_percent(objective: str, tmp_path: Path) -> None:
    seen = []
    for seed in (11, 3, 0) if objective == "mean" else (0, 7):
        x, model = tied_problem(seed)
        model = model.replace(states=["stock 0", "stock 1", "stock 2"])
        model = model.replace(rewards=model.rewards + 3)  # 1% of the value is then much more
        worth = (lambda y: y @ WEIGHTS) if objective == "mean" else (lambda y: y.min(axis=-1))
        x = Numbers(x.P, x.r + 3, 2, 3, 2)
        best = worth(x.returns).max()
        policy = mmdp.solve(model, 2, mmdp.CADP(starts=32), objective=objective)
        assert policy.value == pytest.approx(best)
        page = written(tmp_path, model, policy=policy, rule=True)
        found = {k: max(worth(x.of(y)) for y in tables) for k, tables in small_tables().items()}
        constant = sorted(worth(x.of(y)) for y in small_tables()[1])
        stake = best - max(y for y in constant if y < best - 1e-9)
        within = best - 0.01 * stake - 1e-9
        leaves = next((k for k, value in found.items() if value >= within), None)
        said = page.text.split("What to do ")[1].split("How safe")[0]
        seen.append(leaves)
        if leaves is None:
            assert "A rule of 1 leaf " not in page.text
            assert "A rule of 2 leaves " not in page.text
            continue
        lost = best - found[leaves]
        share = f"gives up {number(lost, 3)} ({percent(lost / stake)} of what is at stake)"
        loss = share if lost > 1e-9 * best else "gives up nothing"
        assert f"A rule of {leaves} {'leaf' if leaves == 1 else 'leaves'} {loss}." in page.text
        assert ("always: " if leaves == 1 else "otherwise: ") in said
    assert seen == ([2, 1, None] if objective == "mean" else [None, 2])


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
        P, r, initial=START, discount=GAMMA, weights=WEIGHTS,
        states=["ill", "very ill", "discharged"], actions=["drug 0", "drug 1"],
    )  # fmt: skip
    x = Numbers(P, r, 3, 3, 2)
    solution = mmdp.solve(model, 3)
    page = written(tmp_path, model, policy=solution)
    table, own = solution.policy.actions, x.of(solution.policy.actions)
    visits = x.visits(table)
    taken = [visits[:, :2][table[:, :2] == a].sum() / visits[:, :2].sum() for a in range(2)]
    answer = findings.answer(Desk(model, None, solution))
    told = dict(answer.usual)
    for a in range(2):
        assert told.get(f"drug {a}", 0.0) == pytest.approx(taken[a])
    best, knows = float(own @ WEIGHTS), float(x.oracle @ WEIGHTS)
    same = [x.means[(x.tables[:, :, :2] == a).all(axis=(1, 2))].max() for a in range(2)]
    always = int(np.argmax(same))
    check(page, [
        *general(x, own),
        f"Knowing the model before the first decision is worth at most {at_most(knows - best)} "
        f"({at_most_percent((knows - best) / x.stake(own))} of what is at stake).",
        f"could return {number(knows)} on average, {number(knows - best)} more.",
        f"not knowing costs {number((x.oracle - own).max())}.",
        f"Always drug {always} {costs(best, same[always], x.stake(own))}.",
        "In 1 state no action changes anything, so it is not shown and does not count as a "
        "decision: discharged.",
        f"ill {number(visits[:, 0].sum(), 3)} 0",
        f"very ill {number(visits[:, 1].sum(), 3)} 0",
    ])  # fmt: skip
    words = page.text.split("What to do ")[1].split("How safe")[0]
    assert "discharged" not in words
    assert "discharged" not in page.text.split("Action by time")[1].split("What safety costs")[0]
    share = visits[:, :2][answer.rule.policy.actions[:, :2] == table[:, :2]].sum()
    assert answer.rule.share == pytest.approx(share / visits[:, :2].sum())
    assert page.scripts[0].count("discharged") == 0


# ---------------------------------------------------------------------- stationary
def test_the_page_of_a_stationary_policy(tmp_path: Path) -> None:
    """One rule for ever, shown over three decisions: compared with other rules of that kind."""
    rng = np.random.default_rng(8)
    P, r = rng.dirichlet(np.ones(3), size=(4, 3, 2)), rng.normal(size=(4, 3, 2)).round(1)
    model = mmdp.MMDP(P, r, initial=START, discount=GAMMA, weights=WEIGHTS)
    rule = mmdp.solve(model, math.inf)
    x = Numbers(P, r, 3, 3, 2)
    table = np.tile(rule.policy.actions, (3, 1))
    own, constant = x.of(table), (x.tables == x.tables[:, :1]).all(axis=(1, 2))
    best, knows = float(own @ WEIGHTS), float(x.oracle @ WEIGHTS)
    within = float(x.returns[constant].max(axis=0) @ WEIGHTS) - best
    same = max(x.means[(x.tables == a).all(axis=(1, 2))][0] for a in range(2))
    page = written(tmp_path, model, policy=rule, horizon=3)
    check(page, [
        *general(x, own),
        f"about {number(within, 3)} to someone who is bound to stationary policies, and at "
        f"most {at_most(knows - best)} ",
        f"and could choose freely could return {number(knows)} on average, "
        f"{number(knows - best)} more.",
        "stationary: decisions depend on the state alone",
        "Following these words to the letter costs nothing.",
        costs(best, same, x.stake(own)),
    ])  # fmt: skip
    assert "finds one that returns" not in page.text
    assert "being stationary costs" not in page.text  # that is for ever, not three decisions
    assert findings.within(Desk(model, 3, rule.policy)) == pytest.approx(within)
    with pytest.raises(mmdp.InputError, match="stationary; pass horizon=50"):
        written(tmp_path, model, policy=rule)


def test_a_file_of_a_stationary_policy_is_shown_as_such(tmp_path: Path) -> None:
    """What is proven for ever does not hold for ten decisions and a terminal value."""
    train, _ = mmdp.domains.published("hiv")
    mmdp.save(train.subset(range(8)), tmp_path / "hiv")
    model = mmdp.load(tmp_path / "hiv")
    rule = mmdp.solve(model, math.inf, certify=0.3)
    mmdp.save_policy(rule, tmp_path / "rule.json")
    out = tmp_path / "page.html"
    told = ("report", tmp_path / "hiv", "--policy", tmp_path / "rule.json", "-T", 10, "-o", out)
    done = CliRunner().invoke(app, [str(x) for x in told])
    assert done.exit_code == 0, done.output
    text = Page(out.read_text(encoding="utf-8")).text
    assert "stationary: decisions depend on the state alone" in text
    assert "no proof is shown: the proof is for an infinite horizon" in text
    own = mmdp.evaluate(rule.policy.over(10), model)
    assert f"so at most {at_most(own.bayes_regret)} is missing" in text


def test_where_people_may_choose(tmp_path: Path) -> None:
    """One state, three decisions: the second action costs .01 of 4 each time, the third all."""
    two = mmdp.MMDP([[[[1.0], [1.0], [1.0]]]] * 2, [[[4.0, 3.98, 0]], [[4.0, 4.0, 0]]])
    options = {"horizon": 3, "compare": {"today": 2}}
    page = written(tmp_path, two, **options).text
    assert 3 * (4 - (3.98 + 4.0) / 2) <= 0.01 * 12  # any mixture of the first two
    part = "0.120 (1% of what is at stake, 12 compared with today)"
    told = "100% of decisions are free: choosing among their actions at will costs at most"
    assert f"{told} {part} in all." in page
    dear = written(tmp_path, two.replace(rewards=[[4.0, 3.0, 0.0]]), **options).text
    assert f"No decision is free if at most {part} may be lost." in dear
    # whatever is added to every reward, the same actions are free
    assert (
        f"{told} {part} in all."
        in written(tmp_path, two.replace(rewards=two.rewards + 1e6), **options).text
    )
