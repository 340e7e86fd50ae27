"""Leaves: what the walk over a live state yields, and the seam to the libraries whose arrays it holds.

Leaf         one array, plain value or container of a state: its path, what it is, where its bytes are
Source       bytes of a live leaf, readable by range
Destination  writable bytes that a stored leaf goes into
ArrayAdapter what a library's arrays need to be stored and come back
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from chainstore.model.paths import Path
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry
from chainstore.model.wire import Node


class Source(Protocol):
    """The bytes of a live leaf.

    Reads of different ranges may run at the same time.  What is returned stays valid until the same thread reads
    again, or longer; it shows live memory where the array is dense on the host, so bytes change if training goes on.
    """

    @property
    def nbytes(self) -> int: ...

    def read(self, start: int, stop: int) -> memoryview:
        """Return bytes [start, stop) as C-contiguous unsigned bytes; whole items where the leaf is an array."""
        ...


@dataclass(frozen=True, slots=True)
class BytesSource:
    """Bytes that are at hand."""

    data: bytes

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self.data)[start:stop]


class HostBytes(NamedTuple):
    """Bytes that lie in order in host memory, from an address on.

    Attributes:
        owner: keeps the memory alive.
    """

    address: int
    nbytes: int
    owner: object

    def read(self, start: int, stop: int) -> memoryview:
        if stop <= start:
            return memoryview(b"")
        array = (ctypes.c_ubyte * (stop - start)).from_address(self.address + start)
        array.owner = self.owner  # type: ignore[attr-defined]  # a view keeps the array, and that whatever it has
        return memoryview(array).cast("B")


class Leaf(NamedTuple):  # (a frozen dataclass takes three times as long to make, and a walk makes thousands)
    """One array, plain value or container of a state.

    Attributes:
        path: its keys from the root.
        node: what it is and how to rebuild it (`nodes`); holds no values, and may be shared with other leaves.
        spec: dtype and shape of the bytes of an array; None for everything else.
        source: the bytes to store; None for containers and aliases.
    """

    path: Path
    node: Node
    spec: Spec | None
    source: Source | None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the bytes of a stored leaf go.

    Attributes:
        entry: the stored leaf.
        buffer: writable unsigned bytes, as many as the entry has; ranges may be filled in any order and in parallel.
        live: whether `buffer` is memory of a live state, so that a failure half-way leaves it half changed.
    """

    entry: Entry
    buffer: memoryview
    live: bool


class Region(NamedTuple):
    """The memory that an array shows.

    Attributes:
        address: of the first byte of the item at index 0.
        itemsize: bytes of one item.
        shape, strides: sizes and byte steps of the dimensions; strides may be 0 or negative.
        device: regions on different devices never overlap.
    """

    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str = ""

    def bounds(self) -> tuple[int, int]:
        """Return the first address shown and the one after the last; both `address` where nothing is."""
        before, after = _reach(self.itemsize, self.shape, self.strides)
        return self.address + before, self.address + after


@lru_cache(maxsize=1 << 14)
def _reach(itemsize: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the offsets of the first byte shown and of the one after the last, from that of the item at index 0."""
    if 0 in shape:
        return 0, 0
    reaches = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches) + itemsize


class Dense(NamedTuple):
    """An array that is one run of bytes once its items are put in order.

    Attributes:
        node, spec, source: as in `Leaf`.
        shown: flags of the object that shows the memory, as they stand in nodes.
        dtype: dtype as it stands in a view's node.
        region: its memory, for finding out what it shares; None where it shares with nobody.
    """

    node: Node
    spec: Spec
    source: Source
    shown: int
    dtype: Node
    region: Region | None


@dataclass(frozen=True, slots=True)
class Composite:
    """An object that is stored as its parts.

    Attributes:
        node: as in `Leaf`.
        parts: name -> value, each stored like any other value of a state.
    """

    node: Node
    parts: Mapping[str, object]


class _Missing:
    """The absence of a value, where None is one."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class ArrayAdapter(Protocol):
    """What chainstore must know of a library's arrays.

    Adapters never change what they look at: no autograd, no version counters, no flags of a storage.  Nodes come
    from disk: an adapter checks them and raises `Malformed`, whatever they hold.
    """

    def describe(self, value: object) -> Dense | Composite:
        """Return how `value`, of a type that this adapter owns, is stored; `value_codes.Refused` where it cannot be."""
        ...

    def outline(self, value: object) -> tuple[object, int] | None:
        """Return what `describe` depends on, but for where the bytes are, and the address where they are.

        Equal outlines are described alike.  None where that is not so, or the bytes are not on the host.
        """
        ...

    def gather(self, arrays: Sequence[Dense], start: int, nbytes: int) -> Source:
        """Return the bytes from address `start` on that `arrays` show, with zeros where they show nothing."""
        ...

    def allocate(self, node: Node, spec: Spec, live: object) -> tuple[object, memoryview, bool]:
        """Return memory for a stored array, its writable bytes, and whether it is that of `live`.

        Args:
            live: an array whose memory is to be used if dtype, shape and order fit exactly; MISSING for none.
        """
        ...

    def finish(self, node: Node, memory: object, device: str | None) -> object:
        """Return the array that `node` describes, given the filled memory that `allocate` returned for it."""
        ...

    def view(self, node: Node, base: object) -> object:
        """Return another array on the memory of `base`: a view node's of a storage, or an alias of an array."""
        ...

    def compose(self, node: Node, parts: Mapping[str, object], device: str | None) -> object:
        """Return the object of a `Composite`."""
        ...

    def overwrite(self, live: object, array: object) -> bool:
        """Copy `array` into `live` if dtype and shape allow it without loss; return whether they did."""
        ...
