"""The kernel that runs on accelerators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import jax
import numpy as np

from mmdp.kernels.ascent import ascend as climb
from mmdp.kernels.ascent import randomised
from mmdp.kernels.cpu.kernel import CpuEvents, CpuPlan
from mmdp.kernels.cpu.threads import default_threads
from mmdp.kernels.events import Events
from mmdp.kernels.exchange import together
from mmdp.kernels.jax.arrays import Held, Place, double
from mmdp.kernels.jax.ascent import ascend
from mmdp.kernels.jax.changes import run_changes
from mmdp.kernels.jax.events import Windows, large
from mmdp.kernels.jax.passes import run_backward, run_forward, run_push, run_step
from mmdp.kernels.jax.rows import Tuning
from mmdp.kernels.plan import Machine, Plan
from mmdp.kernels.problem import (
    Array,
    Ascent,
    Backward,
    Choice,
    IntArray,
    Job,
    Problem,
    Stored,
    Table,
)


class JaxKernel(Machine):
    """jax on a CPU, GPU or TPU, in 64-bit arithmetic except for the sweeps of :class:`JaxEvents`.

    Passes, single steps, ascents and rounds of single changes for an objective run there; bounds
    and episodes run on the CPU.

    Parameters
    ----------
    devices
        Devices to spread the models over (``jax.devices()``); the default one if None.
    tuning
        How the work is written for the compiler; what suits the devices if None.

    The first call for a shape compiles for a second or so. A plan holds its arrays on the
    device: the transitions go there once.

    >>> import mmdp
    >>> two = mmdp.MMDP([[[[1.0], [1.0]]]] * 2, [[[2.0, 3.0]], [[5.0, 0.0]]])
    >>> JaxKernel().plan(two.problem, 2).ascend([None])[0].value
    7.0
    """

    name = "jax"

    def __init__(self, devices: Sequence[Any] | None = None, tuning: Tuning | None = None) -> None:
        self.place = Place(None if devices is None else tuple(devices))
        self.tuning = Tuning.suited(self.place) if tuning is None else tuning

    def lay_out(self, problem: Problem, horizon: int) -> Plan | None:
        known: dict[type, type[JaxPlan]] = {Stored: JaxPlan, Events: JaxEvents}
        plan, place = known.get(type(problem.storage)), self.place
        if plan is None:
            return None
        if problem.n_parts > 1:  # spread over the devices of all processes
            place = Place(tuple(jax.devices()), problem.most_here)
        return plan(problem, horizon, place, self.tuning._replace(mesh=place.mesh))


class JaxPlan(CpuPlan):
    """Stored tables on a device, or spread over several."""

    def __init__(self, problem: Problem, horizon: int, place: Place, tuning: Tuning) -> None:
        super().__init__(problem, horizon, default_threads())
        place.check_room(problem)
        self.place, self.tuning = place, tuning
        self.held = Held(place, problem)

    def _change(self, problem: Problem, horizon: int) -> None:
        super()._change(problem, horizon)
        self.held = self.held.but()

    # ------------------------------------------------------------ one step
    def expect(self, t: int, v: Array) -> Array:
        return self._stepped(partial(run_step, rewards=False), t, v)

    def step(self, t: int, v: Array) -> Array:
        return self._stepped(partial(run_step, rewards=True), t, v)

    def push(self, t: int, b: Array, row: Table) -> Array:
        return self._stepped(run_push, t, b, _table(row))

    def _stepped(self, run: Callable[..., Any], t: int, by_model: Array, *row: Any) -> Array:
        """``run`` at time t with an array (S, M) and maybe a row of the policy."""
        with double(), together():
            x, put = self.held.arrays(self.problem), self.place.put
            given = put(by_model, models=1), *map(put, row)
            return self._fetched(run(x, np.int32(t), *given, tuning=self.tuning))

    def _fetched(self, array: Any) -> Array:
        found: Array = self.place.fetch(array, self.problem.r.shape[3])
        return found

    # ------------------------------------------------------------ passes
    def _backward(  # type: ignore[override]  # what a Python function picks is the plain plan's
        self, choice: Choice, weights: Array | None, policy: Table | None, keep: Collection[str]
    ) -> Backward:
        problem, place = self.problem, self.place
        wanted = {*keep} - ({"actions"} if choice == "given" else set())
        wanted |= {"actions"} if choice == "weighted" else set()
        M = problem.r.shape[3]
        by_model = {"values", "q"} | ({"actions"} if choice == "own" else set())
        with double(), together():
            first, kept = run_backward(
                self.held.arrays(problem), place.put(weights, models=-1),
                place.put(_table(policy)), horizon=self.horizon, choice=choice,
                keep=tuple(sorted(wanted)), tuning=self.tuning,
            )  # fmt: skip
            found = {
                name: place.fetch(array, M if name in by_model else None)
                for name, array in kept.items()
            }
            first = place.fetch(first, M)
        actions, values, q = (found.get(name) for name in ("actions", "values", "q"))
        if choice == "given" and "actions" in keep:
            sharp = policy is not None and policy.ndim == 2
            actions = np.zeros((self.horizon, problem.n_states), np.int32)
            actions[:] = policy if sharp else 0
        if values is not None:
            values = np.concatenate([values, problem.terminal[None]])
        if q is not None:
            q = np.where(problem.allowed[..., None], q, -np.inf)
        return Backward(first, actions, values, found.get("gradient"), q)

    def forward(self, policy: Table) -> Array:
        with double(), together():
            x, table = self.held.arrays(self.problem), self.place.put(_table(policy))
            return self._fetched(run_forward(x, table, tuning=self.tuning))

    # ------------------------------------------------------------ ascents
    def changed(
        self, table: Table, rho: Array, formula: Any, tie: float
    ) -> tuple[IntArray, Array] | None:
        if self.tuning.mesh is not None:  # the order of the returns is that of all models
            return None
        with double():
            x, given = self.held.arrays(self.problem), map(self.place.put, (_table(table), rho))
            numbers, kind = (np.float64(tie), *astuple(formula)), type(formula)
            found, returns = run_changes(x, *given, *numbers, kind=kind, tuning=self.tuning)
            return np.array(found), np.array(returns)

    def _ascend(self, starts: Iterable[Table | None], job: Job) -> list[Ascent]:  # type: ignore[override]
        """Without ``watch`` all sweeps are one compiled loop; with it the loop is cut into blocks
        of some hundredths of a second. On an accelerator deterministic starts run together, and
        ``watch`` sees the best of them.
        """
        problem, place, ends = self.problem, self.place, {}
        per_model = self.horizon * problem.n_states * (1 + job.two_way * problem.n_actions)
        place.check_room(problem, more=per_model)  # b, and q if it is kept
        for group in self._groups(starts, job):
            tables, wide = list(group.values()), len(group) > 1
            with double():
                x = self.held.arrays(problem, wide)
                if wide:
                    whole = [self._opened(None)[0] if x is None else x for x in tables]
                    tables = [np.stack(whole, axis=-1)]  # (T, S, K)
                start = place.put(_table(tables[0]))
            with together():
                here, tuned = problem.r.shape[3], self.tuning._replace(wide=wide)
                found = ascend(x, start, self.horizon, job, tuned, place, here)
            for k, end in zip(group, found, strict=True):
                ends[k] = end._replace(returns=problem.gathered(end.returns))
        return [ends[k] for k in sorted(ends)]

    def _groups(
        self, starts: Iterable[Table | None], job: Job
    ) -> Iterator[dict[int, Table | None]]:
        """Which starts run together, by number: deterministic ones, as many as memory allows.

        A start is computed when its group is formed.
        """
        x = self.problem
        each = 8 * self.horizon * x.n_states * x.n_models * (x.n_actions if job.two_way else 1)
        most = max(1, self.tuning.together // each) if self.tuning.wide else 1
        group: dict[int, Table | None] = {}
        for k, start in enumerate(starts):
            if start is not None and start.ndim == 3:
                yield {k: start}
                continue
            group[k] = start
            if job.watch is not None and k == 1 == len(group) - 1:
                # the next ones may take long, and the first may be good enough for the watcher
                group[0] = (opened := self._opened(group[0]))[0]
                job.watch(*opened)
            if len(group) == most:
                yield group
                group = {}
        if group:
            yield group

    def _opened(self, start: Table | None) -> tuple[Table, float]:
        """A start, which is WSU's policy if None, and its value."""
        if start is None:
            found = self.backward("weighted", weights=self.problem.prior_weights())
        else:
            found = self.backward("given", policy=start)
        table = start if found.actions is None else found.actions
        assert table is not None
        return table, float(self.returns(found.first) @ self.problem.weights)


