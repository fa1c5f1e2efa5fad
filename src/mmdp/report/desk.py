"""What a page is about: a problem, a policy for it, and each solve and evaluation made for them.

Everything is computed when a method is called, and once: sections that need the same solve share
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from mmdp.arguments import FiniteFloat
from mmdp.bounds import Bound
from mmdp.economics import Counting
from mmdp.economics.comparators import named_policies
from mmdp.errors import InputError
from mmdp.identity import digest, facts
from mmdp.measures.simplicity import Rule, short_rule
from mmdp.measures.stakes import Constant, Stake, constant_policies, stake
from mmdp.measures.tables import Cells, policy_cells
from mmdp.methods.base import Method
from mmdp.methods.table import COMPARED, can, title_of
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective, as_objective
from mmdp.policy import (
    Markov,
    MarkovPolicy,
    MemoryPolicy,
    Policy,
    PolicyKind,
    markov_policy,
)
from mmdp.posterior import never_seen
from mmdp.solution import Evaluation, Solution
from mmdp.solve import evaluate, model_weights, read_method, solve
from mmdp.validate import check_horizon, check_whole
from mmdp.words import suggested

Array = npt.NDArray[np.float64]
Say = Callable[[str], object]
T = TypeVar("T")


class Options(TypedDict, total=False):
    """What else may be asked for; :func:`mmdp.report.write` says what each means."""

    test: MMDP | None
    methods: Sequence[str | Method]
    bound: Bound | FiniteFloat | None
    objective: str | Objective | None
    seed: int | None
    unseen: Sequence[tuple[str | int, str | int]]
    rule: bool | None
    frontier: bool | None
    information: bool | None
    memory: int | None
    enough: bool | None
    resamples: int | None
    effects: npt.ArrayLike | None
    costs: npt.ArrayLike | None
    thresholds: Sequence[float]
    compare: Mapping[str, Any] | None
    counting: Counting | None


class PageOptions(Options, total=False):
    """The same, and what a page alone has."""

    title: str | None
    notes: Sequence[str]


class Outcomes(NamedTuple):
    """Effects and costs kept separate, for a sweep of the willingness to pay."""

    effects: npt.ArrayLike
    costs: npt.ArrayLike
    thresholds: tuple[float, ...]
    counting: Counting


class Desk:
    """A model, a policy for it, and what has been computed about the two so far.

    ``given``: someone gave the policy, rather than a method of the page. ``solution``: how it was
    found; None if that is not known or was for other models. ``asked`` has what was asked for by
    name. ``kind`` is the kind of policy that was asked for, and ``objective`` what counts.
    ``words``: the policy as it was given in words, a tree; else empty. ``named``: policies to
    compare it with, such as what is done today. ``controller``: a given policy with memory; the
    maps are then of the policy of time and state that the first method finds.
    """

    evaluation: Evaluation
    solution: Solution | None

    def __init__(
        self, model: MMDP, horizon: int | None = None, policy: Policy | Solution | None = None,
        *, say: Say | None = None, **options: Unpack[Options],
    ) -> None:  # fmt: skip
        if not isinstance(model, MMDP):
            raise InputError(f"a report is about an MMDP, not {type(model).__name__}")
        check_names(options, Options)
        self.model, self.say, self.asked = model, say or (lambda text: None), options
        self.test, self.seed = options.get("test"), options.get("seed", 0)
        self.methods = tuple(options.get("methods", COMPARED))
        self.unseen = tuple(options.get("unseen", never_seen(model)))
        if (policy is None or hasattr(policy, "flow_chart")) and not self.methods:
            raise InputError("a report needs a policy or a method that computes one")
        self.objective = _objective_of(options.get("objective"), policy, options.get("bound"))
        self.aimed = not self.objective.linear
        own: Any = getattr(policy, "policy", policy)
        self.controller = own if isinstance(own, MemoryPolicy) else None
        if self.controller is not None:
            self.controller.check(model, horizon)
            policy, horizon = None, self.controller.horizon
        self.given, self.kind = policy is not None, _kind_of(policy)
        self.words = ""
        if policy is not None:
            self.policy = _table_of(policy, horizon if self.kind.endless else None)
            self.words = own.text()
            horizon = self.policy.horizon if horizon is None else horizon
        self.horizon = check_horizon(model.horizon, horizon)
        if policy is not None:
            self.policy.check(model, self.horizon)
        self._check()
        self.named = named_policies(options.get("compare") or {}, model, self.horizon)
        self.outcomes = self._read_outcomes()
        self._kept: dict[Any, Any] = {}
        self._find(policy)
        self.name = self._name()
        self.value = self.evaluation.value(self.objective)
        self.held_out = self.tested(self.policy)
        self.bound = self._read_bound(options.get("bound"))
        if self.solution is not None and self.solution.certificate is None:
            self.solution = replace(self.solution, certificate=self.bound)

    def _check(self) -> None:
        check_whole(self.asked.get("memory") or 0, "memory", least=0)
        check_whole(self.asked.get("resamples") or 0, "resamples", least=0)
        sizes = (self.model.n_states, self.model.n_actions)
        if self.test is not None and (self.test.n_states, self.test.n_actions) != sizes:
            raise InputError(
                f"the test models have {self.test.n_states} states and {self.test.n_actions} "
                f"actions, the models {sizes[0]} and {sizes[1]}"
            )

    def _read_outcomes(self) -> Outcomes | None:
        asked = self.asked
        effects, costs = asked.get("effects"), asked.get("costs")
        thresholds = tuple(asked.get("thresholds") or ())
        counting = asked.get("counting") or Counting()
        if effects is None and costs is None and not thresholds:
            if counting != Counting():
                raise InputError("counting is about effects and costs; give these too")
            return None
        if effects is None or costs is None or not thresholds:
            raise InputError(
                "willingness to pay needs effects, costs and thresholds; give all three or none"
            )
        if not self.model.rewards.any():
            raise InputError(
                "the rewards of the models are all 0, so that every policy returns 0",
                ["make the net benefit their reward first: Counting.net_benefit in Python, "
                 "mmdp convert --effects FILE --value K on the command line"],
            )  # fmt: skip
        return Outcomes(effects, costs, thresholds, counting)

    # -------------------------------------------------------------- the policy
    def _find(self, policy: Policy | Solution | None) -> None:
        """The policy with its returns, and how it was found."""
        if policy is None:
            self.solution = self.solved_for(self.objective)
            self.policy, self.evaluation = _table_of(self.solution), self.solution.evaluation
            return
        self.evaluation, self.solution = self.evaluate(self.policy), None
        if isinstance(policy, Solution) and not self.kind.endless:
            found, here = policy.returns, self.evaluation.returns
            near = 1e-9 * np.abs(here).max()
            if len(found) == len(here) and np.allclose(found, here, 1e-6, near):
                self.solution = policy

    def _name(self) -> str:
        """``CADP``, ``CADP (tied, CVaR 10%)``, or ``the given policy``."""
        return "the given policy" if self.solution is None else titled(self.solution)

    def _read_bound(self, given: Bound | float | None) -> Bound | None:
        if given is None and self.solution is not None:
            given = self.solution.certificate
        if given is None or (isinstance(given, Bound) and given.objective != self.objective):
            return None
        bound = given if isinstance(given, Bound) else Bound(float(given), "given", "markov")
        if bound.model and bound.model != self.model.fingerprint():
            raise InputError(
                "the bound was proven for other models; compute it for these, or give the policy "
                "alone"
            )
        if not bound.value >= self.value - 1e-6 * abs(self.value):
            raise InputError(
                f"the bound {bound.value:,.8g} is below the policy's own value {self.value:,.8g}, "
                "so it is no bound for this problem; compute it for these models and this horizon"
            )
        return bound

    @property
    def steady(self) -> bool:
        """Whether the policy is the same at all times, and known as such."""
        return self.kind.endless

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions; ``action 0`` and so on if they have none."""
        labels = self.model.action_labels
        return list(labels) if self.model.labelled["action"] else [f"action {x}" for x in labels]

    # -------------------------------------------------------------- computed once
    def _once(self, key: Any, compute: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = compute()
        return cast("T", self._kept[key])

    def solved(self, place: int) -> Solution:
        """The solution of the method at a place of ``methods``, on average over the models."""
        return self._once(place, lambda: solve(
            self.model, self.horizon, self.method(place), policy=self.kind_for(place),
            seed=self.seed,
        ))  # fmt: skip

    def method(self, place: int = 0) -> Method:
        """That at a place of ``methods``; CADP if there are none."""
        return read_method(self.methods[place] if self.methods else "cadp")

    def kind_for(self, place: int = 0) -> PolicyKind | None:
        """The kind that was asked for, if the method can find it for a number of decisions."""
        same = can(self.method(place), self.model, self.horizon, Mean(), self.kind)
        return self.kind if same and not self.kind.endless else None

    def solved_for(self, objective: Objective) -> Solution:
        """The solution of the first method for an objective."""
        if objective.linear:
            return self.solved(0)
        return self._once(str(objective), lambda: solve(
            self.model, self.horizon, self.methods[0], objective=objective, seed=self.seed
        ))  # fmt: skip

    def every(self) -> list[Solution]:
        """The solutions of all methods."""
        return [self.solved(place) for place in range(len(self.methods))]

    def evaluate(self, policy: Policy) -> Evaluation:
        return self._once(("own", _content(policy)), lambda: evaluate(policy, self.model))

    def tested(self, policy: Any) -> Evaluation | None:
        """The policy on the held-out models; None if there are none."""
        test = self.test
        if test is None:
            return None
        return self._once(("test", _content(policy)),
                          lambda: evaluate(policy, test, seed=self.seed))  # fmt: skip

    def cells(self) -> Cells:
        """What is known about each time and state."""
        return self._once("cells", lambda: policy_cells(self.policy, self.model))

    def weights(self) -> Array:
        """(T, M, S) b_{t,m}(s) under the policy."""
        return self._once("weights", lambda: model_weights(self.policy, self.model))

    def visited(self, policy: MarkovPolicy | None = None) -> Array:
        """(T, S) the probability of a decision there; 0 where no action changes anything."""
        if policy is None or policy == self.policy:
            return self._once("visited", lambda: self.model.decisions(self.cells().visited))
        return self._once(
            ("visited", _content(policy)),
            lambda: self.model.decisions(model_weights(policy, self.model).sum(axis=1)),
        )

    @property
    def stake(self) -> Stake:
        """What is at stake: shares on the page are taken of it."""
        return self._once("stake", lambda: stake(
            self.policy, self.model, objective=self.objective, compare=self.compared,
            value=self.value,
        ))  # fmt: skip

    @property
    def compared(self) -> dict[str, Policy]:
        """The policies to compare with: the named ones, and those that take one action."""
        return {**self.named, **{x.name: x.policy for x in self.constant()}}

    def constant(self) -> list[Constant]:
        """The policies of the kind that always take the same action, the best first."""
        return self._once("constant", lambda: constant_policies(
            self.policy, self.model, self.kind, self.objective
        ))  # fmt: skip

    def rule(self) -> Rule:
        """The policy in a few phases."""
        return self._once("rule", lambda: short_rule(
            self.policy, self.model, self.visited(), kind=self.kind
        ))  # fmt: skip

    def seconds(self, passes: float) -> float:
        """About how long these passes over the models take, by size alone."""
        return self.model.problem.seconds(self.horizon, passes)


def titled(found: Solution) -> str:
    """The method, with the kind of its policy if it is restricted, and the objective if no mean."""
    kind, goal = found.provenance.policy, found.objective
    more = [kind.name] * kind.restricted + [goal.name] * (not goal.linear)
    return title_of(found.method) + (f" ({', '.join(more)})" if more else "")


def check_names(given: Mapping[str, Any], known: type) -> None:
    """Refuse an argument that is none of ``known``."""
    names = known.__annotations__.keys()
    for name in given:
        if name not in names:
            raise InputError(f"there is no argument {suggested(name, names)}")


def _content(policy: Any) -> Any:
    """What a policy is known by: what it does."""
    return digest(facts([policy.name, policy.parts]))


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
    policy = getattr(found, "policy", found)
    if horizon is None and getattr(policy, "horizon", 0) == np.inf:
        raise InputError(
            "a report shows a number of decisions, but this policy is stationary",
            ["pass horizon=50 to follow it over 50 decisions"],
        )
    return markov_policy(found, "a report shows", horizon, argument="methods")
