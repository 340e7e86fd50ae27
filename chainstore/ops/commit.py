"""Commit: live leaves become chunks, chunks become trees, trees become a commit.

`write` publishes nothing, so it may be repeated after a failure or walked away from: what it stored is then
unreachable and gc takes it.

How leaves are cut into chunks, and what of the commit before holds still, is `form`'s to say.
"""

import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from chainstore.errors import InvalidInput
from chainstore.ids import Kind, ObjectId
from chainstore.model.commit import Note, Stats, encode_commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.tree import Extent, Pages, Root, write_tree
from chainstore.observe import Observer, Progress
from chainstore.odb.batch import LocalBatch, Stored
from chainstore.odb.offer import Base
from chainstore.ops.deltas import Lines
from chainstore.ops.form import SMALL_BYTES, Form, Use
from chainstore.ops.pipeline import run, worker_count
from chainstore.state.chunking import chunk_length, ranges
from chainstore.state.leaf import BytesSource, Leaf, Source
from chainstore.state.walked import Walked, copy_contents
from chainstore.storage import fs

_JOB_BYTES = 1 << 20  # of shared chunks that one worker takes at a time
_REPORT_BYTES = 8 << 20

FILE_NODE = 100  # code of an entry in the tree of files: [100, executable]


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file that was read before it is committed: its bytes, and whether it may be executed."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class _Piece:
    """One chunk to be stored: its bytes on demand, what they are, and where they stand (leaf, slot, offset, length)."""

    read: Callable[[], memoryview | bytes]
    spec: Spec | None
    uses: tuple[Use, ...]


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
    form: Form | None = None,
) -> tuple[Manifest, Stats]:
    """Store the chunks of `leaves` and return the manifest that names them, and how many bytes that took.

    Args:
        leaves: in walk order, no path twice.
        lines: what chunks may be differences to; None where they are stored whole.
        threads: workers at most.
        max_memory_bytes: budget of the pipeline, whatever the size of the state.
        form: that of `leaves`, with what the last commit of such leaves left in it; it is kept up to date.
    """
    form = form if form is not None else Form(Walked(leaves))
    total = form.nbytes
    slots: dict[int, list[Extent | None]] = {}
    entries = form.entries.copy()
    tally = Tally("commit", total, observer)

    turns: Sequence[int] = ()
    if lines is not None and form.has_large_arrays:
        made = list(leaves)  # once: they are gone through again and again
        turns = lines.begin(made, _Now(batch, made, slots).find, SMALL_BYTES + 1)

    def store(pieces: Sequence[_Piece]) -> None:
        for piece in pieces:
            data = memoryview(piece.read())
            stored = _store(batch, lines, form.walked, piece, data)
            number, slot, offset, length = piece.uses[0]
            if number in slots:
                slots[number][slot] = Extent(stored.id, offset, length)
            elif not entries[number].extents or entries[number].extents[0].chunk != stored.id:
                for number, _, offset, length in piece.uses:
                    entries[number] = form.entry(number, (Extent(stored.id, offset, length),))
            tally.add(len(data), stored.stored, stored.delta)

    for turn in range(max(turns, default=0) + 1):
        run(
            _jobs(leaves, form, slots, turns, turn),
            store,
            threads=worker_count(threads, max_memory_bytes, total),
            tend=batch.sync_some,
        )
    for number, found in slots.items():
        extents = _whole(found)
        if extents != entries[number].extents:
            entries[number] = form.entry(number, extents)
    return form.settle(entries), Stats(total, tally.new, tally.stored, tally.delta)


def _store(batch: LocalBatch, lines: Lines | None, walked: Walked, piece: _Piece, data: memoryview) -> Stored:
    """Store a piece, whole or as a difference to what was in its place before."""
    if lines is None or piece.spec is None:
        return batch.append(Kind.CHUNK, data, piece.spec)
    number, slot, _, _ = piece.uses[0]
    path, spec = walked.paths[number], walked.specs[number]
    before = lines.in_place(path, spec, slot)
    if before is not None and lines.unchanged(before, data) and batch.rely(before):
        return Stored(before, 0)
    if before is not None and not lines.is_base(before, len(data)):
        before = None
    own = slot if piece.spec == spec and len(data) > SMALL_BYTES // 2 else -1
    choose = lines.chooser(path, piece.spec, before, own, len(data)) if before is not None else None
    stored = batch.append(Kind.CHUNK, data, piece.spec, choose)
    lines.stored(stored.id, data)
    return stored


