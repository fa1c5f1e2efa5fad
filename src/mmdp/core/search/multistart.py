"""Multistart CADP: block coordinate ascent from several initial policies.

For the mean an ascent is made of sweeps. Other objectives F ascend by single changes that improve
F itself. These can stop at the kinks of F (CVaR, worst case), so a search also follows a
continuation path of wider tails, and restarts from the local optimum of the mean with the risk
weights lambda xi.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.problem import Array, AscentResult, Callback
from mmdp.core.objectives import Objective
from mmdp.core.search.context import Candidate, MethodResult, SolveContext
from mmdp.core.search.inits import Init, InitCount, default_n_init, iter_inits, select_best
from mmdp.core.search.space import AscentLimits, SearchSpace
from mmdp.core.timing import TimeUp

AscentCache = dict[tuple[int, bytes], AscentResult]  # keys: stage and pickled candidate

MAX_REWEIGHTINGS = 8  # most rounds of risk weights
ASCENTS_PER_INIT = (
    4  # ascents from one start for an objective, each in the time of a start for the mean
)


@dataclass(frozen=True)
class MultiStart:
    """The ascents of one solve from several initial policies; records those on the objective."""

    space: SearchSpace
    init: object = "wsu"
    n_init: InitCount = "auto"
    tol: float = 0.0  # in units of return
    max_sweeps: int = 1000
    solve_unrestricted: Callable[[], MethodResult] | None = (
        None  # what is found without the restriction
    )

    @property
    def context(self) -> SolveContext:
        """Context of the search space."""
        return self.space.context

    def run(self) -> MethodResult:
        """Run all ascents and return the best local optimum."""
        init_names: list[str] = []
        local_optima: list[AscentResult] = []
        cache: AscentCache = {}
        if self.context.objective.is_mean:
            local_optima = self._ascend_mean(
                self._iter_candidates(init_names), callback=self.context.record
            )
        else:
            for init in self._iter_inits():
                for optimum in self.iter_local_optima(self._prepare_init(init.candidate), cache):
                    init_names.append(init.name)
                    local_optima.append(optimum)
        sweep_type = self.space.sweep_type if self.context.objective.is_mean else "single changes"
        best = max(local_optima, key=attrgetter("value"))
        return select_best(
            local_optima, init_names, sweep_type, self.context.estimate_rounding(best.returns)
        )

    def count_inits(self) -> int:
        """Return the number of initial policies."""
        if self.n_init != "auto":
            return self.n_init
        max_inits = default_n_init(self.space.init_names, self.space.estimate_ascent_seconds)
        return (
            max_inits
            if self.context.objective.is_mean
            else max(min(max_inits, 2), max_inits // ASCENTS_PER_INIT)
        )

    def _iter_inits(self) -> Iterator[Init]:
        """Iterate over initial policies; after the first, the projected unrestricted solution."""
        for i, init in enumerate(iter_inits(self.space, self.init, self.count_inits())):
            yield init
            if i == 0 and self.solve_unrestricted is not None:
                with suppress(TimeUp):  # what the search has by then is complete
                    unrestricted = self.solve_unrestricted()
                    yield Init("unrestricted", self.space.project(unrestricted.policy))

    def _iter_candidates(self, init_names: list[str]) -> Iterator[Candidate]:
        """Iterate over the initial candidates, and append their names to the list."""
        for init in self._iter_inits():
            init_names.append(init.name)
            yield init.candidate

    def iter_local_optima(
        self, init: Candidate, cache: AscentCache | None = None
    ) -> Iterator[AscentResult]:
        """Iterate over local optima: from init, by continuation, and from reweighted means.

        ``cache``: local optima of earlier initial policies; an ascent that meets one continues from
        it.
        """
        cache = {} if cache is None else cache
        objective, lam = self.context.objective, self.context.problem.weights
        best = self.ascend_objective(init, cache)
        yield best
        candidate, path = init, objective.continuation_path(lam)
        for i, easier_objective in enumerate(path):
            candidate = self._ascend_cached(
                candidate, easier_objective, i, self._check_time, cache
            ).policy
        if path:
            optimum = self.ascend_objective(candidate, cache)
            yield optimum
            best = max(best, optimum, key=attrgetter("value"))
        for _ in range(MAX_REWEIGHTINGS if objective.is_concave else 0):
            rho = objective.relative_returns(best.returns, self.context.oracle_returns)
            risk_weights = lam * objective.dual_density(rho, lam)
            local_optima = [
                self.ascend_objective(candidate, cache)
                for candidate in self._ascend_reweighted(best.policy, risk_weights)
            ]
            yield from local_optima
            optimum = max(local_optima, key=attrgetter("value"))
            if not optimum.value > best.value:
                return
            best = optimum

    # ------------------------------------------------------------ single ascents
    def _make_limits(self, callback: Callback) -> AscentLimits:
        """Make the options of an ascent."""
        return {"tol": self.tol, "max_sweeps": self.max_sweeps, "callback": callback}

    def _prepare_init(self, init: Candidate) -> Candidate:
        """Return init if it is a policy of the class, or the local optimum of the mean from it."""
        if init is None or is_randomized(init):
            return self._ascend_mean([init], callback=self._check_time)[0].policy
        return init

    def ascend_objective(self, init: Candidate, cache: AscentCache | None = None) -> AscentResult:
        """Ascend on the objective itself."""
        return self._ascend_cached(
            init, self.context.objective, -1, self.context.record, {} if cache is None else cache
        )

    def _ascend_cached(
        self,
        candidate: Candidate,
        objective: Objective,
        stage: int,
        callback: Callback,
        cache: AscentCache,
    ) -> AscentResult:
        """Ascend on a stage of the continuation, or on objective (-1), with a cache of results."""
        key = stage, pickle.dumps(candidate)
        if key not in cache:
            cache[key] = self.space.ascend_objective(
                candidate, objective, **self._make_limits(callback)
            )
        return cache[key]

    def _ascend_reweighted(self, candidate: Candidate, weights: Array) -> list[Candidate]:
        """Find local optima of the reweighted mean; for a single model, also from its optimum.

        An ascent changes nothing where the policy does not lead in the models that count.
        """
        model_optimum = (
            self.space.find_model_optimum(int(weights.argmax()))
            if (weights > 0).sum() == 1
            else None
        )
        candidates = [candidate] if model_optimum is None else [model_optimum, candidate]
        local_optima = self._ascend_mean(candidates, weights=weights, callback=self._check_time)
        return [optimum.policy for optimum in local_optima]

    def _ascend_mean(
        self, candidates: Iterable[Candidate], callback: Callback, weights: Array | None = None
    ) -> list[AscentResult]:
        """Ascend on the mean from each candidate."""
        return self.space.ascend_mean(candidates, weights=weights, **self._make_limits(callback))

    def _check_time(self, candidate: Candidate, value: float) -> None:
        """Check the time limit; record the first policy of all, so that there is an incumbent."""
        context = self.context
        if context.best_policy is None:
            returns: Array = self.space.compute_returns(candidate)
            context.record(candidate, context.objective_value(returns))
        context.check_time()
