"""What a method is given and what it gives back.

A method derives from :class:`Method`: a frozen dataclass of options with a ``name``, attributes
that say what it can do, and ``run(context)``. It reads the model and the kernel from the context,
calls ``context.record(policy, value)`` after every improvement, and returns an :class:`Outcome`.
It need not watch the clock: ``record`` raises :class:`Stop` when the time is up, and ``solve``
returns the best policy so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.interrupts import Interrupts
from mmdp.kernels import PASSES, Kernel, Problem
from mmdp.kernels.compiling import clock
from mmdp.kernels.controller import Controller
from mmdp.kernels.endless import Endless
from mmdp.kernels.problem import Stop as Stop
from mmdp.kernels.problem import Table
from mmdp.model import MMDP
from mmdp.objective import Mean, Objective
from mmdp.policy import Markov, PolicyKind
from mmdp.solution import Status, gap

Array = npt.NDArray[np.float64]


class Progress(NamedTuple):
    """What a callback sees after each iteration."""

    method: str
    iteration: int  # counted on from one start to the next
    value: float
    best: float
    seconds: float
    bound: float = math.nan  # the proven upper bound so far, if there is one
    nodes: int = 0  # exact methods: the size of the tree

    @property
    def gap(self) -> float:
        """(bound - best) / |best|; nan without a bound."""
        return math.nan if math.isnan(self.bound) else gap(self.bound, self.best)


Callback = Callable[[Progress], object]


@dataclass(frozen=True)
class Outcome:
    """What a method found: a policy or its table (see ``PolicyKind``), or per-model policies."""

    policy: Any
    status: Status
    iterations: int
    policies: npt.NDArray[np.int32] | None = None
    returns: Array | None = None
    errors: Array | None = None
    trace: list[float] | None = None  # if not everything that was recorded
    episodes: int | None = None  # per model, to simulate a planner
    details: Mapping[str, Any] = field(default_factory=dict)


class Context:
    """The model, the kind of policy, the kernel, the clock and the record of one solve.

    ``problem`` holds the arrays to plan on: those of the model with the actions that the kind
    leaves open.
    """

    def __init__(
        self, model: MMDP, horizon: int, kernel: Kernel, *, method: str = "",
        kind: PolicyKind | None = None, objective: Objective | None = None, seed: int | None = 0,
        time_limit: float | None = None, callback: Callback | None = None,
    ) -> None:  # fmt: skip
        self.model, self.horizon, self.kernel, self.method = model, horizon, kernel, method
        self.kind = Markov() if kind is None else kind
        self.problem: Problem = self.kind.problem(model, horizon)
        self.objective: Objective = objective or Mean()
        self._own: Array | None = None
        self.seed, self.callback = seed, callback
        self.started = time.perf_counter()
        # by a clock that stands still while a kernel compiles
        self.deadline = None if time_limit is None else clock() + time_limit
        self.trace: list[float] = []
        self.best_value = -np.inf
        self.best_policy: Any = None  # a table, or a controller
        self.iterations = 0
        self.details: dict[str, Any] = {}  # what is known should the time be up
        self.interrupts = Interrupts()  # for a part: those held back until all processes agree

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def record(self, policy: Table | Controller, value: float, *, last: bool = False) -> None:
        """Note an iterate and call back; raises Stop if the time is up, unless it is the last."""
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
        """Call back with a proven bound and the nodes of a tree; raises Stop if the time is up."""
        if self.callback is not None:
            value, seconds = self.best_value, self.seconds
            self.callback(
                Progress(self.method, self.iterations, value, value, seconds, bound, nodes)
            )
        self.check_time()

    def check_time(self) -> None:
        """Raise Stop if the time is up; of many processes, if it is up in one of them."""
        late = self.deadline is not None and clock() > self.deadline
        if self.problem.part is not None:
            asked = self.problem.everywhere([late, self.interrupts.seen])
            late = bool(asked[:, 0].any())
            if asked[:, 1].any():
                raise KeyboardInterrupt
        if late:
            raise Stop

    def quiet(
        self, kind: PolicyKind | None = None, *, objective: Objective | None = None,
        weights: Array | None = None,
    ) -> Context:  # fmt: skip
        """The same problem, seed and deadline with a record of its own and no callback.

        For the mean, or another ``objective``, of policies of the same or another ``kind``;
        ``weights`` (M,) are other weights of the models.
        """
        inner = Context(
            self.model, self.horizon, self.kernel, kind=kind or self.kind, objective=objective,
            seed=self.seed,
        )  # fmt: skip
        if weights is not None:
            inner.problem = inner.problem._replace(weights=weights)
        inner.deadline, inner.interrupts = self.deadline, self.interrupts
        return inner

    def free(self) -> Context:
        """The same question without a restriction of the policy, with a record of its own."""
        return self.quiet(Markov(), objective=self.objective)

    # ------------------------------------------------------------ the passes methods share
    def mean(self, returns: Array) -> float:
        """rho from the returns (M,) of the models."""
        return float(returns @ self.problem.weights)

    def worths(self, returns: Array, objective: Objective | None = None) -> Array:
        """(...) the value of the objective for candidates with returns (..., M)."""
        chosen = objective or self.objective
        return chosen.value(chosen.counted(returns, self.own), self.problem.weights)

    def worth(self, returns: Array, objective: Objective | None = None) -> float:
        """The value of the objective from the returns (M,) of the models."""
        return float(self.worths(returns, objective))

    def own(self) -> Array:
        """(M,) return of each model's own optimal policy."""
        if self._own is None:
            x = self.model.problem
            if self.kind.endless:
                self._own = Endless.of(x).own().values @ x.initial
            else:
                self._own = x.returns(self.kernel.backward(x, self.horizon, "own").first)
        return self._own

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
        return self.weighted(self.problem.prior_weights(self.horizon))


class Method:
    """An algorithm: derive a frozen dataclass of its options from this class.

    The class says what it can do. Help, errors and pages read it from there, and
    :func:`mmdp.methods.capabilities` lists it for all methods.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # what it does, in one phrase
    memory: ClassVar[Literal["none", "belief"]] = "none"  # what its policy remembers
    proves: ClassVar[Status | None] = None  # the most that it can prove about its policy
    objectives: ClassVar[tuple[str, ...]] = ("mean",)  # what it can maximise over the models
    policies: ClassVar[tuple[str, ...]] = ("markov",)  # kinds of policy it can find; first: default
    drifts: ClassVar[bool] = False  # whether it can plan for models that change
    resumes: ClassVar[bool] = False  # whether it can go on from a policy that it found before
    complete: ClassVar[bool] = False  # whether it decides also where no model goes
    spreads: ClassVar[bool] = False  # whether it can work on models spread over processes
    least_passes: ClassVar[float] = PASSES  # over the problem; infinite: too many for plain numpy

    def run(self, context: Context) -> Outcome:
        raise NotImplementedError

    def passes(self, problem: Problem, horizon: int) -> float:
        """About how many passes over the problem a solve takes, for ``backend="auto"``."""
        return self.least_passes

    def bytes_held(self, problem: Problem, horizon: int) -> int:
        """Bytes that a solve needs at least: values or weights by time, state and model."""
        return 8 * horizon * problem.n_states * problem.p.shape[2]