def _whole(slots: Sequence[Extent | None]) -> tuple[Extent, ...]:
    found = tuple(extent for extent in slots if extent is not None)
    if len(found) != len(slots):
        raise AssertionError("every chunk was stored, or an error raised")
    return found


def write_trees(batch: LocalBatch, state: Manifest, files: Manifest, form: Form | None = None) -> tuple[ObjectId, int]:
    """Store the pages of a snapshot and return the id of its root, and the bytes that took.

    Args:
        form: what `write` made `state` with: pages that are as they were are not made again.
    """
    taken = 0

    def store(page: bytes) -> ObjectId:
        nonlocal taken
        appended = batch.append(Kind.TREE, page)
        taken += appended.stored
        return appended.id

    pages = form.pages if form is not None else Pages()
    root = Root(pages.write(state.entries, store, batch.rely), write_tree(files.entries, store))
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

    def __init__(self, batch: LocalBatch, leaves: Sequence[Leaf], slots: Mapping[int, list[Extent | None]]) -> None:
        self._batch, self._leaves, self._slots = batch, leaves, slots
        self._numbers: dict[Path, int] = {}

    def find(self, path: Path, slot: int) -> Base | None:
        if not self._numbers:
            self._numbers = {leaf.path: number for number, leaf in enumerate(self._leaves)}
        number = self._numbers.get(path)
        if number is None:
            return None
        source, extents = self._leaves[number].source, self._slots.get(number)
        if source is None or extents is None or slot >= len(extents):
            return None
        extent = extents[slot]
        if extent is None:
            return None
        start = slot * chunk_length(self._leaves[number].spec)
        depth = self._batch.depth(extent.chunk)
        if depth is None:
            return None
        return Base(extent.chunk, depth, lambda: memoryview(bytes(source.read(start, start + extent.length))))


def _jobs(
    leaves: Sequence[Leaf], form: Form, slots: dict[int, list[Extent | None]], turns: Sequence[int], turn: int
) -> Iterator[Sequence[_Piece]]:
    """Yield what is stored in one turn; small leaves, of which many share a chunk, all come in the first.

    Shared chunks are small: many are one job, or threads would do little but wait for each other.
    """
    job: list[_Piece] = []
    nbytes = 0
    for part in form.parts:
        if isinstance(part, int):
            if turn == (turns[part] if turns else 0):
                for piece in _own_chunks(part, leaves[part], slots):
                    yield (piece,)
        elif not turn:
            job.append(_Piece(_ReadShared(leaves, part.uses), part.spec, part.uses))
            nbytes += part.nbytes
            if nbytes >= _JOB_BYTES:
                yield job
                job, nbytes = [], 0
    if job:
        yield job


def _own_chunks(number: int, leaf: Leaf, slots: dict[int, list[Extent | None]]) -> Iterator[_Piece]:
    source = leaf.source
    assert source is not None
    cuts = list(ranges(source.nbytes, chunk_length(leaf.spec)))
    slots[number] = [None] * len(cuts)
    for slot, (start, stop) in enumerate(cuts):
        read = _Read(source.read, start, stop)
        yield _Piece(read, leaf.spec, ((number, slot, 0, stop - start),))


@dataclass(frozen=True, slots=True)
class _ReadShared:
    """A read of small leaves, one behind the other; each is copied, for it is valid until the next read only."""

    leaves: Sequence[Leaf]
    uses: tuple[Use, ...]

    def __call__(self) -> bytes:
        return b"".join(copy_contents(self.leaves, [number for number, _, _, _ in self.uses]))


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that waits for the worker."""

    of: Callable[[int, int], memoryview]
    start: int
    stop: int

    def __call__(self) -> memoryview:
        return self.of(self.start, self.stop)
