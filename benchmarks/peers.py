"""Peers: CADP as others would write it, each a full run from WSU's policy.

All of them solve an :class:`Instance` and give back a :class:`Result`. A run is a pass with
the initial model weights (WSU), then sweeps of one forward pass (model weights b) and one
backward pass (argmax of sum_m b q), until the policy repeats or the sweeps are used up.

- :class:`Loops`: the authors' nested loops over (t, s, a, m, s'), compiled by numba. The
  immediate reward sum_s' p r is computed again at every visit, and q once more for the
  chosen action. Layout ``"authors"``: p[s, a, s', m] with s varying fastest, as published,
  so that sums over s' stride. Layout ``"contiguous"``: the same loops with s' contiguous.
- :class:`Numpy`: batched matmul with models first.

``TOOLBOXES`` are packages for one model over a finite horizon; they may be missing, as may mdpax.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol

import numba
import numpy as np
import numpy.typing as npt

from benchmarks.instances import Array, Instance, SingleModel

Actions = npt.NDArray[np.int64]


class Result(NamedTuple):
    """policy (T, S), its value, and the sweeps used (the one that confirms is counted)."""

    policy: Actions
    value: float
    sweeps: int


class Peer(Protocol):
    """The two passes that a CADP run is made of."""

    def prior(self) -> Array:
        """The initial model weights as constant b over time and states."""
        ...

    def forward(self, policy: Actions) -> Array:
        """b_{t,m}(s) of a policy (eq. belief-update)."""
        ...

    def backward(self, b: Array) -> tuple[Actions, float]:
        """The policy that maximises sum_m b q, and its value."""
        ...


def run_cadp(peer: Peer, max_sweeps: int = 1000) -> Result:
    """CADP from WSU's policy (algorithms 1 and 2 of the paper)."""
    policy, value = peer.backward(peer.prior())
    for sweep in range(1, max_sweeps + 1):
        improved, new_value = peer.backward(peer.forward(policy))
        if (improved == policy).all() or new_value <= value:
            return Result(policy, value, sweep)
        policy, value = improved, new_value
    return Result(policy, value, max_sweeps)


# ------------------------------------------------------------------ the authors' loops
@numba.njit
def _compute_q(p, r, v, gamma, s, a, m):  # type: ignore[no-untyped-def]
    immediate = 0.0
    for n in range(p.shape[2]):
        immediate += p[s, a, n, m] * r[s, a, n, m]
    future = 0.0
    for n in range(p.shape[2]):
        future += p[s, a, n, m] * v[n, m]
    return immediate + gamma * future


@numba.njit
def _run_loops_backward(p, r, b, gamma, v, policy):  # type: ignore[no-untyped-def]
    n_states, n_actions, _, n_models = p.shape
    for t in range(len(policy) - 1, -1, -1):
        for s in range(n_states):
            best = -np.inf
            for a in range(n_actions):
                weighted = 0.0
                for m in range(n_models):
                    weighted += b[s, m, t] * _compute_q(p, r, v[:, :, t + 1], gamma, s, a, m)
                if weighted > best:
                    best = weighted
                    policy[t, s] = a
            for m in range(n_models):
                v[s, m, t] = _compute_q(p, r, v[:, :, t + 1], gamma, s, policy[t, s], m)


@numba.njit
def _run_loops_forward(p, policy, b):  # type: ignore[no-untyped-def]
    n_states, _, _, n_models = p.shape
    for t in range(len(policy) - 1):
        for m in range(n_models):
            for n in range(n_states):
                total = 0.0
                for s in range(n_states):
                    total += p[s, policy[t, s], n, m] * b[s, m, t]
                b[n, m, t + 1] = total


class Loops:
    """The authors' loops; arrays b, v (S, M, T) with s varying fastest, as p."""

    def __init__(self, instance: Instance, layout: Literal["authors", "contiguous"]) -> None:
        self.instance = instance
        self.p = _arrange(instance.transitions, layout)
        self.r = _arrange(instance.next_rewards, layout)

    def _allocate(self, steps: int) -> Array:
        models, states, _ = self.instance.shape
        return np.zeros((states, models, steps), order="F")

    def prior(self) -> Array:
        b = self._allocate(self.instance.horizon)
        b[:] = 1.0 / self.instance.shape[0]
        return b

    def forward(self, policy: Actions) -> Array:
        b = self._allocate(self.instance.horizon)
        b[:, :, 0] = self.instance.initial[:, None] / self.instance.shape[0]
        _run_loops_forward(self.p, policy, b)
        return b

    def backward(self, b: Array) -> tuple[Actions, float]:
        x = self.instance
        v = self._allocate(x.horizon + 1)
        policy = np.zeros((x.horizon, x.shape[1]), dtype=np.int64)
        _run_loops_backward(self.p, self.r, b, x.discount, v, policy)
        return policy, float((x.initial @ v[:, :, 0]).mean())


