"""Harvest: what packs hold, for an index that is made anew.

A full pack ends with a list of its headers: one read gives them all, wherever the records lie.  Where that list is
damaged, or the pack still open, the pack is walked from header to header, and those that are damaged are skipped and
told.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chainstore.errors import Malformed
from chainstore.model.change import PackGrown
from chainstore.model.frame import (
    KIND_CONTENTS,
    MAX_HEADER_BYTES,
    Header,
    Listed,
    as_listed,
    list_contents,
    parse_header,
    split_record,
)
from chainstore.odb.growth import Salvage
from chainstore.odb.rows import Placed, Ranges, is_inline, is_within
from chainstore.storage import fs
from chainstore.storage.pack import PackDir

_READ_WHOLE_BYTES = 4 << 20  # a pack up to this size is read at once, small records and all


class Span(NamedTuple):
    """What is wanted of a pack: the records at [start, stop); `contents` is where its list is, 0 for none."""

    pack: bytes
    start: int
    stop: int
    contents: int


Found = tuple[list[Listed], dict[int, bytes]]
"""Records of a pack, and offset -> bytes of those that are small."""


def spans(grown: Iterable[PackGrown]) -> list[Span]:
    """Return what packs grew by in all, one span a pack, in the order in which they began to grow."""
    found: dict[bytes, Span] = {}
    for growth in grown:
        before = found.get(growth.pack)
        start = min(growth.start, before.start) if before is not None else growth.start
        stop = max(growth.stop, before.stop) if before is not None else growth.stop
        contents = growth.contents or (before.contents if before is not None else 0)
        found[growth.pack] = Span(growth.pack, start, stop, contents)
    return list(found.values())


def _alive(span: Span, dead: Ranges) -> Iterator[tuple[int, int]]:
    """Yield what of a span is not in `dead`, which is as `merged` returns it."""
    at = span.start
    for start, stop in (*dead, (span.stop, span.stop)):
        if at < min(start, span.stop):
            yield at, min(start, span.stop)
        at = max(at, stop)


class Harvest:
    """Reads the records of packs.

    Args:
        repo_id: records of other repositories are skipped.
        problems: where what is damaged is told, for people to read.
        whole: whether small records are read too, to be kept in the index.  On a network disk that is a round trip
            each; whoever wants one later reads it from its pack.
    """

    def __init__(self, packs: PackDir, repo_id: bytes, problems: list[str], *, whole: bool) -> None:
        self._packs, self._repo_id, self._whole = packs, repo_id, whole
        self._salvage = Salvage(packs, repo_id, problems)

    def __call__(self, span: Span, dead: Ranges = ()) -> Found:
        """Return the records in a span of a pack, and the bytes of small ones; none where the pack is missing.

        Args:
            dead: ranges that are left out, and not walked: gc may have taken their bytes.
        """
        listed = self._by_list(span, dead) if span.contents else None
        if listed is not None:
            return listed
        walked = [
            placed
            for start, stop in _alive(span, dead)
            for placed in self._salvage(PackGrown(span.pack, start, stop, span.contents))
        ]
        small = {placed.offset: placed.inline for placed in walked if placed.inline is not None}
        return [as_listed(placed.offset, placed.header) for placed in walked], small

    def header(self, pack: bytes, offset: int) -> Header | None:
        """Return the header of a record; None where it is damaged or gone."""
        try:
            with fs.open_file(self._packs.path(pack)) as file:
                return parse_header(file.pread(offset, MAX_HEADER_BYTES), pack.hex(), offset)
        except (FileNotFoundError, Malformed):
            return None

    def is_intact(self, pack: bytes, offset: int, header: Header) -> bool:
        """Whether the payload of a record has the checksum that was stored with it; needs no key."""
        return self._salvage.is_intact(PackGrown(pack, offset, offset), Placed(offset, header, None))

    def _by_list(self, span: Span, dead: Ranges) -> Found | None:
        """Return the records that the pack's list names; None where it has to be walked."""
        name = f"pack {span.pack.hex()}"
        try:
            with fs.open_file(self._packs.path(span.pack)) as file:
                base = 0 if self._whole and span.stop <= _READ_WHOLE_BYTES else span.contents
                data = file.pread(base, span.stop - base)
                header, payload = split_record(memoryview(data)[span.contents - base :], name, span.contents)
                if header.kind != KIND_CONTENTS or header.repo_id != self._repo_id:
                    return None
                records = list_contents(bytes(payload), name, self._repo_id)
                if any(each[0] + each[1] > span.contents for each in records):
                    return None  # it names what cannot be
                if span.start or dead:
                    records = [each for each in records if each[0] >= span.start and not is_within(each[0], dead)]
                small = (each[:2] for each in records if is_inline(each[2], each[1])) if self._whole else ()
                return records, {
                    offset: data[offset - base : offset - base + nbytes]
                    if offset >= base
                    else file.pread(offset, nbytes)
                    for offset, nbytes in small
                }
        except FileNotFoundError:
            return [], {}  # told once, with the packs
        except Malformed:
            return None
