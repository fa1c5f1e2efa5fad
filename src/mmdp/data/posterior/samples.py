"""from_samples: models from samples of uncertain parameters, by a user function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Vector, check_arguments
from mmdp.core.errors import InputError, check_memory
from mmdp.core.kernels.problem import Shard
from mmdp.core.model import MMDP
from mmdp.core.shapes import AnyArray, Array
from mmdp.core.text import join_or, pluralize
from mmdp.core.transitions import as_float_array, find_nesting_depth, is_nested_sparse
from mmdp.core.validate import align_to_labels, is_labeled
from mmdp.data.io.reading import as_frame, read_table
from mmdp.data.schema import Fields

ParameterSamples = dict[str, Array]
BuildFunction = Callable[[Fields], Any]
PER_SAMPLE_FIELDS = ("transitions", "rewards", "next_rewards", "terminal")  # one for each sample
# number of axes of a field with samples and time
NDIM_WITH_TIME = {"transitions": 5, "rewards": 4, "next_rewards": 5}
AGREEMENT_TOLERANCE = 1e-12  # allowed difference of one sample built alone and vectorized


@check_arguments
def from_samples(
    samples: Any,
    build: BuildFunction,
    *,
    vectorized: bool = True,
    weights: npt.ArrayLike | None = None,
    shard: tuple[int, int] | None = None,
    **fields: Any,
) -> MMDP:
    """Build one model per parameter sample by a user function.

    Parameters
    ----------
    samples
        One row or entry per sample: a DataFrame of pandas or polars (such as a probabilistic
        sensitivity analysis), the path of one as ``.csv`` or ``.parquet``, a mapping of name to
        array (n,) or (n, ...), an ArviZ InferenceData or an xarray Dataset, whose chains and
        draws are joined.
    build
        Function of a dict of parameters by name. It returns ``(transitions, rewards)`` or a
        dict of arguments of :class:`mmdp.MMDP`: for one sample ``transitions`` (S, A, S') or
        (T, S, A, S'), or scipy sparse matrices (S, S') by action or by time and action;
        ``rewards`` (S, A), (T, S, A) or (S, A, S') and so on. Called with arrays
        over n samples it returns the same with samples first, also before time: (n, T, S, A, S');
        fields that do not depend on the sample may keep their shape.
    vectorized
        True: call it with arrays if that agrees, in shapes and values, with the first and the last
        sample alone, else once per sample. False: once per sample.
    weights
        (n,) weights of the samples, which sum to 1.
    shard
        ``(i, n)``: build shard i of n of the models, for one of n processes (see
        :mod:`mmdp.distributed`). If their zeros differ, say ``storage="dense"``.
    fields
        Other arguments of :class:`mmdp.MMDP`, the same for all samples.

    The parameters are kept as ``model.parameters``, an array parameter by its entries
    (``beta[0]``), so that :func:`mmdp.measures.evppi` can evaluate each.

    >>> import numpy as np, mmdp.posterior
    >>> def build(x):
    ...     p = x["fail"]
    ...     run = np.stack([1 - p, p], axis=-1)                         # from "up"
    ...     stay = np.stack([np.zeros_like(p), np.ones_like(p)], axis=-1)
    ...     return np.stack([run, stay], axis=-2)[..., None, :], [[1.0], [0.0]]
    >>> model = mmdp.posterior.from_samples({"fail": np.array([0.1, 0.3])}, build, discount=0.9)
    >>> model.transitions[:, 0, 0].tolist(), model.parameters["fail"].tolist()
    ([[0.9, 0.1], [0.7, 0.3]], [0.1, 0.3])
    """
    all_samples = read_samples(samples)
    if is_labeled(samples) and hasattr(samples, "columns") and "models" not in fields:
        weights = align_to_labels(weights, "weights", samples.index, fill=0.0)
    global_fields: Fields = {"parameters": flatten_parameters(all_samples), "weights": weights}
    if "models" in fields:
        global_fields["models"] = fields.pop("models")
    n_samples = _count_samples(all_samples)
    model_shard = None if shard is None else Shard.parse(shard, n_samples)
    local_models = slice(None) if model_shard is None else model_shard.local_models
    local_samples = {name: values[local_models] for name, values in all_samples.items()}
    built = _build_vectorized(local_samples, build) if vectorized else None
    built = _arrange_fields(_build_each(local_samples, build) if built is None else built)
    duplicates = sorted(set(built) & set(fields))
    if duplicates:
        raise InputError(
            f"{duplicates[0]} is given by build and by from_samples(); keep one of them"
        )
    return MMDP(**fields, **built).replace(shard=model_shard, **global_fields)


def _count_samples(samples: ParameterSamples) -> int:
    return len(next(iter(samples.values())))


@check_arguments
def effective_sample_size(weights: Vector) -> float:
    """Compute the effective sample size of weights, 1 / sum w^2.

    >>> effective_sample_size([0.5, 0.5, 0.0])
    2.0
    """
    array = as_float_array(weights, "weights")
    return float(array.sum() ** 2 / (array**2).sum())


# ---------------------------------------------------------------------- reading
def read_samples(samples: Any) -> ParameterSamples:
    """Read parameter samples as arrays (n, ...) by name, joining chains."""
    if isinstance(samples, (str, os.PathLike)):
        table = read_table(Path(samples))
        samples = {name: table.parse_floats(name) for name in table.columns}
    samples = getattr(samples, "posterior", samples)
    if hasattr(samples, "data_vars"):
        samples = {str(name): _stack_chains(values) for name, values in samples.data_vars.items()}
    samples = as_frame(samples)
    if hasattr(samples, "columns"):
        samples = {str(name): samples[name].to_numpy() for name in samples.columns}
    if not isinstance(samples, Mapping) or not samples:
        raise InputError(
            f"samples={type(samples).__name__} is not readable; give a DataFrame, its path, a "
            "mapping of name to array or an InferenceData with parameters"
        )
    parsed = {str(name): _check_numeric(name, values) for name, values in samples.items()}
    lengths = {name: len(values) for name, values in parsed.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        raise InputError(
            f"parameters must have the same number of samples, at least one: {lengths}"
        )
    return parsed


def _stack_chains(variable: Any) -> AnyArray:
    """Join the chains and draws of an xarray variable as its first axis."""
    array, dims = np.asarray(variable.values), getattr(variable, "dims", ("chain", "draw"))
    axes = [dims.index(dim) for dim in ("chain", "draw") if dim in dims] or [0]
    chains_first = np.moveaxis(array, axes, range(len(axes)))
    return chains_first.reshape(-1, *chains_first.shape[len(axes) :])


def _check_numeric(name: object, values: Any) -> Array:
    """Convert a parameter to a float array, and refuse values that are not finite."""
    array = as_float_array(values, f"parameter {str(name)!r}")
    if array.ndim == 0:
        raise InputError(f"parameter {str(name)!r} is one number; give an array of its samples")
    is_bad = ~np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    if is_bad.any():
        raise InputError(
            f"sample {int(np.argmax(is_bad))}: parameter {str(name)!r} is missing or not finite "
            f"({pluralize(int(is_bad.sum()), 'sample')} in all); drop these samples"
        )
    return array.copy()  # it is kept, and the user's may change


def flatten_parameters(samples: ParameterSamples) -> ParameterSamples:
    """Split array parameters into their entries: beta (n, 2) as beta[0] and beta[1]."""
    return {
        name + (f"[{','.join(map(str, index))}]" if index else ""): values[(slice(None), *index)]
        for name, values in samples.items()
        for index in np.ndindex(*values.shape[1:])
    }


# ---------------------------------------------------------------------- building
def _call_build(build: BuildFunction, values: Fields) -> Fields:
    """Call build and convert its result to arguments of MMDP, by name."""
    result = build(values)
    if isinstance(result, tuple) and len(result) == 2:
        result = {"transitions": result[0], "rewards": result[1]}
    if not isinstance(result, Mapping) or "transitions" not in result:
        raise InputError(
            "build must return (transitions, rewards) or a dict with 'transitions', "
            f"not {type(result).__name__}"
        )
    is_array = {
        x: x in PER_SAMPLE_FIELDS and not is_nested_sparse(values) for x, values in result.items()
    }
    return {k: as_float_array(v, k) if is_array[k] else v for k, v in result.items()}


def _build_vectorized(samples: ParameterSamples, build: BuildFunction) -> Fields | None:
    """Build the fields of all samples by one call with arrays; None if build is not vectorized.

    The first and the last sample are built alone too, as arrays of one sample: the axis that grows
    with the number of samples is the axis of samples, for any other lengths.
    """
    n_samples = _count_samples(samples)
    if n_samples == 1:
        return None
    try:
        built = _call_build(build, {k: v.copy() for k, v in samples.items()})
        for i in (0, n_samples - 1):
            single = _call_build(build, {k: v[i : i + 1].copy() for k, v in samples.items()})
            if set(built) != set(single):
                return None
            for name, values in built.items():
                if name in PER_SAMPLE_FIELDS and values.shape != single[name].shape:
                    if len(values) != n_samples:
                        return None
                    values = values[i : i + 1]
                if not _is_close(values, single[name]):
                    return None
    except Exception:  # it takes one sample, or says what is wrong with it then
        return None
    for name in set(PER_SAMPLE_FIELDS) & set(built):
        if built[name].shape == single[name].shape:  # it does not depend on the sample
            built[name] = np.broadcast_to(built[name], (n_samples, *built[name].shape))
    return built


def _is_close(a: object, b: object) -> bool:
    """Return whether two fields are equal up to rounding."""
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind == "f" and x.shape == y.shape:
        return np.allclose(x, y, rtol=AGREEMENT_TOLERANCE, atol=AGREEMENT_TOLERANCE, equal_nan=True)
    return np.array_equal(x, y)


def _build_each(samples: ParameterSamples, build: BuildFunction) -> Fields:
    """Build the fields of all samples, samples first, by one call per sample; errors name it."""
    built_samples: list[Fields] = []
    n_samples = _count_samples(samples)
    for i in range(n_samples):
        values = {k: v[i].copy() for k, v in samples.items()}
        try:
            built_samples.append(_call_build(build, values))
            _check_same_fields(built_samples[0], built_samples[-1])
        except InputError as error:
            raise error.with_location(_describe_sample(samples, i)) from None
        except Exception as error:
            problem = f"build raised {type(error).__name__}: {error}"
            raise InputError(f"{_describe_sample(samples, i)}: {problem}") from error
        if i == 0 and not is_nested_sparse(built_samples[0]["transitions"]):
            size = built_samples[0]["transitions"].size
            check_memory(
                8 * size * n_samples,
                f"{pluralize(n_samples, 'sample')} of {size:,} transitions",
                ["use fewer samples", "return scipy sparse matrices"],
            )
    stacked: Fields = dict(built_samples[0])
    for name in set(PER_SAMPLE_FIELDS) & set(stacked):
        arrays = [x.pop(name) for x in built_samples]
        stacked[name] = arrays if is_nested_sparse(arrays) else np.stack(arrays)
    return stacked


def _check_same_fields(first_built: Fields, built: Fields) -> None:
    """Refuse a sample whose fields, shapes or shared values differ from those of sample 0."""
    if set(built) != set(first_built):
        raise InputError(
            f"build returned {sorted(built)}, for sample 0 {sorted(first_built)}; "
            "return the same fields for all samples"
        )
    for name, values in built.items():
        shape, first_shape = _get_shape(values), _get_shape(first_built[name])
        if name in PER_SAMPLE_FIELDS and shape != first_shape:
            raise InputError(
                f"{name} have shape {shape}, those of sample 0 {first_shape}; states, actions and "
                "times must be the same for all samples"
            )
        if name not in PER_SAMPLE_FIELDS and not _is_close(values, first_built[name]):
            raise InputError(
                f"build returned another {name} than for sample 0; "
                f"only {join_or(PER_SAMPLE_FIELDS, ' and ')} may depend on the sample"
            )


def _get_shape(values: Any) -> tuple[int, ...]:
    return (len(values),) if is_nested_sparse(values) else np.shape(values)


def _arrange_fields(built: Fields) -> Fields:
    """Arrange fields with samples first as MMDP takes them: time first, next_rewards by name."""
    transitions = built["transitions"]
    if is_nested_sparse(transitions):
        if find_nesting_depth(transitions) == 3:
            built["transitions"] = list(zip(*transitions, strict=True))
    elif "rewards" in built and _are_next_rewards(built["rewards"].shape, transitions.shape):
        built["next_rewards"] = built.pop("rewards")
    return {
        name: np.moveaxis(values, 0, 1)
        if name in NDIM_WITH_TIME and np.ndim(values) == NDIM_WITH_TIME[name]
        else values
        for name, values in built.items()
    }


def _are_next_rewards(reward_shape: tuple[int, ...], transition_shape: tuple[int, ...]) -> bool:
    """Return whether rewards (n, ...) are by next state, (n, S, A, S'), and not by time."""
    fits_next_state = len(reward_shape) > 3 and reward_shape[-3:] == transition_shape[-3:]
    horizon = transition_shape[1:-3] or reward_shape[1:2]
    fits_time = len(reward_shape) == 4 and reward_shape[1:] == (*horizon, *transition_shape[-3:-1])
    if fits_next_state and fits_time and len(transition_shape) == 4:
        raise InputError(
            f"build returned rewards of shape {reward_shape[1:]} for one sample, which could be "
            "per time (T, S, A) or per next state (S, A, S'); call them next_rewards for the "
            "latter, or give the transitions a time axis too for the former"
        )
    return fits_next_state and not fits_time


def _describe_sample(samples: ParameterSamples, i: int) -> str:
    """Format a sample for messages: ``sample 3 (p = 0.2, q = 1.5)``."""
    values = [f"{name} = {v[i]:.6g}" for name, v in flatten_parameters(samples).items()]
    return f"sample {i} ({', '.join(values[:4])}{', ...' if len(values) > 4 else ''})"
