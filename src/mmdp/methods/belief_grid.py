"""A policy over state and belief for two to four models, on a grid over the simplex.

The value V_t(s, beta) is convex in the belief beta. Backwards in time, at every point of a grid:

- from above, by U_t(s, beta) = max_a beta r + gamma sum_s' |beta'| U_{t+1}(s', beta' / |beta'|)
  with beta'_m = beta_m p_m(s' | s, a). Between points U is linear on the simplices of Freudenthal's
  triangulation (Lovejoy 1991), which lies above a convex function.
- from below, by plans: a plan is what to do now and which plan follows each step. Its vector
  alpha_m is its return in model m, so max alpha beta over the plans can be reached. The best plan
  at each point is made of those of the points at t + 1.

Without a last decision both go on until little changes. U begins with what is best if the model
becomes known, so it falls, and is above at any time. The plans of one round follow each other:
a controller, whose returns are those of the models over states and plans (:func:`_followed`).
Rounds can go in circles and their controllers differ; the best of the last few is kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.arguments import NonNegativeInt, Vector, checked
from mmdp.bounds.closed import first_bound, rounding
from mmdp.draw.maps import PolicyMap
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.controller import MOST_NODES, Controller, bytes_of
from mmdp.kernels.endless import Endless, decisions
from mmdp.kernels.planner import NODES, PlannerTables
from mmdp.kernels.problem import TIE, Problem, Stored, at, row_entries
from mmdp.methods.base import Context, Method, Outcome, Question
from mmdp.methods.belief import BeliefPlanner, Memory
from mmdp.model import MMDP
from mmdp.policy import Belief, MemoryPolicy, PolicyKind
from mmdp.policy.base import labels_of
from mmdp.search.context import early
from mmdp.search.rules import Rules
from mmdp.solution import PROVEN, Status
from mmdp.validate import check_whole, ids_of, read_distribution
from mmdp.words import Times

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_MODELS = 4
INSIDE = 1e-6  # plans are chosen this far inside the simplex, so that they allow for every model
REST = 1e-6  # weight of the decisions that an infinite horizon may leave out
ROUNDS = 4  # of an infinite horizon whose controllers are evaluated
COLUMNS = 101  # beliefs across a map
COARSER = 4  # times fewer points of the grid before, with a time limit


class BeliefGridPolicy(BeliefPlanner):
    """A plan for every time, state and belief on a grid; ``solve`` with BeliefGrid finds it.

    It keeps the exact belief, and follows the plan that was best at the start; its returns are
    exact, on any models. :meth:`act_at` and the map choose anew among the plans at any belief,
    which may be another action between the points of the grid.
    """

    __slots__ = ("alphas",)

    exact = True
    alphas: Array  # (T or 1, S, N, M) return of every plan in each model

    def __init__(
        self, model: MMDP, horizon: float, alphas: Array, controller: Controller, kernel: Kernel
    ) -> None:
        tables = PlannerTables(NODES, model.problem, controller=controller)
        self._set(
            name=BeliefGrid.name, model=model, horizon=horizon, tables=tables, baseline=None,
            kernel=kernel, alphas=alphas,
        )  # fmt: skip
        self._set_labels(model.n_states, **labels_of(model))

    @property
    def controller(self) -> Controller:
        assert self.tables.controller is not None
        return self.tables.controller

    @property
    def parts(self) -> dict[str, Any]:
        known = {"horizon": self.horizon, "models": self.model.fingerprint()}
        return {**self.controller._asdict(), **known}

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """Everything it does as one flat array: actions, moves and first plans."""
        return self._nodes.table

    @property
    def _nodes(self) -> MemoryPolicy:
        """Its plans as nodes, without what they are worth."""
        return MemoryPolicy.for_model(self.model, self.controller)

    def stored(self) -> dict[str, Any]:
        known = {"models": self.model.fingerprint(), "alphas": self.alphas.tolist()}
        return {**self._nodes.stored(), **known}

    def to_frame(self) -> pd.DataFrame:
        raise InputError(
            f"{self!r} has no table of actions: it {self.memory}", ["write it as .json"]
        )

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        if self.horizon < math.inf:
            plan = kernel.plan(model.problem, int(self.horizon))
            return plan.node_values(self.controller).returns
        return _returns(Endless.of(model.problem).problem, self.controller)

    # ------------------------------------------------------------ who follows it
    def start(self, seed: int | None = 0) -> Memory:
        return replace(super().start(seed), sampled=-1)

    def act(self, memory: Memory, time: int, state: int) -> int:
        return int(at(self.controller.actions, time)[state, self._node(memory, state)])

    def update(
        self, memory: Memory, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> Memory:  # fmt: skip
        after = super().update(memory, time, state, action, next_state, reward)
        node = at(self.controller.moves, time)[state, self._node(memory, state), next_state]
        return replace(after, sampled=int(node))

    def _node(self, memory: Memory, state: int) -> int:
        return int(self.controller.first[state]) if memory.sampled < 0 else memory.sampled

    # ------------------------------------------------------------ who reads it
    @checked
    def act_at(self, time: int, state: int | str, weights: Vector) -> str:
        """The label of the best action at weights (M,) of the models.

        >>> import mmdp
        >>> policy = mmdp.solve(mmdp.domains.two_models().train, 9, "grid").policy
        >>> [policy.act_at(0, "1", [w, 1 - w]) for w in (0.1, 0.9)]
        ['2', '1']
        """
        s = ids_of([state], self.state_names, "the state")[0]
        if not 0 <= time < self.horizon:
            raise InputError(f"time {time} is outside 0..{self.horizon - 1:g}")
        b = read_distribution(weights, "weights", self.model.names("model"))
        return self.action_names[int(self._at(time, s, b))]

    def _at(self, time: int, state: int, weights: Array) -> Any:
        """(...) the best action at weights (..., M)."""
        best = (weights @ at(self.alphas, time)[state].T).argmax(axis=-1)
        return at(self.controller.actions, time)[state, best]

    @checked
    def map(self, time: NonNegativeInt = 0) -> PolicyMap:
        """What is best now by state (down) and weight of a model (across).

        With two models it is the weight of the second. With more there is a row for each state and
        model, the others keeping their shares of the rest.
        """
        names, prior = self.model.model_labels, self.model.weights
        shares, count = np.linspace(0.0, 1.0, COLUMNS)[:, None], len(names)
        rows, columns = [], []
        for s in np.flatnonzero(self.model.deciding):
            for m in range(count) if count > 2 else [count - 1]:
                rest = np.where(np.arange(count) == m, 0.0, np.maximum(prior, TIE))
                weights = shares * np.eye(count)[m] + (1 - shares) * rest / rest.sum()
                rows.append(self.state_names[s] + f", model {names[m]}" * (count > 2))
                columns.append(self._at(time, int(s), weights))
        across = f"weight of {names[-1]}" if count == 2 else "weight of the model"
        return PolicyMap(np.array(columns).T, rows, self.action_names, Times(across), (0.0, 1.0))

    def text(self) -> str:
        """What is best now, by the weight of a model."""
        found = self.map()
        rest = ", the others keeping their shares of the rest" * (self.model.n_models > 2)
        lines = [f"what to do now, by the {found.times.name}{rest}:"]
        for s, row in enumerate(found.rows):
            *first, (_, _, last) = found.runs(s)
            runs = [f"{found.names[a]} to {j / (COLUMNS - 1):g}" for _, j, a in first]
            lines.append(f"  {row}: {', '.join([*runs, found.names[last]])}")
        begins = np.flatnonzero(self.tables.problem.initial.any(axis=1))
        if len(begins) == 1:
            action = self.action_names[self.act(self.start(), 0, int(begins[0]))]
            lines.insert(0, f"in {self.state_names[begins[0]]}, where it starts: {action}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.map().html()


@checked
@dataclass(frozen=True)
class BeliefGrid(Method):
    """A good policy by state and belief of two to four models, and a bound on every policy.

    Plans are computed at the points of a grid over the beliefs. The value of the policy is exact,
    and the bound holds for every policy, also with memory. A finer grid brings them closer; on
    hard problems they stay some percent apart, and :class:`mmdp.QMDP` or :class:`mmdp.Rollout` may
    find a better policy: compare. The policy has a map: actions by state and belief. With a time
    limit it plans on coarser grids first, and the best policy so far may be one of theirs, or one
    without memory.

    Parameters
    ----------
    points
        The most points of the grid over the simplex; at most 254.

    >>> import mmdp
    >>> solution = mmdp.solve(mmdp.domains.two_models().train, 9, mmdp.BeliefGrid(points=11))
    >>> solution.value, solution.status.name
    (11.5, 'OPTIMAL')
    """

    points: int = 101

    name: ClassVar[str] = "grid"
    title: ClassVar[str] = "plans on a grid of beliefs for 2 to 4 models"
    finds: ClassVar[PolicyKind | None] = Belief()
    proves: ClassVar[Status | None] = Status.OPTIMAL
    complete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self.points, "points")
        if not MOST_MODELS <= self.points < MOST_NODES:
            raise InputError(
                f"points must be {MOST_MODELS} to {MOST_NODES - 1}, not {self.points:,}"
            )

    def lacks(self, question: Question) -> str | None:
        if not question.kind.learns:
            return f"it finds policies that keep a belief, not {question.kind.name} ones"
        if not 2 <= (count := question.model.n_models) <= MOST_MODELS:
            return f"its grid is for two to four models, not {count:,}"
        return question.not_mean() or question.not_whole()

    def bytes_held(self, question: Question) -> int:
        steps = 1 if question.endless else question.steps
        return bytes_of(question.model.problem, steps, self.points)

    def run(self, context: Context) -> Outcome:
        endless = context.kind.endless
        horizon = math.inf if endless else context.horizon
        (alphas, controller), bound = _first_plan(context)
        best, count = self._policy(context, alphas, controller), 1
        error = context.rounding(best[1]) if endless else rounding(context.problem, horizon)
        context.keep(best[0], context.mean(best[1]))
        with context.ending() as end:
            for points in self._sizes(context):
                found = _Recursion(context.problem, context.horizon, points, context.check_time)
                plans = found.for_ever(context) if endless else found.plans()
                policy, returns = self._policy(context, *plans)
                if context.mean(returns) >= context.mean(best[1]) - error:
                    best, count = (policy, returns), len(found.grid.points)
                bound = min(bound, found.bound)
        value = context.mean(best[1])
        bound = max(bound + error, value)
        closed = bound - value <= PROVEN * abs(value) + 2 * error
        stopped = Status.COMPLETED if end.stop is None else early(end)
        details = {"bound": bound, "bounds": "history", "points": count}
        return Outcome(
            best[0], Status.OPTIMAL if closed else stopped, 1, returns=best[1], details=details
        )

    def _sizes(self, context: Context) -> list[int]:
        """The points of the grids to plan on; with a time limit, coarser ones first."""
        sizes = [self.points]
        while context.time.left < math.inf and sizes[0] // COARSER >= MOST_MODELS:
            sizes.insert(0, sizes[0] // COARSER)
        return sizes

    def _policy(
        self, context: Context, alphas: Array, controller: Controller
    ) -> tuple[BeliefGridPolicy, Array]:
        """The policy that follows these plans, and its returns (M,)."""
        horizon = math.inf if context.kind.endless else context.horizon
        policy = BeliefGridPolicy(context.model, horizon, alphas, controller, context.kernel)
        return policy, policy.returns(context.model, context.kernel)


def _first_plan(context: Context) -> tuple[tuple[Array, Controller], float]:
    """One plan that forgets what it saw, as a controller with its vector; a bound."""
    x = context.problem
    if context.kind.endless:
        own, row = context.model_optima, Rules(context).start("wsu", 0)
        alphas = context.endless.values(row).T[None, :, None]
        plans = alphas, Controller.of_tables(row[None])
        return plans, context.mean(x.returns(own.values.T) + own.above)
    table = context.wsu()[0]
    values = context.plan.backward("given", policy=table, keep=("values",)).values
    return (values[:-1, :, None], Controller.of_tables(table)), first_bound(context.plan)[1]


# ---------------------------------------------------------------------- the grid
class Simplex(NamedTuple):
    """Points with coordinates in multiples of 1 / n, and where the corners of a cell are.

    x_i = n sum_{k >= i} beta_k, for i > 0, makes the grid one of whole numbers n >= x_1 >= x_2 ...

    >>> grid = Simplex.of(3, 6)
    >>> grid.n, grid.points[[0, -1]].tolist()
    (2, [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> corners, shares = grid.around(np.array([0.25, 0.5, 0.25]))
    >>> (shares @ grid.points[corners]).tolist()
    [0.25, 0.5, 0.25]
    """

    n: int
    points: Array  # (N, M)
    place: Ints  # (n + 1, ...) number of the point at x

    @classmethod
    def of(cls, n_models: int, most: int) -> Simplex:
        """The finest grid with at most ``most`` points."""
        n = max(n for n in range(1, most) if comb(n + n_models - 1, n_models - 1) <= most)
        x = np.indices((n + 1,) * (n_models - 1)).reshape(n_models - 1, -1).T
        x = x[(np.diff(x, axis=1) <= 0).all(axis=1)]
        place = np.zeros((n + 1,) * (n_models - 1), np.int64)
        place[tuple(x.T)] = np.arange(len(x))
        ends = np.concatenate([np.full((len(x), 1), n), x, np.zeros((len(x), 1), int)], axis=1)
        return cls(n, -np.diff(ends, axis=1) / n, place)

    def around(self, beliefs: Array) -> tuple[Ints, Array]:
        """(..., M) points whose cell holds each belief (..., M), and their shares."""
        x = np.minimum(self.n * np.cumsum(beliefs[..., :0:-1], axis=-1)[..., ::-1], self.n)
        low = np.floor(x)
        order = np.argsort(low - x, axis=-1, kind="stable")  # the largest fraction first
        part = np.take_along_axis(x - low, order, axis=-1)
        one, zero = np.ones_like(part[..., :1]), np.zeros_like(part[..., :1])
        shares = -np.diff(np.concatenate([one, part, zero], axis=-1), axis=-1)
        steps = np.cumsum(np.eye(x.shape[-1])[order], axis=-2)
        corners = np.concatenate([low[..., None, :], low[..., None, :] + steps], axis=-2)
        inside = np.minimum(corners, self.n).astype(np.int64)  # those outside have no share
        return self.place[tuple(np.moveaxis(inside, -1, 0))], shares


class _Steps(NamedTuple):
    """Where the beliefs at a state go: e entries of the pattern, N points."""

    action: Ints  # (e,)
    after: npt.NDArray[np.int32]  # (e,) the next state
    p: Array  # (e, 1, M)
    seen: Array  # (e, N, M) beta p at the points for plans, not scaled
    corners: Ints  # (e, N, M)
    shares: Array  # (e, N, M) times |beta'|


class _Recursion:
    """Both recursions. The last point is the belief at the start, which may differ by state."""

    def __init__(
        self, x: Problem, horizon: int, points: int, check_time: Callable[[], None]
    ) -> None:
        self.x, self.horizon, self.grid = x, horizon, Simplex.of(x.n_models, points)
        self.check_time = check_time
        self.table = x.storage.table()
        root = x.seen_first(x.weights / x.weights.sum(), np.arange(x.n_states))[:, None]
        same = np.broadcast_to(self.grid.points, (x.n_states, *self.grid.points.shape))
        self.beliefs = np.concatenate([same, root], axis=1)  # (S, N, M)
        self.inside = (1 - INSIDE) * self.beliefs + INSIDE * np.maximum(root, INSIDE)
        self.bound = 0.0

    def plans(self) -> tuple[Array, Controller]:
        """(T, S, N, M) the vectors, and their plans as a controller; ``bound`` is then known."""
        x, (S, N, M) = self.x, self.beliefs.shape
        alphas = np.empty((self.horizon, S, N, M))
        actions = np.empty((self.horizon, S, N), np.int32)
        moves = np.empty((self.horizon, S, N, S), np.uint8)
        alpha = np.repeat(x.terminal[:, None], N, axis=1)
        upper = np.einsum("snm,sm->sn", self.beliefs, x.terminal)
        for t in reversed(range(self.horizon)):
            if t == self.horizon - 1 or len(self.table.p) > 1:
                steps = [self._steps(at(self.table.p, t), s) for s in range(S)]
            alpha, actions[t], moves[t], upper = self._back(t, steps, alpha, upper)
            alphas[t] = alpha
        self.bound = float(x.start().sum(axis=1) @ upper[:, -1])
        return alphas, Controller(actions, moves, np.full(S, N - 1, np.uint8))

    def for_ever(self, context: Context) -> tuple[Array, Controller]:
        """(1, S, N, M) and the controller if there is no last decision."""
        x, (S, N, _), endless = self.x, self.beliefs.shape, context.endless
        own = context.model_optima
        steps = [self._steps(self.table.p[0], s) for s in range(S)]
        upper = np.einsum("snm,ms->sn", self.beliefs, own.values + own.above[:, None])
        alpha = np.repeat(endless.values(own.actions[0]).T[:, None], N, axis=1)
        first, found = np.full(S, N - 1, np.uint8), deque[tuple[Array, Controller]](maxlen=ROUNDS)
        for _ in range(decisions(x, REST)[0]):
            before = alpha, upper
            alpha, actions, moves, upper = self._back(0, steps, alpha, upper)
            plans = Controller(actions[None], moves[None].astype(np.uint8), first)
            found.append((alpha[None], plans))
            changes = np.abs(alpha - before[0]).max(), np.abs(upper - before[1]).max()
            if max(changes) * endless.lasts <= REST * PROVEN * np.abs(upper).max():
                found = deque([found[-1]])
                break
        self.bound = float(x.start().sum(axis=1) @ upper[:, -1])
        returns = partial(_returns, x, check_time=self.check_time)
        return max(reversed(found), key=lambda each: float(x.weights @ returns(each[1])))

    def _back(self, t: int, steps: list[_Steps], alpha: Array, upper: Array) -> Any:
        """alpha, actions, moves and upper (S, N, ...) at t, from alpha and upper at t + 1."""
        ahead, r, closed = self.x.ahead(alpha), at(self.x.r, t), ~at(self.x.allowed, t)
        here = [(s, step, r[s], closed[s]) for s, step in enumerate(steps)]
        below = zip(*(self._from_below(*x, ahead) for x in here), strict=True)
        return *map(np.array, below), np.array([self._from_above(*x, upper) for x in here])

    def _steps(self, p: Array, s: int) -> _Steps:
        self.check_time()
        x, A = self.x, self.x.n_actions
        ends = self.table.indptr[s * A : (s + 1) * A + 1]
        row = slice(ends[0], ends[-1])
        after = x.moved(self.beliefs[s] * p[row, None])
        mass = after.sum(axis=2, keepdims=True)
        corners, shares = self.grid.around(after / np.where(mass > 0, mass, 1.0))
        return _Steps(
            np.repeat(np.arange(A), np.diff(ends)), self.table.indices[row], p[row, None],
            self.inside[s] * p[row, None], corners, shares * mass,
        )  # fmt: skip

    def _from_above(
        self, s: int, step: _Steps, r: Array, closed: npt.NDArray[np.bool_], upper: Array
    ) -> Array:
        """(N,) U_t(s, .) from U_{t+1} (S, N)."""
        self.check_time()
        q = r @ self.beliefs[s].T
        later = upper[step.after[:, None, None], step.corners]
        np.add.at(q, step.action, self.x.discount * (step.shares * later).sum(axis=2))
        q[closed] = -np.inf
        best: Array = q.max(axis=0)
        return best

    def _from_below(
        self, s: int, step: _Steps, r: Array, closed: npt.NDArray[np.bool_], ahead: Array
    ) -> tuple[Array, Ints, Ints]:
        """(N, M) alpha_t(s, .), (N,) actions and (N, S) next plans, from alpha_{t+1} (S, N, M)."""
        self.check_time()
        x, N = self.x, len(self.beliefs[s])
        plan = (step.seen @ np.swapaxes(ahead[step.after], 1, 2)).argmax(axis=2)  # (e, N)
        q = np.repeat(r[:, None], N, axis=1)  # (A, N, M)
        np.add.at(q, step.action, x.discount * step.p * ahead[step.after[:, None], plan])
        values = np.einsum("anm,nm->na", q, self.inside[s])
        values[:, closed] = -np.inf
        best, points = _lowest_best(values), np.arange(N)
        follows = np.broadcast_to(points[:, None], (x.n_actions, N, x.n_states)).copy()
        follows[step.action, :, step.after] = plan
        return q[best, points], best, follows[best, points]


def _returns(
    x: Problem, controller: Controller, check_time: Callable[[], object] = lambda: None
) -> Array:
    """(M,) returns over an infinite horizon."""
    found = Endless.of(_followed(x, controller), check_time)
    return found.returns(np.zeros(found.problem.n_states, np.int32))


def _followed(x: Problem, controller: Controller) -> Problem:
    """The problem over (state, node) in which the controller acts: a single action, no end."""
    (_, S, N), table = controller.actions.shape, x.storage.table()
    s, n = np.divmod(np.arange(S * N), N)
    a = controller.actions[0].ravel()
    k, now = row_entries(table.indptr, s * x.n_actions + a)
    after, ends = table.indices[k].astype(np.int64), np.searchsorted(now, np.arange(S * N + 1))
    to = after * N + controller.moves[0][s[now], n[now], after]
    start = np.zeros((S * N, x.initial.shape[1]))
    start[np.arange(S) * N + controller.first] = x.initial
    return x._replace(
        storage=Stored(ends, to.astype(np.int32), np.ascontiguousarray(table.p[:, k]), dense=False),
        r=x.r[0][s, a][None, :, None], allowed=np.ones((1, S * N, 1), dtype=bool), initial=start,
        terminal=np.zeros((S * N, x.terminal.shape[1])),
    )  # fmt: skip


def _lowest_best(values: Array) -> Ints:
    """(...) the first of (..., n) that is as large as any, but for rounding."""
    best, size = values.max(axis=-1), np.abs(np.where(np.isinf(values), 0.0, values)).max(axis=-1)
    first: Ints = (values >= (best - TIE * size)[..., None]).argmax(axis=-1)
    return first
