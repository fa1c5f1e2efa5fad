"""Options of load(): the deviations from the format that are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from mmdp.core.errors import InputError
from mmdp.core.transitions import StorageOption

Duplicates = Literal["error", "last", "sum"]
MissingActions = Literal["error", "zero"]
DeadEnds = Literal["error", "absorb"]
IdGaps = Literal["error", "relabel"]
ExtraColumns = Literal["error", "ignore"]
MemdpLayout = Literal["auto", "memdp", "reca"]  # of .transitions files

CADP_OPTIONS: dict[str, Any] = {  # as the code published with the paper
    "duplicates": "last",
    "normalize": True,
    "missing_actions": "zero",
    "dead_ends": "absorb",
    "extra_columns": "ignore",
}


@dataclass(frozen=True)
class LoadOptions:
    """Checked options of :func:`mmdp.load`."""

    duplicates: Duplicates = "error"
    normalize: bool = False
    missing_actions: MissingActions = "error"
    dead_ends: DeadEnds = "error"
    id_gaps: IdGaps = "error"
    extra_columns: ExtraColumns = "error"
    storage: StorageOption = "auto"
    layout: MemdpLayout = "auto"

    @classmethod
    def from_arguments(cls, compat: str | None, **options: Any) -> LoadOptions:
        """Check options by name, with those of a compatibility mode."""
        for name, value in options.items():
            choices = get_args(get_type_hints(cls).get(name))
            if choices and value not in choices:
                choices_text = ", ".join(map(repr, choices))
                raise InputError(f"{name} must be one of {choices_text}, not {value!r}")
        layouts: dict[str | None, MemdpLayout] = {"memdp": "memdp", "reca": "reca"}
        if compat in layouts:
            return cls(**options, layout=layouts[compat])
        if compat not in (None, "cadp"):
            raise InputError(f"compat must be 'cadp', 'memdp', 'reca' or None, not {compat!r}")
        return cls(**(options | CADP_OPTIONS if compat == "cadp" else options))
