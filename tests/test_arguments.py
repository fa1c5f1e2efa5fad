"""Every argument of every public function: a wrong value is an InputError, never a raw error.

``CALLS`` has one right call of each public callable; a new one without a call fails the test. Each
argument in turn is replaced by every value of ``WRONG``. That must be refused by an InputError in
one line, unless the value has a meaning there: its type says so (:func:`fits`), or ``MEANINGS``.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mmdp
from mmdp import (
    domains,
    economics,
    ecosystem,
    hosts,
    io,
    measures,
    methods,
    objective,
    plots,
    policy,
    posterior,
    report,
)
from mmdp.methods import Method
from mmdp.objective import Objective
from mmdp.policy import PolicyKind

MODULES = (
    mmdp, domains, economics, ecosystem, hosts, io, measures, methods, objective, plots, policy,
    posterior, report,
)  # fmt: skip
WRONG: dict[str, Any] = {
    "None": None, "nan": math.nan, "inf": math.inf, "-1": -1, "2.5": 2.5, "True": True,
    "text": "no such thing", "object": object(), "[]": [], "ragged": [[1, 2], [3]],
    "shape": np.full((2, 3, 5), 0.5), "mapping": {"no such key": object()},
    "function": lambda *_: object(),
}  # fmt: skip
HOOKS = (Method, Objective, PolicyKind)  # their methods are called by mmdp
# made by mmdp, or what a new method, kernel or kind of policy is built of
INNER = {
    "Bound", "Evaluation", "Solution", "Provenance", "Progress", "Status", "InputError", "Domain",
    "CostEffectiveness", "WillingnessToPay", "Estimate", "Freedom", "Frontier", "Stability", "Fit",
    "Capabilities", "Context", "Outcome", "Question", "Method", "Objective", "PolicyKind",
    "Planner",
    "Policy", "Belief", "TreePolicy", "LostProcess", "Mixture", "RowInformation", "Stake", "Tail",
    "quantile",
    # leaving
    "mixture", "row_information", "regret_by_horizon", "without_tunnels", "from_mdptoolbox",
    "to_mdptoolbox",
}  # fmt: skip
CALLED = {
    "act",
    "update",
    "returns",
    "tables_for",
    "table_for",
    "stored",
    "drawn",
    "drawn_text",
    "action_text",
    "check_horizon",
    "of_table",
    "of_row",
    "placed",
    "restored",
    "nodes",
    "done",
    "from_support",
    "with_evidence",
    "with_function",
    "decisions",
    "settings",
    "mean_problem",
    "names",
    "find",
    "clipped",
    "remedy",
    "models",
    "times",
    "rows",
    "law",
}  # methods that mmdp calls
TEXT = {
    "name",
    "title",
    "citation",
    "unit",
    "quantity",
    "path",
    "out",
    "folder",
    "xlabel",
    "ylabel",
    "state_label",
}
REFUSES = {"mmdp.MemoryPolicy.over"}  # a policy with memory has no table
BUILT_OF = {"Question", "Context", "Outcome", "Planner", "Policy"}
MEANINGS = {  # of values that their types do not give one
    "mmdp.MMDP.subset.models": "-1", "ecosystem.to_gymnasium.m": "-1",  # from the end
    "ecosystem.to_quantecon.m": "-1",
    "mmdp.Grid.low": "-1", "mmdp.Bound.closed.value": "-1", "mmdp.Bound.closed.oracle": "-1",
    "mmdp.Bound.gap.value": "-1", "mmdp.bound.incumbent": "-1 2.5",
    "ecosystem.Agent.__call__.reward": "-1", "measures.stake.value": "-1",
    "measures.Stake.part.amount": "-1 inf", "measures.Stake.share.amount": "-1 inf",
    "mmdp.Solution.describe_price.part": "function",
    "mmdp.Solution.describe_tossing.part": "function",
    "mmdp.fit.prior": "2.5", "mmdp.Prior.pseudo_counts": "2.5", "mmdp.Prior.absorbing": "[]",
    "mmdp.CADP.polish": "inf", "mmdp.Exact.polish": "inf",  # until the time limit
    "mmdp.solve.horizon": "inf", "mmdp.bound.horizon": "inf", "mmdp.frontier.horizon": "inf",
    "mmdp.value_of_leaves.horizon": "inf",
    "mmdp.study.horizons": "inf", "report.write.seconds": "inf",
    "mmdp.fit.absorbing": "[]", "mmdp.fit.times": "None", "report.write.notes": "[]",
    "report.draw.unseen": "[]", "report.draw.thresholds": "[]",
    "plots.weights_over_time.weights": "shape", "mmdp.study.seeds": "None",
    "ecosystem.from_gymnasium.concentration": "inf", "domains.garnet.concentration": "inf",
    "objective.as_objective.given": "function", "plots.survival.dead": "[]",
    "policy.markov_policy.purpose": "text", "policy.markov_policy.argument": "text",
    "policy.markov_policy.needed": "text", "policy.followed.purpose": "text",
    "io.write_all.stale": "[]", "io.write_whole.writer": "text function",
    "hosts.connected.address": "text",  # a single process joins nobody
}  # fmt: skip
FOLDER = Path(tempfile.gettempdir())  # replaced for each test
X, Y = "level=1", "level=2"
MODEL = mmdp.MMDP(
    [[[[0.5, 0.5], [1, 0]], [[0, 1], [0.2, 0.8]]], [[[0.9, 0.1], [1, 0]], [[0, 1], [0.6, 0.4]]]],
    [[[1.0, 0.0], [2.0, 3.0]], [[0.0, 2.0], [1.0, 0.0]]],
    states=[X, Y], actions=["stay", "go"], discount=0.9, parameters={"rate": [0.1, 0.3]},
)  # fmt: skip
MARKOV = mmdp.MarkovPolicy.for_model(MODEL, [[0, 1], [1, 0]])
RULE = mmdp.StationaryPolicy.for_model(MODEL, [0, 1])
LOG = {"state": [0, 1, 0], "action": [0, 1, 1], "next_state": [1, 0, 0], "reward": [1.0, 0.0, 2.0]}
AMOUNTS = np.array([[1.0, 2.0], [0.0, 3.0]])
OUTCOMES = economics.CostEffectiveness.from_tables(
    effects={"a": [1.0, 2.0], "b": [2.0, 2.5]}, costs={"a": [0.0, 1.0], "b": [3.0, 1.0]},
    parameters={"rate": [0.1, 0.3]},
)  # fmt: skip
CURVES = OUTCOMES.acceptability([0.0, 1.0]), OUTCOMES.frontier([0.0, 1.0])


def step(state: Any, action: Any) -> tuple[Any, Any]:
    return {"level": state["level"]}, action["use"]


def build(draw: Any) -> dict[str, Any]:
    return {"transitions": [[[1.0]]], "rewards": [[float(draw["rate"])]]}


@functools.cache
def solved(method: str = "cadp", **options: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, method, **options)


@functools.cache
def tree() -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, policy=mmdp.Tree(leaves=2))


@functools.cache
def memory() -> mmdp.MemoryPolicy:
    return mmdp.solve(MODEL, 2, policy=mmdp.Memory(2)).policy


@functools.cache
def frame_of_leaves() -> pd.DataFrame:
    return mmdp.value_of_leaves(MODEL, 2, 2)


@functools.cache
def frame_of_memory() -> pd.DataFrame:
    return mmdp.value_of_memory(MODEL, 2, [1, 2])


def file(name: str) -> Path:
    """A file of the tests that a call reads."""
    path = FOLDER / "there" / name
    if path.exists():
        return path
    path.parent.mkdir(exist_ok=True)
    texts = {
        "model.drn": "@type: MDP\n@parameters\n\n@reward_models\nr\n@nr_states\n1\n@nr_choices\n1\n"
        "@model\nstate 0 [0] init\n\taction go [1]\n\t\t0 : 1\n",
        "features.csv": f"state,size\n{X},1\n{Y},2\n",
        "groups.csv": f"state,group\n{X},a\n{Y},b\n",
        "effects.csv": "state,action,effect,cost\n" + "".join(
            f"{s},{a},{a == 'go':d},{a == 'go':d}\n" for s in (X, Y) for a in ("stay", "go")
        ),
    }  # fmt: skip
    if name in texts:
        path.write_text(texts[name])
    elif name == "model.npz":
        mmdp.save(MODEL, path)
    else:
        mmdp.save_policy(solved(), path)
    return path


class Lake:
    """An environment of Gymnasium with a table."""

    unwrapped = types.SimpleNamespace(P={0: {0: [(1.0, 0, 1.0, False)]}})


@functools.wraps(hosts.connected)
def joined(*args: Any, **kwargs: Any) -> Any:
    return hosts.connected(*args, **kwargs).__enter__()


def then(make: Callable[..., Any], use: Callable[[Any], Any], /, **arguments: Any) -> Call:
    """An object is made and used: what it is made of is checked against the models."""

    @functools.wraps(make)
    def call(**given: Any) -> Any:
        return use(make(**given))

    return call, arguments


def by_method(method: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, method)


def of_kind(kind: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, policy=kind)


@functools.wraps(mmdp.study)
def studied(**arguments: Any) -> None:
    """A study whose cells fail has errors in its table."""
    table = mmdp.study(**arguments)
    for error in table["error"].dropna():
        assert not re.match(r"\w+Error: ", error), error
        raise mmdp.InputError(error)


def new(name: str) -> Path:
    return FOLDER / name


Call = tuple[Callable[..., Any], dict[str, Any]]


def on(function: Callable[..., Any], /, **arguments: Any) -> Call:
    return function, arguments


CALLS: dict[str, Callable[[], Call]] = {
    # models
    "mmdp.MMDP": lambda: on(mmdp.MMDP, transitions=MODEL.transitions, rewards=MODEL.rewards),
    "mmdp.MMDP.from_coordinates": lambda: on(
        mmdp.MMDP.from_coordinates, model=[0, 0], state=[0, 1], action=[0, 0], next_state=[1, 0],
        probability=[1.0, 1.0], reward=[1.0, 0.0], shape=(1, 2, 1),
    ),
    "mmdp.MMDP.fields": lambda: on(MODEL.fields),
    "mmdp.MMDP.fingerprint": lambda: on(MODEL.fingerprint),
    "mmdp.MMDP.later": lambda: on(
        mmdp.MMDP([MODEL.transitions] * 3, MODEL.rewards).later, time=1
    ),
    "mmdp.MMDP.matrix": lambda: on(MODEL.matrix, model=0, action=0),
    "mmdp.MMDP.mean_model": lambda: on(MODEL.mean_model),
    "mmdp.MMDP.ordered_like": lambda: on(MODEL.ordered_like, other=MODEL),
    "mmdp.MMDP.replace": lambda: on(MODEL.replace, discount=0.5),
    "mmdp.MMDP.subset": lambda: on(MODEL.subset, models=[0]),
    "mmdp.MMDP.take_part": lambda: on(MODEL.take_part, index=0, count=2),
    "mmdp.MMDP.update": lambda: on(MODEL.update, state=X, action="stay", next_state=Y),
    "mmdp.MMDP.where": lambda: on(MODEL.where, model=0, state=0, action=0),
    "mmdp.from_step": lambda: on(
        mmdp.from_step, step=step, states={"level": range(2)}, actions={"use": [0.0, 1.0]}
    ),
    "mmdp.Grid": lambda: on(mmdp.Grid, low=0.0, high=1.0, points=3),
    "mmdp.from_draws": lambda: on(mmdp.from_draws, draws={"rate": [0.1, 0.2]}, build=build),
    "mmdp.fit": lambda: on(mmdp.fit, log=LOG, models=2),
    "mmdp.Prior": lambda: then(mmdp.Prior, lambda x: mmdp.fit(LOG, models=2, prior=x)),
    "mmdp.Rewards": lambda: then(mmdp.Rewards, lambda x: mmdp.fit(LOG, models=2, rewards=x)),
    "posterior.fit_folder": lambda: on(
        posterior.fit_folder, log=LOG, out=new("fitted"), models=2, overwrite=True
    ),
    "posterior.coverage": lambda: on(
        posterior.coverage, model=mmdp.fit(LOG, models=2).train, policy=RULE.over(2), logs=2,
        models=2,
    ),
    "posterior.never_seen": lambda: on(posterior.never_seen, model=MODEL),
    "posterior.predictive_probabilities": lambda: on(
        posterior.predictive_probabilities, model=MODEL,
        log={"state": [X], "action": ["stay"], "next_state": [Y]},
    ),
    "posterior.effective_models": lambda: on(posterior.effective_models, weights=[0.5, 0.5]),
    "posterior.weights_by_step": lambda: on(
        posterior.weights_by_step, model=MODEL,
        log={"state": [X], "action": ["stay"], "next_state": [Y]},
    ),
    "posterior.weights_from_log_likelihood": lambda: on(
        posterior.weights_from_log_likelihood, log_likelihood=[-1.0, -2.0]
    ),
    # methods, objectives, kinds of policy
    **{
        f"mmdp.{x}": functools.partial(then, getattr(mmdp, x), by_method)
        for x in ("CADP", "MILP", "MVP", "WSU", "BeliefGrid", "Exact", "Gradient", "Mirror",
                  "Oracle")
    },
    **{
        f"mmdp.{x}": functools.partial(then, getattr(mmdp, x), by_method, episodes=2)
        for x in ("POMCP", "QMDP", "MixTS", "Rollout")
    },
    **{
        f"mmdp.{x}": functools.partial(then, getattr(mmdp, x), of_kind)
        for x in ("Markov", "Stationary", "Memory", "Monotone", "Tree")
    },
    "mmdp.Mean": lambda: on(mmdp.Mean),
    "mmdp.WorstCase": lambda: on(mmdp.WorstCase),
    **{
        f"mmdp.{x}": functools.partial(on, getattr(mmdp, x), alpha=0.5)
        for x in ("CVaR", "EVaR", "VaR")
    },
    "mmdp.MeanCVaR": lambda: on(mmdp.MeanCVaR, alpha=0.5, share=0.5),
    "mmdp.Entropic": lambda: on(mmdp.Entropic, beta=0.5),
    "mmdp.Custom": lambda: then(
        mmdp.Custom, lambda x: mmdp.solve(MODEL, 2, objective=x), function=lambda x, w: x @ w
    ),
    "mmdp.Fixed": lambda: then(mmdp.Fixed, of_kind, actions={X: "stay"}),
    "mmdp.Tied": lambda: then(mmdp.Tied, of_kind, groups=[0, 0]),
    "objective.Regret": lambda: on(objective.Regret, inner=mmdp.CVaR(0.5)),
    "objective.as_objective": lambda: on(objective.as_objective, given="mean"),
    "methods.able": lambda: on(methods.able),
    "methods.capabilities": lambda: on(methods.capabilities),
    # solving
    "mmdp.solve": lambda: on(mmdp.solve, model=MODEL, horizon=2),
    "mmdp.bound": lambda: on(mmdp.bound, model=MODEL, horizon=2),
    "mmdp.evaluate": lambda: on(mmdp.evaluate, policy=MARKOV, model=MODEL),
    "mmdp.gradient": lambda: on(mmdp.gradient, policy=MARKOV, model=MODEL),
    "mmdp.model_weights": lambda: on(mmdp.model_weights, policy=MARKOV, model=MODEL),
    "mmdp.simulate": lambda: on(mmdp.simulate, policy=MARKOV, model=MODEL, episodes=2),
    "mmdp.study": lambda: on(studied, models=MODEL, horizons=2),
    "mmdp.Bound.closed": lambda: on(mmdp.bound(MODEL, 2).closed, value=1.0, oracle=5.0),
    "mmdp.Bound.gap": lambda: on(mmdp.bound(MODEL, 2).gap, value=1.0),
    "mmdp.Evaluation.cvar": lambda: on(solved().evaluation.cvar, level=0.5),
    "mmdp.Evaluation.quantile": lambda: on(solved().evaluation.quantile, level=0.5),
    "mmdp.Evaluation.lead": lambda: on(solved().evaluation.lead, other=solved().evaluation),
    "mmdp.Evaluation.summary": lambda: on(solved().evaluation.summary),
    "mmdp.Evaluation.to_frame": lambda: on(solved().evaluation.to_frame),
    "mmdp.Evaluation.value": lambda: on(solved().evaluation.value, objective="mean"),
    "mmdp.Solution.describe_price": lambda: on(tree().describe_price, part=str),
    "mmdp.Solution.describe_tossing": lambda: on(tree().describe_tossing, part=str),
    "mmdp.Solution.to_frame": lambda: on(solved().to_frame),
    # policies
    "mmdp.MarkovPolicy": lambda: on(mmdp.MarkovPolicy, actions=[[0, 1]]),
    "mmdp.MarkovPolicy.action": lambda: on(MARKOV.action, time=0, state=X),
    "mmdp.MarkovPolicy.check": lambda: on(MARKOV.check, model=MODEL),
    "mmdp.MarkovPolicy.for_model": lambda: on(
        mmdp.MarkovPolicy.for_model, model=MODEL, actions=[[0, 1]]
    ),
    "mmdp.MarkovPolicy.map": lambda: on(MARKOV.map),
    "mmdp.MarkovPolicy.over": lambda: on(MARKOV.over, horizon=2),
    "mmdp.MarkovPolicy.random": lambda: on(mmdp.MarkovPolicy.random, model=MODEL, horizon=2),
    "mmdp.MarkovPolicy.start": lambda: on(MARKOV.start),
    "mmdp.MarkovPolicy.text": lambda: on(MARKOV.text),
    "mmdp.MarkovPolicy.to_frame": lambda: on(MARKOV.to_frame),
    "mmdp.MarkovPolicy.uniform": lambda: on(mmdp.MarkovPolicy.uniform, model=MODEL, horizon=2),
    "mmdp.MemoryPolicy": lambda: on(
        mmdp.MemoryPolicy, actions=[[[0], [1]]], moves=[[[[0, 0]], [[0, 0]]]]
    ),
    "mmdp.MemoryPolicy.for_model": lambda: on(
        mmdp.MemoryPolicy.for_model, model=MODEL, controller=memory().controller
    ),
    "mmdp.MemoryPolicy.beliefs": lambda: on(memory().beliefs, model=MODEL),
    "mmdp.MemoryPolicy.flow_chart": lambda: on(memory().flow_chart, model=MODEL),
    "mmdp.MemoryPolicy.merged": lambda: on(memory().merged, model=MODEL),
    "mmdp.MemoryPolicy.moves_text": lambda: on(memory().moves_text),
    "mmdp.MemoryPolicy.node": lambda: on(memory().node, n=0),
    "mmdp.MemoryPolicy.start": lambda: on(memory().start),
    "mmdp.MemoryPolicy.text": lambda: on(memory().text),
    "mmdp.MemoryPolicy.to_frame": lambda: on(memory().to_frame),
    "mmdp.MemoryPolicy.weights": lambda: on(memory().weights, model=MODEL),
    "mmdp.StationaryPolicy": lambda: on(mmdp.StationaryPolicy, actions=[0, 1]),
    "mmdp.StationaryPolicy.over": lambda: on(RULE.over, horizon=2),
    "mmdp.TreePolicy.over": lambda: on(tree().policy.over, horizon=2),
    "mmdp.TreePolicy.text": lambda: on(tree().policy.text),
    "methods.BeliefGridPolicy.act_at": lambda: on(
        solved("grid").policy.act_at, time=0, state=X, weights=[0.5, 0.5]
    ),
    "methods.BeliefGridPolicy.map": lambda: on(solved("grid").policy.map),
    "policy.read_kind": lambda: on(policy.read_kind, given="markov"),
    "policy.markov_policy": lambda: on(policy.markov_policy, given=MARKOV, purpose="this takes"),
    "policy.followed": lambda: on(policy.followed, given=MARKOV, purpose="this takes"),
    "ecosystem.Agent": lambda: on(ecosystem.Agent, policy=MARKOV),
    "ecosystem.Agent.reset": lambda: on(ecosystem.Agent(MARKOV).reset),
    "ecosystem.Agent.__call__": lambda: on(ecosystem.Agent(MARKOV), observation=0),
    # measures
    "mmdp.freedom": lambda: on(mmdp.freedom, policy=MARKOV, model=MODEL),
    "mmdp.frontier": lambda: on(mmdp.frontier, model=MODEL, horizon=2, alphas=[0.5]),
    "mmdp.value_of_leaves": lambda: on(mmdp.value_of_leaves, model=MODEL, horizon=2, leaves=2),
    "mmdp.value_of_memory": lambda: on(mmdp.value_of_memory, model=MODEL, horizon=2, nodes=[1]),
    "measures.enough_models": lambda: on(
        measures.enough_models, model=MODEL, horizon=2, sizes=[1], repeats=1
    ),
    "measures.evpi": lambda: on(measures.evpi, model=MODEL, horizon=2),
    "measures.evppi": lambda: on(measures.evppi, model=MODEL, horizon=2, parameter="rate"),
    "measures.information_table": lambda: on(measures.information_table, model=MODEL, horizon=2),
    "measures.leaf_table": lambda: on(measures.leaf_table, policy=tree(), model=MODEL),
    "measures.memory_gain": lambda: on(
        measures.memory_gain, solution=solved(), model=MODEL, seconds=0.1
    ),
    "measures.policy_table": lambda: on(measures.policy_table, solution=solved(), model=MODEL),
    "measures.stake": lambda: on(measures.stake, policy=solved(), model=MODEL),
    "measures.Stake.part": lambda: on(measures.Stake(50.0, "always wait").part, amount=2.0),
    "measures.Stake.share": lambda: on(measures.Stake(50.0, "always wait").share, amount=2.0),
    "measures.stability": lambda: on(measures.stability, model=MODEL, horizon=2, resamples=2),
    "measures.Freedom.to_frame": lambda: on(mmdp.freedom(MARKOV, MODEL).to_frame),
    "measures.Freedom.words": lambda: on(mmdp.freedom(MARKOV, MODEL).words),
    "measures.Frontier.plot": lambda: on(mmdp.frontier(MODEL, 2, [0.5]).plot),
    "measures.Frontier.to_frame": lambda: on(mmdp.frontier(MODEL, 2, [0.5]).to_frame),
    "measures.Stability.to_frame": lambda: on(
        measures.stability(MODEL, 2, resamples=2).to_frame, model=MODEL
    ),
    # costs and effects
    "economics.cohort_trace": lambda: on(
        economics.cohort_trace, model=MODEL, policies={"a": MARKOV}, horizon=2
    ),
    "economics.cost_effectiveness": lambda: on(
        economics.cost_effectiveness, model=MODEL, effects=AMOUNTS, costs=AMOUNTS,
        policies={"a": MARKOV}, horizon=2,
    ),
    "economics.willingness_to_pay": lambda: on(
        economics.willingness_to_pay, model=MODEL, effects=AMOUNTS, costs=AMOUNTS,
        thresholds=[1.0], horizon=2,
    ),
    "economics.Counting": lambda: on(economics.Counting),
    "economics.Counting.net_benefit": lambda: on(
        economics.Counting().net_benefit, model=MODEL, effects=AMOUNTS, costs=AMOUNTS,
        threshold=1.0, horizon=2,
    ),
    "economics.CostEffectiveness.from_tables": lambda: on(
        economics.CostEffectiveness.from_tables, effects={"a": [1.0]}, costs={"a": [1.0]}
    ),
    "economics.CostEffectiveness.acceptability": lambda: on(
        OUTCOMES.acceptability, thresholds=[1.0]
    ),
    "economics.CostEffectiveness.frontier": lambda: on(OUTCOMES.frontier, thresholds=[1.0]),
    "economics.CostEffectiveness.icers": lambda: on(OUTCOMES.icers),
    "economics.CostEffectiveness.net_benefit": lambda: on(OUTCOMES.net_benefit, threshold=1.0),
    "economics.CostEffectiveness.evppi": lambda: on(
        OUTCOMES.evppi, threshold=1.0, parameter="rate"
    ),
    "economics.CostEffectiveness.evsi": lambda: on(
        OUTCOMES.evsi, threshold=1.0, study=[0.1, 0.2], resamples=2
    ),
    # files
    "mmdp.load": lambda: on(mmdp.load, path=file("model.npz")),
    "mmdp.load_policy": lambda: on(mmdp.load_policy, path=file("policy.csv")),
    "mmdp.save": lambda: on(mmdp.save, model=MODEL, path=new("m.npz")),
    "mmdp.save_policy": lambda: on(mmdp.save_policy, policy=MARKOV, path=new("p.csv")),
    "io.save_parts": lambda: on(io.save_parts, model=MODEL, folder=new("parts"), parts=2),
    "io.from_frame": lambda: on(io.from_frame, frame=io.to_frame(MODEL)),
    "io.to_frame": lambda: on(io.to_frame, model=MODEL),
    "io.load_certificate": lambda: on(io.load_certificate, path=file("policy.csv"), model=MODEL),
    "io.load_features": lambda: on(io.load_features, path=file("features.csv")),
    "io.load_groups": lambda: on(io.load_groups, path=file("groups.csv")),
    "io.load_objective": lambda: on(io.load_objective, path=file("policy.csv")),
    "io.write_all": lambda: on(io.write_all, files={new("a"): "text"}),
    "io.write_whole": lambda: on(io.write_whole, path=new("a"), writer="text"),
    "mmdp.export": lambda: on(mmdp.export, policy=MARKOV, path=new("p.py")),
    "report.write": lambda: on(
        report.write, model=MODEL, out=new("r.html"), horizon=2, seconds=0.0
    ),
    "report.draw": lambda: on(
        report.draw, kind="policy", model=MODEL, out=new("p.svg"), horizon=2
    ),
    "report.read_effects": lambda: on(
        report.read_effects, file=file("effects.csv"), model=MODEL
    ),
    # other tools
    "ecosystem.from_gymnasium": lambda: on(
        ecosystem.from_gymnasium, env=Lake(), models=2
    ),
    "ecosystem.from_quantecon": lambda: on(
        ecosystem.from_quantecon, problem=ecosystem.to_quantecon(MODEL)
    ),
    "ecosystem.from_storm": lambda: on(ecosystem.from_storm, models=file("model.drn")),
    "ecosystem.save_pomdp": lambda: on(ecosystem.save_pomdp, model=MODEL, path=new("m.pomdp")),
    "ecosystem.to_arviz": lambda: on(ecosystem.to_arviz, model=MODEL),
    "ecosystem.to_gymnasium": lambda: on(ecosystem.to_gymnasium, model=MODEL, horizon=2),
    "ecosystem.to_gymnasium_vector": lambda: on(
        ecosystem.to_gymnasium_vector, model=MODEL, horizon=2
    ),
    "ecosystem.to_quantecon": lambda: on(ecosystem.to_quantecon, model=MODEL),
    # domains
    **{
        f"domains.{name}": functools.partial(on, getattr(domains, name), n_train=1, n_test=1)
        for name in ("cart_pole", "harvest", "hiv", "inventory", "mountain_car", "perishable",
                     "population", "population_small", "riverswim", "substitutes")
    },
    "domains.garnet": lambda: on(
        domains.garnet, n_models=1, n_states=3, n_actions=2, branching=2, n_test=1
    ),
    "domains.published": lambda: on(domains.published, name="riverswim"),
    "domains.two_models": lambda: on(domains.two_models),
    # plots
    "plots.acceptability_curves": lambda: on(plots.acceptability_curves, acceptability=CURVES[0]),
    "plots.cohort_trace": lambda: on(
        plots.cohort_trace, table=economics.cohort_trace(MODEL, {"a": MARKOV}, 2)
    ),
    "plots.errors_by": lambda: on(
        plots.errors_by, frame=pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0], "e": [0.1, 0.1]}),
        x="a", y="b", error="e",
    ),
    "plots.expected_loss": lambda: on(plots.expected_loss, acceptability=CURVES[0]),
    "plots.frontier": lambda: on(plots.frontier, frame=mmdp.frontier(MODEL, 2, [0.5]).to_frame()),
    "plots.methods_comparison": lambda: on(plots.methods_comparison, means={"a": 1.0}),
    "plots.new_axes": lambda: on(plots.new_axes, count=2),
    "plots.new_axis": lambda: on(plots.new_axis),
    "plots.png": lambda: on(plots.png, axis=plots.new_axis()),
    "plots.svg": lambda: on(plots.svg, axis=plots.new_axis()),
    "plots.policy_heatmap": lambda: on(plots.policy_heatmap, policy=MARKOV),
    "plots.regret_distribution": lambda: on(plots.regret_distribution, regret=[0.0, 1.0]),
    "plots.returns_distribution": lambda: on(
        plots.returns_distribution, returns={"a": [0.0, 1.0]}
    ),
    "plots.save": lambda: on(plots.save, axis=plots.new_axis(), path=new("a.png")),
    "plots.survival": lambda: on(
        plots.survival, table=economics.cohort_trace(MODEL, {"a": MARKOV}, 2), dead=Y
    ),
    "plots.traces": lambda: on(plots.traces, values={"a": [0.0, 1.0]}),
    "plots.tree": lambda: on(plots.tree, policy=tree()),
    "plots.value_of_leaves": lambda: on(plots.value_of_leaves, frame=frame_of_leaves()),
    "plots.value_of_memory": lambda: on(plots.value_of_memory, frame=frame_of_memory()),
    "plots.weights_by_step": lambda: on(
        plots.weights_by_step, weights=np.full((2, 2), 0.5), times=[0, 1], models=["a", "b"]
    ),
    "plots.weights_over_time": lambda: on(
        plots.weights_over_time, weights=mmdp.model_weights(MARKOV, MODEL)
    ),
    # many machines
    "hosts.connected": lambda: on(joined),
    "hosts.part": lambda: on(hosts.part),
}  # fmt: skip


# ---------------------------------------------------------------------- what is public
def public() -> Iterator[tuple[str, Any]]:
    """Functions, classes and the methods of objects that a user holds, each once."""
    seen: set[int] = set()
    for module in MODULES:
        short = module.__name__.removeprefix("mmdp.")
        for name in getattr(module, "__all__", dir(module)):
            found = getattr(module, name)
            inside = "mmdp" if hasattr(module, "__all__") else module.__name__
            own = str(getattr(found, "__module__", "")).startswith(inside)
            if name.startswith("_") or not callable(found) or not own or id(found) in seen:
                continue
            seen.add(id(found))
            if name not in INNER:
                yield f"{short}.{name}", found
            if inspect.isclass(found) and not issubclass(found, (*HOOKS, Exception)):
                for inner, method in inspect.getmembers(found, inspect.isroutine):
                    function, full = getattr(method, "__func__", method), f"{short}.{name}.{inner}"
                    if not inner.startswith("_") and id(function) not in seen:
                        seen.add(id(function))
                        own = str(getattr(function, "__module__", "")).startswith("mmdp")
                        if own and name not in BUILT_OF and (inner not in CALLED or full in CALLS):
                            yield full, method


def fits(label: str, parameter: inspect.Parameter) -> bool:
    """Whether the type of an argument gives a value a meaning."""
    hint = str(parameter.annotation)
    if label == "None":
        return parameter.default is None or "None" in hint or "Seed" in hint
    if label == "2.5":
        return "float" in hint or "Float" in hint or "Seconds" in hint
    if label == "inf":
        return "Seconds" in hint  # no limit
    if label == "function":
        return "Callable" in hint or "Callback" in hint or "Say" in hint
    if label == "text":
        return parameter.name in TEXT
    return label == "True" and "bool" in hint


def outcome(function: Any, arguments: Mapping[str, Any], **more: Any) -> str:
    """``refused``, ``taken``, or the raw error."""
    try:
        function(**arguments, **more)
    except mmdp.InputError as error:
        return "refused" if "\n" not in str(error) else f"two lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def parameters(function: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a function, and the options that it takes by name."""
    for x in inspect.signature(function).parameters.values():
        if x.kind is not x.VAR_KEYWORD:
            yield x
        elif "Unpack" in str(x.annotation):
            module = inspect.getmodule(inspect.unwrap(function))
            options = getattr(module, re.findall(r"\[(\w+)\]", x.annotation)[0])
            for name, hint in options.__annotations__.items():
                yield inspect.Parameter(name, x.KEYWORD_ONLY, annotation=hint.__forward_arg__)


