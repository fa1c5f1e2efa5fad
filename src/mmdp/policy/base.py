"""The base of all policies: what is done with every one of them, written once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Read, Seed, checked, fits
from mmdp.draw.maps import PolicyMap
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.kernels.endless import check_endless
from mmdp.kernels.planner import PlannerTables
from mmdp.policy.kinds import PolicyKind
from mmdp.validate import ids_of, ordered, read_times
from mmdp.words import Times, counted, either, named_axes, named_values

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.model import MMDP
    from mmdp.objective import Objective
    from mmdp.policy.markov import MarkovPolicy, TablePolicy

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Policy:
    """What to do, given all that is known; frozen, and compared by what it does.

    A new policy derives from this class. It has a ``kind`` and a ``horizon`` (the number of
    decisions, infinite if there is no last one), ``parts`` and ``act``; with memory ``start`` and
    ``update`` too. What it cannot do, such as being written as a table, it refuses with a reason.

    It follows the :class:`mmdp.Planner` protocol. Nothing in it changes by use: all that a
    deployment remembers is in the memory that ``start`` makes and ``update`` returns.
    """

    __slots__ = ("action_labels", "n_actions", "n_states", "objective", "state_labels", "times")

    n_states: int
    n_actions: int
    state_labels: tuple[str, ...] | None
    action_labels: tuple[str, ...] | None
    times: Times
    objective: Objective | None  # what it was solved for, if the file that it was read from says so

    title: ClassVar[str] = "the policy"  # in messages
    exact: ClassVar[bool] = True  # whether ``returns`` are known without simulation
    baseline: TablePolicy | None = None  # a control variate for its episodes

    def _set(self, **parts: Any) -> None:
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def _set_labels(
        self, n_states: int, n_actions: int, state_labels: Sequence[str] | None,
        action_labels: Sequence[str] | None, times: Any = None,
    ) -> None:  # fmt: skip
        self._set(times=read_times(times), objective=None)
        for what, n, given in (
            ("state", n_states, state_labels), ("action", n_actions, action_labels),
        ):  # fmt: skip
            labels = ordered(given, what)
            if labels is not None and len(labels) != n:
                raise InputError(f"{len(labels)} {what} labels for a policy over {n} {what}s")
            self._set(**{f"n_{what}s": n, f"{what}_labels": labels})

    # ------------------------------------------------------------ what it is
    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def kind(self) -> PolicyKind:
        raise NotImplementedError

    @property
    def horizon(self) -> float:
        """The number of decisions; infinite if there is no last one."""
        raise NotImplementedError

    @property
    def parts(self) -> dict[str, Any]:
        """What it does, as named arrays and numbers: equal policies have equal parts."""
        raise NotImplementedError

    @property
    def table(self) -> npt.NDArray[Any]:
        """Everything it does as one array."""
        raise self._lacking("table")

    def table_for(self, model: MMDP) -> npt.NDArray[Any]:
        """``table`` over all of the model's actions."""
        raise self._lacking("table")

    @property
    def memory(self) -> str:
        """What it remembers, as the end of a sentence; empty if nothing."""
        return ""

    @property
    def labels(self) -> dict[str, Any]:
        """Arguments of a policy over the same states and actions."""
        return {
            "n_actions": self.n_actions, "state_labels": self.state_labels,
            "action_labels": self.action_labels, "times": self.times,
        }  # fmt: skip

    @property
    def markov(self) -> MarkovPolicy | None:
        """Itself if it is a table of time and state; None otherwise."""
        return None

    @checked
    def over(self, horizon: int) -> MarkovPolicy:
        """The same decisions as a policy of time and state over ``horizon`` decisions."""
        raise self._lacking("table of time and state")

    def _lacking(self, what: str) -> InputError:
        return InputError(f"{self!r} has no {what}: it {self.memory}")

    # ------------------------------------------------------------ in a model
    @checked
    def check(self, model: MMDP, horizon: float | None = None) -> None:
        """Raise InputError unless this policy can be followed in ``model``."""
        if self.n_states != model.n_states or self._lacks(model):
            raise InputError(
                f"{self.title} is for {self.n_states} states and {self.n_actions} actions, the "
                f"model has {model.n_states} states and {model.n_actions} actions"
            )
        self._check_names(model)
        self.check_horizon(horizon)
        self.check_horizon(model.horizon, "the model varies over")
        if self.horizon == math.inf:
            check_endless(model.problem, None, model.state_labels)
        self._check_actions(model)

    def check_horizon(self, horizon: float | None, what: str = "the horizon is") -> None:
        """Refuse a horizon other than its own."""
        if horizon in (None, self.horizon):
            return
        lasts, again = f"covers {self.horizon} time steps", "solve again for that horizon"
        if self.horizon == math.inf:
            lasts = "is for an infinite horizon"
            again = again if self.memory else "give policy.over(T), the same over T decisions"
        raise InputError(f"{self.title} {lasts}, {what} {horizon}", [again])

    def _lacks(self, model: MMDP) -> bool:
        """Whether the model has too few actions for it."""
        return self.n_actions > model.n_actions

    def _check_names(self, model: MMDP) -> None:
        """Refuse a model whose states or actions have other names."""
        for what, mine, theirs in (
            ("state", self.state_labels, model.state_labels),
            ("action", self.action_labels, model.action_labels),
        ):
            if mine is None or not model.labelled[what]:
                continue
            # a file without labels of unused actions has their ids in place of them
            pairs = enumerate(zip(mine, theirs, strict=False))
            i = next((i for i, (a, b) in pairs if a != b and (a != str(i) or a in theirs)), None)
            if i is not None:
                raise InputError(
                    f"{self.title}'s {what}s are named differently from the model's (number {i} "
                    f"is {mine[i]!r} here, {theirs[i]!r} there)",
                    ["save the policy and load it with load_policy(path, model), which matches "
                     "names" if self.exact else "plan for models with these names"],
                )  # fmt: skip

    def _check_actions(self, model: MMDP) -> None:
        """Refuse actions that the model does not allow."""

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model; :func:`mmdp.evaluate` has more."""
        raise InputError(f"the return of {self!r} is known by simulation only")

    def tables_for(self, model: MMDP, horizon: int) -> PlannerTables | None:
        """What a kernel needs to simulate that many decisions; None: step by step."""
        return None

    # ------------------------------------------------------------ who follows it
    @checked
    def start(self, seed: Seed = 0) -> Any:
        """A fresh memory, seeded; give each episode a seed of its own."""
        return None

    def act(self, memory: Any, time: int, state: int) -> int:
        """The action at this time and state."""
        raise NotImplementedError

    def update(
        self, memory: Any, time: int, state: int, action: int, next_state: int,
        reward: float | None = None,
    ) -> Any:  # fmt: skip
        """The memory after seeing where the action led."""
        return memory

    # ------------------------------------------------------------ who reads it
    @checked
    def action(self, time: Read[int] = 0, state: int | str | None = None, **named: object) -> str:
        """The label of the action in a state: its id, its label, or its values by name.

        If decisions have labels, such as weeks, ``week="w4"`` stands for the time.

        A number between two points of an axis goes to the nearer one, and to the lower if it is
        halfway, as in :func:`mmdp.simulate` with ``off_grid=True`` (which has the functions, and so
        passes over points at which the process is over or does not allow what is done here).

        >>> import mmdp
        >>> states = ["stock=0, mode=on", "stock=0, mode=off"]
        >>> policy = mmdp.StationaryPolicy([1, 0], state_labels=states)
        >>> policy.action(mode="on", stock=0), policy.action(state=1)
        ('1', '0')
        >>> tank = mmdp.StationaryPolicy([1, 0], state_labels=["level=0.5", "level=2.5"])
        >>> tank.action(level=1.234)
        '1'
        """
        if self.memory:
            raise InputError(f"the action depends on more than the state: {self!r} {self.memory}")
        if (axis := self.times.column) in named and axis not in named_values(self.state_names[0]):
            time = self._time_of(axis, named.pop(axis))
        if not fits(time, int) or not 0 <= time < self.horizon:
            raise InputError(f"time {time} is outside 0..{self.horizon - 1:g}")
        if (state is None) == (not named):
            raise InputError("give the state: state= its id or label, or its values by name")
        key = named_label(named, self.state_names) if state is None else state
        s = ids_of([key], self.state_names, "the state")[0]
        return self.action_names[self.act(self.start(), time, s)]

    def _time_of(self, axis: str, value: object) -> int:
        """The number of the decision with that label; 0 if all are alike."""
        if self.horizon == math.inf:
            return 0
        label = f"{value:.10g}" if isinstance(value, float) else str(value)
        if label not in (every := self.times.first(int(self.horizon))):
            known = f"{every[0]} to {every[-1]}"
            raise InputError(f"no decision is called {axis} {label!r}; give one of {known}")
        return every.index(label)

    def text(self) -> str:
        """The rule in words; empty if it has none but its table."""
        return ""

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table."""
        raise self._lacking("table of actions")

    def stored(self) -> dict[str, Any]:
        """What it does, as JSON keeps it."""
        raise self._lacking("table of actions")

    def drawn(self) -> tuple[IntArray, list[str]]:
        """What a map of it shows: (times, rows) actions, and the label of each row."""
        raise self._lacking("map of actions")

    def map(self) -> PolicyMap:
        """A map of it, for notebooks and plots."""
        return PolicyMap(*self.drawn(), self.action_names, self.times)

    @property
    def state_names(self) -> list[str]:
        """Labels of the states, or their ids."""
        return list(self.state_labels or map(str, range(self.n_states)))

    @property
    def action_names(self) -> list[str]:
        """Labels of the actions, or their ids."""
        return list(self.action_labels or map(str, range(self.n_actions)))

    # ------------------------------------------------------------ an object
    @classmethod
    def _fields(cls) -> list[str]:
        return [name for base in cls.__mro__ for name in getattr(base, "__slots__", ())]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set(**state)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.parts, other.parts
        return mine.keys() == theirs.keys() and all(
            np.array_equal(mine[x], theirs[x]) for x in mine
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """For notebooks: a map of the actions; if randomised, of the most probable ones."""
        return self.map().html()

    def __repr__(self) -> str:
        steps = [] if self.horizon == math.inf else [counted(int(self.horizon), "time step")]
        size = counted(self.n_states, "state"), counted(self.n_actions, "action")
        return f"{type(self).__name__}({', '.join([*steps, *size, self._trait])})"

    @property
    def _trait(self) -> str:
        """What else distinguishes it, for ``repr``."""
        return self.name


def named_label(named: Mapping[str, object], labels: Sequence[str]) -> str:
    """The label ``stock=3, ordered=5`` of values by name, or of the point nearest to them."""
    names = named_values(labels[0])
    if set(names) != set(named):
        has = f"are named by {either(names, ' and ')}" if names else "have no names of values"
        raise InputError(f"states {has}, not by {either(named, ' and ')}")
    if (exact := ", ".join(f"{x}={_text(named[x])}" for x in names)) in labels:
        return exact
    axes, _ = named_axes(labels)
    return ", ".join(f"{x}={_nearest(x, named[x], axes.get(x, []))}" for x in names)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _nearest(name: str, value: Any, known: Sequence[str]) -> str:
    """The known value nearest to a number, all of whose digits count; other text as it is."""
    text = _text(value)
    try:
        x, points = float(value), np.array(known, dtype=float)
    except (TypeError, ValueError):
        return text
    if not points.size or text in known:
        return text
    if not points.min() <= x <= points.max():
        ends = f"from {points.min():g} to {points.max():g}"
        raise InputError(f"{name} is {text}, and the policy knows it {ends}; give a value there")
    return known[int(np.abs(points - x).argmin())]


def labels_of(model: MMDP) -> dict[str, Any]:
    """Arguments of a policy that carries the labels of ``model``."""
    return {
        "n_actions": model.n_actions,
        "state_labels": model.state_labels if model.labelled["state"] else None,
        "action_labels": model.action_labels if model.labelled["action"] else None,
        "times": model.times,
    }
