"""Quarantine: what is damaged is set aside before something takes its place; nothing is deleted unseen.

quarantine/<pack>-<offset>.record     the bytes that stood in the place of one record
quarantine/<pack>.pack                a whole pack, where its headers do not lead from one record to the next
"""

from collections.abc import Iterator
from pathlib import Path

from chainstore.errors import Malformed
from chainstore.model.change import PackLine
from chainstore.odb.layout import Layout
from chainstore.odb.rows import Place
from chainstore.storage import fs
from chainstore.storage.pack import PackDir, scan

_PIECE = 8 << 20


class Quarantine:
    """Copies what is damaged into `quarantine/`.

    Attributes:
        files: what was put there, relative to the repository.
    """

    def __init__(self, layout: Layout, packs: PackDir) -> None:
        self._layout, self._packs = layout, packs
        self._broken: dict[bytes, bool] = {}
        self.files: list[str] = []

    def record(self, line: PackLine, place: Place) -> None:
        """Set one record aside, or its whole pack where that has no order left."""
        path = self._packs.path(line.pack)
        if not path.exists():
            return
        if self._is_broken(line):
            self.pack(line)
            return
        with fs.open_file(path) as file:
            data = file.pread(place.offset, place.length)
        self._put(f"{line.pack.hex()}-{place.offset}.record", [data])

    def pack(self, line: PackLine) -> None:
        """Set a whole pack aside; what is missing of it stays missing."""
        path = self._packs.path(line.pack)
        if path.exists():
            self._put(f"{line.pack.hex()}.pack", _pieces(path))

    def _is_broken(self, line: PackLine) -> bool:
        if line.pack not in self._broken:
            self._broken[line.pack] = not _is_in_order(self._packs.path(line.pack), line)
        return self._broken[line.pack]

    def _put(self, name: str, parts: "Iterator[bytes] | list[bytes]") -> None:
        told = f"{self._layout.quarantine.name}/{name}"
        if told in self.files:
            return
        fs.make_dirs(self._layout.quarantine)
        target, draft = self._layout.quarantine / name, self._layout.quarantine / f".{name}.tmp"
        with fs.open_file(draft, write=True, create=True) as file:
            file.truncate(0)
            for part in parts:
                file.append(part)
            file.fdatasync()
        fs.rename(draft, target)
        self.files.append(told)


def live_ranges(line: PackLine, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a pack of `size` bytes that hold something."""
    at, end = 0, min(line.length, size)
    for start, stop in line.dead:
        if at < min(start, end):
            yield at, min(start, end)
        at = max(at, stop)
    if at < end:
        yield at, end


def _is_in_order(path: Path, line: PackLine) -> bool:
    """Whether one header leads to the next through everything that a pack holds."""
    try:
        with fs.open_file(path) as file:
            for start, stop in live_ranges(line, file.size()):
                for _ in scan(file, start, stop, line.pack.hex()):
                    pass
    except Malformed:
        return False
    return True


def _pieces(path: Path) -> Iterator[bytes]:
    with fs.open_file(path) as file:
        at = 0
        while piece := file.pread(at, _PIECE):
            yield piece
            at += len(piece)