def cases(name: str) -> Iterator[tuple[inspect.Parameter, str]]:
    drawn = {x.name for x in parameters(report.draw)} if name == "report.write" else set()
    for parameter in parameters(CALLS[name]()[0]):  # a page takes the options of a picture
        if parameter.kind is not parameter.VAR_POSITIONAL and parameter.name not in drawn:
            yield from ((parameter, label) for label in WRONG)


def failures(name: str) -> Iterator[str]:
    """The wrong calls that are not refused."""
    function, right = CALLS[name]()
    found = outcome(function, right)
    assert found == "taken", found
    for parameter, label in cases(name):
        function, right = CALLS[name]()  # some calls change what they are given
        found = outcome(function, {**right, parameter.name: WRONG[label]})
        meant = label in MEANINGS.get(f"{name}.{parameter.name}", "").split()
        if found != "refused" and not (found == "taken" and (meant or fits(label, parameter))):
            yield f"{name}({parameter.name}={label}): {found}"


# ---------------------------------------------------------------------- tests
@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_public_function_has_a_call() -> None:
    names = {name for name, _ in public()}
    assert names - CALLS.keys() - REFUSES == set()
    assert sum(1 for name in CALLS for _ in cases(name)) > 7000


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused(name: str) -> None:
    if name == "ecosystem.from_storm":
        pytest.importorskip("stormpy")
    assert list(failures(name)) == []


