"""How strict the loader is: one option for each looseness it can accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from mmdp.errors import InputError
from mmdp.support import Storage

Duplicates = Literal["error", "last", "sum"]
MissingActions = Literal["error", "zero"]
DeadEnds = Literal["error", "absorb"]
IdGaps = Literal["error", "relabel"]
ExtraColumns = Literal["error", "ignore"]
Layout = Literal["auto", "memdp", "reca"]  # of .transitions files

CADP: dict[str, Any] = {  # what the code published with the paper does
    "duplicates": "last", "normalize": True, "missing_actions": "zero", "dead_ends": "absorb",
    "extra_columns": "ignore",
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """The options of :func:`mmdp.load`, checked."""

    duplicates: Duplicates = "error"
    normalize: bool = False
    missing_actions: MissingActions = "error"
    dead_ends: DeadEnds = "error"
    id_gaps: IdGaps = "error"
    extra_columns: ExtraColumns = "error"
    storage: Storage = "auto"
    layout: Layout = "auto"

    @classmethod
    def read(cls, compat: str | None, **given: Any) -> Rules:
        for name, value in given.items():
            choices = get_args(get_type_hints(cls).get(name))
            if choices and value not in choices:
                listed = ", ".join(map(repr, choices))
                raise InputError(f"{name} must be one of {listed}, not {value!r}")
        layouts: dict[str | None, Layout] = {"memdp": "memdp", "reca": "reca"}
        if compat in layouts:
            return cls(**given, layout=layouts[compat])
        if compat not in (None, "cadp"):
            raise InputError(f"compat must be 'cadp', 'memdp', 'reca' or None, not {compat!r}")
        return cls(**(given | CADP if compat == "cadp" else given))
