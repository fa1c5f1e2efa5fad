"""CPU seconds of what people wait for: infinite horizons, objectives, classes, trees, pages.

    python -m benchmarks.waits [--only CASE,...]  (the keys of CASES)

Every row has a peer or another solve of the same process beside it. All are CPU seconds of this
process, with what has to be loaded loaded before.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import mmdp
from benchmarks.studies import print_table
from mmdp.insight.report import DEFAULT_TIME_LIMIT
from mmdp.insight.report.context import ReportContext
from mmdp.insight.report.sections import choose_sections

N_ROUNDS = 3  # of a comparison


class Wait(NamedTuple):
    """CPU seconds of a case, those of what it is compared with, and a note."""

    case: str
    seconds: float
    peer_seconds: float | None
    peer: str
    note: str


def measure(task: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call, and its result."""
    start = time.process_time()
    result = task()
    return time.process_time() - start, result


# ------------------------------------------------------------------ models
def make_de_moor(
    n_ages: int,
    n_lead: int = 1,
    max_units: int = 10,
    n_models: int = 1,
    max_demand: int = 100,
) -> mmdp.MMDP:
    """Make De Moor's perishable stock: rounded gamma demand, newest units sold first."""
    transit = [f"transit{i}" for i in range(n_lead - 1)]
    ages = [f"age{i}" for i in range(n_ages)]  # age0 is the newest

    def step(state: Any, action: Any, event: Any) -> Any:
        left, unmet = {}, event["demand"]
        for age in ages:
            left[age] = np.maximum(state[age] - unmet, 0)
            unmet = np.maximum(unmet - state[age], 0)
        held = sum(left[age] for age in ages[:-1])
        cost = 3 * action["order"] + 5 * unmet + 7 * left[ages[-1]] + held
        pipeline = [action["order"], *(state[x] for x in transit)]
        after = {x: pipeline[i] for i, x in enumerate(transit)} | {ages[0]: pipeline[-1]}
        return after | {ages[i]: left[ages[i - 1]] for i in range(1, n_ages)}, -cost

    def event_probs(sample: Any) -> Any:
        shape = 1 / sample["cv"] ** 2
        cuts = np.append(np.arange(0.5, max_demand), np.inf)
        cdf = stats.gamma.cdf(np.r_[0, cuts], shape, scale=sample["mean"] / shape)
        return np.diff(cdf)

    rng, several = np.random.default_rng(0), n_models > 1
    return mmdp.from_step(
        step,
        states={x: range(max_units + 1) for x in transit + ages},
        actions={"order": range(max_units + 1)},
        events={"demand": range(max_demand + 1)},
        event_probs=event_probs,
        samples={
            "mean": rng.uniform(3, 5, n_models) if several else [4.0],
            "cv": rng.uniform(0.4, 0.6, n_models) if several else [0.5],
        },
        discount=0.99,
        initial=dict.fromkeys(transit + ages, 0),
    )


