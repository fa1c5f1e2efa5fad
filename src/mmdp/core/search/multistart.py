"""Multistart CADP: block coordinate ascent from several initial policies.

For the mean an ascent is made of sweeps. Other objectives F ascend by single changes that improve
F itself. These can stop at the kinks of F (CVaR, worst case), so a search also follows a
continuation path of wider tails, and restarts from the local optimum of the mean with the risk
weights lambda xi.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np

from mmdp.core.arguments import PositiveInt
from mmdp.core.errors import InputError, check_memory
from mmdp.core.kernels.ascent import is_randomized
from mmdp.core.kernels.problem import AscentResult, Callback
from mmdp.core.objectives import Objective
from mmdp.core.policies import POLICY_CLASSES
from mmdp.core.search.context import Candidate, Details, MethodResult, SolveContext
from mmdp.core.search.space import AscentLimits, SearchSpace
from mmdp.core.shapes import Array
from mmdp.core.solution import Status
from mmdp.core.text import join_or
from mmdp.core.timing import TimeUp

AscentCache = dict[tuple[int, bytes], AscentResult]  # keys: stage and pickled candidate

STAGE_GAIN_SHARE = 1e-3  # of the gain of a stage: a sweep that gains no more is its last one
RETURN_RTOL = 1e-9  # error of the returns of a user's search space that is accepted
MAX_REWEIGHTINGS = 8  # most rounds of risk weights
OBJECTIVE_COST = 16  # of a start for an objective other than the mean, in ascents on the mean
MAX_OBJECTIVE_INITS = 4  # initial policies that ``"auto"`` takes for it at most
InitCount = PositiveInt | Literal["auto"]
N_NAMED_INITS = 2  # named initial policies that every objective takes
MAX_AUTO_INITS = 16  # initial policies that ``"auto"`` takes at most
TIME_BUDGET = 1.0  # seconds that they may take together, estimated by size
MAX_ASCENT_SECONDS = 10.0  # seconds of one ascent above which one start must suffice

END_STATUS: dict[str, Status] = {
    "local_optimum": Status.LOCAL_OPTIMUM,
    "tolerance": Status.COMPLETED,
    "limit": Status.ITERATION_LIMIT,
}


class Init(NamedTuple):
    """Initial policy of a local search, with its name."""

    name: str
    candidate: Candidate


def default_n_init(init_names: Sequence[str], cost: Callable[[str], float]) -> int:
    """Choose the number of initial policies from the estimated seconds of each ascent.

    Two, or one if an ascent takes long; more as long as all together are quick.
    """
    seconds = np.cumsum([cost(name) for name in pad_init_names(init_names, MAX_AUTO_INITS)])
    if seconds[0] > MAX_ASCENT_SECONDS:
        return 1
    return max(2, int((seconds <= TIME_BUDGET).sum()))


def pad_init_names(init_names: Sequence[str], n_init: int) -> list[str]:
    """Pad the names of initial policies with ``"other"`` to a given number."""
    return [*init_names, *["other"] * (n_init - len(init_names))][:n_init]


def iter_inits(space: SearchSpace, init: object, n_init: int) -> Iterator[Init]:
    """Iterate over ``init``, then the named initial policies of the space, then others in turn.

    Objectives other than the mean take only the first two of the named ones.

    The others are the optimum of a single model and a random policy. Models are drawn by
    weight, each once; after the last one only random policies follow. A start is computed
    when it is needed.
    """
    context = space.context
    x = context.problem
    check_memory(  # each start has a seed and an end
        n_init * (4 * context.horizon * x.n_states + 8 * x.n_models),
        f"{n_init:,} initial policies",
        ["take fewer"],
    )
    seeds = itertools.islice(_iter_seeds(context.seed), max(n_init, 1))
    init_names = space.init_names if context.objective.is_mean else space.init_names[:N_NAMED_INITS]
    is_fresh = context.best_policy is None
    names = [name for name in init_names if not (is_fresh and name == init)][: n_init - 1]
    yield make_first_init(space, init, next(seeds))
    for name, seed in zip(names, seeds, strict=False):
        yield make_init(space, name, seed)
    models = _sample_models(context, n_init - 1 - len(names))
    for i, seed in enumerate(seeds):
        m = next(models, -1) if i % 2 == 0 else -1
        optimum = None if m < 0 else space.find_model_optimum(m)
        if optimum is None:
            yield Init("random", space.compute_init("random", seed))
        else:
            yield Init(f"model {context.model.model_labels[m]}", optimum)


def _iter_seeds(seed: int | None) -> Iterator[int]:
    """Iterate over the seeds of the initial policies, the same for any number of them."""
    sequence, n_given, n_made = np.random.SeedSequence(seed), 0, MAX_AUTO_INITS
    while True:
        yield from sequence.generate_state(n_made)[n_given:].tolist()
        n_given, n_made = n_made, 2 * n_made


def make_first_init(space: SearchSpace, init: object, seed: int) -> Init:
    """Return the incumbent as the initial policy if a solve resumes, otherwise ``init``."""
    incumbent = space.context.best_policy
    if incumbent is None:
        return make_init(space, init, seed)
    return Init("given", space.from_table(incumbent))


def make_init(space: SearchSpace, init: object, seed: int) -> Init:
    """Make an initial policy from a name or a policy; InputError if the name is unknown."""
    if not isinstance(init, str):
        return Init("given", space.from_policy(init))
    choices = (*space.init_names, *space.other_init_names)
    if init not in choices:
        raise InputError(
            f"no init is called {init!r}; choose {join_or(choices)} or pass a policy of the class "
            "that is searched"
        )
    return Init(init, space.compute_init(init, seed))


def _sample_models(context: SolveContext, n_inits: int) -> Iterator[int]:
    """Sample models by weight without replacement, for every other initial policy."""
    weights = context.problem.weights
    n_possible = int(np.count_nonzero(weights))
    rng = np.random.default_rng(context.seed)
    n_models = max(0, min(n_possible, -(-n_inits // 2)))
    models = rng.choice(len(weights), n_models, replace=False, p=weights / weights.sum())
    yield from models.tolist()


def select_best(
    local_optima: list[AscentResult], init_names: list[str], sweep_type: str, rounding_error: float
) -> MethodResult:
    """Return the result of the first ascent that no other beats by more than rounding."""
    values = np.array([optimum.value for optimum in local_optima])
    best_index = int((values >= values.max() - rounding_error).argmax())
    best = local_optima[best_index]
    details: Details = {"sweep_type": sweep_type, "n_sweeps": best.n_sweeps}
    if best.is_single_precision:
        details["precision"] = "32-bit sweeps, 64-bit returns"
    if len(local_optima) > 1:
        details |= {
            "init_values": values,
            "inits": init_names,
            "best_init": init_names[best_index],
            "spread": {"min": values.min(), "mean": values.mean(), "max": values.max()},
            "n_total_sweeps": sum(optimum.n_sweeps for optimum in local_optima),
        }
    return MethodResult(
        best.policy,
        END_STATUS[best.stop_reason],
        best.n_sweeps,
        returns=best.returns,
        trace=best.trace,
        details=details,
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
        for i, init in enumerate(self._iter_inits()):
            self.context.report_step(f"initial policy {i + 1} ({init.name})")
            for optimum in self.iter_local_optima(init.candidate, cache):
                init_names.append(init.name)
                local_optima.append(optimum)
        sweep_type = self.space.sweep_type if self.context.objective.is_mean else "single changes"
        best = max(local_optima, key=attrgetter("value"))
        result = select_best(
            local_optima, init_names, sweep_type, self.context.estimate_rounding(best.returns)
        )
        if type(self.context.policy_class) not in POLICY_CLASSES.values():
            self._check_returns(result)
        return result

    def _check_returns(self, result: MethodResult) -> None:
        """Raise InputError if the search space of a user is wrong about the returns it found."""
        is_table, context = isinstance(result.policy, np.ndarray), self.context
        returns = (context if is_table else self.space).compute_returns(result.policy)
        error = float(np.abs(returns - result.required_returns).max())
        if not error <= RETURN_RTOL * (context.return_span + np.abs(returns).max()):
            name = type(self.space).__name__
            raise InputError(
                f"{name}.iter_changes gives a policy returns that differ by {error:.3g} from its "
                "own; yield what each change adds to the returns, and return the exact ones"
            )

    def count_inits(self) -> int:
        """Return the number of initial policies."""
        if self.n_init != "auto":
            return self.n_init
        space, cost = self.space, self.space.estimate_ascent_seconds
        max_inits = default_n_init(space.init_names, cost)
        if self.context.objective.is_mean:
            return max_inits
        named = space.init_names[:N_NAMED_INITS]
        n_quick = default_n_init(named, lambda name: OBJECTIVE_COST * cost(name))
        return min(max_inits, max(2, min(n_quick, MAX_OBJECTIVE_INITS)))

    def _iter_inits(self) -> Iterator[Init]:
        """Iterate over initial policies; after the first, the projected unrestricted solution."""
        for i, init in enumerate(iter_inits(self.space, self.init, self.count_inits())):
            yield init
            if i == 0 and self.solve_unrestricted is not None:
                with suppress(TimeUp):  # what the search has by then is complete
                    unrestricted = self.solve_unrestricted()
                    yield Init("unrestricted", self.space.project(unrestricted.policy))

    def iter_local_optima(self, init: Candidate, cache: AscentCache) -> Iterator[AscentResult]:
        """Iterate over local optima: from init, by continuation, and from reweighted means.

        For the mean it is the one from init. ``cache``: local optima of earlier initial policies;
        an ascent that meets one continues from it.
        """
        objective, lam = self.context.objective, self.context.problem.weights
        if objective.is_mean:
            yield self._ascend_mean(init, self.context.record)
            return
        if init is None or is_randomized(init):  # then the local optimum of the mean from it
            init = self._ascend_mean(init, self._check_time).policy
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

    def ascend_objective(self, init: Candidate, cache: AscentCache) -> AscentResult:
        """Ascend on the objective itself."""
        return self._ascend_cached(init, self.context.objective, -1, self.context.record, cache)

    def _ascend_cached(
        self,
        candidate: Candidate,
        objective: Objective,
        stage: int,
        callback: Callback,
        cache: AscentCache,
    ) -> AscentResult:
        """Ascend on a stage of the continuation, or on objective (-1), with a cache of results.

        The best result on the objective itself is the target of the next ascents on it. A stage
        only has to find a good start for the next one.
        """
        key = stage, pickle.dumps(candidate)
        if key not in cache:
            values = [x.value for (other, _), x in cache.items() if other == stage == -1]
            cache[key] = self.space.ascend_objective(
                candidate,
                objective,
                target=max(values, default=-np.inf),
                gain_share=0.0 if stage == -1 else STAGE_GAIN_SHARE,
                **self._make_limits(callback),
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
        return [self._ascend_mean(x, self._check_time, weights).policy for x in candidates]

    def _ascend_mean(
        self, candidate: Candidate, callback: Callback, weights: Array | None = None
    ) -> AscentResult:
        """Ascend on the mean from a candidate."""
        return self.space.ascend_mean(candidate, weights=weights, **self._make_limits(callback))

    def _check_time(self, candidate: Candidate, value: float) -> None:
        """Check the time limit; record the first policy of all, so that there is an incumbent."""
        context = self.context
        if context.best_policy is None:
            returns: Array = self.space.compute_returns(candidate)
            context.record(candidate, context.objective_value(returns))
        context.check_time()
