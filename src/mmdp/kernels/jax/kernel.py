"""The accelerator kernel: whole passes and whole CADP solves compiled by jax.

Symbols as in :mod:`mmdp.kernels.problem`. Two layouts, chosen by the number K of policies
that are computed at once:

========  ==================  ===========  ==============  ===========  =======  =========
layout    p at each t         v, b         q               G            action   for
========  ==================  ===========  ==============  ===========  =======  =========
narrow    (R, L, M)           (S, M)       (S, A, M)       (S, A)       (S,)     one
wide      (M, R, L)           (M, S, K)    (M, S, A, K)    (S, A, K)    (S, K)   K starts
========  ==================  ===========  ==============  ===========  =======  =========

R rows of L entries: L = S where p is dense. A sparse pattern is padded with zeros to rows of
one length; rows far longer than the mean are split, and ``owner`` says to which row s * A + a
each part belongs. Everything is computed per model, except the sum over models in G: the
model axis can be spread over devices, which then exchange (S, A) numbers a time step.

Arrays are arguments of the compiled functions, never constants in them. 64-bit numbers are
switched on inside the calls only; jax's settings are as they were afterwards. The module can
be imported where jax is absent; making a :class:`JaxKernel` then says what to install.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mmdp.errors import InputError
from mmdp.kernels.problem import TIE, Array, Backward, Choice, IntArray, Problem


def _module(name: str) -> Any:
    """A module of jax, or None where it is not installed (types differ with and without it)."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


jax, jnp, lax = _module("jax"), _module("jax.numpy"), _module("jax.lax")
_module("jax.experimental")

Traced = Any  # a jax array
Function = TypeVar("Function", bound=Callable[..., Any])


class Tuning(NamedTuple):
    """How the work is written for the compiler; results differ by rounding only.

    unroll: time steps a loop iteration; None: 2 on a GPU, 1 elsewhere. chain: sums of up to
    this many terms are written out, so that one compiled loop reads all terms, with many
    loads under way. rows: the row sums
    P v of all actions by our own GPU kernel, one row and 128 models a program, in place of
    the compiler's; None: on one NVIDIA GPU, where it reads 1.1 to 2.1 times as fast. wide:
    several starts share each reading of p; None: on accelerators, since a CPU gains nothing
    by it.
    """

    unroll: int | None = None
    chain: int = 64
    rows: bool | None = None
    wide: bool | None = None


class Arrays(NamedTuple):
    """A problem on the device (see the module's table); p and r have a leading T or 1."""

    p: Traced
    after: Traced | None  # (R, L) next states; None: every row has all of them, in order
    owner: Traced | None  # (R,) row s * A + a of each part; None: rows are whole
    r: Traced  # (S, A, M), wide: (M, S, A)
    allowed: Traced
    initial: Traced
    weights: Traced
    discount: Traced
    terminal: Traced  # (S, M), wide: (M, S)


class Ascents(NamedTuple):
    """Where K ascents ended.

    policies: (K, T, S). returns: (K, M). values: (K,). sweeps: (K,), the confirming one
    included. converged: (K,), False where tol or the cap on sweeps ended it. trace:
    (K, longest + 1) value of the start and after each gain, NaN after the end.
    """

    policies: IntArray
    returns: Array
    values: Array
    sweeps: npt.NDArray[np.int32]
    converged: npt.NDArray[np.bool_]
    trace: Array


def _jit(*static: str) -> Callable[[Function], Function]:
    """jax.jit, or nothing where jax is absent."""

    def wrap(function: Function) -> Function:
        return function if jax is None else jax.jit(function, static_argnames=static)

    return wrap


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """Inside, jax has 64-bit numbers; its settings outside stay as they are.

    jax says that it will drop Triton kernels one day; ours then gives way to the compiler's.
    """
    double = jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    with double, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        yield


# ------------------------------------------------------------------ one time step
def _at(array: Traced, t: Traced) -> Traced:
    """The slice of time t of an array that may not vary with time."""
    return array[0] if array.shape[0] == 1 else array[t]


def _take(array: Traced, *where: Any) -> Traced:
    return array.at[where].get(mode="promise_in_bounds")


def _fold(combine: Any, x: Traced, axis: int) -> Traced:
    """``combine`` over the actions; written out where few, so that it fuses into its reader."""
    size = x.shape[axis]
    if size > 16:
        return combine.reduce(x, axis=axis)
    parts = [lax.index_in_dim(x, a, axis, keepdims=False) for a in range(size)]
    return functools.reduce(combine, parts)


