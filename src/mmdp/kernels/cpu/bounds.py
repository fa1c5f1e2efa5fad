"""Compiled passes behind the upper bounds (see :mod:`mmdp.bounds`).

Symbols, beside those of :mod:`mmdp.kernels.problem` (all models-last):

=========  =========================================================  ============
symbol     meaning                                                    shape
=========  =========================================================  ============
mask       actions that are still open at each time and state         (T, S, A)
lo, hi     L, B: least and largest P[model m, state s at t]           (T, S, M)
y          multipliers, in units of reward at that time               (T, S, A, M)
u          occupancy P[model m, state s, action a at t] of the        (T, S, A, M)
           policy each group of models would choose for itself
H          sum_m (B y+ - L y-), the price of the common policy        (T, S, A)
=========  =========================================================  ============

A pair of models (i, j) has the belief as a second state. Unnormalised beliefs
(lambda_i c, lambda_j) with c = exp(h g), g = -K..K-1, make a Bayes update a shift of g by
log(p_i / p_j) / h: the same shift and the same interpolation weights for every g.
"""

from __future__ import annotations

import numpy as np

from mmdp.kernels.cpu import steps as march
from mmdp.kernels.cpu.jit import FAST, FUSED, SUMS, jit
from mmdp.kernels.cpu.passes import _mass, _q_row

# Indices are unsigned: numba then drops its test for negative ones, and loops become SIMD.
_U = np.uint64


# ------------------------------------------------------------------ reach bounds
@jit(fastmath={"contract"})
def reach_stationary(m_from, m_to, indptr, indices, p, allowed, start, lo, hi):  # type: ignore[no-untyped-def]
    """L and B of models m_from..m_to where neither p nor the open actions vary with time.

    start (S, M) = lambda_m mu(s). W_k(x, s) is the chance to be in s after k steps from x.
    """
    T, S = lo.shape[0], lo.shape[1]
    A = allowed.shape[1]
    n = m_to - m_from
    q = np.empty(n)
    for s in range(S):
        for least in range(2):
            out = lo if least else hi
            w, w_next = np.zeros((S, n)), np.zeros((S, n))
            w[s] = 1.0
            for t in range(T):
                for m in range(n):
                    total = 0.0
                    for x in range(S):
                        total += start[x, m_from + m] * w[x, m]
                    out[t, s, m_from + m] = total
                if t == T - 1:
                    break
                _reach_step(m_from, indptr, indices, p, allowed, least, w, w_next, q, A)
                w, w_next = w_next, w


@jit(fastmath={"contract"})
def _reach_step(m_from, indptr, indices, p, allowed, least, w, out, q, A):  # type: ignore[no-untyped-def]
    """out(x, m) = max or min over the open actions of sum_y p(y | x, a) w(y, m)."""
    S, n = w.shape
    for x in range(S):
        first = True
        for a in range(A):
            if not allowed[x, a]:
                continue
            row = x * A + a
            q[:] = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                i = indices[k]
                for m in range(n):
                    q[m] += p[k, m_from + m] * w[i, m]
            if first:
                for m in range(n):
                    out[x, m] = q[m]
            elif least:
                for m in range(n):
                    out[x, m] = min(out[x, m], q[m])
            else:
                for m in range(n):
                    out[x, m] = max(out[x, m], q[m])
            first = False


@jit(fastmath={"contract"})
def reach_varying(s_from, s_to, indptr, indices, p, mask, start, lo, hi):  # type: ignore[no-untyped-def]
    """L and B of the states s_from..s_to where p or the open actions vary with time."""
    T, S, M = lo.shape
    A = mask.shape[2]
    q = np.empty(M)
    w, w_next = np.empty((S, M)), np.empty((S, M))
    for s in range(s_from, s_to):
        for end in range(T):
            for least in range(2):
                w[:] = 0.0
                w[s] = 1.0
                for t in range(end - 1, -1, -1):
                    p_t = p[t if p.shape[0] > 1 else 0]
                    _reach_step(0, indptr, indices, p_t, mask[t], least, w, w_next, q, A)
                    w, w_next = w_next, w
                out = lo if least else hi
                for m in range(M):
                    total = 0.0
                    for x in range(S):
                        total += start[x, m] * w[x, m]
                    out[end, s, m] = total


