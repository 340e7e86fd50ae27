"""Comparison: everything that differs between two snapshots; what `diff` calls.

Names and ids tell most of it without a read.  What they leave open is read: the arrays that changed (by the pipeline's
threads, see `diff`), the plain values that did, and small files that share a chunk.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import sqrt
from typing import Any, Final

from chainstore.errors import ChainError, IdMismatch
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.model.paths import Path, format_path
from chainstore.model.tree import Entry, Extent
from chainstore.model.wire import decode
from chainstore.observe import Observer
from chainstore.odb.local import LocalDatabase
from chainstore.ops.differences import Diff, FileDiff, TensorDiff, Unreadable, ValueDiff
from chainstore.ops.form import SMALL_BYTES
from chainstore.ops.pairing import Both, Pair, is_same_bytes, pair_arrays, together
from chainstore.ops.sums import Sums
from chainstore.ops.value_changes import mapping_changes, value_changes
from chainstore.state import nodes
from chainstore.state.values import decode_value

_MEASURING: Final = "chainstore.ops.diff"  # needs numpy, so it is loaded when the first array has to be read
_LONGEST_VALUE: Final = 4 << 20  # bytes of a plain value that are still looked into
_HELD_CHUNKS: Final = 64  # of those that small values share, 8 KiB each; neighbours lie in the same ones


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two snapshots: its commit, its state, and the files beside it."""

    commit: Commit
    state: Manifest
    files: Manifest


@dataclass(frozen=True, slots=True)
class Depth:
    """How closely to look.

    Attributes:
        wanted: says which paths of the state are compared; None for all.
        norms: whether to measure; without, no array of more than 16 KiB is read.
        unchanged: whether to measure arrays that are equal, too.
    """

    wanted: Callable[[Path], bool] | None = None
    norms: bool = True
    unchanged: bool = False


def compare_snapshots(
    db: LocalDatabase, a: Side, b: Side, depth: Depth, *, threads: int, max_memory_bytes: int, observer: Observer
) -> Diff:
    """Return what differs between two snapshots.

    Raises:
        IdMismatch: something that had to be read is damaged; says where.
    """
    rows = together(a.state, b.state)
    looking = {"norms": depth.norms, "unchanged": depth.unchanged}
    pairs = pair_arrays(rows, a.state, b.state, depth.wanted, **looking, length=db.length)
    found: list[Sums | None] = [None] * len(pairs)
    read_bytes = 0
    small = _SmallReader(db)
    try:
        if any(pair.reading != "nothing" for pair in pairs):
            measure = import_module(_MEASURING).measure
            found, read_bytes = measure(
                db, pairs, threads=threads, max_memory_bytes=max_memory_bytes, observer=observer
            )
        values = tuple(_values(rows, depth.wanted, small))
        files = tuple(_files(together(a.files, b.files, wrappers=False), small)) if depth.wanted is None else ()
    except IdMismatch as error:
        commit = str(b.commit.id) if _holds(b, error.id) else str(a.commit.id)
        raise IdMismatch(error.id, error.why, path=error.path or "", commit=commit) from error
    tensors = tuple(_tensor(pair, sums) for pair, sums in zip(pairs, found, strict=True))
    metrics = tuple(mapping_changes((), dict(a.commit.metrics), dict(b.commit.metrics)))
    meta = tuple(mapping_changes((), dict(a.commit.meta), dict(b.commit.meta)))
    return Diff(a.commit, b.commit, tensors, values, metrics, meta, files, depth.norms, read_bytes + small.read_bytes)


def _tensor(pair: Pair, sums: Sums | None) -> TensorDiff:
    """Return what became of an array, from what was known and what a read has found."""
    entry = pair.b or pair.a
    changed = _changed_bytes(pair) if sums is None else sums.changed_bytes
    status = "equal" if pair.status == "changed" and sums is not None and not changed else pair.status
    facts: dict[str, Any] = {}
    if sums is not None and pair.reading == "numbers":
        if pair.a is not None:
            facts |= {"norm_a": sqrt(sums.aa), "max_abs_a": sums.max_a, "nan_a": sums.nan_a, "inf_a": sums.inf_a}
        if pair.b is not None:
            facts |= {"norm_b": sqrt(sums.bb), "max_abs_b": sums.max_b, "nan_b": sums.nan_b, "inf_b": sums.inf_b}
        if pair.aligned:
            facts |= {"norm_diff": sqrt(sums.dd), "relative": sums.relative}
            facts |= {"max_abs_diff": sums.max_d, "cosine": sums.cosine}
    return TensorDiff(
        format_path(pair.path),
        status,
        pair.old,
        pair.new,
        entry.nbytes if entry is not None else 0,
        changed,
        pair.aliases,
        note=pair.note,
        **facts,
    )


