"""Tunnel states: states split by the time since they were entered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mmdp.core.errors import InputError
from mmdp.core.model import MMDP
from mmdp.core.validate import match_ids
from mmdp.data.io.tables import EncodedTransitions, LoadOptions, build_model, model_to_columns
from mmdp.data.schema import ColumnLabels, IntArray, TableSource

Tunnels = Mapping[object, int]  # number of stages by state


def expand_tunnels(make_model: Callable[[int], MMDP], tunnels: Tunnels) -> MMDP:
    """Build a model whose states in ``tunnels`` are split by the time since their entry.

    ``make_model(k)`` has the rows of the k-th step in a state; see :func:`mmdp.from_samples`. A
    stay leads from stage k to stage k + 1, or to the last stage again; an entry leads to stage 1.
    """
    first_model = make_model(1)
    lengths = _parse_lengths(tunnels, first_model)
    starts, n_states = np.cumsum(lengths) - lengths, int(lengths.sum())
    allowed = np.empty((n_states, first_model.n_actions), dtype=bool)
    terminal = np.empty((len(first_model.terminal), n_states))
    initial = np.zeros((*first_model.initial.shape[:-1], n_states))
    initial[..., starts] = first_model.initial
    stages = []
    for k in range(int(lengths.max())):
        model = make_model(k + 1) if k else first_model
        split_states = np.flatnonzero(lengths > k)
        allowed[starts[split_states] + k] = model.allowed[split_states]
        terminal[:, starts[split_states] + k] = model.terminal[:, split_states]
        columns = model_to_columns(model)
        is_split = lengths[columns["state"]] > k
        columns = {role: values[is_split] for role, values in columns.items()}
        s, next_state = columns["state"], columns["next_state"]
        next_stage = np.minimum(k + 1, lengths[s] - 1)
        columns["state"] = starts[s] + k
        columns["next_state"] = starts[next_state] + (next_state == s) * next_stage
        stages.append(columns)
    columns = {role: np.concatenate([x[role] for x in stages]) for role in stages[0]}
    names = zip(first_model.state_labels, lengths.tolist(), strict=True)
    labels = tuple(_format_tunnel_label(name, k, n) for name, n in names for k in range(n))
    axes = {
        "state": ColumnLabels("state", n_states, labels),
        "action": ColumnLabels("action", first_model.n_actions),
        "model": ColumnLabels("model", len(terminal)),
    }
    fields = first_model.to_kwargs()
    fields |= {"initial": initial, "terminal": terminal, "allowed": allowed, "states": labels}
    encoded = EncodedTransitions(columns, axes, first_model.horizon)
    return build_model(encoded, fields, TableSource("tunnels"), LoadOptions())


def tunnel_groups(model: MMDP, tunnels: Tunnels) -> list[str]:
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


def _parse_lengths(tunnels: Tunnels, model: MMDP) -> IntArray:
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
