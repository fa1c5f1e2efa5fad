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

Storage. All models share one sparsity pattern: the union of their non-zero transitions, a
CSR pattern over the S*A rows, with the values of all models side by side (models last):
``p[t, k, m]``. The dense storage is the same layout with the full pattern. Kernels
read these arrays (:class:`mmdp.core.kernels.Problem`); users see the axes t, m, s, a, s_next.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import NonNegativeInt, PositiveInt, StateText, check_arguments
from mmdp.core.errors import InputError, MemoryLimitError
from mmdp.core.kernels.problem import (
    Problem,
    Shard,
    Storage,
    StorageFormat,
    TableStorage,
    collapse_time_axis,
)
from mmdp.core.kernels.rewards import (
    EventRewards,
    Rewards,
    at_time,
    get_stored_array,
    map_rewards,
    mask_rewards,
    reorder_rewards,
)
from mmdp.core.kernels.storage import CustomStorage
from mmdp.core.shapes import (
    ActionMask,
    Array,
    IndexArray,
    InitialArray,
    Mask,
    ModelMatrix,
    ModelVector,
    RewardArray,
    TerminalArray,
    TransitionArray,
)
from mmdp.core.text import TimeLabels, format_bytes, pluralize, render_facts, summarize_labels
from mmdp.core.transitions import (
    MAX_DENSE_BYTES,
    CoordinateEntries,
    MatrixEntries,
    SparseTransitions,
    StorageOption,
    as_float_array,
    check_pattern,
    dense_to_transitions,
    entries_to_transitions,
    is_nested_sparse,
)
from mmdp.core.validate import (
    AXES,
    LabelIndex,
    ModelFields,
    align_to_labels,
    check_every_state_acts,
    check_field_names,
    check_index,
    check_labels,
    check_rewards,
    check_transitions,
    compute_expected_rewards,
    drop_redundant_rewards,
    is_list,
    parse_labels,
    parse_rewards,
    parse_time_labels,
    zero_impossible_rewards,
)

if TYPE_CHECKING:
    import scipy.sparse

    from mmdp.data.functions.step import StepSpec


FIELD_ATTRIBUTES = (  # fields that a model has as attributes
    *("discount", "weights", "allowed", "terminal"),
    *("name", "citation", "unit", "quantity"),
)


class Evidence(NamedTuple):
    """The log that models were fitted to.

    ``counts`` say how often each of the transitions ``flat_indices``, (s A + a) S + s', was seen.
    ``prior`` has its ``pseudo_counts`` (None: an array that was not kept), ``concentration``,
    ``support``, ``unseen`` and ``absorbing``, as options of :func:`mmdp.fit`.
    """

    flat_indices: IndexArray
    counts: IndexArray
    prior: Mapping[str, Any]


class ModelData(NamedTuple):
    """The checked arrays and fields of a model; copies and pickles need nothing else."""

    storage: Storage
    rewards: Rewards  # (T or 1, S, A, M)
    next_rewards: Array | None  # (T or 1, nnz, M)
    fields: ModelFields
    horizon: int | None
    shard: Shard | None = None
    step_spec: StepSpec | None = None  # of from_step, in memory only
    evidence: Evidence | None = None


