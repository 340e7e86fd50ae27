"""Bulk: the rows of very many records, as `Editor.put_record` would make them one by one.

Making a row in Python takes longer than LMDB takes to put it, so nearly all are made and put in one go, sorted by id;
those of which the index knows another record already, a handful, go the slow way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

from chainstore.ids import ID_BYTES
from chainstore.model.frame import Listed
from chainstore.odb.rows import PLACE_ROW
from chainstore.storage.index import Writer

_AT_ONCE = 100_000
_ID, _ROW_OF = itemgetter(0), itemgetter(0, 1)
_DEPTH_AT = PLACE_ROW.size - 2  # of a row: its last but one byte


Item = tuple[bytes, bytes, bytes, bytes | None, bytes, int]
"""Rows of one record: its id, its row of `objects`, its bases, its bytes where it is small; and pack and offset, which
it came from.  Plain, since there may be millions."""


Levels = defaultdict[int, list[Item]]  # by depth


def add_items(pack: bytes, number: int, records: Iterable[Listed], small: Mapping[int, bytes], into: Levels) -> None:
    """Add the rows of records in the pack `pack`, whose number in the index is `number`.

    Args:
        small: offset -> bytes of records that are kept whole.
    """
    make, whole = PLACE_ROW.pack, small.get
    for offset, nbytes, kind, flags, generation, plain, id, depth, bases in records:
        row = make(number, offset, nbytes, plain, generation, flags, kind, depth, len(bases) // ID_BYTES)
        into[depth].append((id, row, bases, whole(offset), pack, offset))


def put_items(rows: Writer, levels: Levels, depths: dict[bytes, int], one_by_one: Callable[[Item], None]) -> None:
    """Put the rows of records, but for those whose bases are not known with less depth.

    Args:
        levels: by depth, each in the order in which they were stored; is emptied but for those.
        depths: id -> depth of what was put before in this way; what is put now is added.
        one_by_one: puts a record of which there is another.
    """
    items: list[Item] = []
    for depth in sorted(levels):
        some = levels.pop(depth)
        if depth:
            some, rest = _founded(rows, some, depth, depths)
            if rest:
                levels[depth] = rest
        for each in some:
            depths.setdefault(each[0], depth)
        items += some
    items.sort(key=_ID)  # stable: of one object the record of least depth comes first
    again: list[Item] = []
    if len(set(map(_ID, items))) < len(items):
        items, again = _first_of_each(items)
    for start in range(0, len(items), _AT_ONCE):
        again += _put(rows, items[start : start + _AT_ONCE])
    for each in again:
        one_by_one(each)


def _put(rows: Writer, items: list[Item]) -> list[Item]:
    """Put rows of as many objects, and return the items whose object has a row already."""
    again: list[Item] = []
    if rows.put_new("objects", list(map(_ROW_OF, items))) < len(items):
        there = rows.get_many("objects", list(map(_ID, items)))
        again = [each for each in items if there[each[0]] != each[1]]
        items = [each for each in items if there[each[0]] == each[1]]
    rows.put_new("bases", [(each[0], each[2]) for each in items if each[2]])
    rows.put_new("inline", [(each[0], each[3]) for each in items if each[3] is not None])
    return again


def _founded(rows: Writer, items: list[Item], depth: int, depths: dict[bytes, int]) -> tuple[list[Item], list[Item]]:
    """Return those items whose bases all have less depth, and the others."""
    founded: list[Item] = []
    unsure: list[Item] = []
    for each in items:
        bases = each[2]
        known = len(bases) == ID_BYTES and depths.get(bases, depth) < depth
        (founded if known else unsure).append(each)
    if not unsure:
        return founded, []
    there = rows.get_many("objects", sorted({base for each in unsure for base in _ids(each[2])}))
    low = {base for base, row in there.items() if row[_DEPTH_AT] < depth}
    rest: list[Item] = []
    for each in unsure:
        known = all(base in low or depths.get(base, depth) < depth for base in _ids(each[2]))
        (founded if known else rest).append(each)
    return founded, rest


def _first_of_each(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """Return the first item of each object, and the others."""
    first: list[Item] = []
    others: list[Item] = []
    for each in items:
        (others if first and first[-1][0] == each[0] else first).append(each)
    return first, others


def _ids(bases: bytes) -> list[bytes]:
    return [bases[at : at + ID_BYTES] for at in range(0, len(bases), ID_BYTES)]
