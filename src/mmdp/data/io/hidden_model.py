"""Models of POMDP files: a hidden model and an observed state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.kernels.distributions import SUM_TOLERANCE, clip_rounding, normalize
from mmdp.core.model import MMDP
from mmdp.core.text import format_bytes
from mmdp.core.transitions import MAX_DENSE_BYTES, Array
from mmdp.data.io.tables import COLUMN_ORDER, EncodedTransitions, LoadOptions, build_model
from mmdp.data.schema import ColumnLabels, Fields, TableSource


@dataclass(frozen=True)
class HiddenModel:
    """Transitions and rewards (M, S, A, S'), weights (M,), initial distribution and labels.

    ``model_transitions`` (M, M) is the chain by which the model switches, None if it never does.
    """

    p: Array
    r: Array
    weights: Array
    initial: Array  # (S,) or (M, S)
    discount: float
    labels: Mapping[str, Sequence[str]]
    model_transitions: Array | None = None

    def to_mmdp(self, overrides: Fields, source: TableSource, options: LoadOptions) -> MMDP:
        """Convert to a checked MMDP; ``overrides`` replace fields of the file."""
        index = np.nonzero(self.p)
        cells = (*index, self.p[index], self.r[index])
        columns = dict(zip(COLUMN_ORDER[1:], cells, strict=True))
        axes: dict[str, ColumnLabels] = {}
        for axis, size in zip(("model", "state", "action"), self.p.shape, strict=False):
            labels = self.labels.get(axis, ())
            has_labels = not _are_default_labels(axis, labels)
            axes[axis] = ColumnLabels(axis, size, tuple(labels) if has_labels else None)
        fields = {
            "weights": self.weights,
            "initial": self.initial,
            "discount": self.discount,
            "model_transitions": self.model_transitions,
        }
        return build_model(
            EncodedTransitions(columns, axes),
            {**fields, **overrides},
            source,
            options,
        )


def _are_default_labels(axis: str, labels: Sequence[str]) -> bool:
    """Return whether labels only repeat the ids: 0, 1, ... or s0, s1, ..."""
    return all(label in (str(i), f"{axis[0]}{i}", f"s{i}") for i, label in enumerate(labels))


def fail_unsupported_switching(problem: str) -> NoReturn:
    """Raise the error of a hidden part that does not switch like a model."""
    raise InputError(
        f"{problem}; in an MMDP only the model is hidden, and it switches by a Markov chain that "
        "does not depend on the action and the state"
    )


def split_belief(belief: Array) -> tuple[Array, Array]:
    """Split a joint belief (M, S) into model weights (M,) and initial distributions (M, S)."""
    weights = belief.sum(axis=1)
    uniform = np.full_like(belief, 1.0 / belief.shape[1])
    initial = np.divide(belief, weights[:, None], out=uniform, where=weights[:, None] > 0)
    return weights, initial


def check_distributions(
    table: Array, options: LoadOptions, axis_labels: Sequence[Sequence[str]], subject: str
) -> Array:
    """Check distributions along the last axis, and normalize them if the options say so.

    ``axis_labels`` name the values of the other axes in messages.
    """
    table = normalize(table)
    sums = table.sum(axis=-1)
    if options.normalize:
        return np.divide(table, sums[..., None], out=table.copy(), where=sums[..., None] > 0)
    bad_rows = np.argwhere(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if len(bad_rows):
        row_text = " ".join(x[i] for x, i in zip(axis_labels, bad_rows[0], strict=True))
        raise InputError(
            f"{subject}{f' for {row_text}' if row_text else ''}: probabilities sum to "
            f"{sums[tuple(bad_rows[0])]:.10g}, not 1",
            ["correct them", Remedy("normalize", True)],
        )
    return table


def check_table_size(*sizes: int) -> None:
    """Refuse a table that would exceed the memory limit, before it is allocated."""
    n_bytes = 8
    for length in sizes:
        n_bytes *= length
    if n_bytes > MAX_DENSE_BYTES // 4:
        raise MemoryLimitError(
            f"a table of {' x '.join(map(str, sizes))} would take {format_bytes(n_bytes)}; read "
            "such a model from .csv, .parquet or .npz"
        )


def parse_float(text: str, subject: str) -> float:
    """Parse a finite number; the error names the subject."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"{subject} is {text!r}, not a number; give a finite number")
    return number


def parse_float_array(
    words: Sequence[str], subject: str, shape: Sequence[int], min_value: float = -np.inf
) -> Array:
    """Parse words as an array of a shape; numbers below ``min_value`` are refused."""
    n_expected = int(np.prod(shape))
    if len(words) != n_expected:
        raise InputError(f"{len(words)} numbers for {subject}; expected {n_expected}")
    values = np.array([parse_float(word, subject) for word in words]).reshape(shape)
    values = clip_rounding(values) if min_value == 0 else values
    if values.min(initial=min_value) < min_value:
        raise InputError(f"negative probability {values.min():g}; it must be from 0 to 1")
    return values
