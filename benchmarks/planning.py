"""Speed of planning: tree search and episodes with exact beliefs, in simulator steps per second.

    python benchmarks/planning.py [--quick] [--json FILE]

The peer is pomdp-py's POUCT (POMCP's search with a given belief) on the same models: the state
is (model, s), the observation is s, and leaves are valued by random rollouts down to the
horizon. Its problem is written twice: as its manual writes problems (models of transitions,
observations and rewards, objects compared by value), and with the least Python per step we
could find ("kind"). The kind one was
written first and the floor of 100 was missed against it; the floor now stands by the other, and
both ratios are printed. A step is one sampled transition. Our query from time t simulates T - t
steps, in the tree and in the rollout together, so one episode of decisions takes
queries * T (T + 1) / 2; the peers' steps are counted. Simulated episodes (with a belief update
at every step) count T steps each. Runs of one instance are interleaved and the fastest rounds
are compared; compiling and solving is not timed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
import pomdp_py  # type: ignore[import-untyped]

import mmdp
from benchmarks import timing
from benchmarks.instances import Instance, population, riverswim
from benchmarks.table import Columns, machine_lines
from benchmarks.timing import Contestant, Times

PEER, KIND = "pomdp-py", "pomdp-py kind"
THREADS = (1, 2)
SEARCHED = 8  # models of the world that a tree search is simulated in, two episodes each


@dataclass(frozen=True)
class Sizes:
    """How large and how often; episodes: per instance, in all models together."""

    models: dict[str, int]
    states: int = 51
    horizon: int = 50
    queries: int = 500
    episodes: int = 20_000
    rounds: int = 5
    peer_models: int = 100  # larger instances are timed without the peer


FULL = Sizes({"RS": 100, "POPS": 100, "POP": 1000}, rounds=3)
QUICK = Sizes({"RS": 100, "POPS": 100, "POP": 300}, queries=100, episodes=4_000, rounds=3)
TINY = Sizes(
    {"RS": 3, "POPS": 3, "POP": 4}, states=23, horizon=4, queries=8, episodes=12, rounds=1,
    peer_models=3,
)  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """A floor and an aim, for the ratio to the peer or for steps per second."""

    floor: float
    aim: float | None
    of: str  # "ratio" or "rate"


TREE_GOAL = Goal(100, None, "ratio")
BELIEF_GOAL = Goal(2e6, 4e6, "rate")


@dataclass(frozen=True)
class Run:
    """Something to time and the simulator steps that one call takes."""

    run: Callable[[], object]
    steps: float
    threads: int = 1
    goal: Goal | None = None


@dataclass(frozen=True)
class Check:
    """Steps per second, and how many times the peer's, next to the floor and the aim."""

    check: str
    threads: int
    rate: float
    ratio: float | None
    low: float | None
    high: float | None
    kind: float | None
    goal: Goal | None

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        reached = self.ratio if self.goal.of == "ratio" else self.rate
        if reached is None or reached < self.goal.floor:
            return "BELOW"
        return "aim" if self.goal.aim is not None and reached >= self.goal.aim else "floor"


def search_steps(queries: int, horizon: int) -> int:
    """Simulator steps of one episode of decisions by search."""
    return queries * horizon * (horizon + 1) // 2


def solved(instance: Instance, queries: int | None) -> dict[str, Any]:
    """Planners by name (POMCP if queries are given), and the Markov policy they start from."""
    model, horizon = instance.model, instance.horizon
    policy = mmdp.solve(model, horizon).policy
    methods: dict[str, Any] = {
        "QMDP": mmdp.QMDP(episodes=2, baseline=policy),
        "rollout": mmdp.Rollout(episodes=2, baseline=policy),
    }
    if queries is not None:
        search = mmdp.POMCP(queries, leaf="random", episodes=2, baseline=policy)
        methods = {"POMCP": search, **methods}
    made = {name: mmdp.solve(model, horizon, one, seed=0).policy for name, one in methods.items()}
    return {**made, "Markov": policy}


