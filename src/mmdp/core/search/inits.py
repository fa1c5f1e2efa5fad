"""The initial policies of a local search: how many, which, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mmdp.core.arguments import PositiveInt
from mmdp.core.errors import InputError
from mmdp.core.kernels.problem import AscentResult
from mmdp.core.memory import check_memory
from mmdp.core.search.context import Candidate, Details, MethodResult, SolveContext
from mmdp.core.solution import Status
from mmdp.core.text import join_or

if TYPE_CHECKING:
    from mmdp.core.search.space import SearchSpace

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


InitCount = PositiveInt | Literal["auto"]
