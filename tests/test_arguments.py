"""Every argument of every public function: a wrong value is an InputError, never a raw error.

``CALLS`` has one right call of each public callable; a new one without a call fails the test. Each
argument in turn is replaced by every value of ``WRONG_VALUES`` (without the slow tests by every
second one, others for the next argument). That must be refused by an InputError in
one line, unless the value has a meaning there: its type says so (:func:`fits`), or ``MEANINGS``.
Numbers in turn are also replaced by those of ``UNUSABLE_NUMBERS``, in the shape of the right call.
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
    distributed,
    domains,
    economics,
    interop,
    io,
    measures,
    methods,
    objectives,
    plots,
    policies,
    posterior,
    report,
)
from mmdp.core.methods import Method
from mmdp.core.objectives import Objective
from mmdp.core.policies import PolicyClass

MODULES = (
    mmdp,
    domains,
    economics,
    interop,
    distributed,
    io,
    measures,
    methods,
    objectives,
    plots,
    policies,
    posterior,
    report,
)
WRONG_VALUES: dict[str, Any] = {
    "None": None,
    "nan": math.nan,
    "inf": math.inf,
    "-1": -1,
    "2.5": 2.5,
    "True": True,
    "text": "no such thing",
    "object": object(),
    "[]": [],
    "ragged": [[1, 2], [3]],
    "shape": np.full((2, 3, 5), 0.5),
    "mapping": {"no such key": object()},
    "function": lambda *_: object(),
    "10**400": 10**400,
}
if pd.__version__ < "3.1":  # it raises by itself if there is such a number in a column
    del WRONG_VALUES["10**400"]
# numbers that no computation can use, made of those of a right call
UNUSABLE_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "complex array": lambda numbers: numbers.astype(complex),
    "complex list": lambda numbers: numbers.astype(complex).tolist(),
    "list of 10**400": lambda numbers: np.full(numbers.shape, 10**400, object).tolist(),
}
if pd.__version__ < "3.1":
    del UNUSABLE_NUMBERS["list of 10**400"]
NUMERIC_LABELS = {"policies.Tied.groups"}  # numbers that are compared, not computed with
HOOKS = (Method, Objective, PolicyClass)  # their methods are called by mmdp
# made by mmdp, or what a new method, kernel or kind of policy is built of
INTERNAL_NAMES = {
    "Bound",
    "Evaluation",
    "Solution",
    "Provenance",
    "Progress",
    "Status",
    "InputError",
    "Domain",
    "CostEffectiveness",
    "WillingnessToPay",
    "Estimate",
    "NearOptimalActions",
    "RiskFrontier",
    "Stability",
    "Fit",
    "Capabilities",
    "SolveContext",
    "MethodResult",
    "ProblemSpec",
    "Method",
    "Objective",
    "PolicyClass",
    "Planner",
    "Policy",
    "Belief",
    "TreePolicy",
    "LostProcessError",
    "Mixture",
    "RowInformation",
    "ValueAtStake",
    "TailObjective",
    "weighted_quantile",
    # leaving
    "mixture",
    "row_information",
    "regret_by_horizon",
    "from_mdptoolbox",
    "to_mdptoolbox",
}
CALLBACK_METHODS = {
    "act",
    "update",
    "compute_returns",
    "make_simulation_tables",
    "to_table",
    "to_dict",
    "drawn",
    "describe_randomization",
    "check_horizon",
    "from_table",
    "from_row",
    "reorder",
    "from_dict",
    "iter_nodes",
    "done",
    "from_sparse",
    "with_evidence",
    "with_step_spec",
    "mask_visits",
    "mean_problem",
    "label_index",
    "locate",
    "clip",
    "suggest_remedy",
    "make_outcome_models",
    "time_weights",
    "make_rows",
    "to_map_rows",
    "make_posterior",
}  # methods that mmdp calls
TEXT = {
    "name",
    "title",
    "citation",
    "unit",
    "quantity",
    "path",
    "cache_dir",
    "out_dir",
    "folder",
    "xlabel",
    "ylabel",
    "state_label",
}
ALWAYS_REFUSED = {"policies.MemoryPolicy.to_markov"}  # a policy with memory has no table
EXTENSION_CLASSES = {"ProblemSpec", "SolveContext", "MethodResult", "Planner", "Policy"}
MEANINGS = {  # of values that their types do not give one
    "mmdp.MMDP.subset.models": "-1",
    "interop.to_gymnasium.model_index": "-1",  # from the end
    "interop.to_quantecon.model_index": "-1",
    "mmdp.Grid.low": "-1",
    "mmdp.Bound.share_closed.value": "-1",
    "mmdp.Bound.share_closed.oracle": "-1",
    "mmdp.Bound.gap.value": "-1",
    "mmdp.bound.incumbent": "-1 2.5",
    "interop.Agent.__call__.reward": "-1",
    "measures.value_at_stake.value": "-1",
    "measures.ValueAtStake.format_share.amount": "-1 inf",
    "measures.ValueAtStake.to_share.amount": "-1 inf",
    "mmdp.Solution.describe_randomization.suffix": "function",
    "mmdp.fit.prior": "2.5",
    "mmdp.solve.horizon": "inf",
    "mmdp.bound.horizon": "inf",
    "measures.risk_frontier.horizon": "inf",
    "measures.value_by_leaves.horizon": "inf",
    "mmdp.study.horizons": "inf",
    "report.write.time_limit": "inf",
    "domains.inventory.demands": "[]",  # no demand was logged: the prior
    "mmdp.fit.absorbing": "[]",
    "mmdp.fit.time_labels": "None",
    "report.write.notes": "[]",
    "report.draw.unseen_pairs": "[]",
    "report.draw.wtp_grid": "[]",
    "plots.weights_over_time.weights": "shape",
    "mmdp.study.seeds": "None 10**400",
    "domains.riverswim.log": "10**400",  # a seed
    "interop.from_gymnasium.concentration": "inf",
    "domains.garnet.concentration": "inf",
    "objectives.as_objective.objective": "function",
    "plots.survival.dead": "[]",
    "policies.require_markov.purpose": "text",
    "policies.require_markov.method_argument": "text",
    "policies.require_markov.requirement": "text",
    "policies.as_policy.purpose": "text",
    "io.write_all_atomic.stale": "[]",
    "io.write_atomic.writer": "text function",
    "distributed.join_processes.address": "text",  # a single process joins nobody
}
FOLDER = Path(tempfile.gettempdir())  # replaced for each test
X, Y = "level=1", "level=2"
MODEL = mmdp.MMDP(
    [[[[0.5, 0.5], [1, 0]], [[0, 1], [0.2, 0.8]]], [[[0.9, 0.1], [1, 0]], [[0, 1], [0.6, 0.4]]]],
    [[[1.0, 0.0], [2.0, 3.0]], [[0.0, 2.0], [1.0, 0.0]]],
    states=[X, Y],
    actions=["stay", "go"],
    discount=0.9,
    parameters={"rate": [0.1, 0.3]},
)
MARKOV = mmdp.policies.MarkovPolicy.for_model(MODEL, [[0, 1], [1, 0]])
RULE = mmdp.policies.StationaryPolicy.for_model(MODEL, [0, 1])
LOG = {"state": [0, 1, 0], "action": [0, 1, 1], "next_state": [1, 0, 0], "reward": [1.0, 0.0, 2.0]}
AMOUNTS = np.array([[1.0, 2.0], [0.0, 3.0]])
OUTCOMES = economics.CostEffectiveness.from_tables(
    effects={"a": [1.0, 2.0], "b": [2.0, 2.5]},
    costs={"a": [0.0, 1.0], "b": [3.0, 1.0]},
    parameters={"rate": [0.1, 0.3]},
)
CURVES = OUTCOMES.acceptability([0.0, 1.0]), OUTCOMES.frontier([0.0, 1.0])


def step(state: Any, action: Any) -> tuple[Any, Any]:
    return {"level": state["level"]}, action["use"]


def build(sample: Any) -> dict[str, Any]:
    return {"transitions": [[[1.0]]], "rewards": [[float(sample["rate"])]]}


@functools.cache
def solve_model(method: str = "cadp", **options: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, method, **options)


@functools.cache
def solve_tree() -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, policy_class=mmdp.policies.Tree(max_leaves=2))


@functools.cache
def solve_controller() -> mmdp.policies.MemoryPolicy:
    return mmdp.solve(MODEL, 2, policy_class=mmdp.policies.Memory(2)).policy


@functools.cache
def frame_of_leaves() -> pd.DataFrame:
    return mmdp.measures.value_by_leaves(MODEL, 2, 2)


@functools.cache
def frame_of_memory() -> pd.DataFrame:
    return mmdp.measures.value_by_nodes(MODEL, 2, [1, 2])


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
        "effects.csv": "state,action,effect,cost\n"
        + "".join(f"{s},{a},{a == 'go':d},{a == 'go':d}\n" for s in (X, Y) for a in ("stay", "go")),
    }
    if name in texts:
        path.write_text(texts[name])
    elif name == "model.npz":
        mmdp.save(MODEL, path)
    else:
        mmdp.save_policy(solve_model(), path)
    return path


class Lake:
    """An environment of Gymnasium with a table."""

    unwrapped = types.SimpleNamespace(P={0: {0: [(1.0, 0, 1.0, False)]}})


@functools.wraps(distributed.join_processes)
def enter_processes(*args: Any, **kwargs: Any) -> Any:
    return distributed.join_processes(*args, **kwargs).__enter__()


def make_and_use(make: Callable[..., Any], use: Callable[[Any], Any], /, **arguments: Any) -> Call:
    """An object is made and used: what it is made of is checked against the models."""

    @functools.wraps(make)
    def call(**inputs: Any) -> Any:
        return use(make(**inputs))

    return call, arguments


def solve_with_method(method: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, method)


def solve_with_class(policy_class: Any) -> mmdp.Solution:
    return mmdp.solve(MODEL, 2, policy_class=policy_class)


@functools.wraps(mmdp.study)
def run_study(**arguments: Any) -> None:
    """A study whose cells fail has errors in its table."""
    table = mmdp.study(**arguments)
    for error in table["error"].dropna():
        assert not re.match(r"\w+Error: ", error), error
        raise mmdp.InputError(error)


def new_path(name: str) -> Path:
    return FOLDER / name


Call = tuple[Callable[..., Any], dict[str, Any]]


def make_call(function: Callable[..., Any], /, **arguments: Any) -> Call:
    return function, arguments


CALLS: dict[str, Callable[[], Call]] = {
    # models
    "mmdp.MMDP": lambda: make_call(mmdp.MMDP, transitions=MODEL.transitions, rewards=MODEL.rewards),
    "mmdp.MMDP.from_coordinates": lambda: make_call(
        mmdp.MMDP.from_coordinates,
        model=[0, 0],
        state=[0, 1],
        action=[0, 0],
        next_state=[1, 0],
        probability=[1.0, 1.0],
        reward=[1.0, 0.0],
        shape=(1, 2, 1),
    ),
    "mmdp.MMDP.to_kwargs": lambda: make_call(MODEL.to_kwargs),
    "mmdp.MMDP.fingerprint": lambda: make_call(MODEL.fingerprint),
    "mmdp.MMDP.truncate_before": lambda: make_call(
        mmdp.MMDP([MODEL.transitions] * 3, MODEL.rewards).truncate_before, time=1
    ),
    "mmdp.MMDP.transition_matrix": lambda: make_call(MODEL.transition_matrix, model=0, action=0),
    "mmdp.MMDP.mean_model": lambda: make_call(MODEL.mean_model),
    "mmdp.MMDP.reorder_like": lambda: make_call(MODEL.reorder_like, other=MODEL),
    "mmdp.MMDP.replace": lambda: make_call(MODEL.replace, discount=0.5),
    "mmdp.MMDP.subset": lambda: make_call(MODEL.subset, models=[0]),
    "mmdp.MMDP.take_shard": lambda: make_call(MODEL.take_shard, index=0, n_shards=2),
    "mmdp.MMDP.update": lambda: make_call(MODEL.update, state=X, action="stay", next_state=Y),
    "mmdp.from_step": lambda: make_call(
        mmdp.from_step, step=step, states={"level": range(2)}, actions={"use": [0.0, 1.0]}
    ),
    "mmdp.Grid": lambda: make_call(mmdp.Grid, low=0.0, high=1.0, n_points=3),
    "mmdp.from_samples": lambda: make_call(
        mmdp.from_samples, samples={"rate": [0.1, 0.2]}, build=build
    ),
    "mmdp.fit": lambda: make_call(mmdp.fit, log=LOG, n_models=2),
    "posterior.fit_folder": lambda: make_call(
        posterior.fit_folder, log=LOG, path=new_path("fitted"), n_models=2, overwrite=True
    ),
    "posterior.coverage": lambda: make_call(
        posterior.coverage,
        model=mmdp.fit(LOG, n_models=2).train,
        policy=RULE.to_markov(2),
        n_logs=2,
        n_models=2,
    ),
    "posterior.find_unseen_pairs": lambda: make_call(posterior.find_unseen_pairs, model=MODEL),
    "posterior.predictive_probabilities": lambda: make_call(
        posterior.predictive_probabilities,
        model=MODEL,
        log={"state": [X], "action": ["stay"], "next_state": [Y]},
    ),
    "posterior.effective_sample_size": lambda: make_call(
        posterior.effective_sample_size, weights=[0.5, 0.5]
    ),
    "posterior.weights_by_step": lambda: make_call(
        posterior.weights_by_step,
        model=MODEL,
        log={"state": [X], "action": ["stay"], "next_state": [Y]},
    ),
    # methods, objectives, kinds of policy
    **{
        f"methods.{x}": functools.partial(make_and_use, getattr(methods, x), solve_with_method)
        for x in (
            "CADP",
            "MILP",
            "MVP",
            "WSU",
            "BeliefGrid",
            "Exact",
            "NaturalGradient",
            "MirrorAscent",
            "Oracle",
        )
    },
    **{
        f"methods.{x}": functools.partial(
            make_and_use, getattr(methods, x), solve_with_method, n_episodes=2
        )
        for x in ("POMCP", "QMDP", "MixTS", "Rollout")
    },
    **{
        f"policies.{x}": functools.partial(make_and_use, getattr(policies, x), solve_with_class)
        for x in ("Markov", "Stationary", "Memory", "Monotone", "Tree")
    },
    "objectives.Mean": lambda: make_call(mmdp.objectives.Mean),
    "objectives.WorstCase": lambda: make_call(mmdp.objectives.WorstCase),
    **{
        f"objectives.{x}": functools.partial(make_call, getattr(objectives, x), alpha=0.5)
        for x in ("CVaR", "EVaR", "VaR")
    },
    "objectives.MeanCVaR": lambda: make_call(mmdp.objectives.MeanCVaR, alpha=0.5, mean_weight=0.5),
    "objectives.Entropic": lambda: make_call(mmdp.objectives.Entropic, beta=0.5),
    "objectives.CustomObjective": lambda: make_and_use(
        mmdp.objectives.CustomObjective,
        lambda x: mmdp.solve(MODEL, 2, objective=x),
        function=lambda x, w: x @ w,
    ),
    "policies.Fixed": lambda: make_and_use(
        mmdp.policies.Fixed, solve_with_class, actions={X: "stay"}
    ),
    "policies.Tied": lambda: make_and_use(mmdp.policies.Tied, solve_with_class, groups=[0, 0]),
    "objectives.Regret": lambda: make_call(objectives.Regret, inner=mmdp.objectives.CVaR(0.5)),
    "objectives.as_objective": lambda: make_call(objectives.as_objective, objective="mean"),
    "methods.methods_supporting": lambda: make_call(methods.methods_supporting),
    "methods.list_capabilities": lambda: make_call(methods.list_capabilities),
    # solving
    "mmdp.solve": lambda: make_call(mmdp.solve, model=MODEL, horizon=2),
    "mmdp.bound": lambda: make_call(mmdp.bound, model=MODEL, horizon=2),
    "mmdp.evaluate": lambda: make_call(mmdp.evaluate, policy=MARKOV, model=MODEL),
    "measures.policy_gradient": lambda: make_call(
        mmdp.measures.policy_gradient, policy=MARKOV, model=MODEL
    ),
    "measures.model_weights": lambda: make_call(
        mmdp.measures.model_weights, policy=MARKOV, model=MODEL
    ),
    "mmdp.simulate": lambda: make_call(mmdp.simulate, policy=MARKOV, model=MODEL, n_episodes=2),
    "mmdp.study": lambda: make_call(run_study, models=MODEL, horizons=2),
    "mmdp.Bound.share_closed": lambda: make_call(
        mmdp.bound(MODEL, 2).share_closed, value=1.0, oracle=5.0
    ),
    "mmdp.Bound.gap": lambda: make_call(mmdp.bound(MODEL, 2).gap, value=1.0),
    "mmdp.Evaluation.cvar": lambda: make_call(solve_model().evaluation.cvar, alpha=0.5),
    "mmdp.Evaluation.quantile": lambda: make_call(solve_model().evaluation.quantile, alpha=0.5),
    "mmdp.Evaluation.compare_mean": lambda: make_call(
        solve_model().evaluation.compare_mean, other=solve_model().evaluation
    ),
    "mmdp.Evaluation.summary": lambda: make_call(solve_model().evaluation.summary),
    "mmdp.Evaluation.to_frame": lambda: make_call(solve_model().evaluation.to_frame),
    "mmdp.Evaluation.value": lambda: make_call(solve_model().evaluation.value, objective="mean"),
    "mmdp.Solution.describe_randomization": lambda: make_call(
        solve_tree().describe_randomization, suffix=str
    ),
    "mmdp.Solution.to_frame": lambda: make_call(solve_model().to_frame),
    # policies
    "policies.MarkovPolicy": lambda: make_call(mmdp.policies.MarkovPolicy, actions=[[0, 1]]),
    "policies.MarkovPolicy.action": lambda: make_call(MARKOV.action, time=0, state=X),
    "policies.MarkovPolicy.check": lambda: make_call(MARKOV.check, model=MODEL),
    "policies.MarkovPolicy.for_model": lambda: make_call(
        mmdp.policies.MarkovPolicy.for_model, model=MODEL, actions=[[0, 1]]
    ),
    "policies.MarkovPolicy.to_map": lambda: make_call(MARKOV.to_map),
    "policies.MarkovPolicy.to_markov": lambda: make_call(MARKOV.to_markov, horizon=2),
    "policies.MarkovPolicy.random": lambda: make_call(
        mmdp.policies.MarkovPolicy.random, model=MODEL, horizon=2
    ),
    "policies.MarkovPolicy.initial_memory": lambda: make_call(MARKOV.initial_memory),
    "policies.MarkovPolicy.describe": lambda: make_call(MARKOV.describe),
    "policies.MarkovPolicy.to_frame": lambda: make_call(MARKOV.to_frame),
    "policies.MarkovPolicy.uniform": lambda: make_call(
        mmdp.policies.MarkovPolicy.uniform, model=MODEL, horizon=2
    ),
    "policies.MemoryPolicy": lambda: make_call(
        mmdp.policies.MemoryPolicy, actions=[[[0], [1]]], node_transitions=[[[[0, 0]], [[0, 0]]]]
    ),
    "policies.MemoryPolicy.for_model": lambda: make_call(
        mmdp.policies.MemoryPolicy.for_model, model=MODEL, controller=solve_controller().controller
    ),
    "policies.MemoryPolicy.to_flow_chart": lambda: make_call(
        solve_controller().to_flow_chart, model=MODEL
    ),
    "policies.MemoryPolicy.merge_nodes": lambda: make_call(
        solve_controller().merge_nodes, model=MODEL
    ),
    "policies.MemoryPolicy.format_all_transitions": lambda: make_call(
        solve_controller().format_all_transitions
    ),
    "policies.MemoryPolicy.node_policy": lambda: make_call(solve_controller().node_policy, node=0),
    "policies.MemoryPolicy.initial_memory": lambda: make_call(solve_controller().initial_memory),
    "policies.MemoryPolicy.describe": lambda: make_call(solve_controller().describe),
    "policies.MemoryPolicy.to_frame": lambda: make_call(solve_controller().to_frame),
    "policies.MemoryPolicy.compute_node_weights": lambda: make_call(
        solve_controller().compute_node_weights, model=MODEL
    ),
    "policies.StationaryPolicy": lambda: make_call(mmdp.policies.StationaryPolicy, actions=[0, 1]),
    "policies.StationaryPolicy.to_markov": lambda: make_call(RULE.to_markov, horizon=2),
    "policies.TreePolicy.to_markov": lambda: make_call(solve_tree().policy.to_markov, horizon=2),
    "policies.TreePolicy.describe": lambda: make_call(solve_tree().policy.describe),
    "methods.BeliefGridPolicy.best_action": lambda: make_call(
        solve_model("grid").policy.best_action, time=0, state=X, weights=[0.5, 0.5]
    ),
    "methods.BeliefGridPolicy.to_map": lambda: make_call(solve_model("grid").policy.to_map),
    "policies.as_policy_class": lambda: make_call(policies.as_policy_class, policy_class="markov"),
    "policies.require_markov": lambda: make_call(
        policies.require_markov, policy=MARKOV, purpose="this takes"
    ),
    "policies.as_policy": lambda: make_call(
        policies.as_policy, policy=MARKOV, purpose="this takes"
    ),
    "interop.Agent": lambda: make_call(interop.Agent, policy=MARKOV),
    "interop.Agent.reset": lambda: make_call(interop.Agent(MARKOV).reset),
    "interop.Agent.__call__": lambda: make_call(interop.Agent(MARKOV), observation=0),
    # measures
    "measures.near_optimal_actions": lambda: make_call(
        mmdp.measures.near_optimal_actions, policy=MARKOV, model=MODEL
    ),
    "measures.risk_frontier": lambda: make_call(
        mmdp.measures.risk_frontier, model=MODEL, horizon=2, alphas=[0.5]
    ),
    "measures.value_by_leaves": lambda: make_call(
        mmdp.measures.value_by_leaves, model=MODEL, horizon=2, n_leaves=2
    ),
    "measures.value_by_nodes": lambda: make_call(
        mmdp.measures.value_by_nodes, model=MODEL, horizon=2, n_nodes=[1]
    ),
    "measures.sample_size_curve": lambda: make_call(
        measures.sample_size_curve, model=MODEL, horizon=2, sizes=[1], n_repeats=1
    ),
    "measures.evpi": lambda: make_call(measures.evpi, model=MODEL, horizon=2),
    "measures.evppi": lambda: make_call(measures.evppi, model=MODEL, horizon=2, parameter="rate"),
    "measures.voi_table": lambda: make_call(measures.voi_table, model=MODEL, horizon=2),
    "measures.leaf_table": lambda: make_call(measures.leaf_table, policy=solve_tree(), model=MODEL),
    "measures.policy_table": lambda: make_call(
        measures.policy_table, solution=solve_model(), model=MODEL
    ),
    "measures.value_at_stake": lambda: make_call(
        measures.value_at_stake, policy=solve_model(), model=MODEL
    ),
    "measures.ValueAtStake.format_share": lambda: make_call(
        measures.ValueAtStake(50.0, "always wait").format_share, amount=2.0
    ),
    "measures.ValueAtStake.to_share": lambda: make_call(
        measures.ValueAtStake(50.0, "always wait").to_share, amount=2.0
    ),
    "measures.stability": lambda: make_call(
        measures.stability, model=MODEL, horizon=2, n_resamples=2
    ),
    "measures.NearOptimalActions.to_frame": lambda: make_call(
        mmdp.measures.near_optimal_actions(MODEL, MARKOV).to_frame
    ),
    "measures.NearOptimalActions.format_action_sets": lambda: make_call(
        mmdp.measures.near_optimal_actions(MODEL, MARKOV).format_action_sets
    ),
    "measures.RiskFrontier.plot": lambda: make_call(
        mmdp.measures.risk_frontier(MODEL, 2, [0.5]).plot
    ),
    "measures.RiskFrontier.to_frame": lambda: make_call(
        mmdp.measures.risk_frontier(MODEL, 2, [0.5]).to_frame
    ),
    "measures.Stability.to_frame": lambda: make_call(
        measures.stability(MODEL, 2, n_resamples=2).to_frame, model=MODEL
    ),
    # costs and effects
    "economics.cohort_trace": lambda: make_call(
        economics.cohort_trace, model=MODEL, policies={"a": MARKOV}, horizon=2
    ),
    "economics.cost_effectiveness": lambda: make_call(
        economics.cost_effectiveness,
        model=MODEL,
        effects=AMOUNTS,
        costs=AMOUNTS,
        policies={"a": MARKOV},
        horizon=2,
    ),
    "economics.willingness_to_pay": lambda: make_call(
        economics.willingness_to_pay,
        model=MODEL,
        effects=AMOUNTS,
        costs=AMOUNTS,
        thresholds=[1.0],
        horizon=2,
    ),
    "economics.OutcomeDiscounting": lambda: make_call(economics.OutcomeDiscounting),
    "economics.OutcomeDiscounting.make_net_benefit_model": lambda: make_call(
        economics.OutcomeDiscounting().make_net_benefit_model,
        model=MODEL,
        effects=AMOUNTS,
        costs=AMOUNTS,
        threshold=1.0,
        horizon=2,
    ),
    "economics.CostEffectiveness.from_tables": lambda: make_call(
        economics.CostEffectiveness.from_tables, effects={"a": [1.0]}, costs={"a": [1.0]}
    ),
    "economics.CostEffectiveness.acceptability": lambda: make_call(
        OUTCOMES.acceptability, thresholds=[1.0]
    ),
    "economics.CostEffectiveness.frontier": lambda: make_call(OUTCOMES.frontier, thresholds=[1.0]),
    "economics.CostEffectiveness.icers": lambda: make_call(OUTCOMES.icers),
    "economics.CostEffectiveness.net_benefit": lambda: make_call(
        OUTCOMES.net_benefit, threshold=1.0
    ),
    "economics.CostEffectiveness.evppi": lambda: make_call(
        OUTCOMES.evppi, threshold=1.0, parameter="rate"
    ),
    "economics.CostEffectiveness.evsi": lambda: make_call(
        OUTCOMES.evsi, threshold=1.0, study=[0.1, 0.2], n_resamples=2
    ),
    # files
    "mmdp.load": lambda: make_call(mmdp.load, path=file("model.npz")),
    "mmdp.load_policy": lambda: make_call(mmdp.load_policy, path=file("policies.csv")),
    "mmdp.save": lambda: make_call(mmdp.save, model=MODEL, path=new_path("m.npz")),
    "mmdp.save_policy": lambda: make_call(mmdp.save_policy, policy=MARKOV, path=new_path("p.csv")),
    "io.save_shards": lambda: make_call(
        io.save_shards, model=MODEL, folder=new_path("parts"), n_shards=2
    ),
    "io.from_frame": lambda: make_call(io.from_frame, frame=io.to_frame(MODEL)),
    "io.to_frame": lambda: make_call(io.to_frame, model=MODEL),
    "io.load_certificate": lambda: make_call(
        io.load_certificate, path=file("policies.csv"), model=MODEL
    ),
    "io.load_features": lambda: make_call(io.load_features, path=file("features.csv")),
    "io.load_groups": lambda: make_call(io.load_groups, path=file("groups.csv")),
    "io.load_objective": lambda: make_call(io.load_objective, path=file("policies.csv")),
    "io.write_all_atomic": lambda: make_call(io.write_all_atomic, files={new_path("a"): "text"}),
    "io.write_atomic": lambda: make_call(io.write_atomic, path=new_path("a"), writer="text"),
    "mmdp.export": lambda: make_call(mmdp.export, policy=MARKOV, path=new_path("p.py")),
    "report.write": lambda: make_call(
        report.write, model=MODEL, path=new_path("r.html"), horizon=2, time_limit=0.0
    ),
    "report.draw": lambda: make_call(
        report.draw, figure="policy", model=MODEL, path=new_path("p.svg"), horizon=2
    ),
    "report.read_effects": lambda: make_call(
        report.read_effects, path=file("effects.csv"), model=MODEL
    ),
    # other tools
    "interop.from_gymnasium": lambda: make_call(interop.from_gymnasium, env=Lake(), n_models=2),
    "interop.from_quantecon": lambda: make_call(
        interop.from_quantecon, problem=interop.to_quantecon(MODEL)
    ),
    "interop.from_storm": lambda: make_call(interop.from_storm, models=file("model.drn")),
    "interop.save_pomdp": lambda: make_call(
        interop.save_pomdp, model=MODEL, path=new_path("m.pomdp")
    ),
    "interop.to_gymnasium": lambda: make_call(interop.to_gymnasium, model=MODEL, horizon=2),
    "interop.to_gymnasium_vector": lambda: make_call(
        interop.to_gymnasium_vector, model=MODEL, horizon=2
    ),
    "interop.to_quantecon": lambda: make_call(interop.to_quantecon, model=MODEL),
    # domains
    **{
        f"domains.{name}": functools.partial(make_call, getattr(domains, name), n_train=1, n_test=1)
        for name in (
            "hiv",
            "inventory",
            "perishable",
            "population",
            "population_small",
            "riverswim",
        )
    },
    "domains.garnet": lambda: make_call(
        domains.garnet, n_models=1, n_states=3, n_actions=2, branching=2, n_test=1
    ),
    "domains.load_published": lambda: make_call(domains.load_published, name="riverswim"),
    "domains.two_models": lambda: make_call(domains.two_models),
    # plots
    "plots.acceptability_curves": lambda: make_call(
        plots.acceptability_curves, acceptability=CURVES[0]
    ),
    "plots.cohort_trace": lambda: make_call(
        plots.cohort_trace, frame=economics.cohort_trace(MODEL, {"a": MARKOV}, 2)
    ),
    "plots.error_bars": lambda: make_call(
        plots.error_bars,
        frame=pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0], "e": [0.1, 0.1]}),
        x="a",
        y="b",
        error="e",
    ),
    "plots.expected_loss": lambda: make_call(plots.expected_loss, acceptability=CURVES[0]),
    "plots.risk_frontier": lambda: make_call(
        plots.risk_frontier, frame=mmdp.measures.risk_frontier(MODEL, 2, [0.5]).to_frame()
    ),
    "plots.methods_comparison": lambda: make_call(plots.methods_comparison, means={"a": 1.0}),
    "plots.new_axes": lambda: make_call(plots.new_axes, n_columns=2),
    "plots.new_axis": lambda: make_call(plots.new_axis),
    "plots.to_png": lambda: make_call(plots.to_png, axis=plots.new_axis()),
    "plots.to_svg": lambda: make_call(plots.to_svg, axis=plots.new_axis()),
    "plots.policy_heatmap": lambda: make_call(plots.policy_heatmap, policy=MARKOV),
    "plots.regret_distribution": lambda: make_call(plots.regret_distribution, regret=[0.0, 1.0]),
    "plots.returns_distribution": lambda: make_call(
        plots.returns_distribution, returns={"a": [0.0, 1.0]}
    ),
    "plots.save_figure": lambda: make_call(
        plots.save_figure, axis=plots.new_axis(), path=new_path("a.png")
    ),
    "plots.survival": lambda: make_call(
        plots.survival, frame=economics.cohort_trace(MODEL, {"a": MARKOV}, 2), dead=Y
    ),
    "plots.value_traces": lambda: make_call(plots.value_traces, values={"a": [0.0, 1.0]}),
    "plots.tree": lambda: make_call(plots.tree, policy=solve_tree()),
    "plots.value_by_leaves": lambda: make_call(plots.value_by_leaves, frame=frame_of_leaves()),
    "plots.value_by_nodes": lambda: make_call(plots.value_by_nodes, frame=frame_of_memory()),
    "plots.weights_by_step": lambda: make_call(
        plots.weights_by_step, weights=np.full((2, 2), 0.5), times=[0, 1], model_labels=["a", "b"]
    ),
    "plots.weights_over_time": lambda: make_call(
        plots.weights_over_time, weights=mmdp.measures.model_weights(MODEL, MARKOV)
    ),
    # many machines
    "distributed.join_processes": lambda: make_call(enter_processes),
    "distributed.process_shard": lambda: make_call(distributed.process_shard),
}


# ---------------------------------------------------------------------- what is public
def list_public_functions() -> Iterator[tuple[str, Any]]:
    """Functions, classes and the methods of objects that a user holds, each once."""
    seen: set[int] = set()
    for module in MODULES:
        short = module.__name__.removeprefix("mmdp.")
        for name in getattr(module, "__all__", dir(module)):
            member = getattr(module, name)
            inside = "mmdp" if hasattr(module, "__all__") else module.__name__
            is_own = str(getattr(member, "__module__", "")).startswith(inside)
            if name.startswith("_") or not callable(member) or not is_own or id(member) in seen:
                continue
            seen.add(id(member))
            if name not in INTERNAL_NAMES:
                yield f"{short}.{name}", member
            if inspect.isclass(member) and not issubclass(member, (*HOOKS, Exception)):
                for inner, method in inspect.getmembers(member, inspect.isroutine):
                    function, full = getattr(method, "__func__", method), f"{short}.{name}.{inner}"
                    if not inner.startswith("_") and id(function) not in seen:
                        seen.add(id(function))
                        is_own = str(getattr(function, "__module__", "")).startswith("mmdp")
                        if (
                            is_own
                            and name not in EXTENSION_CLASSES
                            and (inner not in CALLBACK_METHODS or full in CALLS)
                        ):
                            yield full, method


def type_accepts(label: str, parameter: inspect.Parameter) -> bool:
    """Whether the type of an argument gives a value a meaning."""
    hint = str(parameter.annotation)
    if label == "None":
        return parameter.default is None or "None" in hint or "Seed" in hint
    if label == "2.5":
        return "float" in hint or "Float" in hint or "Seconds" in hint
    if label == "inf":
        return "Seconds" in hint  # no limit
    if label == "10**400":
        return "Seed" in hint
    if label == "function":
        return "Callable" in hint or "Callback" in hint or "Say" in hint
    if label == "text":
        return parameter.name in TEXT
    return label == "True" and "bool" in hint


def call_outcome(function: Any, arguments: Mapping[str, Any], **more: Any) -> str:
    """``refused``, ``taken``, or the raw error."""
    try:
        function(**arguments, **more)
    except mmdp.InputError as error:
        return "refused" if "\n" not in str(error) else f"two lines: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def list_parameters(function: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a function, and the options that it takes by name."""
    for x in inspect.signature(function).parameters.values():
        if x.kind is not x.VAR_KEYWORD:
            yield x
        elif "Unpack" in str(x.annotation):
            module = inspect.getmodule(inspect.unwrap(function))
            options = getattr(module, re.findall(r"\[(\w+)\]", x.annotation)[0])
            for name, hint in options.__annotations__.items():
                yield inspect.Parameter(name, x.KEYWORD_ONLY, annotation=hint.__forward_arg__)