def _one_hot(action: Traced, n_actions: int) -> Traced:
    """(S,) -> (S, A), or (S, K) -> (S, A, K)."""
    a = jnp.arange(n_actions, dtype=action.dtype)
    return action[:, None] == a.reshape((1, -1) + (1,) * (action.ndim - 1))


def _choose(G: Traced, incumbent: Traced | None, idle: Traced | None) -> Traced:
    """Maximisers of G over axis 1 (-inf: not allowed); see numpy_kernel.choose."""
    best = _fold(jnp.maximum, G, 1)
    size = _fold(jnp.maximum, jnp.where(jnp.isfinite(G), jnp.abs(G), 0.0), 1)
    tied = (best - TIE * size)[:, None] <= G
    A = G.shape[1]
    number = jnp.arange(A, dtype=jnp.int32).reshape((1, -1) + (1,) * (G.ndim - 2))
    action = _fold(jnp.minimum, jnp.where(tied, number, A - 1), 1)
    if incumbent is not None:
        keep = _fold(jnp.logical_or, tied & (incumbent[:, None] == number), 1) | idle
        action = jnp.where(keep, incumbent, action)
    return action


def _gradient(x: Arrays, b: Traced, q: Traced, wide: bool) -> Traced:
    """G = sum_m b q: the only place where models meet; -inf where not allowed."""
    G = (jnp.expand_dims(b, -2) * q).sum(axis=0 if wide else -1)
    return jnp.where(x.allowed[..., None] if wide else x.allowed, G, -jnp.inf)


def _nobody(b: Traced, wide: bool) -> Traced:
    """Whether no model has weight, of b at one or all times."""
    return b.sum(axis=-3 if wide else -1) == 0


def _expect(
    x: Arrays, p: Traced, v: Traced, tuning: Tuning, wide: bool, rows: Traced | None = None
) -> Traced:
    """sum_s' p v of every row (or of ``rows``, narrow): (R, M), wide: (M, R, K)."""
    p_type, L = v.dtype, p.shape[-1] if wide else p.shape[1]
    after = x.after if x.after is None or rows is None else _take(x.after, rows)
    if wide and after is None:
        return p.astype(p_type) @ v
    if tuning.rows and rows is None and not wide:
        return _merge(x, _row_sums(p, v, after), 0)
    if tuning.chain >= L:
        terms = (_term(p, v, after, rows, e, wide) for e in range(L))
        total = functools.reduce(operator.add, terms)
    elif wide:
        total = (p.astype(p_type)[..., None] * _take(v, slice(None), after)).sum(axis=2)
    else:
        p = p if rows is None else _take(p, rows)
        total = (p.astype(p_type) * (v if after is None else _take(v, after))).sum(axis=1)
    return _merge(x, total, 1 if wide else 0)


MODELS_A_PROGRAM, ENTRIES_A_STEP = 128, 17  # the fastest of twelve choices on an H200
# Forward, with one program a state and 128 models: 400 of them (POP) take 1.1 ms where XLA takes
# 0.6, 8000 of them (20,000 models) 7.7 ms where XLA takes 26.
PROGRAMS_THAT_FILL = 2000


