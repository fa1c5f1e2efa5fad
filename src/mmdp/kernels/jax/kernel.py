"""The kernel that runs on accelerators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from mmdp.errors import InputError
from mmdp.kernels.cpu.kernel import NumbaKernel
from mmdp.kernels.exchange import together
from mmdp.kernels.jax.arrays import CACHE, Place, double
from mmdp.kernels.jax.ascent import Job, ascend
from mmdp.kernels.jax.passes import run_backward, run_forward
from mmdp.kernels.jax.rows import Tuning
from mmdp.kernels.problem import (
    Array,
    Ascent,
    Backward,
    Choice,
    IntArray,
    Problem,
    Rows,
    Sweeps,
    Table,
    Watch,
)

Precision = Literal["double", "mixed"]


class JaxKernel(NumbaKernel):
    """jax on a CPU, GPU or TPU, always in 64-bit arithmetic.

    Passes and ascents run there; bounds and episodes are the CPU kernel's.

    Parameters
    ----------
    precision
        ``"mixed"`` lets ascents read p in 32 bits (half the reading), with sums in 64; their
        ends are then valued and climb on in 64 bits. Everything else is in 64 bits.
    devices
        Devices to spread the models over (``jax.devices()``); the default one if None.
    tuning
        How the work is written for the compiler; what suits the devices if None.

    The first call for a shape compiles for a second or so. The arrays of a problem stay on
    the device while the problem lives, for the next call; :meth:`forget` drops them.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> JaxKernel().ascend(two.problem, 2, [None])[0].value
    7.0
    """

    name = "jax"

    def __init__(
        self,
        precision: Precision = "double",
        devices: Sequence[Any] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if precision not in ("double", "mixed"):
            raise InputError(f"no precision is called {precision!r}; choose double or mixed")
        super().__init__()
        self.precision = precision
        self.place = Place(None if devices is None else tuple(devices))
        self.tuning = Tuning.suited(self.place) if tuning is None else tuning

    @staticmethod
    def forget() -> None:
        """Drop the device arrays of all problems."""
        CACHE.clear()

    # ------------------------------------------------------------ passes
    def backward(
        self,
        problem: Problem,
        horizon: int,
        choice: Choice,
        *,
        weights: Array | None = None,
        policy: Table | None = None,
        keep: Collection[str] = (),
    ) -> Backward:
        wanted = {*keep} - ({"actions"} if choice == "given" else set())
        wanted |= {"actions"} if choice == "weighted" else set()
        place, M = self._place(problem), problem.p.shape[2]
        by_model = {"values", "q"} | ({"actions"} if choice == "own" else set())
        with double(), together():
            first, kept = run_backward(
                place.arrays(problem), place.put(weights, models=-1),
                place.put(_table(policy)), horizon=horizon, choice=choice,
                keep=tuple(sorted(wanted)), tuning=self._tuned(place),
            )  # fmt: skip
            found = {
                name: place.fetch(array, M if name in by_model else None)
                for name, array in kept.items()
            }
            first = place.fetch(first, M)
        actions, values, q = (found.get(name) for name in ("actions", "values", "q"))
        if choice == "given" and "actions" in keep:
            actions = _given_actions(policy, horizon, problem.n_states)
        if values is not None:
            values = np.concatenate([values, problem.terminal[None]])
        if q is not None:
            q = np.where(problem.allowed[..., None], q, -np.inf)
        return Backward(first, actions, values, found.get("gradient"), q)

    def forward(self, problem: Problem, horizon: int, policy: Table) -> Array:
        place = self._place(problem)
        with double(), together():
            x, table = place.arrays(problem), place.put(_table(policy))
            b = run_forward(x, table, tuning=self._tuned(place))
            found: Array = place.fetch(b, problem.p.shape[2])
        return found

    def _place(self, problem: Problem, beside: int = 0) -> Place:
        """Where the models are: of a part, on the devices of all processes."""
        place = self.place
        if problem.part is not None:
            place = Place(tuple(jax.devices()), problem.part.longest)
        place.check_room(problem, beside)
        return place

    def _tuned(self, place: Place) -> Tuning:
        return self.tuning._replace(mesh=place.mesh)

    # ------------------------------------------------------------ ascents
    def ascend(
        self,
        problem: Problem,
        horizon: int,
        starts: Iterable[Table | None],
        *,
        tol: float = 0.0,
        max_sweeps: int = 1000,
        sweeps: Sweeps = "two-way",
        rows: Rows | None = None,
        watch: Watch | None = None,
    ) -> list[Ascent]:
        """See :meth:`mmdp.kernels.problem.Kernel.ascend`.

        Without ``watch`` all sweeps are one compiled loop; with it the loop is cut into blocks
        of some hundredths of a second. On an accelerator deterministic starts run together, and
        ``watch`` sees the best of them. In mixed precision it sees values in 64 bits, and the
        trace is that of the ascent in 64 bits.
        """
        if rows is not None:
            return super().ascend(
                problem, horizon, starts, tol=tol, max_sweeps=max_sweeps, sweeps=sweeps,
                rows=rows, watch=watch,
            )  # fmt: skip
        job = Job(horizon, float(tol), max_sweeps, sweeps == "two-way", watch)
        if self.precision == "double":
            return self._ascend(problem, starts, job, np.float64)
        rough_job = job
        if watch is not None:
            valued: Watch = lambda policy, _: watch(*self._opened(problem, horizon, policy))
            rough_job = job._replace(watch=valued)
        rough = self._ascend(problem, starts, rough_job, np.float32)
        left = [max_sweeps - end.sweeps for end in rough]
        job = job._replace(max_sweeps=max(left, default=0))
        ends = self._ascend(problem, [end.policy for end in rough], job, np.float64)
        for k, before in enumerate(rough):
            if ends[k].sweeps > left[k]:  # it ran with others that had more sweeps left
                alone = job._replace(max_sweeps=left[k])
                ends[k] = self._ascend(problem, [before.policy], alone, np.float64)[0]
        return [
            end._replace(sweeps=before.sweeps + end.sweeps)
            for before, end in zip(rough, ends, strict=True)
        ]

    def _ascend(
        self, problem: Problem, starts: Iterable[Table | None], job: Job, store: Any
    ) -> list[Ascent]:
        """All starts with p in ``store``, in groups that run together."""
        ends: dict[int, Ascent] = {}
        per_model = job.horizon * problem.n_states * (1 + job.two_way * problem.n_actions)
        place = self._place(problem, beside=per_model)  # b, and q if it is kept
        tuning = self._tuned(place)
        for group in self._groups(problem, starts, job):
            tables, wide = list(group.values()), len(group) > 1
            with double():
                x = place.arrays(problem, wide, store)
                table = self._stacked(problem, job.horizon, tables) if wide else _table(tables[0])
                start = place.put(table)
            with together():
                here, tuned = problem.p.shape[2], tuning._replace(wide=wide)
                found = ascend(x, start, job, tuned, place, here)
            for k, end in zip(group, found, strict=True):
                ends[k] = end._replace(returns=problem.gathered(end.returns))
        return [ends[k] for k in sorted(ends)]

    def _groups(
        self, problem: Problem, starts: Iterable[Table | None], job: Job
    ) -> Iterator[dict[int, Table | None]]:
        """Which starts run together, by number: deterministic ones, as many as memory allows.

        A start is computed when its group is formed.
        """
        each = 8 * job.horizon * problem.n_states * problem.n_models
        each *= problem.n_actions if job.two_way else 1
        most = max(1, self.tuning.together // each) if self.tuning.wide else 1
        group: dict[int, Table | None] = {}
        for k, start in enumerate(starts):
            if start is not None and start.ndim == 3:
                yield {k: start}
                continue
            group[k] = start
            if job.watch is not None and k == 1 == len(group) - 1:
                # the next ones may take long: whoever watches may be content with the first
                group[0] = (opened := self._opened(problem, job.horizon, group[0]))[0]
                job.watch(*opened)
            if len(group) == most:
                yield group
                group = {}
        if group:
            yield group

    def _stacked(self, problem: Problem, horizon: int, tables: Sequence[Table | None]) -> IntArray:
        """(T, S, K) actions of deterministic starts."""
        whole = [
            self._opened(problem, horizon, None)[0] if table is None else table for table in tables
        ]
        return np.stack(whole, axis=-1).astype(np.int32)

    def _opened(self, problem: Problem, horizon: int, start: Table | None) -> tuple[Table, float]:
        """A start, which is WSU's policy if None, and its value in 64 bits."""
        if start is None:
            found = self.backward(problem, horizon, "weighted", weights=problem.prior_weights())
        else:
            found = self.backward(problem, horizon, "given", policy=start)
        table = start if found.actions is None else found.actions
        assert table is not None
        return table, float(problem.returns(found.first) @ problem.weights)


def _table(policy: Table | None) -> Table | None:
    """A policy as 32-bit actions (T, S) or 64-bit probabilities (T, S, A)."""
    if policy is None:
        return None
    return np.asarray(policy, dtype=np.int32 if policy.ndim == 2 else np.float64)


def _given_actions(policy: Table | None, horizon: int, n_states: int) -> IntArray:
    """What a pass along a given policy reports as its actions."""
    if policy is not None and policy.ndim == 2:
        return np.array(policy, dtype=np.int32)
    return np.zeros((horizon, n_states), dtype=np.int32)
