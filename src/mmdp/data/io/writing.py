"""Atomic writing of files: several files all or none.

Every file is first written under a hidden name next to its own, which includes the process that
writes it. If several files belong together, a hidden journal of the renames is written next and
then applied; the next reader or writer of the same user that finds such a journal finishes it.
So the files are the old ones or the new ones even if the process is killed, and the next process
that writes there removes its hidden files. A journal names the folder it was written in: one in a
copied or downloaded folder is not applied, so that reading changes nothing there.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mmdp.core.arguments import check_arguments
from mmdp.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

PathLike = str | os.PathLike[str]
Writer = Callable[[Path], object] | str | bytes

_HOST_ID = f"{zlib.crc32(platform.node().encode()) & 0xFFFF:04x}"
_TEMP_NAME = re.compile(
    r"\.[^/\\]*-(\d+)-([0-9a-f]{4})[0-9a-f]{8}(\.\w+)?"
)  # process, host, suffix
_JOURNAL_SUFFIX = ".moves"  # suffix of a journal of renames
_ABANDONED_SECONDS = 24 * 3600.0  # seconds until a file from another machine counts as abandoned


def as_path(path: PathLike) -> Path:
    """Convert to a Path; a Path is returned unchanged, with its subclass."""
    return path if isinstance(path, Path) else Path(path)


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
    """Write several files of one folder, and remove ``stale`` ones, all or none."""
    files = {Path(path): writer for path, writer in files.items()}
    renames = {temp_name(path): path for path in files}
    try:
        for (temp_path, path), writer in zip(renames.items(), files.values(), strict=True):
            if path.is_dir():
                raise InputError(f"{path}: is a folder, not a file; give a file name")
            if not path.parent.is_dir():
                raise InputError(f"{path}: no folder {path.parent}; make it first")
            with _convert_os_errors(path):
                _clean_folder(path.parent)
                _write_content(temp_path, writer)
        journal = _write_journal(renames, stale)
    except BaseException:
        for temp_path in renames:
            with suppress(OSError):
                temp_path.unlink()
        raise
    _apply_journal(journal)


@contextmanager
def replace_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Provide a temporary folder whose files replace those of ``folder`` at the end, all or none.

    Those of ``names`` that were not written again are removed; other files stay. The folder is
    created if needed. After an error it is as it was.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "old.csv").write_text("1")
    >>> with replace_files(folder, ["old.csv", "new.csv"]) as temp_folder:
    ...     write_atomic(temp_folder / "new.csv", "2")
    >>> [file.name for file in folder.iterdir()]
    ['new.csv']
    """
    is_new, temp_folder = not folder.exists(), temp_name(folder / "folder")
    with _convert_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _clean_folder(folder)
        temp_folder.mkdir()
    try:
        yield temp_folder
        renames = {file: folder / file.name for file in temp_folder.iterdir()}
        stale = [
            folder / name
            for name in names
            if (folder / name).exists() and not (temp_folder / name).exists()
        ]
        journal = _write_journal(renames, stale)
    except BaseException as error:
        shutil.rmtree(temp_folder, ignore_errors=True)
        if is_new:
            folder.rmdir()
        if isinstance(error, InputError):
            problem = error.message.replace(str(temp_folder), str(folder))
            raise type(error)(problem, error.remedies) from None
        raise
    _apply_journal(journal)
    temp_folder.rmdir()


def finish_renames(folder: Path) -> None:
    """Finish the renames that a killed process of this user had begun in this folder."""
    for journal in folder.glob(f".*{_JOURNAL_SUFFIX}"):
        if _is_own_journal(journal):
            _apply_journal(journal)


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


# ---------------------------------------------------------------------- all or none
def _write_journal(renames: Mapping[Path, Path], stale: Collection[Path] = ()) -> Path:
    """Write the journal of renames and removals, which the next process can finish."""
    target = next(iter(renames.values()))
    rename_names = [(x.relative_to(target.parent).as_posix(), y.name) for x, y in renames.items()]
    content = {"moves": rename_names, "stale": [x.name for x in stale]}
    journal = temp_name(target.with_name(f"files{_JOURNAL_SUFFIX}"))
    partial_journal = journal.with_suffix(".begun")
    with _convert_os_errors(target):
        content |= {"folder": target.parent.stat().st_ino}
        try:
            partial_journal.write_text(json.dumps(content), encoding="utf-8")
            os.replace(partial_journal, journal)
        except BaseException:
            partial_journal.unlink(missing_ok=True)
            raise
    return journal


def _apply_journal(journal: Path) -> None:
    """Apply the rest of a journal and remove it, even after Ctrl-C."""
    try:
        _apply_journal_once(journal)
    except KeyboardInterrupt:
        _apply_journal_once(journal)
        raise


def _apply_journal_once(journal: Path) -> None:
    """Apply the renames and removals of a journal, and remove it."""
    folder = journal.parent
    try:
        content = json.loads(journal.read_text(encoding="utf-8"))
    except OSError:  # done by another process
        return
    for temp_file, name in content["moves"]:
        with _convert_os_errors(folder / name), suppress(FileNotFoundError):
            os.replace(folder / temp_file, folder / name)
    for name in content["stale"]:
        with _convert_os_errors(folder / name):
            (folder / name).unlink(missing_ok=True)
    journal.unlink(missing_ok=True)


def _is_own_journal(journal: Path) -> bool:
    """Whether a process of this user wrote this journal in this folder."""
    try:
        owner, content = journal.lstat().st_uid, json.loads(journal.read_text(encoding="utf-8"))
        return (
            owner == (os.getuid() if hasattr(os, "getuid") else owner)
            and content["folder"] == journal.parent.stat().st_ino
            and all(
                map(_is_plain_name, [*(name for _, name in content["moves"]), *content["stale"]])
            )
            and all(
                _TEMP_NAME.fullmatch(temp_file.removesuffix(f"/{name}"))
                for temp_file, name in content["moves"]
            )
        )
    except (OSError, ValueError, TypeError, LookupError):
        return False


def _is_plain_name(name: str) -> bool:
    return Path(name).name == name and name not in ("", "..")


# ---------------------------------------------------------------------- hidden files
def temp_name(path: Path) -> Path:
    """Make a hidden name next to ``path`` that names this process.

    If that process dies, the next one that writes to the folder removes it.
    """
    unique_part = f"{os.getpid()}-{_HOST_ID}{uuid.uuid4().hex[:8]}"
    return path.with_name(f".{path.stem[:80]}-{unique_part}{path.suffix}")


def _clean_folder(folder: Path) -> None:
    """Finish the renames and remove the hidden files of dead processes in a folder."""
    finish_renames(folder)
    for entry in os.scandir(folder):
        match = _TEMP_NAME.fullmatch(entry.name)
        if match and _is_abandoned(int(match[1]), match[2], entry):
            if entry.is_dir():
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


def _is_abandoned(process_id: int, host_id: str, entry: os.DirEntry[str]) -> bool:
    """Whether the process of a hidden file has ended, or it is old and from another host."""
    if host_id != _HOST_ID or os.name != "posix":
        return time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process is alive, of another user
        return False
    return False


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
