"""Writing files whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mmdp.errors import InputError

PathLike = str | os.PathLike[str]
Writer = Callable[[Path], object] | str | bytes


def write_whole(path: PathLike, writer: Writer) -> None:
    """Write one file whole or not at all.

    ``writer`` is the text or bytes, or a function that is given the path of a temporary file
    in the same folder (with the same suffix) and writes it. The file takes its name only
    when it is complete; after an error the old file is as it was and no other is left.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> write_whole(target, "{}")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('{}', 1)
    """
    write_all({Path(path): writer})


def write_all(files: Mapping[Path, Writer]) -> None:
    """Write several files: all are complete before the first one takes its name."""
    temporary = {path: _temporary(path) for path in files}
    try:
        for path, writer in files.items():
            if path.is_dir():
                raise InputError(f"{path}: is a folder, not a file; give a file name")
            if not path.parent.is_dir():
                raise InputError(f"{path}: no folder {path.parent}; make it first")
            with _naming(path):
                _write(temporary[path], writer)
        for path, complete in temporary.items():
            with _naming(path):
                os.replace(complete, path)
    finally:
        for left in temporary.values():
            with suppress(OSError):
                left.unlink()


def reason(error: BaseException) -> str:
    """One short line of an error from below, without our temporary names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem[:80]}-{uuid.uuid4().hex[:12]}{path.suffix}")


def _write(place: Path, writer: Writer) -> None:
    if isinstance(writer, str):
        writer = writer.encode()
    if isinstance(writer, bytes):
        place.write_bytes(writer)
    else:
        writer(place)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the system as one line about ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from None
