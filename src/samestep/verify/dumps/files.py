"""Files of a dump that nobody vouches for: only regular files of one folder, within a limit of memory.

A name is walked component by component without following symbolic links, so nothing outside the folder is ever
opened; FIFOs and devices are recognised before they are opened. Whatever is read, or is about to be decoded, is
charged to the limit first.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

GIB = 1 << 30
LIMIT = 4 * GIB  # bytes of tensors and files that one dump may take, unless told otherwise
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DumpError(Exception):
    """A dump that cannot be judged: what was found, where, and what would be accepted. Nothing of it has been run."""


class Folder:
    """The folder `root`, and how much of the `limit` (bytes) is left to what is read from it.

    `root` itself may be reached through symbolic links: the user named it. Below it there may be none.
    """

    def __init__(self, root: Path, limit: int = LIMIT) -> None:
        self.root, self.limit, self.left = root, limit, limit

    def names(self, below: str = "") -> list[str]:
        """The names of all entries of the folder `below` (a name inside it), sorted; `DumpError` if it has none."""
        handle = self._enter(components(below) if below else [], below or str(self.root))
        try:
            return sorted(os.listdir(handle))
        finally:
            os.close(handle)

    def is_folder(self, name: str) -> bool:
        """Whether `name`, one component, is a folder and not a link to one."""
        try:
            return stat.S_ISDIR(os.stat(self.root / name, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """The regular file `name` and its size in bytes; close it. Raises `DumpError` for anything else."""
        *folders, last = components(name)
        handle = self._enter(folders, name)
        try:
            _check_kind(os.stat(last, dir_fd=handle, follow_symlinks=False), name)
            opened = os.open(last, _FILE, dir_fd=handle)
        except OSError as error:
            raise DumpError(f"{name!r}: {error.strerror}") from None
        finally:
            os.close(handle)
        file = os.fdopen(opened, "rb")
        try:
            found = os.fstat(opened)
            _check_kind(found, name)
        except DumpError:
            file.close()
            raise
        return file, found.st_size

    def read(self, name: str, offset: int = 0, count: int | None = None, most: int | None = None) -> bytes:
        """`count` bytes of the file from `offset` (bytes), all to its end if None; charged before they are read.

        A file of more than `most` bytes is refused.
        """
        file, size = self.open(name)
        with file:
            if most is not None and size > most:
                raise DumpError(f"{name!r} has {size:,} bytes; accepted: at most {most:,}")
            wanted = size - offset if count is None else count
            if offset < 0 or wanted < 0 or offset + wanted > size:
                raise DumpError(f"{name!r} has {size} bytes; {offset + max(wanted, 0)} are needed")
            self.charge(wanted, name)
            try:
                file.seek(offset)
                data = file.read(wanted)
            except OSError as error:
                raise DumpError(f"{name!r}: {error.strerror}") from None
        if len(data) != wanted:
            raise DumpError(f"{name!r} became shorter while it was read")
        return data

    def charge(self, count: int, name: str) -> None:
        """Take `count` bytes from the limit; `DumpError` if they are not there."""
        if count > self.left:
            raise DumpError(f"{name!r} needs {count:,} bytes of memory; {self.left:,} of this dump's limit of "
                            f"{self.limit:,} are left (--memory sets the limit, in GiB)")
        self.left -= count

    def _enter(self, folders: list[str], name: str) -> int:
        """A handle of a folder below the root, reached without following a link."""
        try:
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DumpError(f"{self.root}: {error.strerror}") from None
        for folder in folders:
            try:
                below = os.open(folder, _FOLDER, dir_fd=handle)
            except FileNotFoundError:
                raise DumpError(f"{name!r}: there is no folder {folder!r}; put the tensors there, or name the files as "
                                "they are") from None
            except OSError as error:
                raise DumpError(f"{name!r}: {folder!r} is no folder, or a symbolic link ({error.strerror}); only "
                                "what lies in the dump's own folders is read") from None
            finally:
                os.close(handle)
            handle = below
        return handle


def reason(error: Exception) -> str:
    """What another library says of a file, in one short printable line."""
    line = (str(error).splitlines() or [""])[0].strip()[:160] or type(error).__name__
    return line if line.isprintable() else ascii(line)


def components(name: str) -> list[str]:
    """The parts of a name inside a dump; `DumpError` for one that could lead out of it."""
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise DumpError(f"{name!r} is no name of a file inside the dump; accepted: a relative name without '..', such "
                        "as 'parameters.npy' or 'step_0/parameters.npy'")
    return parts


def _check_kind(found: os.stat_result, name: str) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder",
             stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    raise DumpError(f"{name!r} is {kinds.get(stat.S_IFMT(found.st_mode), 'no file')}; accepted: regular files only "
                    "(copy what a link points to into the dump)")
