"""What the sections of a page compute: a function for each, and what it finds as plain figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.draw.curves import informed
from mmdp.economics import WillingnessToPay, willingness_to_pay
from mmdp.economics.comparators import twin
from mmdp.errors import InputError
from mmdp.measures import (
    Frontier,
    Stability,
    enough_models,
    evpi,
    frontier,
    information_table,
)
from mmdp.measures.choices import Freedom, freedom
from mmdp.measures.information import FEW
from mmdp.measures.memory import value_and_policy
from mmdp.measures.robustness import one_start, stability_of
from mmdp.measures.simplicity import Rule, one_rule, own_rules
from mmdp.measures.stakes import Stake
from mmdp.methods import CADP
from mmdp.model import MMDP
from mmdp.objective import Objective
from mmdp.policy import Markov, MarkovPolicy, MemoryPolicy, Stationary, Tree, TreePolicy
from mmdp.posterior.check import Coverage, coverage
from mmdp.report.desk import Desk, titled
from mmdp.report.rule import Sentence, in_words, usual_actions
from mmdp.simulate import simulate
from mmdp.solution import PROVEN, Evaluation, Solution, Status, tossing_text
from mmdp.solve import read_method, solve
from mmdp.words import NOISE, counted, in_unit, number

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]

RESAMPLES = 20
LOGS, REFITTED = 20, 100  # simulated logs, and the models fitted to each
PROVING = 5  # seconds at most for the bound on policies with memory
NODES = 3  # of memory, if nobody says how many
LEAVES = (8, 4, 2)  # the most that the small rule may have, the first that takes SOON seconds
SOON = 10.0
WITHIN = 0.01  # what it may give up, as a share of what is at stake
FEWEST = 5  # models in a subset
QUICK = 0.005  # seconds of a pass up to which subsets of the models are drawn ten times, not three
AROUND = 3  # passes for what goes with an ascent: returns here and on test models, visits


@dataclass(frozen=True, eq=False)
class Rival:
    """Another policy of time and state; ``loss``: by how much less it has of what counts."""

    name: str
    policy: MarkovPolicy
    found: Evaluation
    held_out: Evaluation | None = None
    loss: float = 0.0


def rival(desk: Desk, name: str, policy: MarkovPolicy) -> Rival:
    found = desk.evaluate(policy)
    loss = max(difference(desk.objective, desk.evaluation, found), 0.0)
    return Rival(name, policy, found, desk.tested(policy), loss)


def difference(objective: Objective, one: Evaluation, other: Evaluation) -> float:
    """How much more one policy has of what counts than another; 0 if that is rounding."""
    size = max(np.abs(x.returns).max() for x in (one, other))
    more = one.value(objective) - other.value(objective)
    return 0.0 if abs(more) <= NOISE * size else more


# ---------------------------------------------------------------------- the answer
class Versus(NamedTuple):
    """This policy against a named one: ``gain`` of what counts.

    ``better``: the number of models in which it returns more; ``weight``: theirs.
    """

    name: str
    gain: float
    better: int
    weight: float


def versus(desk: Desk, name: str, one: Evaluation, other: Evaluation) -> Versus:
    better = one.returns > other.returns + NOISE * np.abs(other.returns)
    gain = difference(desk.objective, one, other)
    return Versus(name, gain, int(better.sum()), float(one.weights[better].sum()))


def _against(desk: Desk) -> list[tuple[Versus, Versus | None]]:
    """The named policies, on the models at hand and on the held-out ones."""
    found: list[tuple[Versus, Versus | None]] = []
    for name, policy in desk.named.items():
        here = versus(desk, name, desk.evaluation, desk.evaluate(policy))
        mine, theirs, there = desk.held_out, desk.tested(policy), None
        if mine is not None and theirs is not None:
            there = versus(desk, name, mine, theirs)
        found.append((here, there))
    return found


class Middle(NamedTuple):
    """Returns between the 10% and the 90% quantile, the number of models there and their weight."""

    low: float
    high: float
    models: int
    weight: float


@dataclass(frozen=True, eq=False)
class Answer:
    """What the first lines say, apart from what other sections find."""

    rule: Rule  # the policy in a few phases
    short: Rival  # that rule as a policy
    sentences: list[Sentence]  # the rule in words; empty if it takes too many
    usual: list[tuple[str, float]]  # the most frequent actions and their shares
    drawn: float  # share of the decisions that are drawn by lot
    middle: Middle
    worst_model: str
    oracle_mean: float  # of someone who knows the model
    missing: float | None  # of what counts, compared with them; None if that may be negative
    learning: float  # the most that a policy that learns gains
    against: list[tuple[Versus, Versus | None]]  # the named policies, here and held out
    closed: bool  # whether the policy is proven to be the best


def answer(desk: Desk) -> Answer:
    found = desk.evaluation
    rule = desk.rule()
    worst = np.where(found.weights > 0, found.returns, np.inf).argmin()
    knows, F, missing = float(found.oracle @ found.weights), desk.objective, None
    if F.monotone:
        known = F.counted(found.oracle, lambda: found.oracle)
        missing = float(F.value(known, found.weights)) - desk.value
        missing = missing if missing > NOISE * np.abs(found.oracle).max() else 0.0
    most = knows
    if desk.bound is not None and desk.bound.bounds == "history" and not desk.aimed:
        most = min(knows, desk.bound.value)
    return Answer(
        rule, rival(desk, "the short rule", rule.policy), in_words(desk, rule),
        usual_actions(desk), _drawn(desk), _middle(found), desk.model.model_labels[int(worst)],
        knows, missing, max(most - found.mean, 0.0),
        _against(desk), _closed(desk),
    )  # fmt: skip


def _middle(found: Evaluation) -> Middle:
    low, high = found.quantile(0.1), found.quantile(0.9)
    inside = (found.returns >= low) & (found.returns <= high) & (found.weights > 0)
    return Middle(low, high, int(inside.sum()), float(found.weights[inside].sum()))


def _drawn(desk: Desk) -> float:
    if desk.policy.deterministic:
        return 0.0
    visited = desk.visited()
    return float(visited[desk.policy.probabilities.max(axis=2) < 1].sum() / visited.sum())


def _closed(desk: Desk) -> bool:
    """Whether the bound meets the value, as far as its proof can tell."""
    bound, found = desk.bound, desk.solution
    if bound is None:
        return False
    proven = found is not None and found.certificate is bound and found.status is Status.OPTIMAL
    return proven or bound.gap(desk.value) <= PROVEN


def may_toss(desk: Desk) -> bool:
    """Whether drawing actions can earn anything, or was tried."""
    known = "" if desk.solution is None else desk.solution.tossing_text
    drawn = not desk.policy.deterministic and (desk.aimed or desk.kind.name == "stationary")
    return bool(known) or drawn


def tossing(desk: Desk) -> str:
    """What drawing actions earns compared with the best policy of the kind that draws none."""
    if desk.solution is not None and desk.solution.tossing_text:
        return desk.solution.describe_tossing(desk.stake.part)
    endless = desk.kind.endless
    sharp = solve(
        desk.model, math.inf if endless else desk.horizon, objective=desk.objective, seed=desk.seed,
        policy=Stationary() if desk.kind.name == "stationary" else None,
    ).policy  # fmt: skip
    found = desk.evaluate(sharp.over(desk.horizon) if endless else sharp)
    gained = versus(desk, "", desk.evaluation, found)
    if gained.gain < 0:
        return f"it has {number(-gained.gain, 3)} less"
    return tossing_text(desk.policy, desk.kind, gained.gain, desk.stake.part)


def passes_of_tossing(desk: Desk) -> float:
    return desk.kind.passes(CADP().passes(desk.model.problem, desk.horizon))


def simpler(desk: Desk) -> tuple[Rival, ...]:
    """Policies simpler than the short rule: one rule for all steps, always the same action.

    The first is a table of all states, which is no simpler than a tree. A policy that is that
    simple itself, or that another name has already, is left out.
    """
    always: Any  # a table, as the policy is one
    name, always = desk.constant()[0]
    found = [] if always == desk.policy else [rival(desk, name, always)]
    constant = (desk.policy.table == desk.policy.table[:1]).all()
    if not desk.words and not constant:
        rule = one_rule(desk.policy, desk.model, desk.visited(), desk.kind)
        if rule not in (desk.policy, desk.rule().policy, always):
            found = [rival(desk, "one rule for all steps", rule), *found]
    return tuple(found)


class SmallRule(NamedTuple):
    """The smallest tree that gives up at most 1% of what is at stake; ``gain``: what it earns."""

    policy: TreePolicy
    rival: Rival
    gain: float


def can_grow(desk: Desk) -> bool:
    """Whether a tree has something to ask about, and is simpler than the policy."""
    if desk.words or type(desk.kind) not in (Markov, Stationary):
        return False
    try:
        Tree().check(desk.model, desk.horizon)
    except InputError:
        return False
    return True


def small_rule(desk: Desk) -> SmallRule | None:
    """One search grows trees of all sizes; the smallest that will do is kept."""
    kind = Tree(most_leaves(desk), time=not desk.kind.endless)
    found = solve(desk.model, desk.horizon, policy=kind, objective=desk.objective, seed=desk.seed)
    least = desk.value - max(WITHIN * desk.stake.amount, 1e-9 * abs(desk.value))
    grown = zip(found.details["grown"], found.details["value_by_leaves"], strict=True)
    tree = next((tree for tree, value in grown if value >= least), None)
    if tree is None:
        return None
    ruled = rival(
        desk, f"the rule of {counted(tree.n_leaves, 'leaf', 'leaves')}", tree.over(desk.horizon)
    )
    gain = difference(desk.objective, ruled.found, desk.evaluation)
    return SmallRule(tree, ruled, max(gain, 0.0))


def most_leaves(desk: Desk) -> int:
    return next((k for k in LEAVES if desk.seconds(passes_of_rule(desk, k)) <= SOON), 1)


def passes_of_rule(desk: Desk, leaves: int | None = None) -> float:
    """About how many passes the search takes at most; for other objectives it is longer."""
    return 600 * (leaves or most_leaves(desk)) * (5 if desk.aimed else 1)


def can_choose(desk: Desk) -> bool:
    return desk.policy.deterministic and bool(desk.objective.monotone)


def free(desk: Desk) -> Freedom:
    """Which actions may be mixed freely if at most 1% of what is at stake may be lost."""
    return freedom(desk.policy, desk.model, WITHIN, objective=desk.objective, compare=desk.compared)


class OffGrid(NamedTuple):
    """The mean return on the grid, and of the user's function without it, with two errors.

    ``coarse``: whether they differ by more than chance and the proof, if there is one, explain.
    """

    on: float
    off: float
    error: float
    episodes: int
    coarse: bool


def has_grid(model: MMDP | None) -> bool:
    """Whether a continuous axis was put on a grid by a function that is still at hand."""
    return model is not None and model.function is not None and bool(model.function.continuous)


def off_grid(desk: Desk) -> tuple[OffGrid, OffGrid | None]:
    """Here, and on the held-out models if they have a function too."""
    here = _off_grid(desk, desk.model, desk.evaluation)
    tested = None
    if desk.test is not None and desk.held_out is not None and has_grid(desk.test):
        tested = _off_grid(desk, desk.test, desk.held_out)
    return here, tested


def _off_grid(desk: Desk, model: MMDP, found: Evaluation) -> OffGrid:
    played = simulate(desk.policy, model, seed=desk.seed, off_grid=True)
    proof = None if desk.aimed or model is not desk.model else desk.bound
    allowed = 0.0 if proof is None else proof.value - desk.value
    error = 2 * played.stderr if played.stderr > 1e-12 * abs(played.mean) else 0.0  # rounding
    coarse = abs(found.mean - played.mean) > max(allowed, error)
    return OffGrid(found.mean, played.mean, error, played.details["episodes"], coarse)


class Controller(NamedTuple):
    """The given policy with memory against the page's own without, and its flow chart."""

    policy: MemoryPolicy
    found: Evaluation
    gained: Versus


