"""CADP's sweeps from eight starts at once: p is read once a time step for all of them.

Symbols as in :mod:`mmdp.kernels.problem`, but models come first and the eight starts, the
lanes, last: p (T or 1, M, nnz), v and b at each t (M, S, 8). What one model needs in a time
step then lies in the first cache, and a number of p is multiplied with eight neighbours.

Models are summed block by block and the blocks in order, so the sums do not depend on the
number of threads. The sweeps are the paper's: a lane takes the steps that it takes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mmdp.kernels import march
from mmdp.kernels.jit import jit
from mmdp.kernels.numba_kernel import _FAST, _chosen
from mmdp.kernels.problem import Array, IntArray, Problem
from mmdp.kernels.threads import Team

LANES = 8
BLOCKS = 32  # of models; fixed, so that sums are the same for any number of threads
_CHAINS = 4  # sums that run side by side, so that one need not wait for the last
_I64, _DOUBLE = ir.IntType(64), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, LANES)


# ------------------------------------------------------------------ eight numbers at a time
class _Lanes:
    """Writes vector code: numba has no vectors, and its loops over eight become scalar code."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.b, self.args = builder, args
        self.arrays = [
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array) else None
            for kind, value in zip(signature.args, args, strict=True)
        ]  # fmt: skip

    def place(self, array: int, index: Any) -> Any:
        """The address of the eight numbers array[index, :]."""
        start = self.b.mul(index, ir.Constant(_I64, LANES))
        return self.b.bitcast(self.b.gep(self.arrays[array], [start]), _VECTOR.as_pointer())

    def load(self, place: Any) -> Any:
        value = self.b.load(place)
        value.align = 8
        return value

    def store(self, value: Any, place: Any) -> None:
        self.b.store(value, place).align = 8

    def number(self, array: int, index: Any) -> Any:
        """One number of p or an index, as a double or a 64-bit integer."""
        value = self.b.load(self.b.gep(self.arrays[array], [index]))
        if isinstance(value.type, ir.FloatType):
            return self.b.fpext(value, _DOUBLE)
        return self.b.sext(value, _I64) if isinstance(value.type, ir.IntType) else value

    def spread(self, number: Any) -> Any:
        """The number in all lanes."""
        zero = ir.Constant(ir.IntType(32), 0)
        one = self.b.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, zero)
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.b.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), places)

    def add_product(self, total: Any, x: Any, y: Any) -> Any:
        product = self.b.fmul(x, y, flags=("contract",))
        return self.b.fadd(total, product, flags=("contract",))

    def loop(self, start: Any, stop: Any, step: int, body: Callable[[Any, list[Any]], list[Any]],
             totals: list[Any]) -> list[Any]:  # fmt: skip
        """``for i in range(start, stop, step): totals = body(i, totals)``."""
        cells = [cgutils.alloca_once_value(self.b, x) for x in totals]  # type: ignore[no-untyped-call]
        with cgutils.for_range_slice(self.b, start, stop, ir.Constant(_I64, step)) as (i, _):
            for cell, total in zip(cells, body(i, [self.b.load(c) for c in cells]), strict=True):
                self.b.store(total, cell)
        return [self.b.load(cell) for cell in cells]