def _changed_bytes(pair: Pair) -> int:
    """Return how many bytes lie in chunks that the other side lacks, for a pair that was not read."""
    if pair.status == "equal":
        return 0
    here, there = (pair.b, pair.a) if pair.b is not None else (pair.a, pair.b)
    old = {extent.chunk for extent in there.extents} if there is not None else set()
    return sum(extent.length for extent in here.extents if extent.chunk not in old) if here is not None else 0


# ---- plain values and files ----------------------------------------------------------------------------------------


def _values(rows: Iterable[Both], wanted: Callable[[Path], bool] | None, small: "_SmallReader") -> Iterator[ValueDiff]:
    for path, _, old, new in rows:
        if wanted is not None and not wanted(path):
            continue
        if not (_is_value(old) or _is_value(new)):
            if old is not None and new is not None and "" != _kind(old) != _kind(new) != "":
                yield ValueDiff(format_path(path), "changed", Unreadable(_kind(old)), Unreadable(_kind(new)))
            continue
        before, after = (entry if _is_value(entry) else None for entry in (old, new))
        if before is None and after is not None:
            yield ValueDiff(format_path(path), "added", None, small.value(after))
        elif after is None and before is not None:
            yield ValueDiff(format_path(path), "removed", small.value(before), None)
        elif before is not None and after is not None and not small.same(before, after):
            yield from _value(path, small.value(before), small.value(after))


def _value(path: Path, old: object, new: object) -> Iterator[ValueDiff]:
    """Yield what differs in a value that is known to: where nothing is found, the order of a dict or the like."""
    found = list(value_changes(path, old, new))
    yield from found or [ValueDiff(format_path(path), "changed", old, new)]


def _files(rows: Iterable[Both], small: "_SmallReader") -> Iterator[FileDiff]:
    for path, _, old, new in rows:
        name = "/".join(map(str, path))
        if old is None and new is not None:
            yield FileDiff(name, "added", None, new.nbytes)
        elif new is None and old is not None:
            yield FileDiff(name, "removed", old.nbytes, None)
        elif old is not None and new is not None and (old.node != new.node or not small.same(old, new)):
            yield FileDiff(name, "changed", old.nbytes, new.nbytes)


def _is_value(entry: Entry | None) -> bool:
    return entry is not None and entry.node == [nodes.VALUE]


_KINDS: Final = {
    nodes.DICT: "dict",
    nodes.LIST: "list",
    nodes.TUPLE: "tuple",
    nodes.ORDERED_DICT: "OrderedDict",
    nodes.DEFAULT_DICT: "defaultdict",
    nodes.DEQUE: "deque",
}


def _kind(entry: Entry) -> str:
    """Return what a container is; "" for everything else."""
    code = entry.node[0] if isinstance(entry.node, list) and entry.node else None
    return _KINDS.get(code, "") if isinstance(code, int) else ""


def _holds(side: Side, id: str) -> bool:
    return any(extent.chunk.hex() == id for m in (side.state, side.files) for e in m.entries for extent in e.extents)


class _SmallReader:
    """Reads plain values and small files, keeping the last few chunks that they share."""

    def __init__(self, db: LocalDatabase) -> None:
        self._db = db
        self.read_bytes = 0
        self._chunk: Callable[[ObjectId], memoryview] = lru_cache(maxsize=_HELD_CHUNKS)(self._read)

    def same(self, a: Entry, b: Entry) -> bool:
        """Tell whether two entries hold the same bytes, without a read where ids tell."""
        known = is_same_bytes(a, b, self._db.length)
        return self._same(a, b) if known is None else known

    def value(self, entry: Entry) -> object:
        """Return a plain value, or why it cannot be shown."""
        if entry.nbytes > _LONGEST_VALUE:
            return Unreadable(f"{entry.nbytes:,} bytes")
        try:
            return decode_value(decode(b"".join(self._pieces(entry)), what="value"))
        except IdMismatch as error:
            raise IdMismatch(error.id, error.why, path=format_path(entry.path)) from error
        except ChainError as error:
            return Unreadable(f"a value that cannot be read here ({error})")

    def _same(self, a: Entry, b: Entry) -> bool:
        try:
            return b"".join(self._pieces(a)) == b"".join(self._pieces(b))
        except IdMismatch as error:
            raise IdMismatch(error.id, error.why, path=format_path(b.path)) from error

    def _pieces(self, entry: Entry) -> Sequence[memoryview]:
        return [self._piece(extent) for extent in entry.extents]

    def _piece(self, extent: Extent) -> memoryview:
        read = self._chunk if extent.length <= SMALL_BYTES else self._read  # whole chunks of their own are not kept
        piece = read(extent.chunk)[extent.offset : extent.offset + extent.length]
        if len(piece) != extent.length:
            raise IdMismatch(str(extent.chunk), "it is shorter than what refers to it")
        return piece

    def _read(self, id: ObjectId) -> memoryview:
        data = self._db.read(id)
        self.read_bytes += len(data)
        return data