class MMDP:
    """A multi-model MDP: M models over the same states and actions.

    Parameters
    ----------
    transitions
        ``(M, S, A, S')`` array, ``(T, M, S, A, S')`` if they vary with time, or
        ``(S, A, S')`` for one model; or, for sparse models, a sequence over models of
        sequences over actions of ``(S, S')`` scipy sparse matrices, or one over times of such
        sequences; or a storage of your own (:class:`mmdp.core.kernels.storage.CustomStorage`).
    rewards
        ``(S, A)``, ``(M, S, A)`` or ``(T, M, S, A)``.
    next_rewards
        Rewards per next state, shaped like ``transitions``; give this or ``rewards``. Entries of
        probability 0 may be NaN.
    initial
        ``(S,)`` initial distribution mu, uniform by default; ``(M, S)`` if models begin in
        different ways, so that the first state says something about the model. Like every field,
        it may be a mapping, a Series or a DataFrame of pandas, which is read by label (or id),
        whatever its order. Text is a state, ``"up"``, or shares, ``"up=0.5,down=0.5"``.
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
    time_labels
        Labels of decisions 0, 1, ... for people to read: ages, years or
        weeks, or ``{"age": range(40, 90)}``, which names the axis. Evenly spaced numbers go on
        after the last label.
    unit
        The unit of rewards, for people to read: ``"$"``, ``"QALYs"``.
    quantity
        Description of a return, for people to read: ``"net benefit at £5,000 per QALY"``.

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

    problem: Problem
    """Arrays that the backends read."""
    n_models: int
    """Number of models, M."""
    n_states: int
    """Number of states, S."""
    n_actions: int
    """Number of actions, A."""
    horizon: int | None
    """Number of time steps if transitions or rewards vary with time, else None."""
    discount: float
    """Discount factor gamma per decision, from 0 to 1."""
    initial: InitialArray
    """Initial distribution mu (S,); (M, S) if the models differ."""
    weights: ModelVector
    """Model probabilities lambda (M,)."""
    allowed: ActionMask
    """Mask of allowed actions (S, A)."""
    terminal: TerminalArray
    """Terminal value of each state (M, S)."""
    pattern_rewards: Array | None
    """Rewards per next state on the sparsity pattern (T or 1, nnz, M); None if not kept."""
    name: str | None
    """Name of the problem; None without."""
    citation: str | None
    """Citation of the source of the problem; None without."""
    unit: str | None
    """Unit of the rewards."""
    quantity: str | None
    """Description of a return, in words."""
    step_spec: StepSpec | None
    """Step function of :func:`mmdp.from_step`, in the process that built it; None otherwise."""
    evidence: Evidence | None
    """Log that :func:`mmdp.fit` sampled the models from; None if there is none."""
    _data: ModelData

    @check_arguments
    def __init__(
        self,
        transitions: object,
        rewards: object = None,
        *,
        next_rewards: object = None,
        initial: StateText | npt.ArrayLike | None = None,
        weights: npt.ArrayLike | None = None,
        discount: float = 1.0,
        terminal: npt.ArrayLike | None = None,
        allowed: npt.ArrayLike | None = None,
        model_transitions: npt.ArrayLike | None = None,
        states: Iterable[object] | None = None,
        actions: Iterable[object] | None = None,
        models: Iterable[object] | None = None,
        storage: StorageOption = "auto",
        allow_missing: bool = False,
        parameters: Mapping[str, npt.ArrayLike] | None = None,
        name: str | None = None,
        citation: str | None = None,
        time_labels: object = None,
        unit: str | None = None,
        quantity: str | None = None,
    ) -> None:
        if isinstance(transitions, CustomStorage):
            sparse_transitions = SparseTransitions.from_storage(transitions, transitions.shape[1])
        elif is_nested_sparse(transitions):
            sparse_transitions = entries_to_transitions(MatrixEntries(transitions), storage)
        else:
            states, actions = parse_labels(states, "state"), parse_labels(actions, "action")
            array = align_to_labels(transitions, "transitions", states, actions, states)
            sparse_transitions = dense_to_transitions(as_float_array(array, "transitions"), storage)
        arguments = {name: x for name, x in locals().items() if name in ModelFields._fields}
        fields = ModelFields.parse(arguments, sparse_transitions.shape)
        parsed_rewards = parse_rewards(rewards, next_rewards, sparse_transitions, fields)
        self.__setstate__(_check_data(sparse_transitions, *parsed_rewards, fields))

    @classmethod
    @check_arguments
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
        storage: StorageOption = "auto",
        **fields: object,
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
        entries = CoordinateEntries.parse(
            {
                "model": model,
                "state": state,
                "action": action,
                "next_state": next_state,
                "probability": probability,
                "reward": reward,
                "time": time,
            },
            shape,
            horizon,
        )
        sparse_transitions = entries_to_transitions(entries, storage)
        rewards = fields.pop("rewards", None)
        parsed_fields = ModelFields.parse(fields, shape)
        parsed_rewards = parse_rewards(rewards, None, sparse_transitions, parsed_fields)
        return cls._from_data(_check_data(sparse_transitions, *parsed_rewards, parsed_fields))

    @classmethod
    def from_sparse(
        cls,
        transitions: SparseTransitions | CustomStorage,
        rewards: Rewards | None = None,
        *,
        next_rewards: Array | None = None,
        shard: Shard | None = None,
        **fields: object,
    ) -> MMDP:
        """Build from a shared pattern with arrays in the kernels' layout, models last.

        ``rewards`` is (T or 1, S, A, M), or ``next_rewards`` (T or 1, nnz, M) on the pattern;
        with both, ``rewards`` are taken as the expectation of ``next_rewards``. ``fields``
        are the other arguments of :class:`MMDP`. Nothing is copied that need not be. In place
        of the pattern there may be a storage of your own.

        >>> import mmdp, numpy as np
        >>> from mmdp.core.transitions import dense_to_transitions
        >>> support = dense_to_transitions(np.array([[[[0.5, 0.5]], [[0.0, 1.0]]]]), "auto")
        >>> mmdp.MMDP.from_sparse(support, np.ones((1, 2, 1, 1))).rewards.tolist()
        [[[1.0], [1.0]]]
        """
        if rewards is None and next_rewards is None:
            raise InputError("give rewards or next_rewards")
        if isinstance(transitions, CustomStorage):
            horizon = len(rewards) if rewards is not None and len(rewards) > 1 else None
            n_states = transitions.shape[1]
            transitions = SparseTransitions.from_storage(transitions, n_states, horizon)
        check_pattern(transitions, rewards, next_rewards)
        parsed_fields = ModelFields.parse(fields, transitions.shape, shard)
        return cls._from_data(_check_data(transitions, rewards, next_rewards, parsed_fields, shard))

    @classmethod
    def _from_data(cls, data: ModelData) -> MMDP:
        """Make a model of checked data."""
        self = cls.__new__(cls)
        self.__setstate__(data)
        return self

    def __getstate__(self) -> ModelData:
        return self._data._replace(step_spec=None)

    def __setstate__(self, state: ModelData) -> None:
        fields, n_states = state.fields, state.rewards.shape[1]
        assert fields.allowed is not None
        initial = np.full(n_states, 1 / n_states) if fields.initial is None else fields.initial
        problem = Problem(
            state.storage,
            state.rewards,
            fields.allowed[None],
            np.ascontiguousarray(np.atleast_2d(initial).T),
            fields.weights,
            fields.discount,
            np.ascontiguousarray(fields.terminal.T),
            fields.model_transitions,
            state.shard,
        )
        vars(self).update(
            {name: getattr(fields, name) for name in FIELD_ATTRIBUTES},
            _data=state,
            problem=problem,
            n_models=problem.n_models,
            n_states=n_states,
            n_actions=problem.n_actions,
            horizon=state.horizon,
            initial=initial,
            pattern_rewards=state.next_rewards,
            step_spec=state.step_spec,
            evidence=state.evidence,
        )
        for array in (
            *_collect_arrays(problem, state.next_rewards),
            *(initial, *fields, *fields.parameters.values()),
        ):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)  # unpickled arrays are writable

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MMDP is frozen; use model.replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("MMDP is frozen; use model.replace(...) for a changed copy")

    # ---------------------------------------------------------------- sizes and facts

    @property
    def shard(self) -> tuple[int, int] | None:
        """(i, n) if it holds shard i of n of the models, as loaded with ``shard=``; else None."""
        shard = self.problem.shard
        return None if shard is None else (shard.shard_index, shard.n_shards)

    @property
    def storage(self) -> StorageFormat:
        """Storage format of the transitions: dense or sparse tables, or exogenous events."""
        return self.problem.storage.format

    @property
    def time_labels(self) -> TimeLabels:
        """Labels of the decisions.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]], time_labels={"age": range(40, 45)})
        >>> one.time_labels.describe_range(0, 7)
        'age 40 to 47'
        """
        return parse_time_labels(self._data.fields.time_labels)

    @property
    def has_initial(self) -> bool:
        """Whether an initial distribution was given; if not, it is uniform."""
        return self._data.fields.initial is not None

    @property
    def has_choice(self) -> Mask:
        """Mask (S,) of the states whose actions differ in rewards or transitions at some time.

        It does not if all allowed actions have the same rewards and transitions in every model. If
        that holds for all states, the mask is true everywhere.

        >>> import mmdp
        >>> P = [[[[0.5, 0.5], [0.9, 0.1]], [[0.3, 0.7], [0.3, 0.7]]]]
        >>> mmdp.MMDP(P, [[1.0, 0.8], [2.0, 2.0]], states=["ill", "treated"]).has_choice.tolist()
        [True, False]
        """
        mask: Mask = np.any(self.problem.has_choice(), axis=0)
        return mask if mask.any() else np.ones(self.n_states, dtype=bool)

    def mask_visits(self, visits: Array) -> Array:
        """Set visits (T, S, ...) to 0 at times and in states where no action changes anything.

        If no other is visited, all of them count as decisions.
        """
        has_choice = self.problem.has_choice()[: len(visits)]
        masked_visits: Array = visits * np.expand_dims(has_choice, (*range(2, visits.ndim),))
        return masked_visits if masked_visits.any() else visits

    @property
    def is_switching(self) -> bool:
        """Whether the hidden model switches (``model_transitions``)."""
        return self.problem.model_transitions is not None

    @property
    def model_transitions(self) -> ModelMatrix:
        """Probability that a model follows another (M, M); the identity if models do not switch."""
        K = self.problem.model_transitions
        return np.eye(self.n_models) if K is None else K

    @property
    def rewards(self) -> RewardArray:
        """Expected reward of each action, (M, S, A) or (T, M, S, A); 0 if not allowed."""
        return self._broadcast_time(np.moveaxis(np.asarray(self.problem.r), -1, 1))

    @property
    def has_missing_actions(self) -> bool:
        """Whether actions may be missing in some models (``allow_missing``)."""
        return bool(self._data.fields.allow_missing)

    @property
    def has_next_rewards(self) -> bool:
        """Whether rewards that differ between next states are kept."""
        return self._data.next_rewards is not None

    @property
    def parameters(self) -> dict[str, ModelVector]:
        """Uncertain parameters that each model was built from: name to (M,) array."""
        return dict(self._data.fields.parameters)

    @cached_property
    def state_labels(self) -> tuple[str, ...]:
        """Labels of the states, or their ids as text."""
        return self.label_index("state").names

    @cached_property
    def action_labels(self) -> tuple[str, ...]:
        """Labels of the actions, or their ids as text."""
        return self.label_index("action").names

    @cached_property
    def model_labels(self) -> tuple[str, ...]:
        """Labels of the models, or their ids as text."""
        return self.label_index("model").names

    @property
    def has_labels(self) -> dict[str, bool]:
        """Whether the states, actions and models have labels, by axis."""
        return {axis: self.label_index(axis).labels is not None for axis in AXES}

    def label_index(self, axis: str) -> LabelIndex:
        """Get the labels of an axis (state, action or model), which find ids by label.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0], [1.0]]]], [[0.0, 0.0]], actions=["wait", "treat"])
        >>> one.label_index("action").get_ids(["treat", 0])
        [1, 0]
        """
        labels = getattr(self._data.fields, f"{axis}s")
        return LabelIndex(axis, getattr(self, f"n_{axis}s"), labels)

    @property
    def density(self) -> float:
        """Share of (s, a, s') triples with positive probability in some model."""
        return min(1.0, self.problem.storage.n_entries / (self.n_states**2 * self.n_actions))

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays of this model."""
        return sum(y.nbytes for y in _collect_arrays(self.problem, self._data.next_rewards))

    @property
    def transitions(self) -> TransitionArray:
        """Dense (M, S, A, S') or (T, M, S, A, S') transitions; refused over 2 GiB."""
        return self._to_dense(self.problem.p)

    @property
    def next_rewards(self) -> TransitionArray | None:
        """Dense rewards per next state if they differ between next states, else None."""
        pattern_rewards = self._data.next_rewards
        return None if pattern_rewards is None else self._to_dense(pattern_rewards)

    @check_arguments
    def transition_matrix(self, model: int, action: int, time: int = 0) -> scipy.sparse.csr_array:
        """Get the transition matrix (S, S') of one model and action as a scipy CSR array.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[0.5, 0.5]], [[0.0, 1.0]]]], [[1.0], [0.0]])
        >>> one.transition_matrix(0, 0).toarray().tolist()
        [[0.5, 0.5], [0.0, 1.0]]
        """
        import scipy.sparse

        check_index(model, self.n_models, "model")
        check_index(action, self.n_actions, "action")
        check_index(time, self.horizon or 1, "time")
        rows = np.arange(self.n_states) * self.n_actions + action
        table = self.problem.storage.select_rows(rows)
        matrix = scipy.sparse.csr_array(
            (at_time(table.p, time)[:, model], table.indices, table.indptr),
            shape=(self.n_states, self.n_states),
        )
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    def _to_dense(self, values: Array) -> Array:
        """Expand values on the sparsity pattern to a dense array, if it fits into memory."""
        shape = (len(values), self.n_states, self.n_actions, self.n_states, values.shape[2])
        if not self.problem.is_dense:
            size = 8 * math.prod(shape)
            if size > MAX_DENSE_BYTES:
                raise MemoryLimitError(
                    f"the dense array would take {format_bytes(size)}; "
                    "use model.transition_matrix(model, action) or model.problem"
                )
            table = self.problem.storage.to_table()
            full = np.zeros((shape[0], self.n_states * self.n_actions * self.n_states, shape[-1]))
            full[:, table.get_entry_rows() * self.n_states + table.indices] = values
            values = full
        result = np.moveaxis(values.reshape(shape), -1, 1)
        result.setflags(write=False)
        return self._broadcast_time(result)

    def _broadcast_time(self, array: Array) -> Array:
        """Add the time axis if the model varies with time; repeat an array that does not."""
        if self.horizon is None:
            return array[0]
        return np.broadcast_to(array, (self.horizon, *array.shape[1:]))

    # ---------------------------------------------------------------- changed copies
    def with_step_spec(self, step_spec: StepSpec | None) -> MMDP:
        """Return the same model with its step function (see :func:`mmdp.from_step`)."""
        return MMDP._from_data(self._data._replace(step_spec=step_spec))

    def with_evidence(self, evidence: Evidence | None) -> MMDP:
        """Return the same model with the log that it was fitted to."""
        return MMDP._from_data(self._data._replace(evidence=evidence))

    @check_arguments
    def replace(self, **changes: Any) -> MMDP:
        """Return a copy with some fields changed; transitions are shared, not copied.

        Takes ``initial, weights, discount, terminal, rewards, next_rewards, allowed,
        model_transitions, states, actions, models, parameters, name, citation, time_labels,
        unit, quantity``, and ``shard`` with the weights of all models (see
        :class:`mmdp.core.kernels.problem.Shard`).

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]], discount=0.9)
        >>> one.replace(discount=0.5).discount
        0.5
        """
        check_field_names(changes, ["rewards", "next_rewards", "shard"])
        data, shard = self._data, changes.pop("shard", self._data.shard)
        rewards = changes.pop("rewards", None), changes.pop("next_rewards", None)
        shape = (data.rewards.shape[3], self.n_states, self.n_actions)
        fields = ModelFields.parse(data.fields._asdict() | changes, shape, shard)
        has_rewards = any(x is not None for x in rewards)
        if not has_rewards and {"allowed", "allow_missing"}.isdisjoint(changes):
            is_as_built = {"terminal", "model_transitions"}.isdisjoint(changes)
            step_spec = data.step_spec if is_as_built else None
            return MMDP._from_data(data._replace(fields=fields, shard=shard, step_spec=step_spec))
        transitions = self._to_sparse(data.storage)
        parsed_rewards: tuple[Rewards | None, Array | None] = data.rewards, data.next_rewards
        if has_rewards:
            parsed_rewards = parse_rewards(*rewards, transitions, fields)
        new_data = _check_data(transitions, *parsed_rewards, fields, shard)
        return MMDP._from_data(new_data._replace(evidence=data.evidence))

    def _replace_models(
        self,
        storage: Storage,
        rewards: Rewards,
        pattern_rewards: Array | None,
        shard: Shard | None = None,
        **changes: object,
    ) -> MMDP:
        """Make an MMDP of other models, which are not checked again."""
        shape = (rewards.shape[3], self.n_states, self.n_actions)
        fields = ModelFields.parse(self._data.fields._asdict() | changes, shape, shard)
        data = ModelData(storage, rewards, pattern_rewards, fields, self.horizon, shard)
        return MMDP._from_data(data._replace(evidence=self.evidence))

    def _select_models(
        self, select: Callable[[Array], Array], shard: Shard | None = None, **changes: object
    ) -> MMDP:
        """Make an MMDP of some models; ``select`` takes them from an array (..., M)."""
        x, pattern_rewards, fields = self.problem, self._data.next_rewards, self._data.fields
        return self._replace_models(
            x.storage.map_models(select),
            map_rewards(x.r, select),
            None if pattern_rewards is None else select(pattern_rewards),
            shard,
            initial=fields.initial if x.has_common_initial else select(x.initial).T,
            terminal=select(x.terminal).T,
            **changes,
        )

    @check_arguments
    def subset(
        self, models: int | str | Sequence[int] | Sequence[str] | npt.NDArray[np.generic] | slice
    ) -> MMDP:
        """Return the MMDP with some of the models, their weights scaled to sum to 1.

        If models switch, none of those chosen may switch to one that is not.

        >>> import mmdp
        >>> two = mmdp.MMDP([[[[1.0]]], [[[1.0]]]], [[[1.0]], [[3.0]]])
        >>> two.subset([1]).rewards.tolist()
        [[[3.0]]]
        """
        ids, x = self._find_model_ids(models), self.problem
        total, K = x.weights[ids].sum(), x.model_transitions
        if total <= 0:
            raise InputError(
                "the chosen models have total weight 0; choose models of positive weight"
            )
        if K is not None and np.delete(K[ids], ids, axis=1).any():
            raise InputError(
                "the chosen models switch to others; choose those too, or stop the switching with "
                "replace(model_transitions=None)"
            )
        labels, step_spec = self._data.fields.models, self.step_spec
        return self._select_models(
            lambda values: x.gather_selected(values, ids),
            weights=x.weights[ids] / total,
            model_transitions=None if K is None else K[np.ix_(ids, ids)],
            models=None if labels is None else [labels[i] for i in ids],
            parameters={name: values[ids] for name, values in self.parameters.items()},
        ).with_step_spec(None if step_spec is None else step_spec.select_models(ids))

    @check_arguments
    def update(
        self,
        state: object,
        action: object = None,
        next_state: object = None,
        *,
        time: NonNegativeInt | None = None,
        initial: Literal["last"] | None = None,
    ) -> MMDP:
        """Return the same models with posterior weights given observed transitions (Bayes' rule).

        Every call begins a new episode, so pass ``initial="last"`` to update step by step: the new
        models start in the last state seen, after the last time seen. Without it, the first state
        counts in every call if models begin apart, and the time before it if models switch and
        vary with time; steps given here then have a warning.

        ``state, action, next_state`` are those of one step, or of several as lists: labels, or ids
        from 0. In their place there may be a log, as :func:`mmdp.fit` reads it. A model that varies
        with time takes the ``time`` of the step, or the column of the log, from 0.
        If models switch, the weights are those of the model that holds now; whole numbers as times
        count the decisions that have passed within one log. There is a warning if a step had a
        probability below one in a million (see :func:`mmdp.posterior.predictive_probabilities`).

        >>> import mmdp
        >>> P = [[[[0.9, 0.1]], [[0.0, 1.0]]], [[[0.3, 0.7]], [[0.0, 1.0]]]]
        >>> two = mmdp.MMDP(P, [[1.0], [0.0]], initial=[1, 0], states=["up", "down"])
        >>> seen = two.update("up", 0, "down", initial="last")
        >>> seen.weights.round(3).tolist(), seen.initial.tolist()
        ([0.125, 0.875], [0.0, 1.0])
        """
        from mmdp.data.posterior.update import (
            filter_weights,
            read_model_steps,
            update_model,
            warn_begins_anew,
        )

        log, is_log = state, action is None and next_state is None
        if not is_log:
            columns = {"state": state, "action": action, "next_state": next_state, "time": time}
            log = {
                name: check_labels(values if is_list(values) else [values], name)
                for name, values in columns.items()
                if values is not None
            }
        elif time is not None:
            raise InputError("time belongs to a step; a log has a column time")
        steps = read_model_steps(self, log)
        if not is_log and initial is None:
            warn_begins_anew(self, steps)
        return update_model(self, steps, filter_weights(self, steps).weights[-1], initial)

    @check_arguments
    def truncate_before(self, time: int) -> MMDP:
        """Return the same problem from decision ``time`` on.

        >>> import mmdp
        >>> three = mmdp.MMDP([[[[1.0]]]], [[[[5.0]]], [[[6.0]]], [[[7.0]]]])
        >>> three.truncate_before(1).rewards.ravel().tolist()
        [6.0, 7.0]
        """
        data, labels = self._data, self.time_labels
        if labels.labels:
            data = self.replace(time_labels=labels.truncate_before(time))._data
        if self.horizon is None:
            return MMDP._from_data(data)
        if not 0 <= time < self.horizon:
            raise InputError(
                f"no decision is left at time {time}: the model varies over "
                f"{pluralize(self.horizon, 'time step')}"
            )

        def slice_time(x: Array) -> Array:
            return x[time:] if len(x) > 1 else x

        storage, rewards = data.storage, data.rewards
        truncated_data = data._replace(
            storage=storage if storage.n_times == 1 else storage.to_table().map_models(slice_time),
            rewards=rewards if len(rewards) == 1 else slice_time(np.asarray(rewards)),
            next_rewards=None if data.next_rewards is None else slice_time(data.next_rewards),
            horizon=self.horizon - time,
            step_spec=None,
        )
        return MMDP._from_data(truncated_data)

    @check_arguments
    def take_shard(self, index: int, n_shards: int) -> MMDP:
        """Return shard ``index`` of ``n_shards``, for one process (see :mod:`mmdp.distributed`).

        It keeps the weights, labels and parameters of all models.

        >>> import mmdp
        >>> mmdp.MMDP([[[[1.0]]]] * 5, [[2.0]]).take_shard(0, 2)
        MMDP(5 models, 1 state, 1 action, discount 1; part 0 of 2; dense, 117 B)
        """
        shard = Shard.parse((index, n_shards), self.n_models)
        if shard is None:
            return self
        local_models = shard.local_models
        return self._select_models(
            lambda values: np.ascontiguousarray(values[..., local_models]), shard
        )

    @check_arguments
    def reorder_like(self, other: MMDP) -> MMDP:
        """Return the same models with states and actions in the order of the labels of ``other``.

        Axes without labels in one of them, or with other labels, stay as they are.

        >>> import mmdp
        >>> two = mmdp.MMDP([[[[1.0, 0.0]], [[0.0, 1.0]]]], [[1.0], [2.0]], states=["a", "b"])
        >>> two.reorder_like(two.replace(states=["b", "a"])).rewards.tolist()
        [[[2.0], [1.0]]]
        """
        s, a = (_match_axis(self, other, axis) for axis in ("state", "action"))
        if (np.diff(s) > 0).all() and (np.diff(a) > 0).all():
            return self
        data, fields = self._data, self._data.fields
        storage, order = data.storage.reorder(s, a)
        pattern_rewards = (
            None if data.next_rewards is None else data.next_rewards.take(order, axis=1)
        )
        new_fields = fields._replace(
            initial=None if fields.initial is None else fields.initial[..., s],
            terminal=np.array(fields.terminal[:, s], order="F"),
            allowed=self.allowed[np.ix_(s, a)],
            states=fields.states and tuple(fields.states[i] for i in s),
            actions=fields.actions and tuple(fields.actions[i] for i in a),
        )
        rewards = reorder_rewards(data.rewards, s, a)
        new_data = data._replace(
            storage=storage, rewards=rewards, next_rewards=pattern_rewards, fields=new_fields
        )
        return MMDP._from_data(new_data._replace(step_spec=None, evidence=None))

    def mean_model(self) -> MMDP:
        """Return the model with averaged transitions and rewards (the paper's MVP).

        If rewards per next state are kept, p(s'|s,a) and r(s,a,s') are averaged
        separately, as in the published experiments; otherwise r(s,a) is averaged. The weights
        are those at the start, also if models switch.
        """
        x, mean = self.problem, self.mean_problem()
        pattern_rewards, initial = self._data.next_rewards, self._data.fields.initial
        if pattern_rewards is not None:
            pattern_rewards = drop_redundant_rewards(
                x.mean_over_models(pattern_rewards)[..., None], self._to_sparse(mean.storage)
            )
        return self._replace_models(
            mean.storage,
            mean.r,
            pattern_rewards,
            weights=None,
            models=None,
            parameters=None,
            model_transitions=None,
            terminal=mean.terminal.T,
            initial=initial if x.has_common_initial else mean.initial[:, 0],
            allow_missing="partial" if self.has_missing_actions else False,
        )

    def mean_problem(self, weights: Array | None = None) -> Problem:
        """Compute the arrays of :meth:`mean_model`, with other weights (M,) if given."""
        x, pattern_rewards = self.problem, self._data.next_rewards
        x = x if weights is None else x._replace(weights=weights)
        mean = x.make_mean_model()
        if pattern_rewards is not None:
            mean_rewards = x.mean_over_models(pattern_rewards)[..., None]
            mean = mean._replace(
                r=compute_expected_rewards(self._to_sparse(mean.storage), mean_rewards)
            )
        for array in _collect_arrays(mean):
            array.setflags(write=False)
        return mean

    def _to_sparse(self, storage: Storage) -> SparseTransitions:
        """Convert a storage to sparse transitions."""
        return SparseTransitions.from_storage(storage, self.n_states, self.horizon)

    def to_kwargs(self) -> dict[str, Any]:
        """Get all fields but transitions and rewards, as keyword arguments of :class:`MMDP`.

        A field that was not given is None (labels, ``initial``).

        >>> import mmdp
        >>> mmdp.MMDP([[[[1.0]]]], [[2.0]], discount=0.9).to_kwargs()["discount"]
        0.9
        """
        return self._data.fields._asdict()

    def fingerprint(self) -> str:
        """Compute a digest of the numbers that returns depend on.

        Labels and names do not count, nor whether tables are dense or sparse, nor how often the
        same time step is stored. Shared events have digests of their own.

        >>> import mmdp
        >>> one = mmdp.MMDP([[[[1.0]]]], [[2.0]])
        >>> same = one.replace(name="renamed").fingerprint() == one.fingerprint()
        >>> same, one.replace(discount=0.9).fingerprint() == one.fingerprint()
        (True, False)
        """
        x, r = self.problem, get_stored_array(self.problem.r)
        rewards = collapse_time_axis(
            r if x.allowed.all() else np.where(x.allowed[..., None], r, 0.0)
        )
        digest = hashlib.sha256(repr(x.discount).encode())
        common_arrays = (x.allowed, self.initial, x.weights, x.terminal, rewards)
        for array in (*common_arrays, *x.storage.iter_content(self.n_states)):
            digest.update(repr(array.shape).encode())
            array = array if array.dtype.kind != "f" else array + 0  # -0.0 is 0.0
            digest.update(np.ascontiguousarray(array).data)
        if x.model_transitions is not None:
            digest.update((x.model_transitions + 0).tobytes())
        return digest.hexdigest()

    def _find_model_ids(self, models: npt.ArrayLike | slice) -> IndexArray:
        """Convert model numbers, labels, a slice or a mask to model ids."""
        if not isinstance(models, slice):
            models = np.atleast_1d(models)
            if models.dtype.kind in "US":
                models = self.label_index("model").get_ids(models.tolist())
        try:
            ids = np.arange(self.n_models)[models]
        except IndexError:
            raise InputError(
                f"subset() takes model numbers from 0 to {self.n_models - 1}, labels, a slice "
                "or one boolean per model"
            ) from None
        if not len(ids):
            raise InputError("subset() needs at least one model")
        return ids

    # ---------------------------------------------------------------- words
    @property
    def summary_rows(self) -> list[tuple[str, str]]:
        """Rows (name, text) of sizes, labels and fields."""
        times = self.time_labels
        return [
            *((f"{axis}s", summarize_labels(self.label_index(axis).names)) for axis in AXES),
            ("discount", f"{self.discount:g}"),
            ("horizon", "any" if self.horizon is None else f"{self.horizon:,} (time-varying)"),
            *([("times", times.describe_range(0, len(times.labels) - 1))] if times.labels else []),
            ("initial", "given" if self.has_initial else "uniform (not given)"),
            ("storage", f"{self.storage}, {format_bytes(self.nbytes)}"),
        ]

    def _repr_html_(self) -> str:
        """Render sizes, labels and fields for notebooks."""
        return render_facts(f"MMDP {self.name or ''}".strip(), self.summary_rows)

    def __repr__(self) -> str:
        prefix = f"{self.name}: " if self.name else ""
        parts = [
            f"{prefix}{pluralize(self.n_models, 'model')}, {pluralize(self.n_states, 'state')}, "
            f"{pluralize(self.n_actions, 'action')}, discount {self.discount:g}"
        ]
        if self.problem.shard is not None:
            parts.append(f"{self.problem.shard}")
        if self.horizon is not None:
            parts.append(f"varies over {pluralize(self.horizon, 'time step')}")
        if not self.has_initial and self.n_states > 1:
            parts.append("initial uniform (not given)")
        if self.is_switching:
            parts.append("models change")
        if not np.allclose(self.weights, 1 / self.n_models):
            parts.append("weighted models")
        if not self.allowed.all():
            parts.append("some actions not allowed everywhere")
        parts.append(f"{self.storage}, {format_bytes(self.nbytes)}")
        return f"MMDP({'; '.join(parts)})"


def _collect_arrays(x: Problem, *other_arrays: Array | None) -> list[npt.NDArray[np.generic]]:
    """List all arrays of transitions and rewards, each once."""
    candidates = (*x, get_stored_array(x.r), *x.storage.get_arrays(), *other_arrays)
    return list({id(y): y for y in candidates if isinstance(y, np.ndarray)}.values())


def _match_axis(model: MMDP, other: MMDP, axis: str) -> IndexArray:
    """Find the id in ``model`` of each label of ``other``; unchanged ids if labels differ."""
    own, target = model.label_index(axis), other.label_index(axis)
    if own.labels is None or target.labels is None or {*own.labels} != {*target.labels}:
        return np.arange(own.size)
    return own.find_ids(target.labels)


def _check_data(
    transitions: SparseTransitions,
    expected_rewards: Rewards | None,
    pattern_rewards: Array | None,
    fields: ModelFields,
    shard: Shard | None = None,
) -> ModelData:
    """Check transitions and rewards and bring them into the layout of the backends."""
    model_index = LabelIndex("model", len(fields.weights), fields.models)
    local_fields = fields._replace(models=model_index.select_shard(shard).labels)  # for messages
    sums, custom_storage = None, transitions.custom_storage
    if custom_storage is not None and custom_storage.has_valid_rows:  # there is no pattern here
        if pattern_rewards is not None:
            raise InputError("shared events take rewards by state and action, not by next state")
        allowed = np.ones(transitions.shape[1:], bool) if fields.allowed is None else fields.allowed
        check_every_state_acts(allowed, fields)
    else:
        allowed, sums = check_transitions(transitions, local_fields)
    if pattern_rewards is not None:
        pattern_rewards = zero_impossible_rewards(pattern_rewards, transitions)
    if isinstance(expected_rewards, EventRewards) and not expected_rewards.matches(custom_storage):
        raise InputError(
            "the rewards by event belong to other events than those of the transitions"
        )
    check_rewards(expected_rewards, pattern_rewards, transitions, allowed, local_fields)
    if expected_rewards is None:
        assert pattern_rewards is not None
        expected_rewards = compute_expected_rewards(transitions, pattern_rewards)
        pattern_rewards = drop_redundant_rewards(pattern_rewards, transitions)
    expected_rewards = mask_rewards(expected_rewards, allowed)
    if fields.allow_missing and sums is not None:
        # where it is missing, the episode ends without a reward
        missing = (sums == 0).reshape(len(sums), *allowed.shape, -1)
        expected_rewards = np.where(missing, 0.0, expected_rewards)
    tables = (transitions.values, expected_rewards, pattern_rewards)
    horizons = {len(table) for table in tables if table is not None and len(table) > 1}
    if len(horizons) > 1:
        raise InputError(
            f"transitions and rewards disagree on the horizon ({sorted(horizons)}); "
            "give both the same leading time axis"
        )
    if not isinstance(expected_rewards, EventRewards):
        expected_rewards = np.ascontiguousarray(expected_rewards)
    x = transitions
    return ModelData(
        TableStorage(x.indptr, x.indices, x.values, x.is_dense)
        if custom_storage is None
        else custom_storage.restrict_actions(allowed),
        expected_rewards,
        pattern_rewards,
        fields._replace(allowed=allowed),
        horizons.pop() if horizons else transitions.horizon,
        shard,
    )
