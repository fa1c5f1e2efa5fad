"""Estimates of computing time by size, for each backend and each layout of the transitions.

A pass over T steps costs a time for the call and, at every step, for the step itself, for each
outcome of a row if there is a loop over them in Python, for each model, row, entry, row and
model, entry and model, and for the product with the chain of the models if these change.
``benchmarks/backends.py`` fits these costs to measurements on one thread, which are in
``benchmarks/costs.csv``. The estimates are the same on every machine, so that results that depend
on them can be reproduced.
"""

from __future__ import annotations

from operator import mul
from typing import Literal, NamedTuple

MIN_DENSE_FILL = 0.1  # share of non-zero probabilities from which numpy takes rows as dense


class Work(NamedTuple):
    """The sizes of a problem on which its computing time depends."""

    format: Literal["dense", "sparse", "events", "custom"]  # custom: numpy alone knows it
    n_models: int
    n_states: int
    n_actions: int
    n_entries: int
    n_outcomes: int  # of a row
    is_switching: bool

    def find_layout(self, backend: str) -> str:
        """Return the layout of the transitions on a backend, which has its own costs."""
        n_all_entries = self.n_states**2 * self.n_actions
        if self.format == "events":
            layout = f"{backend} events"
        elif self.format == "custom" or (
            backend == "numpy" and self.n_entries < MIN_DENSE_FILL * n_all_entries
        ):
            layout = "numpy sparse"
        elif backend == "numpy":
            layout = "numpy dense"
        else:
            layout = "numba single" if self.n_models == 1 else "numba tables"
        return f"{layout}, switching" if self.is_switching else layout

    def count_operations(self, backend: str, horizon: float) -> PassCosts:
        """Count what one pass does on a backend, in the order of the costs."""
        T, M, S, n_rows = horizon, self.n_models, self.n_states, self.n_states * self.n_actions
        layout = self.find_layout(backend)
        n_entries: float = n_rows * S if layout.startswith("numpy dense") else self.n_entries
        if layout == "numba single":  # after some steps most actions are left out
            n_entries *= min(1.0, 2 / T + 1 / self.n_actions)
        n_loops = self.n_outcomes if self.format == "events" else 0
        switching = S * M**2 if self.is_switching else 0
        per_step = (1, n_loops, M, n_rows, n_rows * M, n_entries, n_entries * M, switching)
        return PassCosts(1.0, *(float(T * n) for n in per_step))

    def count_stationary_operations(self) -> tuple[float, float, float, float]:
        """Count what an ascent of a stationary policy does: once, per state, and in matrices."""
        M, S, A = self.n_models, self.n_states, self.n_actions
        return 1.0, float(S), float(M * S**2 * A), float(M * S**3)


class PassCosts(NamedTuple):
    """Nanoseconds of the operations of a pass, or how often each of them occurs."""

    call: float
    step: float
    outcome: float
    model: float
    row: float
    row_model: float
    entry: float
    entry_model: float
    switch: float


COSTS = {
    "numpy dense": PassCosts(3.87e3, 1.41e4, 0, 47.1, 0, 0, 0, 0.123, 0),
    "numba tables": PassCosts(1.64e4, 73.7, 0, 2.23, 5.93, 0.0912, 0.4, 0.0586, 0),
    "numba single": PassCosts(3.05e4, 0, 0, 0, 3.97, 0, 0.17, 0, 0),
    "numpy events": PassCosts(0, 5.1e4, 9.65e3, 4.83, 49.7, 1.51, 2.19, 0.527, 0),
    "numba events": PassCosts(2.12e4, 36.4, 31.8, 0.212, 9.05, 0.0973, 0.242, 0.0281, 0),
    "numpy sparse": PassCosts(1.03e3, 1.92e4, 0, 0, 0, 0, 5.59, 0.955, 0),
    "numpy dense, switching": PassCosts(2.54e3, 1.57e4, 0, 45.4, 0, 0.546, 0.818, 0.0729, 0.0733),
    "numba tables, switching": PassCosts(0, 2.8e4, 0, 21, 25, 0.771, 0.647, 0.0972, 0.0522),
    "numpy events, switching": PassCosts(0, 5.52e4, 9.55e3, 3.92, 50.1, 0.751, 10.1, 0.386, 0.0898),
    "numba events, switching": PassCosts(0, 5.93e4, 235, 19.7, 57.6, 1.06, 0.245, 0.0971, 0.0516),
    "numpy sparse, switching": PassCosts(0, 2.27e4, 0, 0, 0, 0, 14.6, 0.663, 0.0505),
}
STATIONARY_COSTS = (3.2e5, 6.28e4, 36.5, 0.48)  # nanoseconds of an ascent's operations
LOAD_SECONDS = 0.31  # of compiled code from the cache


def estimate_backend_seconds(
    backend: str, work: Work, horizon: float, n_passes: float = 1.0
) -> float:
    """Estimate the seconds of passes on one thread of a backend whose code is loaded."""
    costs = COSTS[work.find_layout(backend)]
    operations = work.count_operations(backend, horizon)
    return n_passes * (1e-9 * sum(map(mul, operations, costs)))


def estimate_stationary_seconds(work: Work) -> float:
    """Estimate the seconds of an ascent over stationary policies, which is linear algebra."""
    return 1e-9 * sum(map(mul, work.count_stationary_operations(), STATIONARY_COSTS))
