"""Parts: what has to be read of pairs of arrays, cut so that each part lies within one chunk of each side."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.paths import format_path
from chainstore.model.tree import Entry, Extent
from chainstore.ops.form import SMALL_BYTES
from chainstore.ops.pairing import Pair


class Part(NamedTuple):
    """The same elements of both sides of a pair, within one chunk each; None where a side has none."""

    pair: int
    slot: int
    a: Extent | None
    b: Extent | None


def parts_of(number: int, pair: Pair) -> list[Part]:
    """Return what has to be read of a pair, in the order of its elements."""
    if pair.reading == "nothing":
        return []
    if pair.aligned and pair.a is not None and pair.b is not None:
        cuts: Iterable[tuple[Extent | None, Extent | None]] = _cut(pair.a, pair.b)
    else:
        cuts = [*((extent, None) for extent in _whole(pair.a)), *((None, extent) for extent in _whole(pair.b))]
    kept = (cut for cut in cuts if pair.reading == "numbers" or cut[0] != cut[1])
    return [Part(number, slot, *cut) for slot, cut in enumerate(kept)]


def batches(parts: Sequence[Sequence[Part]], pairs: Sequence[Pair]) -> Iterator[list[Part]]:
    """Yield parts that are read one after the other: small arrays' by the chunk that they share, others alone."""
    shared: defaultdict[ObjectId, list[Part]] = defaultdict(list)
    for found in parts:
        for part in found:
            extent = part.b or part.a
            if extent is not None and _is_small(pairs[part.pair]):
                shared[extent.chunk].append(part)
    yield from shared.values()
    for found in parts:
        if found and not _is_small(pairs[found[0].pair]):
            yield from ([part] for part in found)


def _whole(entry: Entry | None) -> Sequence[Extent]:
    """Return the extents of an array that is read by itself."""
    if entry is None or entry.spec is None:
        return ()
    if any(extent.length % entry.spec.itemsize for extent in entry.extents):
        raise _cut_within(entry)
    return entry.extents


def _cut_within(entry: Entry) -> Malformed:
    return Malformed("snapshot", f"{format_path(entry.path)!r} has a chunk that ends within an element")


def _is_small(pair: Pair) -> bool:
    return all(entry is None or entry.nbytes <= SMALL_BYTES for entry in (pair.a, pair.b))


def _cut(a: Entry, b: Entry) -> Iterator[tuple[Extent, Extent]]:
    """Yield the extents of two entries cut so that each pair of pieces holds the same elements."""
    assert a.spec is not None and b.spec is not None
    sizes = (a.spec.itemsize, b.spec.itemsize)
    lists = [[extent for extent in entry.extents if extent.length] for entry in (a, b)]
    at, used = [0, 0], [0, 0]
    while at[0] < len(lists[0]) and at[1] < len(lists[1]):
        current = [lists[side][at[side]] for side in (0, 1)]
        count = min((current[side].length - used[side]) // sizes[side] for side in (0, 1))
        if not count:
            raise _cut_within(a)
        yield _piece(current[0], used[0], count * sizes[0]), _piece(current[1], used[1], count * sizes[1])
        for side in (0, 1):
            used[side] += count * sizes[side]
            if used[side] == current[side].length:
                at[side], used[side] = at[side] + 1, 0


def _piece(extent: Extent, start: int, nbytes: int) -> Extent:
    return Extent(extent.chunk, extent.offset + start, nbytes)
