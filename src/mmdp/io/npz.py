"""npz: every array of a model as it is in memory, without pickle."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmdp.errors import InputError, MemoryLimitError
from mmdp.io.ids import Ids
from mmdp.io.reading import Source, must_be
from mmdp.io.rules import Rules
from mmdp.io.tables import assemble, entries
from mmdp.io.writing import reason
from mmdp.kernels.events import Events
from mmdp.kernels.problem import Part
from mmdp.kernels.rewards import ByEvent
from mmdp.model import MMDP
from mmdp.support import Storage, Support
from mmdp.words import readable_bytes

FORMAT = "mmdp-model-1"
UNFOLDED = 2**27  # bytes that the arrays may take, however small their file is
_LABELS = ("states", "actions", "models")
_WORDS = ("name", "citation", "unit", "quantity")
_EVENTS = ("after", "chance", "kind", "coefficient")


def save_npz(model: MMDP, path: Path, **more: Any) -> None:
    """Arrays as they are; if events earn the same in all models, what repeats itself is packed."""
    arrays = {**arrays_of(model), **more}
    arrays = {"count": len(arrays) + 1, **arrays}  # so that none can get lost
    packed = {"reward", "terminal"} if "reward" in arrays else ()
    with zipfile.ZipFile(path, "w", compresslevel=1) as archive:
        for name, array in arrays.items():
            archive.compression = zipfile.ZIP_DEFLATED if name in packed else zipfile.ZIP_STORED
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def arrays_of(model: MMDP) -> dict[str, Any]:
    """Everything about a model, by the names that files use."""
    fields, x = model.fields(), model.problem
    arrays: dict[str, Any] = {"format": np.array(FORMAT), **_transitions(x.storage)}
    arrays |= x._asdict()
    del arrays["storage"], arrays["part"]
    if isinstance(x.r, ByEvent):
        del arrays["r"]
        arrays["reward"] = x.r.reward
        if not x.terminal.any():  # by state and model, unlike all else
            del arrays["terminal"]
    if not model.drifts:
        del arrays["drift"]
    arrays["allowed"], arrays["initial"] = model.allowed, model.initial
    arrays["initial_given"] = model.initial_given
    arrays["allow_missing"] = fields["allow_missing"]
    arrays["horizon"] = -1 if model.horizon is None else model.horizon
    for name in (*_LABELS, *_WORDS):
        if fields[name] is not None:
            arrays[name] = np.array(fields[name], dtype=str)
    if fields["times"] is not None:
        arrays["times"] = np.array([model.times.name, *model.times.labels])
    if model.pattern_rewards is not None:
        arrays["next_rewards"] = model.pattern_rewards
    for i, (name, values) in enumerate(model.parameters.items()):
        arrays[f"parameter_{i}_name"], arrays[f"parameter_{i}"] = np.array(name), values
    return arrays


def _transitions(storage: Any) -> dict[str, Any]:
    """Shared events as they are, all else as tables."""
    if not isinstance(storage, Events):
        return storage.table()._asdict()
    parts = {name: getattr(storage, name) for name in _EVENTS}
    return {name: part for name, part in parts.items() if part is not None}


def load_npz(path: Path) -> MMDP:
    with opened(path) as file:
        arrays = {name: file[name] for name in file.files}
        if str(arrays.get("format")) == FORMAT:
            return from_arrays(arrays)
    Source(path).fail(
        f"not a model saved by mmdp (no format {FORMAT!r}); build the model from your arrays "
        "with mmdp.MMDP and mmdp.save it"
    )


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The arrays of a file by name, each read when asked for; a damaged file is refused."""
    must_be(path, "a zip archive (.npz, .xlsx)", "an npz file")
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as arrays:
            if "count" in arrays and arrays["count"] != len(arrays):
                raise ValueError("it lacks an array")
            yield arrays
    except (MemoryLimitError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise almost anything
        # save() wrote a valid model: one that fails its checks has been changed since
        detail = str(error) if isinstance(error, InputError) else reason(error)
        Source(path).fail(f"damaged npz file ({detail})")


def _check_sizes(path: Path) -> None:
    """Refuse arrays out of proportion to their file before the memory for them is taken."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                    version, np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(file)
            size = math.prod(shape) * dtype.itemsize
            if size > member.file_size:
                raise ValueError(f"{member.filename} is shorter than it says")
            total += size
    held = path.stat().st_size
    if total > max(UNFOLDED, 64 * held):
        raise MemoryLimitError(
            f"{path}: its arrays would take {readable_bytes(total)}, but the file has "
            f"{readable_bytes(held)}; save the model with mmdp.save"
        )


def from_arrays(arrays: Mapping[str, Any], part: Part | None = None) -> MMDP:
    """The stored model, checked: a damaged file must not reach a kernel."""
    allowed, per_next = arrays["allowed"], arrays.get("next_rewards")
    r = arrays["reward"] if "reward" in arrays else np.ascontiguousarray(arrays["r"])
    drift, shared = arrays.get("drift"), "after" in arrays
    p = arrays["chance" if shared else "p"]
    terminal = arrays.get("terminal")
    numbers = (p, r, per_next, drift, terminal, arrays["initial"], arrays["weights"])
    floats = all(x.dtype == np.float64 for x in numbers if x is not None)
    ids = ("after", "horizon") if shared else ("indptr", "indices", "horizon")
    whole = all(arrays[name].dtype.kind == "i" for name in ids)
    texts = [arrays[name] for name in (*_LABELS, *_WORDS, "times") if name in arrays]
    if not (floats and whole and allowed.dtype == bool and all(x.dtype.kind == "U" for x in texts)):
        raise TypeError("arrays of another type")
    horizon = int(arrays["horizon"])
    given: Any = {name: arrays.get(name) for name in _EVENTS}
    support: Any = Events(**given) if shared else Support(
        (p.shape[2], *allowed.shape), arrays["indptr"].astype(np.int64),
        arrays["indices"].astype(np.int32), np.ascontiguousarray(p), bool(arrays["dense"]), None,
        horizon if horizon > 0 else None,
    )  # fmt: skip
    return MMDP.from_support(
        support, support.rewards(r) if "reward" in arrays else r, next_rewards=per_next,
        weights=arrays["weights"], terminal=None if terminal is None else terminal.T,
        allowed=allowed, model_transitions=drift, **fields_of(arrays), part=part,
    )  # fmt: skip


def fields_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The small fields of a stored model, as arguments of MMDP."""
    count = sum(name.startswith("parameter_") for name in arrays) // 2
    return {
        "initial": arrays["initial"] if bool(arrays["initial_given"]) else None,
        "discount": float(arrays["discount"]), "allow_missing": bool(arrays["allow_missing"]),
        "parameters": {
            str(arrays[f"parameter_{i}_name"]): arrays[f"parameter_{i}"] for i in range(count)
        },
        **{name: arrays.get(name) for name in _LABELS},
        "times": {str(arrays["times"][0]): arrays["times"][1:]} if "times" in arrays else None,
        **{name: arrays[name].item() for name in _WORDS if name in arrays},
    }  # fmt: skip


def stored_as(model: MMDP, storage: Storage, source: Source) -> MMDP:
    """The same model in that storage."""
    if storage in ("auto", model.storage):
        return model
    ids = Ids({k: v.astype(np.int64) if v.dtype.kind == "i" else v
               for k, v in entries(model).items()})  # fmt: skip
    ids.sizes = {"state": model.n_states, "action": model.n_actions, "model": model.n_models}
    if model.horizon is not None:
        ids.sizes["time"] = model.horizon
    return assemble(ids, model.fields(), source, Rules(storage=storage))
