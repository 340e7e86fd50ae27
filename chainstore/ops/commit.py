"""Commit: live leaves become chunks, chunks become trees, trees become a commit.

`write` publishes nothing, so it may be repeated after a failure or walked away from: what it stored is then
unreachable and gc takes it.

Large arrays are cut into chunks of about 1 MiB of their own.  Small ones and plain values share chunks of a few
KiB, cut by the hash of their paths, so that one that is added or grows moves no other; values that change at every
step (counters) share with each other and not with weights.
"""

import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path as FilePath

from chainstore.errors import InvalidInput
from chainstore.ids import Kind, ObjectId
from chainstore.model.commit import Note, Stats, encode_commit
from chainstore.model.frame import crc32c
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path, encode_key
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent, Root, write_tree
from chainstore.model.wire import encode
from chainstore.observe import Observer, Progress
from chainstore.odb.batch import LocalBatch, Stored
from chainstore.odb.offer import Base
from chainstore.ops.deltas import Lines
from chainstore.ops.pipeline import run, worker_count
from chainstore.state.chunking import chunk_length, ranges
from chainstore.state.leaf import BytesSource, Leaf, Source
from chainstore.storage import fs

SMALL_BYTES = 16 << 10  # leaves up to this share chunks
SHARED_BYTES = 8 << 10  # expected size of a shared chunk
SHARED_LIMIT = 64 << 10
_TINY_BYTES = 64  # counters and scalars
_REPORT_BYTES = 8 << 20

FILE_NODE = 100  # code of an entry in the tree of files: [100, executable]


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file that was read before it is committed: its bytes, and whether it may be executed."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class _Piece:
    """One chunk to be stored: its bytes on demand, what they are, and the extents it makes (leaf, slot, offset)."""

    read: Callable[[], memoryview | bytes]
    spec: Spec | None
    uses: tuple[tuple[int, int, int, int], ...]  # leaf, slot, offset in the chunk, length


@dataclass(slots=True)
class _Shared:
    """A chunk that small leaves are being put into."""

    spec: Spec | None
    parts: list[bytes] = field(default_factory=list)
    uses: list[tuple[int, int, int, int]] = field(default_factory=list)
    nbytes: int = 0

    def add(self, leaf: int, data: memoryview) -> None:
        """Put the bytes of a small leaf in; they are copied, for they are valid until the next read only."""
        self.uses.append((leaf, 0, self.nbytes, len(data)))
        self.parts.append(bytes(data))
        self.nbytes += len(data)

    def piece(self) -> _Piece:
        """Return the chunk."""
        data = b"".join(self.parts)
        return _Piece(lambda: data, self.spec, tuple(self.uses))


class Tally:
    """Counts bytes while several threads store chunks, and tells the observer now and then."""

    def __init__(self, verb: str, total: int, observer: Observer) -> None:
        self._verb, self._total, self._observer = verb, total, observer
        self._lock = threading.Lock()
        self._told = 0
        self.done = self.new = self.stored = self.delta = 0

    def add(self, nbytes: int, stored: int, delta: bool = False) -> None:
        with self._lock:
            self.done += nbytes
            self.stored += stored
            self.delta += nbytes * delta
            if stored:
                self.new += nbytes
            if self.done - self._told < _REPORT_BYTES and self.done < self._total:
                return
            self._told = self.done
            self._observer(Progress(self._verb, self.done, self._total, self.new, self.done - self.new))


