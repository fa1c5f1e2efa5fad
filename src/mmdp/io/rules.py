"""How strict the loader is: one option for each looseness it can accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from mmdp.errors import InputError
from mmdp.support import Storage

Duplicates = Literal["error", "last", "sum"]
MissingActions = Literal["error", "zero"]
DeadEnds = Literal["error", "absorb"]
IdGaps = Literal["error", "relabel"]
ExtraColumns = Literal["error", "ignore"]

CHOICES = {
    "duplicates": Duplicates, "missing_actions": MissingActions, "dead_ends": DeadEnds,
    "id_gaps": IdGaps, "extra_columns": ExtraColumns, "storage": Storage,
}  # fmt: skip
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

    @classmethod
    def read(cls, compat: str | None, **given: Any) -> Rules:
        for name, choice in CHOICES.items():
            if given[name] not in get_args(choice):
                listed = ", ".join(map(repr, get_args(choice)))
                raise InputError(f"{name} must be one of {listed}, not {given[name]!r}")
        if compat not in (None, "cadp"):
            raise InputError(f"compat must be 'cadp' or None, not {compat!r}")
        return cls(**(given | CADP if compat == "cadp" else given))