def make_fishery(n_stocks: int = 41) -> mmdp.MMDP:
    """Make a fishery with an unknown critical stock: five models, as many quotas as stocks."""
    stocks, top = np.arange(n_stocks), n_stocks - 1

    def step(state: Any, action: Any, event: Any) -> Any:
        return {"stock": event["next"]}, np.minimum(state["stock"], action["quota"])

    def event_probs(sample: Any, state: Any, action: Any) -> Any:
        rest = np.maximum(state["stock"] - action["quota"], 0.0)
        mean = rest * np.exp(0.5 * (1 - rest / 30) * (rest - sample["critical"]) / 30)
        density = stats.lognorm.pdf(stocks, 0.1, scale=np.where(mean > 0, mean, 1.0))
        total = density.sum(axis=1, keepdims=True)
        below = stats.lognorm.cdf(top, 0.1, scale=np.where(mean > 0, mean, 1.0))
        p = density * below / np.where(total > 0, total, 1)
        p[:, -1:] += 1 - below
        return np.where((mean <= 0) | (total == 0), np.eye(n_stocks)[0], p)

    return mmdp.from_step(
        step,
        states={"stock": stocks},
        actions={"quota": stocks},
        events={"next": stocks},
        event_probs=event_probs,
        samples={"critical": [0.0, 3, 6, 9, 12]},
        initial={"stock": 3 * n_stocks // 4},
        discount=0.99,
    )


def make_lake(n_models: int = 100) -> mmdp.MMDP:
    """Make slippery ice of 64 states, learnt from six steps of each action in each state."""
    size, rng = 8, np.random.default_rng(0)
    goal, ends = size**2 - 1, {19, 29, 35, 41, 42, 46, 49, 52, 54, 59, size**2 - 1}
    p = np.zeros((n_models, size**2, 4, size**2))
    for state, action in np.ndindex(size**2, 4):
        if state in ends:
            p[:, state, action, state] = 1.0
            continue
        cells = np.add(divmod(state, size), ((0, -1), (1, 0), (0, 1), (-1, 0)))
        rows, columns = np.clip(cells, 0, size - 1).T
        after = (rows * size + columns)[[action - 1, action, (action + 1) % 4]]
        next_states, ways = np.unique(after, return_counts=True)
        counts = rng.multinomial(6, ways / 3)
        p[:, state, action, next_states] = rng.dirichlet(0.5 + counts, n_models)
    r = p[..., goal].copy()  # for entering the goal
    r[:, goal] = 0.0
    return mmdp.MMDP(p, r, discount=0.99, initial=np.eye(size**2)[0])


def make_two_echelons(size: int = 8, n_models: int = 50, max_order: int = 4) -> mmdp.MMDP:
    """Make a warehouse and a shop with unknown demand: 2,025 states and 25 actions."""
    rng = np.random.default_rng(0)

    def step(state: Any, action: Any, event: Any) -> Any:
        ship, sold = action["ship"], np.minimum(state["shop"], event["demand"])
        shop = np.minimum(state["shop"] - sold + state["road"], size)
        store = np.minimum(state["store"] - ship + state["sea"], size)
        cost = 4 * action["order"] + (action["order"] > 0) + 0.5 * (ship > 0) + 0.2 * state["store"]
        reward = 14 * sold - 4 * event["demand"] - cost - 0.4 * (state["shop"] - sold)
        return {"store": store, "sea": action["order"], "shop": shop, "road": ship}, reward

    def event_probs(sample: Any) -> Any:
        r = sample["r"]
        p = stats.nbinom.pmf(np.arange(12), r, r / (r + sample["mean"]))
        return p / p.sum()

    orders = range(max_order + 1)
    return mmdp.from_step(
        step,
        states={"store": range(size + 1), "sea": orders, "shop": range(size + 1), "road": orders},
        actions={"order": orders, "ship": orders},
        events={"demand": range(12)},
        event_probs=event_probs,
        samples={"mean": rng.gamma(16, 2.2 / 16, n_models), "r": rng.uniform(1.5, 8, n_models)},
        initial={"store": size // 2, "sea": 0, "shop": size // 2, "road": 0},
        discount=0.98,
        allowed=lambda state, action: action["ship"] <= state["store"],
    )


def make_ward(n_beds: int, n_waiting: int = 1, n_models: int = 50) -> mmdp.MMDP:
    """Make a ward with a waiting list: many joint events, which lead to few numbers of patients."""
    rng, n_arrivals = np.random.default_rng(0), n_beds // 2

    def step(state: Any, action: Any, event: Any) -> Any:
        beds = np.maximum(state["beds"] - event["departures"], 0)
        admitted = np.minimum(np.minimum(action["admit"], n_beds - beds), state["waiting"])
        urgent = np.minimum(event["urgent"], n_beds - beds - admitted)
        waiting = np.minimum(state["waiting"] - admitted + event["planned"], n_waiting - 1)
        reward = 3 * admitted + 4 * urgent - 12 * (event["urgent"] - urgent) - 0.5 * waiting
        return {"beds": beds + admitted + urgent, "waiting": waiting}, reward

    def event_probs(sample: Any, state: Any) -> Any:
        arrivals = stats.poisson.pmf(np.arange(n_arrivals), sample["rate"])
        return {
            "urgent": arrivals / arrivals.sum(-1, keepdims=True),
            "planned": [0.3, 0.4, 0.3],
            "departures": stats.binom.pmf(np.arange(n_beds + 1), state["beds"], sample["leave"]),
        }

    return mmdp.from_step(
        step,
        states={"beds": range(n_beds + 1), "waiting": range(n_waiting)},
        actions={"admit": range(5)},
        events={
            "urgent": range(n_arrivals),
            "planned": range(3),
            "departures": range(n_beds + 1),
        },
        event_probs=event_probs,
        samples={"rate": rng.gamma(8, n_beds / 60, n_models), "leave": rng.beta(6, 18, n_models)},
        initial={"beds": n_beds // 2, "waiting": 0},
        discount=0.97,
    )


# ------------------------------------------------------------------ cases
def wait_infinite() -> Iterator[Wait]:
    """One model against quantecon's modified policy iteration, then fifty models."""
    for n_ages, n_lead in ((2, 1), (3, 1), (3, 2)):
        yield compare_quantecon(make_de_moor(n_ages, n_lead))
    model = make_de_moor(3, 2, n_models=50)
    seconds, solution = measure(lambda: mmdp.solve(model, math.inf))
    note = f"{solution.value:.4f}, {solution.status.name}"
    yield Wait(f"CADP, {model.n_states:,} states x 50 models", seconds, None, "", note)


def compare_quantecon(model: mmdp.MMDP, n_rounds: int = N_ROUNDS) -> Wait:
    """Solve one model over an infinite horizon, here and by quantecon, from its second solve on.

    Transitions by shared events are merged in our first solve, and for quantecon before its own.
    """
    first_seconds, solution = measure(lambda: mmdp.solve(model, math.inf))
    seconds = min(measure(lambda: mmdp.solve(model, math.inf))[0] for _ in range(n_rounds))
    try:
        peer = mmdp.interop.to_quantecon(model)
    except mmdp.InputError as error:
        return Wait(f"one model, {model.n_states:,} states", seconds, None, "", str(error))
    solve_peer = partial(peer.solve, "modified_policy_iteration", epsilon=1e-6, max_iter=10**6)
    result = solve_peer()  # compiles
    peer_seconds = min(measure(solve_peer)[0] for _ in range(n_rounds))
    difference = float(model.initial @ result.v) - solution.value
    return Wait(
        f"one model, {model.n_states:,} states",
        seconds,
        peer_seconds,
        "quantecon",
        f"{solution.value:.6f}, quantecon {difference:+.1e}; our first call {first_seconds:.2f}",
    )


def wait_growth() -> Iterator[Wait]:
    """One model of 10^3 to 10^6 states, ten actions; the note has the exponent since the first."""
    first: tuple[float, int] | None = None
    for n_ages in (3, 4, 5, 6):
        wait = compare_quantecon(model := make_de_moor(n_ages, max_units=9, max_demand=30), 1)
        first = first or (wait.seconds, model.n_states)
        if model.n_states > first[1]:
            exponent = math.log(wait.seconds / first[0], model.n_states / first[1])
            wait = wait._replace(note=f"exponent {exponent:.2f}; {wait.note}")
        yield wait


def compute_soft_median(returns: Any, weights: Any) -> Any:
    """Compute the mean of the models between the quartiles, as a function of the user."""
    low, high = np.quantile(returns, (0.25, 0.75), axis=-1, keepdims=True)
    return (np.clip(returns, low, high) * weights).sum(axis=-1)


def make_small_models() -> dict[str, tuple[mmdp.MMDP, int]]:
    """Make the models on which objectives and policy classes are compared, with horizons."""
    return {
        "fishery": (make_fishery(), 50),
        "lake": (make_lake(), 200),
        "riverswim": (mmdp.domains.riverswim().train, 50),
    }


def wait_objectives() -> Iterator[Wait]:
    """The objectives beside the mean and the worst case, and a function of the user."""
    user_function = mmdp.objectives.CustomObjective(compute_soft_median, is_monotone=True)
    texts = ("mean", "worst", "regret:worst", "cvar:0.5", "cvar:0.2", "cvar:0.1", "var:0.2")
    objectives = [mmdp.objectives.as_objective(x) for x in (*texts, "evar:0.2")]
    for name, (model, T) in make_small_models().items():
        taken = dict[str, float]()
        for objective in (objectives[0], objectives[1], user_function):  # compiles, loads
            mmdp.solve(model, 2, objective=objective, backend="numba")
        for objective in (*objectives, user_function):
            key = objective.key if objective is user_function else str(objective)
            taken[key], solution = measure(lambda m=(model, T, objective): solve_for(*m))
            peer = "worst" if key == "regret:worst" else "mean"
            note = f"{solution.value:.6f}, {solution.status.name}"
            yield Wait(f"{name}, {key}", taken[key], taken.get(peer), peer, note)


def solve_for(model: mmdp.MMDP, horizon: float, objective: Any) -> mmdp.Solution:
    """Solve a model for an objective by default."""
    return mmdp.solve(model, horizon, objective=objective)


def wait_classes() -> Iterator[Wait]:
    """Tied and monotone policies beside those without restriction."""
    for name, (model, T) in make_small_models().items():
        pairs = mmdp.policies.Tied(np.arange(model.n_states) // 2)
        classes = {"tied": pairs, "monotone": mmdp.policies.Monotone()}
        for horizon in (T, math.inf):
            for x in ("markov", *classes.values()):
                mmdp.solve(model, min(horizon, 2), policy_class=x, backend="numba")
            base, _ = measure(lambda m=model, h=horizon: mmdp.solve(m, h))
            for class_name, x in classes.items():
                for objective in ("mean", "cvar:0.2"):
                    solve = partial(mmdp.solve, policy_class=x, objective=objective)
                    seconds, solution = measure(lambda m=model, h=horizon, f=solve: f(m, h))
                    case = f"{name}, T = {horizon:g}, {class_name}, {objective}"
                    note = f"{solution.value:.6f}, {solution.status.name}"
                    yield Wait(case, seconds, base, "mean, no restriction", note)


def wait_trees() -> Iterator[Wait]:
    """Trees of a model of 2,025 states."""
    model = make_two_echelons()
    small_tree = mmdp.policies.Tree(max_leaves=3)
    mmdp.solve(make_two_echelons(2, 3, 2), 4, policy_class=small_tree, backend="numba")
    base, _ = measure(lambda: mmdp.solve(model, 26))
    for max_leaves in (4, 6, 8):
        tree = mmdp.policies.Tree(max_leaves=max_leaves)
        seconds, solution = measure(lambda t=tree: mmdp.solve(model, 26, policy_class=t))
        note = f"{solution.value:.4f}, {solution.status.name}"
        yield Wait(f"tree of {max_leaves} leaves", seconds, base, "Markov policy", note)


def wait_evaluate() -> Iterator[Wait]:
    """Evaluation, and solves over short horizons, of exogenous events."""
    model = make_two_echelons()
    rule = mmdp.policies.StationaryPolicy(np.zeros(model.n_states, int))
    base, _ = measure(lambda: mmdp.solve(model, 26, "wsu"))
    seconds, _ = measure(lambda: mmdp.evaluate(model, rule.to_markov(26)))
    yield Wait("evaluate, 2,025 states x 50 models", seconds, base, "wsu", "")


def wait_events() -> Iterator[Wait]:
    """First solves of many joint events, beside passes over every event."""
    mmdp.solve(make_ward(4, n_models=2), 2, backend="numba")
    for sizes in ((20, 1), (20, 10)):
        model = make_ward(*sizes)
        storage = model.problem.storage
        solve = partial(mmdp.solve, model, 26, mmdp.methods.CADP(n_init=1), backend="numba")
        seconds, solution = measure(solve)
        entries = f"{storage.n_entries:,} events, {storage.table_nbytes // 400:,} entries"
        vars(storage)["is_faster_as_table"] = False
        base, other = measure(solve)
        assert math.isclose(solution.value, other.value, rel_tol=1e-9)
        yield Wait(f"ward, {model.n_states:,} states", seconds, base, "every event", entries)


def wait_pages() -> Iterator[Wait]:
    """Pages as written by default, beside the time that they announce."""
    names = "riverswim", "hiv", "inventory", "population_small"
    models = {x: getattr(mmdp.domains, x)().train for x in names} | {"fishery": make_fishery(21)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        mmdp.report.write(models["riverswim"], path, horizon=2)
        for name, model in models.items():
            context = ReportContext(model, 20)
            chosen, skipped = choose_sections(context, DEFAULT_TIME_LIMIT)
            announced, start = sum(x.estimate_seconds(context) for x in chosen), time.perf_counter()
            seconds, _ = measure(lambda m=model: mmdp.report.write(m, path, horizon=20))
            note = f"wall {time.perf_counter() - start:.1f} s; not: {[*skipped]}"
            yield Wait(f"page, {name}", seconds, announced, "announced", note)


def make_cart(n_points: int) -> mmdp.MMDP:
    """Make a cart that is pushed back and forth on a grid of positions and speeds."""

    def step(state: Any, action: Any, event: Any) -> Any:
        speed = state["speed"] + action["push"] * event["friction"]
        after = {"x": np.clip(state["x"] + speed / 5, -1, 1), "speed": np.clip(speed, -1, 1)}
        return after, -(state["x"] ** 2)

    axis = mmdp.Grid(-1, 1, n_points)
    return mmdp.from_step(
        step,
        states={"x": axis, "speed": axis},
        actions={"push": [-0.1, 0, 0.1]},
        events={"friction": [0.5, 1.0]},
        event_probs=lambda: [0.5, 0.5],
    )


def wait_agents() -> Iterator[Wait]:
    """Decisions of an agent by named values, and models of an environment that is stepped."""
    base, n_decisions, rng = None, 10_000, np.random.default_rng(0)
    for n_points in (11, 41, 161):
        model = make_cart(n_points)
        agent = mmdp.interop.Agent(mmdp.solve(model, 1))

        def decide(agent: mmdp.interop.Agent = agent) -> None:
            for _ in range(n_decisions):
                agent.reset()
                agent({"x": 0.123, "speed": -0.4})

        agent({"x": 0, "speed": 0})  # labels are read once
        seconds, _ = measure(decide)
        agent.reset()
        states = rng.integers(model.n_states, size=n_decisions)
        many_seconds, _ = measure(partial(agent.act, states))
        note = f"all in one call {many_seconds:.4f}"
        base = base or seconds
        yield Wait(
            f"{n_decisions:,} decisions, {model.n_states:,} states", seconds, base, "121", note
        )
    grid = {"position": mmdp.Grid(-1.2, 0.6, 61), "velocity": mmdp.Grid(-0.07, 0.07, 61)}
    forces = {"force": np.linspace(0.0008, 0.0012, 20)}
    make = partial(mmdp.interop.from_gymnasium, "MountainCar-v0", axes=grid, samples=forces)
    seconds, model = measure(make)
    n_steps = model.n_models * 61**2 * model.n_actions
    note = f"{1e6 * seconds / n_steps:.0f} microseconds a step of the environment"
    yield Wait("MountainCar, 61 x 61 states x 20 models", seconds, None, "", note)


CASES = {
    "infinite": wait_infinite,
    "growth": wait_growth,
    "objectives": wait_objectives,
    "classes": wait_classes,
    "trees": wait_trees,
    "evaluate": wait_evaluate,
    "events": wait_events,
    "pages": wait_pages,
    "agents": wait_agents,
}


def main(arguments: list[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES), metavar="CASE,...")
    names = parser.parse_args(arguments).only.split(",")
    rows = (
        (
            wait.case,
            f"{wait.seconds:.3g}",
            "" if wait.peer_seconds is None else f"{wait.peer_seconds:.3g} ({wait.peer})",
            "" if wait.peer_seconds is None else f"{wait.seconds / wait.peer_seconds:.2f}",
            wait.note,
        )
        for name in names
        for wait in CASES[name]()
    )
    print_table(("case", "CPU seconds", "compared with", "ratio", "result"), rows)


if __name__ == "__main__":
    main()