def _row_sums(p: Traced, v: Traced, after: Traced | None, chosen: Traced | None = None) -> Traced:
    """(R, M) sums over e of p[row, e] v[after[row, e]], by a Triton kernel of our own.

    With ``chosen`` (S,) rows: what flows into the states, (S', M) sums over e of
    p[chosen[e], state] v[e]. A program takes one row or state and some models. Many loads of p
    are under way at once, each of neighbouring models; v comes from the card's cache.
    """
    pallas, triton = _module("jax.experimental.pallas"), _module("jax.experimental.pallas.triton")
    R, L, M = p.shape
    if chosen is not None:
        R, L = L, len(chosen)
    index = after if chosen is None else chosen

    def program(p_ref: Any, v_ref: Any, *refs: Any) -> None:
        row = pallas.program_id(0)
        m = pallas.program_id(1) * MODELS_A_PROGRAM + jnp.arange(MODELS_A_PROGRAM)
        load = functools.partial(triton.load, mask=m < M, other=0.0)

        def term(e: Any) -> Traced:
            if chosen is not None:
                place, to = (refs[0][e], row), e
            else:
                place, to = (row, e), e if after is None else refs[0][row, e]
            return load(p_ref.at[*place, m]).astype(v.dtype) * load(v_ref.at[to, m])

        def step(k: Any, total: Traced) -> Traced:
            for n in range(ENTRIES_A_STEP):
                total = total + term(k * ENTRIES_A_STEP + n)
            return total

        total = lax.fori_loop(0, L // ENTRIES_A_STEP, step, jnp.zeros(MODELS_A_PROGRAM, v.dtype))
        for e in range(L // ENTRIES_A_STEP * ENTRIES_A_STEP, L):
            total = total + term(e)
        triton.store(refs[-1].at[row, m], total, mask=m < M)

    run = pallas.pallas_call(
        program, grid=(R, -(-M // MODELS_A_PROGRAM)),
        out_shape=jax.ShapeDtypeStruct((R, M), v.dtype),
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
    )  # fmt: skip
    return run(p, v) if index is None else run(p, v, index)


def _term(p: Traced, v: Traced, after: Traced, rows: Traced | None, e: int, wide: bool) -> Traced:
    """p v of entry e of every row."""
    if wide:
        return p[:, :, e, None].astype(v.dtype) * _take(v, slice(None), after[:, e])
    p_e = p[:, e] if rows is None else _take(p, rows, e)
    return p_e.astype(v.dtype) * (v[e] if after is None else _take(v, after[:, e]))


def _merge(x: Arrays, parts: Traced, axis: int) -> Traced:
    """Sums of whole rows from the sums of their parts."""
    if x.owner is None:
        return parts
    shape = list(parts.shape)
    shape[axis] = x.allowed.size
    where = (slice(None),) * axis + (x.owner,)
    whole = jnp.zeros(shape, parts.dtype)
    return whole.at[where].add(parts, indices_are_sorted=True, mode="promise_in_bounds")


def _push(
    x: Arrays, p: Traced, mass: Traced, tuning: Tuning, wide: bool, rows: Traced | None = None
) -> Traced:
    """sum over rows of p mass: the next b. mass (R, M) or (S, M) on ``rows``; wide (M, R, K)."""
    if x.owner is not None:
        mass = _take(mass, slice(None), x.owner) if wide else _take(mass, x.owner)
    if x.after is None:
        return _push_dense(p, mass, tuning, wide, rows)
    after = x.after if rows is None else _take(x.after, rows)
    p = (p if rows is None else _take(p, rows)).astype(mass.dtype)
    S = x.allowed.shape[0]
    if wide:
        flow = p[..., None] * mass[:, :, None, :]
        b = jnp.zeros((p.shape[0], S, mass.shape[-1]), mass.dtype)
        return b.at[:, after].add(flow, mode="promise_in_bounds")
    b = jnp.zeros((S, mass.shape[-1]), mass.dtype)
    return b.at[after].add(p * mass[:, None], mode="promise_in_bounds")


def _push_dense(p: Traced, mass: Traced, tuning: Tuning, wide: bool, rows: Traced | None) -> Traced:
    if wide:
        return jnp.einsum("mrn,mrk->mnk", p.astype(mass.dtype), mass)
    programs = p.shape[1] * -(-p.shape[2] // MODELS_A_PROGRAM)
    if tuning.rows and rows is not None and programs >= PROGRAMS_THAT_FILL:
        return _row_sums(p, mass, None, rows)
    if len(mass) > tuning.chain:
        p = p if rows is None else _take(p, rows)
        return (p.astype(mass.dtype) * mass[:, None]).sum(axis=0)

    def row(i: int) -> Traced:
        return p[i] if rows is None else lax.dynamic_index_in_dim(p, rows[i], 0, keepdims=False)

    terms = (row(i).astype(mass.dtype) * mass[i] for i in range(len(mass)))
    return functools.reduce(operator.add, terms)


def _chosen_rows(x: Arrays, action: Traced) -> Traced | None:
    """(S,) rows s * A + a of the actions (S,); None where rows are split."""
    S, A = x.allowed.shape
    return None if x.owner is not None else jnp.arange(S, dtype=jnp.int32) * A + action


def _q(x: Arrays, t: Traced, v: Traced, tuning: Tuning, wide: bool) -> Traced:
    """q = r + gamma P v of all actions (eq. value of state-action)."""
    r, expected = _at(x.r, t), _expect(x, _at(x.p, t), v, tuning, wide)
    shape = (*v.shape[:-2], *x.allowed.shape, v.shape[-1])
    return (r[..., None] if wide else r) + x.discount * expected.reshape(shape)


def _along(x: Arrays, t: Traced, v: Traced, action: Traced, tuning: Tuning) -> Traced:
    """v = r + gamma P v of the given actions (S,) alone; narrow, rows whole."""
    rows = _chosen_rows(x, action)
    r = _take(_at(x.r, t), jnp.arange(len(action)), action)
    return r + x.discount * _expect(x, _at(x.p, t), v, tuning, False, rows)


# ------------------------------------------------------------------ passes
def _backward_pass(
    x: Arrays, horizon: int, choice: Choice, weights: Traced | None, policy: Traced | None,
    keep: frozenset[str], tuning: Tuning, wide: bool,
) -> tuple[Traced, dict[str, Traced]]:  # fmt: skip
    """Values at the first step and what ``keep`` names, stacked over time."""
    A = x.allowed.shape[1]
    sharp = policy is not None and jnp.issubdtype(policy.dtype, jnp.integer)
    lean = choice == "given" and sharp and not wide and x.owner is None and keep <= {"values"}
    mask, idle = x.allowed[..., None], None
    if choice == "weighted" and policy is not None:
        idle = _nobody(weights, wide)  # (T or 1, S or 1), wide: (T, S, K)

    def step(v: Traced, t: Traced) -> tuple[Traced, dict[str, Traced]]:
        if lean:
            assert policy is not None
            v = _along(x, t, v, policy[t], tuning)
            return v, {"values": v} if keep else {}
        q = _q(x, t, v, tuning, wide)
        kept: dict[str, Traced] = {}
        if weights is not None:
            kept["gradient"] = G = _gradient(x, _at(weights, t), q, wide)
        if choice == "own":
            masked = jnp.where(mask, q, -jnp.inf)
            v = _fold(jnp.maximum, masked, 1)
            if "actions" in keep:
                kept["actions"] = masked.argmax(axis=1).astype(jnp.int32)
        elif choice == "weighted":
            old = None if policy is None else policy[t]
            kept["actions"] = _choose(G, old, None if idle is None else _at(idle, t))
            v = _average(_one_hot(kept["actions"], A), q, wide)
        else:
            assert policy is not None
            v = _average(_one_hot(policy[t], A) if sharp else policy[t], q, wide)
        kept["values"] = v
        if "q" in keep:
            kept["q"] = jnp.where(mask, q, -jnp.inf)
        return v, {name: kept[name] for name in keep if name in kept}

    start = x.terminal
    if wide:
        assert policy is not None
        start = jnp.broadcast_to(start[..., None], (*start.shape, policy.shape[-1]))
    unroll = min(tuning.unroll or 1, horizon)
    return lax.scan(step, start, jnp.arange(horizon), reverse=True, unroll=unroll)


def _average(pi: Traced, q: Traced, wide: bool) -> Traced:
    """sum_a pi q: pi (S, A) or (S, A, K), booleans or probabilities; q (.., S, A, ..)."""
    weight = pi if wide else pi[..., None]
    terms = jnp.where(weight, q, 0.0) if pi.dtype == bool else weight * q
    return _fold(jnp.add, terms, terms.ndim - 2)


def _forward_pass(
    x: Arrays, horizon: int, policy: Traced, q: Traced | None, tuning: Tuning, wide: bool
) -> tuple[Traced, Traced]:
    """(T, S) actions and (T, S, M) b; wide: (T, S, K) and (T, M, S, K).

    The actions are those of ``policy``, improved on the way where q of all steps is given.
    """

    def step(b: Traced, t: Traced) -> tuple[Traced, tuple[Traced, Traced]]:
        pi = policy[t]
        if q is not None:
            finite = jnp.where(x.allowed[..., None], q[t], 0.0)
            pi = _choose(_gradient(x, b, finite, wide), pi, _nobody(b, wide))
        return _flow(x, _at(x.p, t), b, pi, tuning, wide), (pi, b)

    if wide:
        start = (x.weights[:, None] * x.initial)[..., None]
        start = jnp.broadcast_to(start, (*start.shape[:2], policy.shape[-1]))
    else:
        start = x.initial[:, None] * x.weights
    unroll = min(tuning.unroll or 1, horizon)
    return lax.scan(step, start, jnp.arange(horizon), unroll=unroll)[1]


def _flow(x: Arrays, p: Traced, b: Traced, pi: Traced, tuning: Tuning, wide: bool) -> Traced:
    """b at t + 1 from b at t under actions or probabilities ``pi`` of t (eq. belief)."""
    sharp = jnp.issubdtype(pi.dtype, jnp.integer)
    rows = _chosen_rows(x, pi) if sharp and not wide else None
    if rows is not None:
        return _push(x, p, b, tuning, wide, rows)
    pi = _one_hot(pi, x.allowed.shape[1]).astype(b.dtype) if sharp else pi
    mass = jnp.expand_dims(b, -2) * (pi if wide else pi[..., None])  # (.., S, A, ..)
    shape = (b.shape[0], -1, b.shape[-1]) if wide else (-1, b.shape[-1])
    return _push(x, p, mass.reshape(shape), tuning, wide)


def _returns(x: Arrays, first: Traced, wide: bool) -> Traced:
    """(M,) or (M, K) returns from the values at the first step."""
    return jnp.einsum("s,msk->mk" if wide else "s,sm->m", x.initial, first)


@_jit("horizon", "choice", "keep", "tuning")
def _run_backward(
    x: Arrays, weights: Traced | None, policy: Traced | None, *, horizon: int, choice: Choice,
    keep: frozenset[str], tuning: Tuning,
) -> tuple[Traced, dict[str, Traced]]:  # fmt: skip
    return _backward_pass(x, horizon, choice, weights, policy, keep, tuning, wide=False)


@_jit("horizon", "tuning")
def _run_forward(
    x: Arrays, policy: Traced, q: Traced | None, *, horizon: int, tuning: Tuning
) -> tuple[Traced, Traced]:
    return _forward_pass(x, horizon, policy, q, tuning, wide=False)


class _State(NamedTuple):
    """Of the ascents: policy (T, S[, K]), returns (M[, K]), the others () or (K,)."""

    policy: Traced
    returns: Traced
    value: Traced
    sweeps: Traced
    done: Traced
    converged: Traced
    trace: Traced  # (cap + 1[, K])
    q: Traced | None  # of the last backward pass, where forward passes improve too


@_jit("horizon", "cap", "two_way", "tuning", "wide")
def _run_cadp(
    x: Arrays, policy: Traced, tol: Traced, *, horizon: int, cap: int, two_way: bool,
    tuning: Tuning, wide: bool,
) -> _State:  # fmt: skip
    """CADP from ``policy`` until every start has converged (methods.cadp.ascend, compiled)."""
    keep = frozenset({"actions", "q"} if two_way else {"actions"})

    def sweep(state: _State) -> _State:
        policy, b = _forward_pass(x, horizon, state.policy, state.q, tuning, wide)
        first, found = _backward_pass(x, horizon, "weighted", b, policy, keep, tuning, wide)
        return _judged(state, found, _returns(x, first, wide), x.weights, tol)

    first, _ = _backward_pass(x, horizon, "given", None, policy, frozenset(), tuning, wide)
    returns = _returns(x, first, wide)
    value = x.weights @ returns
    nobody = jnp.zeros(value.shape, bool)
    # with q = 0 all actions tie and the first forward pass keeps the start, as in ascend
    shape = (*first.shape[:-1], x.allowed.shape[1], first.shape[-1])
    q = jnp.zeros((horizon, *shape)) if two_way else None
    trace = jnp.full((cap + 1, *value.shape), jnp.nan).at[0].set(value)
    sweeps = jnp.zeros(value.shape, jnp.int32)
    start = _State(policy, returns, value, sweeps, nobody, nobody, trace, q)
    return lax.while_loop(lambda state: ~state.done.all(), sweep, start)


def _judged(
    state: _State, found: dict[str, Traced], returns: Traced, weights: Traced, tol: Traced
) -> _State:
    """The state after a sweep that found these actions: taken only where the value rises."""
    improved, value, cap = found["actions"], weights @ returns, len(state.trace) - 1
    gain = value - state.value
    still = (improved == state.policy).all(axis=(0, 1)) | (gain <= 0)
    take = ~still & ~state.done
    small = gain <= tol * jnp.maximum(1.0, jnp.abs(value))
    sweeps = state.sweeps + ~state.done
    number = jnp.arange(cap + 1).reshape((-1,) + (1,) * value.ndim)
    return _State(
        policy=jnp.where(take, improved, state.policy),
        returns=jnp.where(take, returns, state.returns),
        value=jnp.where(take, value, state.value),
        sweeps=sweeps,
        done=state.done | still | small | (sweeps >= cap),
        converged=jnp.where(state.done, state.converged, still),
        trace=jnp.where(take & (number == sweeps), value, state.trace),
        q=found.get("q"),
    )


# ------------------------------------------------------------------ arrays on the device
class _Cache:
    """Device arrays of read-only host arrays, as long as those live; the oldest go first."""

    def __init__(self, size: int) -> None:
        self.size, self.lock = size, threading.Lock()
        self.held: OrderedDict[Any, tuple[list[weakref.ref[Any]], Any]] = OrderedDict()

    def get(self, role: Any, sources: Sequence[Any], make: Callable[[], Any]) -> Any:
        """``make()``, or what it gave before for the same source arrays in the same role."""
        if any(source.flags.writeable for source in sources):
            return make()
        key = (role, *map(id, sources))
        with self.lock:
            refs, value = self.held.get(key, ([], None))
            if refs and all(ref() is x for ref, x in zip(refs, sources, strict=True)):
                self.held.move_to_end(key)
                return value
        value = make()
        # the lock may be held by the very thread in which an array dies: no lock in drop
        drop = lambda _: self.held.pop(key, None)
        with self.lock:
            self.held[key] = ([weakref.ref(x, drop) for x in sources], value)
            while len(self.held) > self.size:
                self.held.popitem(last=False)
        return value

    def clear(self) -> None:
        with self.lock:
            self.held.clear()


_cache = _Cache(size=24)


class _Pattern(NamedTuple):
    """Rows of one length: entry (R, L) of the pattern, nnz where padded; see Arrays."""

    entry: npt.NDArray[np.int64] | None  # None: entries are in this order already
    after: IntArray
    owner: IntArray | None


def _pattern(problem: Problem) -> _Pattern:
    """The sparse pattern as padded rows; rows over the mean are split where padding costs."""
    lengths = np.diff(problem.indptr)
    nnz, longest = len(problem.indices), int(lengths.max(initial=1))
    length = max(longest, 1)
    if len(lengths) * length > 1.5 * nnz:
        length = max(1, -(-nnz // max(1, len(lengths))))
    parts = np.maximum(1, -(-lengths // length))
    owner = np.repeat(np.arange(len(lengths)), parts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    within = (nth * length)[:, None] + np.arange(length)
    used = within < lengths[owner][:, None]
    entry = np.where(used, problem.indptr[owner][:, None] + within, nnz)
    after = np.append(problem.indices, 0)[entry].astype(np.int32)
    whole = len(owner) == len(lengths)
    return _Pattern(None if used.all() else entry, after, None if whole else owner.astype(np.int32))


Precision = Literal["double", "mixed"]


class JaxKernel:
    """jax on a CPU, GPU or TPU, always in 64-bit arithmetic.

    Parameters
    ----------
    precision
        ``"mixed"`` lets :meth:`cadp` read p in 32 bits (half the reading), with sums in 64;
        its policies then climb on and are valued in 64 bits. Single passes are in 64 bits.
    devices
        Devices to spread the models over (``jax.devices()``); the default one if None.
    tuning
        How the work is written for the compiler.

    The first call for a shape compiles for a second or so. The arrays of a problem stay on
    the device while the problem lives, for the next call; :meth:`forget` drops them.
    ``kernel.cadp(model.problem, 50)`` is a whole solve in one call.
    """

    name = "jax"

    def __init__(
        self,
        precision: Precision = "double",
        devices: Sequence[Any] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if jax is None:
            raise InputError("backend 'jax' needs jax; install it with: pip install 'mmdp[jax]'")
        if precision not in ("double", "mixed"):
            raise InputError(f"no precision is called {precision!r}; choose double or mixed")
        self.precision = precision
        self.devices = None if devices is None else tuple(devices)
        self.tuning = self._resolved(tuning or Tuning())

    @staticmethod
    def forget() -> None:
        """Drop the device arrays of all problems."""
        _cache.clear()

    # ------------------------------------------------------------ the Kernel interface
    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: npt.NDArray[np.generic] | None = None,
        keep_actions: bool = False,
        keep_values: bool = False,
        keep_gradient: bool = False,
        keep_q: bool = False,
    ) -> Backward:
        keep = {"actions"} if choice == "weighted" or (choice == "own" and keep_actions) else set()
        keep |= {"values"} if keep_values else set()
        keep |= {"gradient"} if keep_gradient else set()
        keep |= {"q"} if keep_q else set()
        M = problem.n_models
        with _double():
            x = self._exact().arrays(problem)
            first, kept = _run_backward(
                x, self._put(weights, models=-1), self._put(_table(policy)), horizon=horizon,
                choice=choice, keep=frozenset(keep), tuning=self.tuning,
            )  # fmt: skip
            actions = kept.get("actions")
            found = None if actions is None else np.array(actions)
            if found is not None and choice == "own":
                found = np.ascontiguousarray(found[..., :M])
            if choice == "given" and keep_actions:
                found = _given_actions(policy, horizon, problem.n_states)
            values, q, G = kept.get("values"), kept.get("q"), kept.get("gradient")
            if values is not None:
                values = np.concatenate([values, np.asarray(x.terminal)[None]])[..., :M]
            return Backward(
                first=np.ascontiguousarray(np.array(first)[:, :M]),
                actions=found,
                values=values,
                gradient=None if G is None else np.array(G),
                q=None if q is None else np.asarray(q)[..., :M],
            )

    def forward(self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic]) -> Array:
        with _double():
            x, table = self._exact().arrays(problem), self._put(_table(policy))
            _, b = _run_forward(x, table, None, horizon=horizon, tuning=self.tuning)
            return np.array(b)[..., : problem.n_models]

    def improve(
        self, problem: Problem, horizon: int, policy: npt.NDArray[np.generic], q: Array
    ) -> tuple[IntArray, Array]:
        with _double():
            x, table = self._exact().arrays(problem), self._put(_table(policy))
            found = _run_forward(
                x, table, self._put(q, models=-1), horizon=horizon, tuning=self.tuning
            )
            actions, b = map(np.array, found)
            return actions, b[..., : problem.n_models]

    # ------------------------------------------------------------ a whole solve
    def cadp(
        self,
        problem: Problem,
        horizon: int,
        starts: npt.NDArray[np.generic] | None = None,
        *,
        tol: float = 0.0,
        max_iterations: int = 1000,
        sweeps: Literal["paper", "two-way"] = "paper",
    ) -> Ascents:
        """CADP from the policies ``starts`` (K, T, S), all in one compiled loop.

        On an accelerator p is read once a time step for all K starts (see Tuning.wide). None
        starts from WSU. Every start takes the steps that it would take alone, those of
        :class:`mmdp.CADP` with the same ``sweeps``. With ``precision="mixed"`` the final
        policies climb on in 64 bits, and the trace is that of this climb.
        """
        if sweeps not in ("paper", "two-way"):
            raise InputError(f'sweeps must be "paper" or "two-way", not {sweeps!r}')
        if starts is None:
            wsu = self.backward(problem, horizon, "weighted", weights=problem.prior_weights())
            assert wsu.actions is not None
            starts = wsu.actions[None]
        tables: IntArray = np.asarray(starts, dtype=np.int32)
        if tables.ndim != 3 or tables.shape[1:] != (horizon, problem.n_states):
            raise InputError(
                f"starts must have shape (K, {horizon}, {problem.n_states}), not {tables.shape}"
            )
        wide = self._device().platform != "cpu" if self.tuning.wide is None else self.tuning.wide
        together = [tables] if wide else [tables[k : k + 1] for k in range(len(tables))]
        ends = [
            self._ascend(problem, horizon, some, tol, max_iterations, sweeps) for some in together
        ]
        found = _State(*map(np.concatenate, zip(*ends, strict=True)))
        returns, value = found.returns[:, : problem.n_models], found.value
        if self.precision == "mixed":
            again = self._exact().cadp(
                problem, horizon, found.policy, tol=tol, max_iterations=max_iterations,
                sweeps=sweeps,
            )  # fmt: skip
            return again._replace(sweeps=found.sweeps + again.sweeps)
        longest = int((~np.isnan(found.trace)).sum(axis=1).max())
        return Ascents(
            found.policy, returns, value, found.sweeps, found.converged, found.trace[:, :longest]
        )

    def _ascend(
        self, problem: Problem, horizon: int, starts: IntArray, tol: float, cap: int, sweeps: str
    ) -> _State:
        """The ends of ascents run together, as host arrays with a leading K."""
        wide = len(starts) > 1
        with _double():
            x = self.arrays(problem, wide)
            table = self._put(np.moveaxis(starts, 0, -1) if wide else starts[0])
            end = _run_cadp(
                x, table, np.float64(tol), horizon=horizon, cap=cap,
                two_way=sweeps == "two-way", tuning=self.tuning, wide=wide,
            )  # fmt: skip
            host = map(np.array, end._replace(q=np.zeros(1)))
            return _State(*(np.moveaxis(y, -1, 0) if wide else y[None] for y in host))

    def _resolved(self, tuning: Tuning) -> Tuning:
        """The tuning with all of it decided; our own kernel cannot be spread over devices."""
        cuda = "cuda" in str(self._device()).lower()
        one = self.devices is None or len(self.devices) == 1
        there = hasattr(_module("jax.experimental.pallas.triton"), "CompilerParams")
        rows = cuda and one and there if tuning.rows is None else tuning.rows
        return tuning._replace(rows=rows, unroll=tuning.unroll or (2 if cuda else 1))

    def _device(self) -> Any:
        return self.devices[0] if self.devices else jax.devices()[0]

    def _exact(self) -> JaxKernel:
        """This kernel in 64 bits."""
        if self.precision == "double":
            return self
        return JaxKernel("double", self.devices, self.tuning)

    # ------------------------------------------------------------ transfers
    def arrays(self, problem: Problem, wide: bool = False, cached: bool = True) -> Arrays:
        """The problem on the device, from an earlier call where its arrays are the same."""
        x, S = problem, problem.n_states
        store = np.float32 if self.precision == "mixed" else np.float64

        def get(role: str, sources: list[Any], make: Callable[[], Any]) -> Any:
            key = (role, wide, store, self.devices)
            return _cache.get(key, sources, make) if cached else make()

        def pattern() -> list[Any]:
            return [self._put(part) for part in _pattern(x)]

        def transitions() -> Any:
            p = self._put(x.p.astype(store, copy=False), models=2)
            return _laid_out(p, entry, length=S if x.dense else after.shape[1], wide=wide)

        def moved(array: Any, models: int) -> Any:
            return self._put(np.moveaxis(array, -1, models) if wide else array, models)

        empty: list[Any] = [None] * 3
        entry, after, owner = empty if x.dense else get("rows", [x.indptr, x.indices], pattern)
        return Arrays(
            p=get("p", [x.p, x.indptr, x.indices], transitions),
            after=after,
            owner=owner,
            r=get("r", [x.r], lambda: moved(x.r, 1 if wide else -1)),
            allowed=get("allowed", [x.allowed], lambda: self._put(x.allowed[0])),
            initial=get("initial", [x.initial], lambda: self._put(x.initial)),
            weights=get("weights", [x.weights], lambda: self._put(x.weights, models=0)),
            discount=np.float64(x.discount),
            terminal=get("terminal", [x.terminal], lambda: moved(x.terminal, 0 if wide else -1)),
        )

    def _put(self, array: Any, models: int | None = None) -> Any:
        """On the device; over several, the axis ``models`` is padded with zeros and spread."""
        if array is None:
            return None
        array = np.ascontiguousarray(array)
        if self.devices is None:
            return jax.device_put(array)
        if len(self.devices) == 1:
            return jax.device_put(array, self.devices[0])
        spec: list[str | None] = [None] * array.ndim
        if models is not None:
            width = [(0, 0)] * array.ndim
            width[models] = (0, -array.shape[models] % len(self.devices))
            array = np.pad(array, width) if width[models][1] else array
            spec[models] = "models"
        mesh = jax.sharding.Mesh(np.array(self.devices), ("models",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.device_put(array, sharding)


@_jit("length", "wide")
def _laid_out(p: Traced, entry: Traced | None, *, length: int, wide: bool) -> Traced:
    """p (T or 1, nnz, M) as rows of one length (see Arrays.p)."""
    T, _, M = p.shape
    if entry is not None:
        p = jnp.take(p, entry.reshape(-1), axis=1, mode="fill", fill_value=0.0)
    p = p.reshape(T, -1, length, M)
    return jnp.moveaxis(p, -1, 1) if wide else p


def _table(policy: npt.NDArray[np.generic] | None) -> Any:
    """A policy as 32-bit actions (T, S) or 64-bit probabilities (T, S, A)."""
    if policy is None:
        return None
    return np.asarray(policy, dtype=np.int32 if policy.ndim == 2 else np.float64)


def _given_actions(policy: npt.NDArray[np.generic] | None, horizon: int, n_states: int) -> IntArray:
    """What a pass along a given policy reports as its actions."""
    if policy is not None and policy.ndim == 2:
        return np.array(policy, dtype=np.int32)
    return np.zeros((horizon, n_states), dtype=np.int32)