# ------------------------------------------------------------------ the dual: price of one policy
@jit(**SUMS, forceinline=True)
def _prices(y, lo, hi, t, s, a):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(y.shape[3])):
        x = y[t, s, a, m]
        total += max(x, 0.0) * hi[t, s, m] + min(x, 0.0) * lo[t, s, m]
    return total


@jit(**FAST)
def couple(t_from, t_to, y, lo, hi, mask, gamma, h, best, out):  # type: ignore[no-untyped-def]
    """H and its maximiser at every (t, s); out[t] = gamma^t sum_s max_a H."""
    _, S, A, _ = y.shape
    for t in range(t_from, t_to):
        total = 0.0
        for s in range(S):
            top = -np.inf
            for a in range(A):
                h[t, s, a] = -np.inf
                if mask[t, s, a]:
                    h[t, s, a] = _prices(y, lo, hi, _U(t), _U(s), _U(a))
                    if h[t, s, a] > top:
                        top = h[t, s, a]
                        best[t, s] = a
            total += top
        out[t] = gamma**t * total


@jit(**SUMS, forceinline=True)
def _is_free(y, t, s):  # type: ignore[no-untyped-def]
    for a in range(_U(y.shape[2])):
        largest = 0.0
        for m in range(_U(y.shape[3])):
            largest = max(largest, abs(y[t, s, a, m]))
        if largest > 0.0:
            return False
    return True


@jit(**SUMS, forceinline=True)
def _used(u, t, s, a):  # type: ignore[no-untyped-def]
    total = 0.0
    for m in range(_U(u.shape[3])):
        total += u[t, s, a, m]
    return total


@jit(**SUMS, forceinline=True)
def _direction_row(y, u, lo, hi, per_hi, t, s, a, share, keep, d):  # type: ignore[no-untyped-def]
    """One (t, s, a) of :func:`direction`, where the common policy takes a with chance share."""
    total = 0.0
    for m in range(_U(y.shape[3])):
        least, most = lo[t, s, m] * share, hi[t, s, m] * share
        use, price = u[t, s, a, m], y[t, s, a, m]
        near = min(max(use, least), most)
        g = (most if price > 0.0 else (least if price < 0.0 else near)) - use
        new = keep * d[t, s, a, m] + g * per_hi[t, s, m]
        d[t, s, a, m] = new
        total += g * new
    return total


@jit(**FAST)
def direction(t_from, t_to, y, u, lo, hi, per_hi, mask, gamma, best, keep, d, out, share):  # type: ignore[no-untyped-def]
    """d = keep d + subgradient / B; out[t] = <subgradient, d> weighed by gamma^t.

    per_hi (T, S, M) is 1 / B, and 0 where B is. Among the subgradients at y the one near 0 is
    taken: where no price is set at (t, s), every mixture of actions maximises H, and the
    models' own mean mixture often asks for none. share (A,) is scratch of the thread.
    """
    _, S, A, _ = y.shape
    for t in range(t_from, t_to):
        total = 0.0
        for s in range(S):
            if _is_free(y, _U(t), _U(s)):
                used = 1e-300
                for a in range(A):
                    share[a] = _used(u, _U(t), _U(s), _U(a))
                    used += share[a]
                for a in range(A):
                    share[a] /= used
            else:
                for a in range(A):
                    share[a] = 1.0 if a == best[t, s] else 0.0
            for a in range(A):
                if mask[t, s, a]:
                    total += _direction_row(
                        y, u, lo, hi, per_hi, _U(t), _U(s), _U(a), share[a], keep, d
                    )
        out[t] = gamma**t * total