def controller(desk: Desk) -> Controller:
    assert desk.controller is not None
    found = desk.evaluate(desk.controller)
    gained = versus(desk, desk.name, found, desk.evaluation)
    return Controller(desk.controller.merged(desk.model), found, gained)


class Asked(NamedTuple):
    """What the problem is made of."""

    quantity: str  # what a return is, in words
    equal_weights: bool
    effective: float  # models of equal weight that these are as good as
    start: list[int]  # states that an episode may start in


def asked(desk: Desk) -> Asked:
    w = desk.model.weights
    start = np.flatnonzero(desk.model.problem.initial.any(axis=1)).tolist()
    return Asked(_quantity(desk), bool(np.allclose(w, 1 / len(w))), 1 / float((w**2).sum()), start)


def _quantity(desk: Desk) -> str:
    """As the model says, or the net benefit if rewards are that of the given effects and costs."""
    model, x = desk.model, desk.outcomes
    if model.quantity or x is None:
        return model.quantity or "return"
    parts = x.counting.models(model, x.effects, x.costs, desk.horizon)
    r, e, c = np.broadcast_arrays(
        *(np.where(model.allowed, y.rewards, 0.0) for y in (model, *parts))
    )
    worth = float(f"{((r + c) * e).sum() / max((e * e).sum(), 1e-300):.9g}")  # 15, not 15.00
    if not np.allclose(r, worth * e - c, rtol=0.0, atol=NOISE * np.abs(r).max()):
        return "return"
    return f"net benefit at {in_unit(number(worth), model.unit)} per unit of effect"


