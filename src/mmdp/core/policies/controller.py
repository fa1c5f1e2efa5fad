"""Finite-state controllers: policies with a few nodes of memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mmdp.core import kernels
from mmdp.core.arguments import NonNegativeInt, PositiveInt, check_arguments
from mmdp.core.errors import InputError, check_memory
from mmdp.core.kernels import Backend
from mmdp.core.kernels.controller import MAX_NODES, Controller, estimate_sweep_bytes
from mmdp.core.kernels.planner import NODES, PlannerTables
from mmdp.core.model import MMDP
from mmdp.core.policies.base import (
    NamedValues,
    Policy,
    PolicyClass,
    SearchResult,
    UserData,
    get_label_kwargs,
)
from mmdp.core.policies.markov import MarkovPolicy, read_actions
from mmdp.core.shapes import ActionTable, Array, IndexArray, IntArray, Mask, NodeArray
from mmdp.core.text import format_bytes, pluralize
from mmdp.core.validate import check_index

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.insight.draw.flowchart import FlowChart


STAY_TEXT = "stay"  # every step leads back to the node itself, in a table


@check_arguments
@dataclass(frozen=True)
class Memory(PolicyClass):
    """Finite-state controllers (Hansen 1998): actions by time, state and node of memory.

    The action depends on the time, the state and the node. Each step leads to a next node, by
    what was seen. So a policy can learn which models are plausible and still be printed.

    Parameters
    ----------
    max_nodes
        Search policies with at most that many memory nodes. With 1 a policy has no memory.

    >>> import mmdp
    >>> train, _ = mmdp.domains.two_models()
    >>> [mmdp.solve(train, 9, policy_class=mmdp.policies.Memory(max_nodes=n)).value for n in (1, 2)]
    [10.0, 11.5]
    """

    max_nodes: PositiveInt = 3

    name = "memory"
    decision_inputs = "the time, the state and a few nodes of memory"
    change_text = "change of the action and moves in a single state, node and time"
    single_change_text = "change of a single action, move or first node"
    finite_horizon_reason = "their nodes move by tables of time, which have a last row"
    can_initialize = False

    def estimate_passes(self, markov_passes: float) -> float:
        """Estimate the passes of a solve: they grow with the square of the nodes."""
        return markov_passes if self.max_nodes == 1 else markov_passes + 120.0 * self.max_nodes**2

    def check(self, model: MMDP, horizon: int) -> None:
        """Raise InputError if the controllers are too large for the memory of this machine."""
        size = estimate_sweep_bytes(model.problem, horizon, self.max_nodes)
        if self.max_nodes > MAX_NODES:
            raise InputError(
                f"a policy has at most {MAX_NODES} nodes, not {self.max_nodes:,}, which would take "
                f"{format_bytes(size)} here; 2 to 6 are usual"
            )
        check_memory(
            size, f"{self.max_nodes:,} nodes over {horizon:,} decisions", ["take fewer nodes"]
        )

    def make_policy(self, model: MMDP, table: SearchResult) -> MemoryPolicy:
        """Make the policy of a controller, or of a table (T, S) of actions as a single node."""
        if isinstance(table, np.ndarray):
            table = Controller.from_tables(table)
        return MemoryPolicy.for_model(model, table)


class MemoryPolicy(Policy):
    """Finite-state controller: an action and a next node for every time, state and node; immutable.

    Its memory (see ``initial_memory``, ``act``, ``update``) is the number of the node.
    :func:`mmdp.evaluate` gives its exact return on any models.

    Parameters
    ----------
    actions
        ``(T, S, N)`` action ids.
    node_transitions
        ``(T, S, N, S')`` the node after the step to s'.
    initial_nodes
        ``(S,)`` the node that an episode begins in, by its state; 0 by default.
    n_actions, state_labels, action_labels, time_labels
        As for :class:`mmdp.policies.MarkovPolicy`.

    In one state, try action 0 once; the node says that it was tried.

    >>> from mmdp.core.policies import MemoryPolicy
    >>> policy = MemoryPolicy([[[0, 1]]] * 3, [[[[1], [1]]]] * 3)
    >>> policy
    MemoryPolicy(3 time steps, 1 state, 2 actions, 2 nodes)
    >>> node = policy.initial_memory()
    >>> node = policy.update(node, 0, state=0, action=policy.act(node, 0, 0), next_state=0)
    >>> node, policy.act(node, 1, 0)
    (1, 1)
    """

    controller: Controller
    _source_model: MMDP | None = None  # the model that it was computed for

    @check_arguments
    def __init__(
        self,
        actions: npt.ArrayLike,
        node_transitions: npt.ArrayLike,
        initial_nodes: npt.ArrayLike | None = None,
        *,
        n_actions: PositiveInt | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
        time_labels: UserData = None,
    ) -> None:
        controller = _read_controller(actions, node_transitions, initial_nodes)
        n_actions = max(int(controller.actions.max()) + 1, n_actions or len(action_labels or ()))
        labels: NamedValues = {"state_labels": state_labels, "action_labels": action_labels}
        self._set_controller(controller, n_actions=n_actions, time_labels=time_labels, **labels)

    def _set_controller(self, controller: Controller, **labels: UserData) -> None:
        """Set the controller, which is immutable from now on, and the labels."""
        for array in controller:
            array.setflags(write=False)
        self._set_attributes(controller=controller)
        self._set_labels(self.actions.shape[1], **labels)

    @classmethod
    @check_arguments
    def for_model(cls, model: MMDP, controller: Controller) -> MemoryPolicy:
        """Make the policy of a controller with the labels of the model.

        The arrays of the controller become read-only.
        """
        policy = cls.__new__(cls)
        policy._set_controller(controller, **get_label_kwargs(model))
        policy._set_attributes(_source_model=model)
        return policy

    # ------------------------------------------------------------ what it is
    @property
    def policy_class(self) -> Memory:
        """Policy class of controllers with this number of nodes."""
        return Memory(self.n_nodes)

    @property
    def actions(self) -> ActionTable:
        """Action ids, (T, S, N)."""
        return self.controller.actions

    @property
    def node_transitions(self) -> NodeArray:
        """Next node by time, state, node and next state, (T, S, N, S')."""
        return self.controller.node_transitions

    @property
    def initial_nodes(self) -> NodeArray:
        """Initial node by initial state, (S,)."""
        return self.controller.initial_nodes

    @property
    def horizon(self) -> int:
        """Number of decisions."""
        return self.actions.shape[0]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.actions.shape[2]

    @property
    def defining_values(self) -> NamedValues:
        """Arrays of the controller, by name."""
        return self.controller._asdict()

    @property
    def memory_note(self) -> str:
        """Clause on the number of nodes, for messages."""
        return f"has {pluralize(self.n_nodes, 'node')} of memory"

    @check_arguments
    def node_policy(self, node: NonNegativeInt) -> MarkovPolicy:
        """Return the Markov policy that the controller follows while it stays in a node."""
        check_index(node, self.n_nodes, "node")
        return MarkovPolicy(self.actions[:, :, node], **self.label_kwargs)

    def _check_actions(self, model: MMDP) -> None:
        """Raise InputError if a node takes an action that the model does not allow."""
        for n in range(self.n_nodes):
            self.node_policy(n)._check_actions(model)

    def compute_returns(self, model: MMDP, backend: Backend) -> Array:
        """Compute the exact return of the policy on every model, (M,)."""
        prepared = backend.prepare(model.problem, self.horizon)
        return prepared.compute_node_values(self.controller).returns

    def make_simulation_tables(self, model: MMDP) -> PlannerTables:
        """Make the tables with which a backend simulates the controller."""
        return PlannerTables(NODES, model.problem, controller=self.controller)

    # ------------------------------------------------------------ who follows it
    def act(self, memory: int | None, time: int, state: int) -> int:
        """Return the id of the action in this state and node."""
        return int(self.actions[time, state, self._current_node(memory, state)])

    def update(
        self,
        memory: int | None,
        time: int,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
    ) -> int:
        """Return the next node, given the next state."""
        return int(
            self.node_transitions[time, state, self._current_node(memory, state), next_state]
        )

    def _current_node(self, memory: int | None, state: int) -> int:
        """Return the node in memory; the initial node of the state at the start of an episode."""
        return int(self.initial_nodes[state]) if memory is None else memory

    # ------------------------------------------------------------ who reads it
    @check_arguments
    def compute_node_weights(self, model: MMDP, *, backend: str | Backend = "auto") -> Array:
        """Compute P[model m, state s, node n at time t] under the policy, (T, S, N, M).

        Their sums over times and states, divided by those over the models, are P[model given node].

        >>> import mmdp
        >>> train, _ = mmdp.domains.two_models()
        >>> policy = mmdp.solve(train, 9, policy_class=mmdp.policies.Memory(max_nodes=2)).policy
        >>> weights = policy.compute_node_weights(train).sum(axis=(0, 1))
        >>> (weights / weights.sum(axis=1, keepdims=True)).round(2).tolist()
        [[0.9, 0.1], [0.0, 1.0]]
        """
        self.check(model)
        x, T = model.problem, self.horizon
        prepared = kernels.get_backend(backend, x, T, n_passes=self.n_nodes).prepare(x, T)
        return prepared.compute_node_weights(self.controller)[1]

    @check_arguments
    def merge_nodes(self, model: MMDP) -> MemoryPolicy:
        """Return an equivalent policy with fewer nodes: nodes that act alike in the model merge.

        Two nodes act alike if they take the same action and then move alike in every state
        and time that some model reaches in both. Nodes that are never entered are left out.
        """
        is_used = np.asarray(self.compute_node_weights(model).any(axis=3))
        x, rows = model.problem, model.problem.get_entry_rows()
        is_possible = np.zeros((self.n_states * x.n_actions, self.n_states), dtype=bool)
        is_possible[rows, x.indices] = x.p.any(axis=(0, 2))
        shape = self.n_states, x.n_actions, self.n_states
        controller = _merge_equivalent_nodes(self.controller, is_used, is_possible.reshape(shape))
        return self if controller is None else MemoryPolicy.for_model(model, controller)

    @check_arguments
    def to_flow_chart(self, model: MMDP | None = None) -> FlowChart:
        """Return the policy as a flow chart: a box per node, arrows for frequent transitions.

        ``model``: where it is followed, by default the models it was computed for. The chart
        has ``plot()``, ``to_svg()`` and, as text, ``text``. Notebooks show it.

        >>> import mmdp
        >>> train, _ = mmdp.domains.two_models()
        >>> policy = mmdp.solve(train, 9, policy_class=mmdp.policies.Memory(max_nodes=2)).policy
        >>> print(policy.to_flow_chart().text)  # doctest: +ELLIPSIS
        Node 0 (start)...
        """
        from mmdp.insight.draw.flowchart import make_flow_chart

        if model is None:
            return self._source_chart
        self.check(model)
        return make_flow_chart(model, self.controller, self.compute_node_weights(model))

    @cached_property
    def _source_chart(self) -> FlowChart:
        """Flow chart in the models that the policy was computed for."""
        if self._source_model is None:
            raise InputError("a flow chart needs the models; pass to_flow_chart(model)")
        return self.to_flow_chart(self._source_model)

    def describe(self) -> str:
        """Return the flow chart as text."""
        return self.to_flow_chart().text

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with a row per time, state and node.

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
        t, s, n = np.indices(self.actions.shape).reshape(3, -1)
        columns = {
            "time": t,
            "state": s,
            "node": n,
            "action": self.actions.reshape(-1).astype(np.int64),
            "moves": self.format_all_transitions(),
            "start": np.where((t == 0) & (self.initial_nodes[s] == n), "yes", "no"),
        }
        return self._make_frame(columns)

    def format_all_transitions(self) -> list[str]:
        """Format the node transitions of every time, state and node, as in :meth:`to_frame`."""
        rows = self.node_transitions.reshape(-1, self.n_states)
        format_cached = cache(lambda row, n: format_transitions(np.frombuffer(row, np.uint8), n))
        return [format_cached(row.tobytes(), i % self.n_nodes) for i, row in enumerate(rows)]

    def to_dict(self) -> NamedValues:
        """Return actions, node transitions and initial nodes as a dict of JSON types."""
        moves = np.array(self.format_all_transitions(), dtype=object)
        return {
            "nodes": self.actions.tolist(),
            "moves": moves.reshape(self.actions.shape).tolist(),
            "first": self.initial_nodes.tolist(),
        }

    def to_map_rows(self) -> tuple[IntArray, list[str]]:
        """Return the actions (times, rows) with a row for each state and node, and row labels."""
        rows = [f"{s}, node {n}" for s in self.state_names for n in range(self.n_nodes)]
        return self.actions.reshape(self.horizon, -1), rows

    def __getstate__(self) -> NamedValues:
        """Return the state for pickle, with the flow chart in place of the models."""
        if self._source_model is not None:
            self.to_flow_chart()
        return {**self.__dict__, "_source_model": None}

    @property
    def _repr_suffix(self) -> str:
        """Last part of the ``repr``: the number of nodes."""
        return pluralize(self.n_nodes, "node")


# ---------------------------------------------------------------------- moves as text
def format_transitions(row: npt.NDArray[np.uint8 | np.int64], node: int) -> str:
    """Format the next states (S',) that lead from a node to another one.

    >>> format_transitions(np.array([1, 1, 0, 2]), 0), format_transitions(np.array([1, 1]), 1)
    ('0-1>1 3>2', 'stay')
    """
    run_ends = np.flatnonzero(np.diff(row, append=-1))  # the last of each run of equal nodes
    run_starts = [0, *(run_ends[:-1] + 1).tolist()]
    runs = [
        f"{lo}>{row[hi]}" if lo == hi else f"{lo}-{hi}>{row[hi]}"
        for lo, hi in zip(run_starts, run_ends.tolist(), strict=True)
        if row[hi] != node
    ]
    return " ".join(runs) or STAY_TEXT


_RUN_PATTERN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?>(\d{1,3})")


def parse_transitions(text: str, current_node: int, n_states: int) -> NodeArray:
    """Parse text such as "0-4>1 7>2" into next nodes (S',); InputError if it is malformed.

    >>> parse_transitions("0-1>1 3>2", 0, 5).tolist()
    [1, 1, 0, 2, 0]
    """
    row = np.full(n_states, current_node, np.uint8)
    for token in text.split() if text != STAY_TEXT else ():
        match = _RUN_PATTERN.fullmatch(token)
        if match is None:
            raise InputError(f"moves {text!r} are not as in '0-4>1 7>2' or '{STAY_TEXT}'")
        lo, node = int(match[1]), int(match[3])
        hi = int(match[2] or lo)
        if not lo <= hi < n_states or node > MAX_NODES:
            raise InputError(f"move {token!r} is outside the policy's {n_states} states")
        row[lo : hi + 1] = node
    return row


# ---------------------------------------------------------------------- reading and merging
def _read_controller(
    actions: npt.ArrayLike, node_transitions: npt.ArrayLike, initial_nodes: npt.ArrayLike | None
) -> Controller:
    """Check the arrays of a controller and convert them to a Controller."""
    a = read_actions(actions, ("time", "state", "node"))
    S, N = a.shape[1:]
    if N > MAX_NODES:
        raise InputError(f"a policy has at most {MAX_NODES} nodes, not {N}")
    initial_nodes = np.zeros(S, np.int64) if initial_nodes is None else initial_nodes
    node_arrays = []
    for name, nodes, shape in (
        ("moves", node_transitions, (*a.shape, S)),
        ("first", initial_nodes, (S,)),
    ):
        try:
            array = np.asarray(nodes)
        except ValueError:
            raise InputError(f"{name} must be an array of whole numbers") from None
        if array.shape != shape:
            raise InputError(f"{name} have shape {array.shape}; expected {shape}")
        if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= N:
            raise InputError(f"{name} must be nodes from 0 to {N - 1}")
        node_arrays.append(array.astype(np.uint8))
    return Controller(a, *node_arrays)


def _merge_equivalent_nodes(
    controller: Controller, is_used: Mask, is_possible: Mask
) -> Controller | None:
    """Merge nodes with the same behavior in the states they are used in; None if none can be.

    ``is_used`` (T, S, N): whether a node is entered; ``is_possible`` (S, A, S'): whether some model
    can make the step.
    """
    N, used_nodes = controller.n_nodes, np.flatnonzero(is_used.any(axis=(0, 1)))
    group = np.arange(N)
    for i, j in combinations(used_nodes.tolist(), 2):
        if group[i] != group[j]:
            merged_group = _merge_pair(controller, is_used, is_possible, group, i, j)
            group = group if merged_group is None else merged_group
    kept_groups = np.unique(group[used_nodes])
    if len(kept_groups) == N:
        return None
    new_ids = np.zeros(N, np.uint8)  # nodes that are never entered stand for the first
    new_ids[used_nodes] = np.searchsorted(kept_groups, group[used_nodes])
    # the member of each group that is used there
    member = np.stack([(is_used & (group == n)).argmax(axis=2) for n in kept_groups], axis=2)
    member = np.where(np.take_along_axis(is_used, member, 2), member, kept_groups)
    t, s = (x[..., None] for x in np.ogrid[: len(is_used), : is_used.shape[1]])
    index = t, s, member
    return Controller(
        controller.actions[index],
        new_ids[controller.node_transitions[index]],
        new_ids[controller.initial_nodes],
    )


def _merge_pair(
    controller: Controller, is_used: Mask, is_possible: Mask, group: IndexArray, i: int, j: int
) -> IndexArray | None:
    """Return a group id for each node, (N,), with i and j in one group and all that this implies.

    None if two nodes of one name would have to do different things.
    """
    group = _unite(group, i, j)
    while True:
        previous = group
        for p, q in combinations(range(len(group)), 2):
            t, s = np.nonzero(is_used[:, :, p] & is_used[:, :, q])
            if group[p] != group[q] or not len(t):
                continue
            a = controller.actions[t, s, p]
            if (a != controller.actions[t, s, q]).any():
                return None
            next_groups = (
                group[controller.node_transitions[t, s, p]],
                group[controller.node_transitions[t, s, q]],
            )
            for u, v in {*zip(*(x[is_possible[s, a]].tolist() for x in next_groups), strict=True)}:
                group = _unite(group, u, v)
        if (group == previous).all():
            return group


def _unite(group: IndexArray, i: int, j: int) -> IndexArray:
    """Return the group ids with the groups of two nodes united under the lower id."""
    return np.where(group == max(group[i], group[j]), min(group[i], group[j]), group)