@jit(**FAST)
def move(t_from, t_to, y, d, step, out):  # type: ignore[no-untyped-def]
    """out = y - step d, stopping at 0 where the sign would change (D has its kinks there)."""
    for t in range(t_from, t_to):
        flat_y, flat_d, flat_out = y[t].reshape(-1), d[t].reshape(-1), out[t].reshape(-1)
        for n in range(_U(len(flat_y))):
            new = flat_y[n] - step * flat_d[n]
            flat_out[n] = 0.0 if flat_y[n] * new < 0.0 else new


# ------------------------------------------------------------------ models one by one
@jit(**SUMS, forceinline=True)
def _charge(t, s, a, y, d, step, out, lo, hi, q):  # type: ignore[no-untyped-def]
    """q -= y, with y moved along d on the way where step > 0; returns H of the row."""
    M = _U(y.shape[3])
    if step > 0.0:  # loops that write one array each become SIMD
        for m in range(M):
            new = y[t, s, a, m] - step * d[t, s, a, m]
            out[t, s, a, m] = 0.0 if y[t, s, a, m] * new < 0.0 else new
        for m in range(M):
            q[m] -= out[t, s, a, m]
        return _prices(out, lo, hi, t, s, a)
    for m in range(M):
        q[m] -= y[t, s, a, m]
    return _prices(y, lo, hi, t, s, a)


@jit(**FUSED)
def own_backward(  # type: ignore[no-untyped-def]
    marks, rank, edges, indptr, indices, p, r, y, d, step, out, lo, hi, mask, gamma, v, own, h,
    best, q,
):  # fmt: skip
    """Each model's own optimum with rewards r - y; v (2, S, M) ends with t = 0 in slot 0.

    H and its maximiser (see couple) come with it. Where step > 0, y is first moved along d
    into ``out`` (see move). y has length 0 where there are no prices. Threads that call it
    with the same ``marks`` share the states of each time step (see march); q (M,) is scratch
    of the thread.
    """
    T, _, A = mask.shape
    M = _U(v.shape[2])
    while True:
        number, piece = march.take(marks, rank, len(edges) - 1, T)
        if number >= T:
            return
        t = T - 1 - number
        v_t, v_next = v[t % 2], v[(t + 1) % 2]
        p_t = p[t if p.shape[0] > 1 else 0]
        r_t = r[t if r.shape[0] > 1 else 0]
        for s in range(edges[piece], edges[piece + 1]):
            top, first = -np.inf, True
            us, ut = _U(s), _U(t)
            for a in range(A):
                row, ua = s * A + a, _U(a)
                if not mask[t, s, a]:
                    if step > 0.0:
                        for m in range(M):
                            out[ut, us, ua, m] = y[ut, us, ua, m]
                    h[t, s, a] = -np.inf
                    continue
                _q_row(
                    p_t, v_next, r_t[us, ua], indices, _U(indptr[row]), _U(indptr[row + 1]), gamma,
                    _U(0), M, q,
                )  # fmt: skip
                if len(y) > 0:
                    price = _charge(ut, us, ua, y, d, step, out, lo, hi, q)
                    h[t, s, a] = price
                    if price > top:
                        top = price
                        best[t, s] = a
                _take_own(q, v_t, own, ut, us, M, np.int16(a), first)
                first = False
        march.done(marks)


@jit(**FAST, forceinline=True)
def _take_own(q, v, own, t, s, M, code, first):  # type: ignore[no-untyped-def]
    """Each model takes this action where it is better than what it has."""
    if first:
        for m in range(M):
            v[s, m] = q[m]
            own[t, s, m] = code
        return
    for m in range(M):
        own[t, s, m] = code if q[m] > v[s, m] else own[t, s, m]
    for m in range(M):
        v[s, m] = max(v[s, m], q[m])


