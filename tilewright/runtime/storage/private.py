"""Files that nobody but this user can have written: code that is run again must come from nowhere else.

What is looked at is what was opened, so that nothing can change places between the look and the use.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tilewright.runtime.errors import TilewrightWarning

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


class NotPrivateError(Exception):
    """A file or folder may be the work of somebody else; the text says why."""


def open_private(path: Path) -> io.FileIO:
    """A regular file of this user's, opened to be read. NotPrivateError for one that is another user's or that others
    may write to, and for a link, by whatever name; OSError where there is none."""
    try:
        descriptor = os.open(path, _READ | _BINARY)
    except OSError as error:
        if path.is_symlink():
            raise NotPrivateError("it is a link") from error
        raise
    status = os.fstat(descriptor)
    why = _why_not(status)
    if not stat.S_ISREG(status.st_mode):
        why = "it is not a regular file"
    elif not why and status.st_nlink > 1:
        why = "it has a second name (a hard link)"
    if why:
        os.close(descriptor)
        raise NotPrivateError(why)
    return io.FileIO(descriptor)


@contextlib.contextmanager
def replacing_private(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path`, of this user alone, that takes its place at the end, or vanishes on any error. A
    link of that name is replaced, and not followed. OSError for what the file system refuses."""
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with io.BufferedWriter(io.FileIO(os.open(temporary, _NEW | _BINARY, 0o600), "w")) as file:
            yield file
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_private_folder(folder: Path) -> None:
    """Make a folder for this user alone, if it is not there; OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def check_private_folder(folder: Path) -> None:
    """NotPrivateError for a folder that is another user's, or that others may write to; OSError where there is none.
    A link of the user's own may lead to it."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivateError("it is no folder")
    if why := _why_not(status):
        raise NotPrivateError(why)


def is_own(folder: Path) -> bool:
    """Whether a folder belongs to this user, whoever else may write to it; OSError where there is none."""
    return _is_own(os.stat(folder))


def tell_once(about: str, message: str) -> None:
    """A warning, unless this process was told of the same before."""
    if about not in _TOLD:
        _TOLD.add(about)
        warnings.warn(message, TilewrightWarning, stacklevel=2)


_TOLD: set[str] = set()


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _why_not(status: os.stat_result) -> str:
    """Why somebody else may have written something; "" where nobody can. The sticky bit of a folder keeps others from
    removing what is there, and not from adding."""
    if not _is_own(status):
        return f"it belongs to the user {status.st_uid}"
    if os.name == "posix" and status.st_mode & _OTHERS:
        return f"other users may write to it (its mode is {stat.S_IMODE(status.st_mode):o})"
    return ""
