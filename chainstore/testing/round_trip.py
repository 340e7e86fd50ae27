"""A state through its bytes and back, without a store: what `flatten` and `Assembly` promise each other."""

from collections.abc import Iterable, Sequence
from typing import Any

from chainstore.ids import ObjectId
from chainstore.model.tree import Entry, Extent
from chainstore.state import Assembly, Leaf, chunk_length, flatten, ranges

_NOWHERE = ObjectId(bytes(32))


def stored_bytes(leaf: Leaf, target: int = 1 << 20) -> bytes:
    """Return the bytes of a leaf, read in chunks of about `target` bytes."""
    if leaf.source is None:
        return b""
    cuts = ranges(leaf.source.nbytes, chunk_length(leaf.spec, target))
    return b"".join(bytes(leaf.source.read(start, stop)) for start, stop in cuts)


def to_entries(leaves: Iterable[Leaf]) -> list[Entry]:
    """Return the entries that would be stored for `leaves`, with extents that lead nowhere."""
    return [
        Entry(
            leaf.path,
            leaf.node,
            leaf.spec,
            (Extent(_NOWHERE, 0, leaf.source.nbytes),) if leaf.source is not None and leaf.source.nbytes else (),
        )
        for leaf in leaves
    ]


def assemble(leaves: Sequence[Leaf], target: int = 1 << 20, **options: Any) -> object:
    """Return the state that `leaves` make, with their bytes read now; `options` are those of `Assembly`."""
    assembly = Assembly(to_entries(leaves), **options)
    by_path = {leaf.path: leaf for leaf in leaves}
    for destination in assembly.destinations:
        destination.buffer[:] = stored_bytes(by_path[destination.entry.path], target)
    return assembly.build()


def round_trip(state: object, target: int = 1 << 20, **options: Any) -> Any:
    """Return what comes back of `state`."""
    return assemble(flatten(state), target, **options)