@intrinsic  # type: ignore[untyped-decorator]
def _row(
    typing: Any, p: Any, v: Any, indices: Any, start: Any, stop: Any, r: Any, gamma: Any, q: Any,
    row: Any, b: Any, s: Any, G: Any,
) -> Any:  # fmt: skip
    """q[row] = r + gamma sum_k p[k] v[indices[k]], G[row] += b[s] q[row], in all lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = _Lanes(context, builder, signature, args)
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        start, stop, r, gamma, row, s = (args[i] for i in (3, 4, 5, 6, 8, 10))
        chains = ir.Constant(_I64, _CHAINS)
        even = builder.sub(stop, builder.srem(builder.sub(stop, start), chains))

        def add(k: Any, totals: list[Any]) -> list[Any]:
            found = []
            for nth, total in enumerate(totals):
                at = builder.add(k, ir.Constant(_I64, nth))
                value = x.load(x.place(1, x.number(2, at)))
                found.append(x.add_product(total, x.spread(x.number(0, at)), value))
            return found

        totals = x.loop(start, even, _CHAINS, add, [zero] * _CHAINS)
        totals[:1] = x.loop(even, stop, 1, add, totals[:1])
        while len(totals) > 1:
            totals = [builder.fadd(*pair) for pair in zip(totals[::2], totals[1::2], strict=True)]
        found = x.add_product(x.spread(r), x.spread(gamma), totals[0])
        x.store(found, x.place(7, row))
        place = x.place(11, row)
        x.store(x.add_product(x.load(place), x.load(x.place(9, s)), found), place)
        return context.get_dummy_value()

    whole, real = types.int64, types.float64
    return types.void(p, v, indices, whole, whole, real, real, q, whole, b, whole, G), code


@intrinsic  # type: ignore[untyped-decorator]
def _push(
    typing: Any, p: Any, b: Any, s: Any, indices: Any, start: Any, stop: Any, mask: Any, row: Any,
    after: Any,
) -> Any:  # fmt: skip
    """after[indices[k]] += p[k] b[s] mask[row] in all lanes, for k from start to stop."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = _Lanes(context, builder, signature, args)
        s, start, stop, row = (args[i] for i in (2, 4, 5, 7))
        mass = builder.fmul(x.load(x.place(1, s)), x.load(x.place(6, row)))

        def add(k: Any, _: list[Any]) -> list[Any]:
            place = x.place(8, x.number(3, k))
            x.store(x.add_product(x.load(place), x.spread(x.number(0, k)), mass), place)
            return []

        x.loop(start, stop, 1, add, [])
        return context.get_dummy_value()

    whole = types.int64
    return types.void(p, b, whole, indices, whole, whole, mask, whole, after), code


