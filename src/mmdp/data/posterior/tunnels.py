"""Tunnel states: states split by the time since they were entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.transitions import Array, SparseTransitions
from mmdp.core.validate import match_ids
from mmdp.data.schema import IntArray


def expand_tunnels(make_model: Callable[[int], MMDP], tunnels: Mapping[Any, int]) -> MMDP:
    """Build a model whose states in ``tunnels`` are split by the time since their entry.

    ``make_model(k)`` has the rows of the k-th step in a state; see :func:`mmdp.from_samples`. A
    stay leads from stage k to stage k + 1, or to the last stage again; an entry leads to stage 1.
    """
    first_model = make_model(1)
    A, lengths = first_model.n_actions, _parse_lengths(tunnels, first_model)
    starts, n_states = np.cumsum(lengths) - lengths, int(lengths.sum())
    stages: list[_TunnelStage] = []
    has_next_rewards = False
    for k in range(int(lengths.max())):
        model = make_model(k + 1) if k else first_model
        problem, rows, next_rewards = (
            model.problem,
            model.problem.get_entry_rows(),
            model.pattern_rewards,
        )
        split_states, entries = np.flatnonzero(lengths > k), np.flatnonzero(lengths[rows // A] > k)
        s, a, next_state = rows[entries] // A, rows[entries] % A, problem.indices[entries]
        next_column = starts[next_state] + (next_state == s) * np.minimum(k + 1, lengths[s] - 1)
        entry_rewards = problem.r[:, s, a] if next_rewards is None else next_rewards[:, entries]
        stages.append(
            _TunnelStage(
                starts[split_states] + k,
                ((starts[s] + k) * A + a) * n_states + next_column,
                problem.p[:, entries],
                entry_rewards,
                problem.r[:, split_states],
                model.terminal[:, split_states],
                model.allowed[split_states],
            )
        )
        has_next_rewards |= next_rewards is not None
    joined = _TunnelStage(*(_concatenate_stages(problem) for problem in zip(*stages, strict=True)))
    state_order, entry_order = np.argsort(joined.states), np.argsort(joined.keys)
    shape = (problem.p.shape[2], n_states, A)
    transitions = SparseTransitions.from_flat_indices(
        shape, joined.keys[entry_order], joined.p[:, entry_order], horizon=first_model.horizon
    )
    initial = np.zeros((*first_model.initial.shape[:-1], n_states))
    initial[..., starts] = first_model.initial
    labels = zip(first_model.state_labels, lengths.tolist(), strict=True)
    return MMDP.from_sparse(
        transitions,
        None if has_next_rewards else joined.r[:, state_order],
        next_rewards=joined.next_rewards[:, entry_order] if has_next_rewards else None,
        initial=initial,
        weights=first_model.weights,
        discount=first_model.discount,
        terminal=joined.terminal[:, state_order],
        allowed=joined.allowed[state_order],
        model_transitions=first_model.to_kwargs()["model_transitions"],
        states=[_format_tunnel_label(name, k, n) for name, n in labels for k in range(n)],
        actions=first_model.action_labels if first_model.has_labels["action"] else None,
        models=first_model.model_labels if first_model.has_labels["model"] else None,
        allow_missing=first_model.has_missing_actions,
        parameters=first_model.parameters,
        name=first_model.name,
        time_labels=first_model.time_labels,
        unit=first_model.unit,
        quantity=first_model.quantity,
    )


class _TunnelStage(NamedTuple):
    """Rows of one stage k: ids of its states, and entries on keys (s A + a) S + s'."""

    states: IntArray
    keys: IntArray
    p: Array
    next_rewards: Array
    r: Array
    terminal: Array
    allowed: npt.NDArray[np.bool_]


def _concatenate_stages(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate stages along states or entries: the first axis, or the second after time."""
    if arrays[0].ndim == 1 or arrays[0].dtype == np.bool_:
        return np.concatenate(arrays)
    n_times = max(len(array) for array in arrays)  # 1 for arrays that do not vary with time
    return np.concatenate([np.broadcast_to(x, (n_times, *x.shape[1:])) for x in arrays], axis=1)


def tunnel_groups(model: MMDP, tunnels: Mapping[Any, int]) -> list[str]:
    """Get the group (S,) of each state: the state that ``tunnels`` split, for tied policies.

    >>> import numpy as np, mmdp
    >>> from mmdp.data.posterior import tunnel_groups
    >>> def build(x):                          # wait or treat; recovery gets less likely
    ...     well = np.array([0.4, 0.6]) * x["p"] / x["since"]
    ...     sick = np.stack([well, 1 - well], axis=-1)
    ...     return np.stack([[[1.0, 0.0]] * 2, sick]), [[1.0, 1.0], [0.0, -0.1]]
    >>> model = mmdp.from_samples(
    ...     {"p": [0.8, 1.0]}, build, tunnels={"sick": 3}, states=["well", "sick"], initial=[0, 1])
    >>> model.state_labels
    ('well', 'sick 1', 'sick 2', 'sick 3+')
    >>> unseen = mmdp.policies.Tied(tunnel_groups(model, {"sick": 3}))     # time unknown
    >>> mmdp.solve(model, 5, policy_class=unseen).value <= mmdp.solve(model, 5).value
    True
    """
    group_by_label = {
        _format_tunnel_label(str(name), k, n): str(name)
        for name, n in tunnels.items()
        for k in range(n)
    }
    return [group_by_label.get(label, label) for label in model.state_labels]


def _format_tunnel_label(name: str, k: int, length: int) -> str:
    """Format the label of stage k: ``sick 2``, or ``sick 3+`` for the last."""
    return name if length == 1 else f"{name} {k + 1}{'+' * (k + 1 == length)}"


def _parse_lengths(tunnels: Mapping[Any, int], model: MMDP) -> IntArray:
    """Parse the number of stages (S,) of each state."""
    lengths = np.ones(model.n_states, dtype=np.int64)
    if not isinstance(tunnels, Mapping) or not tunnels:
        raise InputError('tunnels must map states to numbers of stages, such as {"sick": 75}')
    state_ids = match_ids(tunnels, model.state_labels, "tunnels")
    for s, (name, n) in zip(state_ids, tunnels.items(), strict=True):
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(
                f"tunnels: {n!r} stages of {name!r} is not a whole number >= 1; give one"
            )
        lengths[s] = n
    return lengths