# ---------------------------------------------------------------------- safer
def safer(desk: Desk) -> Frontier:
    """From the best on average to the safest policy."""
    found = frontier(desk.model, desk.horizon, seed=desk.seed)
    tests = [x for x in (desk.tested(point.policy) for point in found.points) if x is not None]
    return replace(found, tests=tuple(tests))


# ---------------------------------------------------------------------- methods
@dataclass(frozen=True)
class Row:
    """One line of the table of methods: on the models at hand, and on the held-out ones."""

    name: str
    found: Evaluation
    held_out: Evaluation | None
    seconds: float | None = None
    status: str = ""
    policy: MarkovPolicy | None = None


@dataclass(frozen=True, eq=False)
class Methods:
    """The policy, the other methods, and Oracle as the last of ``rows``.

    ``best`` is the best solution on average at hand of the kind that was asked for; ``reference``:
    the name and the mean of the best policy on average, or this one's, and ``evpi`` what knowing
    the model is worth at most compared with it, on average; exact if that is optimal and its kind
    is not restricted: Oracle is free. ``ahead``: the method that does best on the held-out models
    if it is ahead of this policy, by how much, and the standard error of that. ``traces`` have the
    value by iteration of every CADP run, ``climbed`` what it gained from its start, None if it kept
    it.
    """

    rows: tuple[Row, ...]
    best: Solution | None
    reference: tuple[str, float]
    evpi: float
    ahead: tuple[str, float, float] | None
    simulated: bool
    traces: dict[str, Array]
    climbed: float | None