@intrinsic  # type: ignore[untyped-decorator]
def _add(typing: Any, total: Any, i: Any, x: Any, j: Any) -> Any:
    """total[i] += x[j] in all lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = _Lanes(context, builder, signature, args)
        place = lanes.place(0, args[1])
        found = builder.fadd(lanes.load(place), lanes.load(lanes.place(2, args[3])))
        lanes.store(found, place)
        return context.get_dummy_value()

    return types.void(total, types.int64, x, types.int64), code


# ------------------------------------------------------------------ passes
class Lanes(NamedTuple):
    """The problem with models first, and where eight starts stand."""

    indptr: npt.NDArray[np.int64]
    indices: IntArray
    p: npt.NDArray[Any]  # (T or 1, M, nnz), 32 or 64 bits
    r: Array  # (T or 1, M, S * A)
    allowed: npt.NDArray[np.bool_]
    gamma: float
    terminal: Array  # (S, M)
    actions: IntArray  # (T, S, 8)
    b: Array  # (T, M, S, 8)
    v: Array  # (M, S, 8)
    q: Array  # (M, S * A, 8)
    G: Array  # (BLOCKS, S * A, 8) over a block of models
    mass: Array  # (BLOCKS, S, 8): b over a block of models
    mask: Array  # (T, S * A, 8): 1 where the lane takes the action
    taken: npt.NDArray[np.bool_]  # (T, S * A): whether any lane does
    place: npt.NDArray[np.uint64]  # (S * 8,): of v at t + 1 in q of a model


@jit(**_FAST)
def _take_values(last, m, c):  # type: ignore[no-untyped-def]
    """v of a model at t + 1 from its q and the actions there; at the last step what remains."""
    v, q, place = c.v[m].reshape(c.v[m].size), c.q[m].reshape(c.q[m].size), c.place
    if last:
        for i in range(len(v)):
            v[i] = c.terminal[i // LANES, m]
    else:
        for i in range(len(v)):
            v[i] = q[place[i]]


@jit(**_FAST)
def _note_places(t, s_from, s_to, c):  # type: ignore[no-untyped-def]
    """Where v of the actions of time t stands in q of a model."""
    for s in range(s_from, s_to):
        for lane in range(LANES):
            row = s * c.allowed.shape[1] + c.actions[t, s, lane]
            c.place[s * LANES + lane] = row * LANES + lane


@jit(**_FAST)
def _values_of_block(t, block, models, c):  # type: ignore[no-untyped-def]
    """q at time t of a block of models, and their share of G and of the mass."""
    n_states, n_actions = c.allowed.shape
    G, mass = c.G[block], c.mass[block]
    G[:] = 0.0
    mass[:] = 0.0
    for m in range(models[block], models[block + 1]):
        _take_values(t + 1 == len(c.actions), m, c)
        p = c.p[t if c.p.shape[0] > 1 else 0, m]
        r = c.r[t if c.r.shape[0] > 1 else 0, m]
        b, v, q = c.b[t, m], c.v[m], c.q[m]
        for s in range(n_states):
            _add(mass, s, b, s)  # type: ignore[call-arg]
            for a in range(n_actions):
                if c.allowed[s, a]:
                    row = s * n_actions + a
                    _row(
                        p, v, c.indices, c.indptr[row], c.indptr[row + 1], r[row], c.gamma, q, row,
                        b, s, G,
                    )  # fmt: skip


@jit(**_FAST)
def _choose(t, s_from, s_to, g, c):  # type: ignore[no-untyped-def]
    """The actions at time t by G; ties and states without mass keep theirs."""
    n_actions = c.allowed.shape[1]
    for s in range(s_from, s_to):
        for lane in range(LANES):
            mass = 0.0
            for block in range(BLOCKS):
                mass += c.mass[block, s, lane]
            if mass == 0.0:
                continue
            for a in range(n_actions):
                g[a] = 0.0 if c.allowed[s, a] else -np.inf
                for block in range(BLOCKS):
                    if c.allowed[s, a]:
                        g[a] += c.G[block, s * n_actions + a, lane]
            c.actions[t, s, lane] = _chosen(g, 0.0, c.actions[t, s, lane])


@jit(**_FAST)
def _back(marks, rank, models, choosing, g, c):  # type: ignore[no-untyped-def]
    """The backward pass: by turns q of the blocks of models, and the choices of all states."""
    horizon, n_states, _ = c.actions.shape
    while True:
        step, piece = march.take(marks, rank, BLOCKS, 2 * horizon)
        if step >= 2 * horizon:
            return
        t = horizon - 1 - step // 2
        if step % 2 == 0:
            _values_of_block(t, piece, models, c)
        else:
            first, last = n_states * piece // BLOCKS, n_states * (piece + 1) // BLOCKS
            if choosing:
                _choose(t, first, last, g, c)
            _note_places(t, first, last, c)
        march.done(marks)


@jit(**_FAST)
def _fore(marks, rank, models, c):  # type: ignore[no-untyped-def]
    """The forward pass over the blocks of models, which do not meet."""
    horizon, n_states, _ = c.actions.shape
    n_actions = c.allowed.shape[1]
    while True:
        step, block = march.take(marks, rank, BLOCKS, 1)
        if step >= 1:
            return
        for m in range(models[block], models[block + 1]):
            for t in range(horizon - 1):
                p, b, after = c.p[t if c.p.shape[0] > 1 else 0, m], c.b[t, m], c.b[t + 1, m]
                after[:] = 0.0
                for row in range(n_states * n_actions):
                    if c.taken[t, row]:
                        _push(  # type: ignore[call-arg]
                            p, b, row // n_actions, c.indices, c.indptr[row], c.indptr[row + 1],
                            c.mask[t], row, after,
                        )  # fmt: skip
        march.done(marks)


class Wide:
    """Up to eight ascents at once: ``open`` values the starts, ``sweep`` improves them."""

    def __init__(
        self, problem: Problem, horizon: int, starts: Sequence[IntArray], *, team: Team,
        p: npt.NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        x, T, S, A = problem, horizon, problem.n_states, problem.n_actions
        M, rows = x.n_models, S * A
        lanes = [*starts, *[starts[0]] * (LANES - len(starts))]
        self.problem, self.team, self.count = problem, team, len(starts)
        self.models = march.edges(M, BLOCKS)
        self.work = LANES * len(x.indices) * M
        self.lanes = Lanes(
            x.indptr, x.indices, _models_first(x.p if p is None else p),
            _models_first(x.r.reshape(len(x.r), rows, M)), x.allowed, x.discount, x.terminal,
            actions=np.stack(lanes, axis=-1).astype(np.int32),
            b=_aligned(T, M, S, LANES),
            v=_aligned(M, S, LANES),
            q=_aligned(M, rows, LANES),
            G=_aligned(BLOCKS, rows, LANES),
            mass=_aligned(BLOCKS, S, LANES),
            mask=_aligned(T, rows, LANES),
            taken=np.empty((T, rows), np.bool_),
            place=np.zeros(S * LANES, np.uint64),
        )  # fmt: skip
        self.lanes.b[0] = (x.initial[:, None] * x.weights).T[:, :, None]

    @property
    def actions(self) -> IntArray:
        """(K, T, S): the policies as they are now."""
        return np.moveaxis(self.lanes.actions, -1, 0)[: self.count]

    def open(self) -> Array:
        """(K, M) returns of the starts."""
        self._back(choosing=False)
        return self.returns()

    def sweep(self) -> tuple[npt.NDArray[np.bool_], Array]:
        """A forward and a backward pass: ((K,) whether actions changed, (K, M) returns)."""
        c, before = self.lanes, self.lanes.actions.copy()
        numbers = np.arange(self.problem.n_actions)
        taken = c.actions[:, :, None, :] == numbers[:, None]
        np.copyto(c.mask.reshape(taken.shape), taken)
        c.taken[:] = taken.any(axis=3).reshape(c.taken.shape)
        march.walk(self.team, self.work, lambda marks, rank: _fore(marks, rank, self.models, c))
        self._back(choosing=True)
        changed = (c.actions != before).any(axis=(0, 1))[: self.count]
        return changed, self.returns()

    def returns(self) -> Array:
        """(K, M) returns from q and the actions of the first step."""
        x, c = self.problem, self.lanes
        q = c.q.reshape(x.n_models, x.n_states, x.n_actions, LANES)
        first = np.take_along_axis(q, c.actions[0][None, :, None, :].astype(np.int64), axis=2)
        found: Array = np.einsum("s,msk->km", x.initial, first[:, :, 0])
        return found[: self.count]

    def _back(self, choosing: bool) -> None:
        A = self.problem.n_actions
        march.walk(
            self.team, self.work,
            lambda marks, rank: _back(marks, rank, self.models, choosing, np.empty(A), self.lanes),
        )  # fmt: skip


def _aligned(*shape: int) -> Array:
    """An empty array whose groups of eight each lie in one line of the cache."""
    size, line = int(np.prod(shape)), 64
    raw = np.empty(size * 8 + line, np.uint8)
    first = -raw.ctypes.data % line
    return raw[first : first + size * 8].view(np.float64).reshape(shape)


@jit(**_FAST)
def _turn(source, target):  # type: ignore[no-untyped-def]
    """target (m, n) = source (n, m) turned, a square at a time: both lie in the cache then."""
    n, m = source.shape
    for i0 in range(0, n, 32):
        for j0 in range(0, m, 32):
            for j in range(j0, min(j0 + 32, m)):
                for i in range(i0, min(i0 + 32, n)):
                    target[j, i] = source[i, j]


def _models_first(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(T or 1, n, M) as (T or 1, M, n), contiguous."""
    steps, n, m = array.shape
    turned = np.empty((steps, m, n), array.dtype)
    for t in range(steps):
        _turn(array[t], turned[t])
    return turned
