"""Without a key: the checksums of every record, the structure of the index, and how lines of the log follow each other.

Headers of records, packs and places of objects are in the clear, so a machine that must not read a weight can still
tell that bits have rotted; names it cannot tell.  What no row points at any more may be damaged: nobody will read it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from chainstore.errors import Damaged, FormatTooNew, IndexElsewhere, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.model.change import PackLine
from chainstore.model.frame import (
    FLAG_ENCRYPTED,
    MAX_HEADER_BYTES,
    Header,
    is_record_kind,
    parse_header,
    split_record,
)
from chainstore.observe import Observer, Progress
from chainstore.odb.layout import Format, Layout
from chainstore.odb.places import place_index
from chainstore.odb.record import Sealer
from chainstore.odb.rows import is_within
from chainstore.odb.take_over import is_elsewhere
from chainstore.odb.view import View
from chainstore.ops.quarantine import live_ranges
from chainstore.ops.verify_ground import PAIRS, check_index, check_log, check_small_files, note, short_packs
from chainstore.ops.verify_report import Damage, VerifyReport
from chainstore.storage import fs
from chainstore.storage.index import Index, Reader
from chainstore.storage.log import Log
from chainstore.storage.pack import PackDir, salvage, scan
from chainstore.storage.rows import TABLES

_TELL_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Bytes [start, stop) of a pack that are not what was stored; `id` is the object where it is known."""

    pack: bytes
    start: int
    stop: int
    why: str
    id: ObjectId | None = None


def verify_records(layout: Layout, observer: Observer) -> VerifyReport:
    """Look at everything that can be looked at without a key; nothing is changed.

    Raises:
        IndexElsewhere: only another machine sees the index.  Damage is reported, never raised.
    """
    report = VerifyReport("records")
    encrypted = any((layout.root / name).exists() for name in (PAIRS[1], f"{PAIRS[1]}.bak"))
    check_small_files(layout, report, encrypted=encrypted)
    try:
        format = layout.read_format()
        layout = place_index(layout, format.repo_id)
        owner = layout.read_owner()
    except Damaged as error:
        if str(error) not in {damage.what for damage in report.damaged}:
            report.damaged.append(Damage(str(error), check="index"))
        return report
    if is_elsewhere(layout, owner):
        raise IndexElsewhere(str(layout.root), owner.host, layout.owned_since())  # only a key could make one here
    path = layout.index(owner.uuid)
    if check_index(path, layout, report):
        note(report, "index", lambda: _look(layout, format, path, report, observer))
    return report


def _look(layout: Layout, format: Format, path: Path, report: VerifyReport, observer: Observer) -> None:
    with Index.open(path, readonly=True) as index:
        sealer = Sealer(format.repo_id, None, _no_random)
        with index.read() as rows:
            _check_rows(rows, report)
            note(report, "log", lambda: check_log(View(rows, sealer), Log(layout.log), report, lambda line: None))
        _Packs(layout, format, index, sealer, report, observer).run()


def _no_random(nbytes: int) -> bytes:
    raise AssertionError("nothing is sealed without a key")


def _check_rows(rows: Reader, report: VerifyReport) -> None:
    """Every row has its checksum, and small records that are held whole have theirs."""
    for table in TABLES:
        note(report, "index", lambda: _check_table(rows, table, report))  # noqa: B023


def _check_table(rows: Reader, table: str, report: VerifyReport) -> None:
    for key, value in rows.scan(table):
        if table != "inline":
            continue
        try:
            split_record(memoryview(value), "the index")
        except Malformed as error:
            id = key.hex()
            report.damaged.append(Damage(f"the index holds object {id[:12]} damaged: {error}", id, check="index"))