def _table(policy: Table | None) -> Table | None:
    """A policy, or one row of it, as 32-bit actions or 64-bit probabilities."""
    if policy is None:
        return None
    return np.asarray(policy, dtype=np.float64 if randomised(policy) else np.int32)


class JaxEvents(JaxPlan, CpuEvents):
    """Shared events on a device."""

    def __init__(self, problem: Problem, horizon: int, place: Place, tuning: Tuning) -> None:
        super().__init__(problem, horizon, place, tuning._replace(wide=False))

    def _ascend(self, starts: Iterable[Table | None], job: Job) -> list[Ascent]:  # type: ignore[override]
        """The paper's sweeps over more than ``LARGE`` bytes of b are made in 32-bit numbers, window
        by window; returns and values of what they end with are computed in 64 bits.
        """
        alone = self.tuning.mesh is None and not job.two_way
        if not (alone and large(self.problem, self.horizon)):
            return super()._ascend(starts, job)
        with double():
            climber = Windows(
                self.held.arrays(self.problem), self.problem, self.horizon, self.tuning
            )
        return [self._climbed(climber, start, job) for start in starts]

    def _climbed(self, climber: Windows, start: Table | None, job: Job) -> Ascent:
        end = climb(climber, start, *job.limits)
        returns = self.returns(self.backward("given", policy=end.policy).first)
        value = float(returns @ self.problem.weights)
        return end._replace(returns=returns, value=value, short=True)
