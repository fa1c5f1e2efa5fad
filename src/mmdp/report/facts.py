"""What a report says, as numbers: each is computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp import plots
from mmdp.bounds import Bound
from mmdp.economics import Counting, WillingnessToPay, willingness_to_pay
from mmdp.economics.comparators import named_policies, twin
from mmdp.errors import InputError
from mmdp.measures import (
    Frontier,
    Stability,
    enough_models,
    evpi,
    frontier,
    information_table,
    stability,
)
from mmdp.measures.memory import value_and_policy
from mmdp.measures.simplicity import Rule, one_action, one_rule, own_rules, short_rule
from mmdp.measures.tables import Cells, policy_cells
from mmdp.methods.base import Method
from mmdp.methods.table import COMPARED, can, title_of
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective, as_objective
from mmdp.policy import Markov, MarkovPolicy, MemoryPolicy, Policy, PolicyKind, markov_policy
from mmdp.solution import Evaluation, Solution
from mmdp.solve import evaluate, model_weights, read_method, solve
from mmdp.validate import check_horizon, check_whole

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]
Say = Callable[[str], object]

LARGEST_WEIGHTS = 50_000_000  # numbers in (T, M, S) model weights that are still computed
BUDGET = 10.0  # seconds, estimated by size, for each part of a report that nobody asked for
# the passes over the problem that a part takes
FOR_RESAMPLES = 1_300
FOR_INFORMATION = 1_000  # for each parameter
FOR_SIZES = 500
FOR_SIMPLER = 130
FOR_FRONTIER = 8_000
FOR_MEMORY = 16_000
QUICK_OWN = 2_000  # models times steps up to which a policy of its own is computed for each model
RESAMPLES = 20
NODES = 3  # of memory, if nobody says how many
FEWEST = 5  # models in a subset


@dataclass(frozen=True)
class Row:
    """One line of the table of methods: on the models at hand, and on the held-out ones."""

    name: str
    found: Evaluation
    held_out: Evaluation | None
    seconds: float | None
    status: str
    policy: MarkovPolicy | None = None


@dataclass(frozen=True, eq=False)
class Rival:
    """Another policy of time and state to put beside this one."""

    name: str
    policy: MarkovPolicy
    found: Evaluation
    held_out: Evaluation | None = None


class SizeChange(NamedTuple):
    """The return on held-out models with all ``models``, and its gain over ``fewer``."""

    models: int
    fewer: int
    value: float
    gain: float


class Facts:
    """A model, a policy for it and what can be said about the two."""

    def __init__(
        self,
        model: MMDP,
        *,
        horizon: int | None = None,
        policy: Policy | Solution | None = None,
        test: MMDP | None = None,
        methods: Sequence[str | Method] = COMPARED,
        bound: Bound | float | None = None,
        objective: str | Objective | None = None,
        resamples: int | None = None,
        information: bool | None = None,
        enough: bool | None = None,
        memory: int | None = None,
        frontier: bool | None = None,
        effects: npt.ArrayLike | None = None,
        costs: npt.ArrayLike | None = None,
        thresholds: Sequence[float] = (),
        comparators: Mapping[str, Any] | None = None,
        counting: Counting | None = None,
        unseen: Sequence[tuple[str | int, str | int]] = (),
        seed: int | None = 0,
        say: Say | None = None,
    ) -> None:
        if not isinstance(model, MMDP):
            raise InputError(f"a report is about an MMDP, not {type(model).__name__}")
        if policy is None and not methods:
            raise InputError("a report needs a policy or a method that computes one")
        self.model, self.test, self.seed = model, test, seed
        self._say: Say = say or (lambda text: None)
        self.objective = _objective_of(objective, policy, bound)
        if policy is None and self.aimed:
            self._say(f"solving for {self.objective.name}")
            policy = solve(model, horizon, methods[0], objective=self.objective, seed=seed)
        self.kind = _kind_of(policy)
        table = (
            None if policy is None else _table_of(policy, horizon if self.kind.endless else None)
        )
        self.given = table if self.kind.endless else policy
        if horizon is None and table is not None:
            horizon = table.horizon
        self.horizon = check_horizon(model.horizon, horizon)
        self.methods = tuple(methods)
        self._bound = bound
        self._resamples, self._information, self._enough = resamples, information, enough
        self._memory, self._frontier = memory, frontier
        self._effects, self._costs, self._thresholds = effects, costs, tuple(thresholds)
        self._comparators = named_policies(comparators or {}, model, self.horizon)
        self.counting = counting or Counting()
        self.unseen = tuple(unseen)
        self._solved: dict[int, Solution] = {}
        self._check(table)

    def _check(self, table: MarkovPolicy | None) -> None:
        if self._memory is not None:
            check_whole(self._memory, "memory", least=0)
        if table is not None:
            table.check(self.model, self.horizon)
        if self.test is not None and (
            (self.test.n_states, self.test.n_actions) != (self.model.n_states, self.model.n_actions)
        ):
            raise InputError(
                f"the test models have {self.test.n_states} states and {self.test.n_actions} "
                f"actions, the models {self.model.n_states} and {self.model.n_actions}"
            )
        parts = (self._effects is None, self._costs is None, not self._thresholds)
        if any(parts) and not all(parts):
            raise InputError(
                "willingness to pay needs effects, costs and thresholds; give all three or none"
            )
        if not parts[0] and not self.model.rewards.any():
            raise InputError(
                "the rewards of the models are all 0, so that every policy returns 0",
                ["make the net benefit their reward first: Counting.net_benefit in Python, "
                 "mmdp convert --effects FILE --value K on the command line"],
            )  # fmt: skip
        if parts[0] and (self._comparators or self.counting != Counting()):
            raise InputError("comparators and counting are about effects and costs; give these too")

    # -------------------------------------------------------------- the policy
    @cached_property
    def solution(self) -> Solution | None:
        """How the policy was found; None if that is not known, or if it is for other models."""
        if self.given is None:
            _table_of(self.solved(0))  # refuse a policy without a table before more work
            return self.solved(0)
        if not isinstance(self.given, Solution):
            return None
        found, here = self.given.returns, evaluate(self.given, self.model).returns
        same = len(found) == len(here) and np.allclose(found, here, 1e-6, 1e-9 * abs(here).max())
        return self.given if same else None

    @cached_property
    def policy(self) -> MarkovPolicy:
        found = self.given if self.given is not None else self.solved(0)
        return _table_of(found)

    @property
    def name(self) -> str:
        """``CADP``, ``CADP (CVaR 10%)``, or ``the given policy``."""
        if self.solution is None:
            return "the given policy"
        title = self._titled(self.solution)
        goal = self.solution.objective
        return title if goal.linear else f"{title} ({goal.name})"

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions; ``action 0`` and so on if they have none."""
        labels = self.model.action_labels
        return list(labels) if self.model.labelled["action"] else [f"action {x}" for x in labels]

    @cached_property
    def evaluation(self) -> Evaluation:
        if self.solution is not None and self.given is None:
            return self.solution.evaluation
        return evaluate(self.policy, self.model)

    @property
    def aimed(self) -> bool:
        """Whether the policy is meant for something else than the mean."""
        return not self.objective.linear

    @property
    def value(self) -> float:
        """What counts: the value of the objective."""
        return self.evaluation.value(self.objective)

    @property
    def ceiling(self) -> float | None:
        """What counts for someone who knows the model; None if that is not known to be more."""
        if not self.objective.monotone:
            return None
        known = self.objective.counted(self.oracle, lambda: self.oracle)
        return float(self.objective.value(known, self.evaluation.weights))

    def loss(self, rival: Rival) -> float:
        """By how much the value of another policy is lower; 0 if it is not."""
        lost = self.value - rival.found.value(self.objective)
        return lost if lost > 1e-9 * abs(self.value) else 0.0

    @property
    def worst_model(self) -> str:
        """The label of the model with the least return, among those that count."""
        found = self.evaluation
        worst = np.where(found.weights > 0, found.returns, np.inf).argmin()
        return self.model.model_labels[int(worst)]

    @property
    def near_optimal(self) -> float:
        """Weight of the models in which the policy is within 1% of their own free optimum."""
        found = self.evaluation
        return float(found.weights[found.regret <= 0.01 * np.abs(found.oracle)].sum())

    @cached_property
    def held_out(self) -> Evaluation | None:
        return None if self.test is None else evaluate(self.policy, self.test)

    @property
    def oracle(self) -> Array:
        """(M,) return of each model's own optimal policy."""
        return self.evaluation.oracle

    @property
    def oracle_mean(self) -> float:
        """The mean return of someone who knows the model."""
        return float(self.oracle @ self.evaluation.weights)

    @cached_property
    def bound(self) -> Bound | None:
        """The proven upper bound, if one was given."""
        given = self._bound
        if given is None:
            given = None if self.solution is None else self.solution.certificate
        if given is None or (isinstance(given, Bound) and given.objective != self.objective):
            return None
        bound = given if isinstance(given, Bound) else Bound(float(given), "given", "markov")
        if bound.model and bound.model != self.model.fingerprint():
            raise InputError(
                "the bound was proven for other models; compute it for these, or give the policy "
                "alone"
            )
        value = self.value
        if not bound.value >= value - 1e-6 * abs(value):
            raise InputError(
                f"the bound {bound.value:,.8g} is below the policy's own value {value:,.8g}, so "
                "it is no bound for this problem; compute it for these models and this horizon"
            )
        return bound

    # -------------------------------------------------------------- other methods
    def solved(self, place: int) -> Solution:
        """The solution of the method at a place of ``methods``, computed once."""
        if place not in self._solved:
            method = self.methods[place]
            self._say(f"solving with {getattr(method, 'name', method)}")
            chosen = read_method(method)
            same = not self.kind.endless and can(
                chosen, self.model, self.horizon, Mean(), self.kind
            )
            kind = self.kind if same else None
            self._solved[place] = solve(
                self.model, self.horizon, method, policy=kind, seed=self.seed
            )
        return self._solved[place]

    def _titled(self, found: Solution) -> str:
        """The method, and the kind of its policy if it is restricted."""
        kind = found.provenance.policy
        return title_of(found.method) + (f" ({kind.name})" if kind.restricted else "")

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The policy, the other methods, and Oracle as the last."""
        rows = []
        every = [self.solved(place) for place in range(len(self.methods))]
        same = [x for x in every if self.given is not None and self._is_given(x)]
        if self.given is not None:
            taken = any(self._titled(x) == self.name for x in every if x not in same)
            name = "this policy" if taken else self.name
            rows.append(self._row(name, self.evaluation, self.held_out, self.solution))
        for place, found in enumerate(every):
            if found.policy is not None and found not in same:
                tested = self._tested(found, first=place == 0 and self.given is None)
                rows.append(self._row(self._titled(found), found.evaluation, tested, found))
        return (*rows, self._oracle_row())

    def _is_given(self, found: Solution) -> bool:
        """Whether a method found the given policy in the way that it was found before."""
        known = self.solution
        return known is not None and known.method == found.method and found.policy == self.policy

    @cached_property
    def ahead(self) -> tuple[str, float, float] | None:
        """The method that does best on the held-out models, if it is ahead of this policy.

        Its title, by how much it is ahead, and the standard error of that.
        """
        others = [row for row in self.rows[:-1] if row.held_out is not None]
        if self.held_out is None or not others or self.aimed:
            return None
        best = max(
            others, key=lambda row: row.held_out.mean if row.held_out is not None else -np.inf
        )
        assert best.held_out is not None
        difference, error = best.held_out.lead(self.held_out)
        if not difference > 1e-9 * abs(self.held_out.mean):
            return None
        return best.name, difference, error

    def _tested(self, found: Solution, *, first: bool) -> Evaluation | None:
        if self.test is None or first:
            return self.held_out
        return evaluate(found, self.test, seed=self.seed)

    @staticmethod
    def _row(
        name: str, found: Evaluation, tested: Evaluation | None, solution: Solution | None
    ) -> Row:
        if solution is None:
            return Row(name, found, tested, None, "")
        return Row(name, found, tested, solution.seconds, solution.outcome, solution.markov)

    def _oracle_row(self) -> Row:
        own = Evaluation(self.oracle, self.model.weights, _oracle=lambda: self.oracle)
        tested = None
        if self.held_out is not None:
            best = self.held_out.oracle
            tested = Evaluation(best, self.held_out.weights, _oracle=lambda: best)
        return Row("Oracle (knows the model)", own, tested, None, "a bound: no policy does better")

    @cached_property
    def traces(self) -> dict[str, Array]:
        """Value by iteration of every CADP run of the report."""
        runs = [self.solution] if self.solution is not None and not self.aimed else []
        runs += [self.solved(i) for i in range(len(self.methods)) if _is_cadp(self.methods[i])]
        found: dict[str, Array] = {}
        for run in runs:
            if run.method == "cadp":
                start = run.provenance.options.get("init", "wsu")
                name = start if isinstance(start, str) else "a given policy"
                found.setdefault(name.upper() if len(name) == 3 else name, run.trace)
        return found

    @property
    def climbed(self) -> float | None:
        """What CADP gained from its start; None if it kept it."""
        if all(len(y) == 1 for y in self.traces.values()):
            return None
        return max(float(y[-1] - y[0]) for y in self.traces.values())

    @property
    def simulated(self) -> bool:
        """Whether some line of the table of methods has an error bar."""
        return any(row.found.errors is not None for row in self.rows)

    @property
    def options(self) -> str:
        """The options of the method that found the policy, in brackets."""
        given = {} if self.solution is None else self.solution.provenance.options
        told = ", ".join(
            f"{key} {value}" for key, value in given.items()
            if isinstance(value, (str, int, float)) and not isinstance(value, bool)
        )  # fmt: skip
        return f" ({told})" if told else ""

    # -------------------------------------------------------------- the models
    @property
    def equal_weights(self) -> bool:
        return bool(np.allclose(self.model.weights, 1 / self.model.n_models))

    @property
    def effective_models(self) -> float:
        """How many models of equal weight these are as good as."""
        return 1 / float((self.model.weights**2).sum())

    @property
    def start_states(self) -> list[int]:
        """The states that an episode may start in."""
        return np.flatnonzero(self.model.initial > 0).tolist()

    # -------------------------------------------------------------- times and states
    @cached_property
    def weights(self) -> Array | None:
        """(T, M, S) b_{t,m}(s) under the policy; None if they would take too much memory."""
        size = self.horizon * self.model.n_models * self.model.n_states
        return None if size > LARGEST_WEIGHTS else model_weights(self.policy, self.model)

    @cached_property
    def telling_state(self) -> int:
        """The state that moves the weights most: the one that says most about the model."""
        assert self.weights is not None
        # |b_{t,m}(s) - lambda_m P(s at t)|, summed over times and models
        expected = self.weights.sum(axis=1, keepdims=True) * self.model.weights[None, :, None]
        return int(np.abs(self.weights - expected).sum(axis=(0, 1)).argmax())

    @property
    def models_in_play(self) -> float:
        """How many equally likely models would be as uncertain as at the last decision."""
        assert self.weights is not None
        return float(plots.informed(self.weights)[-1, 0])

    @cached_property
    def cells(self) -> Cells:
        """What is known about each time and state."""
        return policy_cells(self.policy, self.model)

    @cached_property
    def visited(self) -> Array:
        """(T, S) the probability of a decision there; 0 where no action changes anything."""
        return self.cells.visited * self.model.deciding

    @cached_property
    def most_visited(self) -> npt.NDArray[np.int64]:
        """States with a decision by their expected number of visits, the most visited first."""
        order = np.argsort(-self.visited.sum(axis=0), kind="stable").astype(np.int64)
        return order[self.model.deciding[order]]

    # -------------------------------------------------------------- knowing more
    @cached_property
    def best(self) -> Solution | None:
        """The best solution at hand of the kind that was asked for; None if there is none."""
        found = [self.solved(i) for i in range(len(self.methods))]
        found += [] if self.solution is None or self.given is None else [self.solution]
        same = [x for x in found if x.markov is not None
                and x.provenance.policy.name == self.kind.name]  # fmt: skip
        return max(same, key=lambda x: x.evaluation.mean) if same else None

    @property
    def best_mean(self) -> float:
        """The mean return of the best policy at hand of the kind that was asked for."""
        own = self.evaluation.mean
        return own if self.best is None else max(own, self.best.evaluation.mean)

    @property
    def evpi(self) -> float:
        """Expected value of perfect information, at most.

        Exact if the best policy is optimal and its kind is not restricted: Oracle is free.
        """
        return max(self.oracle_mean - self.best_mean, 0.0)

    @cached_property
    def evpi_within(self) -> float | None:
        """About the same for someone bound to a restricted kind; None if that is not known."""
        small = self.model.n_models * self.horizon <= QUICK_OWN and self.quick(FOR_INFORMATION)
        if not (self.kind.restricted and small) or self.model.n_models == 1:
            return None
        self._say("the best policy of each model")
        if self.best is not None:
            return evpi(self.model, method=self.best)
        own = own_rules(self.policy, self.model)
        return max(float(own @ self.model.weights) - self.best_mean, 0.0)

    @cached_property
    def information(self) -> pd.DataFrame | None:
        """EVPI and EVPPI (:func:`mmdp.measures.information_table`); None if not computed."""
        names = self.model.parameters
        wanted = self._information
        if wanted is None:
            wanted = self.quick(FOR_INFORMATION * len(names))
        if not wanted or not names or self.best is None:
            return None
        self._say("value of information")
        return information_table(self.model, self.horizon, method=self.best)

    @property
    def most_worth(self) -> tuple[str, float] | None:
        """The parameter that is worth most to know, and its value; None if that is not known."""
        table = self.information
        if table is None or len(table) < 2:
            return None
        best = table.iloc[1:].sort_values("value", kind="stable").iloc[-1]
        if best["parameter"] in self.giveaways:
            return None
        return str(best["parameter"]), float(best["value"])

    @property
    def giveaways(self) -> list[str]:
        """Parameters with another value in every model, if conditioned on each of the values.

        To know one of them is to know the model, whatever else differs between the models.
        """
        if self.information is None:
            return []
        exact = self.information.loc[self.information["estimator"] == "exact", "parameter"].iloc[1:]
        values = self.model.parameters
        return [x for x in exact if len(np.unique(values[x])) == self.model.n_models]

    @cached_property
    def stability(self) -> Stability | None:
        """What changes when the models are drawn again; None if not computed."""
        count = self._resamples
        if count is None:
            many = self.model.n_models > 1 and not self.model.drifts  # drawn apart
            count = RESAMPLES if self.quick(FOR_RESAMPLES) and many else 0
        if not count or self.given is not None:
            return None
        self._say("resampling the models")
        return stability(
            self.model, self.horizon, resamples=count, seed=self.seed, method=self.methods[0]
        )

    def quick(self, passes: float) -> bool:
        """Whether so many passes over the models fit the budget."""
        return self.model.problem.seconds(self.horizon, passes) <= BUDGET

    @cached_property
    def sizes(self) -> pd.DataFrame | None:
        """Return on held-out models by the number of models solved; None if not computed."""
        available = self.model.n_models if self.test is not None else -(-self.model.n_models // 2)
        quick = self.quick(FOR_SIZES) and not (self.model.drifts or self.kind.restricted)
        wanted = quick if self._enough is None else self._enough
        if not wanted or available <= FEWEST or not self.methods:
            return None
        self._say("solving with fewer models")
        repeats = 10 if self.quick(4 * FOR_SIZES) else 3
        steps = [a * 10**b for b in range(7) for a in (1, 2, 5)]
        sizes = [*(x for x in steps if FEWEST <= x < available), available]
        return enough_models(
            self.model, self.horizon, sizes, test=self.test, repeats=repeats, seed=self.seed,
            method=self.methods[0],
        )  # fmt: skip

    @property
    def size_change(self) -> SizeChange | None:
        """What all models gave over about half of them; None if it was not computed."""
        if self.sizes is None:
            return None
        last = self.sizes.iloc[-1]
        half = self.sizes.iloc[int((self.sizes["models"] - last["models"] / 2).abs().argmin())]
        models, fewer = int(last["models"]), int(half["models"])
        return SizeChange(models, fewer, float(last["test"]), float(last["test"] - half["test"]))

    @property
    def could_split(self) -> bool:
        """Whether there are models enough, and a method, to solve with fewer of them."""
        return self.model.n_models >= 2 * FEWEST and bool(self.methods)

    # -------------------------------------------------------------- memory
    @cached_property
    def memory(self) -> tuple[pd.DataFrame, MemoryPolicy] | None:
        """What memory is worth by nodes, and the policy with the most; None if not computed."""
        most = self._memory
        if most is None:
            most = NODES if self.quick(FOR_MEMORY) and not self.kind.restricted else 0
        if not most or self.model.n_models == 1:
            return None
        self._say("policies with memory")
        nodes = range(1, most + 1)
        return value_and_policy(self.model, self.horizon, nodes, seed=self.seed, time_limit=5)

    @property
    def learning(self) -> tuple[float, float]:
        """The most that a policy that learns could gain: by the bound, otherwise by Oracle.

        The gain, and its share of the mean.
        """
        mean, most = self.evaluation.mean, self.oracle_mean
        if self.bound is not None and self.bound.bounds == "history" and not self.aimed:
            most = min(most, self.bound.value)
        gain = max(most - mean, 0.0)
        return gain, gain / max(abs(mean), 1e-300)

    # -------------------------------------------------------------- simpler and safer
    @cached_property
    def rule(self) -> Rule:
        """The policy in a few phases."""
        return short_rule(self.policy, self.model, self.visited, kind=self.kind)

    @cached_property
    def simpler(self) -> tuple[Rival, ...]:
        """Simpler policies, the least simple first: the short rule, one rule, one action."""
        given = (self.policy, self.model, self.visited, self.kind)
        found: dict[str, MarkovPolicy | None] = {"the short rule": self.rule.policy}
        if self.quick(FOR_SIMPLER):
            self._say("simpler policies")
            found["one rule for all steps"] = one_rule(*given)
            found["one action everywhere"] = one_action(*given)
        if found.get("one rule for all steps") == self.rule.policy:
            del found["one rule for all steps"]
        return tuple(self._rival(name, x) for name, x in found.items() if x is not None)

    def _rival(self, name: str, policy: MarkovPolicy) -> Rival:
        tested = None if self.test is None else evaluate(policy, self.test)
        return Rival(name, policy, evaluate(policy, self.model), tested)

    @cached_property
    def frontier(self) -> Frontier | None:
        """From the best on average to the safest policy; None if not computed."""
        wanted = self._frontier
        if wanted is None:
            free = not (self.model.drifts or self.kind.restricted)
            wanted = self.quick(FOR_FRONTIER) and free
        if not wanted or self.model.n_models == 1:
            return None
        self._say("safer policies")
        return frontier(self.model, self.horizon, test=self.test, seed=self.seed)

    @property
    def safest(self) -> Evaluation | None:
        """The point of the frontier whose worst tenth is best."""
        if self.frontier is None:
            return None
        return self.frontier.points[int(self.frontier.tails.argmax())].evaluation

    # -------------------------------------------------------------- cost and effect
    @cached_property
    def willingness(self) -> WillingnessToPay | None:
        """The willingness-to-pay sweep; None if cost and effect are not given separately."""
        if self._effects is None or self._costs is None:
            return None
        self._say("willingness to pay")
        method = self.methods[0] if self.methods else "cadp"
        named = dict(self._comparators)
        parts = self.counting.models(self.model, self._effects, self._costs, self.horizon)
        same = twin(self.policy, named, parts)
        if same is None:
            named = {"this policy": self.policy, **named}
        else:
            told = {same: f"{same} (this policy)"}
            named = {told.get(name, name): x for name, x in named.items()}
        return willingness_to_pay(
            self.model, self._effects, self._costs, self._thresholds, self.horizon,
            method=method, policies=named, counting=self.counting,
        )  # fmt: skip


def _objective_of(given: Any, policy: Any, bound: Any) -> Objective:
    """What counts on the page: as asked for, else as the policy was solved for or proven."""
    if given is not None:
        return as_objective(given)
    if isinstance(policy, Solution):
        return policy.objective
    return bound.objective if isinstance(bound, Bound) else Mean()


def _kind_of(given: Any) -> PolicyKind:
    """The kind of policy that was asked for, as far as it is known."""
    if isinstance(given, Solution):
        return given.provenance.policy
    kind: PolicyKind = getattr(given, "kind", Markov())
    return kind


def _table_of(found: Any, horizon: int | None = None) -> MarkovPolicy:
    """The Markov policy of what was given or computed; of a stationary one over the horizon."""
    return markov_policy(found, "a report shows", horizon, argument="methods")


def _is_cadp(method: Any) -> bool:
    return method == "cadp" or getattr(method, "name", None) == "cadp"