def methods(desk: Desk) -> Methods:
    rows, best, traces = _rows(desk), best_of(desk), _traces(desk)
    gained = [float(y[-1] - y[0]) for y in traces.values() if len(y) > 1]
    mean = best_mean(desk, best)
    own = best is None or mean <= desk.evaluation.mean + NOISE * abs(mean)
    name = "this policy" if own or best is None else titled(best)
    return Methods(
        rows, best, (name, mean), max(rows[-1].found.mean - mean, 0.0), _ahead(desk, rows),
        any(row.found.errors is not None for row in rows), traces, max(gained, default=None),
    )  # fmt: skip


def best_of(desk: Desk) -> Solution | None:
    found = desk.every() + ([desk.solution] if desk.solution is not None and desk.given else [])
    same = [
        x for x in found
        if x.markov is not None and x.provenance.policy.name == desk.kind.name
    ]  # fmt: skip
    return max(same, key=lambda x: x.evaluation.mean, default=None)


def best_mean(desk: Desk, best: Solution | None) -> float:
    own = desk.evaluation.mean
    return own if best is None else max(own, best.evaluation.mean)


def _rows(desk: Desk) -> tuple[Row, ...]:
    every, known, own = desk.every(), desk.solution, desk.given or desk.aimed
    same = [
        x for x in every
        if own and known is not None and known.method == x.method and x.policy == desk.policy
    ]  # fmt: skip
    rows = []
    if own:
        taken = any(titled(x) == desk.name for x in every if x not in same)
        rows.append(_row("this policy" if taken else desk.name, desk, known))
    for found in every:
        if found.policy is not None and found not in same:
            tested = desk.tested(found.policy)
            rows.append(Row(titled(found), found.evaluation, tested, *_how(found)))
    if (x := desk.controller) is not None:
        name = f"the given policy, {counted(x.n_nodes, 'node')}"
        rows.insert(0, Row(name, desk.evaluate(x), desk.tested(x), status="given"))
    rows += [
        Row(name, desk.evaluate(x), desk.tested(x), status="given", policy=x)
        for name, x in desk.named.items()
    ]
    oracle, held_out = desk.evaluation.oracle, desk.held_out
    knows = Evaluation(oracle, desk.model.weights, _oracle=lambda: oracle)
    tested = None
    if held_out is not None:
        own_best = held_out.oracle
        tested = Evaluation(own_best, held_out.weights, _oracle=lambda: own_best)
    last = Row("Oracle (knows the model)", knows, tested, status="a bound: no policy does better")
    return (*rows, last)


