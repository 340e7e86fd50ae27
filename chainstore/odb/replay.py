"""Replay: an index made from the log and the packs, or brought up to the end of the log by them.

The log says what packs held and which refs moved; it is applied first, since it also says which packs and ranges of
them hold nothing any more.  Then the records are put, as the packs list them (`harvest`), bases before what builds on
them.  Nothing that was there is trusted before it was looked at.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chainstore.errors import Damaged, Malformed
from chainstore.ids import ObjectId
from chainstore.model.change import Change, Checkpoint, Dead, PackGrown, PackLine, decode_changes
from chainstore.model.frame import Line
from chainstore.observe import Observer, Progress
from chainstore.odb.bulk import Item, Levels, add_items, put_items
from chainstore.odb.editor import Editor
from chainstore.odb.harvest import Harvest, Span, spans
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.old_index import put_kept
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed, is_within
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.view import View
from chainstore.storage.index import Index, Writer
from chainstore.storage.log import BEGINNING, Log, Position
from chainstore.storage.pack import PackDir

_ROOM_PER_RECORD = 1024
_ROOM = 4 << 20
_RECORDS_PER_TRANSACTION = 1_000_000
_BYTES_PER_TRANSACTION = 256 << 20  # of small records
_ROOM_PER_ROW = 192
_LINES_PER_TRANSACTION = 2_000
_LINE_BYTES_PER_TRANSACTION = 8 << 20


@dataclass(slots=True)
class _Told:
    """A line of the log, opened."""

    at: Position
    line: Line
    time_us: int
    changes: tuple[Change, ...]


def build_index(
    layout: Layout,
    format: Format,
    sealer: Sealer,
    around: Surroundings,
    report: RebuildReport,
    observer: Observer,
    *,
    old: bool = True,
) -> Owner:
    """Make an index from log and packs, and return it, not yet in force.

    Args:
        old: take what packs lost from the index that is in force.

    Raises:
        Damaged: the log cannot be read.
    """
    uuid = around.random(16).hex()
    index = Index.create(layout.index(uuid))
    try:
        grown = _replay(Log(layout.log), index, sealer, format, report)
        packs = PackDir(layout.packs)
        read = Harvest(packs, sealer.repo_id, report.problems, whole=not layout.on_network)
        _put_records(index, sealer, read, spans(grown), observer)
        if old:
            put_kept(layout, sealer, index)
        return Owner(uuid, index.inode[1], around.host, layout.outside)
    finally:
        index.close()


def extend_index(layout: Layout, sealer: Sealer, index: Index) -> None:
    """Bring an index up to the end of the log, in one step.

    Raises:
        Damaged: the log does not hold the line at which the index stands, or what follows cannot be read.
    """
    log = Log(layout.log)
    with index.read() as rows:
        position = View(rows, sealer).position()
    log.check(position)
    if log.ends_at(position):
        return
    told = [_open(sealer, at, line) for at, line in log.after(position)]
    if not told:
        return
    grown = [change for each in told for change in each.changes if isinstance(change, PackGrown)]
    read = Harvest(PackDir(layout.packs), sealer.repo_id, [], whole=not layout.on_network)
    found = {span: read(span) for span in spans(grown)}
    room = sum(_ROOM_PER_RECORD * len(records) + 2 * sum(map(len, small.values())) for records, small in found.values())
    index.ensure_room(room + sum(_ROOM + 2 * each.line.line_bytes for each in told))
    with index.write() as rows:
        editor = Editor(rows, sealer)
        lost = _by_pack(editor, told)
        for each in told:
            editor.apply(each.at, each.line, each.time_us, each.changes, _no_records, lost)
        packs = _packs(editor)
        levels: Levels = defaultdict(list)
        for span, (records, small) in found.items():
            if span.pack in packs:
                number, line = packs[span.pack]
                alive = (each for each in records if not is_within(each[0], line.dead))
                add_items(span.pack, number, alive, small, levels)
        _put(rows, sealer, levels, {}, read)


def _open(sealer: Sealer, at: Position, line: Line) -> _Told:
    return _Told(at, line, *decode_changes(sealer.open_line(line)))


def _by_pack(view: View, told: Sequence[_Told]) -> Callable[[Dead], Iterable[ObjectId]]:
    """Return what gives the objects of a pack that has dead ranges; all packs are looked through once."""
    hit = {change.pack for each in told for change in each.changes if isinstance(change, Dead)}
    names = {number: line.pack for number, line in view.packs() if line.pack in hit} if hit else {}
    found: defaultdict[bytes, list[ObjectId]] = defaultdict(list)
    for id, place in view.objects() if names else ():
        if place.pack in names:
            found[names[place.pack]].append(id)
    return lambda change: found[change.pack]


def _replay(log: Log, index: Index, sealer: Sealer, format: Format, report: RebuildReport) -> list[PackGrown]:
    """Apply every line of the log, but for the records in packs; return how packs grew, in that order."""
    grown: list[PackGrown] = []
    lines = log.after(BEGINNING)
    while some := _some_lines(lines):
        index.ensure_room(_ROOM + sum(4 * line.line_bytes + _ROOM_PER_RECORD for _, line in some))
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for at, line in some:
                told = _open(sealer, at, line)
                for point in told.changes if not report.lines else ():
                    if isinstance(point, Checkpoint):
                        _check_format(point, format)
                        editor.identify(format.repo_id, format.hash, point.keyring)
                        editor.restore(point, _no_records)
                        grown += [PackGrown(pack.pack, 0, pack.length, pack.contents) for pack in point.packs]
                editor.apply(at, line, told.time_us, told.changes, _no_records)
                grown += [change for change in told.changes if isinstance(change, PackGrown)]
                report.lines += 1
    if not report.lines:
        raise Damaged(
            "the log is empty, or cannot be read from its beginning", hint="restore log/ from a copy of the repository"
        )
    return grown


def _some_lines(lines: Iterator[tuple[Position, Line]]) -> list[tuple[Position, Line]]:
    some, nbytes = [], 0
    for at, line in lines:
        some.append((at, line))
        nbytes += line.line_bytes
        if len(some) >= _LINES_PER_TRANSACTION or nbytes >= _LINE_BYTES_PER_TRANSACTION:
            break
    return some


def _check_format(point: Checkpoint, format: Format) -> None:
    if point.format_hash != format.hash:
        raise Malformed("format", "it is not the file this repository was last used with")


def _no_records(growth: PackGrown) -> list[Placed]:
    return []  # they are read when it is known which packs are still there


Packs = dict[bytes, tuple[int, PackLine]]


def _packs(view: View) -> Packs:
    return {line.pack: (number, line) for number, line in view.packs() if not line.retired}


def _put(rows: Writer, sealer: Sealer, levels: Levels, depths: dict[bytes, int], read: Harvest) -> None:
    """Put records, bases before what builds on them; `depths` is of those put before."""
    editor = Editor(rows, sealer)

    def one_by_one(each: Item) -> None:
        id, _, _, inline, pack, offset = each
        header = read.header(pack, offset)
        known = editor.place(id)
        if header is None or header.id != id:
            return
        if known is not None and known.depth == header.depth and not read.is_intact(pack, offset, header):
            return  # it was stored again because one of the two was damaged: this one is
        number = editor.pack_number(pack)
        if number is not None:
            editor.put_record(number, Placed(offset, header, inline))

    put_items(rows, levels, depths, one_by_one)


def _put_records(index: Index, sealer: Sealer, read: Harvest, wanted: Sequence[Span], observer: Observer) -> None:
    """Put the records of all packs that are not retired, bases before what builds on them, dead ranges left out.

    A base may lie in a later pack than what builds on it, after gc has copied it there: such a record waits.
    """
    with index.read() as rows:
        packs = _packs(View(rows, sealer))
    total = sum(span.stop - span.start for span in wanted)
    done = count = nbytes = 0
    levels: Levels = defaultdict(list)
    depths: dict[bytes, int] = {}
    for span in wanted:
        if span.pack in packs:
            number, line = packs[span.pack]
            records, small = read(span, line.dead)
            add_items(span.pack, number, records, small, levels)
            count += len(records)
            nbytes += sum(map(len, small.values()))
        if count >= _RECORDS_PER_TRANSACTION or nbytes >= _BYTES_PER_TRANSACTION:
            _flush(index, sealer, levels, depths, read)
            count = nbytes = 0
        done += span.stop - span.start
        observer(Progress("rebuild-index", done, total))
    _flush(index, sealer, levels, depths, read)


def _flush(index: Index, sealer: Sealer, levels: Levels, depths: dict[bytes, int], read: Harvest) -> None:
    """Put records in a transaction of their own: it writes each page that it touches once."""
    index.ensure_room(_room_for(levels))
    with index.write() as rows:
        _put(rows, sealer, levels, depths, read)


def _room_for(levels: Levels) -> int:
    small = sum(len(each[2]) + len(each[3] or b"") for items in levels.values() for each in items)
    return _ROOM + small + _ROOM_PER_ROW * sum(map(len, levels.values()))