def list_wrong_calls(name: str) -> Iterator[tuple[inspect.Parameter, str]]:
    draw_parameters = (
        {x.name for x in list_parameters(report.draw)} if name == "report.write" else set()
    )
    for parameter in list_parameters(CALLS[name]()[0]):  # a page takes the options of a picture
        if parameter.kind is not parameter.VAR_POSITIONAL and parameter.name not in draw_parameters:
            yield from ((parameter, label) for label in WRONG_VALUES)


def find_failures(name: str, nth: int) -> Iterator[str]:
    """The wrong calls that are not refused: of each two, the first or the second."""
    function, valid_arguments = CALLS[name]()
    outcome_name = call_outcome(function, valid_arguments)
    assert outcome_name == "taken", outcome_name
    for i, (parameter, label) in enumerate(list_wrong_calls(name)):
        if (i + i // len(WRONG_VALUES)) % 2 != nth:
            continue
        function, valid_arguments = CALLS[name]()  # some calls change what they are given
        outcome_name = call_outcome(
            function, {**valid_arguments, parameter.name: WRONG_VALUES[label]}
        )
        meanings = label in MEANINGS.get(f"{name}.{parameter.name}", "").split()
        if outcome_name != "refused" and not (
            outcome_name == "taken" and (meanings or type_accepts(label, parameter))
        ):
            yield f"{name}({parameter.name}={label}): {outcome_name}"


# ---------------------------------------------------------------------- tests
@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_every_public_function_has_a_call() -> None:
    names = {name for name, _ in list_public_functions()}
    assert names - CALLS.keys() - ALWAYS_REFUSED == set()
    assert sum(1 for name in CALLS for _ in list_wrong_calls(name)) > 7900


@pytest.mark.parametrize("nth", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused(name: str, nth: int) -> None:
    if name == "interop.from_storm":
        pytest.importorskip("stormpy")
    assert list(find_failures(name, nth)) == []


def replace_numbers(value: Any, replace: Callable[[Any], Any]) -> Any:
    """The value with other numbers in their place; None if it holds none."""
    if isinstance(value, Mapping):
        values = {key: replace_numbers(x, replace) for key, x in value.items()}
        replaced = {key: x for key, x in values.items() if x is not None}
        return {**value, **replaced} if replaced else None
    if not isinstance(value, (list, tuple, np.ndarray, int, float)):
        return None
    try:
        numbers = np.array(value)
    except ValueError:  # of several shapes
        return None
    return replace(numbers) if numbers.dtype.kind in "iuf" and numbers.size else None


def find_unusable_numbers_taken(name: str) -> Iterator[str]:
    """The calls that take numbers that cannot be computed with."""
    for argument in CALLS[name]()[1]:
        for label, replace in UNUSABLE_NUMBERS.items():
            function, valid_arguments = CALLS[name]()
            wrong = replace_numbers(valid_arguments[argument], replace)
            if wrong is None or f"{name}.{argument}" in NUMERIC_LABELS:
                continue
            outcome_name = call_outcome(function, {**valid_arguments, argument: wrong})
            is_seed = "seed" in argument and "10**400" in label
            if outcome_name != "refused" and not is_seed:
                yield f"{name}({argument}={label}): {outcome_name}"


@pytest.mark.parametrize("name", CALLS)
def test_numbers_that_cannot_be_computed_with_are_refused(name: str) -> None:
    if name == "interop.from_storm":
        pytest.importorskip("stormpy")
    assert list(find_unusable_numbers_taken(name)) == []


@pytest.mark.parametrize("name", CALLS)
def test_unknown_arguments_are_refused(name: str) -> None:
    function, valid_arguments = CALLS[name]()
    assert re.match(
        "refused|TypeError: .*(no_such|no arg)", call_outcome(function, valid_arguments, no_such=1)
    )
    for parameter in list_parameters(function):  # one letter is missing in the name of an option
        if parameter.kind is parameter.KEYWORD_ONLY and len(parameter.name) > 4:
            wrong = parameter.name[:-2] + parameter.name[-1]
            assert re.match(
                f"refused|TypeError: .*{wrong}",
                call_outcome(function, valid_arguments, **{wrong: 1}),
            )


# ---------------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interop.Agent(MARKOV)(0.9), r"knows no state 0\.9: give its number"),
        (lambda: interop.Agent(MARKOV)(np.array([0, 1])), "an agent of its own"),
        (lambda: solve_model("grid").policy.best_action(0, X, [math.nan, 1.0]), "weights must be"),
        (lambda: solve_model("grid").policy.best_action(0, X, [5.0, 5.0]), "must sum to 1, not 10"),
        (
            lambda: solve_model("grid").policy.best_action(0, X, [2.0, -1.0]),
            "it must be a probability",
        ),
        (lambda: solve_model("grid").policy.best_action(0, X, [1.0]), "one number per model"),
        (
            lambda: solve_model("grid").policy.best_action(1.5, X, [0.5, 0.5]),
            "time must be a whole number",
        ),
        (lambda: MODEL.replace(states=5), "state labels must be a sequence .* not 5"),
        (lambda: MODEL.replace(discount=10**400), "discount must be a number from 0 to 1, not 1"),
        (
            lambda: mmdp.fit(LOG, concentration=10**30),
            "concentration is a whole number of about 1e",
        ),
        (lambda: mmdp.fit(LOG, prior=np.full((2, 2, 2), 1j)), "prior must be real numbers"),
        (
            lambda: policies.MarkovPolicy(probabilities=np.full((1, 2, 2), 0.5 + 0j)),
            "probabilities must be real numbers",
        ),
        (
            lambda: mmdp.MMDP.from_coordinates(
                model=[0],
                state=[0],
                action=[0],
                next_state=[0],
                probability=[1.0],
                shape=(10**30, 1, 1),
            ),
            "shape must be a tuple",
        ),
        (lambda: mmdp.Grid("0", 1, 3), "low must be a number, not '0'"),
        (lambda: mmdp.solve(MODEL, 2, callback=5), "callback must be a function or None, not 5"),
        (lambda: mmdp.export(None, "p.py"), "policy must be a Policy or a Solution, not None"),
        (lambda: mmdp.simulate(MODEL, MARKOV, n_episods=3), "did you mean 'n_episodes'"),
        (lambda: mmdp.fit({**LOG, "state": np.zeros((3, 2))}), "columns of different sizes"),
    ],
)
def test_messages_say_what_is_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        call()


def test_calls_with_too_few_or_too_many_arguments_name_the_function() -> None:
    with pytest.raises(TypeError, match=r"^solve\(\): missing a required argument: 'model'$"):
        mmdp.solve()
    with pytest.raises(TypeError, match=r"^bound\(\): too many positional arguments$"):
        mmdp.bound(MODEL, 2, "oracle", 3, 4, 5)


def test_whole_numbers_in_arrays_are_states() -> None:
    agent = interop.Agent(MARKOV)
    assert [agent(np.array([0.0])), agent(np.int64(1))] == MARKOV.actions[[0, 1], [0, 1]].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discout": 0.9}, r"no argument 'discout' \(did you mean 'discount'\?\)"),
        ({"wieghts": [1.0]}, r"no argument 'wieghts' \(did you mean 'weights'\?\)"),
        ({"time_labels": {"age": range(3), "year": range(5)}}, "time_labels have one name"),
        ({"time_labels": {"age": {"a": 1}}}, "time_labels must be a number, a range or labels"),
        ({"time_labels": [[1, 2], [3]]}, "is no time label"),
    ],
)
def test_fields_of_from_step(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mmdp.InputError, match=message):
        mmdp.from_step(step, states={"level": range(2)}, actions={"use": [0.0]}, **options)
