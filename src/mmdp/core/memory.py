"""Check the size of arrays against the memory of this machine before they are allocated."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mmdp.core.errors import MemoryLimitError, Remedy
from mmdp.core.text import format_bytes


def memory_here() -> int:
    """Get the bytes of memory that this process may use."""
    try:
        sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # this system does not say
        sizes = [2**40]
    with suppress(OSError, ValueError):
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError, OSError):
        import resource  # not on every system

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        sizes += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(sizes)


def check_memory(
    size: int, description: str, remedies: Iterable[str | Remedy] = (), models: int = 0
) -> None:
    """Refuse arrays of ``size`` bytes that do not fit next to ``models`` bytes of models."""
    memory_limit = memory_here()
    if size + models > memory_limit:
        more = f" on top of the {format_bytes(models)} of the models" if models else ""
        raise MemoryLimitError(
            f"{description} would take {format_bytes(size)}{more}; this machine has "
            f"{format_bytes(memory_limit)}",
            remedies,
        )
