"""from_step: models from a function that says what an event does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Read, checked, fits
from mmdp.clock import Bar
from mmdp.errors import InputError
from mmdp.functions.axes import Array, Axes, Grid
from mmdp.functions.build import Chances, Ids, Leads, Mask, build
from mmdp.functions.calls import Answer, Function, check_elementwise
from mmdp.functions.play import Played
from mmdp.kernels.distributions import SUM_TOLERANCE, normalize
from mmdp.model import MMDP
from mmdp.policy.tree import ENDED
from mmdp.posterior.draws import Draws, read_draws
from mmdp.support import check_memory
from mmdp.validate import is_list, known_fields, read_times
from mmdp.words import counted, shortened

ROWS = 2**19  # rows that a function is called with at a time
CHANCES = 2**23  # chances that are compared at a time
REWARD = "the reward"


@checked
def from_step(
    step: Read[Callable[..., Any]],
    *,
    states: Read[Mapping[str, Any]],
    actions: Read[Mapping[str, Any]],
    events: Mapping[str, Any] | None = None,
    chance: Callable[..., Any] | None = None,
    draws: Any = None,
    initial: Mapping[str, Any] | Callable[..., Any] | None = None,
    discount: float = 1.0,
    allowed: Callable[..., Any] | None = None,
    terminal: Callable[..., Any] | None = None,
    until: Callable[..., Any] | None = None,
    times: Read[int | Iterable[Any] | Mapping[str, Iterable[Any]] | None] = None,
    **fields: Any,
) -> MMDP:
    """Models from a function that says what happens; one model per draw of its parameters.

    All functions take their arguments by name and may leave out those that they do not need.
    ``state``, ``action`` and ``event`` are dicts of arrays by axis, one entry per row, which must
    not be changed; ``draw`` is a dict of one draw's parameters; ``time`` is one of ``times``.

    Parameters
    ----------
    step
        ``step(state, action, event, draw, time)`` returns the next state, a dict with every axis
        of states, and the reward. It is called with many rows at once, so it computes with arrays
        (``np.where`` in place of ``if``), each row by itself. Numbers stand for all rows.
    states, actions, events
        Axes by name: a range, a list of numbers or labels, or an :class:`mmdp.Grid` for a
        continuous quantity. Without events the step is deterministic.
    chance
        ``chance(draw, state, action, time)`` returns the probabilities of the events: an array
        (one event axis), a dict of arrays by axis (independent events), or one table with an axis
        for each. State and action arrive as columns (n, 1), so that probabilities that depend on
        them come out as (n, events).
    draws
        Parameters by name, one entry per model: whatever :func:`mmdp.from_draws` takes. None: one
        model without parameters.
    initial
        ``{"stock": 10}``; or for an axis its values with their probabilities, ``{"stock": {0: 0.5,
        10: 0.5}}``; or a sample of first states, arrays of one length. Or a function
        ``initial(state, draw)`` that returns one of these, or weights of the states; models begin
        apart if it reads the draw. Uniform by default.
    allowed
        ``allowed(state, action)``: whether an action may be taken; ``step`` never sees the others.
    terminal
        ``terminal(state, draw)``: the value of ending in a state.
    until
        ``until(state)``: whether the process ends in a state. It is called with the next state as
        ``step`` returns it, before that is put on a grid; what ends goes to the state ``ended``.
    times
        A number, a range or labels: what functions with a parameter ``time`` are called with, and
        what decisions are called. ``{"age": range(40, 90)}`` names the axis.
    fields
        Other arguments of :class:`mmdp.MMDP`: weights, name and so on.

    If the next state does not depend on the draw, all models share what events do and only their
    chances are stored for each (:class:`mmdp.kernels.events.Events`); otherwise the models are
    stored as tables. States and actions are labelled by their axes: ``stock=3, ordered=5``.

    >>> import mmdp, numpy as np
    >>> def step(state, action, event):
    ...     left = np.maximum(state["stock"] - event["demand"], 0)
    ...     sold = state["stock"] - left
    ...     return {"stock": np.minimum(left + action["order"], 5)}, 5 * sold - 3 * action["order"]
    >>> model = mmdp.from_step(
    ...     step, states={"stock": range(6)}, actions={"order": range(4)},
    ...     events={"demand": range(3)}, chance=lambda draw: [0.5 - draw["p"], 0.5, draw["p"]],
    ...     draws={"p": [0.1, 0.3]}, initial={"stock": 2}, discount=0.95)
    >>> model.n_models, model.state_labels[2], model.transitions[0, 2, 1, :4].round(3).tolist()
    (2, 'stock=2', [0.0, 0.1, 0.5, 0.4])
    >>> mmdp.solve(model, 10).policy.action(stock=2)
    'order=1'
    """
    known_fields(fields, from_step.__annotations__)
    steps = Steps.read(
        step, states, actions, events, chance, draws, allowed, terminal, until, times, initial
    )
    steps.check_size()
    if steps.times is not None:
        name = next(iter(times)) if isinstance(times, Mapping) else "time"
        fields["times"] = {name: steps.times}
    with steps.bar:
        return build(steps, discount=discount, **fields)


@dataclass(frozen=True, eq=False)
class Steps:
    """The functions of a user with their axes, draws and times: all that a model is made of."""

    states: Axes
    actions: Axes
    events: Axes
    step: Function
    chance: Function | None
    allowed: Function | None
    terminal: Function | None
    until: Function | None
    draws: Draws
    times: tuple[Any, ...] | None
    start: Any = None
    bar: Bar = field(default_factory=lambda: Bar("step"))

    @classmethod
    def read(
        cls, step: Any, states: Any, actions: Any, events: Any, chance: Any, draws: Any,
        allowed: Any, terminal: Any, until: Any, times: Any, initial: Any,
    ) -> Steps:  # fmt: skip
        def function(name: str, given: Any, *known: str) -> Function | None:
            return None if given is None else Function(name, given, known)

        axes = Axes.read(states, "states"), Axes.read(actions, "actions")
        found = Axes.read(events or {}, "events")
        if (chance is None) == bool(found):
            missing, there = ("chance", "events") if found else ("events", "chance")
            raise InputError(f"{there} is given without {missing}; give both, or neither")
        names = [name for each in (*axes, found) for name in each]
        twice = next((x for x in names if names.count(x) > 1), None)
        if twice is not None:
            raise InputError(f"two axes are called {twice!r}; give each a name of its own")
        made = cls(
            *axes, found, Function("step", step, ("state", "action", "event", "draw", "time")),
            function("chance", chance, "draw", "state", "action", "time"),
            function("allowed", allowed, "state", "action", "time"),
            function("terminal", terminal, "state", "draw"),
            function("until", until, "state"),
            {} if draws is None else read_draws(draws), _times(times),
            function("initial", initial, "state", "draw") if callable(initial) else initial,
        )  # fmt: skip
        made._check_times(times)
        return made

    def play(
        self, model: MMDP, table: npt.NDArray[Any], episodes: int, seed: int, ends: bool
    ) -> Array:
        """(M, episodes) returns of a policy without the grid; see :class:`Played`."""
        return Played(self, model, table).returns(episodes, seed, ends)

    # ------------------------------------------------------------ sizes and words
    @property
    def n_models(self) -> int:
        return len(next(iter(self.draws.values()))) if self.draws else 1

    @property
    def n_states(self) -> int:
        """With the state ``ended`` if there is one."""
        return self.states.size + (self.until is not None)

    def check_size(self) -> None:
        """Refuse axes whose events do not fit: next states, their shares and rewards."""
        S, A, W = self.n_states, self.actions.size, self.events.size
        corners = 2 ** len(self.continuous)
        each = 8 + 4 * corners + (8 * corners if corners > 1 else 0)
        check_memory(
            each * S * A * W * self.steps(self.step),
            f"{counted(S, 'state')}, {counted(A, 'action')} and {counted(W, 'event')}",
            ["make the axes coarser", "leave out an axis"],
        )

    @property
    def state_labels(self) -> list[str]:
        return [*self.states.labels(), *([ENDED] if self.until is not None else [])]

    def steps(self, *functions: Function | None) -> int:
        """Times at which these functions have to be asked."""
        varies = any(f is not None and "time" in f.takes for f in functions)
        return len(self.times) if varies and self.times is not None else 1

    @property
    def continuous(self) -> tuple[str, ...]:
        """The axes of the state that are on a grid: what lies between goes to the nearest point."""
        return tuple(name for name, axis in self.states.items() if isinstance(axis, Grid))

    def subset(self, models: npt.NDArray[np.int64]) -> Steps:
        """The same for some of the models."""
        return replace(self, draws={k: v[models] for k, v in self.draws.items()})

    def given(self, m: int, t: int) -> dict[str, Any]:
        """``draw`` and ``time`` as functions see them."""
        draw = {name: values[m] for name, values in self.draws.items()}
        return {"draw": draw, "time": None if self.times is None else self.times[t]}

    def place(self, m: int, t: int, *functions: Function | None) -> str:
        """``, draw 3, time 2`` as far as these functions depend on them."""
        some = [f for f in functions if f is not None]
        by_draw = f", draw {m}" if any(f.per_draw() for f in some) else ""
        by_time = f", time {self.given(m, t)['time']}" if self.steps(*some) > 1 else ""
        return by_draw + by_time

    def _check_times(self, given: Any) -> None:
        asks = [
            f.name
            for f in (self.step, self.chance, self.allowed)
            if f is not None and "time" in f.takes
        ]
        if asks and self.times is None:
            raise InputError(f"{asks[0]} has a parameter time; give times=, such as times=52")
        if isinstance(given, (int, np.integer)) and not asks:
            raise InputError("no function has a parameter time; leave out times=")

    # ------------------------------------------------------------ what the functions say
    def over(self) -> Mask:
        """(S,) the states in which the process is over."""
        values = self.states.at(np.arange(self.states.size))
        return self.ended(values, self.states.size)

    def ended(self, values: Mapping[str, npt.NDArray[Any]], count: int) -> Mask:
        if self.until is None:
            return np.zeros(count, bool)
        return _truths(self.until(state=values), count, "until")

    def mask(self) -> Mask:
        """(S, A) what is allowed."""
        S, A = self.states.size, self.actions.size
        if self.allowed is None:
            return np.ones((S, A), bool)
        s, a = np.divmod(np.arange(S * A), A)
        pair = {"state": self.states.at(s), "action": self.actions.at(a)}
        found = [
            _truths(self.allowed(**pair, **self.given(0, t)), S * A, "allowed").reshape(S, A)
            for t in range(self.steps(self.allowed))
        ]
        if any((x != found[0]).any() for x in found):
            raise InputError(
                "allowed differs between times; leave its time out, and solve with "
                "policy=mmdp.Fixed(mask), a mask (T, S, A) of what is allowed when"
            )
        none = ~found[0].any(axis=1) & ~self.over()
        if none.any():
            raise InputError(
                f"no action is allowed in {self.states.label(int(np.argmax(none)))}; allow one, or "
                "say with until= that the process ends there"
            )
        return found[0]

    def chances(self, mask: Mask) -> Chances:
        """Of all events; the few distinct rows are kept once."""
        f, M = self.chance, self.n_models
        if f is None:
            return Chances(np.ones((1, 1, 1, M)), None)
        if not f.takes & {"state", "action"}:
            found = []
            for t in range(self.steps(f)):
                one = [self._chance(f, m, t, {}, 1) for m in range(M)]
                found.append(np.stack(one, axis=-1))
            return Chances(np.stack(found), None)
        kinds: dict[bytes, int] = {}
        table: list[Array] = []
        kind = np.zeros((self.steps(f), self.n_states, self.actions.size), np.int32)
        for t in range(len(kind)):
            kind[t, : len(mask)] = self._kinds(f, t, mask, kinds, table)
        return Chances(np.stack(table)[None], kind)

    def _kinds(
        self, f: Function, t: int, mask: Mask, kinds: dict[bytes, int], table: list[Array]
    ) -> npt.NDArray[np.int32]:
        """(S, A) the kind of every pair at time t; new kinds are added to the table."""
        M, some = self.n_models, np.argwhere(mask)[:2]
        probe = self._pair(self.states, self.actions, some[:, 0], some[:, 1])
        for m in range(M):  # which axes are read
            f(**probe, **self.given(m, t))
        states, actions = (
            self.states.only(frozenset(f.reads["state"])),
            self.actions.only(frozenset(f.reads["action"])),
        )
        s = states.ids_of(self.states, np.arange(self.states.size))
        a = actions.ids_of(self.actions, np.arange(self.actions.size))
        combined = s[:, None] * actions.size + a
        needed = np.unique(combined[mask])
        of = np.zeros(states.size * actions.size, np.int32)
        size = max(1, CHANCES // (M * self.events.size))
        for rows in np.split(needed, range(size, len(needed), size)):
            pairs = states, actions, *np.divmod(rows, actions.size)
            asked = [self._chance(f, m, t, self._pair(*pairs), len(rows), pairs) for m in range(M)]
            p = np.ascontiguousarray(np.stack(asked, axis=-1))
            raw = p.reshape(len(rows), -1).view(np.dtype((np.void, p[0].nbytes))).reshape(-1)
            _, first, which = np.unique(raw, return_index=True, return_inverse=True)
            ids = np.array([_added(p[i], kinds, table) for i in first], np.int32)
            of[rows] = ids[which]
        return np.where(mask, of[combined], 0).astype(np.int32)

    @staticmethod
    def _pair(states: Axes, actions: Axes, s: Ids, a: Ids) -> dict[str, Any]:
        """State and action as columns."""
        return {
            "state": {k: v[:, None] for k, v in states.at(s).items()},
            "action": {k: v[:, None] for k, v in actions.at(a).items()},
        }

    def _chance(
        self, f: Function, m: int, t: int, pair: dict[str, Any], n: int,
        pairs: tuple[Axes, Axes, Ids, Ids] | None = None,
    ) -> Array:  # fmt: skip
        """(n, W) chances of n rows, checked."""

        def where(i: int) -> str:
            if pairs is None:
                return self.place(m, t, f).removeprefix(", ")
            names = [x.label(int(j[i])) for x, j in zip(pairs[:2], pairs[2:], strict=True) if x]
            return ", ".join(names) + self.place(m, t, f)

        def ask(rows: Ids) -> Answer:
            asked = {what: {k: v[rows] for k, v in values.items()} for what, values in pair.items()}
            return {"the chance": self.read_chance(f(**asked, **self.given(m, t)), len(rows))}

        found = ask(np.arange(n))
        p = found["the chance"]
        if m == 0:
            check_elementwise(f.name, ask, n, found, where)
        sums = p.sum(axis=1)
        bad = ~(np.abs(sums - 1) <= SUM_TOLERANCE) | ~(p >= 0).all(axis=1)
        if bad.any():
            i = int(np.argmax(bad))
            place = f"chance at {where(i)}" if where(i) else "chance"
            if not np.isfinite(sums[i]):
                raise InputError(f"{place}: a probability is not a number; check the parameters")
            if (p[i] < 0).any():
                raise InputError(f"{place}: a probability is {p[i].min():.6g}; give none below 0")
            raise InputError(
                f"{place}: the probabilities of {', '.join(self.events)} sum to {sums[i]:.6g}, not "
                "1; divide them by their sum, or add the event that is missing"
            )
        return p

    def read_chance(self, result: Any, n: int) -> Array:
        """(n, W) from a table, or from a dict of independent events."""
        if isinstance(result, Mapping):
            if set(result) != set(self.events):
                raise InputError(
                    f"chance returned {', '.join(map(str, result)) or 'nothing'}; give "
                    f"{', '.join(self.events)}"
                )
            found = np.ones((n, 1))
            for name, axis in self.events.items():
                one = self._rows_of(result[name], n, (len(axis.values),), f"chance of {name}")
                found = (found[:, :, None] * one[:, None, :]).reshape(n, -1)
            return found
        return self._rows_of(result, n, self.events.shape, "chance")

    @staticmethod
    def _rows_of(values: Any, n: int, shape: tuple[int, ...], what: str) -> Array:
        array, size = _numbers(values, what), int(np.prod(shape))
        for ending in (shape, (size,)):
            if array.shape in (ending, (1, *ending), (n, *ending)):
                one = array.shape == ending
                p = normalize(array.reshape(1 if one else -1, size))
                return np.broadcast_to(p, (n, size))
        rows = f"(rows, {', '.join(map(str, shape))})"
        raise InputError(
            f"{what} returned shape {array.shape}; give {shape}, one probability per event, or "
            f"{rows} if they depend on state or action"
        )

    def stepped(
        self, m: int, t: int, mask: Mask, over: Mask, chances: Chances
    ) -> tuple[Leads, Array]:
        """Where the step leads in draw m at time t if the mask (S, A) holds; (S A, W) rewards."""
        S, A, W, C = self.n_states, self.actions.size, self.events.size, self.states.corners
        after = np.empty((S, A, W, C), np.int32)
        after[:] = np.arange(S)[:, None, None, None]
        after[: len(over)][over] = S - 1
        share = None if C == 1 else np.zeros((S, A, W, C))
        if share is not None:
            share[..., 0] = 1.0
        reward = np.zeros(S * A * W)
        when = [t] if self.steps(self.step) > 1 else range(chances.steps)
        size, at_a_time = self.states.size * A * W, getattr(self.step.function, "rows", ROWS)
        for first in range(0, size, at_a_time):
            calls = self.n_models if self.step.per_draw() else 1
            self.bar.at((t * calls + m) * size + first, self.steps(self.step) * calls * size)
            rows = np.arange(first, min(first + at_a_time, size))
            pairs = rows // W
            rows = rows[mask.reshape(-1)[pairs] & chances.possible(when, pairs, rows % W)]
            if not len(rows):
                continue
            answer = self._ask(rows, m, t)
            if m == 0 and t == 0:
                self._check_elementwise(rows, answer)
            reward[rows] = answer.pop(REWARD)
            ids, shares = self._placed(answer, rows, m, t)
            after.reshape(-1, C)[rows] = ids
            if share is not None:
                share.reshape(-1, C)[rows] = shares
        return Leads(after, share), reward.reshape(S * A, W)

    def _ask(self, rows: Ids, m: int, t: int) -> Answer:
        """Next values by axis, and the reward, of rows (s A + a) W + w."""
        A, W = self.actions.size, self.events.size
        answer = self.ask(
            {
                "state": self.states.at(rows // (A * W)),
                "action": self.actions.at(rows // W % A),
                "event": self.events.at(rows % W),
            },
            len(rows), m, t, lambda i: self._row(rows, i),
        )  # fmt: skip
        return answer

    def _row(self, rows: Ids, i: int) -> str:
        A, W = self.actions.size, self.events.size
        s, (a, w) = int(rows[i] // (A * W)), divmod(int(rows[i] % (A * W)), W)
        names = [self.states.label(s), self.actions.label(a), self.events.label(w)]
        return ", ".join(filter(None, names))

    def _check_elementwise(self, rows: Ids, answer: Answer) -> None:
        check_elementwise(
            "step", lambda some: self._ask(rows[some], 0, 0), len(rows), answer,
            lambda i: self._row(rows, i),
        )  # fmt: skip

    def ask(
        self, given: dict[str, Any], n: int, m: int, t: int, where: Callable[[int], str]
    ) -> Answer:
        """Next values by axis, and the reward, of n rows of states, actions and events."""
        result = self.step(**given, **self.given(m, t))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise InputError(
                "step must return a dict of next values by axis and the reward, like "
                f"return {{'{next(iter(self.states))}': ...}}, reward; it returned "
                f"{type(result).__name__}"
            )
        following, reward = result
        for name in self.states:
            if name not in following:
                raise InputError(f"step returns no {name!r}; return every axis of states")
        strange = next((x for x in following if x not in self.states), None)
        if strange is not None:
            raise InputError(
                f"step returns {strange!r}, which is no axis of states; these are "
                f"{', '.join(self.states)}"
            )
        answer = {name: _spread(following[name], n, f"next {name}") for name in self.states}
        answer[REWARD] = _spread(reward, n, REWARD)
        if answer[REWARD].dtype.kind not in "biuf":
            raise InputError(f"{REWARD} that step returns is not a number")
        bad = ~np.isfinite(answer[REWARD].astype(float))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(
                f"step at {where(i)}{self.place(m, t, self.step)}: the reward is "
                f"{answer[REWARD][i]}; give a finite number"
            )
        return answer

    def _placed(
        self, answer: Answer, rows: Ids, m: int, t: int
    ) -> tuple[npt.NDArray[np.int32], Array | None]:
        """((n, C) next states, (n, C) their shares); refuses what is off its axis."""
        ended = self.ended(answer, len(rows))
        place = self.place(m, t, self.step)
        places = self.places(answer, ended, lambda i: self._row(rows, i) + place)
        ids, shares = self.states.corners_of(places)
        ids[ended] = self.n_states - 1
        return ids, shares

    def places(self, answer: Answer, ended: Mask, where: Callable[[int], str]) -> Answer:
        """Next values as places on their axes; refuses those off it, unless the process is over."""
        found = {}
        for name, axis in self.states.items():
            values = answer[name]
            if (values.dtype.kind in "biuf") != axis.numeric:
                raise InputError(
                    f"step returns next {name} as {values.dtype}, its axis has {axis}; return "
                    f"{'numbers' if axis.numeric else 'labels'}"
                )
            found[name], off = axis.find(values)
            off &= ~ended
            if off.any():
                i = int(np.argmax(off))
                value = values[i]
                remedy = "check the formula" if value != value else axis.remedy(value)
                raise InputError(
                    f"step at {where(i)}: next {name} is {value}, which is not on its axis "
                    f"({axis}); {remedy}"
                )
        return found

    # ------------------------------------------------------------ first and last states
    def first(self, m: int) -> tuple[dict[str, npt.NDArray[Any]], Array]:
        """First states of a model as they were given: values by axis, and their probabilities."""
        given, states = self.start, self.states.at(np.arange(self.states.size))
        if isinstance(given, Function):
            given = given(state=states, **self.given(m, 0))
        if self.start is None or (callable(self.start) and not isinstance(given, Mapping)):
            weights = ~self.over() if self.start is None else given
            p = _spread(_numbers(weights, "initial"), self.states.size, "initial")
            if not (p >= 0).all() or not 0 < p.sum() < np.inf:
                raise InputError("initial(state) must give weights of 0 or more, some above 0")
            return states, p / p.sum()
        named = isinstance(given, Mapping) and set(given) == set(self.states)
        shape, *others = {np.shape(x) for x in given.values()} if named else [(0,)]
        if not others and len(shape) == 1 and shape[0]:
            return {k: np.asarray(given[k]) for k in self.states}, np.full(shape, 1 / shape[0])
        if not named or others or shape:
            raise InputError(
                f"initial must name a value for each of {', '.join(self.states)}, like "
                f"{{'{next(iter(self.states))}': ...}}, or values with their probabilities, or a "
                "sample of each, of one length, or be a function of the state"
            )
        some = {k: v if isinstance(v := given[k], Mapping) else {v: 1.0} for k in self.states}
        points = np.indices([len(x) for x in some.values()]).reshape(len(some), -1)
        shares = [
            _numbers(list(x.values()), "initial")[i]
            for x, i in zip(some.values(), points, strict=True)
        ]
        values = {k: np.array(list(x))[i] for (k, x), i in zip(some.items(), points, strict=True)}
        return values, np.prod(shares, axis=0)

    def initial(self) -> Array | None:
        """(S,) initial distribution, or (M, S) if it reads the draw; None if it is uniform."""
        if self.start is None and self.until is None:
            return None
        found = self.initial_of(0)
        if not (isinstance(self.start, Function) and self.start.per_draw()):
            return found
        return np.array([found, *(self.initial_of(m) for m in range(1, self.n_models))])

    def initial_of(self, m: int) -> Array:
        """(S,) initial distribution of a model."""
        (values, p), found = self.first(m), np.zeros(self.n_states)
        for name, axis in self.states.items():
            numeric = values[name].dtype.kind in "biuf"
            off = axis.find(values[name])[1] if numeric == axis.numeric else np.ones(1, bool)
            if off.any():
                value = values[name][np.argmax(off)]
                raise InputError(f"initial {name} is {value}, which is not on its axis ({axis})")
        ids, shares = self.states.place(values)
        np.add.at(found, ids, p[:, None] if shares is None else p[:, None] * shares)
        return found

    def terminals(self) -> Array | None:
        """(M, S) values of ending; 0 if it was over before."""
        if self.terminal is None:
            return None
        found, S = np.zeros((self.n_models, self.n_states)), self.states.size
        values, over = self.states.at(np.arange(S)), self.over()
        for m in range(self.n_models):
            at_end = _numbers(self.terminal(state=values, **self.given(m, 0)), "terminal")
            found[m, :S] = np.where(over, 0.0, _spread(at_end, S, "terminal"))
        return found


def _added(p: Array, kinds: dict[bytes, int], table: list[Array]) -> int:
    """The kind of a row of chances (W, M), new if there is none like it."""
    kind = kinds.setdefault(p.tobytes(), len(table))
    if kind == len(table):
        table.append(p)
    return kind


def _times(times: Any) -> tuple[Any, ...] | None:
    if times is None:
        return None
    if fits(times, int):
        times = range(times)
    given = times if isinstance(times, Mapping) else {"time": times}
    if not all(map(is_list, given.values())):
        raise InputError(f"times must be a number, a range or labels, not {shortened(times)}")
    given = {name: tuple(x) for name, x in given.items()}
    read_times(given)
    (labels,) = given.values()
    return labels


def _numbers(values: Any, what: str) -> Array:
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{what} has something that is not a number; give numbers") from None


def _spread(values: Any, n: int, what: str) -> npt.NDArray[Any]:
    """(n,) what a function returned; one value stands for all rows."""
    array = np.asarray(values)
    if array.shape not in ((), (1,), (n,)):
        raise InputError(
            f"{what} has shape {array.shape} for {counted(n, 'row')}; return one entry per row"
        )
    return np.broadcast_to(array, (n,))


def _truths(values: Any, n: int, what: str) -> Mask:
    found = _spread(values, n, what)
    if found.dtype != bool:
        raise InputError(f"{what} must return True or False for each row, not {found.dtype}")
    return found
