"""What the readers of POMDP files share: words to tables, and tables to the arguments of MMDP."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mmdp.core.errors import InputError, MemoryLimitError, Remedy
from mmdp.core.kernels.distributions import SUM_TOLERANCE, clip_rounding, normalize
from mmdp.core.shapes import Array
from mmdp.core.text import format_bytes
from mmdp.core.transitions import MAX_DENSE_BYTES
from mmdp.data.schema import Fields

MAX_NAMES = 1_000_000  # of states, actions or observations
Names = dict[str, int]  # the position of each name


def make_model_fields(
    p: Array, r: Array, labels: Mapping[str, Sequence[str]], **fields: object
) -> Fields:
    """Make the arguments of MMDP from transitions and rewards (M, S, A, S'), labels and others.

    Rewards that do not depend on the next state are given by state and action. Labels that only
    repeat the ids (0, 1, ... or s0, s1, ...) are left out.
    """
    is_possible = p > 0
    lowest = np.where(is_possible, r, np.inf).min(axis=-1)
    has_one_reward = lowest == np.where(is_possible, r, -np.inf).max(axis=-1)
    if has_one_reward.all():
        rewards = {"rewards": lowest}
    else:
        rewards = {"next_rewards": np.where(is_possible, r, 0.0)}
    kept_labels = {name: x for name, x in labels.items() if not _repeat_ids(name[0], x)}
    return {"transitions": p, **rewards, **kept_labels, **fields}


def _repeat_ids(letter: str, labels: Sequence[str]) -> bool:
    """Return whether labels only repeat the ids: 0, 1, ... or s0, s1, ..."""
    return all(label in (str(i), f"{letter}{i}", f"s{i}") for i, label in enumerate(labels))


def check_distributions(
    table: Array, is_normalized: bool, axis_names: Sequence[Iterable[str]], subject: str
) -> Array:
    """Check distributions along the last axis; divide them by their sums if ``is_normalized``.

    ``axis_names`` name the values of the other axes in messages.
    """
    table = normalize(table)
    sums = table.sum(axis=-1, keepdims=True)
    if is_normalized:
        return np.divide(table, sums, out=table.copy(), where=sums > 0)
    bad_rows = np.argwhere(np.abs(sums[..., 0] - 1.0) > SUM_TOLERANCE)
    if len(bad_rows):
        names = [list(x)[i] for x, i in zip(axis_names, bad_rows[0], strict=True)]
        raise InputError(
            f"{' '.join([subject, *['for'] * bool(names), *names])}: probabilities sum to "
            f"{sums[tuple(bad_rows[0])].item():.10g}, not 1",
            ["correct them", Remedy("normalize", True)],
        )
    return table


def check_table_size(*sizes: int) -> None:
    """Refuse a table that would exceed the memory limit, before it is allocated."""
    n_bytes = 8 * math.prod(sizes)
    if n_bytes > MAX_DENSE_BYTES // 4:
        raise MemoryLimitError(
            f"a table of {' x '.join(map(str, sizes))} would take {format_bytes(n_bytes)}; read "
            "such a model from .csv, .parquet or .npz"
        )


# ---------------------------------------------------------------------- words
def parse_names(words: Sequence[str], subject: str) -> Names:
    """Parse different names; returns the position of each."""
    if not words or len(set(words)) < len(words) or not {"*", "-"}.isdisjoint(words):
        raise InputError(f"{subject} needs at least one name, none twice and none of '*' and '-'")
    return {word: i for i, word in enumerate(words)}


def parse_count(text: str, subject: str) -> int:
    """Parse the number of values of a variable."""
    if not (text.isdecimal() and 1 <= int(text[:9]) <= MAX_NAMES):
        raise InputError(f"{subject} {text!r} is not a whole number from 1 to {MAX_NAMES:,}")
    return int(text)


def parse_float(text: str, subject: str) -> float:
    """Parse a finite number; the error names the subject."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"{subject} is {text!r}, not a number; give a finite number")
    return number


def parse_numbers(words: Sequence[str], subject: str, shape: Sequence[int]) -> Array:
    """Parse words as an array of a shape."""
    n_expected = math.prod(shape)
    if len(words) != n_expected:
        raise InputError(f"{len(words)} numbers for {subject}; expected {n_expected}")
    return np.array([parse_float(word, subject) for word in words]).reshape(shape)


def parse_probabilities(words: Sequence[str], subject: str, shape: Sequence[int]) -> Array:
    """Parse words as probabilities of a shape, or one of the words uniform and identity."""
    if words == ["uniform"] and shape:
        return np.full(shape, 1.0 / shape[-1])
    if words == ["identity"] and len(shape) == 2 and shape[0] == shape[1]:
        return np.eye(shape[0])
    values = clip_rounding(parse_numbers(words, subject, shape))
    if values.min(initial=0.0) < 0:
        raise InputError(f"negative probability {values.min():g}; it must be from 0 to 1")
    return values
