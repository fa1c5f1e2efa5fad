"""Policies with a few nodes of memory, which people can carry out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp import kernels
from mmdp.arguments import NonNegativeInt, PositiveInt, checked
from mmdp.draw.flowchart import FlowChart
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.controller import MOST_NODES, Controller, bytes_of
from mmdp.kernels.planner import NODES, PlannerTables
from mmdp.policy.base import Policy, labels_of
from mmdp.policy.flowchart import chart_of
from mmdp.policy.kinds import PolicyKind
from mmdp.policy.markov import MarkovPolicy, labelled
from mmdp.support import check_memory, refuse_masked
from mmdp.validate import check_whole
from mmdp.words import counted, readable_bytes

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
Nodes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

STAYS = "stay"  # every step leads back to the node itself, in a table


@checked
@dataclass(frozen=True)
class Memory(PolicyKind):
    """Policies with a few nodes of memory: a flow chart.

    The action depends on the time, the state and the node. Each step leads to a next node, by
    what was seen. So a policy can learn which models are plausible and still be printed.

    Parameters
    ----------
    nodes
        The most nodes that a policy may have. With 1 it has no memory.

    >>> import mmdp
    >>> train, _ = mmdp.domains.two_models()
    >>> [mmdp.solve(train, 9, policy=mmdp.Memory(nodes=n)).value for n in (1, 2)]
    [10.0, 11.5]
    """

    nodes: PositiveInt = 3

    name: ClassVar[str] = "memory"
    title = "the time, the state and a few nodes of memory"
    change = "change of the action and moves in a single state, node and time"
    single_change = "change of a single action, move or first node"
    ends: ClassVar[str] = "their nodes move by tables of time, which have a last row"
    starts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_whole(self.nodes, "nodes")

    def passes(self, of_tables: float) -> float:
        return of_tables if self.nodes == 1 else of_tables + 120.0 * self.nodes**2

    def check(self, model: MMDP, horizon: int) -> None:
        size = bytes_of(model.problem, horizon, self.nodes)
        if self.nodes > MOST_NODES:
            raise InputError(
                f"a policy has at most {MOST_NODES} nodes, not {self.nodes:,}, which would take "
                f"{readable_bytes(size)} here; 2 to 6 are usual"
            )
        check_memory(size, f"{self.nodes:,} nodes over {horizon:,} decisions", ["take fewer nodes"])

    def policy_of(self, model: MMDP, table: Any) -> MemoryPolicy:
        """The policy of a controller, or of a table (T, S) of actions: a single node."""
        alone = isinstance(table, np.ndarray)
        return MemoryPolicy.for_model(model, Controller.of_tables(table) if alone else table)


class MemoryPolicy(Policy):
    """An action for every time, state and node, and the node that follows each step; frozen.

    Its memory (see ``start``, ``act``, ``update``) is the number of the node.
    :func:`mmdp.evaluate` gives its exact return on any models.

    Parameters
    ----------
    actions
        ``(T, S, N)`` action ids.
    moves
        ``(T, S, N, S')`` the node after the step to s'.
    first
        ``(S,)`` the node that an episode begins in, by its state; 0 by default.
    n_actions, state_labels, action_labels, times
        As for :class:`mmdp.MarkovPolicy`.

    In one state, try action 0 once; the node says that it was tried.

    >>> from mmdp import MemoryPolicy
    >>> policy = MemoryPolicy([[[0, 1]]] * 3, [[[[1], [1]]]] * 3)
    >>> policy
    MemoryPolicy(3 time steps, 1 state, 2 actions, 2 nodes)
    >>> node = policy.start()
    >>> node = policy.update(node, 0, state=0, action=policy.act(node, 0, 0), next_state=0)
    >>> node, policy.act(node, 1, 0)
    (1, 1)
    """

    __slots__ = ("_chart", "_source", "controller")

    controller: Controller
    _source: MMDP | None
    _chart: FlowChart | None

    @checked
    def __init__(
        self,
        actions: npt.ArrayLike,
        moves: npt.ArrayLike,
        first: npt.ArrayLike | None = None,
        *,
        n_actions: PositiveInt | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
        times: Any = None,
    ) -> None:
        controller = _read(actions, moves, first)
        table = MarkovPolicy(  # the checks of a table: every node is one
            controller.actions.reshape(len(controller.actions), -1), n_actions=n_actions,
            action_labels=action_labels,
        )  # fmt: skip
        labels = {"state_labels": state_labels, "action_labels": action_labels, "times": times}
        self._put(controller, n_actions=table.n_actions, **labels)

    def _put(self, controller: Controller, source: MMDP | None = None, **labels: Any) -> None:
        for part in controller:
            part.setflags(write=False)
        self._set(controller=controller, _source=source, _chart=None)
        self._set_labels(self.actions.shape[1], **labels)

    @classmethod
    @checked
    def for_model(cls, model: MMDP, controller: Controller) -> MemoryPolicy:
        """The policy of a controller with the labels of ``model``, to be charted for it."""
        policy = cls.__new__(cls)
        policy._put(controller.copy(), model, **labels_of(model))
        return policy

    # ------------------------------------------------------------ what it is
    @property
    def kind(self) -> Memory:
        return Memory(self.n_nodes)

    @property
    def actions(self) -> IntArray:
        """(T, S, N) action ids."""
        return self.controller.actions

    @property
    def moves(self) -> Nodes:
        """(T, S, N, S') the next node."""
        return self.controller.moves

    @property
    def first(self) -> Nodes:
        """(S,) the first node."""
        return self.controller.first

    @property
    def horizon(self) -> int:
        return self.actions.shape[0]

    @property
    def n_nodes(self) -> int:
        return self.actions.shape[2]

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """Everything it does as one flat array: actions, moves and first nodes."""
        return np.concatenate([part.reshape(-1).astype(np.int32) for part in self.controller])

    @property
    def parts(self) -> dict[str, Any]:
        return self.controller._asdict()

    @property
    def memory(self) -> str:
        return f"has {counted(self.n_nodes, 'node')} of memory"

    @checked
    def node(self, n: NonNegativeInt) -> MarkovPolicy:
        """What it does as long as it is in node ``n``."""
        return MarkovPolicy(self.actions[:, :, n], **self.labels)

    def _check_actions(self, model: MMDP) -> None:
        for n in range(self.n_nodes):
            self.node(n)._check_actions(model)

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model; :func:`mmdp.evaluate` has more."""
        return kernel.plan(model.problem, self.horizon).node_values(self.controller).returns

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables:
        return PlannerTables(NODES, model.problem, controller=self.controller)

    # ------------------------------------------------------------ who follows it
    def act(self, memory: int | None, time: int, state: int) -> int:
        """The action in this state and node."""
        return int(self.actions[time, state, self._node(memory, state)])

    def update(
        self, memory: int | None, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> int:  # fmt: skip
        """The node after seeing where the action led."""
        return int(self.moves[time, state, self._node(memory, state), next_state])

    def _node(self, memory: int | None, state: int) -> int:
        return int(self.first[state]) if memory is None else memory

    # ------------------------------------------------------------ who reads it
    @checked
    def weights(self, model: MMDP, *, backend: str | Kernel = "auto") -> Array:
        """(T, S, N, M) b_{t,m}(s, n) = P[model m, state s, node n at t]."""
        self.check(model)
        kernel = kernels.get(backend, model.problem, self.horizon, passes=self.n_nodes)
        return kernel.plan(model.problem, self.horizon).node_weights(self.controller)[1]

    @checked
    def beliefs(self, model: MMDP) -> Array:
        """(N, M) posterior of the models if all that is known is the node; 0 if never entered.

        >>> import mmdp
        >>> train, _ = mmdp.domains.two_models()
        >>> policy = mmdp.solve(train, 9, policy=mmdp.Memory(nodes=2)).policy
        >>> policy.beliefs(train).round(2).tolist()
        [[0.9, 0.1], [0.0, 1.0]]
        """
        seen: Array = self.weights(model).sum(axis=(0, 1))
        total = seen.sum(axis=1, keepdims=True)
        return np.divide(seen, total, out=np.zeros_like(seen), where=total > 0)

    @checked
    def merged(self, model: MMDP) -> MemoryPolicy:
        """The same behaviour on ``model`` with fewer nodes: those that act alike become one.

        Two nodes act alike if they take the same action and then move alike in every state
        and time that some model reaches in both. Nodes that are never entered are left out.
        """
        used = np.asarray(self.weights(model).any(axis=3))
        x, rows = model.problem, model.problem.rows()
        possible = np.zeros((self.n_states * x.n_actions, self.n_states), dtype=bool)
        possible[rows, x.indices] = x.p.any(axis=(0, 2))
        shape = self.n_states, x.n_actions, self.n_states
        controller = _without_twins(self.controller, used, possible.reshape(shape))
        return self if controller is None else MemoryPolicy.for_model(model, controller)

    @checked
    def flow_chart(self, model: MMDP | None = None) -> FlowChart:
        """The policy as a chart: a box for every node, an arrow for every way between them.

        ``model``: where it is followed, by default the models it was computed for. The chart
        has ``svg()``, ``dot()`` for Graphviz and, as text, ``words``. Notebooks show it.

        >>> import mmdp
        >>> train, _ = mmdp.domains.two_models()
        >>> policy = mmdp.solve(train, 9, policy=mmdp.Memory(nodes=2)).policy
        >>> print(policy.flow_chart().words)  # doctest: +ELLIPSIS
        Node 0 (start)...
        """
        if model is not None:
            self.check(model)
            return chart_of(model, self.controller, self.weights(model))
        if self._chart is None:
            if self._source is None:
                raise InputError("a flow chart needs the models; pass flow_chart(model)")
            self._set(_chart=self.flow_chart(self._source))
        assert self._chart is not None
        return self._chart

    def text(self) -> str:
        """The flow chart in words."""
        return self.flow_chart().words

    def to_frame(self) -> pd.DataFrame:
        """One row per time, state and node: ``time, state, node, action, moves, start``.

        ``moves`` says which next states (by id) lead to another node: ``0-4>1 7>2``. All others
        stay. ``start``: whether an episode that begins in this state begins in this node.

        >>> policy = MemoryPolicy([[[0, 1]]] * 2, [[[[1], [1]]]] * 2)
        >>> print(policy.to_frame().to_string(index=False))
         time  state  node  action moves start
            0      0     0       0   0>1   yes
            0      0     1       1  stay    no
            1      0     0       0   0>1    no
            1      0     1       1  stay    no
        """
        import pandas as pd

        t, s, n = np.indices(self.actions.shape).reshape(3, -1)
        a = self.actions.reshape(-1).astype(np.int64)
        columns: dict[str, Any] = {
            "time": t, "state": s, "node": n, "action": a, "moves": self.moves_text(),
            "start": np.where((t == 0) & (self.first[s] == n), "yes", "no"),
        }  # fmt: skip
        named = labelled(columns, state=self.state_labels, action=self.action_labels)
        return pd.DataFrame(self.times.beside(named))

    def moves_text(self) -> list[str]:
        """The moves of every (t, s, n) in words, as in :meth:`to_frame`."""
        rows = self.moves.reshape(-1, self.n_nodes, self.n_states)
        known: dict[tuple[int, bytes], str] = {}
        return [
            known.get(key) or known.setdefault(key, moves_in_words(row, n))
            for block in rows
            for n, row in enumerate(block)
            for key in [(n, row.tobytes())]
        ]

    def stored(self) -> dict[str, Any]:
        moves = np.array(self.moves_text(), dtype=object).reshape(self.actions.shape)
        return {
            "nodes": self.actions.tolist(), "moves": moves.tolist(), "first": self.first.tolist(),
        }  # fmt: skip

    def drawn(self) -> tuple[IntArray, list[str]]:
        """A row for each state and node."""
        rows = [f"{s}, node {n}" for s in self.state_names for n in range(self.n_nodes)]
        return self.actions.reshape(self.horizon, -1), rows

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the chart in place of the models it is drawn from."""
        if self._source is not None:
            self.flow_chart()
        return {**super().__getstate__(), "_source": None}

    @property
    def _trait(self) -> str:
        return counted(self.n_nodes, "node")


# ---------------------------------------------------------------------- moves as text
def moves_in_words(row: npt.NDArray[np.integer[Any]], n: int) -> str:
    """Next states (S',) that lead from node ``n`` to another.

    >>> moves_in_words(np.array([1, 1, 0, 2]), 0), moves_in_words(np.array([1, 1]), 1)
    ('0-1>1 3>2', 'stay')
    """
    ends = np.flatnonzero(np.diff(row, append=-1))  # the last of each run of equal nodes
    starts = [0, *(ends[:-1] + 1).tolist()]
    runs = [
        f"{lo}>{row[hi]}" if lo == hi else f"{lo}-{hi}>{row[hi]}"
        for lo, hi in zip(starts, ends.tolist(), strict=True)
        if row[hi] != n
    ]
    return " ".join(runs) or STAYS


_RUN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?>(\d{1,3})")


def moves_from_words(text: str, n: int, n_states: int) -> Nodes:
    """(S',) next nodes; raises InputError if they cannot be read.

    >>> moves_from_words("0-1>1 3>2", 0, 5).tolist()
    [1, 1, 0, 2, 0]
    """
    row = np.full(n_states, n, np.uint8)
    for part in text.split() if text != STAYS else ():
        found = _RUN.fullmatch(part)
        if found is None:
            raise InputError(f"moves {text!r} are not as in '0-4>1 7>2' or '{STAYS}'")
        lo, node = int(found[1]), int(found[3])
        hi = int(found[2] or lo)
        if not lo <= hi < n_states or node > MOST_NODES:
            raise InputError(f"move {part!r} is outside the policy's {n_states} states")
        row[lo : hi + 1] = node
    return row


# ---------------------------------------------------------------------- reading and merging
def _read(actions: Any, moves: Any, first: Any) -> Controller:
    """The arrays of a controller, checked."""
    refuse_masked(actions, "actions of the nodes")
    try:
        a, m = np.asarray(actions), np.asarray(moves)
        f = np.zeros(a.shape[1:2], np.int64) if first is None else np.asarray(first)
    except ValueError:
        raise InputError("actions, moves and first must be arrays of whole numbers") from None
    if a.ndim != 3 or a.size == 0:
        raise InputError(f"actions have shape {a.shape}; expected (time steps, states, nodes)")
    S, N = a.shape[1:]
    for name, array, shape in (("moves", m, (*a.shape, S)), ("first", f, (S,))):
        if array.shape != shape:
            raise InputError(f"{name} have shape {array.shape}; expected {shape}")
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= N:
            raise InputError(f"{name} must be nodes from 0 to {N - 1}")
    if N > MOST_NODES:
        raise InputError(f"a policy has at most {MOST_NODES} nodes, not {N}")
    if a.dtype.kind not in "iu" or a.min() < 0 or a.max() > np.iinfo(np.int32).max:
        raise InputError("policy actions must be whole numbers (action ids from 0)")
    return Controller(a.astype(np.int32), m.astype(np.uint8), f.astype(np.uint8))


def _without_twins(
    controller: Controller, used: Mask, possible: Mask
) -> Controller | None:  # fmt: skip
    """Fewer nodes with the same behaviour where they are used; None if none can be spared.

    ``used`` (T, S, N): where a node is entered; ``possible`` (S, A, S'): which steps there are.
    """
    N, alive = controller.n_nodes, np.flatnonzero(used.any(axis=(0, 1)))
    name = np.arange(N)
    for i, j in combinations(alive.tolist(), 2):
        if name[i] != name[j]:
            joined = _joined(controller, used, possible, name, i, j)
            name = name if joined is None else joined
    kept = np.unique(name[alive])
    if len(kept) == N:
        return None
    number = np.zeros(N, np.uint8)  # nodes that are never entered stand for the first
    number[alive] = np.searchsorted(kept, name[alive])
    # the member of each group that is used there
    member = np.stack([(used & (name == n)).argmax(axis=2) for n in kept], axis=2)
    member = np.where(np.take_along_axis(used, member, 2), member, kept)
    t, s = (x[..., None] for x in np.ogrid[: len(used), : used.shape[1]])
    place = t, s, member
    return Controller(
        controller.actions[place], number[controller.moves[place]], number[controller.first]
    )


def _joined(
    controller: Controller, used: Mask, possible: Mask, name: Ints, i: int, j: int
) -> Ints | None:
    """(N,) a name for each node, the same for i and j and for all that this makes equal.

    None if two nodes of one name would have to do different things.
    """
    name = np.where(name == max(name[i], name[j]), min(name[i], name[j]), name)
    while True:
        before = name
        for p, q in combinations(range(len(name)), 2):
            t, s = np.nonzero(used[:, :, p] & used[:, :, q])
            if name[p] != name[q] or not len(t):
                continue
            a = controller.actions[t, s, p]
            if (a != controller.actions[t, s, q]).any():
                return None
            ends = name[controller.moves[t, s, p]], name[controller.moves[t, s, q]]
            for u, v in {*zip(*(x[possible[s, a]].tolist() for x in ends), strict=True)}:
                name = np.where(name == max(name[u], name[v]), min(name[u], name[v]), name)
        if (name == before).all():
            return name
