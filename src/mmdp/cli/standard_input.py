"""``-``: what comes from standard input, as a file that can be read more than once."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from mmdp.errors import InputError

_STARTS = {b"PAR1": ".parquet", b"PK": ".npz", b"<": ".pomdpx"}
_POMDP = re.compile(rb"\s*(#.*\s*)*(discount|values|states|actions|observations)\s*:")


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
    file = Path(folder, f"input{suffix_of(data)}")
    file.write_bytes(data)
    return StandardInput(file)


def suffix_of(data: bytes) -> str:
    """
    >>> [suffix_of(x) for x in (b"state,action", b"<?xml", b"# a tiger\\n discount: 0.9")]
    ['.csv', '.pomdpx', '.pomdp']
    """
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    found = next((kind for start, kind in _STARTS.items() if text.startswith(start)), ".csv")
    return ".pomdp" if _POMDP.match(text) else found
