"""``-``: what comes from standard input, as a file that can be read more than once."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from mmdp.core.errors import InputError

_SUFFIX_BY_PREFIX = {b"PAR1": ".parquet", b"PK": ".npz", b"<": ".pomdpx"}
_POMDP_PATTERN = re.compile(rb"\s*(#.*\s*)*(discount|values|states|actions|observations)\s*:")


class StandardInput(type(Path())):  # type: ignore[misc]
    """A temporary file that messages call standard input."""

    def __str__(self) -> str:
        return "standard input"

    def __fspath__(self) -> str:
        return os.path.join(*self.parts)


def read_standard_input() -> Path:
    """Everything on standard input, in a file whose suffix tells what it is."""
    data = sys.stdin.buffer.read()
    if not data.strip():
        raise InputError("standard input is empty; give a file, or pipe one in")
    folder = tempfile.mkdtemp(prefix="mmdp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder, f"input{detect_suffix(data)}")
    file.write_bytes(data)
    return StandardInput(file)


def detect_suffix(data: bytes) -> str:
    """Detect the format of data by its first bytes; return the suffix of such files.

    >>> [detect_suffix(x) for x in (b"state,action", b"<?xml", b"# a tiger\\n discount: 0.9")]
    ['.csv', '.pomdpx', '.pomdp']
    """
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    suffix = next(
        (candidate for prefix, candidate in _SUFFIX_BY_PREFIX.items() if text.startswith(prefix)),
        ".csv",
    )
    return ".pomdp" if _POMDP_PATTERN.match(text) else suffix