def _row(name: str, desk: Desk, known: Solution | None) -> Row:
    return Row(name, desk.evaluation, desk.held_out, *(() if known is None else _how(known)))


def _how(found: Solution) -> tuple[float, str, MarkovPolicy | None]:
    return found.seconds, found.outcome, found.markov


def _ahead(desk: Desk, rows: tuple[Row, ...]) -> tuple[str, float, float] | None:
    tested = {row.name: row.held_out for row in rows[:-1] if row.held_out is not None}
    if desk.held_out is None or not tested or desk.aimed:
        return None
    name = max(tested, key=lambda name: tested[name].mean)
    more, error = tested[name].lead(desk.held_out)
    ahead = more > NOISE * abs(desk.held_out.mean)
    return (name, more, error) if ahead else None


def _traces(desk: Desk) -> dict[str, Array]:
    runs = [desk.solution] if desk.solution is not None and not desk.aimed else []
    found: dict[str, Array] = {}
    for run in [*runs, *desk.every()]:
        if run.method == "cadp":
            start = run.provenance.options.get("init", "wsu")
            start = "one leaf" if run.provenance.policy.grows else start
            name = start if isinstance(start, str) else "a given policy"
            found.setdefault(name.upper() if len(name) == 3 else name, run.trace)
    return found


# ---------------------------------------------------------------------- over the models
class Near(NamedTuple):
    """Weight of the models whose own free optimum is at most ``amount`` higher."""

    weight: float
    amount: float


