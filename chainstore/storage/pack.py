"""Packs: append-only files of records, the truth about objects.

    packs/xx/<32 hex digits>     xx = the first two of them

A pack belongs to whoever holds its flock.  Records are appended in any order by several threads; what counts is
the length that the commit log names, and bytes past it are ignored.  A full pack ends with a record that lists
the headers of all others.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chainstore.errors import Damaged, Malformed, StorageError
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
CROWDED_BYTES = 4 << 20  # a pack with less room than this is not taken over
OPEN_READERS = 64
_WINDOW = 16 << 10  # of a walk over headers: small records lie many in it, of large ones little more is read
_SEARCH = 1 << 20


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
    def crowded(self) -> bool:
        """Whether too little room is left for another batch."""
        return is_crowded(self._end)

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

    def finish(self, records: Iterable[tuple[int, Header]], repo_id: bytes) -> int:
        """Append the record that lists `records`, in order of offset, and return where; nothing may follow it."""
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
        """Give up the flock until the pack is wanted again: somebody else may go on with it meanwhile."""
        self.file.unlock()

    def close(self) -> None:
        """Close the file, which gives up its flock."""
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
        """Make an empty pack and take its flock; the caller holds the publish lock, or it could be taken for an orphan.

        Raises:
            StorageError: somebody else took the flock first.
        """
        path = self.path(name)
        fs.make_dirs(path.parent)
        file = fs.open_file(path, write=True, create=True, new=True)
        if not file.flock(exclusive=True):
            file.close()
            raise StorageError(f"another process holds pack {name.hex()}, which was made just now")
        return PackWriter(name, file, 0, path.parent)

    def take_over(self, name: bytes) -> fs.File | None:
        """Return an existing pack, opened for writing with its flock held, or None where somebody else has it."""
        path = self.path(name)
        try:
            file = fs.open_file(path, write=True)
        except FileNotFoundError:
            return None
        if file.flock(exclusive=True) and file.is_at(path):
            return file
        file.close()
        return None

    def resume(self, name: bytes, file: fs.File, committed: int) -> PackWriter | None:
        """Return a writer that goes on at the committed length, cutting off what nobody committed.

        None, and `file` closed, where the file is shorter than that: it is damaged, and nothing is added to it.
        """
        if file.size() < committed:
            file.close()
            return None
        file.truncate(committed)
        return PackWriter(name, file, committed, self.path(name).parent)

    def let_go(self, name: bytes) -> None:
        """Close what is kept open for reading of a pack that vanishes; a thread that reads it right now finishes."""
        with self._lock:
            self._readers.pop(name, None)

    def let_go_all(self) -> None:
        """Open every pack anew at its next read: a network file system may not tell an open file that it grew."""
        with self._lock:
            self._readers.clear()

    def read_into(self, name: bytes, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from a pack and return how many bytes there were."""
        return self._reader(name).pread_into(buffer, offset)

    def size(self, name: bytes) -> int:
        """Return the bytes of a pack's file; 0 where it is missing."""
        try:
            return fs.size_of(self.path(name))
        except FileNotFoundError:
            return 0

    def sync(self, name: bytes) -> None:
        """Make a pack that another process wrote durable, its name included.

        Raises:
            Damaged: it is missing.
        """
        path = self.path(name)
        try:
            with fs.open_file(path, write=True) as file:
                file.fdatasync()
        except FileNotFoundError:
            raise Damaged(f"pack {name.hex()} is missing") from None
        fs.sync_dir(path.parent)
        fs.sync_dir(path.parent.parent)

    def names(self) -> list[bytes]:
        """Return the name of every pack that lies here, whether the log knows it or not."""
        found = []
        for folder in fs.list_dir(self.root):
            if len(folder) == 2 and fs.is_dir(self.root / folder):
                names = fs.list_dir(self.root / folder)
                found += [bytes.fromhex(name) for name in names if _is_name(name) and name[:2] == folder]
        return sorted(found)

    def close(self) -> None:
        """Close every file that is kept open for reading."""
        with self._lock:
            for file in self._readers.values():
                file.close()
            self._readers.clear()

    def _reader(self, name: bytes) -> fs.File:
        with self._lock:
            file = self._readers.get(name)
            if file is None:
                try:
                    file = self._readers[name] = fs.open_file(self.path(name))
                except FileNotFoundError:
                    raise Damaged(f"pack {name.hex()} is missing") from None
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


def salvage(file: fs.File, start: int, stop: int, what: str) -> Iterator[tuple[int, Header]]:
    """Yield (offset, header) of every record in [start, stop) whose header is intact, skipping over damage."""
    offset = start
    while offset < stop:
        try:
            header = parse_header(file.pread(offset, MAX_HEADER_BYTES), what, offset)
        except Malformed:
            offset = _next_record(file, offset + ALIGNMENT, stop)
            continue
        if offset + header.record_bytes <= stop:
            yield offset, header
        offset += header.record_bytes


def _next_record(file: fs.File, offset: int, stop: int) -> int:
    while offset < stop:
        window = file.pread(offset, _SEARCH)
        found = window.find(RECORD_MAGIC)
        while found >= 0 and found % ALIGNMENT:
            found = window.find(RECORD_MAGIC, found + 1)
        if found >= 0:
            return offset + found
        offset += _SEARCH
    return stop


def is_crowded(length: int) -> bool:
    """Return whether a pack of `length` bytes has too little room for another batch."""
    return length > PACK_BYTES - CROWDED_BYTES


def _is_name(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)