def _arrange(array: Array, layout: str) -> Array:
    """(M, S, A, S') as [s, a, s', m], s varying fastest (authors) or s' (contiguous)."""
    if layout == "authors":
        return np.asfortranarray(array.transpose(1, 2, 3, 0))
    return np.ascontiguousarray(array.transpose(1, 2, 0, 3)).transpose(0, 1, 3, 2)


# ------------------------------------------------------------------ plain numpy
class Numpy:
    """Models first: q of a step is one batched matmul (M, S*A, S') @ (M, S', 1)."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.p = np.ascontiguousarray(instance.transitions)
        self.r = np.ascontiguousarray(instance.rewards)

    def prior(self) -> Array:
        models, states, _ = self.instance.shape
        return np.full((self.instance.horizon, models, states), 1.0 / models)

    def forward(self, policy: Actions) -> Array:
        x = self.instance
        models, states, _ = x.shape
        b = np.empty((x.horizon, models, states))
        b[0] = x.initial / models
        for t in range(x.horizon - 1):
            p = self.p[:, np.arange(states), policy[t]]  # (M, S, S')
            b[t + 1] = (b[t, :, None, :] @ p)[:, 0]
        return b

    def backward(self, b: Array) -> tuple[Actions, float]:
        x = self.instance
        models, states, actions = x.shape
        p = self.p.reshape(models, states * actions, states)
        v = np.zeros((models, states))
        policy = np.empty((x.horizon, states), dtype=np.int64)
        for t in reversed(range(x.horizon)):
            q = self.r + x.discount * (p @ v[:, :, None]).reshape(models, states, actions)
            policy[t] = np.einsum("ms,msa->sa", b[t], q).argmax(axis=1)
            v = q[:, np.arange(states), policy[t]]
        return policy, float((v @ x.initial).mean())


PEERS: dict[str, Callable[[Instance], Any]] = {
    "authors' loops": lambda instance: Loops(instance, "authors"),
    "loops, contiguous layout": lambda instance: Loops(instance, "contiguous"),
    "plain numpy": Numpy,
}


# ------------------------------------------------------------------ toolboxes for one model
def _prepare_quantecon(one: SingleModel, horizon: int) -> Callable[[], Array]:
    """Return a call of backward_induction that gives the values (S,) at the first step."""
    from quantecon.markov import DiscreteDP
    from quantecon.markov.ddp import backward_induction

    states, actions = one.r.shape
    if isinstance(one.p, np.ndarray):
        problem = DiscreteDP(one.r, one.p, one.discount)
    else:  # pairs of state and action, as it wants sparse transitions
        pairs = np.repeat(np.arange(states), actions), np.tile(np.arange(actions), states)
        problem = DiscreteDP(one.r.reshape(-1), one.p, one.discount, *pairs)

    def run() -> Array:
        values: Array = backward_induction(problem, horizon)[0][0]
        return values

    return run


TOOLBOXES: dict[str, Callable[[SingleModel, int], Callable[[], Array]]] = {
    "quantecon": _prepare_quantecon,
}


# ------------------------------------------------------------------ an accelerator
BATCH_SIZES = (1024, 16384)  # of states: mdpax's default, and more


def time_mdpax(n_ages: int, n_demands: int, discount: float, n_steps: int) -> tuple[float, Array]:
    """Return seconds per value iteration of De Moor's perishable stock, and the values after all.

    The faster of two batch sizes counts; 64 bits.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        import orbax.checkpoint  # noqa: F401
    except ImportError:  # it saves checkpoints, which are not wanted here
        package, module = ModuleType("orbax"), ModuleType("orbax.checkpoint")
        package.checkpoint, module.CheckpointManager = module, object  # type: ignore[attr-defined]
        sys.modules |= {"orbax": package, "orbax.checkpoint": module}
    from mdpax.problems.perishable_inventory.de_moor_single_product import (
        DeMoorSingleProductPerishable,
    )
    from mdpax.solvers.value_iteration import ValueIteration

    problem = DeMoorSingleProductPerishable(
        max_demand=n_demands - 1, max_useful_life=n_ages, lead_time=2, issue_policy="fifo"
    )
    seconds: dict[int, float] = {}
    for size in BATCH_SIZES:
        solver = ValueIteration(
            problem=problem,
            gamma=discount,
            max_batch_size=size,
            verbose=0,
            jax_double_precision=True,
        )
        zero = solver.values
        jax.block_until_ready(solver._iteration_step()[0])  # compiles
        solver.values = zero
        start = time.perf_counter()
        for _ in range(n_steps):
            solver.values = solver._iteration_step()[0]
        jax.block_until_ready(solver.values)
        seconds[size] = (time.perf_counter() - start) / n_steps
    return min(seconds.values()), np.asarray(solver.values)