@pytest.mark.parametrize("name", CALLS)
def test_unknown_arguments_are_refused(name: str) -> None:
    function, right = CALLS[name]()
    assert re.match("refused|TypeError: .*(no_such|no arg)", outcome(function, right, no_such=1))
    for parameter in parameters(function):  # one letter is missing in the name of an option
        if parameter.kind is parameter.KEYWORD_ONLY and len(parameter.name) > 4:
            wrong = parameter.name[:-2] + parameter.name[-1]
            assert re.match(f"refused|TypeError: .*{wrong}", outcome(function, right, **{wrong: 1}))


# ---------------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ecosystem.Agent(MARKOV)(0.9), r"knows no state 0\.9: give its number"),
        (lambda: ecosystem.Agent(MARKOV)(np.array([0, 1])), "an agent of its own"),
        (lambda: solved("grid").policy.act_at(0, X, [math.nan, 1.0]), "weights must be"),
        (lambda: solved("grid").policy.act_at(0, X, [5.0, 5.0]), "must sum to 1, not 10"),
        (lambda: solved("grid").policy.act_at(0, X, [2.0, -1.0]), "it must be a probability"),
        (lambda: solved("grid").policy.act_at(0, X, [1.0]), "one number per model"),
        (lambda: solved("grid").policy.act_at(1.5, X, [0.5, 0.5]), "time must be a whole number"),
        (lambda: mmdp.Grid("0", 1, 3), "low must be a number, not '0'"),
        (lambda: mmdp.solve(MODEL, 2, callback=5), "callback must be a function or None, not 5"),
        (lambda: mmdp.export(None, "p.py"), "policy must be a Policy or a Solution, not None"),
        (lambda: mmdp.simulate(MARKOV, MODEL, episods=3), "did you mean 'episodes'"),
        (lambda: mmdp.fit({**LOG, "state": np.zeros((3, 2))}), "columns of different sizes"),
    ],
)
def test_messages_say_what_is_wrong(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(mmdp.InputError, match=told):
        call()


def test_whole_numbers_in_arrays_are_states() -> None:
    agent = ecosystem.Agent(MARKOV)
    assert [agent(np.array([0.0])), agent(np.int64(1))] == MARKOV.actions[[0, 1], [0, 1]].tolist()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"discout": 0.9}, r"no argument 'discout' \(did you mean 'discount'\?\)"),
        ({"wieghts": [1.0]}, r"no argument 'wieghts' \(did you mean 'weights'\?\)"),
        ({"times": {"age": range(3), "year": range(5)}}, "times have one name"),
        ({"times": {"age": {"a": 1}}}, "times must be a number, a range or labels"),
        ({"times": [[1, 2], [3]]}, "is no time label"),
    ],
)
def test_fields_of_from_step(more: dict[str, Any], told: str) -> None:
    with pytest.raises(mmdp.InputError, match=told):
        mmdp.from_step(step, states={"level": range(2)}, actions={"use": [0.0]}, **more)
