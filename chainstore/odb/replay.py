"""Replay: an index made from the log and the packs.

The log says what packs held and which refs moved; records are found by walking the packs, those with damaged headers
skipped and reported.  Nothing that was there is trusted before it was looked at.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from chainstore.errors import Damaged, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.model.change import Checkpoint, PackGrown, decode_changes
from chainstore.model.frame import split_record
from chainstore.observe import Observer, Progress
from chainstore.odb.editor import Editor
from chainstore.odb.growth import Salvage
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed, is_within
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.view import View
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import PackDir

_ROOM_PER_RECORD = 1024
_ROOM = 4 << 20
_RECORDS_PER_TRANSACTION = 10_000

T = TypeVar("T")


def build_index(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    around: Surroundings,
    report: RebuildReport,
    observer: Observer,
) -> Owner:
    """Make an index from log and packs, and return it, not yet in force; what packs lost is taken from the old one."""
    uuid = around.random(16).hex()
    index = Index.create(layout.index(uuid))
    try:
        grown = _replay(Log(layout.log), index, sealer, format, report)
        _put_records(PackDir(layout.packs), index, sealer, grown, report, observer)
        _put_kept(index, sealer, _small_records_of_old_index(layout, sealer))
        return Owner(uuid, index.inode[1], around.host)
    finally:
        index.close()


def _replay(log: Log, index: Index, sealer: Sealer, format: Format, report: RebuildReport) -> list[PackGrown]:
    """Apply every line of the log, but for the records in packs; return how packs grew, in that order."""
    grown: list[PackGrown] = []
    for at, line in log.after(BEGINNING):
        time_us, changes = decode_changes(sealer.open_line(line))
        index.ensure_room(_ROOM + 2 * line.line_bytes)
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for point in changes if not report.lines else ():
                if isinstance(point, Checkpoint):
                    editor.identify(format.repo_id, format.hash, point.keyring)
                    editor.restore(point, _no_records)
                    grown += [PackGrown(pack.pack, 0, pack.length, pack.contents) for pack in point.packs]
            editor.apply(at, line, time_us, changes, _no_records)
        grown += [change for change in changes if isinstance(change, PackGrown)]
        report.lines += 1
    return grown


def _no_records(growth: PackGrown) -> list[Placed]:
    return []  # they are read when it is known which packs are still there


def _put_records(
    packs: PackDir,
    index: Index,
    sealer: Sealer,
    grown: list[PackGrown],
    report: RebuildReport,
    observer: Observer,
) -> None:
    """Put the records of all packs that are not retired, bases before what builds on them, dead ranges left out.

    A base may lie in a later pack than what builds on it, after gc has copied it there.
    """
    read = Salvage(packs, sealer.repo_id, report.problems)
    deeper: list[tuple[PackGrown, Placed]] = []
    total = sum(growth.stop - growth.start for growth in grown)
    done = 0
    for growth in grown:
        for some in _in_parts(read(growth)):
            deeper += [(growth, placed) for placed in some if placed.header.depth]
            _put(index, sealer, [(growth, placed) for placed in some if not placed.header.depth], read)
        done += growth.stop - growth.start
        observer(Progress("rebuild-index", done, total))
    deeper.sort(key=lambda item: item[1].header.depth)
    for some_deeper in _in_parts(deeper):
        _put(index, sealer, some_deeper, read)


def _in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of what one transaction takes."""
    left = iter(items)
    while part := list(islice(left, _RECORDS_PER_TRANSACTION)):
        yield part


def _put(index: Index, sealer: Sealer, found: list[tuple[PackGrown, Placed]], read: Salvage) -> None:
    index.ensure_room(_ROOM + sum(_ROOM_PER_RECORD + 2 * len(placed.inline or b"") for _, placed in found))
    with index.write() as rows:
        editor = Editor(rows, sealer)
        for growth, placed in found:
            number = editor.pack_number(growth.pack)
            line = editor.pack(number) if number is not None else None
            if number is None or line is None or line.retired or is_within(placed.offset, line.dead):
                continue
            known = editor.place(placed.header.id)
            if known is not None and known.depth == placed.header.depth and not read.is_intact(growth, placed):
                continue  # it was stored again because one of the two was damaged: this one is
            editor.put_record(number, placed)


def _put_kept(index: Index, sealer: Sealer, kept: Iterator[tuple[bytes, Placed]]) -> None:
    """Put those small records of the old index that the packs lost, or hold damaged: commits and trees above all."""
    for some in _in_parts(kept):
        index.ensure_room(_ROOM + sum(_ROOM_PER_RECORD + 2 * len(placed.inline or b"") for _, placed in some))
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for pack, placed in sorted(some, key=lambda item: item[1].header.depth):
                number = editor.pack_number(pack)
                line = editor.pack(number) if number is not None else None
                if number is None or line is None or line.retired or is_within(placed.offset, line.dead):
                    continue
                if placed.offset < line.length and not _is_whole(editor, placed.header.id):
                    editor.put_record(number, placed)


def _is_whole(view: View, id: ObjectId) -> bool:
    small = view.inline(id)
    if small is None:
        return view.place(id) is not None
    try:
        split_record(memoryview(small), "index")
    except Malformed:
        return False
    return True


def _small_records_of_old_index(layout: Layout, sealer: Sealer) -> Iterator[tuple[bytes, Placed]]:
    """Yield (pack, record) of what the index in force holds whole, if it can be opened without risk."""
    try:
        path = layout.index(layout.read_owner().uuid)
        if Index.verify_file(path):
            return
        with Index.open(path, readonly=True) as index, index.read() as rows:
            view = View(rows, sealer)
            packs = {number: line.pack for number, line in view.packs()}
            for id, data in rows.scan("inline"):
                place = view.place(id)
                try:
                    header, _ = split_record(memoryview(data), "index")
                except Malformed:
                    continue  # it was damaged in its pack already when the index got it
                if place is not None and place.pack in packs and header.repo_id == sealer.repo_id:
                    yield packs[place.pack], Placed(place.offset, header, data)
    except (Damaged, StorageError):
        return  # it is what is being replaced; the packs have to do
