"""Packs: append-only files of records, the truth about objects.

    packs/xx/<32 hex digits>     xx = the first two of them

A pack belongs to whoever holds its flock.  Records are appended in any order by several threads; what counts is
the length that the commit log names, and bytes past it are ignored.  A full pack ends with a record that lists
the headers of all others.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from chainstore.errors import Damaged, Malformed
from chainstore.model.frame import (
    ALIGNMENT,
    MAX_HEADER_BYTES,
    RECORD_MAGIC,
    Buffer,
    Header,
    contents_record,
    parse_header,
)
from chainstore.storage import fs

PACK_BYTES = 256 << 20  # a pack that would grow past this is closed
OPEN_READERS = 64
_WINDOW = 1 << 20


class PackWriter:
    """An open pack whose flock we hold.

    Thread-safe: `reserve` hands out disjoint ranges, `write` fills them in any order.

    Attributes:
        name: 16 bytes.  start: its committed length when this writer took it.
    """

    def __init__(self, name: bytes, file: fs.File, start: int, directory: Path) -> None:
        self.name, self.file, self.start = name, file, start
        self._directory = directory
        self._end = start
        self._new = start == 0
        self._lock = threading.Lock()
        self._unsynced = 0

    @property
    def end(self) -> int:
        """Bytes in use, committed or not."""
        return self._end

    @property
    def unsynced(self) -> int:
        """Bytes written since the last `sync` began."""
        return self._unsynced

    def reserve(self, nbytes: int) -> int | None:
        """Return where a record of `nbytes` may be written, or None where the pack is full."""
        with self._lock:
            if self._end and self._end + nbytes > PACK_BYTES:
                return None
            offset = self._end
            self._end += nbytes
            return offset

    def write(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write a record into the range that `reserve` gave; not durable before `sync`."""
        self.file.pwrite(offset, *parts)
        self._unsynced += sum(len(part) for part in parts)

    def finish(self, records: list[tuple[int, Header]], repo_id: bytes) -> int:
        """Append the record that lists `records` and return its offset; nothing may be written afterwards."""
        parts = contents_record(records, repo_id)
        with self._lock:
            offset = self._end
            self._end += sum(len(part) for part in parts)
        self.file.pwrite(offset, *parts)
        return offset

    def sync(self) -> None:
        """Make everything written so far durable, and the file's name too when it is new."""
        self._unsynced = 0
        self.file.fdatasync()
        if self._new:
            fs.sync_dir(self._directory)
            fs.sync_dir(self._directory.parent)
            self._new = False

    def rest(self) -> None:
        """Give up the flock until the pack is wanted again."""
        self.start = self._end
        self.file.unlock()

    def close(self) -> None:
        self.file.close()


class PackDir:
    """The `packs/` folder of a repository.

    Open files are kept for reading, at most OPEN_READERS of them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._readers: OrderedDict[bytes, fs.File] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, name: bytes) -> Path:
        """Return where the pack of this name lies."""
        digits = name.hex()
        return self.root / digits[:2] / digits

    def create(self, name: bytes) -> PackWriter:
        """Make an empty pack and take its flock."""
        path = self.path(name)
        fs.make_dirs(path.parent)
        file = fs.open_file(path, write=True, create=True, new=True)
        file.flock(exclusive=True)
        return PackWriter(name, file, 0, path.parent)

    def take_over(self, name: bytes) -> fs.File | None:
        """Return an existing pack, opened for writing with its flock held, or None where somebody else has it."""
        path = self.path(name)
        if not path.exists():
            return None
        file = fs.open_file(path, write=True)
        if file.flock(exclusive=True) and file.is_at(path):
            return file
        file.close()
        return None

    def resume(self, name: bytes, file: fs.File, committed: int) -> PackWriter:
        """Return a writer that goes on at the committed length, cutting off what nobody committed."""
        if file.size() < committed:
            file.close()
            raise Damaged(f"pack {name.hex()} has {file.size()} bytes where {committed} were committed")
        file.truncate(committed)
        return PackWriter(name, file, committed, self.path(name).parent)

    def read_into(self, name: bytes, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from a pack and return how many bytes there were."""
        return self._reader(name).pread_into(buffer, offset)

    def size(self, name: bytes) -> int:
        """Return the bytes of a pack's file; 0 where it is missing."""
        path = self.path(name)
        return path.stat().st_size if path.exists() else 0

    def sync(self, name: bytes) -> None:
        """Make a pack that another process wrote durable."""
        with fs.open_file(self.path(name), write=True) as file:
            file.fdatasync()
        fs.sync_dir(self.path(name).parent)

    def names(self) -> list[bytes]:
        """Return the name of every pack that lies here, whether the log knows it or not."""
        found = []
        for folder in fs.list_dir(self.root):
            if len(folder) == 2 and (self.root / folder).is_dir():
                found += [bytes.fromhex(name) for name in fs.list_dir(self.root / folder) if _is_name(name)]
        return sorted(found)

    def close(self) -> None:
        with self._lock:
            for file in self._readers.values():
                file.close()
            self._readers.clear()

    def _reader(self, name: bytes) -> fs.File:
        with self._lock:
            file = self._readers.get(name)
            if file is None:
                path = self.path(name)
                if not path.exists():
                    raise Damaged(f"pack {name.hex()} is missing")
                file = self._readers[name] = fs.open_file(path)
            self._readers.move_to_end(name)
            if len(self._readers) > OPEN_READERS:
                # dropped, not closed: another thread may be reading it; the last reference closes it
                self._readers.popitem(last=False)
            return file


def scan(file: fs.File, start: int, stop: int, what: str) -> Iterator[tuple[int, Header]]:
    """Yield (offset, header) of the records that fill [start, stop) without a gap.

    Raises:
        Malformed: something else stands there.
    """
    window = memoryview(bytearray(_WINDOW))
    base, filled = start, 0
    offset = start
    while offset < stop:
        inside = offset - base
        if inside + MAX_HEADER_BYTES > filled or inside < 0:
            base, filled = offset, file.pread_into(window, offset)
            inside = 0
        header = parse_header(window[inside:filled][:MAX_HEADER_BYTES], what, offset)
        if offset + header.record_bytes > stop:
            raise Malformed(what, "a record reaches past the committed length", offset)
        yield offset, header
        offset += header.record_bytes


def salvage(file: fs.File, stop: int, what: str) -> Iterator[tuple[int, Header]]:
    """Yield (offset, header) of every record whose header is intact, skipping over damage."""
    offset = 0
    while offset < stop:
        try:
            header = parse_header(file.pread(offset, MAX_HEADER_BYTES), what, offset)
        except Malformed:
            offset = _next_record(file, offset + ALIGNMENT, stop)
            continue
        yield offset, header
        offset += header.record_bytes


def _next_record(file: fs.File, offset: int, stop: int) -> int:
    while offset < stop:
        window = file.pread(offset, _WINDOW)
        found = window.find(RECORD_MAGIC)
        while found >= 0 and found % ALIGNMENT:
            found = window.find(RECORD_MAGIC, found + 1)
        if found >= 0:
            return offset + found
        offset += _WINDOW
    return stop


def _is_name(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)
