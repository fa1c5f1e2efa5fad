"""Which searches to run for a bound on the mean, in which order, and for how long."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mmdp.bounds import closed, lp
from mmdp.bounds.ask import Ask
from mmdp.bounds.descent import Descent
from mmdp.bounds.matching import FINER, FIRST, Matching, Tournament
from mmdp.bounds.relaxation import Relaxation
from mmdp.clock import Progress, Stop, clock, ending
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Problem
from mmdp.kernels.problem import Array, Pairs, Table
from mmdp.objective import Objective
from mmdp.solution import Bound, Optimum

LP_LIMIT, LP_QUICK = 200_000, 5_000  # variables of the linear program; those it takes in seconds
REACH_SHARE = 0.25  # of the time, at most, for reach bounds; a search needs several times as long
TIGHT = 1e-9  # relative gap at which a bound meets the incumbent
FEW = 100  # steps with pairs of models; if fewer fit the time, models begin one by one
BEGINNING = 6  # values of all pairs that a search with pairs takes before it moves
WORTH = 25  # such values: if there is time for fewer, more matching gains more on average
CLOSED = ("oracle", "qmdp")
TELL = 0.5  # seconds between two looks at what pairs give
PAIR_STEP = 1.5  # values of all pairs on the fine grid that a step with them takes
SLOW = 0.01  # share of the gap: if models alone gain less in a step's time, pairs take over


def check_holds(method: str, problem: Problem) -> None:
    """Refuse bounds that do not hold for models that change.

    Oracle and QMDP hold: they see which model holds at every time, or from the second on, and no
    policy sees more. The searches give each model, or pair, its own states and values, which the
    others then share.
    """
    reason = problem.not_still(f"{method} holds for models that never change")
    if reason and method not in ("best", *CLOSED):
        raise InputError(reason, [Remedy("method", "best", *CLOSED, do="choose")])


def for_every_policy(problem: Problem, objective: Objective | None = None) -> str:
    """The method that bounds all policies best, also those that learn."""
    if problem.not_still("pairs"):
        return "best"  # the closed forms
    return "pairs" if objective is None or objective.concave else "oracle"


Lifted = Callable[[Progress], Progress]


class Portfolio:
    """One question about the mean: what has been found so far, and the clock.

    ``lifted`` turns progress on it into what the callback sees. ``gap``: relative gap at which a
    bound meets the incumbent. If a tree ``branches`` afterwards, the search ends as soon as it is
    slow; ``search`` is where.
    """

    def __init__(
        self, ask: Ask, lifted: Lifted = lambda progress: progress, *, gap: float = TIGHT,
        branches: bool = False,
    ) -> None:  # fmt: skip
        self.ask, self.plan, self.deadline, self.lifted = ask, ask.plan, ask.time.deadline, lifted
        self.problem, self.horizon = ask.plan.problem, ask.plan.horizon
        self.found: dict[str, tuple[float, Optimum]] = {}
        self.details: dict[str, Any] = {}
        self.target, self.policy = ask.target, ask.policy
        self.tournament: Tournament | None = None
        self.gap, self.branches = gap, branches
        self.search: Descent | None = None

    def run(self) -> Bound:
        """The least bound that the method finds; Ctrl-C gives the least so far."""
        with ending(lambda: self.found, answered=True) as end:
            self.start()
            RUN[self.ask.method](self)
        if end.interrupted:
            self.details["interrupted"] = True
        return self.result()

    def start(self) -> None:
        """The closed forms, and the value of the incumbent."""
        self.began, method = clock(), self.ask.method
        self.q, self.own = closed.own_optimum(self.plan)
        self.pass_seconds = clock() - self.began  # of one pass over all models
        self.slack = closed.rounding(self.problem, self.horizon)
        self.closing = closed.Closing(self.problem, self.horizon)
        if method != "qmdp":
            self.note("oracle", closed.oracle_bound(self.own) + self.slack, "history")
        if method != "oracle":
            self.note("qmdp", closed.qmdp_bound(self.problem, self.q) + self.slack, "history")
        if method not in CLOSED and self.policy is not None:
            returns = self.plan.returns(self.plan.backward("given", policy=self.policy).first)
            self.target = float(returns @ self.problem.weights)
            self.policy = self.policy if self.policy.ndim == 2 else None

    def _find_incumbent(self) -> None:
        """CADP's policy, or the best one after a fifth of the time, if none was given."""
        if self.target > -math.inf:
            return
        until = clock() + 0.2 * self.left()

        def watch(policy: Table, value: float) -> None:
            self.policy, self.target = policy, value
            if clock() > until:
                raise Stop

        with contextlib.suppress(Stop):
            self.plan.ascend([None], sweeps="paper", watch=watch)

    # ------------------------------------------------------------ what has been found
    @property
    def least(self) -> float:
        return min(x for x, _ in self.found.values())

    def note(self, name: str, value: float, optimum: Optimum) -> None:
        """Keep the least value found under each name."""
        if name not in self.found or value < self.found[name][0]:
            self.found[name] = (value, optimum)
        if self.ask.callback is not None:
            best, seconds = self.target, self.ask.time.seconds
            progress = Progress(name, len(self.found), best, best, seconds, self.least)
            self.ask.callback(self.lifted(progress))

    def result(self) -> Bound:
        name = min(self.found, key=lambda key: self.found[key][0])
        value, optimum = self.found[name]
        details = {**self.details, "bounds": {key: x for key, (x, _) in self.found.items()}}
        if self.target > -math.inf:
            details["incumbent"] = self.target
        return Bound(value, name, optimum, details)

    @property
    def met(self) -> bool:
        """Whether a bound meets the incumbent."""
        return self.least - self.target <= self.tolerance

    @property
    def tolerance(self) -> float:
        """How close a bound must come to the incumbent to meet it."""
        return self.closing(self.gap, self.target, self.found["oracle"][0])

    def left(self) -> float:
        return self.deadline - clock()

    # ------------------------------------------------------------ the methods
    def closed_forms(self) -> None:
        """They are computed at the start."""

    def pairs(self) -> None:
        """Match models, then value the pairs on a finer grid."""
        self._value_pairs(self._match(0.95))

    def dual(self) -> None:
        """The closed forms alone if there is no time for prices."""
        x = self._relaxation()
        if x is not None:
            self._descend("dual", None, self._begin(x))

    def pair_dual(self) -> None:
        """Pairs without prices if there is no time for prices."""
        x = self._relaxation()
        if x is None:
            return self.pairs()
        self._prices_of_pairs(x, 0.3, BEGINNING)

    def program(self) -> None:
        x = self._relaxation()
        if x is not None:
            self._solve_program(x, 1.0)

    def best(self) -> None:
        """The closed forms if they are exact; otherwise pairs, then the dual that fits the time."""
        if not self.plan.apart:  # no search is valid
            return
        alone = int((self.problem.weights > 0).sum()) == 1
        if alone or self.horizon == 1 or (self.problem.allowed.sum(axis=2) == 1).all():
            return
        x = self._relaxation(REACH_SHARE)
        if x is None:
            return self.pairs()
        size = lp.variables(self.problem, self.horizon)
        solved = size <= LP_QUICK and self._solve_program(x, 0.1)
        if self.met:
            return
        found = self._match(0.06)
        few = FEW * PAIR_STEP * found.refining > self.left()
        if not (few and self._prices_of_single_models(x, found)):
            self._prices_of_pairs(x, 0.45 if few else 0.3, WORTH)
        if self.branches:
            return
        x.group(None)
        if self.left() > 0 and not self.met:  # the pairs were done early
            self._descend("dual", None, self._begin(x))
        if size <= LP_LIMIT and not (solved or self.met) and self.left() > 0:
            self._solve_program(x, 1.0)

    def _prices_of_pairs(self, x: Relaxation, share: float, least: float) -> None:
        """Match models for a share of the time, then search prices for the pairs.

        If there is no time for ``least`` values of all pairs, models are matched to the end.
        """
        found = self._match(share)
        cost, pairs = self._value_pairs(found), fine(found.pairs)
        if self.left() > least * cost:
            x.group(pairs)
            self._descend("pair-dual", pairs, self._begin(x))
        else:
            self.pairs()

    def _prices_of_single_models(self, x: Relaxation, found: Matching) -> bool:
        """Search prices for single models as long as that is faster, then go on with pairs.

        False if it looks as if they would not come as low as the pairs without prices.
        """
        started, step = clock(), PAIR_STEP * found.refining
        search, paired = self._begin(x), step < 0.2 * self.left()
        until = self.deadline - step * paired
        pause, before = 2 * clock() - started, self.found["oracle"][0]
        while True:
            began = clock()
            self._descend("dual", None, search, until=min(pause, until))
            fall = (before - search.best) / max(clock() - began, 1e-9)
            if search.best - 0.5 * fall * self.left() > self.found["pairs"][0]:
                return False
            slow = fall * step < SLOW * (search.best - self.target)
            if slow or search.converged or clock() > until or self.met:
                break
            pause, before = 2 * clock() - started, search.best
        if paired:
            self._descend("pair-dual", fine(found.pairs), search)
        return True

    # ------------------------------------------------------------ parts
    def _match(self, share: float) -> Matching:
        """Pairs for this share of the time; notes their bound on the coarse grid as it falls.

        Time is kept to value them on the fine grid if that takes less than half of it.
        """
        if self.tournament is None:
            self.tournament = Tournament(self.plan, self.own, seed=self.ask.seed)
        until = clock() + share * max(self.left(), 0.0)
        while self.tournament.play(until, keep=FINER * self.problem.n_models / 2, most=TELL):
            self._note_pairs(self.tournament.matching(quick=True).gain)
        found = self.tournament.matching()
        self.details["pairs_tried"] = found.tried
        self._note_pairs(found.gain)
        return found

    def _note_pairs(self, gain: Array) -> None:
        slack = 8 * self.slack  # beliefs take more operations
        self.note("pairs", float(self.own.sum() - gain.sum()) + slack, "history")

    def _value_pairs(self, found: Matching) -> float:
        """Value as many pairs on the fine grid as there is time for; the seconds all take."""
        pairs, gain = fine(found.pairs), found.gain.copy()
        started, done, size = clock(), 0, FIRST
        each = FINER * found.seconds
        while done < len(gain) and clock() + size * each < self.deadline:
            i, j = pairs.first[done : done + size], pairs.second[done : done + size]
            value = self.plan.pair_values(pairs._replace(first=i, second=j))
            part = gain[done : done + size]
            np.maximum(part, self.own[i] + self.own[j] - value, out=part)
            done += len(i)
            each = (clock() - started) / done
            size = max(FIRST, int(TELL / max(each, 1e-9)))
            self._note_pairs(gain)
        return each * len(gain)

    def _relaxation(self, share: float = 0.8) -> Relaxation | None:
        """The dual function of single models; None if its reach bounds take more of the time.

        They take two passes per state.
        """
        try:
            if self.pass_seconds * self.problem.n_states > share * self.left():  # half of them
                raise Stop
            self._find_incumbent()
            return Relaxation(self.plan, deadline=clock() + share * self.left())
        except Stop:
            self.details["prices"] = "no time for them"
            return None

    def _solve_program(self, x: Relaxation, share: float) -> bool:
        """Note the bound of the linear program; whether it was solved in time.

        Policies that were cut off by closing actions are worth at most the target.
        """
        program = lp.build(x.plan, x.reach)
        result = lp.solve_relaxation(program, share * self.left())
        if result.status != "optimal":
            self.details["lp_status"] = result.status
            return False
        y = lp.multipliers(program, result, self.problem.n_models, self.problem.discount)
        value = x.value(y, subgradient=False) + x.rounding(y)
        self.note("lp", max(value, self.target + x.rounding(None)), "markov")
        return True

    def _descend(
        self, name: str, pairs: Pairs | None, search: Descent, until: float = math.inf
    ) -> None:
        """Minimise D over these pairs."""
        deadline = min(until, self.deadline)
        if pairs is not search.relaxation.pairs:
            search.regroup(pairs)
        enough = self.target + self.tolerance

        def watch() -> None:
            self.note(name, search.bound, "markov")

        heard = None if self.ask.callback is None else watch
        try:
            while clock() < deadline and not self.met:
                search.run(deadline=deadline, max_steps=100, enough=enough, watch=heard)
                if search.best <= enough or not self._go_on(search):
                    break
        finally:
            if search.steps:
                watch()
            self.details |= {"steps": search.steps, "closed": search.closed}

    def _go_on(self, search: Descent) -> bool:
        """Close actions when the search has slowed down; refine the grid when it has ended."""
        x = search.relaxation
        slow = search.delta is not None and search.delta < 0.02 * (search.best - self.target)
        if not (search.converged or slow):
            return True
        closes = 0
        if x.reach_seconds < 0.05 * self.left():
            spent = clock() - self.began
            until = clock() + min(0.3 * spent, 0.5 * max(self.left(), 0.0))
            closes = search.close_actions(until)
        if closes or not (search.converged or self.branches):
            return True
        if self.branches or x.pairs is None or x.pairs.width < 0.05:
            return False
        search.regroup(x.pairs._replace(reach=2 * x.pairs.reach, width=x.pairs.width / 2))
        return True

    def _begin(self, x: Relaxation) -> Descent:
        """A search at the best of y = 0 and y = theta (q - v) of the incumbent policy.

        With these prices every policy is worth as much as the incumbent to each model, so
        D = value + sum_{t,s} gamma^t max_a H(a): a certificate in closed form at theta = 1.
        """
        search = self.search = Descent(x, self.target)
        if self.policy is not None:
            found = self.plan.backward("given", policy=self.policy, keep=("q", "values"))
            gain = np.where(np.isfinite(found.q), found.q - found.values[:-1, :, None], 0.0)
            search.start_at([theta * gain for theta in (1.0, 0.3)])
        return search


def check_program(problem: Problem, horizon: int) -> None:
    """Refuse a linear program that is too large."""
    size = lp.variables(problem, horizon)
    if size > LP_LIMIT:
        raise InputError(
            f"the linear program would have {size:,} variables (lp takes at most "
            f"{LP_LIMIT:,}; pair-dual has no limit)",
            [Remedy("method", "pair-dual", do="use")],
        )


def fine(pairs: Pairs) -> Pairs:
    """The same pairs on the fine grid."""
    return Pairs(pairs.first, pairs.second)


RUN: dict[str, Callable[[Portfolio], None]] = {
    "best": Portfolio.best, "oracle": Portfolio.closed_forms, "qmdp": Portfolio.closed_forms,
    "pairs": Portfolio.pairs, "dual": Portfolio.dual, "pair-dual": Portfolio.pair_dual,
    "lp": Portfolio.program,
}  # fmt: skip
BOUNDS = tuple(RUN)
