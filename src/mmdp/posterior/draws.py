"""From draws of uncertain parameters to models, through the user's function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.arguments import Vector, checked
from mmdp.errors import InputError, MemoryLimitError, Remedy
from mmdp.io.frames import as_frame
from mmdp.kernels.distributions import PRINTED, ROUNDING
from mmdp.kernels.problem import Part
from mmdp.model import MMDP
from mmdp.posterior.tunnels import with_tunnels
from mmdp.support import MATERIALISE_LIMIT, Array, depth_of_nest, float_array, is_sparse_nest
from mmdp.validate import by_label, is_named
from mmdp.words import counted, either, readable_bytes

Draws = dict[str, Array]
Build = Callable[[dict[str, Any]], Any]
STACKED = ("transitions", "rewards", "next_rewards", "terminal")  # one for each draw
TIMED = {"transitions": 5, "rewards": 4, "next_rewards": 5}  # axes: draws, time and the others
AGREE = 1e-12  # how close one draw alone must be to its part of the vectorised answer


@checked
def from_draws(
    draws: Any,
    build: Build,
    *,
    vectorized: bool | None = None,
    weights: npt.ArrayLike | None = None,
    part: tuple[int, int] | None = None,
    tunnels: Mapping[Any, int] | None = None,
    **fields: Any,
) -> MMDP:
    """Map draws of parameters to models, one model per draw.

    Parameters
    ----------
    draws
        One row or entry per draw: a DataFrame of pandas or polars (such as a probabilistic
        sensitivity analysis), the path of one as ``.csv`` or ``.parquet``, a mapping of name to
        array (n,) or (n, ...), an ArviZ InferenceData or an xarray Dataset, whose chains and
        draws are joined.
    build
        Function of a dict of parameters by name. It returns ``(transitions, rewards)`` or a
        dict of arguments of :class:`mmdp.MMDP`: for one draw ``transitions`` (S, A, S') or
        (T, S, A, S'), or scipy sparse matrices (S, S') by action or by time and action;
        ``rewards`` (S, A), (T, S, A) or (S, A, S') and so on. Called with arrays
        over n draws it returns the same with draws first, also before time: (n, T, S, A, S');
        what does not depend on the draw may stay as it is.
    vectorized
        True: call it with arrays; False: once per draw. None (the default): try the former and
        keep it if it agrees, in shapes and values, with the first and the last draw alone.
    weights
        (n,) weights of the draws (see :func:`weights_from_log_likelihood`).
    part
        ``(i, n)``: build part i of n of the models, for one of n processes (see
        :mod:`mmdp.hosts`). If their zeros differ, say ``storage="dense"``.
    tunnels
        ``{"sick": 75}``: what happens in this state depends on the time since it was entered.
        Then ``build`` finds that time as ``x["since"]`` (1 in the first step), returns states
        and actions as always, and is called for 1 to 75. The model has the states ``sick 1`` to
        ``sick 75+``, the last for 75 and more; see :func:`mmdp.posterior.without_tunnels` for
        policies that do not see them.
    fields
        Other arguments of :class:`mmdp.MMDP`, the same for all draws.

    The parameters are kept as ``model.parameters``, an array parameter by its entries
    (``beta[0]``), so that :func:`mmdp.measures.evppi` can be asked about each.

    >>> import numpy as np, mmdp.posterior
    >>> def build(x):
    ...     p = x["fail"]
    ...     run = np.stack([1 - p, p], axis=-1)                         # from "up"
    ...     stay = np.stack([np.zeros_like(p), np.ones_like(p)], axis=-1)
    ...     return np.stack([run, stay], axis=-2)[..., None, :], [[1.0], [0.0]]
    >>> model = mmdp.posterior.from_draws({"fail": np.array([0.1, 0.3])}, build, discount=0.9)
    >>> model.transitions[:, 0, 0].tolist(), model.parameters["fail"].tolist()
    ([[0.9, 0.1], [0.7, 0.3]], [0.1, 0.3])
    """
    whole = table = read_draws(draws)
    if is_named(draws) and hasattr(draws, "columns") and "models" not in fields:
        weights = by_label(weights, "weights", draws.index, fill=0.0)
    count = len(next(iter(table.values())))
    chosen = None if part is None else Part.read(part, count)
    if chosen is not None:
        table = {name: values[chosen.models_here] for name, values in table.items()}
        count = len(next(iter(table.values())))
    of_all = {"parameters": flat_parameters(whole), "weights": weights}
    of_all |= {"models": fields.pop("models")} if "models" in fields else {}
    if tunnels is not None:
        if "since" in table:
            raise InputError("with tunnels, since is the time in a state; rename the parameter")
        alike: Any = {**fields, **({} if chosen else of_all), "vectorized": vectorized}
        alike.pop("parameters", None)  # those of the table
        model = with_tunnels(
            lambda k: from_draws(table, lambda x: build(x | {"since": k}), **alike), tunnels
        )
        return model if chosen is None else model.replace(part=chosen, **of_all)
    parts = None if vectorized is False else _at_once(table, count, build, bool(vectorized))
    if parts is None:
        parts = _one_by_one(table, count, build)
    parts = _placed(parts)
    twice = sorted(set(parts) & set(fields))
    if twice:
        raise InputError(f"{twice[0]} is given by build and by from_draws(); keep one of them")
    given = {**fields, **parts, **(of_all if chosen is None else {})}
    try:
        model = MMDP(given.pop("transitions"), given.pop("rewards", None), **given)
    except InputError:
        _check_rows(parts["transitions"], table, count)  # it may know which draw is wrong
        raise
    return model if chosen is None else model.replace(part=chosen, **of_all)


@checked
def weights_from_log_likelihood(log_likelihood: npt.ArrayLike) -> Array:
    """(M,) weights proportional to exp(log likelihood), (M,) or (M, observations).

    >>> weights_from_log_likelihood([-1000.0, -1000.0 + np.log(3)]).round(6).tolist()
    [0.25, 0.75]
    """
    array = float_array(log_likelihood, "log_likelihood")
    if array.ndim == 2:
        array = array.sum(axis=1)
    if array.ndim != 1 or not array.size:
        raise InputError(
            f"log_likelihood of shape {array.shape}; give (models,) or (models, observations)"
        )
    bad = np.isnan(array) | (array == np.inf)
    if bad.any():
        where = int(np.argmax(bad))
        raise InputError(f"log_likelihood of model {where} is {array[where]}; it must be a number")
    if array.max() == -np.inf:
        raise InputError("no model can have produced the data: every log likelihood is -inf")
    weights = np.exp(array - array.max())
    return weights / weights.sum()


@checked
def effective_models(weights: Vector) -> float:
    """1 / sum w^2: how many equally weighted models these weights are worth.

    >>> effective_models([0.5, 0.5, 0.0])
    2.0
    """
    array = float_array(weights, "weights")
    return float(array.sum() ** 2 / (array**2).sum())


# ---------------------------------------------------------------------- reading
def read_draws(draws: Any) -> Draws:
    """Name to array (n, ...); chains of an InferenceData joined."""
    if isinstance(draws, (str, os.PathLike)):
        draws = _read_file(Path(draws))
    draws = getattr(draws, "posterior", draws)
    if hasattr(draws, "data_vars"):
        draws = {str(name): _samples(values) for name, values in draws.data_vars.items()}
    draws = as_frame(draws)
    if hasattr(draws, "columns"):
        draws = {str(name): draws[name].to_numpy() for name in draws.columns}
    if not isinstance(draws, Mapping) or not draws:
        raise InputError(
            "draws must be a DataFrame, its path, a mapping of name to array or an "
            f"InferenceData with parameters, not {type(draws).__name__}"
        )
    table = {str(name): _numeric(name, values) for name, values in draws.items()}
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        raise InputError(f"parameters must have the same number of draws, at least one: {lengths}")
    return table


def _samples(variable: Any) -> Any:
    """An xarray variable with its chains and draws joined as the first axis."""
    array, dims = np.asarray(variable.values), getattr(variable, "dims", ("chain", "draw"))
    axes = [dims.index(dim) for dim in ("chain", "draw") if dim in dims] or [0]
    first = np.moveaxis(array, axes, range(len(axes)))
    return first.reshape(-1, *first.shape[len(axes) :])


def _numeric(name: object, values: Any) -> Array:
    array = float_array(values, f"parameter {str(name)!r}")
    if array.ndim == 0:
        raise InputError(f"parameter {str(name)!r} is one number; give an array with its draws")
    bad = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if bad.any():
        raise InputError(
            f"draw {int(np.argmax(bad))}: parameter {str(name)!r} is missing or not finite "
            f"({counted(int(bad.sum()), 'draw')} like it); drop these draws"
        )
    return array


def _read_file(path: Path) -> Any:
    from mmdp.io.parquet import read_frame
    from mmdp.io.reading import Source, numbers

    frame, source = read_frame(path), Source(path)
    return {str(name): numbers(frame[name], str(name), source) for name in frame.columns}


def flat_parameters(table: Draws) -> Draws:
    """Array parameters by their entries: beta (n, 2) as beta[0] and beta[1]."""
    flat: Draws = {}
    for name, values in table.items():
        if values.ndim == 1:
            flat[name] = values
            continue
        for index in np.ndindex(*values.shape[1:]):
            flat[f"{name}[{','.join(map(str, index))}]"] = values[(slice(None), *index)]
    return flat


# ---------------------------------------------------------------------- building
def _built(build: Build, values: dict[str, Any], where: str) -> dict[str, Any]:
    """What build returned, by argument of MMDP; arrays as arrays."""
    result = build(values)
    if isinstance(result, tuple) and len(result) == 2:
        result = {"transitions": result[0], "rewards": result[1]}
    if not isinstance(result, Mapping) or "transitions" not in result:
        raise InputError(
            f"{where}build must return (transitions, rewards) or a dict with 'transitions', "
            f"not {type(result).__name__}"
        )
    sparse = is_sparse_nest(result["transitions"])
    stacked = [x for x in STACKED if x in result and not (sparse and x == "transitions")]
    return dict(result) | {name: float_array(result[name], name) for name in stacked}


def _at_once(table: Draws, count: int, build: Build, insist: bool) -> dict[str, Any] | None:
    """Parts with draws first, from one call with arrays; None if build is not vectorised.

    The first and the last draw are built alone, as arrays of one draw: the axis that grows with
    the number of draws is the axis of draws, whatever the other lengths are.
    """
    if count == 1 and not insist:
        return None
    many = table if count > 1 else {k: np.repeat(v, 2, axis=0) for k, v in table.items()}
    size = max(count, 2)
    try:
        parts = _built(build, {k: v.copy() for k, v in many.items()}, "build with arrays: ")
        for i in (0, size - 1):
            alone = _built(build, {k: v[i : i + 1].copy() for k, v in many.items()}, "")
            _check_draws_first(parts, alone, size, i)
    except Exception as error:
        if not insist:
            return None
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"build with arrays raised {type(error).__name__}: {error}; pass "
            "vectorized=False if it takes one draw"
        ) from error
    for name in set(STACKED) & set(parts):
        part = parts[name]
        shared = part.shape == alone[name].shape
        parts[name] = np.broadcast_to(part, (count, *part.shape)) if shared else part[:count]
    return parts


def _check_draws_first(
    parts: Mapping[str, Any], alone: Mapping[str, Any], size: int, i: int
) -> None:
    """Refuse what build made of all draws unless draw i alone gives its part of it."""
    one_by_one = [Remedy("vectorized", False)]
    if set(parts) != set(alone):
        raise InputError("build returns other parts for arrays than for one draw", one_by_one)
    for name, both in parts.items():
        one = alone[name]
        if name in STACKED and both.shape != one.shape:
            if one.ndim == 0 or both.shape != (size, *one.shape[1:]):
                raise InputError(
                    f"build with arrays of {counted(size, 'draw')} returned {name} of shape "
                    f"{both.shape}, of one draw {one.shape}; draws must be the first axis",
                    ["return them first", *one_by_one],
                )
            both, one = both[i], one[0]
        if not _same(both, one):
            raise InputError(
                f"build with arrays returned other {name} for draw {i} than for that draw alone",
                one_by_one,
            )


def _same(a: Any, b: Any) -> bool:
    """Whether two parts are equal up to rounding."""
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind == "f" and x.shape == y.shape:
        return np.allclose(x, y, rtol=AGREE, atol=AGREE, equal_nan=True)
    return np.array_equal(x, y)


def _one(table: Draws, i: int, build: Build) -> dict[str, Any]:
    values = {k: v[i].copy() if v.ndim > 1 else v[i] for k, v in table.items()}
    try:
        return _built(build, values, "")
    except InputError as error:
        raise error.at(_draw_place(table, i)) from None
    except Exception as error:
        problem = f"build raised {type(error).__name__}: {error}"
        raise InputError(f"{_draw_place(table, i)}: {problem}") from error


def _one_by_one(table: Draws, count: int, build: Build) -> dict[str, Any]:
    """Parts with draws first, from one call per draw."""
    first = _one(table, 0, build)
    if not is_sparse_nest(first["transitions"]):
        _check_memory(first["transitions"], count)
    nest = is_sparse_nest(first["transitions"])
    whole: dict[str, Any] = {
        name: [x] if nest and name == "transitions" else np.empty((count, *x.shape))
        for name, x in first.items()
        if name in STACKED
    }
    for i in range(count):
        one = _one(table, i, build) if i else first
        _check_alike(first, one, table, i)
        for name, values in whole.items():
            if isinstance(values, np.ndarray):
                values[i] = one[name]
            elif i:
                values.append(_sharing(one[name], first[name]))
    return first | whole


def _sharing(nest: Any, first: Any) -> Any:
    """Matrices that hold the index arrays of the first ones if theirs are the same."""
    if isinstance(nest, (list, tuple)):
        return [_sharing(x, y) for x, y in zip(nest, first, strict=False)]
    if getattr(nest, "format", "") == getattr(first, "format", "") == "csr":
        for name in ("indptr", "indices"):
            if np.array_equal(getattr(nest, name), getattr(first, name)):
                setattr(nest, name, getattr(first, name))
    return nest


def _placed(parts: dict[str, Any]) -> dict[str, Any]:
    """Parts with draws first as MMDP takes them: draws behind time, rewards by their name."""
    if _per_next(_shape(parts.get("rewards"))[1:], _shape(parts["transitions"])[1:]):
        parts = {("next_rewards" if k == "rewards" else k): v for k, v in parts.items()}
    nest = parts["transitions"]
    if depth_of_nest(nest) == 3:
        if len({len(one) for one in nest}) > 1:
            raise InputError(
                "build returned transitions over other numbers of times; give the same"
            )
        parts = parts | {"transitions": list(zip(*nest, strict=True))}
    return {
        name: np.moveaxis(part, 0, 1) if len(_shape(part)) == TIMED.get(name) else part
        for name, part in parts.items()
    }


def _per_next(rewards: tuple[int, ...], transitions: tuple[int, ...]) -> bool:
    """Whether the rewards of one draw are by next state, (S, A, S'), and not by time."""
    by_next = len(rewards) > 2 and rewards[-3:] == transitions[-3:]
    horizon = transitions[:-3] or rewards[:1]
    by_time = len(rewards) == 3 and rewards == (*horizon, *transitions[-3:-1])
    if by_next and by_time and len(transitions) == 3:
        raise InputError(
            f"build returned rewards of shape {rewards} for one draw, which could be per time "
            "(T, S, A) or per next state (S, A, S'); call them next_rewards for the latter, or "
            "give the transitions a time axis too for the former"
        )
    return by_next and not by_time


def _shape(values: Any) -> tuple[int, ...]:
    return () if values is None or is_sparse_nest(values) else np.shape(values)


def _check_alike(first: dict[str, Any], one: dict[str, Any], table: Draws, i: int) -> None:
    if set(one) != set(first):
        where = _draw_place(table, i)
        raise InputError(f"{where}: build returned {sorted(one)}, for draw 0 {sorted(first)}")
    for name in one:
        if name in STACKED and _shape(one[name]) != _shape(first[name]):
            raise InputError(
                f"{_draw_place(table, i)}: {name} have shape {_shape(one[name])}, those of "
                f"draw 0 {_shape(first[name])}; states and actions must be the same for all draws"
            )
        if name not in STACKED and not _same(one[name], first[name]):
            raise InputError(
                f"{_draw_place(table, i)}: build returned another {name} than for draw 0; only "
                f"{either(STACKED, ' and ')} may depend on the draw"
            )


def _check_memory(transitions: Array, count: int) -> None:
    size = transitions.size * 8 * count
    if size > MATERIALISE_LIMIT:
        raise MemoryLimitError(
            f"{counted(count, 'draw')} of {transitions.size:,} transitions would take "
            f"{readable_bytes(size)}; use fewer draws, or return scipy sparse matrices"
        )


def _check_rows(transitions: Any, table: Draws, count: int) -> None:
    """Rows of every draw are distributions (or absent); errors name the draw."""
    if is_sparse_nest(transitions):
        times = transitions if depth_of_nest(transitions) == 3 else [transitions]
        for i, matrices in ((i, x) for draws in times for i, x in enumerate(draws)):
            low = np.array([0.0 if not x.nnz else x.data.min() for x in matrices])
            sums = np.stack([np.asarray(x.sum(axis=1)).reshape(-1) for x in matrices], axis=1)
            _check_draw(np.minimum(low, 0.0) + 0 * sums, sums, table, i)
        return
    array = transitions if transitions.ndim == 5 else transitions[None]
    sums, low = array.sum(axis=-1), array.min(axis=-1)
    good = (np.abs(sums - 1) <= PRINTED) & (low > -ROUNDING) | ((sums == 0) & (low == 0))
    if good.all():
        return
    t, i = (int(x) for x in np.argwhere(~good)[:, :2][np.argmin(np.argwhere(~good)[:, 1])])
    _check_draw(low[t, i], sums[t, i], table, i)


def _check_draw(low: Array, sums: Array, table: Draws, i: int) -> None:
    """low, sums: (S, A) smallest entry and sum of every row of one draw."""
    bad = ~((np.abs(sums - 1) <= PRINTED) | (sums == 0)) | ~(low > -ROUNDING)
    if not bad.any():
        return
    s, a = (int(x) for x in np.argwhere(bad)[0])
    what = f"sum to {sums[s, a]:.6g}, not 1"
    if not np.isfinite(sums[s, a]):
        what = "are not all numbers"
    elif low[s, a] < 0:
        what = f"go down to {low[s, a]:.6g}"
    raise InputError(
        f"{_draw_place(table, i)}: probabilities of state {s}, action {a} {what} "
        f"({counted(int(bad.sum()), 'row')} of this draw like it); correct build or drop the draw"
    )


def _draw_place(table: Draws, i: int) -> str:
    """``draw 3 (p = 0.2, q = 1.5)``."""
    some = [f"{name} = {v[i]:.6g}" for name, v in flat_parameters(table).items()][:4]
    more = ", ..." if len(flat_parameters(table)) > 4 else ""
    return f"draw {i} ({', '.join(some)}{more})"
