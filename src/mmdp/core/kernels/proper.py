"""Episodes that end by themselves: total rewards without a discount.

An episode of model m has ended where nothing happens any more: in a state that no action leaves or
earns anything in. If from every other state that can be met each policy gets there, the values
v = sum_t P^t r exist for all policies, randomized ones too. They do not if some policy can stay
elsewhere for ever, with certainty: for one model, in the largest set of states each of which has
an action that never leads out of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.problem import Problem
from mmdp.core.shapes import Array, IndexArray, Mask
from mmdp.core.text import join_first

Bits = npt.NDArray[np.uint8]


@dataclass
class ProperInfo:
    """Cached facts of an undiscounted problem: transient states (M, S) and effective horizon."""

    transient: Array
    effective_horizon: float | None = None


_PROPER_INFO: dict[
    tuple[Any, ...], tuple[list[weakref.ref[Any]], ProperInfo]
] = {}  # of the last problem


def get_proper_info(problem: Problem, state_labels: Sequence[str] = ()) -> ProperInfo:
    """Return the facts of an undiscounted problem; raise InputError if an episode may never end."""
    x, arrays = problem, problem.storage.get_arrays()
    masks = (np.asarray(x.r) != 0, x.allowed, x.initial > 0)
    key = tuple((y.shape, np.packbits(y).tobytes()) for y in masks)
    refs, info = _PROPER_INFO.get(key, ([], None))
    if info is None or any(ref() is not y for ref, y in zip(refs, arrays, strict=True)):
        info = ProperInfo(find_transient(x, state_labels).T.astype(np.float64))
        _PROPER_INFO.clear()
        _PROPER_INFO[key] = [weakref.ref(y) for y in arrays], info
    return info


def find_transient(problem: Problem, state_labels: Sequence[str] = ()) -> Mask:
    """Return (S, M) the states that some policy can reach before the episode has ended.

    InputError if an episode can go on for ever.

    >>> import mmdp
    >>> P = [[[[0.5, 0.5]], [[0.0, 1.0]]]]
    >>> find_transient(mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0]).problem).tolist()
    [[True], [False]]
    """
    graph = _TransitionGraph(problem)
    reachable = graph.find_reachable_states()
    improper = graph.unpack_models(graph.find_improper_states() & reachable)
    if improper.any():
        m = int(improper.any(axis=0).argmax())
        cycle = graph.find_cycle(improper, m)
        state_names = join_first(
            (repr(state_labels[s]) if state_labels else str(s) for s in cycle), 3
        )
        raise InputError(
            f"at discount 1 an infinite horizon needs episodes that end, and in model {m} some "
            f"policy stays in state{'s' * (len(cycle) > 1)} {state_names} for ever",
            [
                "set a discount near 1, such as 0.9999 (1 - discount times the value is then about "
                "the average reward per step)",
                Remedy("horizon", 50, verb="give a number, for example"),
            ],
        )
    return graph.unpack_models(reachable & ~graph.is_terminal)


class _TransitionGraph:
    """The possible transitions of all models, eight models to a byte along the last axis."""

    def __init__(self, problem: Problem) -> None:
        x, table = problem, problem.storage.to_table()
        self.shape = (x.n_states, x.n_actions)
        self.problem, self.indptr, self.next_states = x, table.indptr, table.indices
        self.state, self.action = np.divmod(x.get_entry_rows(), x.n_actions)
        allowed = x.allowed[0]
        self.has_edge = _pack_models(table.p[0] > 0)  # (nnz, bytes)
        self.has_edge[~allowed[self.state, self.action]] = 0
        self.has_action = self._any_in_row(self.has_edge)
        leaves_state = self._any_in_row(
            np.where((self.next_states != self.state)[:, None], self.has_edge, 0)
        )
        is_active = _pack_models(np.asarray(x.r)[0] != 0) | leaves_state | ~self.has_action
        self.is_terminal = ~np.bitwise_or.reduce(
            np.where(allowed[:, :, None], is_active, 0), axis=1
        )

    def unpack_models(self, bits: Bits) -> Mask:
        """Convert bytes of eight models to one boolean for each model."""
        return np.unpackbits(bits, axis=-1, count=self.problem.n_models).view(bool)

    def _any_in_row(self, entries: Bits) -> Bits:
        """Return (S, A, bytes) whether any entry of a row is true."""
        any_entry = _or_by_row(entries, self.indptr)
        return any_entry.reshape(*self.shape, -1)

    def find_improper_states(self) -> Bits:
        """Return (S, bytes) the states in which some policy can stay for ever without ending."""
        states = ~self.is_terminal
        while True:
            remaining = states & np.bitwise_or.reduce(self._can_stay(states), axis=1)
            if (remaining == states).all():
                return states
            states = remaining

    def _can_stay(self, states: Bits) -> Bits:
        """Return (S, A, bytes) the actions that exist and never leave these states."""
        return self.has_action & ~self._any_in_row(self.has_edge & ~states[self.next_states])

    def find_cycle(self, improper: Mask, m: int) -> list[int]:
        """Return states that a policy visits again and again in model m, inside (S, M)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        can_stay = self.unpack_models(self._can_stay(_pack_models(improper)))[:, :, m]
        is_chosen = can_stay.argmax(axis=1)[self.state] == self.action
        is_edge = is_chosen & self.unpack_models(self.has_edge)[:, m] & improper[self.state, m]
        sources, targets = self.state[is_edge], self.next_states[is_edge]
        graph = coo_array((np.ones(len(sources)), (sources, targets)), shape=(len(improper),) * 2)
        component = connected_components(graph, connection="strong")[1]
        has_exit = np.isin(
            component, component[sources[component[sources] != component[targets]]]
        )  # some step leads out of them
        is_recurrent = improper[:, m] & ~has_exit
        return np.flatnonzero(
            is_recurrent & (component == component[is_recurrent.argmax()])
        ).tolist()

    def find_reachable_states(self) -> Bits:
        """Return (S, bytes) the states that some policy reaches with a positive probability."""
        x = self.problem
        reachable = _pack_models(np.broadcast_to(x.initial > 0, (x.n_states, x.n_models)))
        order = np.argsort(self.next_states, kind="stable")
        sources, has_edge = self.state[order], self.has_edge[order]
        target_ptr = np.searchsorted(self.next_states[order], np.arange(x.n_states + 1))
        while True:
            new_reachable = reachable | _or_by_row(has_edge & reachable[sources], target_ptr)
            if (new_reachable == reachable).all():
                return reachable
            reachable = new_reachable


def _pack_models(mask: Mask) -> Bits:
    return np.packbits(mask, axis=-1)


def _or_by_row(entries: Bits, indptr: IndexArray) -> Bits:
    """Join the entries indptr[i]:indptr[i + 1] of each row by or; return (rows, bytes)."""
    out = np.zeros((len(indptr) - 1, entries.shape[1]), dtype=np.uint8)
    nonempty = np.flatnonzero(np.diff(indptr))
    if len(nonempty):
        out[nonempty] = np.bitwise_or.reduceat(entries, indptr[nonempty], axis=0)
    return out
