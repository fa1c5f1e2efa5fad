"""MMDP: the multi-model Markov decision process, frozen and validated once.

Symbols (the paper's letters, section 3, and the words used here):

======================  =========================  ==================================
paper                   here                       shape
======================  =========================  ==================================
p^m_t(s' | s, a)        ``transitions``            (M, S, A, S') or (T, M, S, A, S')
r^m_t(s, a)             ``rewards``                (M, S, A) or (T, M, S, A)
r^m_t(s, a, s')         ``next_rewards``           (M, S, A, S') or (T, M, S, A, S')
mu(s)                   ``initial``                (S,) or (M, S)
lambda_m                ``weights``                (M,)
gamma                   ``discount``               scalar in [0, 1]
v_{T+1, m}(s)           ``terminal``               (S,) or (M, S)
(none)                  ``model_transitions``      (M, M')
======================  =========================  ==================================

Storage. All models share one support: the union of their non-zero transitions, held as a
CSR pattern over the S*A rows, with the values of all models side by side (models last):
``p[t, k, m]``. The dense storage is the same layout with the full pattern. Kernels
read these arrays (:class:`mmdp.kernels.Problem`); users see the axes t, m, s, a, s_next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp import notebook
from mmdp.arguments import NonNegativeInt, PositiveInt, checked
from mmdp.errors import InputError, MemoryLimitError
from mmdp.kernels.problem import Form, Part, Problem, Stored, once
from mmdp.kernels.problem import Storage as Laid
from mmdp.kernels.rewards import ByEvent, Rewards, held, mapped, reordered, within
from mmdp.kernels.storage import Computed
from mmdp.support import (
    MATERIALISE_LIMIT,
    Array,
    Columns,
    Matrices,
    Storage,
    Support,
    check_pattern,
    float_array,
    is_sparse_nest,
    support_from_dense,
    support_of,
)
from mmdp.validate import (
    KINDS,
    Fields,
    Labels,
    by_label,
    check_rewards,
    check_rows,
    drop_disallowed,
    expected_rewards,
    inferred_allowed,
    is_list,
    known_fields,
    ordered,
    per_next_worth_keeping,
    read_rewards,
    read_times,
    refuse_no_labels,
    without_impossible,
)
from mmdp.words import Times, counted, listed, readable_bytes

if TYPE_CHECKING:
    import scipy.sparse


class Evidence(NamedTuple):
    """The log that models were fitted to.

    ``counts`` say how often each of the transitions ``keys``, (s A + a) S + s', was seen. ``prior``
    has the fields of :class:`mmdp.Prior`; None stands for one that was not kept.
    """

    keys: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    prior: Mapping[str, Any]


class Checked(NamedTuple):
    """The checked parts of a model; derived copies and pickles need nothing else."""

    storage: Laid
    r: Rewards  # (T or 1, S, A, M)
    next_rewards: Array | None  # (T or 1, nnz, M)
    fields: Fields
    horizon: int | None
    part: Part | None = None
    function: Any = None  # what it was built from by from_step, in memory only
    evidence: Evidence | None = None


class MMDP:
    """A multi-model MDP: M models over the same states and actions.

    Parameters
    ----------
    transitions
        ``(M, S, A, S')`` array, ``(T, M, S, A, S')`` if they vary with time, or
        ``(S, A, S')`` for one model; or, for sparse models, a sequence over models of
        sequences over actions of ``(S, S')`` scipy sparse matrices, or one over times of such
        sequences; or a storage of your own (:class:`mmdp.kernels.storage.Computed`).
    rewards
        ``(S, A)``, ``(M, S, A)`` or ``(T, M, S, A)``; rewards per next state
        ``(M, S, A, S')`` are recognised if no other reading fits.
    next_rewards
        Rewards per next state, shaped like ``transitions``; give this or ``rewards``. Entries of
        probability 0 may be NaN.
    initial
        ``(S,)`` initial distribution mu, uniform by default; ``(M, S)`` if models begin in
        different ways, so that the first state says something about the model. Like every field,
        it may be a mapping, a Series or a DataFrame of pandas, which is read by label (or id),
        whatever its order.
    weights
        ``(M,)`` model probabilities lambda; uniform by default.
    discount
        gamma, from 0 to 1 inclusive.
    terminal
        ``(S,)`` or ``(M, S)`` value of ending in each state; 0 by default.
    allowed
        ``(S, A)`` booleans. By default an action is allowed if any model has a transition
        for it.
    model_transitions
        ``(M, M)`` chain K by which the hidden model changes: K[m, m'] is the probability that
        m' holds at the next decision if m holds at this one. The change comes after the
        transition and its reward, whatever the action and the state. By default a model never
        changes.
    states, actions, models
        Labels.
    storage
        ``"auto"`` (by density), ``"dense"`` or ``"sparse"``.
    allow_missing
        Accept an action that is missing (an all-zero row) in some models: in these the episode ends
        there, without a reward. Off by default because it is usually a mistake in the data.
    parameters
        Optional mapping of parameter name to ``(M,)`` array: the uncertain parameters
        each model was built from.
    times
        What decisions 0, 1, ... are called, for people to read: labels such as ages, years or
        weeks, or ``{"age": range(40, 90)}``, which names the axis. Evenly spaced numbers go on
        after the last label.
    unit
        The unit of rewards, for people to read: ``"$"``, ``"QALYs"``.
    quantity
        What a return is, for people to read: ``"net benefit at £5,000 per QALY, per patient"``.

    Examples
    --------
    Two models of a machine that may break; action 1 repairs it.

    >>> import mmdp
    >>> P = [[[[0.9, 0.1], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]],
    ...      [[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.8, 0.2]]]]
    >>> r = [[10.0, 8.0], [0.0, -5.0]]
    >>> model = mmdp.MMDP(P, r, initial=[1, 0], discount=0.9,
    ...                   states=["working", "broken"], actions=["run", "repair"])
    >>> model
    MMDP(2 models, 2 states, 2 actions, discount 0.9; dense, 332 B)
    """

    __slots__ = ("_problem", "_state")

    _state: Checked
    _problem: Problem

    @checked
    def __init__(
        self,
        transitions: Any,
        rewards: Any = None,
        *,
        next_rewards: Any = None,
        initial: npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        discount: float = 1.0,
        terminal: npt.ArrayLike | None = None,
        allowed: npt.ArrayLike | None = None,
        model_transitions: npt.ArrayLike | None = None,
        states: Iterable[object] | None = None,
        actions: Iterable[object] | None = None,
        models: Iterable[object] | None = None,
        storage: Storage = "auto",
        allow_missing: bool = False,
        parameters: Mapping[str, npt.ArrayLike] | None = None,
        name: str | None = None,
        citation: str | None = None,
        times: Any = None,
        unit: str | None = None,
        quantity: str | None = None,
    ) -> None:
        if isinstance(transitions, Computed):
            support = _support_of(transitions, None)
        elif is_sparse_nest(transitions):
            support = support_of(Matrices(transitions), storage)
        else:
            states, actions = ordered(states, "state"), ordered(actions, "action")
            rows = by_label(transitions, "transitions", states, actions, states)
            support = support_from_dense(float_array(rows, "transitions"), storage)
        given = Fields(
            initial, weights, discount, terminal, allowed, model_transitions, states, actions,
            models, allow_missing, parameters, name, citation, times, unit, quantity,
        )  # fmt: skip
        fields = given.read(support.shape, None)
        expected, per_next = read_rewards(rewards, next_rewards, support, fields)
        computed = transitions if isinstance(transitions, Computed) else None
        self.__setstate__(_checked(support, expected, per_next, fields, None, computed))

    @classmethod
    @checked
    def from_coordinates(
        cls,
        *,
        model: npt.ArrayLike,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        next_state: npt.ArrayLike,
        probability: npt.ArrayLike,
        reward: npt.ArrayLike | None = None,
        time: npt.ArrayLike | None = None,
        shape: tuple[int, int, int],
        horizon: PositiveInt | None = None,
        storage: Storage = "auto",
        **fields: Any,
    ) -> MMDP:
        """Build from one entry per transition (ids from 0), without any dense array.

        ``shape`` is (M, S, A); ``reward`` is per transition; ``time`` (0-based) makes the
        model time-varying over ``horizon`` steps. Duplicate entries add up. ``fields`` are
        the other arguments of :class:`MMDP` (``rewards=`` per state and action among them).

        >>> from mmdp import MMDP
        >>> MMDP.from_coordinates(model=[0, 0], state=[0, 1], action=[0, 0],
        ...     next_state=[1, 1], probability=[1, 1], reward=[3, 0], shape=(1, 2, 1))
        MMDP(1 model, 2 states, 1 action, discount 1; initial uniform (not given); sparse, 106 B)
        """
        columns = Columns.read(
            {"model": model, "state": state, "action": action, "next_state": next_state,
             "probability": probability, "reward": reward, "time": time}, shape, horizon,
        )  # fmt: skip
        support = support_of(columns, storage)
        rewards, expected, per_next = fields.pop("rewards", None), None, support.rewards
        if per_next is not None and rewards is not None:
            raise InputError("give rewards per transition or per (state, action), not both")
        read = Fields(**known_fields(fields)).read(shape, None)
        if per_next is None:
            expected, per_next = read_rewards(rewards, None, support, read)
        return cls._of(_checked(support, expected, per_next, read))

    @classmethod
    def from_support(
        cls,
        support: Support | Computed,
        rewards: Rewards | None = None,
        *,
        next_rewards: Array | None = None,
        part: Part | None = None,
        **fields: Any,
    ) -> MMDP:
        """Build from a shared pattern with arrays in the kernels' layout, models last.

        ``rewards`` is (T or 1, S, A, M), or ``next_rewards`` (T or 1, nnz, M) on the pattern;
        with both, ``rewards`` are taken as the expectation of ``next_rewards``. ``fields``
        are the other arguments of :class:`MMDP`. Nothing is copied that need not be. In place
        of the pattern there may be a storage of your own.

        >>> import mmdp, numpy as np
        >>> from mmdp.support import support_from_dense
        >>> support = support_from_dense(np.array([[[[0.5, 0.5]], [[0.0, 1.0]]]]), "auto")
        >>> mmdp.MMDP.from_support(support, np.ones((1, 2, 1, 1))).rewards.tolist()
        [[[1.0], [1.0]]]
        """
        if rewards is None and next_rewards is None:
            raise InputError("give rewards or next_rewards")
        computed = support if isinstance(support, Computed) else None
        if isinstance(support, Computed):
            times = len(rewards) if rewards is not None and len(rewards) > 1 else None
            support = _support_of(support, times)
        check_pattern(support, rewards, next_rewards)
        read = Fields(**known_fields(fields)).read(support.shape, part)
        return cls._of(_checked(support, rewards, next_rewards, read, part, computed))

    @classmethod
    def _of(cls, checked: Checked) -> MMDP:
        self = cls.__new__(cls)
        self.__setstate__(checked)
        return self

    def __getstate__(self) -> Checked:
        return self._state._replace(function=None)

    def __setstate__(self, state: Checked) -> None:
        x, n_states = state.fields, state.r.shape[1]
        initial = np.full(n_states, 1 / n_states) if x.initial is None else x.initial
        initial = np.ascontiguousarray(np.atleast_2d(initial).T)
        problem = Problem(
            state.storage, state.r, x.allowed[None], initial, x.weights, x.discount,
            np.ascontiguousarray(x.terminal.T), x.model_transitions, state.part,
        )  # fmt: skip
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_problem", problem)
        given = [y for y in (*x, *x.parameters.values()) if isinstance(y, np.ndarray)]
        for array in (*self._arrays(), *given):
            array.setflags(write=False)  # unpickled arrays are writable

    def _arrays(self) -> list[npt.NDArray[Any]]:
        """All arrays of the transitions and rewards."""
        x = self._problem
        parts = (*x, held(x.r), *x.storage.arrays(), self._state.next_rewards)
        return list({id(y): y for y in parts if isinstance(y, np.ndarray)}.values())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MMDP is frozen; use model.replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("MMDP is frozen")

    # ---------------------------------------------------------------- sizes and facts
    @property
    def problem(self) -> Problem:
        """The arrays that kernels read."""
        return self._problem

    @property
    def n_models(self) -> int:
        return self._problem.n_models

    @property
    def part(self) -> tuple[int, int] | None:
        """(i, n) if only part i of n of the models is here, as loaded with ``part=``."""
        part = self._problem.part
        return None if part is None else (part.i, part.n)

    @property
    def n_states(self) -> int:
        return self._problem.n_states

    @property
    def n_actions(self) -> int:
        return self._problem.n_actions

    @property
    def horizon(self) -> int | None:
        """The number of time steps if transitions or rewards vary with time, else None."""
        return self._state.horizon

    @property
    def storage(self) -> Form:
        """How transitions are held: tables, or events that all models share."""
        return self._problem.storage.form

    @property
    def name(self) -> str | None:
        return self._state.fields.name

    @property
    def citation(self) -> str | None:
        return self._state.fields.citation

    @property
    def times(self) -> Times:
        """What decisions are called.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]], times={"age": range(40, 45)})
        >>> one.times.span(0, 7)
        'age 40 to 47'
        """
        return read_times(self._state.fields.times)

    @property
    def unit(self) -> str | None:
        """The unit of rewards."""
        return self._state.fields.unit

    @property
    def quantity(self) -> str | None:
        """What a return is, in words."""
        return self._state.fields.quantity

    @property
    def function(self) -> Any:
        """What it was built from by :func:`mmdp.from_step`, in this process; None otherwise."""
        return self._state.function

    @property
    def evidence(self) -> Evidence | None:
        """The log that :func:`mmdp.fit` drew the models from; None if there is none."""
        return self._state.evidence

    @property
    def discount(self) -> float:
        return self._problem.discount

    @property
    def initial(self) -> Array:
        """(S,) initial distribution mu; (M, S) if each model has its own."""
        x = self._problem
        return x.initial[:, 0] if x.same_start else x.initial.T

    @property
    def initial_given(self) -> bool:
        """False if the uniform initial distribution was assumed."""
        return self._state.fields.initial is not None

    @property
    def weights(self) -> Array:
        """(M,) model probabilities lambda."""
        return self._problem.weights

    @property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """(S, A) booleans."""
        return self._problem.allowed[0]

    @property
    def deciding(self) -> npt.NDArray[np.bool_]:
        """(S,) whether an action changes anything in a state, at some time.

        It does not if all allowed actions have the same rewards and transitions in every model. If
        there is no other state, all of them count as deciding.

        >>> import mmdp
        >>> P = [[[[0.5, 0.5], [0.9, 0.1]], [[0.3, 0.7], [0.3, 0.7]]]]
        >>> mmdp.MMDP(P, [[1.0, 0.8], [2.0, 2.0]], states=["ill", "treated"]).deciding.tolist()
        [True, False]
        """
        found: npt.NDArray[np.bool_] = np.any(self._problem.deciding(), axis=0)
        return found if found.any() else np.ones(self.n_states, dtype=bool)

    def decisions(self, visits: Array) -> Array:
        """Set visits (T, S, ...) to 0 at times and in states where no action changes anything.

        If no other is visited, all of them count as decisions.
        """
        deciding = self._problem.deciding()[: len(visits)]
        found: Array = visits * deciding.reshape(*deciding.shape, *(1,) * (visits.ndim - 2))
        return found if found.any() else visits

    @property
    def terminal(self) -> Array:
        """(M, S) value of ending in each state."""
        return self._problem.terminal.T

    @property
    def drifts(self) -> bool:
        """Whether the hidden model changes (``model_transitions``)."""
        return self._problem.drift is not None

    @property
    def model_transitions(self) -> Array:
        """(M, M) probability that a model follows another; the identity if models stay."""
        K = self._problem.drift
        return np.eye(self.n_models) if K is None else K

    @property
    def rewards(self) -> Array:
        """(M, S, A), or (T, M, S, A): expected reward of an action; 0 if not allowed."""
        return self._over_time(np.moveaxis(np.asarray(self._problem.r), -1, 1))

    @property
    def has_missing(self) -> bool:
        """Whether actions may be missing in some models (``allow_missing``)."""
        return bool(self._state.fields.allow_missing)

    @property
    def has_next_rewards(self) -> bool:
        """Whether rewards that differ between next states are kept."""
        return self._state.next_rewards is not None

    @property
    def pattern_rewards(self) -> Array | None:
        """(T or 1, nnz, M) rewards per next state on the shared pattern; None if not kept."""
        return self._state.next_rewards

    @property
    def parameters(self) -> dict[str, Array]:
        """The uncertain parameters each model was built from: name to (M,) array."""
        return dict(self._state.fields.parameters)

    @property
    def state_labels(self) -> tuple[str, ...]:
        return self.names("state").names

    @property
    def action_labels(self) -> tuple[str, ...]:
        return self.names("action").names

    @property
    def model_labels(self) -> tuple[str, ...]:
        return self.names("model").names

    @property
    def labelled(self) -> dict[str, bool]:
        """Which of state, action and model have labels of their own."""
        return {kind: self.names(kind).labels is not None for kind in KINDS}

    def names(self, kind: str) -> Labels:
        """What the ids of a kind (state, action or model) stand for; it finds ids by labels.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
        >>> one.names("action").all(["treat", 0])
        [1, 0]
        """
        own = getattr(self._state.fields, f"{kind}s")
        return Labels(kind, getattr(self, f"n_{kind}s"), own)

    @property
    def density(self) -> float:
        """Share of (s, a, s') triples that some model can take."""
        return min(1.0, self._problem.storage.entries / (self.n_states**2 * self.n_actions))

    @property
    def memory(self) -> int:
        """Bytes held by the arrays of this model."""
        return sum(array.nbytes for array in self._arrays())

    @property
    def transitions(self) -> Array:
        """Dense (M, S, A, S') or (T, M, S, A, S') transitions; refused over 2 GiB."""
        return self._dense(self._problem.p)

    @property
    def next_rewards(self) -> Array | None:
        """Dense rewards per next state if they differ between next states, else None."""
        per_next = self._state.next_rewards
        return None if per_next is None else self._dense(per_next)

    @checked
    def matrix(self, model: int, action: int, time: int = 0) -> scipy.sparse.csr_array:
        """(S, S') scipy CSR transition matrix of one model and action.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]])
        >>> one.matrix(0, 0).toarray().tolist()
        [[0.5, 0.5], [0.0, 1.0]]
        """
        import scipy.sparse

        x = self._problem
        given = (("model", model, self.n_models), ("action", action, self.n_actions),
                 ("time", time, self.horizon or 1))  # fmt: skip
        for what, value, size in given:
            if not 0 <= value < size:
                raise InputError(f"{what} {value} is outside 0..{size - 1}")
        rows = np.arange(self.n_states) * self.n_actions + action
        counts = x.indptr[rows + 1] - x.indptr[rows]
        picked = np.concatenate([np.arange(x.indptr[i], x.indptr[i + 1]) for i in rows])
        values = x.p[time if len(x.p) > 1 else 0, picked, model]
        pointers = np.concatenate([[0], np.cumsum(counts)])
        matrix = scipy.sparse.csr_array(
            (values, x.indices[picked], pointers), shape=(self.n_states, self.n_states)
        )
        matrix.eliminate_zeros()
        return matrix

    def _dense(self, values: Array) -> Array:
        shape = (len(values), self.n_states, self.n_actions, self.n_states, values.shape[2])
        if not self._problem.dense:
            size = int(np.prod(shape, dtype=np.int64)) * 8
            if size > MATERIALISE_LIMIT:
                raise MemoryLimitError(
                    f"the dense array would take {readable_bytes(size)}; "
                    "use model.matrix(model, action) or model.problem"
                )
            full = np.zeros((shape[0], self.n_states * self.n_actions * self.n_states, shape[-1]))
            full[:, self._support(self._state.storage.table())[0].keys] = values
            values = full
        result = np.moveaxis(values.reshape(shape), -1, 1)
        result.setflags(write=False)
        return self._over_time(result)

    def _over_time(self, array: Array) -> Array:
        """With a time axis if anything varies with time (repeated if this array does not)."""
        if self.horizon is None:
            return array[0]
        return np.broadcast_to(array, (self.horizon, *array.shape[1:]))

    # ---------------------------------------------------------------- changed copies
    def with_function(self, function: Any) -> MMDP:
        """The same model, with what it was built from (see :func:`mmdp.from_step`)."""
        return MMDP._of(self._state._replace(function=function))

    def with_evidence(self, evidence: Evidence | None) -> MMDP:
        """The same model, with the log that it was fitted to."""
        return MMDP._of(self._state._replace(evidence=evidence))

    @checked
    def replace(self, **changes: Any) -> MMDP:
        """A copy with some fields changed; transitions are shared, not copied.

        Takes ``initial, weights, discount, terminal, rewards, next_rewards, allowed,
        model_transitions, states, actions, models, parameters, name, citation, times, unit,
        quantity``, and ``part`` with the weights of all models (see
        :class:`mmdp.kernels.problem.Part`).

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]], discount=0.9)
        >>> one.replace(discount=0.5).discount
        0.5
        """
        known = {*Fields._fields, "rewards", "next_rewards", "part"}
        unknown = set(changes) - known
        if unknown:
            raise InputError(
                f"replace() does not know {sorted(unknown)}; it takes {', '.join(sorted(known))}"
            )
        x, part = self._state, changes.pop("part", self._state.part)
        rewards = {y: changes.pop(y) for y in ("rewards", "next_rewards") if y in changes}
        support, computed = self._support(x.storage)
        fields = x.fields._replace(**changes).read(support.shape, part, only=changes)
        if not rewards and {"allowed", "allow_missing"}.isdisjoint(changes):
            _check_drift(fields, part)
            other = {"terminal", "model_transitions"} & set(changes)  # no longer what was built
            function = None if other else x.function
            return MMDP._of(x._replace(fields=fields, part=part, function=function))
        expected: Rewards | None = x.r
        per_next = x.next_rewards
        if rewards:
            both = (rewards.get("rewards"), rewards.get("next_rewards"))
            expected, per_next = read_rewards(*both, support, fields)
        checked = _checked(support, expected, per_next, fields, part, computed)
        return MMDP._of(checked._replace(evidence=x.evidence))

    def _but(
        self, change: Callable[[Array], Array], r: Rewards, per_next: Array | None, **changes: Any
    ) -> MMDP:
        """Other models in the same storage, which need no check; not a part.

        ``change``: see :meth:`mmdp.kernels.problem.Storage.mapped`.
        """
        fields = self._state.fields._replace(**changes)
        shape = (r.shape[3], self.n_states, self.n_actions)
        read, stored = fields.read(shape, None, only=changes), self._state.storage.mapped(change)
        return MMDP._of(Checked(stored, r, per_next, read, self.horizon, evidence=self.evidence))

    @checked
    def subset(
        self, models: int | str | Sequence[int] | Sequence[str] | npt.NDArray[Any] | slice
    ) -> MMDP:
        """The same problem over some of the models, their weights scaled to sum to 1.

        If models change, none of those chosen may turn into one that is not.

        >>> import mmdp
        >>> two = mmdp.MMDP([[[[1.0]]], [[[1.0]]]], [[[1.0]], [[3.0]]])
        >>> two.subset([1]).rewards.tolist()
        [[[3.0]]]
        """
        chosen = self._model_indices(models)
        x, per_next = self._problem, self._state.next_rewards
        total = x.weights[chosen].sum()
        if total <= 0:
            raise InputError("the chosen models have weight 0 together; choose others")
        if x.drift is not None and np.delete(x.drift[chosen], chosen, axis=1).any():
            raise InputError(
                "the chosen models turn into others; choose those too, or hold the models still "
                "with replace(model_transitions=None)"
            )
        own, function, first = self._state.fields.models, self.function, self._state.fields.initial
        return self._but(
            lambda p: x.chosen(p, chosen), mapped(x.r, lambda r: x.chosen(r, chosen)),
            None if per_next is None else x.chosen(per_next, chosen),
            weights=x.weights[chosen] / total,
            initial=first if x.same_start else x.chosen(x.initial, chosen).T,
            terminal=x.chosen(x.terminal, chosen).T,
            model_transitions=None if x.drift is None else x.drift[np.ix_(chosen, chosen)],
            models=None if own is None else [own[i] for i in chosen],
            parameters={k: v[chosen] for k, v in self.parameters.items()},
        ).with_function(None if function is None else function.subset(chosen))  # fmt: skip

    @checked
    def update(
        self, state: Any, action: Any = None, next_state: Any = None, *,
        time: NonNegativeInt | None = None, initial: Literal["last"] | None = None,
    ) -> MMDP:  # fmt: skip
        """The same models, weighted by how well they explain what was seen (Bayes' rule).

        ``state, action, next_state`` are those of one step, or of several as lists: labels, or ids
        from 0. In their place there may be a log, as :func:`mmdp.fit` reads it. A model that varies
        with time takes the ``time`` of the step, or the column of the log, from 0.
        ``initial="last"``: the new models start in the last state seen, after the last time seen.
        If models change, the weights are those of the model that holds now; whole numbers as times
        count the decisions that have passed. There is a warning if a step had a probability below
        one in a million (see :func:`mmdp.posterior.predictive_probabilities`).

        >>> import mmdp
        >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
        >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
        >>> seen = two.update("up", 0, "down", initial="last")
        >>> seen.weights.round(3).tolist(), seen.initial.tolist()
        ([0.125, 0.875], [0.0, 1.0])
        """
        from mmdp.posterior.update import believed, steps_of, updated

        log = state
        if action is not None or next_state is not None:
            columns = {"state": state, "action": action, "next_state": next_state, "time": time}
            given = {x: y for x, y in columns.items() if y is not None}
            log = {x: refuse_no_labels(y if is_list(y) else [y], x) for x, y in given.items()}
        elif time is not None:
            raise InputError("time belongs to a step; a log has a column time")
        steps = steps_of(self, log)
        return updated(self, steps, believed(self, steps).weights[-1], initial)

    @checked
    def later(self, time: int) -> MMDP:
        """The same problem from decision ``time`` on; what varies with time begins there.

        >>> import mmdp
        >>> three = mmdp.MMDP([[[[1.0]]]], [[[[5.0]]], [[[6.0]]], [[[7.0]]]])
        >>> three.later(1).rewards.ravel().tolist()
        [6.0, 7.0]
        """
        if self.times.labels:
            times = self.times.later(time)
            return self.replace(times=None).later(time).replace(times=times)
        if self.horizon is None:
            return self
        if not 0 <= time < self.horizon:
            raise InputError(
                f"no decision is left at time {time}: the model varies over "
                f"{counted(self.horizon, 'time step')}"
            )

        def rest(x: Array) -> Array:
            return x[time:] if len(x) > 1 else x

        x = self._state
        per_next = None if x.next_rewards is None else rest(x.next_rewards)
        stored = x.storage if x.storage.steps == 1 else x.storage.table().mapped(rest)
        r = x.r if len(x.r) == 1 else rest(np.asarray(x.r))
        left = x._replace(
            storage=stored, r=r, next_rewards=per_next, horizon=self.horizon - time,
            function=None,
        )  # fmt: skip
        return MMDP._of(left)

    @checked
    def take_part(self, index: int, count: int) -> MMDP:
        """Part ``index`` of ``count``, for one of as many processes (see :mod:`mmdp.hosts`).

        It keeps the weights, labels and parameters of all models.

        >>> import mmdp
        >>> mmdp.MMDP([[[[1.0]]]] * 5, [[2.0]]).take_part(0, 2)
        MMDP(5 models, 1 state, 1 action, discount 1; part 0 of 2; dense, 117 B)
        """
        part, x = Part.read((index, count), self.n_models), self._state
        if part is None:
            return self
        fields = x.fields._replace(terminal=x.fields.terminal[part.models_here])
        if not self._problem.same_start:
            fields = fields._replace(initial=self.initial[part.models_here])

        def here(values: Array) -> Array:
            return np.ascontiguousarray(values[..., part.models_here])

        per_next = None if x.next_rewards is None else here(x.next_rewards)
        _check_drift(fields, part)
        stored, r = x.storage.mapped(here), mapped(x.r, here)
        return MMDP._of(Checked(stored, r, per_next, fields, x.horizon, part, evidence=x.evidence))

    @checked
    def ordered_like(self, other: MMDP) -> MMDP:
        """The same models with states and actions in the order in which ``other`` names them.

        Kinds that are not labelled in both, or have other labels, stay as they are.

        >>> import mmdp
        >>> two = mmdp.MMDP([[[[1.0, 0.0]], [[0.0, 1.0]]]], [[1.0], [2.0]], states=["a", "b"])
        >>> two.ordered_like(two.replace(states=["b", "a"])).rewards.tolist()
        [[[2.0], [1.0]]]
        """
        s, a = (_places(self, other, kind) for kind in ("state", "action"))
        if (np.diff(s) > 0).all() and (np.diff(a) > 0).all():
            return self
        x, fields = self._state, self._state.fields
        stored, order = x.storage.ordered(s, a)
        per_next = None if x.next_rewards is None else x.next_rewards.take(order, axis=1)
        moved = fields._replace(
            initial=None if fields.initial is None else fields.initial[..., s],
            terminal=np.array(fields.terminal[:, s], order="F"),
            allowed=fields.allowed[np.ix_(s, a)],
            states=None if fields.states is None else tuple(fields.states[i] for i in s),
            actions=None if fields.actions is None else tuple(fields.actions[i] for i in a),
        )
        r = reordered(x.r, s, a)
        return MMDP._of(Checked(stored, r, per_next, moved, x.horizon, x.part))

    def mean_model(self) -> MMDP:
        """The one-model problem with averaged transitions and rewards (the paper's MVP).

        If rewards per next state are kept, p(s'|s,a) and r(s,a,s') are averaged
        separately, as in the published experiments; otherwise r(s,a) is averaged. The weights
        are those at the start, also if models change.
        """
        x, per_next, first = self._problem, self._state.next_rewards, self._state.fields.initial
        if per_next is not None:
            support = self._support(x.storage.mapped(x.average))[0]
            per_next = per_next_worth_keeping(x.mean(per_next)[..., None], support)
        mean = self.mean_problem()
        return self._but(
            x.average, mean.r, per_next, weights=None, models=None, parameters=None,
            model_transitions=None, terminal=mean.terminal.T,
            initial=first if x.same_start else mean.initial[:, 0],
            allow_missing="partial" if self.has_missing else False,
        )  # fmt: skip

    def mean_problem(self, weights: Array | None = None) -> Problem:
        """The arrays of :meth:`mean_model`, by other weights (M,) if they are given."""
        x, per_next = self._problem, self._state.next_rewards
        x = x if weights is None else x._replace(weights=weights)
        mean = x.averaged()
        if per_next is not None:
            support = self._support(mean.storage)[0]
            mean = mean._replace(r=expected_rewards(support, x.mean(per_next)[..., None]))
        parts = (held(mean.r), mean.terminal, mean.weights, mean.initial, *mean.storage.arrays())
        for array in parts:
            array.setflags(write=False)
        return mean

    def _support(self, storage: Laid) -> tuple[Support, Computed | None]:
        """What is built on: tables, or a storage of your own."""
        if isinstance(storage, Computed):
            return _support_of(storage, self.horizon), storage
        table = storage.table()
        shape = (table.p.shape[2], self.n_states, self.n_actions)
        return Support(shape, *table, None, self.horizon), None

    def fields(self) -> dict[str, Any]:
        """Everything but transitions and rewards, as the keyword arguments of :class:`MMDP`.

        What was not given is None (labels, ``initial``).

        >>> import mmdp
        >>> mmdp.MMDP([[[[1.0]]]], [[2.0]], discount=0.9).fields()["discount"]
        0.9
        """
        return self._state.fields._asdict()

    def fingerprint(self) -> str:
        """A digest of the numbers that returns depend on: the same for the same problem.

        Labels and names do not count, nor whether tables are dense or sparse, nor how often the
        same time step is stored. Shared events have digests of their own.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]])
        >>> same = one.replace(name="renamed").fingerprint() == one.fingerprint()
        >>> same, one.replace(discount=0.9).fingerprint() == one.fingerprint()
        (True, False)
        """
        x, r = self._problem, held(self._problem.r)
        rewards = once(r if x.allowed.all() else np.where(x.allowed[..., None], r, 0.0))
        digest = hashlib.sha256(repr(x.discount).encode())
        small = (x.allowed, self.initial, x.weights, x.terminal, rewards)
        for part in (*small, *x.storage.content(self.n_states)):
            plus = part if part.dtype.kind != "f" else part + 0  # -0.0 is 0.0
            digest.update(repr(part.shape).encode())
            digest.update(np.ascontiguousarray(plus).data)
        if x.drift is not None:
            digest.update((x.drift + 0).tobytes())
        return digest.hexdigest()

    def _model_indices(self, models: Any) -> npt.NDArray[np.int64]:
        if isinstance(models, slice):
            chosen = np.arange(self.n_models)[models]
        else:
            items = np.atleast_1d(models)
            if items.dtype.kind in "US":
                found = self.names("model").find(items.tolist())
                if -1 in found:
                    raise InputError(f"no model is called {items[np.argmin(found)].item()!r}")
                items = found
            try:
                chosen = np.atleast_1d(np.arange(self.n_models)[items] if items.size else [])
            except IndexError:
                raise InputError(
                    f"subset() takes model numbers from 0 to {self.n_models - 1}, labels, a slice "
                    "or one boolean per model"
                ) from None
        if not len(chosen):
            raise InputError("subset() needs at least one model")
        return chosen

    # ---------------------------------------------------------------- words
    @checked
    def where(
        self,
        model: NonNegativeInt,
        state: NonNegativeInt,
        action: NonNegativeInt,
        time: NonNegativeInt | None = None,
    ) -> str:
        """``model 3, state 'sick', action 'B'``: a place named with labels."""
        return self._state.fields.place(model, state, action, time)

    def _repr_html_(self) -> str:
        """For notebooks: sizes, labels and what was given."""
        rows = [
            (f"{kind}s", listed(getattr(self, f"{kind}_labels"), own))
            for kind, own in self.labelled.items()
        ]
        rows += [
            ("discount", f"{self.discount:g}"),
            ("horizon", "any" if self.horizon is None else f"{self.horizon:,}"),
            *self.times.facts,
            ("initial", "given" if self.initial_given else "uniform (not given)"),
            ("storage", f"{self.storage}, {readable_bytes(self.memory)}"),
        ]
        return notebook.facts(f"MMDP {self.name or ''}".strip(), rows)

    def __repr__(self) -> str:
        head = f"{self.name}: " if self.name else ""
        parts = [
            f"{head}{counted(self.n_models, 'model')}, {counted(self.n_states, 'state')}, "
            f"{counted(self.n_actions, 'action')}, discount {self.discount:g}"
        ]
        if self._problem.part is not None:
            parts.append(f"{self._problem.part}")
        if self.horizon is not None:
            parts.append(f"varies over {counted(self.horizon, 'time step')}")
        if not self.initial_given and self.n_states > 1:
            parts.append("initial uniform (not given)")
        if self.drifts:
            parts.append("models change")
        if not np.allclose(self.weights, 1 / self.n_models):
            parts.append("weighted models")
        if not self.allowed.all():
            parts.append("some actions not allowed everywhere")
        parts.append(f"{self.storage}, {readable_bytes(self.memory)}")
        return f"MMDP({'; '.join(parts)})"


def _places(model: MMDP, other: MMDP, kind: str) -> npt.NDArray[np.int64]:
    """The id in ``model`` of each state or action of ``other``; the same ids if names differ."""
    mine, theirs = (getattr(x, f"{kind}_labels") for x in (model, other))
    if not (model.labelled[kind] and other.labelled[kind]) or set(mine) != set(theirs):
        return np.arange(len(mine))
    found: npt.NDArray[np.int64] = model.names(kind).find(theirs)
    return found


def _checked(
    support: Support, expected: Rewards | None, per_next: Array | None, fields: Fields,
    part: Part | None = None, computed: Computed | None = None,
) -> Checked:  # fmt: skip
    """Transitions and rewards in the kernels' layout, checked; ``fields`` already are."""
    models = Labels("model", len(fields.weights), fields.models)
    shown = fields._replace(models=models.here(part).labels)  # for messages
    known = computed is not None and computed.checked  # then there is no pattern here
    if known and per_next is not None:
        raise InputError("shared events take rewards by state and action, not by next state")
    mask = fields.allowed
    if mask is None:
        mask = np.ones(support.shape[1:], bool) if known else inferred_allowed(support)
    support = drop_disallowed(support, mask, shown)
    if not known:
        check_rows(support, mask, fields.allow_missing, shown, fixed=computed is not None)
    per_next = without_impossible(per_next, support)
    if isinstance(expected, ByEvent) and not expected.of(computed):
        raise InputError("rewards by event belong to other events than the transitions")
    check_rewards(expected, per_next, support, mask, shown)
    if expected is None:
        assert per_next is not None
        expected = expected_rewards(support, per_next)
        per_next = per_next_worth_keeping(per_next, support)
    expected = within(expected, mask)
    if fields.allow_missing and not known:  # where it is missing, the episode ends without a reward
        sums = support.row_sums(support.values)
        missing = (sums == 0).reshape(len(sums), *mask.shape, support.shape[0])
        expected = np.where(missing, 0.0, expected)
    given = (support.values, expected, per_next)
    times = {len(x) for x in given if x is not None and len(x) > 1}
    if len(times) > 1:
        raise InputError(
            f"transitions and rewards disagree on the horizon ({sorted(times)}); "
            "give both the same leading time axis"
        )
    _check_drift(fields, part)
    stored = Stored(support.indptr, support.indices, support.values, support.dense)
    return Checked(
        stored if computed is None else computed.within(mask),
        expected if isinstance(expected, ByEvent) else np.ascontiguousarray(expected), per_next,
        fields._replace(allowed=mask), times.pop() if times else support.horizon, part,
    )  # fmt: skip


def _check_drift(fields: Fields, part: Part | None) -> None:
    if fields.model_transitions is not None and part is not None:
        raise InputError("models that change cannot be divided into parts")


def _support_of(computed: Computed, horizon: int | None) -> Support:
    """The tables of another storage, to be checked like all others; none if it already is."""
    M, S, A = computed.shape
    steps = computed.steps if computed.steps > 1 else horizon
    if not computed.checked:
        return Support((M, S, A), *computed.table(), None, steps)
    p, indptr = np.empty((computed.steps, 0, M)), np.zeros(S * A + 1, np.int64)
    return Support((M, S, A), indptr, np.empty(0, np.int32), p, False, None, steps)
