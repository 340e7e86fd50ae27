"""Garbage: what of each pack is kept and what is not, from one scan of the objects.

kept       records of objects that something leads to
doomed     records of objects that nothing leads to: their rows have to go before their bytes
dead       bytes that no row speaks of: records that were stored again elsewhere, and what earlier runs took
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from chainstore.display import some
from chainstore.errors import Damaged
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import PackLine
from chainstore.odb.rows import Ranges, merged
from chainstore.odb.view import View
from chainstore.ops.reach import Reach, Why

_HEAL = "`chain verify` names what is hit; repair it, or forget the commits that need it"


@dataclass(frozen=True, slots=True)
class Doomed:
    """A record whose object nothing leads to."""

    start: int
    stop: int
    id: bytes


@dataclass(slots=True)
class PackContent:
    """What one pack holds, as far as its committed length goes.

    Attributes:
        number, line: of the pack, as the index had them at the scan.
        kept_bytes, doomed_bytes: of records.
    """

    number: int
    line: PackLine
    kept_bytes: int = 0
    doomed_bytes: int = 0
    _kept: "array[int]" = field(default_factory=lambda: array("Q"))
    _kept_ids: list[bytes] = field(default_factory=list)
    _doomed: "array[int]" = field(default_factory=lambda: array("Q"))
    _doomed_ids: list[bytes] = field(default_factory=list)

    def keep(self, id: bytes, start: int, length: int) -> None:
        """Note a record that stays."""
        self._kept.extend((start, start + length))
        self._kept_ids.append(id)
        self.kept_bytes += length

    def doom(self, id: bytes, start: int, length: int) -> None:
        """Note a record that goes."""
        self._doomed.extend((start, start + length))
        self._doomed_ids.append(id)
        self.doomed_bytes += length

    @property
    def doomed(self) -> list[Doomed]:
        """The records that go, in their order."""
        spans = zip(self._doomed[::2], self._doomed[1::2], self._doomed_ids, strict=True)
        return sorted((Doomed(*span) for span in spans), key=lambda each: each.start)

    @property
    def kept(self) -> list[tuple[int, int, bytes]]:
        """Start, stop and id of the records that stay, in their order."""
        return sorted(zip(self._kept[::2], self._kept[1::2], self._kept_ids, strict=True))

    @property
    def records_end(self) -> int:
        """Where records end: the closing record, which lists the others, stays as long as any of them does."""
        return self.line.contents or self.line.length

    @property
    def empty(self) -> bool:
        """Whether nothing of it stays."""
        return not self.kept_bytes

    def useless(self) -> Ranges:
        """Return every range in which nothing is kept, doomed or dead, what is known to be dead included."""
        gaps, at = [], 0
        for start, stop, _ in self.kept:
            gaps.append((at, start))
            at = stop
        gaps.append((at, self.line.length if self.empty else self.records_end))
        return merged(gap for gap in gaps if gap[0] < gap[1])

    @property
    def dead_bytes(self) -> int:
        """Bytes that the log says are dead."""
        return sum(stop - start for start, stop in self.line.dead)

    def useless_bytes(self) -> int:
        """Return the bytes of `useless`."""
        return sum(stop - start for start, stop in self.useless())


@dataclass(slots=True)
class Inventory:
    """What all packs hold.

    Attributes:
        packs: by number; retired ones are not in it.
        commits: those that are doomed, their records included in the packs.
        differences: depth -> (pack, record) of the doomed that are differences to others.
        kept: why -> (objects, bytes of records).  doomed: the same for what goes.
    """

    packs: dict[int, PackContent]
    commits: list[ObjectId] = field(default_factory=list)
    differences: dict[int, list[tuple[int, Doomed]]] = field(default_factory=dict)
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    doomed: tuple[int, int] = (0, 0)


def take_inventory(view: View, reach: Reach, *, commits_only: bool = False) -> Inventory:
    """Return what each pack holds.

    Args:
        commits_only: everything but commits counts as kept.

    Raises:
        Damaged: what is kept is not all there: what the index does not show could be taken for garbage.

    Cost: one scan of the objects; 16 bytes of memory for each of them and 90 more for each record.
    """
    found = Inventory({number: PackContent(number, line) for number, line in view.packs() if not line.retired})
    sums: dict[str, list[int]] = {}
    seen = 0
    for id, place in view.objects():
        pack = found.packs.get(place.pack)
        if pack is None:
            raise Damaged(f"object {id.short} lies in a pack that the index does not know", hint=_HEAL)
        seen += id in reach
        is_commit = place.kind == Kind.COMMIT
        if id in reach or (commits_only and not is_commit):
            pack.keep(id, place.offset, place.length)
            why = reach.found.get(id)
            name = why.name.lower() if why is not None else "base" if id in reach.bases else "commit"
        else:
            pack.doom(id, place.offset, place.length)
            if is_commit:
                found.commits.append(id)
            if place.n_bases:
                doomed = Doomed(place.offset, place.offset + place.length, id)
                found.differences.setdefault(place.depth, []).append((place.pack, doomed))
            name = ""
        row = sums.setdefault(name, [0, 0])
        row[0] += 1
        row[1] += place.length
    if seen != len(reach):
        raise Damaged(f"{_missing(view, reach)}: commits lead there, and the index does not know it", hint=_HEAL)
    objects, nbytes = sums.pop("", (0, 0))
    found.doomed = objects, nbytes
    order = [*(why.name.lower() for why in Why), "base"]
    found.kept = {name: (sums[name][0], sums[name][1]) for name in order if name in sums}
    return found


def _missing(view: View, reach: Reach) -> str:
    """Return a few of the objects that should be there, for people to read."""
    ids = [bytes(id) for id in (*reach.found, *reach.bases) if view.place(id) is None]
    return some([f"object {id.hex()[:12]}" for id in dict.fromkeys(ids)], 3) or "an object"


def pieces(content: PackContent, limit: int) -> Iterator[tuple[Ranges, list[Doomed]]]:
    """Yield what is useless in a pack and not yet known to be dead, in parts with at most `limit` doomed records."""
    known = content.line.dead
    ranges: list[tuple[int, int]] = []
    doomed: list[Doomed] = []
    records = content.doomed
    place = 0
    for gap_start, gap_stop in without(content.useless(), known):
        at = gap_start
        while place < len(records) and records[place].start < gap_stop:
            if len(doomed) == limit:
                ranges.append((at, records[place].start))
                yield merged(ranges), doomed
                at, ranges, doomed = records[place].start, [], []
            doomed.append(records[place])
            place += 1
        ranges.append((at, gap_stop))
    if ranges or doomed:
        yield merged(ranges), doomed


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """Return what of `ranges` is not in `taken`; both sorted and apart."""
    left = []
    place = 0
    for start, stop in ranges:
        at = start
        while place < len(taken) and taken[place][1] <= at:
            place += 1
        look = place
        while look < len(taken) and taken[look][0] < stop:
            left.append((at, taken[look][0]))
            at = max(at, taken[look][1])
            look += 1
        left.append((at, stop))
    return merged(span for span in left if span[0] < span[1])
