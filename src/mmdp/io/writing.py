"""Writing files whole or not at all, several of them all or none.

Every file is first written under a hidden name next to its own, which includes the process that
writes it. If several files belong together, a hidden list of the renames is written next and then
followed; the next reader or writer of the same user that finds such a list follows it to the end.
So the files are the old ones or the new ones even if the process is killed, and the next process
that writes there removes what it left. A list says which folder it was written in: one that came
with a copied or downloaded folder is not followed, so that reading changes nothing there.
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

from mmdp.arguments import checked
from mmdp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

PathLike = str | os.PathLike[str]
Writer = Callable[[Path], object] | str | bytes

_HOST = f"{zlib.crc32(platform.node().encode()) & 0xFFFF:04x}"
_HIDDEN = re.compile(r"\.[^/\\]*-(\d+)-([0-9a-f]{4})[0-9a-f]{8}(\.\w+)?")  # process, host, suffix
_LIST = ".moves"  # suffix of a list of renames
_FORGOTTEN = 24 * 3600.0  # seconds until a file from another machine counts as abandoned


def as_path(path: PathLike) -> Path:
    """The path as such; one that has a name of its own for messages keeps it."""
    return path if isinstance(path, Path) else Path(path)


@checked
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


@checked
def write_all(files: Mapping[Path, Writer], stale: Collection[Path] = ()) -> None:
    """Write several files of one folder, and remove ``stale`` ones: all of it or nothing."""
    files = {Path(path): writer for path, writer in files.items()}
    moves = {hidden(path): path for path in files}
    try:
        for (place, path), writer in zip(moves.items(), files.values(), strict=True):
            if path.is_dir():
                raise InputError(f"{path}: is a folder, not a file; give a file name")
            if not path.parent.is_dir():
                raise InputError(f"{path}: no folder {path.parent}; make it first")
            with _naming(path):
                _tidy(path.parent)
                _write(place, writer)
        listed = _listed(moves, stale)
    except BaseException:
        for place in moves:
            with suppress(OSError):
                place.unlink()
        raise
    _follow(listed)


@contextmanager
def replacing(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """A place to write a folder's new files; at the end they replace the old ones, all or none.

    Those of ``names`` that were not written again are removed; other files stay. The folder is
    created if needed. After an error it is as it was.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "old.csv").write_text("1")
    >>> with replacing(folder, ["old.csv", "new.csv"]) as place:
    ...     write_whole(place / "new.csv", "2")
    >>> [file.name for file in folder.iterdir()]
    ['new.csv']
    """
    made, place = not folder.exists(), hidden(folder / "folder")
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _tidy(folder)
        place.mkdir()
    try:
        yield place
        moves = {file: folder / file.name for file in place.iterdir()}
        stale = [folder / x for x in names if (folder / x).exists() and not (place / x).exists()]
        listed = _listed(moves, stale)
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if made:
            folder.rmdir()
        if isinstance(error, InputError):
            problem = error.problem.replace(str(place), str(folder))
            raise type(error)(problem, error.remedies) from None
        raise
    _follow(listed)
    place.rmdir()


def settle(folder: Path) -> None:
    """Finish the renames that a killed process of this user had begun in this folder."""
    for listed in folder.glob(f".*{_LIST}"):
        if _is_own(listed):
            _follow(listed)


def csv_text(frame: pd.DataFrame) -> str:
    """A table as CSV; a carriage return stands in quotes, as it would end a line otherwise."""
    text: str = frame.to_csv(index=False, lineterminator="\n")
    if "\r" in text:
        text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return text


def check_writable(target: PathLike) -> Path:
    """The path, if a file or folder of that name could be written now; call it before long work."""
    if not os.fspath(target):
        raise InputError("the name to write to is empty; give the name of a file or folder")
    path = Path(target)
    place = path if path.is_dir() else path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return path
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from None


def reason(error: BaseException) -> str:
    """One short line about a system error, without our temporary names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


# ---------------------------------------------------------------------- all or none
def _listed(moves: Mapping[Path, Path], stale: Collection[Path] = ()) -> Path:
    """Write the list of renames and removals; once it is there, they will be done."""
    target = next(iter(moves.values()))
    places = [(x.relative_to(target.parent).as_posix(), y.name) for x, y in moves.items()]
    known = {"moves": places, "stale": [x.name for x in stale]}
    listed = hidden(target.with_name(f"files{_LIST}"))
    begun = listed.with_suffix(".begun")
    with _naming(target):
        known |= {"folder": target.parent.stat().st_ino}
        try:
            begun.write_text(json.dumps(known), encoding="utf-8")
            os.replace(begun, listed)
        except BaseException:
            begun.unlink(missing_ok=True)
            raise
    return listed


def _follow(listed: Path) -> None:
    """Do what is left of a list and remove it; Ctrl-C cannot stop it any more."""
    try:
        _do(listed)
    except KeyboardInterrupt:
        _do(listed)
        raise


def _do(listed: Path) -> None:
    folder = listed.parent
    try:
        known = json.loads(listed.read_text(encoding="utf-8"))
    except OSError:  # done by another process
        return
    for place, name in known["moves"]:
        with _naming(folder / name), suppress(FileNotFoundError):
            os.replace(folder / place, folder / name)
    for name in known["stale"]:
        with _naming(folder / name):
            (folder / name).unlink(missing_ok=True)
    listed.unlink(missing_ok=True)


def _is_own(listed: Path) -> bool:
    """Whether a process of this user wrote this list in this folder: others must do no harm."""
    try:
        owner, known = listed.lstat().st_uid, json.loads(listed.read_text(encoding="utf-8"))
        return (
            owner == (os.getuid() if hasattr(os, "getuid") else owner)
            and known["folder"] == listed.parent.stat().st_ino
            and all(map(_plain, [*(name for _, name in known["moves"]), *known["stale"]]))
            and all(_HIDDEN.fullmatch(x.removesuffix(f"/{name}")) for x, name in known["moves"])
        )
    except (OSError, ValueError, TypeError, LookupError):
        return False


def _plain(name: str) -> bool:
    return Path(name).name == name and name not in ("", "..")


# ---------------------------------------------------------------------- hidden files
def hidden(path: Path) -> Path:
    """A name next to ``path`` that no reader looks at and that says which process it is from.

    If that process dies, the next one that writes to the folder removes it.
    """
    own = f"{os.getpid()}-{_HOST}{uuid.uuid4().hex[:8]}"
    return path.with_name(f".{path.stem[:80]}-{own}{path.suffix}")


def _tidy(folder: Path) -> None:
    """Finish or remove what dead processes left in a folder."""
    settle(folder)
    for entry in os.scandir(folder):
        found = _HIDDEN.fullmatch(entry.name)
        if found and _dead(int(found[1]), found[2], entry):
            if entry.is_dir():
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)


def _dead(process: int, host: str, entry: os.DirEntry[str]) -> bool:
    if host != _HOST or os.name != "posix":
        return time.time() - entry.stat().st_mtime > _FORGOTTEN
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # its process is alive but not ours
        return False
    return False


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