@jit(**FUSED)
def own_forward(m_from, m_to, indptr, indices, p, mask, own, n, u, w):  # type: ignore[no-untyped-def]
    """Occupancy u of the own policies; n (2, S, M) holds lambda_m mu(s) in slot 0 at the start.

    w (M,) is scratch of the thread.
    """
    T, S, A = mask.shape
    lo, hi = _U(m_from), _U(m_to)
    for t in range(T):
        n_t, n_next = n[t % 2], n[(t + 1) % 2]
        p_t = p[t if p.shape[0] > 1 else 0]
        ut = _U(t)
        for s in range(_U(S)):
            for m in range(lo, hi):
                n_next[s, m] = 0.0
        for s in range(_U(S)):
            for a in range(_U(A)):
                code = np.int16(a)
                for m in range(lo, hi):
                    w[m] = n_t[s, m] if own[ut, s, m] == code else 0.0
                    u[ut, s, a, m] = w[m]
                if t == T - 1 or _mass(w, lo, hi) <= 0.0:
                    continue
                row = s * _U(A) + a
                for k in range(_U(indptr[row]), _U(indptr[row + _U(1)])):
                    x = _U(indices[k])
                    for m in range(lo, hi):
                        n_next[x, m] += p_t[k, m] * w[m]


# ------------------------------------------------------------------ CADP inside a mask
@jit(fastmath={"contract"})
def masked_sweep(indptr, indices, p, r, mask, gamma, b, v, actions):  # type: ignore[no-untyped-def]
    """One CADP sweep over the open actions: actions (T, S) change only where G gains.

    b (T, S, M) weights; v (2, S, M) holds the terminal values in slot T % 2 and ends with the
    values at t = 0 in slot 0.
    """
    T, S, A = mask.shape
    M = _U(v.shape[2])
    q, kept = np.empty(v.shape[2]), np.empty(v.shape[2])
    for t in range(T - 1, -1, -1):
        v_t, v_next = v[t % 2], v[(t + 1) % 2]
        p_t = p[t if p.shape[0] > 1 else 0]
        r_t = r[t if r.shape[0] > 1 else 0]
        for s in range(S):
            us, ut = _U(s), _U(t)
            incumbent = actions[t, s]
            best, chosen = -np.inf, -1
            for step in range(A + 1):  # the incumbent first: it keeps ties
                a = incumbent if step == 0 else step - 1
                if not mask[t, s, a] or (step > 0 and a == incumbent):
                    continue
                row = s * A + a
                for m in range(M):
                    q[m] = 0.0
                for k in range(_U(indptr[row]), _U(indptr[row + 1])):
                    x = _U(indices[k])
                    for m in range(M):
                        q[m] += p_t[k, m] * v_next[x, m]
                total, size = 0.0, 0.0
                for m in range(M):
                    q[m] = r_t[us, _U(a), m] + gamma * q[m]
                    total += b[ut, us, m] * q[m]
                    size += abs(b[ut, us, m] * q[m])
                if chosen < 0 or total > best + 1e-12 * size:
                    best, chosen = total, a
                    for m in range(M):
                        kept[m] = q[m]
            actions[t, s] = chosen
            for m in range(M):
                v_t[us, m] = kept[m]


# ------------------------------------------------------------------ pairs of models
@jit(fastmath={"contract"})
def _gather(p, i, j, h, at, pair):  # type: ignore[no-untyped-def]
    """pair[k] = (p_i, p_j, theta) and at[k]: the Bayes update of entry k as a shift of the grid.

    The new belief lies ``at`` whole steps away and ``theta`` of the way to the next.
    """
    for k in range(p.shape[0]):
        a, b = p[k, i], p[k, j]
        pair[k, 0], pair[k, 1], pair[k, 2], at[k] = a, b, 0.0, 0
        if a > 0.0 and b > 0.0:
            ratio = a / b
            d = int(min(max(np.floor(np.log(ratio) / h), -1e6), 1e6))
            below, above = np.exp(h * d), np.exp(h * (d + 1))
            at[k] = d
            if below > 0.0 and above < np.inf:
                pair[k, 2] = min(1.0, max(0.0, (ratio - below) / (above - below)))


