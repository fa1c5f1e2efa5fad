"""Policies of time and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mmdp import notebook
from mmdp.errors import InputError
from mmdp.kernels import Kernel
from mmdp.policy.kinds import PolicyKind
from mmdp.support import refuse_masked
from mmdp.validate import by_label, check_seed, check_whole

if TYPE_CHECKING:
    import pandas as pd

    from mmdp.model import MMDP

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Markov(PolicyKind):
    """Policies of time and state, without memory."""

    name: ClassVar[str] = "markov"
    title: ClassVar[str] = "the time and the state"
    change: ClassVar[str] = "change of the action in a single state and time"

    def policy_of(self, model: MMDP, table: npt.NDArray[Any]) -> MarkovPolicy:
        if table.ndim == 2:
            return MarkovPolicy.for_model(model, table)
        return MarkovPolicy.for_model(model, probabilities=table)

    def __repr__(self) -> str:
        return "Markov()"


class MarkovPolicy:
    """One action (or a distribution over actions) for every time and state; frozen.

    Parameters
    ----------
    actions
        ``(T, S)`` action ids, for a deterministic policy; or
    probabilities
        ``(T, S, A)`` probabilities pi_t(s, a), for a randomised one.
    n_actions
        Number of actions; needed only if it exceeds the largest action used.
    state_labels, action_labels
        Labels, kept for tables and files.

    Examples
    --------
    >>> from mmdp import MarkovPolicy
    >>> MarkovPolicy([[0, 1], [1, 1]], action_labels=["run", "repair"])
    MarkovPolicy(2 time steps, 2 states, 2 actions, deterministic)
    """

    __slots__ = ("_actions", "_probabilities", "action_labels", "n_actions", "state_labels")

    kind: ClassVar[PolicyKind] = Markov()
    _actions: IntArray | None
    _probabilities: Array | None
    n_actions: int
    state_labels: tuple[str, ...] | None
    action_labels: tuple[str, ...] | None

    def __init__(
        self,
        actions: npt.ArrayLike | None = None,
        *,
        probabilities: npt.ArrayLike | None = None,
        n_actions: int | None = None,
        state_labels: Sequence[str] | None = None,
        action_labels: Sequence[str] | None = None,
    ) -> None:
        if (actions is None) == (probabilities is None):
            raise InputError("a policy needs either actions (T, S) or probabilities (T, S, A)")
        put = object.__setattr__
        if actions is not None:
            array = _read_actions(by_label(actions, "the policy", None, state_labels))
            count = int(array.max()) + 1
            size = max(count, n_actions or (len(action_labels) if action_labels else count))
            put(self, "_actions", array)
            put(self, "_probabilities", None)
        else:
            table = _read_probabilities(probabilities)
            size = table.shape[2]
            put(self, "_actions", None)
            put(self, "_probabilities", table)
        put(self, "n_actions", size)
        put(self, "state_labels", None if state_labels is None else tuple(state_labels))
        put(self, "action_labels", None if action_labels is None else tuple(action_labels))
        for labels, n, what in (
            (self.state_labels, self.n_states, "state"),
            (self.action_labels, self.n_actions, "action"),
        ):
            if labels is not None and len(labels) != n:
                raise InputError(f"{len(labels)} {what} labels for a policy over {n} {what}s")

    @classmethod
    def for_model(
        cls,
        model: MMDP,
        actions: npt.ArrayLike | None = None,
        *,
        probabilities: npt.ArrayLike | None = None,
    ) -> MarkovPolicy:
        """A policy that carries the labels of ``model``."""
        labelled = model.labelled
        return cls(
            actions,
            probabilities=probabilities,
            n_actions=model.n_actions,
            state_labels=model.state_labels if labelled["state"] else None,
            action_labels=model.action_labels if labelled["action"] else None,
        )

    @classmethod
    def uniform(cls, model: MMDP, horizon: int) -> MarkovPolicy:
        """Every allowed action with the same probability."""
        check_whole(horizon, "horizon")
        row = model.allowed / model.allowed.sum(axis=1, keepdims=True)
        return cls.for_model(model, probabilities=np.repeat(row[None], horizon, axis=0))

    @classmethod
    def random(cls, model: MMDP, horizon: int, seed: int | None = 0) -> MarkovPolicy:
        """A deterministic policy drawn uniformly from the allowed actions.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[2.0, 1.0]])
        >>> mmdp.MarkovPolicy.random(one, 3, seed=0).actions.shape
        (3, 1)
        """
        check_whole(horizon, "horizon")
        check_seed(seed)
        rng = np.random.default_rng(seed)
        scores = rng.random((horizon, model.n_states, model.n_actions))
        return cls.for_model(model, np.where(model.allowed, scores, -1.0).argmax(axis=2))

    @property
    def deterministic(self) -> bool:
        return self._actions is not None

    @property
    def horizon(self) -> int:
        return len(self.table)

    @property
    def n_states(self) -> int:
        return self.table.shape[1]

    @property
    def actions(self) -> IntArray:
        """(T, S) action ids; of a randomised policy, the most probable action."""
        if self._actions is not None:
            return self._actions
        assert self._probabilities is not None
        return self._probabilities.argmax(axis=2).astype(np.int32)

    @property
    def probabilities(self) -> Array:
        """(T, S, A) pi_t(s, a)."""
        if self._probabilities is not None:
            return self._probabilities
        table = np.zeros((self.horizon, self.n_states, self.n_actions))
        np.put_along_axis(table, self.actions[:, :, None].astype(np.int64), 1.0, axis=2)
        return table

    @property
    def table(self) -> npt.NDArray[Any]:
        """What kernels read: (T, S) actions or (T, S, A) probabilities."""
        if self._actions is not None:
            return self._actions
        assert self._probabilities is not None
        return self._probabilities

    def check(self, model: MMDP, horizon: int | None = None) -> None:
        """Raise InputError unless this policy can be followed in ``model``."""
        if self.n_states != model.n_states or self.n_actions > model.n_actions:
            raise InputError(
                f"the policy is for {self.n_states} states and {self.n_actions} actions, the "
                f"model has {model.n_states} states and {model.n_actions} actions"
            )
        check_labels(
            self.state_labels, self.action_labels, model, "the policy",
            "save the policy and load it with load_policy(path, model), which matches names",
        )  # fmt: skip
        if horizon is not None and self.horizon != horizon:
            raise InputError(
                f"the policy covers {self.horizon} time steps, the horizon is {horizon}; "
                "solve again for that horizon"
            )
        if model.horizon is not None and self.horizon != model.horizon:
            raise InputError(
                f"the policy covers {self.horizon} time steps, the model varies over "
                f"{model.horizon}"
            )
        bad: npt.NDArray[np.bool_]
        if self._actions is not None:
            bad = ~model.allowed[np.arange(self.n_states), self._actions]
        else:
            assert self._probabilities is not None
            used = self._probabilities > 0
            bad = np.asarray((used & ~model.allowed[:, : self.n_actions]).any(axis=2))
        if bad.any():
            t, s = (int(i) for i in np.argwhere(bad)[0])
            raise InputError(
                f"the policy takes action {model.action_labels[self.actions[t, s]]!r} in state "
                f"{model.state_labels[s]!r} at time {t}, which the model does not allow"
            )

    def table_for(self, model: MMDP) -> npt.NDArray[Any]:
        """``table`` over all of the model's actions."""
        missing = model.n_actions - self.n_actions
        if self.deterministic or missing == 0:
            return self.table
        return np.pad(self.table, ((0, 0), (0, 0), (0, missing)))

    def returns(self, model: MMDP, kernel: Kernel) -> Array:
        """(M,) its exact return on every model; :func:`mmdp.evaluate` has more."""
        x, table = model.problem, self.table_for(model)
        return x.returns(kernel.backward(x, self.horizon, "given", policy=table).first)

    def to_frame(self) -> pd.DataFrame:
        """The policy as a tidy table: ``time, state, action``, ``probability`` if randomised.

        States and actions are labels if the policy has them; the ids are then in
        ``idstate, idaction``. A randomised policy lists the actions it may take.

        >>> policy = MarkovPolicy([[0, 1]], state_labels=["up", "down"])
        >>> print(policy.to_frame().to_string(index=False))
        time state  action  idstate  idaction
           0    up       0        0         0
           0  down       1        1         1
        """
        import pandas as pd

        if self.deterministic:
            t, s = np.indices(self.actions.shape).reshape(2, -1)
            a = self.actions.reshape(-1).astype(np.int64)
        else:
            t, s, a = np.nonzero(self.probabilities)
        columns: dict[str, Any] = {"time": t, "state": s, "action": a}
        if not self.deterministic:
            columns["probability"] = self.probabilities[t, s, a]
        return pd.DataFrame(labelled(columns, state=self.state_labels, action=self.action_labels))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("MarkovPolicy is frozen")

    def __getstate__(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for field, value in state.items():
            object.__setattr__(self, field, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkovPolicy):
            return NotImplemented
        return self.table.shape == other.table.shape and bool((self.table == other.table).all())

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        """For notebooks: a map of the actions, of a randomised policy the most probable ones."""
        states = self.state_labels or tuple(map(str, range(self.n_states)))
        names = self.action_labels or tuple(map(str, range(self.n_actions)))
        return notebook.policy_map(self.actions.tolist(), states, names)

    def __repr__(self) -> str:
        kind = "deterministic" if self.deterministic else "randomised"
        return (
            f"MarkovPolicy({self.horizon} time steps, {self.n_states} states, "
            f"{self.n_actions} actions, {kind})"
        )


def labelled(columns: dict[str, Any], **labels: Sequence[str] | None) -> dict[str, Any]:
    """The columns with labels in place of ids, if there are any, and then the ids at the end.

    >>> labelled({"state": [1, 0]}, state=["up", "down"])
    {'state': array(['down', 'up'], dtype=object), 'idstate': [1, 0]}
    >>> labelled({"state": [1, 0]}, state=None)
    {'state': [1, 0]}
    """
    names = {
        column: np.array(given, dtype=object)[columns[column]]
        for column, given in labels.items()
        if given is not None
    }
    ids = {f"id{column}": columns[column] for column in labels if names}
    return {**columns, **names, **ids}


def check_labels(
    states: Sequence[str] | None, actions: Sequence[str] | None, model: MMDP, whose: str,
    remedy: str,
) -> None:  # fmt: skip
    """Refuse a model whose states or actions have other names than those of a policy."""
    for what, mine, theirs in (
        ("states", states, model.state_labels),
        ("actions", actions, model.action_labels),
    ):
        if mine is None or not model.labelled[what[:-1]]:
            continue
        # a file without labels of unused actions has their ids in place of them
        pairs = enumerate(zip(mine, theirs, strict=False))
        i = next((i for i, (a, b) in pairs if a != b and (a != str(i) or a in theirs)), None)
        if i is not None:
            raise InputError(
                f"{whose}'s {what} are named differently from the model's (number {i} is "
                f"{mine[i]!r} here, {theirs[i]!r} there)",
                [remedy],
            )


def _read_actions(actions: npt.ArrayLike) -> IntArray:
    refuse_masked(actions, "policy actions")
    try:
        array = np.asarray(actions)
    except ValueError:
        raise InputError("policy actions must be a table: one row per time step") from None
    if array.ndim != 2 or array.size == 0:
        raise InputError(f"policy actions have shape {array.shape}; expected (time steps, states)")
    if array.dtype.kind not in "iu":
        raise InputError("policy actions must be whole numbers (action ids from 0)")
    if array.min() < 0:
        raise InputError("policy actions count from 0; a negative one was given")
    if array.max() > np.iinfo(np.int32).max:
        raise InputError(f"policy action {array.max()} is too large for an action id")
    result = array.astype(np.int32)
    result.setflags(write=False)
    return result


def _read_probabilities(probabilities: Any) -> Array:
    refuse_masked(probabilities, "policy probabilities")
    try:
        table = np.array(probabilities, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("policy probabilities must be a (T, S, A) array of numbers") from None
    if table.ndim != 3 or table.size == 0:
        raise InputError(
            f"policy probabilities have shape {table.shape}; expected (time steps, states, actions)"
        )
    wrong = ~(np.abs(table.sum(axis=2) - 1.0) <= 1e-8) | (table < 0).any(axis=2)
    if wrong.any():
        t, s = (int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"policy probabilities at time {t}, state {s} are not a distribution over actions: "
            f"{table[t, s].tolist()}"
        )
    table.setflags(write=False)
    return table