def world_of(instance: Instance, models: int) -> mmdp.MMDP:
    """The first models of an instance, to simulate in."""
    return mmdp.MMDP(
        instance.transitions[:models], instance.rewards[:models], initial=instance.initial,
        discount=instance.discount,
    )  # fmt: skip


def runs(instance: Instance, sizes: Sizes, label: str) -> dict[str, Run]:
    """Everything that is timed on one instance, by the name of its row."""
    models, horizon = instance.shape[0], instance.horizon
    with_peer = models <= sizes.peer_models
    planners = solved(instance, sizes.queries if with_peer else None)
    found: dict[str, Run] = {}
    if with_peer:
        exploration = planners["POMCP"].tables.exploration
        for name, kind in ((PEER, False), (KIND, True)):
            found[name] = peer_run(Peer(instance, exploration, kind), sizes.queries)
    for name, policy in planners.items():
        world, episodes, goal = instance.model, max(2, sizes.episodes // models), None
        steps = horizon
        if name == "POMCP":
            world, episodes = world_of(instance, min(models, SEARCHED)), 2
            steps = search_steps(sizes.queries, horizon)
            goal = TREE_GOAL if label == "RS" else None
        elif label == "POPS" and name != "Markov":
            goal = BELIEF_GOAL
        for threads in THREADS:
            run = _simulation(policy, world, episodes, threads)
            run()  # compiles
            found[f"{label} {name} {threads}"] = Run(
                run, float(world.n_models * episodes * steps), threads, goal
            )
    return found


def peer_run(peer: Peer, queries: int) -> Run:
    """One episode of decisions, its steps counted in a trial run."""
    peer.problem.steps = 0
    peer.episode(queries)
    return Run(lambda: peer.episode(queries), float(peer.problem.steps))


def _simulation(
    policy: Any, world: mmdp.MMDP, episodes: int, threads: int
) -> Callable[[], mmdp.Evaluation]:
    return lambda: mmdp.simulate(
        policy, world, episodes=episodes, seed=0, control=False, threads=threads
    )


def checks_of(instance: Instance, sizes: Sizes, label: str) -> Iterator[Check]:
    """Time one instance; the peer's row first."""
    made = runs(instance, sizes, label)
    seconds = timing.interleave(
        {name: Contestant(one.run, scale=1 / one.steps) for name, one in made.items()},
        sizes.rounds,
    )
    for name, one in made.items():
        rate, mine = 1 / seconds[name].best, seconds[name]
        ratio, low, high = _ratio(seconds.get(PEER), mine)
        kind, _, _ = _ratio(seconds.get(KIND), mine)
        row_name = f"{label} {name}" if name in (PEER, KIND) else name.rsplit(" ", 1)[0]
        yield Check(row_name, one.threads, rate, ratio, low, high, kind, one.goal)


def _ratio(peer: Times | None, ours: Times) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if peer is None else timing.ratio(peer, ours)


def planning_checks(sizes: Sizes) -> Iterator[Check]:
    """All checks, instance by instance."""
    size: dict[str, Any] = {"states": sizes.states, "horizon": sizes.horizon}
    yield from checks_of(riverswim(sizes.models["RS"], horizon=sizes.horizon), sizes, "RS")
    for name in ("POPS", "POP"):
        yield from checks_of(population(sizes.models[name], **size), sizes, name)


class ByValue:
    """Compared by value, as the examples in pomdp-py's manual are."""

    value: object

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.value == other.value


class State(ByValue, pomdp_py.State):  # type: ignore[misc]
    """(model, s)."""

    def __init__(self, model: int, s: int) -> None:
        self.value = self.model, self.s = model, s


class Observation(ByValue, pomdp_py.Observation):  # type: ignore[misc]
    """The state s that was reached."""

    def __init__(self, s: int) -> None:
        self.value = self.s = s


class Action(ByValue, pomdp_py.Action):  # type: ignore[misc]
    """An action by its number."""

    def __init__(self, index: int) -> None:
        self.value = self.index = index


class RandomActions(pomdp_py.RolloutPolicy):  # type: ignore[misc]
    """All actions in every state; rollouts draw one of them."""

    def __init__(self, count: int) -> None:
        self.actions = [Action(a) for a in range(count)]

    def get_all_actions(self, state: Any = None, history: Any = None) -> list[Action]:
        return self.actions

    def rollout(self, state: Any, history: Any = None) -> Action:
        return random.choice(self.actions)


class Moves(pomdp_py.TransitionModel):  # type: ignore[misc]
    """Draws next states; counts its draws in ``steps``."""

    def __init__(self, instance: Instance) -> None:
        self.rows, self.steps = _rows(instance), 0

    def sample(self, state: State, action: Action) -> State:
        self.steps += 1
        after, cumulative = self.rows[state.model][state.s][action.index]
        return State(state.model, random.choices(after, cum_weights=cumulative)[0])


class SeesTheState(pomdp_py.ObservationModel):  # type: ignore[misc]
    def sample(self, next_state: State, action: Action) -> Observation:
        return Observation(next_state.s)


class Rewards(pomdp_py.RewardModel):  # type: ignore[misc]
    def __init__(self, instance: Instance) -> None:
        self.rewards = instance.rewards.tolist()

    def sample(self, state: State, action: Action, next_state: State) -> float:
        reward: float = self.rewards[state.model][state.s][action.index]
        return reward


class BlackBox(pomdp_py.BlackboxModel):  # type: ignore[misc]
    """Next state, observation, reward and step count in one call; ``steps`` counts the calls.

    Kind: objects are made once and compared by identity, rows are searched by bisection.
    """

    def __init__(self, instance: Instance) -> None:
        models, n, _ = instance.shape
        self.steps = 0
        self.states = [[_by_identity(State)(m, s) for s in range(n)] for m in range(models)]
        self.observations = [_by_identity(Observation)(s) for s in range(n)]
        self.rewards, self.rows = instance.rewards.tolist(), _rows(instance)

    def sample(self, state: State, action: Action) -> tuple[State, Observation, float, int]:
        self.steps += 1
        m, s, a = state.model, state.s, action.index
        after, cumulative = self.rows[m][s][a]
        s_next = after[bisect(cumulative, random.random(), 0, len(after) - 1)]
        return self.states[m][s_next], self.observations[s_next], self.rewards[m][s][a], 1


@cache
def _by_identity(kind: type) -> Any:
    """The class with hash and equality of plain objects, which run without Python code."""
    plain = {"__hash__": object.__hash__, "__eq__": object.__eq__}
    return type(f"One{kind.__name__}", (kind,), plain)


class FreeActions(RandomActions):
    """The same by identity, drawn without the checks of random.choice."""

    def __init__(self, count: int) -> None:
        self.actions = [_by_identity(Action)(a) for a in range(count)]

    def rollout(self, state: Any, history: Any = None) -> Action:
        return self.actions[int(random.random() * len(self.actions))]


class Prior(pomdp_py.GenerativeDistribution):  # type: ignore[misc]
    """A state s of uniformly drawn model."""

    def __init__(self, states: list[State]) -> None:
        self.states = states

    def random(self) -> State:
        return self.states[int(random.random() * len(self.states))]


def _rows(instance: Instance) -> list[list[list[tuple[list[int], list[float]]]]]:
    """Next states and cumulative probabilities of every row, by model, state and action."""
    return [
        [[_cumulative(p) for p in rows] for rows in of_model] for of_model in instance.transitions
    ]


def _cumulative(p: npt.NDArray[np.float64]) -> tuple[list[int], list[float]]:
    (after,) = p.nonzero()
    return after.tolist(), p[after].cumsum().tolist()


class Peer:
    """pomdp-py's POUCT on an instance, with the exploration constants (T,) of our search.

    All models are equally likely at the root of every search. ``problem`` counts the steps.
    """

    def __init__(
        self, instance: Instance, exploration: npt.NDArray[np.float64], kind: bool
    ) -> None:
        self.instance, self.exploration = instance, exploration
        self.problem: Any = BlackBox(instance) if kind else Moves(instance)
        self.actions = (FreeActions if kind else RandomActions)(instance.shape[2])
        self.models: dict[str, Any] = {
            "transition_model": self.problem,
            "observation_model": SeesTheState(),
            "reward_model": Rewards(instance),
        }
        if kind:
            self.models = {"blackbox_model": self.problem}

    def episode(self, queries: int) -> list[int]:
        """A decision by search at every step, in the states of a path through model 0."""
        random.seed(0)
        s, chosen = 0, []
        for t in range(self.instance.horizon):
            a = self.decide(t, s, queries)
            s = random.choices(range(self.instance.shape[1]), self.instance.transitions[0, s, a])[0]
            chosen.append(a)
        return chosen

    def decide(self, t: int, s: int, queries: int) -> int:
        """One decision at time t in state s: ``queries`` simulations down to the horizon."""
        if isinstance(self.problem, BlackBox):
            belief = Prior([states[s] for states in self.problem.states])
        else:
            belief = Prior([State(m, s) for m in range(self.instance.shape[0])])
        agent = pomdp_py.Agent(belief, self.actions, **self.models)
        planner = pomdp_py.POUCT(
            max_depth=self.instance.horizon - t,
            planning_time=-1.0,
            num_sims=queries,
            discount_factor=self.instance.discount,
            exploration_const=float(self.exploration[t]),
            rollout_policy=self.actions,
        )
        return int(planner.plan(agent).index)


COLUMNS = Columns(
    ("check", -24), ("threads", 8), ("steps/s", 10), ("ratio", 8), ("  rounds", -16), ("kind", 6),
    ("floor", 8), ("aim", 8), ("  reached", -10),
)  # fmt: skip


def heading(sizes: Sizes) -> str:
    """The machine, the sizes, and the heads of the columns; 100 columns at most."""
    counts = ", ".join(f"{name} {models} models" for name, models in sizes.models.items())
    return "\n".join(
        [
            *machine_lines(),
            f"{counts}; horizon {sizes.horizon}; {sizes.queries} queries per decision; float64",
            f"ratio: steps per second / those of {PEER} on the same instance; kind: / {KIND}",
            "",
            COLUMNS.head(),
        ]
    )


def row(c: Check) -> str:
    """One line of the table."""
    spread = "" if c.low is None else f"  {c.low:.0f} - {c.high:.0f}"
    ratio, kind = ("" if x is None else f"{x:.0f}" for x in (c.ratio, c.kind))
    floor, aim = ("", "") if c.goal is None else map(_figure, (c.goal.floor, c.goal.aim))
    return COLUMNS.line(
        [c.check, str(c.threads), f"{c.rate:.2e}", ratio, spread, kind, floor, aim,
         f"  {c.verdict}"]
    )  # fmt: skip


def _figure(x: float | None) -> str:
    return "" if x is None else f"{x:.0e}" if x >= 1e5 else f"{x:g}"


def as_json(checks: Sequence[Check], sizes: Sizes) -> dict[str, Any]:
    """Everything the table is made of."""
    rows = [asdict(check) | {"reached": check.verdict} for check in checks]
    return {"machine": timing.machine(), "sizes": asdict(sizes), "checks": rows}


def main(arguments: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed of planning.")
    parser.add_argument("--quick", action="store_true", help="smaller POP, fewer queries, rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    options = parser.parse_args(arguments)
    chosen = sizes or (QUICK if options.quick else FULL)
    start = time.perf_counter()
    print(heading(chosen))
    checks = []
    for check in planning_checks(chosen):
        print(row(check), flush=True)
        checks.append(check)
    print(f"\n{time.perf_counter() - start:.0f} s in all")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(checks, chosen), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
