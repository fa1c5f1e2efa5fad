"""bound(): one front door for all upper bounds, and the portfolio behind ``"best"``."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.bounds import closed
from mmdp.bounds.descent import Descent, Watch
from mmdp.bounds.matching import COARSE, match
from mmdp.bounds.relaxation import Relaxation
from mmdp.errors import InputError, Remedy
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.problem import Pairs, Reach
from mmdp.policy import MarkovPolicy
from mmdp.solution import Bound, Optimum, Solution
from mmdp.validate import check_extent, check_horizon, check_time_limit, check_whole_model

if TYPE_CHECKING:
    from mmdp.model import MMDP

SECONDS = 10.0  # for a search without a time limit
LP_LIMIT = 200_000  # variables of the linear program
TIGHT = 1e-9  # relative gap at which a bound meets the incumbent
FEW = 1000  # steps with pairs of models; if fewer fit the time, models begin one by one
FEW_PASSES = 20  # of the closed forms and one ascent
PASSES = 1000  # that a search takes, by which its kernel is chosen
CLOSED = ("oracle", "qmdp")


class BoundProgress(NamedTuple):
    """What a callback of bound() sees."""

    method: str
    value: float  # the best bound so far
    incumbent: float  # the value it cannot pass; -inf if there is none
    seconds: float


Callback = Callable[[BoundProgress], object]


def bound(
    model: MMDP,
    horizon: int | None = None,
    method: str = "best",
    *,
    time_limit: float | None = None,
    incumbent: Any = None,
    backend: str | Kernel = "auto",
    seed: int = 0,
    callback: Callback | None = None,
) -> Bound:
    """A proven upper bound on the value of every policy (see the table of the module).

    Parameters
    ----------
    model, horizon
        The problem, as for :func:`mmdp.solve`.
    method
        One of ``BOUNDS``.
    time_limit
        Seconds for the searches (``pairs``, ``dual``, ``pair-dual``, ``lp``, ``best``); 10
        by default. Compilation on first use is not counted. A short limit gives a
        weaker bound, never an invalid one.
    incumbent
        A Solution, a MarkovPolicy or a value for the searches to aim at; found by CADP by
        default. A wrong value only makes the bound less tight: it is never below it.
    backend
        As for :func:`mmdp.solve`.
    seed
        Seed of the order in which pairs of models are tried.
    callback
        Called with a :class:`BoundProgress` while a search runs. Ctrl-C returns the best
        bound so far.

    >>> import mmdp
    >>> from mmdp.bounds import bound
    >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 3.0]], discount=0.5)
    >>> bound(one, 3).value >= 5.25
    True
    """
    steps = check_horizon(model.horizon, horizon)
    if method not in BOUNDS:
        raise InputError(f"no bound is called {method!r}; choose one of {', '.join(BOUNDS)}")
    check_time_limit(time_limit)
    x = model.problem
    if method != "oracle":
        check_whole_model(x, f"bound {method}", [Remedy("method", "oracle", do="use")])
    check_extent(x, steps, 0 if method == "oracle" else 8 * steps * x.n_states * x.n_models)
    started = time.perf_counter()
    # the closed forms and CADP's policy need no compiler, the searches often do
    quick = kernels.get(backend, model.problem, steps, passes=FEW_PASSES)
    search = Search(model, steps, quick, seed, callback)
    search.start(method, SECONDS if time_limit is None else time_limit, incumbent)
    if method not in CLOSED:
        search.kernel = kernels.get(backend, model.problem, steps, passes=PASSES)
    try:
        getattr(search, "run_" + method.replace("-", "_"))()
    except KeyboardInterrupt:
        if not search.found:
            raise
        search.details["interrupted"] = True
    return search.result(time.perf_counter() - started)


class _Enough(Exception):
    """The time for the incumbent is up."""


@dataclass
class Search:
    """One call of bound(): what has been found so far, and the clock."""

    model: MMDP
    horizon: int
    kernel: Kernel
    seed: int
    callback: Callback | None
    found: dict[str, tuple[float, Optimum]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    target: float = -math.inf
    policy: npt.NDArray[np.int32] | None = None
    deadline: float = math.inf
    started: float = 0.0
    pairs_seconds: float = 0.0  # that the pairs take on the fine grid

    @property
    def problem(self) -> Problem:
        return self.model.problem

    def start(self, method: str, seconds: float, incumbent: Any) -> None:
        """Take the closed forms, start the clock, read the incumbent."""
        self.q, self.own = closed.own_optimum(self.problem, self.horizon, self.kernel)
        slack = closed.rounding(self.problem, self.horizon)
        wanted = {"qmdp": ("qmdp",), "oracle": ("oracle",)}.get(method, ("oracle", "qmdp"))
        if "oracle" in wanted:
            self.note("oracle", closed.oracle_bound(self.own) + slack, "history")
        if "qmdp" in wanted:
            self.note("qmdp", closed.qmdp_bound(self.problem, self.q) + slack, "history")
        if method in CLOSED:
            return
        self.started = clock()
        self.deadline = self.started + seconds
        self._read_incumbent(incumbent, seconds, needed=method != "pairs")

    def _read_incumbent(self, incumbent: Any, seconds: float, needed: bool) -> None:
        if isinstance(incumbent, Solution):
            known = isinstance(incumbent.policy, MarkovPolicy)
            incumbent = incumbent.policy if known else incumbent.value
        if isinstance(incumbent, MarkovPolicy):
            incumbent.check(self.model, self.horizon)
            x, table = self.problem, incumbent.table_for(self.model)
            first = self.kernel.backward(x, self.horizon, "given", policy=table).first
            self.target = float(x.returns(first) @ x.weights)
            self.policy = incumbent.actions if incumbent.deterministic else None
        elif isinstance(incumbent, Real) and not isinstance(incumbent, bool):
            if not math.isfinite(incumbent):
                raise InputError(f"the incumbent's value must be finite, not {incumbent}")
            self.target = float(incumbent)
        elif incumbent is not None:
            raise InputError("incumbent must be a Solution, a MarkovPolicy or a number")
        elif needed:
            self._find_incumbent(self.started + 0.2 * seconds)

    def _find_incumbent(self, until: float) -> None:
        """CADP's policy, or the best one so far when its time is up."""

        def watch(policy: Any, value: float) -> None:
            self.policy, self.target = policy, value
            if clock() > until:
                raise _Enough

        with contextlib.suppress(_Enough):
            self.kernel.ascend(self.problem, self.horizon, [None], sweeps="paper", watch=watch)

    # ------------------------------------------------------------ what has been found
    def note(self, name: str, value: float, optimum: Optimum) -> None:
        """Keep the least value found under each name."""
        if name not in self.found or value < self.found[name][0]:
            self.found[name] = (value, optimum)
        if self.callback is not None:
            least = min(x for x, _ in self.found.values())
            seconds = clock() - self.started if self.started else 0.0
            self.callback(BoundProgress(name, least, self.target, seconds))

    def result(self, seconds: float) -> Bound:
        name = min(self.found, key=lambda key: self.found[key][0])
        value, optimum = self.found[name]
        details = {**self.details, "bounds": {key: x for key, (x, _) in self.found.items()}}
        if self.target > -math.inf:
            details["incumbent"] = self.target
        return Bound(value, name, optimum, details, seconds)

    @property
    def met(self) -> bool:
        """Whether a bound meets the incumbent."""
        least = min(x for x, _ in self.found.values())
        return least - self.target <= self.tolerance

    @property
    def tolerance(self) -> float:
        """How close a bound must come to the incumbent to meet it."""
        return TIGHT * closed.scale_of(self.target, self.problem, self.horizon)

    def left(self) -> float:
        return self.deadline - clock()

    # ------------------------------------------------------------ the methods
    def run_oracle(self) -> None:
        """Done at the start."""

    def run_qmdp(self) -> None:
        """Done at the start."""

    def run_pairs(self) -> None:
        """Match models, then value the pairs on a finer grid."""
        pairs = self._match(0.8)
        self._value_pairs(pairs)

    def run_dual(self) -> None:
        self._descend("dual", None)

    def run_pair_dual(self) -> None:
        pairs = self._match(0.3)
        self._value_pairs(pairs)
        self._descend("pair-dual", pairs)

    def run_lp(self) -> None:
        from mmdp.bounds import lp

        size = lp.variables(self.problem, self.horizon)
        if size > LP_LIMIT:
            raise InputError(
                f"the linear program would have {size:,} variables (lp takes at most "
                f"{LP_LIMIT:,}; pair-dual has no limit)",
                [Remedy("method", "pair-dual", do="use")],
            )
        x = Relaxation(self.problem, self.horizon, self.kernel)
        program = lp.build(self.problem, self.horizon, x.reach)
        result = lp.solve_relaxation(program, self.left())
        if result.status != "optimal":
            self.details["lp_status"] = result.status
            return
        y = lp.multipliers(program, result, self.problem.n_models, self.problem.discount)
        self.note("lp", x.value(y, subgradient=False) + x.rounding(y), "markov")

    def run_best(self) -> None:
        """The closed forms if they are exact; else pairs, then the dual that fits the time."""
        alone = int((self.problem.weights > 0).sum()) == 1
        if self.met or alone or self.horizon == 1 or (self.problem.allowed.sum(axis=2) == 1).all():
            return
        pairs = self._match(0.06)
        if self._reach_seconds() > 0.5 * self.left():  # no time for prices
            self._value_pairs(self._match(0.6))
            return
        cost = self._value_pairs(pairs)
        if self.met:
            return
        first = None
        if cost * 2.5 * FEW > self.left():  # few steps: models one by one are faster at first
            first = self._prices_of_single_models(pairs, cost)
            if not self.left() > 2 * cost:
                return
        self._descend("pair-dual", pairs, first)

    def _prices_of_single_models(self, pairs: Pairs, cost: float) -> Descent | None:
        """Multipliers of the dual of single models, then of pairs on a coarse grid.

        None if a tenth of the time shows that such multipliers do not help pairs.
        """
        coarse = COARSE._replace(first=pairs.first, second=pairs.second)
        start, left = clock(), self.left()
        first = self._descend("dual", None, until=start + 0.1 * left)
        if cost * 2.5 * 5 >= 0.5 * left:  # pairs could hardly move
            self._descend("dual", None, first)
            return first
        x = first.relaxation
        x.group(coarse)
        helps = x.value(first.best_y, subgradient=False) < x.value(
            np.zeros_like(first.best_y), subgradient=False
        )
        x.group(None)
        if not helps:
            return None
        self._descend("dual", None, first, until=start + 0.35 * left, while_fast=True)
        return self._descend("pair-dual", coarse, first, until=self.deadline - 2 * cost)

    # ------------------------------------------------------------ parts
    def _match(self, share: float) -> Pairs:
        """Pairs for this share of the time; notes their bound on the coarse grid."""
        found = match(
            self.problem, self.horizon, self.kernel, self.own, seed=self.seed,
            deadline=clock() + share * max(self.left(), 0.0),
        )  # fmt: skip
        self.details["pairs_tried"] = found.tried
        slack = 8 * closed.rounding(self.problem, self.horizon)  # beliefs take more operations
        self.note("pairs", float(self.own.sum()) - found.gain + slack, "history")
        pairs = Pairs(found.pairs.first, found.pairs.second)
        finer = len(pairs.grid) / len(found.pairs.grid)
        self.pairs_seconds = finer * found.seconds * len(pairs.first)
        return pairs

    def _value_pairs(self, pairs: Pairs) -> float:
        """Note the bound of the pairs without prices if there is time; the seconds it takes."""
        if self.pairs_seconds > self.left():
            return self.pairs_seconds
        start = clock()
        x = Relaxation(
            self.problem, self.horizon, self.kernel, pairs, reach=_no_reach(self.problem)
        )
        self.note("pairs", x.value(subgradient=False) + x.rounding(None), "history")
        return clock() - start

    def _reach_seconds(self) -> float:
        """What the reach bounds take, which prices are weighed by: two passes per state."""
        start = clock()
        self.kernel.own_values(self.problem, self.horizon)
        return 2 * self.problem.n_states * (clock() - start)

    def _descend(
        self, name: str, pairs: Pairs | None, first: Descent | None = None,
        until: float = math.inf, while_fast: bool = False,
    ) -> Descent:  # fmt: skip
        """Minimise D over these pairs, from the multipliers of ``first`` if given."""
        deadline = min(until, self.deadline)
        if first is None:
            x = Relaxation(self.problem, self.horizon, self.kernel, pairs)
            search = Descent(x, self.target)
            self._warm_start(search)
        else:
            search = first
            if pairs is not search.relaxation.pairs:
                search.regroup(pairs)
        enough = self.target + self.tolerance
        try:
            while clock() < deadline and not self.met:
                search.run(
                    deadline=deadline, max_steps=100, enough=enough, watch=self._watch(name, search)
                )
                if search.best <= enough or (while_fast and self._slow(search, 0.005)):
                    break
                if not self._go_on(search):
                    break
        finally:
            if search.steps:
                self.note(name, search.bound, "markov")
            self.details |= {"steps": search.steps, "closed": search.closed}
        return search

    def _watch(self, name: str, search: Descent) -> Watch | None:
        if self.callback is None:
            return None

        def watch(best: float) -> None:
            if search.steps % 20 == 0:
                self.note(name, search.bound, "markov")

        return watch

    def _go_on(self, search: Descent) -> bool:
        """Close actions when the search has slowed down; refine the grid when it has ended."""
        x = search.relaxation
        if not (search.converged or self._slow(search)):
            return True
        closes = 0
        if x.reach_seconds < 0.05 * self.left():
            spent = clock() - self.started
            until = clock() + min(0.3 * spent, 0.5 * max(self.left(), 0.0))
            closes = search.close_actions(until)
        if closes or not search.converged:
            return True
        if x.pairs is None or x.pairs.width < 0.05:
            return False
        search.regroup(x.pairs._replace(reach=2 * x.pairs.reach, width=x.pairs.width / 2))
        return True

    def _slow(self, search: Descent, level: float = 0.02) -> bool:
        return search.delta is not None and search.delta < level * (search.best - self.target)

    def _warm_start(self, search: Descent) -> None:
        """Begin at y = theta (q - v) of the incumbent policy if that is better than y = 0.

        With these prices every policy is worth as much as the incumbent to each model, so
        D = value + sum_{t,s} gamma^t max_a H(a): a certificate in closed form at theta = 1.
        """
        if self.policy is None:
            return
        found = self.kernel.backward(
            self.problem, self.horizon, "given", policy=self.policy, keep=("q", "values")
        )
        assert found.q is not None
        assert found.values is not None
        advantage = np.where(np.isfinite(found.q), found.q - found.values[:-1, :, None], 0.0)
        search.start_at([theta * advantage for theta in (1.0, 0.3)])


def _no_reach(problem: Problem) -> Reach:
    """Reach bounds that nothing is weighed by: there are no prices."""
    nothing = np.zeros((1, problem.n_states, problem.n_models))
    return Reach(nothing, nothing)


BOUNDS = ("best", "oracle", "qmdp", "pairs", "dual", "pair-dual", "lp")