def write(
    batch: LocalBatch,
    leaves: Sequence[Leaf],
    *,
    threads: int,
    max_memory_bytes: int,
    observer: Observer,
    lines: Lines | None = None,
) -> tuple[Manifest, Stats]:
    """Store the chunks of `leaves` and return the manifest that names them, and how many bytes that took.

    Args:
        leaves: in walk order, no path twice.
        lines: what chunks may be differences to; None where they are stored whole.
        threads: workers at most.
        max_memory_bytes: budget of the pipeline, whatever the size of the state.
    """
    total = sum(leaf.source.nbytes for leaf in leaves if leaf.source is not None)
    slots: list[list[Extent | None]] = [[] for _ in leaves]
    tally = Tally("commit", total, observer)

    turns = [0] * len(leaves)
    if lines is not None:
        turns = lines.begin(leaves, _Now(batch, leaves, slots).find, SMALL_BYTES + 1)

    def store(piece: _Piece) -> None:
        data = memoryview(piece.read())
        stored = _store(batch, lines, leaves, piece, data)
        for leaf, slot, offset, length in piece.uses:
            slots[leaf][slot] = Extent(stored.id, offset, length)
        tally.add(len(data), stored.stored, stored.delta)

    for turn in range(max(turns, default=0) + 1):
        run(
            _pieces(leaves, slots, turns, turn),
            store,
            threads=worker_count(threads, max_memory_bytes, total),
            tend=batch.sync_some,
        )
    entries = [Entry(leaf.path, leaf.node, leaf.spec, _whole(found)) for leaf, found in zip(leaves, slots, strict=True)]
    return Manifest(entries), Stats(total, tally.new, tally.stored, tally.delta)


def _store(batch: LocalBatch, lines: Lines | None, leaves: Sequence[Leaf], piece: _Piece, data: memoryview) -> Stored:
    """Store a piece, whole or as a difference to what was in its place before."""
    if lines is None or piece.spec is None:
        return batch.append(Kind.CHUNK, data, piece.spec)
    number, slot, _, _ = piece.uses[0]
    path = leaves[number].path
    before = lines.before(path, leaves[number].spec, slot, len(data))
    if before is not None and lines.unchanged(before, data) and batch.rely(before):
        return Stored(before, 0)
    own = slot if piece.spec == leaves[number].spec and len(data) > SMALL_BYTES // 2 else -1
    choose = lines.chooser(path, piece.spec, before, own, len(data)) if before is not None else None
    stored = batch.append(Kind.CHUNK, data, piece.spec, choose)
    lines.stored(stored.id, data)
    return stored


def _whole(slots: Sequence[Extent | None]) -> tuple[Extent, ...]:
    found = tuple(extent for extent in slots if extent is not None)
    if len(found) != len(slots):
        raise AssertionError("every chunk was stored, or an error raised")
    return found


def write_trees(batch: LocalBatch, state: Manifest, files: Manifest) -> tuple[ObjectId, int]:
    """Store the pages of a snapshot and return the id of its root, and the bytes that took."""
    taken = 0

    def store(page: bytes) -> ObjectId:
        nonlocal taken
        appended = batch.append(Kind.TREE, page)
        taken += appended.stored
        return appended.id

    root = Root(write_tree(state.entries, store), write_tree(files.entries, store))
    return store(root.to_bytes()), taken


def write_commit(
    batch: LocalBatch, root: ObjectId, parents: Sequence[ObjectId], note: Note, time_us: int, stats: Stats
) -> ObjectId:
    """Store a commit object and return its id."""
    return batch.append(Kind.COMMIT, encode_commit(root, parents, note, time_us, stats)).id


def file_leaves(files: Mapping[str, FilePath | FileContent]) -> list[Leaf]:
    """Return the leaves of files that are committed beside a state.

    Args:
        files: name in the snapshot ("tokenizer.json", "conf/a.yaml") -> where it is now, or what was in it.

    Raises:
        InvalidInput: a name is absolute or leaves its folder, or a file cannot be read.
    """
    leaves = []
    for name, file in files.items():
        parts = name.split("/")
        if not name or any(part in ("", ".", "..") for part in parts):
            raise InvalidInput(f"{name!r} is no name for a file in a snapshot: use relative names without `..`")
        if any(other.startswith(f"{name}/") for other in files):
            raise InvalidInput(f"{name!r} cannot be a file and a folder in one snapshot")
        executable, source = _file_source(file)
        leaves.append(Leaf(tuple(parts), [FILE_NODE, executable], None, source))
    return leaves


