"""bound(): one front door for all upper bounds, and the portfolio behind ``"best"``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.bounds import closed, envelope, lp
from mmdp.bounds.descent import Descent, Watch
from mmdp.bounds.matching import FINER, FIRST, Matching, Tournament
from mmdp.bounds.relaxation import Relaxation, TooLong
from mmdp.errors import InputError, Remedy
from mmdp.interrupts import answer
from mmdp.kernels import Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.endless import Endless, check_endless, planning_horizon
from mmdp.kernels.problem import Array, Pairs, Stop
from mmdp.objective import Function, Mean, Objective, as_objective
from mmdp.policy import MarkovPolicy
from mmdp.solution import Bound, Optimum, Solution, gap
from mmdp.validate import check_extent, check_horizon, check_time_limit, check_whole_model

if TYPE_CHECKING:
    from mmdp.model import MMDP

SECONDS = 10.0  # for a search without a time limit
LP_LIMIT, LP_QUICK = 200_000, 5_000  # variables of the linear program; those it takes in seconds
REACH_SHARE = 0.25  # of the time for reach bounds; a search needs several times as long
TIGHT = 1e-9  # relative gap at which a bound meets the incumbent
FEW = 100  # steps with pairs of models; if fewer fit the time, models begin one by one
BEGINNING = 6  # values of all pairs that a search with pairs takes before it moves
WORTH = 25  # such values; in a shorter time more matching gains more on average
FEW_PASSES = 20  # of the closed forms and one ascent
RATE = 1e9  # multiply-adds per second, by which decisions are counted that fit a time
LEAST = 0.1  # seconds for a search at least
PASSES = 1000  # that a search takes, by which its kernel is chosen
CLOSED = ("oracle", "qmdp")
TELL = 0.5  # seconds between two looks at what pairs give
PAIR_STEP = 1.5  # values of all pairs on the fine grid that a step with them takes
SLOW = 0.01  # of the gap: if single models gain less in a step's time, pairs take over


class BoundProgress(NamedTuple):
    """What a callback of bound() sees."""

    method: str
    value: float  # the best bound so far
    incumbent: float  # the value it cannot pass; -inf if there is none
    seconds: float

    @property
    def gap(self) -> float:
        """(value - incumbent) / |incumbent|; nan without an incumbent."""
        return gap(self.value, self.incumbent) if self.incumbent > -math.inf else math.nan


Callback = Callable[[BoundProgress], object]


def bound(
    model: MMDP,
    horizon: float | None = None,
    method: str = "best",
    *,
    objective: str | Objective | Function = "mean",
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
        The problem, as for :func:`mmdp.solve`; the horizon may be ``math.inf``.
    method
        One of ``BOUNDS``.
    objective
        As for :func:`mmdp.solve`. A monotone objective is bounded by its value at the models' own
        optima; a concave one also by the method, on a mean with tilted weights. The bound holds
        for a function of your own only if it is monotone: say ``mmdp.Custom(f, monotone=True)``.
    time_limit
        Seconds for the searches (``pairs``, ``dual``, ``pair-dual``, ``lp``, ``best``); 10
        by default. Compilation on first use is not counted. A short limit gives a
        weaker bound, never an invalid one. It is kept up to a fifth, or up to one pass over all
        models and 16 pairs of them if that takes longer. ``dual``, ``pair-dual`` and ``lp`` need
        two passes per state before their first step. If those do not fit (for ``best``: if they
        take over a quarter of the time), ``pair-dual`` and ``best`` value pairs alone, and
        ``details`` has ``prices``. If the horizon is infinite, a short limit also counts fewer
        decisions before the model becomes known.
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
    if method not in BOUNDS:
        raise InputError(f"no bound is called {method!r}; choose one of {', '.join(BOUNDS)}")
    if horizon == math.inf:
        return _endless(
            model, method, time_limit, incumbent,
            backend=backend, seed=seed, callback=callback, objective=objective,
        )  # fmt: skip
    steps = check_horizon(model.horizon, horizon)
    check_time_limit(time_limit)
    chosen = as_objective(objective)
    if model.drifts:
        _check_drifting(method, chosen)
    x = model.problem
    if method != "oracle":
        check_whole_model(x, f"bound {method}", [Remedy("method", "oracle", do="use")])
    check_extent(x, steps, 0 if method == "oracle" else 8 * steps * x.n_states * x.n_models)
    if method == "lp":
        check_program(x, steps)
    started = time.perf_counter()
    if chosen != Mean():
        found = _of_objective(
            model, steps, chosen, method, SECONDS if time_limit is None else time_limit, incumbent,
            backend, seed, callback,
        )  # fmt: skip
        return replace(found, seconds=time.perf_counter() - started)
    # the closed forms and CADP's policy need no compiler, the searches often do
    quick = kernels.get(backend, model.problem, steps, passes=FEW_PASSES)
    search = Search(model, steps, quick, seed, callback)
    try:
        search.start(method, SECONDS if time_limit is None else time_limit, incumbent)
        if method not in CLOSED:
            search.kernel = kernels.get(backend, model.problem, steps, passes=PASSES)
        getattr(search, "run_" + method.replace("-", "_"))()
    except KeyboardInterrupt as stop:
        if not search.found:
            raise
        answer(stop)
        search.details["interrupted"] = True
    return search.result(time.perf_counter() - started)


def _check_drifting(method: str, objective: Objective) -> None:
    """Refuse bounds that do not hold for models that change."""
    if method not in ("best", *CLOSED):
        raise InputError(
            f"{method} holds for models that never change, and these do",
            [Remedy("method", "best", *CLOSED, do="choose")],
        )
    if objective != Mean():
        raise InputError(
            f"for models that change only the mean can be bounded, not {objective}",
            [Remedy("objective", "mean")],
        )


def _of_objective(
    model: MMDP, steps: int, objective: Objective, method: str, seconds: float, incumbent: Any,
    backend: str | Kernel, seed: int, callback: Callback | None,
) -> Bound:  # fmt: skip
    """A bound on an objective by those on means with tilted weights (see bounds.envelope)."""
    envelope.check_bounded(objective, method)
    kernel = kernels.get(backend, model.problem, steps, passes=PASSES)
    if isinstance(incumbent, Solution):
        incumbent = incumbent.policy
    policy = None
    if isinstance(incumbent, MarkovPolicy):
        incumbent.check(model, steps)
        policy = incumbent.table_for(model)
    until = clock() + seconds

    def of_mean(part: MMDP, known: Any, shift: envelope.Shift) -> Bound:
        def told(progress: BoundProgress) -> None:
            assert callback is not None
            callback(progress._replace(value=shift(progress.value)))

        return bound(
            part, None if part.horizon else steps, method, time_limit=max(until - clock(), 0.1),
            incumbent=None if known is None else MarkovPolicy.for_model(part, known),
            backend=backend, seed=seed, callback=None if callback is None else told,
        )  # fmt: skip

    return envelope.prove(
        model, steps, kernel, objective, method, seconds=seconds, policy=policy, of_mean=of_mean
    )


def _endless(
    model: MMDP, method: str, time_limit: float | None, incumbent: Any, **how: Any
) -> Bound:
    """A bound without a last decision: over many decisions, after which the model is known.

    Each model then has its own optimum as terminal value, so no tail is left out, and every
    number of decisions gives a valid bound.
    """
    check_endless(model.problem, model.horizon)
    check_time_limit(time_limit)
    began, started = time.perf_counter(), clock()
    seconds = SECONDS if time_limit is None else time_limit

    def check_time() -> None:
        if clock() > started + seconds / 2:
            raise Stop

    x = Endless.of(model.problem, check_time)
    own = x.own()
    known = model.replace(terminal=own.values + own.above[:, None])
    if isinstance(incumbent, Solution):
        incumbent = incumbent.value
    left = max(started + seconds - clock(), LEAST)
    steps = min(planning_horizon(model.problem), affordable_steps(model.problem, left))
    found = bound(known, steps, method, time_limit=left, incumbent=incumbent, **how)
    value = found.value + x.rounding()
    return dataclasses.replace(found, value=value, seconds=time.perf_counter() - began)


def affordable_steps(problem: Problem, seconds: float) -> int:
    """How many decisions take FEW_PASSES passes in this time: a rule by size, not by the clock."""
    return max(1, int(seconds * RATE / (FEW_PASSES * problem.work(1))))


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
    tournament: Tournament | None = None
    pass_seconds: float = 0.0  # that one pass over all models takes

    @property
    def problem(self) -> Problem:
        return self.model.problem

    def start(self, method: str, seconds: float, incumbent: Any) -> None:
        """Start the clock, take the closed forms, read the incumbent."""
        self.started = clock()
        self.deadline = self.started + seconds
        self.q, self.own = closed.own_optimum(self.problem, self.horizon, self.kernel)
        self.pass_seconds = clock() - self.started
        slack = closed.rounding(self.problem, self.horizon)
        wanted = {"qmdp": ("qmdp",), "oracle": ("oracle",)}.get(method, ("oracle", "qmdp"))
        if "oracle" in wanted:
            self.note("oracle", closed.oracle_bound(self.own) + slack, "history")
        if "qmdp" in wanted:
            self.note("qmdp", closed.qmdp_bound(self.problem, self.q) + slack, "history")
        if method not in CLOSED:
            self._read_incumbent(incumbent)

    def _read_incumbent(self, incumbent: Any) -> None:
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

    def _find_incumbent(self) -> None:
        """CADP's policy, or the best one after a fifth of the time, if none was given."""
        if self.target > -math.inf:
            return
        until = clock() + 0.2 * self.left()

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
            self.callback(BoundProgress(name, least, self.target, clock() - self.started))

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
        oracle = self.found["oracle"][0]
        return closed.closing(TIGHT, self.target, oracle, self.problem, self.horizon)

    def left(self) -> float:
        return self.deadline - clock()

    # ------------------------------------------------------------ the methods
    def run_oracle(self) -> None:
        """Done at the start."""

    def run_qmdp(self) -> None:
        """Done at the start."""

    def run_pairs(self) -> None:
        """Match models, then value the pairs on a finer grid."""
        self._value_pairs(self._match(0.95))

    def run_dual(self) -> None:
        """The closed forms alone if there is no time for prices."""
        x = self._relaxation()
        if x is not None:
            self._descend("dual", None, self._begin(x))

    def run_pair_dual(self) -> None:
        """Pairs without prices if there is no time for prices."""
        x = self._relaxation()
        if x is None:
            return self.run_pairs()
        self._prices_of_pairs(x, 0.3, BEGINNING)

    def run_lp(self) -> None:
        x = self._relaxation()
        if x is not None:
            self._solve_program(x, 1.0)

    def run_best(self) -> None:
        """The closed forms if they are exact; else pairs, then the dual that fits the time."""
        if self.model.drifts:  # no search holds for models that change
            return
        alone = int((self.problem.weights > 0).sum()) == 1
        if alone or self.horizon == 1 or (self.problem.allowed.sum(axis=2) == 1).all():
            return
        x = self._relaxation(REACH_SHARE)
        if x is None:
            return self.run_pairs()
        size = lp.variables(self.problem, self.horizon)
        solved = size <= LP_QUICK and self._solve_program(x, 0.1)
        if self.met:
            return
        found = self._match(0.06)
        few = FEW * PAIR_STEP * found.refining > self.left()
        if not (few and self._prices_of_single_models(x, found)):
            self._prices_of_pairs(x, 0.45 if few else 0.3, WORTH)
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
            self.run_pairs()

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
            self.tournament = Tournament(
                self.problem, self.horizon, self.kernel, self.own, seed=self.seed
            )
        until = clock() + share * max(self.left(), 0.0)
        while self.tournament.play(until, keep=FINER * self.problem.n_models / 2, most=TELL):
            self._note_pairs(self.tournament.matching(quick=True).gain)
        found = self.tournament.matching()
        self.details["pairs_tried"] = found.tried
        self._note_pairs(found.gain)
        return found

    def _note_pairs(self, gain: Array) -> None:
        slack = 8 * closed.rounding(self.problem, self.horizon)  # beliefs take more operations
        self.note("pairs", float(self.own.sum() - gain.sum()) + slack, "history")

    def _value_pairs(self, found: Matching) -> float:
        """Value as many pairs on the fine grid as there is time for; the seconds all take."""
        pairs, gain = fine(found.pairs), found.gain.copy()
        started, done, size = clock(), 0, FIRST
        each = FINER * found.seconds
        while done < len(gain) and clock() + size * each < self.deadline:
            i, j = pairs.first[done : done + size], pairs.second[done : done + size]
            value = self.kernel.pair_values(
                self.problem, self.horizon, pairs._replace(first=i, second=j)
            )
            part = gain[done : done + size]
            np.maximum(part, self.own[i] + self.own[j] - value, out=part)
            done += len(i)
            each = (clock() - started) / done
            size = max(FIRST, int(TELL / each))
            self._note_pairs(gain)
        return each * len(gain)

    def _relaxation(self, share: float = 0.8) -> Relaxation | None:
        """The dual function of single models; None if its reach bounds take more of the time.

        They take two passes per state.
        """
        try:
            if self.pass_seconds * self.problem.n_states > share * self.left():  # half of them
                raise TooLong
            self._find_incumbent()
            return Relaxation(
                self.problem, self.horizon, self.kernel,
                deadline=clock() + share * self.left(),
            )  # fmt: skip
        except TooLong:
            self.details["prices"] = "no time for them"
            return None

    def _solve_program(self, x: Relaxation, share: float) -> bool:
        """Note the bound of the linear program; whether it was solved in time.

        Policies that were cut off by closing actions are worth at most the target.
        """
        program = lp.build(x.problem, self.horizon, x.reach, self.kernel)
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
        try:
            while clock() < deadline and not self.met:
                search.run(
                    deadline=deadline, max_steps=100, enough=enough, watch=self._watch(name, search)
                )
                if search.best <= enough or not self._go_on(search):
                    break
        finally:
            if search.steps:
                self.note(name, search.bound, "markov")
            self.details |= {"steps": search.steps, "closed": search.closed}

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

    def _slow(self, search: Descent) -> bool:
        return search.delta is not None and search.delta < 0.02 * (search.best - self.target)

    def _begin(self, x: Relaxation) -> Descent:
        """A search at the best of y = 0 and y = theta (q - v) of the incumbent policy.

        With these prices every policy is worth as much as the incumbent to each model, so
        D = value + sum_{t,s} gamma^t max_a H(a): a certificate in closed form at theta = 1.
        """
        search = Descent(x, self.target)
        if self.policy is not None:
            advantage = self._advantage()
            search.start_at([theta * advantage for theta in (1.0, 0.3)])
        return search

    def _advantage(self) -> Array:
        """(T, S, A, M) q - v of the incumbent policy."""
        found = self.kernel.backward(
            self.problem, self.horizon, "given", policy=self.policy, keep=("q", "values")
        )
        assert found.q is not None
        assert found.values is not None
        return np.where(np.isfinite(found.q), found.q - found.values[:-1, :, None], 0.0)


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


BOUNDS = ("best", "oracle", "qmdp", "pairs", "dual", "pair-dual", "lp")