class _Packs:
    """The walk over all packs."""

    def __init__(
        self, layout: Layout, format: Format, index: Index, sealer: Sealer, report: VerifyReport, observer: Observer
    ) -> None:
        self._packs = PackDir(layout.packs)
        self._format, self._index, self._sealer = format, index, sealer
        self._report, self._observer = report, observer
        self._done = self._told = self._total = 0
        self._in_force = 0  # records that are whole and that rows point at

    def run(self) -> None:
        """Walk every pack by its headers, dead ranges left out; what is found twice is damage."""
        with self._index.read() as rows:
            view = View(rows, self._sealer)
            packs = [line for _, line in view.packs() if not line.retired]
            short = {line.pack: self._packs.size(line.pack) for _, line in short_packs(self._packs, view)}
        self._total = sum(line.length for line in packs)
        suspects = [_Suspect(name, size, 0, "") for name, size in short.items()]
        for line in packs:
            suspects += self._walk(line)
            self._observer(Progress("verify", self._done, self._total))
        if suspects:
            self._report.damaged += self._confirmed(suspects)
        with self._index.read() as rows:
            astray = View(rows, self._sealer).object_count() != self._in_force
        if astray:
            self._report.damaged += self._strangers()
        self._packs.close()

    def _walk(self, line: PackLine) -> Iterator[_Suspect]:
        try:
            file = fs.open_file(self._packs.path(line.pack))
        except FileNotFoundError:
            return  # told as too short
        whole: list[tuple[ObjectId, int]] = []
        with file:
            for start, stop in live_ranges(line, file.size()):
                yield from self._records(file, line, start, stop, whole)
        with self._index.read() as rows:
            view = View(rows, self._sealer)
            number = view.pack_number(line.pack)
            for id, offset in whole:
                place = view.place(id)
                self._in_force += place is not None and (place.pack, place.offset) == (number, offset)

    def _records(
        self, file: fs.File, line: PackLine, start: int, stop: int, whole: list[tuple[ObjectId, int]]
    ) -> Iterator[_Suspect]:
        """Check the records of a range; between those that can be found lies what is damaged."""
        name, at = f"pack {line.pack.hex()}", start
        try:
            for offset, header in scan(file, start, stop, name):
                at = offset + header.record_bytes
                yield from self._record(file, line, offset, header, whole)
            return
        except (Malformed, FormatTooNew, StorageError) as error:
            broken, why = at, str(error)
        for offset, header in _salvaged(file, broken, stop, name):
            if offset > at:
                yield _Suspect(line.pack, at, offset, why)
            at = offset + header.record_bytes
            yield from self._record(file, line, offset, header, whole)
        if at < stop:
            yield _Suspect(line.pack, at, stop, why)

    def _record(
        self, file: fs.File, line: PackLine, offset: int, header: Header, whole: list[tuple[ObjectId, int]]
    ) -> Iterator[_Suspect]:
        self._report.records += 1
        self._report.read_bytes += header.record_bytes
        self._done += header.record_bytes
        why = self._problem(file, line, offset, header)
        if why:
            id = header.id if is_record_kind(header.kind) else None
            yield _Suspect(line.pack, offset, offset + header.record_bytes, why, id)
        elif is_record_kind(header.kind):
            whole.append((header.id, offset))
        if self._done - self._told >= _TELL_BYTES:
            self._told = self._done
            self._observer(Progress("verify", self._done, self._total))

    def _problem(self, file: fs.File, line: PackLine, offset: int, header: Header) -> str:
        try:
            split_record(memoryview(file.pread(offset, header.record_bytes)), f"pack {line.pack.hex()}", offset)
        except (Malformed, StorageError) as error:
            return error.why if isinstance(error, Malformed) else str(error)
        if header.repo_id != self._format.repo_id:
            return f"it belongs to repository {header.repo_id.hex()}"
        sealed = bool(header.flags & FLAG_ENCRYPTED)
        if is_record_kind(header.kind) and sealed != self._format.encrypted:
            return "it is sealed" if sealed else "it is not sealed in an encrypted repository"
        return ""

    # -- what was found, looked at once more: gc may have been at work

    def _confirmed(self, suspects: list[_Suspect]) -> Iterator[Damage]:
        with self._index.read() as rows:
            view = View(rows, self._sealer)
            packs = {line.pack: (number, line) for number, line in view.packs() if not line.retired}
            inside = _rows_of(view, {packs[one.pack][0] for one in suspects if one.pack in packs})
            still_short = {line.pack for _, line in short_packs(self._packs, view)}
        for one in suspects:
            if one.pack not in packs:
                continue
            number, line = packs[one.pack]
            if not one.why:
                if one.pack in still_short:
                    yield from _cut_off(one, line, inside[number])
            elif not is_within(one.start, line.dead):
                yield from _damages(one, inside[number])

    def _strangers(self) -> Iterator[Damage]:
        """Yield rows in whose place something else stands, as when an old pack was put back."""
        told = {damage.id for damage in self._report.damaged}
        misplaced = self._misplaced(None)
        for id, (pack, offset) in self._misplaced(misplaced.keys()).items() if misplaced else ():
            if str(id) not in told:
                why, name = "another record stands in its place", pack.hex()
                what = f"{_named(id)} at byte {offset} of pack {name} is damaged: {why}"
                yield Damage(what, str(id), (), (), "records", name, offset, why)

    def _misplaced(self, among: Collection[ObjectId] | None) -> dict[ObjectId, tuple[bytes, int]]:
        found = {}
        with self._index.read() as rows:
            view = View(rows, self._sealer)
            names = {number: line.pack for number, line in view.packs()}
            for id, place in view.objects():
                if (among is None or id in among) and place.pack in names:
                    head = bytearray(MAX_HEADER_BYTES)
                    try:
                        filled = self._packs.read_into(names[place.pack], place.offset, memoryview(head))
                        if parse_header(memoryview(head)[:filled], "record").id == id:
                            continue
                    except (Damaged, FormatTooNew, StorageError):
                        pass
                    found[id] = names[place.pack], place.offset
        return found


def _salvaged(file: fs.File, start: int, stop: int, name: str) -> Iterator[tuple[int, Header]]:
    """Yield what can be found in a range whose headers are damaged; none where the disk does not read."""
    try:
        yield from salvage(file, start, stop, name)
    except (StorageError, FormatTooNew):
        return


def _rows_of(view: View, numbers: set[int]) -> dict[int, dict[int, ObjectId]]:
    """Return which object lies at which offset, of some packs."""
    found: dict[int, dict[int, ObjectId]] = {number: {} for number in numbers}
    for id, place in view.objects():
        if place.pack in found:
            found[place.pack][place.offset] = id
    return found


def _cut_off(one: _Suspect, line: PackLine, inside: dict[int, ObjectId]) -> Iterator[Damage]:
    name = one.pack.hex()
    why = f"the pack has {one.start} bytes where {line.length} were committed"
    yield Damage(f"pack {name} has {one.start} bytes where {line.length} were committed", check="packs", pack=name)
    for offset, id in sorted(inside.items()):
        if offset >= one.start:
            yield Damage(
                f"{_named(id)} at byte {offset} of pack {name}: {why}", str(id), (), (), "records", name, offset, why
            )


def _damages(one: _Suspect, inside: dict[int, ObjectId]) -> Iterator[Damage]:
    """Yield what lies in bytes that are damaged and is in force; nothing where nothing is."""
    name = one.pack.hex()
    for offset, id in sorted(inside.items()):
        if one.start <= offset < one.stop:
            what = f"{_named(id)} at byte {offset} of pack {name} is damaged: {one.why}"
            yield Damage(what, str(id), (), (), "records", name, offset, one.why)


def _named(id: ObjectId) -> str:
    return f"object {id.short}"
