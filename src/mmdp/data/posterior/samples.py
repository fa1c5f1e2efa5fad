"""from_samples: models from samples of uncertain parameters, by a user function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdp.core.arguments import Vector, check_arguments
from mmdp.core.errors import InputError, Remedy
from mmdp.core.kernels.distributions import NEGATIVE_TOLERANCE, PRINTED_TOLERANCE
from mmdp.core.kernels.problem import Shard
from mmdp.core.memory import check_memory
from mmdp.core.model import MMDP
from mmdp.core.text import join_or, pluralize
from mmdp.core.transitions import Array, as_float_array, find_nesting_depth, is_nested_sparse
from mmdp.core.validate import align_to_labels, is_labeled
from mmdp.data.io.parquet import read_table
from mmdp.data.io.reading import as_frame
from mmdp.data.schema import AnyArray, Fields

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
    vectorized: bool | None = None,
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
        True: call it with arrays; False: once per sample. None (the default): try the former and
        keep it if it agrees, in shapes and values, with the first and the last sample alone.
    weights
        (n,) weights of the samples (see :func:`weights_from_log_likelihood`).
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
    all_samples = local_samples = read_samples(samples)
    if is_labeled(samples) and hasattr(samples, "columns") and "models" not in fields:
        weights = align_to_labels(weights, "weights", samples.index, fill=0.0)
    model_shard = None
    if shard is not None:
        model_shard = Shard.parse(shard, _count_samples(all_samples))
    global_fields: Fields = {"parameters": flatten_parameters(all_samples), "weights": weights}
    if "models" in fields:
        global_fields["models"] = fields.pop("models")
    if model_shard is not None:
        local_models = model_shard.local_models
        local_samples = {name: values[local_models] for name, values in all_samples.items()}
        model = from_samples(local_samples, build, vectorized=vectorized, **fields)
        return model.replace(shard=model_shard, **global_fields)
    built = None
    if vectorized is not False:
        built = _build_vectorized(all_samples, build, bool(vectorized))
    built = _arrange_fields(_build_each(all_samples, build) if built is None else built)
    duplicates = sorted(set(built) & set(fields))
    if duplicates:
        raise InputError(
            f"{duplicates[0]} is given by build and by from_samples(); keep one of them"
        )
    arguments = {**fields, **built, **global_fields}
    try:
        return MMDP(arguments.pop("transitions"), arguments.pop("rewards", None), **arguments)
    except InputError:
        # names the sample, if the transitions of one are wrong
        _check_sample_rows(built["transitions"], all_samples)
        raise


def _count_samples(samples: ParameterSamples) -> int:
    return len(next(iter(samples.values())))


@check_arguments
def weights_from_log_likelihood(log_likelihood: npt.ArrayLike) -> Array:
    """Compute model weights (M,) from log likelihoods (M,) or (M, observations).

    Weights are proportional to exp(log likelihood).

    >>> weights_from_log_likelihood([-1000.0, -1000.0 + np.log(3)]).round(6).tolist()
    [0.25, 0.75]
    """
    array = as_float_array(log_likelihood, "log_likelihood")
    if array.ndim == 2:
        array = array.sum(axis=1)
    if array.ndim != 1 or not array.size:
        raise InputError(
            f"log_likelihood of shape {array.shape}; give (models,) or (models, observations)"
        )
    is_bad = np.isnan(array) | (array == np.inf)
    if is_bad.any():
        index = int(np.argmax(is_bad))
        raise InputError(
            f"log_likelihood of model {index} is {array[index]}; give a number or -inf"
        )
    if array.max() == -np.inf:
        raise InputError(
            "no model can have produced the data: every log likelihood is -inf; check the models"
        )
    weights = np.exp(array - array.max())
    return weights / weights.sum()


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
            f"({pluralize(int(is_bad.sum()), 'sample')} like it); drop these samples"
        )
    return array


def flatten_parameters(samples: ParameterSamples) -> ParameterSamples:
    """Split array parameters into their entries: beta (n, 2) as beta[0] and beta[1]."""
    flat: ParameterSamples = {}
    for name, values in samples.items():
        if values.ndim == 1:
            flat[name] = values
            continue
        for index in np.ndindex(*values.shape[1:]):
            flat[f"{name}[{','.join(map(str, index))}]"] = values[(slice(None), *index)]
    return flat


# ---------------------------------------------------------------------- building
def _call_build(build: BuildFunction, values: Fields, prefix: str) -> Fields:
    """Call build and convert its result to arguments of MMDP, by name."""
    result = build(values)
    if isinstance(result, tuple) and len(result) == 2:
        result = {"transitions": result[0], "rewards": result[1]}
    if not isinstance(result, Mapping) or "transitions" not in result:
        raise InputError(
            f"{prefix}build must return (transitions, rewards) or a dict with 'transitions', "
            f"not {type(result).__name__}"
        )
    is_sparse = is_nested_sparse(result["transitions"])
    array_fields = [
        x for x in PER_SAMPLE_FIELDS if x in result and not (is_sparse and x == "transitions")
    ]
    return dict(result) | {name: as_float_array(result[name], name) for name in array_fields}


def _build_vectorized(
    samples: ParameterSamples, build: BuildFunction, is_required: bool
) -> Fields | None:
    """Build the fields of all samples by one call with arrays; None if build is not vectorized.

    The first and the last sample are built alone too, as arrays of one sample: the axis that grows
    with the number of samples is the axis of samples, for any other lengths.
    """
    n_samples = _count_samples(samples)
    if n_samples == 1 and not is_required:
        return None
    repeated = (
        samples if n_samples > 1 else {k: np.repeat(v, 2, axis=0) for k, v in samples.items()}
    )
    n_rows = max(n_samples, 2)
    try:
        built = _call_build(
            build, {k: v.copy() for k, v in repeated.items()}, "build with arrays: "
        )
        for i in (0, n_rows - 1):
            single = _call_build(build, {k: v[i : i + 1].copy() for k, v in repeated.items()}, "")
            _check_samples_first(built, single, n_rows, i)
    except Exception as error:
        if not is_required:
            return None
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"build with arrays raised {type(error).__name__}: {error}; pass "
            "vectorized=False if it takes one sample"
        ) from error
    for name in set(PER_SAMPLE_FIELDS) & set(built):
        array = built[name]
        is_shared = array.shape == single[name].shape
        built[name] = (
            np.broadcast_to(array, (n_samples, *array.shape)) if is_shared else array[:n_samples]
        )
    return built


def _check_samples_first(built: Fields, single: Fields, n_rows: int, i: int) -> None:
    """Refuse a vectorized result that differs from that of sample i alone."""
    remedies = [Remedy("vectorized", False)]
    if set(built) != set(single):
        raise InputError("build returns other fields for arrays than for one sample", remedies)
    for name, values in built.items():
        single_values = single[name]
        if name in PER_SAMPLE_FIELDS and values.shape != single_values.shape:
            if single_values.ndim == 0 or values.shape != (n_rows, *single_values.shape[1:]):
                raise InputError(
                    f"build with arrays of {pluralize(n_rows, 'sample')} returned {name} of shape "
                    f"{values.shape}, with one sample {single_values.shape}; samples must be the "
                    "first axis",
                    ["return them first", *remedies],
                )
            values, single_values = values[i], single_values[0]
        if not _is_close(values, single_values):
            raise InputError(
                f"build with arrays returned other {name} for sample {i} than for it alone",
                remedies,
            )


def _is_close(a: object, b: object) -> bool:
    """Return whether two fields are equal up to rounding."""
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype.kind == "f" and x.shape == y.shape:
        return np.allclose(x, y, rtol=AGREEMENT_TOLERANCE, atol=AGREEMENT_TOLERANCE, equal_nan=True)
    return np.array_equal(x, y)


def _build_sample(samples: ParameterSamples, i: int, build: BuildFunction) -> Fields:
    """Build the fields of sample i; errors name the sample."""
    values = {k: v[i].copy() if v.ndim > 1 else v[i] for k, v in samples.items()}
    try:
        return _call_build(build, values, "")
    except InputError as error:
        raise error.with_location(_describe_sample(samples, i)) from None
    except Exception as error:
        problem = f"build raised {type(error).__name__}: {error}"
        raise InputError(f"{_describe_sample(samples, i)}: {problem}") from error


def _build_each(samples: ParameterSamples, build: BuildFunction) -> Fields:
    """Build the fields of all samples, samples first, by one call per sample."""
    first_built, n_samples = _build_sample(samples, 0, build), _count_samples(samples)
    is_sparse = is_nested_sparse(first_built["transitions"])
    if not is_sparse:
        size = first_built["transitions"].size
        check_memory(
            8 * size * n_samples,
            f"{pluralize(n_samples, 'sample')} of {size:,} transitions",
            ["use fewer samples", "return scipy sparse matrices"],
        )
    stacked: Fields = {
        name: [x] if is_sparse and name == "transitions" else np.empty((n_samples, *x.shape))
        for name, x in first_built.items()
        if name in PER_SAMPLE_FIELDS
    }
    for i in range(n_samples):
        built = _build_sample(samples, i, build) if i else first_built
        _check_same_fields(first_built, built, samples, i)
        for name, values in stacked.items():
            if isinstance(values, np.ndarray):
                values[i] = built[name]
            elif i:
                values.append(_share_index_arrays(built[name], first_built[name]))
    return first_built | stacked


def _share_index_arrays(matrices: Any, first_matrices: Any) -> Any:
    """Replace index arrays that equal those of the first matrices by these, to save memory."""
    if isinstance(matrices, (list, tuple)):
        return [_share_index_arrays(x, y) for x, y in zip(matrices, first_matrices, strict=False)]
    if getattr(matrices, "format", "") == getattr(first_matrices, "format", "") == "csr":
        for name in ("indptr", "indices"):
            if np.array_equal(getattr(matrices, name), getattr(first_matrices, name)):
                setattr(matrices, name, getattr(first_matrices, name))
    return matrices


def _arrange_fields(built: Fields) -> Fields:
    """Arrange fields with samples first as MMDP takes them: time first, next_rewards by name."""
    if _are_next_rewards(
        _get_shape(built.get("rewards"))[1:], _get_shape(built["transitions"])[1:]
    ):
        built = {("next_rewards" if k == "rewards" else k): v for k, v in built.items()}
    matrices = built["transitions"]
    if find_nesting_depth(matrices) == 3:
        if len({len(sample_matrices) for sample_matrices in matrices}) > 1:
            raise InputError(
                "build returned transitions of different horizons; return the same for all samples"
            )
        built = built | {"transitions": list(zip(*matrices, strict=True))}
    return {
        name: np.moveaxis(array, 0, 1)
        if len(_get_shape(array)) == NDIM_WITH_TIME.get(name)
        else array
        for name, array in built.items()
    }


def _are_next_rewards(reward_shape: tuple[int, ...], transition_shape: tuple[int, ...]) -> bool:
    """Return whether the rewards of one sample are by next state, (S, A, S'), and not by time."""
    fits_next_state = len(reward_shape) > 2 and reward_shape[-3:] == transition_shape[-3:]
    horizon = transition_shape[:-3] or reward_shape[:1]
    fits_time = len(reward_shape) == 3 and reward_shape == (*horizon, *transition_shape[-3:-1])
    if fits_next_state and fits_time and len(transition_shape) == 3:
        raise InputError(
            f"build returned rewards of shape {reward_shape} for one sample, which could be per "
            "time (T, S, A) or per next state (S, A, S'); call them next_rewards for the latter, "
            "or give the transitions a time axis too for the former"
        )
    return fits_next_state and not fits_time


def _get_shape(values: Any) -> tuple[int, ...]:
    return () if values is None or is_nested_sparse(values) else np.shape(values)


def _check_same_fields(
    first_built: Fields, built: Fields, samples: ParameterSamples, i: int
) -> None:
    """Refuse a sample whose fields, shapes or shared values differ from those of sample 0."""
    if set(built) != set(first_built):
        sample_text = _describe_sample(samples, i)
        raise InputError(
            f"{sample_text}: build returned {sorted(built)}, for sample 0 {sorted(first_built)}; "
            "return the same fields for all samples"
        )
    for name in built:
        if name in PER_SAMPLE_FIELDS and _get_shape(built[name]) != _get_shape(first_built[name]):
            raise InputError(
                f"{_describe_sample(samples, i)}: {name} have shape {_get_shape(built[name])}, "
                f"those of sample 0 {_get_shape(first_built[name])}; states and actions must be "
                "the same for all samples"
            )
        if name not in PER_SAMPLE_FIELDS and not _is_close(built[name], first_built[name]):
            raise InputError(
                f"{_describe_sample(samples, i)}: build returned another {name} than for sample 0; "
                f"only {join_or(PER_SAMPLE_FIELDS, ' and ')} may depend on the sample"
            )


def _check_sample_rows(transitions: Any, samples: ParameterSamples) -> None:
    """Refuse a sample with a row that is not a distribution (or absent), and name it."""
    is_sparse = is_nested_sparse(transitions)
    depth = find_nesting_depth(transitions) + 2 if is_sparse else transitions.ndim
    for models in transitions if depth == 5 else [transitions]:
        for i, rows in enumerate(models):
            if is_sparse:  # matrices (S, S') by action
                sums = np.stack([np.asarray(x.sum(axis=1)).reshape(-1) for x in rows], axis=1)
                min_entries = np.array([x.min() for x in rows]) + 0 * sums
            else:
                sums, min_entries = rows.sum(axis=-1), rows.min(axis=-1)
            is_distribution = (np.abs(sums - 1) <= PRINTED_TOLERANCE) | (sums == 0)
            is_bad = ~(is_distribution & (min_entries > -NEGATIVE_TOLERANCE))
            if not is_bad.any():
                continue
            s, a = (int(x) for x in np.argwhere(is_bad)[0])
            problem = f"sum to {sums[s, a]:.6g}, not 1"
            if not np.isfinite(sums[s, a]):
                problem = "are not all numbers"
            elif min_entries[s, a] < 0:
                problem = f"go down to {min_entries[s, a]:.6g}"
            raise InputError(
                f"{_describe_sample(samples, i)}: probabilities of state {s}, action {a} {problem} "
                f"({pluralize(int(is_bad.sum()), 'row')} of this sample like it); correct build or "
                "drop the sample"
            )


def _describe_sample(samples: ParameterSamples, i: int) -> str:
    """Format a sample for messages: ``sample 3 (p = 0.2, q = 1.5)``."""
    values = [f"{name} = {v[i]:.6g}" for name, v in flatten_parameters(samples).items()]
    return f"sample {i} ({', '.join(values[:4])}{', ...' if len(values) > 4 else ''})"