def near_optimal(desk: Desk) -> Near:
    """How often the policy is within 1% of what is at stake of a model's own optimum."""
    found, amount = desk.evaluation, WITHIN * desk.stake.amount
    near = np.maximum(amount, 1e-9 * np.abs(found.oracle))
    return Near(float(found.weights[found.regret <= near].sum()), amount)


def simulated_coverage(desk: Desk) -> Coverage:
    """How often ranges of the policy's returns have the true one, on logs like the models' own."""
    return coverage(desk.model, desk.policy, logs=LOGS, models=REFITTED, seed=desk.seed)


def passes_of_coverage(desk: Desk) -> float:
    return 3 * LOGS * REFITTED / desk.model.n_models  # models are drawn, laid out and evaluated


class Weights(NamedTuple):
    """Model weights b (T, M, S), and the state that moves them most.

    ``in_play``: how many equally likely models would be as uncertain as at the last decision.
    """

    b: Array
    state: int
    in_play: float


def weights(desk: Desk) -> Weights:
    b = desk.weights()
    # |b_{t,m}(s) - lambda_m P(s at t)|, summed over times and models
    expected = b.sum(axis=1, keepdims=True) * desk.model.weights[None, :, None]
    state = int(np.abs(b - expected).sum(axis=(0, 1)).argmax())
    return Weights(b, state, float(informed(b)[-1, 0]))


# ---------------------------------------------------------------------- knowing more
@dataclass(frozen=True, eq=False)
class Information:
    """EVPI and EVPPI.

    ``giveaways``: parameters with another value in every model, if conditioned on each of the
    values; to know one of them is to know the model, whatever else differs between the models.
    ``most``: the parameter worth most and its value, unless it is one of these.
    """

    table: pd.DataFrame
    giveaways: list[str]
    most: tuple[str, float] | None


def information(desk: Desk) -> Information | None:
    best = best_of(desk)
    if best is None or not desk.model.parameters:
        return None
    table = information_table(desk.model, desk.horizon, method=best)
    values, alone = desk.model.parameters, table.iloc[1:]
    exact = alone.loc[alone["estimator"] == "exact", "parameter"]
    giveaways = [x for x in exact if len(np.unique(values[x])) == desk.model.n_models]
    top = alone.sort_values("value", kind="stable").iloc[-1]
    most = None if top["parameter"] in giveaways else (str(top["parameter"]), float(top["value"]))
    return Information(table, giveaways, most)


def passes_of_information(desk: Desk) -> float:
    """About how many passes the solves of groups take; trees are grown for every model too."""
    count, kind = len(desk.model.parameters), desk.kind
    if not count or not isinstance(kind, Tree):
        return 200.0 * FEW * count
    return 125.0 * kind.leaves * (desk.model.n_models + FEW * count)


def within(desk: Desk) -> float:
    """About the EVPI of someone who is bound to the restricted kind."""
    best = best_of(desk)
    if best is not None:
        return evpi(desk.model, method=best)
    own = own_rules(desk.policy, desk.model)
    return max(float(own @ desk.model.weights) - desk.evaluation.mean, 0.0)


class Remembering(NamedTuple):
    """What memory is worth by nodes, and the policy with the most."""

    table: pd.DataFrame
    policy: MemoryPolicy


def passes_of_memory(desk: Desk) -> float:
    """About how many passes the flow charts and the simulation take."""
    return 5_000.0 * max((desk.asked.get("memory") or NODES) - 1, 1)


def memory(desk: Desk) -> Remembering:
    nodes = range(1, (desk.asked.get("memory") or NODES) + 1)
    at_stake = Stake(0.0, "", desk.model.unit) if desk.aimed else desk.stake  # gains are averages
    return Remembering(*value_and_policy(
        desk.model, desk.horizon, nodes, seed=desk.seed, time_limit=PROVING, at_stake=at_stake
    ))  # fmt: skip


