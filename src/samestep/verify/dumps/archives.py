"""Zip archives (.npz, .pt) that nobody vouches for: unpacked in memory only, and no further than they declare."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from samestep.verify.dumps.files import DumpError, Folder, components, reason

PIECE = 1 << 20  # bytes unpacked at a time
TABLE = 1 << 21  # bytes that the table of contents may have


class _Pieces:
    """The part of a file that zipfile uses; no single read takes more than an honest archive needs."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """As a file's; `DumpError` for a read that only a hostile archive asks for."""
        data = self._file.read(min(size, TABLE + 1) if size >= 0 else TABLE + 1)
        if len(data) > TABLE:
            raise DumpError(f"{self._name!r} has a table of contents of more than {TABLE:,} bytes")
        return data


@contextmanager
def opened(folder: Folder, name: str) -> Iterator[zipfile.ZipFile]:
    """The archive `name`; `DumpError` unless its members are plain, differently named and inside it."""
    file, size = folder.open(name)
    with file:
        pieces: Any = _Pieces(file, name)
        try:
            archive = zipfile.ZipFile(pieces)
        except DumpError:
            raise
        except Exception as error:  # struct, value, encoding and zip errors: no archive, or a damaged one
            raise DumpError(f"{name!r} is no readable archive: {reason(error)}") from None
        _check_members(archive.infolist(), name, size)
        yield archive


def _check_members(members: list[zipfile.ZipInfo], name: str, size: int) -> None:
    seen = set()
    for info in members:
        label = f"{name!r} has a member named {info.filename!r}"
        try:
            components(info.filename)
        except DumpError:
            raise DumpError(f"{label}, which leads out of the archive or is a folder; accepted: plain names") from None
        if info.filename in seen:
            raise DumpError(f"{label} twice")
        seen.add(info.filename)
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DumpError(f"{label}, which is encrypted or compressed by another method than deflate")
    packed = sum(info.compress_size for info in members)
    if packed > size:
        raise DumpError(f"{name!r} has {size} bytes, but its members declare {packed}: they overlap")


def unpacked(folder: Folder, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> bytearray:
    """One member of `archive` in memory: charged as it declares, and checked against that and its checksum."""
    label = f"{name}[{info.filename}]"
    folder.charge(info.file_size, label)
    data = bytearray()
    try:
        with archive.open(info) as member:
            while piece := member.read(PIECE):
                data += piece
    except Exception as error:  # zlib, struct, end-of-file and zip errors: the member is damaged
        raise DumpError(f"{label!r} cannot be unpacked: {reason(error)}") from None
    if len(data) != info.file_size:
        raise DumpError(f"{label!r} declares {info.file_size} bytes and has {len(data)}")
    return data


def copied(folder: Folder, name: str, limits: dict[str, int]) -> io.BytesIO:
    """A copy of the archive in memory that holds what was checked here, and nothing compressed.

    Another library may find other members and sizes in an archive than Python does; in the copy it cannot.
    `limits` gives, for the ends of members' names, how many bytes they may have.
    """
    copy = io.BytesIO()
    with opened(folder, name) as archive, zipfile.ZipFile(copy, "w") as target:
        for info in archive.infolist():
            for end, limit in limits.items():
                if info.filename.endswith(end) and info.file_size > limit:
                    raise DumpError(f"{name}[{info.filename}] declares {info.file_size:,} bytes; accepted: {limit:,}")
            folder.charge(info.file_size, name)
            target.writestr(info.filename, unpacked(folder, archive, info, name))
    copy.seek(0)
    return copy
