"""Atomic writing of files: each is written under a temporary name next to its own and renamed.

So a file is the old one or the new one, whole, even if the disk is full or the process is killed.
Of several files all are written before the first is renamed; a new folder takes its name when it
is complete. A killed process leaves its temporary files, whose names begin with a dot.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError, describe_missing
from mmdp.core.timing import BlockedInterrupt

if TYPE_CHECKING:
    import pandas as pd

PathLike = str | os.PathLike[str]
Writer = Callable[[Path], object] | str | bytes


def as_path(path: PathLike) -> Path:
    """Convert to a Path; a Path is returned unchanged, with its subclass."""
    return path if isinstance(path, Path) else Path(path)


def get_suffix(path: Path, known: Iterable[str], expected: str = "known are") -> str:
    """Get the suffix of a file in lower case; refuse unknown ones, and folders."""
    if path.is_dir():
        raise InputError(describe_missing(path))
    suffix = path.suffix.lower()
    if suffix not in known:
        raise InputError(f"{path}: unknown suffix {path.suffix!r}; {expected} {', '.join(known)}")
    return suffix


@check_arguments
def write_atomic(path: PathLike, writer: Writer) -> None:
    """Write one file completely or not at all.

    ``writer`` is the text or bytes, or a function that is given the path of a temporary file
    in the same folder (with the same suffix) and writes it. The file takes its name only
    when it is complete; after an error the old file is as it was and no other is left.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> write_atomic(target, "{}")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('{}', 1)
    """
    write_all_atomic({Path(path): writer})


@check_arguments
def write_all_atomic(files: Mapping[Path, Writer], stale: Collection[Path] = ()) -> None:
    """Write several files, and remove ``stale`` ones; after an error all are as they were."""
    renames: dict[Path, Path] = {}
    with ExitStack() as cleanup:
        for path, writer in files.items():
            if path.is_dir():
                raise InputError(f"{path}: is a folder, not a file; give a file name")
            if not path.parent.is_dir():
                raise InputError(f"{path}: no folder {path.parent}; make it first")
            temp_path = _make_temp_path(path)
            cleanup.callback(_remove_file, temp_path)
            with _convert_os_errors(path):
                _write_content(temp_path, writer)
            renames[temp_path] = path
        _rename_all(renames, stale)


def _remove_file(path: Path) -> None:
    """Remove a temporary file; if that fails, the error that ended the write counts."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def replace_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Provide a temporary folder whose files replace those of ``folder`` at the end.

    Those of ``names`` that were not written again are removed; other files stay. A folder that
    does not exist is made by one rename. After an error it is as it was.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "old.csv").write_text("1")
    >>> with replace_files(folder, ["old.csv", "new.csv"]) as temp_folder:
    ...     write_atomic(temp_folder / "new.csv", "2")
    >>> [file.name for file in folder.iterdir()]
    ['new.csv']
    """
    is_new = not folder.exists()
    temp_folder = _make_temp_path(folder if is_new else folder / "folder")
    with _convert_os_errors(folder):
        temp_folder.mkdir(parents=True)
    try:
        yield temp_folder
        written = {file: folder / file.name for file in temp_folder.iterdir()}
        stale = {folder / name for name in names}.difference(written.values())
        _rename_all(*(({temp_folder: folder}, ()) if is_new else (written, stale)))
    except InputError as error:
        problem = error.message.replace(str(temp_folder), str(folder))
        raise type(error)(problem, error.remedies) from None
    finally:
        shutil.rmtree(temp_folder, ignore_errors=True)


def format_csv(frame: pd.DataFrame) -> str:
    """Format a table as CSV, with quotes if a cell has a carriage return."""
    text: str = frame.to_csv(index=False, lineterminator="\n")
    if "\r" in text:
        text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return text


def check_writable(target: PathLike) -> Path:
    """Refuse a path that cannot be written now; call it before long computations."""
    if not os.fspath(target):
        raise InputError("the name to write to is empty; give the name of a file or folder")
    path = Path(target)
    folder = path if path.is_dir() else path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return path
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({describe_error(error)})") from None


def describe_error(error: BaseException) -> str:
    """Describe an exception in one short line, without temporary names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


# ---------------------------------------------------------------------- temporary files
def _make_temp_path(path: Path) -> Path:
    """Make a hidden name next to ``path``, with the same suffix."""
    return path.with_name(f".{path.stem[:80]}-{uuid.uuid4().hex[:8]}{path.suffix}")


def _rename_all(renames: Mapping[Path, Path], stale: Collection[Path]) -> None:
    """Give files their names and remove stale ones; Ctrl-C waits until all is done."""
    with BlockedInterrupt():
        for temp_path, path in renames.items():
            with _convert_os_errors(path):
                os.replace(temp_path, path)
        for path in stale:
            with _convert_os_errors(path):
                path.unlink(missing_ok=True)


def _write_content(path: Path, writer: Writer) -> None:
    """Write text or bytes, or call a function that writes."""
    if isinstance(writer, str):
        writer = writer.encode()
    if isinstance(writer, bytes):
        path.write_bytes(writer)
    else:
        writer(path)


@contextmanager
def _convert_os_errors(path: Path) -> Iterator[None]:
    """Convert OSErrors in this context to one-line InputErrors about ``path``."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({describe_error(error)})") from None
