"""A hidden model and an observed state: what a POMDP file must hold to be an MMDP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.io.ids import Ids
from mmdp.io.reading import Source
from mmdp.io.rules import Rules
from mmdp.io.tables import assemble
from mmdp.kernels.distributions import SUM_TOLERANCE, clip, normalize
from mmdp.model import MMDP
from mmdp.support import MATERIALISE_LIMIT, Array
from mmdp.words import readable_bytes


@dataclass(frozen=True)
class Mixed:
    """p, r (M, S, A, S'), the weights (M,) of the models, the first state (S,), and labels.

    ``drift`` (M, M) is the chain by which the model changes, None if it never does.
    """

    p: Array
    r: Array
    weights: Array
    initial: Array  # (S,) or (M, S)
    discount: float
    labels: Mapping[str, Sequence[str]]
    drift: Array | None = None

    def model(self, given: Mapping[str, Any], source: Source, rules: Rules) -> MMDP:
        """The checked model; ``given`` replaces what the file says."""
        m, s, a, n = np.nonzero(self.p)
        columns = {
            "model": m, "state": s, "action": a, "next_state": n,
            "probability": self.p[m, s, a, n], "reward": self.r[m, s, a, n],
        }  # fmt: skip
        sizes = dict(zip(("model", "state", "action"), self.p.shape, strict=False))
        names = {kind: tuple(x) for kind, x in self.labels.items() if not _numbered(kind, x)}
        fields = {
            "weights": self.weights, "initial": self.initial, "discount": self.discount,
            "model_transitions": self.drift,
        }  # fmt: skip
        return assemble(Ids(columns, sizes, names), {**fields, **given}, source, rules)


def _numbered(kind: str, labels: Sequence[str]) -> bool:
    """Whether labels say no more than ids do: 0, 1, ... or s0, s1, ..."""
    return all(label in (str(i), f"{kind[0]}{i}", f"s{i}") for i, label in enumerate(labels))


def refuse_change(what: str) -> NoReturn:
    """Refuse a hidden part that changes in another way than a model may."""
    raise InputError(
        f"{what}; in an MMDP the model alone is hidden, and it changes by a chain of its own, "
        "whatever the action and the state"
    )


def split_belief(belief: Array) -> tuple[Array, Array]:
    """(M,) weights of the models, and (M, S) the first state in each; anything at weight 0."""
    weights = belief.sum(axis=1)
    anything = np.full_like(belief, 1.0 / belief.shape[1])
    shares = np.divide(belief, weights[:, None], out=anything, where=weights[:, None] > 0)
    return weights, shares


def summing_to_one(
    table: Array, rules: Rules, names: Sequence[Sequence[str]], what: str
) -> Array:  # fmt: skip
    """Distributions along the last axis; ``names`` are those of the values of the others."""
    table = normalize(table)
    sums = table.sum(axis=-1)
    if rules.normalize:
        return np.divide(table, sums[..., None], out=table.copy(), where=sums[..., None] > 0)
    wrong = np.argwhere(np.abs(sums - 1.0) > SUM_TOLERANCE)
    if len(wrong):
        place = " ".join(x[i] for x, i in zip(names, wrong[0], strict=True))
        raise InputError(
            f"{what}{f' for {place}' if place else ''}: probabilities sum to "
            f"{sums[tuple(wrong[0])]:.10g}, not 1",
            ["correct them", Remedy("normalize", True)],
        )
    return table


def check_cells(*sizes: int) -> None:
    """Refuse a table that would not fit into memory, before it is made."""
    size = 8
    for n in sizes:
        size *= n
    if size > MATERIALISE_LIMIT // 4:
        raise MemoryLimitError(
            f"a table of {' x '.join(map(str, sizes))} would take {readable_bytes(size)}; read "
            "such a model from .csv, .parquet or .npz"
        )


def read_number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"{what} is {text!r}, not a number")
    return number


def read_numbers(
    words: Sequence[str], what: str, shape: Sequence[int], least: float = -np.inf
) -> Array:
    """As many numbers as the shape has places; probabilities are at ``least`` 0."""
    wanted = int(np.prod(shape))
    if len(words) != wanted:
        raise InputError(f"{len(words)} numbers for {what}; expected {wanted}")
    values = np.array([read_number(word, what) for word in words]).reshape(shape)
    values = clip(values) if least == 0 else values
    if values.min(initial=least) < least:
        raise InputError(f"negative probability {values.min():g}; it must be from 0 to 1")
    return values