def _file_source(file: FilePath | FileContent) -> tuple[bool, Source]:
    """Return whether a file may be executed, and its bytes."""
    if isinstance(file, FileContent):
        return file.executable, BytesSource(file.data)
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidInput(f"{file} is not a file that can be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"{file} is not a file")
    return bool(found.st_mode & 0o100), _FileSource(file, found.st_size)


@dataclass(frozen=True, slots=True)
class _FileSource:
    path: FilePath
    nbytes: int

    def read(self, start: int, stop: int) -> memoryview:
        with fs.open_file(self.path) as file:
            data = file.pread(start, stop - start)
        if len(data) != stop - start:
            raise InvalidInput(f"{self.path} became shorter while it was committed")
        return memoryview(data)


class _Now:
    """Finds chunks that this commit has stored, for those that follow from them."""

    def __init__(self, batch: LocalBatch, leaves: Sequence[Leaf], slots: list[list[Extent | None]]) -> None:
        self._batch, self._leaves, self._slots = batch, leaves, slots
        self._numbers = {leaf.path: number for number, leaf in enumerate(leaves)}

    def find(self, path: Path, slot: int) -> Base | None:
        number = self._numbers.get(path)
        if number is None:
            return None
        source, extents = self._leaves[number].source, self._slots[number]
        if source is None or source.nbytes <= SMALL_BYTES or slot >= len(extents):
            return None
        extent = extents[slot]
        if extent is None:
            return None
        start = slot * chunk_length(self._leaves[number].spec)
        depth = self._batch.depth(extent.chunk)
        if depth is None:
            return None
        return Base(extent.chunk, depth, lambda: memoryview(bytes(source.read(start, start + extent.length))))


def _pieces(
    leaves: Sequence[Leaf], slots: list[list[Extent | None]], turns: Sequence[int], turn: int
) -> Iterator[_Piece]:
    """Yield what is stored in one turn; small leaves, of which many share a chunk, all come in the first."""
    open_ones: dict[str, _Shared] = {}
    for number, leaf in enumerate(leaves):
        if leaf.source is None or leaf.source.nbytes == 0:
            continue
        if leaf.source.nbytes > SMALL_BYTES:
            if turns[number] == turn:
                yield from _own_chunks(number, leaf, slots)
            continue
        if turn:
            continue
        slots[number] = [None]
        stream = _stream(leaf)
        shared = open_ones.setdefault(stream, _Shared(_stream_spec(leaf, stream)))
        shared.add(number, leaf.source.read(0, leaf.source.nbytes))
        if shared.nbytes >= SHARED_LIMIT or _ends_shared(leaf.path, leaf.source.nbytes):
            yield open_ones.pop(stream).piece()
    for shared in open_ones.values():
        yield shared.piece()


def _own_chunks(number: int, leaf: Leaf, slots: list[list[Extent | None]]) -> Iterator[_Piece]:
    source = leaf.source
    assert source is not None
    cuts = list(ranges(source.nbytes, chunk_length(leaf.spec)))
    slots[number] = [None] * len(cuts)
    for slot, (start, stop) in enumerate(cuts):
        read = _Read(source.read, start, stop)
        yield _Piece(read, leaf.spec, ((number, slot, 0, stop - start),))


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that waits for the worker."""

    of: Callable[[int, int], memoryview]
    start: int
    stop: int

    def __call__(self) -> memoryview:
        return self.of(self.start, self.stop)


def _stream(leaf: Leaf) -> str:
    if leaf.spec is None:
        return "values"
    assert leaf.source is not None
    return "tiny" if leaf.source.nbytes <= _TINY_BYTES else leaf.spec.dtype


def _stream_spec(leaf: Leaf, stream: str) -> Spec | None:
    return None if leaf.spec is None or stream == "tiny" else Spec(leaf.spec.dtype, ())


def _ends_shared(path: Path, nbytes: int) -> bool:
    plain = all(type(key) is str or type(key) is int for key in path)  # not True, which equals 1 and is another key
    return (_name_hash if plain else _hash_name)(path) % SHARED_BYTES < max(nbytes, _TINY_BYTES)


def _hash_name(path: Path) -> int:
    return crc32c(b"shared", encode([encode_key(key) for key in path]))


_name_hash = lru_cache(maxsize=1 << 16)(_hash_name)
