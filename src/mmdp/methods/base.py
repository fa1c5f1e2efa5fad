"""What a method is given and what it gives back.

A method is a frozen dataclass of options with a ``name`` and ``run(context)``. It reads the
model and the kernel from the context, calls ``context.record(policy, value)`` after every
improvement, and returns an :class:`Outcome`. Time limits and Ctrl-C are the context's work:
``record`` raises :class:`Stop`, which ``solve`` turns into the best policy so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels import Kernel, Problem
from mmdp.model import MMDP
from mmdp.policy import MarkovPolicy
from mmdp.solution import Status

Array = npt.NDArray[np.float64]
Table = npt.NDArray[Any]


class Progress(NamedTuple):
    """What a callback sees after each iteration."""

    method: str
    iteration: int
    value: float
    best: float
    seconds: float
    bound: float = math.nan  # proven upper bound so far, of the exact methods
    nodes: int = 0  # of their tree

    @property
    def gap(self) -> float:
        """(bound - best) / |best|; nan without a bound."""
        return (self.bound - self.best) / max(abs(self.best), 1e-300)


Callback = Callable[[Progress], object]


class Stop(Exception):
    """Raised inside a method when the time is up; ``solve`` returns the best so far."""


@dataclass(frozen=True)
class Outcome:
    """What a method found: a policy table (T, S) or (T, S, A), or per-model policies."""

    policy: Any
    status: Status
    iterations: int
    policies: npt.NDArray[np.int32] | None = None
    returns: Array | None = None
    errors: Array | None = None
    trace: list[float] | None = None  # where it is not all that was recorded
    details: Mapping[str, Any] = field(default_factory=dict)


class Context:
    """The model, the kernel, the clock and the record of one solve."""

    def __init__(
        self, model: MMDP, horizon: int, kernel: Kernel, *, method: str = "",
        seed: int | None = None, time_limit: float | None = None, callback: Callback | None = None,
    ) -> None:  # fmt: skip
        self.model, self.horizon, self.kernel, self.method = model, horizon, kernel, method
        self.seed, self.callback = seed, callback
        self.started = time.perf_counter()
        self.deadline = None if time_limit is None else self.started + time_limit
        self.trace: list[float] = []
        self.best_value = -np.inf
        self.best_policy: Table | None = None
        self.iterations = 0

    @property
    def problem(self) -> Problem:
        return self.model.problem

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def record(self, policy: Table, value: float, *, last: bool = False) -> None:
        """Note an iterate; calls back; raises Stop when the time is up and it is not the last."""
        self.trace.append(value)
        self.iterations = len(self.trace) - 1
        if value > self.best_value or self.best_policy is None:
            self.best_value, self.best_policy = value, policy
        if self.callback is not None:
            self.callback(
                Progress(self.method, self.iterations, value, self.best_value, self.seconds)
            )
        if not last:
            self.check_time()

    def tell(self, bound: float, nodes: int) -> None:
        """Call back with a proven bound and the nodes of a tree; raises Stop out of time."""
        if self.callback is not None:
            value, seconds = self.best_value, self.seconds
            self.callback(
                Progress(self.method, self.iterations, value, value, seconds, bound, nodes)
            )
        self.check_time()

    def check_time(self) -> None:
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise Stop

    # ------------------------------------------------------------ the passes methods share
    def mean(self, returns: Array) -> float:
        """rho from the returns (M,) of the models."""
        return float(returns @ self.problem.weights)

    def returns(self, policy: Table) -> Array:
        """(M,) exact return of a policy table on every model."""
        return self.problem.returns(
            self.kernel.backward(self.problem, self.horizon, "given", policy=policy).first
        )

    def weighted(self, weights: Array, incumbent: Table | None = None) -> tuple[Table, Array]:
        """The policy that maximises G with these weights, and its returns (M,)."""
        found = self.kernel.backward(
            self.problem, self.horizon, "weighted", weights=weights, policy=incumbent
        )
        assert found.actions is not None
        return found.actions, self.problem.returns(found.first)

    def wsu(self) -> tuple[Table, Array]:
        """WSU's policy and its returns (M,)."""
        return self.weighted(self.problem.prior_weights())

    @property
    def precision(self) -> str:
        """``"mixed"`` where the kernel stores transitions in 32 bits while it climbs."""
        return str(getattr(self.kernel, "precision", "double"))


class Method(Protocol):
    """An algorithm: a frozen dataclass of options."""

    name: ClassVar[str]

    def run(self, context: Context) -> Outcome: ...


def start_policy(
    context: Context, init: str | MarkovPolicy, seed: int | None
) -> tuple[Table, Array | None]:
    """The policy table a local search starts from, with its returns where they come free."""
    from mmdp.methods.mvp import mvp_actions

    if isinstance(init, MarkovPolicy):
        init.check(context.model, context.horizon)
        return padded(init, context.model), None
    if init == "wsu":
        return context.wsu()
    if init == "mvp":
        return mvp_actions(context), None
    if init == "random":
        return MarkovPolicy.random(context.model, context.horizon, seed).table, None
    if init == "uniform":
        return MarkovPolicy.uniform(context.model, context.horizon).table, None
    raise InputError(
        f"no start is called {init!r}; choose wsu, mvp, random, uniform or give a MarkovPolicy"
    )


def padded(policy: MarkovPolicy, model: MMDP) -> Table:
    """The policy's table over all of the model's actions."""
    missing = model.n_actions - policy.n_actions
    if policy.deterministic or missing == 0:
        return policy.table
    return np.pad(policy.table, ((0, 0), (0, 0), (0, missing)))


class Start(NamedTuple):
    """A start of a local search: its name and its table, None for WSU's policy."""

    name: str
    table: Table | None


def starts_in_order(context: Context, init: str | MarkovPolicy, count: int) -> Iterator[Start]:
    """``count`` starts: ``init``, WSU, MVP, then by turns a model's optimum and a random policy.

    Models are drawn by weight, each once; when all have been, random policies remain. A start
    is computed when it is asked for.
    """
    kinds = [init, *(kind for kind in ("wsu", "mvp") if kind != init)][:count]
    if count == 1 and init == "wsu":
        yield Start("wsu", None)
        return
    seeds = np.random.SeedSequence(context.seed).generate_state(count)
    for kind, seed in zip(kinds, seeds, strict=False):
        name = kind if isinstance(kind, str) else "given"
        table = None if kind == "wsu" else start_policy(context, kind, int(seed))[0]
        yield Start(name, table)
    optima = _optima(context, count - len(kinds))
    for nth, seed in enumerate(seeds[len(kinds) :]):
        found = next(optima, None) if nth % 2 == 0 else None
        random = MarkovPolicy.random(context.model, context.horizon, int(seed))
        yield found or Start("random", random.table)


def _optima(context: Context, most: int) -> Iterator[Start]:
    """The optimal policies of single models, drawn by weight, each once."""
    rng = np.random.default_rng(context.seed)
    x = context.problem
    possible = int(np.count_nonzero(x.weights))
    share = x.weights / x.weights.sum()
    chosen = rng.choice(x.n_models, min(possible, -(-most // 2)), replace=False, p=share)
    for first in range(0, len(chosen), 8):  # their policies are T * S numbers a model
        some = chosen[first : first + 8]
        part = context.model.subset(some).problem
        own = context.kernel.backward(part, context.horizon, "own", keep_actions=True).actions
        assert own is not None
        for i, m in enumerate(some):
            yield Start(f"model {context.model.model_labels[m]}", own[:, :, i].copy())