# ---------------------------------------------------------------------- enough models
class Sizes(NamedTuple):
    """Return on held-out models by number of models: with all, and its gain over about half."""

    table: pd.DataFrame
    models: int
    fewer: int
    value: float
    gain: float


def sizes(desk: Desk) -> Sizes | None:
    if not can_split(desk):
        return None
    counts, repeats = _draws(desk)
    table = enough_models(
        desk.model, desk.horizon, counts, test=desk.test, repeats=repeats, seed=desk.seed,
        method=desk.methods[0],
    )  # fmt: skip
    last = table.iloc[-1]
    half = table.iloc[int((table["models"] - last["models"] / 2).abs().argmin())]
    value, gain = float(last["test"]), float(last["test"] - half["test"])
    gain = gain if abs(gain) > NOISE * abs(value) else 0.0
    return Sizes(table, int(last["models"]), int(half["models"]), value, gain)


def _draws(desk: Desk) -> tuple[list[int], int]:
    """Numbers of models to solve with, and how often each is drawn."""
    available = _to_draw(desk)
    steps = [a * 10**b for b in range(7) for a in (1, 2, 5)]
    counts = [*(x for x in steps if FEWEST <= x < available), available]
    return counts, 10 if desk.seconds(1) <= QUICK else 3


def passes_of_sizes(desk: Desk) -> float:
    """About how many passes the ascents with fewer models take."""
    counts, repeats = _draws(desk)
    return _passes(desk, (len(counts) - 1) * repeats + 1) if can_split(desk) else 0.0


def passes_of_resamples(desk: Desk) -> float:
    count = desk.asked.get("resamples") or RESAMPLES
    return _passes(desk, 2 * count) if can_redraw(desk) else 0.0  # from two starts


def _passes(desk: Desk, ascents: int) -> float:
    one = one_start(desk.methods[0]).passes(desk.model.problem, desk.horizon)
    return ascents * (one + AROUND)


def can_split(desk: Desk) -> bool:
    """Whether there are models enough, and a method, to solve with fewer of them."""
    table = bool(desk.methods) and isinstance(read_method(desk.methods[0]).finds, Markov)
    return table and _to_draw(desk) > FEWEST


def _to_draw(desk: Desk) -> int:
    """How many models there are to solve with; without test models half of them are held out."""
    return desk.model.n_models if desk.test is not None else -(-desk.model.n_models // 2)


def can_redraw(desk: Desk) -> bool:
    """Whether the policy is one that the first method finds for the mean."""
    return not (desk.given or desk.aimed)


def resamples(desk: Desk) -> Stability | None:
    if not can_redraw(desk):
        return None
    count = desk.asked.get("resamples") or RESAMPLES
    return stability_of(desk.solved(0), desk.model, count, desk.seed, desk.methods[0])


# ---------------------------------------------------------------------- cost and effect
def willingness(desk: Desk) -> WillingnessToPay:
    x = desk.outcomes
    assert x is not None
    named = dict(desk.named)
    same = twin(desk.policy, named, x.counting.models(desk.model, x.effects, x.costs, desk.horizon))
    if same is None:
        named = {"this policy": desk.policy, **named}
    else:
        marked = {same: f"{same} (this policy)"}
        named = {marked.get(name, name): policy for name, policy in named.items()}
    return willingness_to_pay(
        desk.model, x.effects, x.costs, x.thresholds, desk.horizon, method=desk.method(),
        policy=desk.kind_for(), policies=named, counting=x.counting,
    )  # fmt: skip


# ---------------------------------------------------------------------- the source
def source(desk: Desk) -> str:
    """The options of the method that found the policy, in brackets."""
    given = {} if desk.solution is None else desk.solution.provenance.options
    plain = ", ".join(
        f"{key} {value}" for key, value in given.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    )  # fmt: skip
    return f" ({plain})" if plain else ""
