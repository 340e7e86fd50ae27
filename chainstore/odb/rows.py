"""Rows: what the index holds.

`odb.view` looks rows up, `odb.editor` makes them; both stand on the layouts here.

    objects  id -> Place                  bases    id -> ids, 32 bytes each     inline  id -> small records, whole
    packs    number -> name, length, ...  refs     key -> sealed RefRow         reflog  key | seq -> sealed ReflogLine
    log      seq -> the line itself       marks    commit -> sealed MarkLine    config  key -> sealed key and value
    meta     "state" -> Position, "refs" -> sum over the ref table, "identity" -> what belongs together,
             "pack" name -> number
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from chainstore.errors import Malformed
from chainstore.ids import ID_BYTES, Kind, ObjectId, fingerprint
from chainstore.model.change import Target, read_target
from chainstore.model.frame import Header
from chainstore.model.wire import Node

INLINE_BYTES = 512  # an index page holds several; twice as many bytes of a commit would be written else
INLINE_COMMIT_BYTES = 4080  # one in each commit, and read one after the other by `log`; above it takes two pages

PLACE_ROW = struct.Struct("<IQQQIHBBB")
PACK_ROW = struct.Struct("<16sQQB")
STATE_ROW = struct.Struct("<Q32sIQQ")
NUMBER = struct.Struct(">I")
SEQ = struct.Struct(">Q")
SUM_BYTES = 32


class Rows(Protocol):
    """A reader of the index, or something that looks like one."""

    def get(self, table: str, key: bytes) -> bytes | None: ...
    def scan(
        self, table: str, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]: ...
    def count(self, table: str) -> int: ...


class WritableRows(Rows, Protocol):
    """A writer of the index, or something that looks like one."""

    def put(self, table: str, key: bytes, value: bytes) -> None: ...
    def delete(self, table: str, key: bytes) -> bool: ...


class Place(NamedTuple):
    """Where an object's record is: pack number, offset, bytes of the record; and what its header says."""

    pack: int
    offset: int
    length: int
    plain_len: int
    generation: int
    flags: int
    kind: int
    depth: int
    n_bases: int


class Placed(NamedTuple):
    """A record that joins the store: its header, offset in its pack, and its bytes where it is small."""

    offset: int
    header: Header
    inline: bytes | None


def is_inline(kind: int, record_bytes: int) -> bool:
    """Return whether a record is so small, for its kind, that the index holds it whole."""
    return record_bytes <= (INLINE_COMMIT_BYTES if kind == Kind.COMMIT else INLINE_BYTES)


@dataclass(frozen=True, slots=True)
class RefRow:
    """A ref as the index holds it; `target` None marks a deleted one whose reflog is kept."""

    name: str
    target: Target
    moves: int
    seq: int


Ranges = tuple[tuple[int, int], ...]


def is_within(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return whether `offset` lies in one of `ranges`, which are as `merged` returns them."""
    place = bisect_right(ranges, offset, key=lambda each: each[0])
    return place > 0 and offset < ranges[place - 1][1]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges sorted, none of them empty, those that touch or overlap joined."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def unpack(layout: struct.Struct, row: bytes) -> tuple[Any, ...]:
    """Return the fields of a row of fixed layout.

    Raises:
        Malformed: it has another length.
    """
    if len(row) != layout.size:
        raise Malformed("row of the index", f"it has {len(row)} bytes, not {layout.size}")
    return layout.unpack(row)


def as_id(key: bytes) -> ObjectId:
    """Return the id that a key or value is."""
    if len(key) != ID_BYTES:
        raise Malformed("row of the index", "a cut-off id")
    return ObjectId(key)


def as_target(node: Node) -> Target:
    """Return where a ref is, from its node."""
    try:
        return read_target(node)
    except ValueError as error:
        raise Malformed("row of the index", str(error)) from error


def target_node(target: Target) -> Node:
    """Return the node that `as_target` reads."""
    return bytes(target) if isinstance(target, ObjectId) else target


def ref_term(key: bytes, value: bytes) -> int:
    """Return what one row of the table of refs adds to the sum over it."""
    return int.from_bytes(fingerprint("ref row", key, value), "little")


def as_sum(total: int) -> bytes:
    """Return a sum of terms as it is stored."""
    return (total % (1 << (8 * SUM_BYTES))).to_bytes(SUM_BYTES, "little")