@jit(fastmath={"contract"})
def _pair_backward(  # type: ignore[no-untyped-def]
    i, j, li, lj, c, h, indptr, indices, p, r, y, priced, mask, gamma, terminal,
    own_i, own_j, choice, w, vi, vj, q, at, pair,
):  # fmt: skip
    """Values on the grid; w (2, S, 3 G), vi, vj (2, S) end with t = 0 in slot 0.

    The middle third of w is the grid. The outer thirds continue it along the end rays, so that
    a Bayes update is one shifted read.
    """
    T, S, A = mask.shape
    G = len(c)
    longer = np.empty(3 * G)
    for g in range(3 * G):
        longer[g] = np.exp(h * (g - G - G // 2))
    last = T % 2
    for s in range(S):
        vi[last, s] = li * terminal[s, i]
        vj[last, s] = lj * terminal[s, j]
        for g in range(G):
            w[last, s, G + g] = c[g] * vi[last, s] + vj[last, s]
        _extend(w[last, s], longer, vi[last, s], vj[last, s])
    for t in range(T - 1, -1, -1):
        now, after = t % 2, (t + 1) % 2
        p_t = p[t if p.shape[0] > 1 else 0]
        r_t = r[t if r.shape[0] > 1 else 0]
        if p.shape[0] > 1 or t == T - 1:
            _gather(p_t, i, j, h, at, pair)
        w_next, w_now = w[after], w[now]
        for s in range(S):
            first = True
            top_i, top_j = -np.inf, -np.inf
            for a in range(A):
                if not mask[t, s, a]:
                    continue
                ri, rj = li * r_t[s, a, i], lj * r_t[s, a, j]
                if priced:
                    ri -= li * y[t, s, a, i]
                    rj -= lj * y[t, s, a, j]
                for g in range(_U(G)):
                    q[g] = c[g] * ri + rj
                row = s * A + a
                qi, qj = _pair_row(
                    q, w_next, c, vi[after], vj[after], indices, _U(indptr[row]),
                    _U(indptr[row + 1]), gamma, at, pair,
                )  # fmt: skip
                qi, qj = qi + ri, qj + rj
                if first or qi > top_i:
                    top_i = qi
                    own_i[t, s] = a
                if first or qj > top_j:
                    top_j = qj
                    own_j[t, s] = a
                _take(q, w_now[s], choice[t, s], np.int16(a), first)
                first = False
            vi[now, s], vj[now, s] = top_i, top_j
            _extend(w_now[s], longer, top_i, top_j)


@jit(fastmath={"contract"})
def _extend(w, c, ei, ej):  # type: ignore[no-untyped-def]
    """Continue the grid: below towards the value of model j alone, above along that of i.

    c (3 G) holds the ratios of all of w. W is convex, so both lines lie above it.
    """
    n = _U(len(w) // 3)
    below = (w[n] - ej) / c[n]
    for g in range(n):
        w[g] = ej + below * c[g]
    top = _U(2) * n
    above = w[top - _U(1)] - c[top - _U(1)] * ei
    for g in range(top, top + n):
        w[g] = above + ei * c[g]


@jit(fastmath={"contract"})
def _pair_row(q, w, c, vi, vj, indices, start, stop, gamma, at, pair):  # type: ignore[no-untyped-def]
    """q[g] += gamma sum_k W(lambda_i c_g p_i, lambda_j p_j); returns the sums of i and j alone."""
    G = len(c)
    qi, qj = 0.0, 0.0
    for k in range(start, stop):
        x = _U(indices[k])
        pi, pj = gamma * pair[k, 0], gamma * pair[k, 1]
        ei, ej = vi[x], vj[x]
        qi += pi * ei
        qj += pj * ej
        d = at[k]
        if pi > 0.0 and pj > 0.0 and d >= -G and d < G:
            one, two, e = pj * (1.0 - pair[k, 2]), pj * pair[k, 2], _U(G + d)
            for g in range(_U(G)):
                q[g] += one * w[x, g + e] + two * w[x, g + e + _U(1)]
        elif pj <= 0.0:
            _add_line(q, c, _U(0), _U(G), pi * ei, 0.0)
        elif pi <= 0.0:
            _add_line(q, c, _U(0), _U(G), 0.0, pj * ej)
        elif d < 0:
            _add_line(q, c, _U(0), _U(G), pi * (w[x, _U(G)] - ej) / c[0], pj * ej)
        else:
            top = _U(2 * G - 1)
            _add_line(q, c, _U(0), _U(G), pi * ei, pj * (w[x, top] - c[G - 1] * ei))
    return qi, qj


@jit(fastmath={"contract"})
def _add_line(q, c, start, stop, slope, base):  # type: ignore[no-untyped-def]
    for g in range(start, stop):
        q[g] += slope * c[g] + base


@jit()
def _take(q, w, choice, a, first):  # type: ignore[no-untyped-def]
    """w = max(w, q) on the grid, noting action a where q is larger."""
    n = _U(len(q))
    if first:
        for g in range(n):
            choice[g] = a
            w[g + n] = q[g]
        return
    for g in range(n):
        choice[g] = a if q[g] > w[g + n] else choice[g]
    for g in range(n):
        w[g + n] = max(w[g + n], q[g])


@jit(fastmath={"contract"})
def _pair_forward(  # type: ignore[no-untyped-def]
    i, j, li, lj, c, h, indptr, indices, p, initial, own_i, own_j, choice, n, ni, nj, at,
    pair, u,
):  # fmt: skip
    """Occupancy u of the policy that the backward pass found on the grid (its transpose)."""
    T, S, G = choice.shape
    A = u.shape[2]
    n[0] = 0.0
    ni[0] = 0.0
    nj[0] = 0.0
    for s in range(S):
        n[0, s, G // 2] = initial[s]
    for t in range(T):
        now, after = t % 2, (t + 1) % 2
        p_t = p[t if p.shape[0] > 1 else 0]
        if p.shape[0] > 1:
            _gather(p_t, i, j, h, at, pair)
        n_now, n_next, ni_next, nj_next = n[now], n[after], ni[after], nj[after]
        n_next[:] = 0.0
        ni_next[:] = 0.0
        nj_next[:] = 0.0
        for s in range(S):
            for a in range(A):
                u[t, s, a, i] = 0.0
                u[t, s, a, j] = 0.0
            a = own_i[t, s]
            if ni[now, s] > 0.0:
                u[t, s, a, i] += li * ni[now, s]
                for k in range(indptr[s * A + a], indptr[s * A + a + 1]):
                    ni[after, indices[k]] += pair[k, 0] * ni[now, s]
            a = own_j[t, s]
            if nj[now, s] > 0.0:
                u[t, s, a, j] += lj * nj[now, s]
                for k in range(indptr[s * A + a], indptr[s * A + a + 1]):
                    nj[after, indices[k]] += pair[k, 1] * nj[now, s]
            g = 0
            while g < G:  # runs of beliefs that share an action
                a = choice[t, s, g]
                end = g + 1
                while end < G and choice[t, s, end] == a:
                    end += 1
                mass_i, mass_j = _masses(n_now, _U(s), c, _U(g), _U(end))
                if mass_j > 0.0:
                    u[t, s, a, i] += li * mass_i
                    u[t, s, a, j] += lj * mass_j
                    if t < T - 1:
                        _spread(
                            s * A + a, g, end, n_now, _U(s), mass_i, mass_j, c, indptr, indices,
                            at, pair, n_next, ni_next, nj_next,
                        )  # fmt: skip
                g = end


@jit(fastmath={"contract"})
def _spread(  # type: ignore[no-untyped-def]
    row, g_from, g_to, n, s, mass_i, mass_j, c, indptr, indices, at, pair, out, ni, nj
):
    """The transpose of ``_pair_row`` over the beliefs g_from..g_to of one row."""
    G = len(c)
    for k in range(_U(indptr[row]), _U(indptr[row + 1])):
        x = _U(indices[k])
        pi, pj = pair[k, 0], pair[k, 1]
        if pj <= 0.0:
            ni[x] += pi * mass_i
            continue
        if pi <= 0.0:
            nj[x] += pj * mass_j
            continue
        d = at[k]
        low = min(g_to, max(g_from, -d))
        high = max(low, min(g_to, G - 1 - d))
        if low > g_from:
            ray_i, ray_j = _masses(n, s, c, _U(g_from), _U(low))
            out[x, _U(0)] += pi * ray_i / c[0]
            nj[x] += pj * ray_j - pi * ray_i / c[0]
        if high > low:
            one, two = pj * (1.0 - pair[k, 2]), pj * pair[k, 2]
            if d >= 0:
                e = _U(d)
                for g in range(_U(low), _U(high)):
                    out[x, g + e] += one * n[s, g]
                for g in range(_U(low), _U(high)):
                    out[x, g + e + _U(1)] += two * n[s, g]
            else:
                e = _U(-d)
                for g in range(_U(low), _U(high)):
                    out[x, g - e] += one * n[s, g]
                for g in range(_U(low), _U(high)):
                    out[x, g - e + _U(1)] += two * n[s, g]
        if high < g_to:
            ray_i, ray_j = _masses(n, s, c, _U(high), _U(g_to))
            out[x, _U(G - 1)] += pj * ray_j
            ni[x] += pi * ray_i - pj * c[G - 1] * ray_j


@jit(fastmath={"contract", "reassoc"})
def _masses(n, s, c, start, stop):  # type: ignore[no-untyped-def]
    mass_i, mass_j = 0.0, 0.0
    for g in range(start, stop):
        mass_j += n[s, g]
        mass_i += n[s, g] * c[g]
    return mass_i, mass_j


@jit()
def pair_values(  # type: ignore[no-untyped-def]
    first, second, li, lj, c, h, indptr, indices, p, r, y, priced, mask, gamma, terminal,
    initial, want_u, u, out,
):  # fmt: skip
    """out[n] = value of pair n at the root: (lambda_i + lambda_j) V_1; u of both where wanted."""
    T, S, _ = mask.shape
    G = len(c)
    own_i, own_j = np.zeros((T, S), np.int32), np.zeros((T, S), np.int32)
    choice = np.zeros((T, S, G), np.int16)
    w, vi, vj = np.zeros((2, S, 3 * G)), np.zeros((2, S)), np.zeros((2, S))
    q, chances = np.empty(G), np.zeros((2, S, G))
    at, pair = np.zeros(p.shape[1], np.int64), np.zeros((p.shape[1], 3))
    for n in range(len(first)):
        i, j = first[n], second[n]
        _pair_backward(
            i, j, li[n], lj[n], c, h, indptr, indices, p, r, y, priced, mask, gamma, terminal,
            own_i, own_j, choice, w, vi, vj, q, at, pair,
        )  # fmt: skip
        total = 0.0
        for s in range(S):
            total += initial[s] * w[0, s, G + G // 2]
        out[n] = total
        if want_u:
            _pair_forward(
                i, j, li[n], lj[n], c, h, indptr, indices, p, initial, own_i, own_j, choice,
                chances, vi, vj, at, pair, u,
            )  # fmt: skip
