"""Repair: what is damaged here is taken from another copy of the same repository, where it reads well.

Every good object is stored anew, whole and without bases, so that its record wins over whatever it replaces; in the
same line of the log the old record is declared dead.  A pack that is lost or cut off is emptied that way and retired,
unless something that is still needed was in it and is nowhere else.  What stood in the places is set aside first.

Nothing is changed where nothing is damaged, and nothing that was healed is believed before it was read again.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chainstore.errors import Damaged, InvalidInput, Malformed, ReadOnly, StorageError, WrongRepository
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Change, Dead, PackLine, Retired
from chainstore.model.frame import Header, split_record
from chainstore.observe import Observer, Progress, silent
from chainstore.odb.batch import LocalBatch
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rows import Place
from chainstore.ops.pipeline import run
from chainstore.ops.quarantine import Quarantine
from chainstore.ops.repair_files import heal_files
from chainstore.ops.sampling import Only, Sample
from chainstore.ops.verify import Examination, Level, examine
from chainstore.ops.verify_ground import short_packs
from chainstore.ops.verify_report import VerifyReport

_OBJECTS_PER_LINE = 1000
_BYTES_PER_LINE = 256 << 20


@dataclass(slots=True)
class _Plan:
    """What is to be stored anew, and what then holds nothing any more.

    Attributes:
        good: objects that are damaged here (or lie in a pack that is), by where they read: True here, False there.
        sizes: their plain bytes.
        lost: objects that read nowhere.
        short: packs that are missing or cut off, by number.
    """

    good: dict[ObjectId, bool] = field(default_factory=dict)
    sizes: dict[ObjectId, int] = field(default_factory=dict)
    lost: set[ObjectId] = field(default_factory=set)
    short: dict[int, PackLine] = field(default_factory=dict)


def verify_and_repair(
    db: LocalDatabase,
    source: LocalDatabase,
    level: Level,
    *,
    threads: int,
    observer: Observer,
    sample: Sample | None = None,
    dry_run: bool = False,
) -> VerifyReport:
    """Verify, take what is damaged from `source`, and verify that.

    Raises:
        WrongRepository: `source` is a copy of another repository.
        InvalidInput: it is this repository itself, or `level` is "quick".
        ReadOnly: this one was opened for reading.
    """
    check_source(db, source)
    if level == "quick":
        raise InvalidInput(
            "a repair has to know what is needed, which level 'quick' does not", hint='use level "links"'
        )
    if db.readonly and not dry_run:
        raise ReadOnly(f"{db.layout.root} was opened for reading", hint="open it without readonly=True")
    found = examine(db, level, threads=threads, observer=observer, sample=sample, source=source)
    report = found.report
    report.repaired_from, report.dry_run = str(source.layout.root), dry_run
    if report.ok:
        return report
    plan = _make_plan(db, source, found, threads, observer)
    report.taken, report.taken_bytes = len(plan.good), sum(plan.sizes.values())
    if dry_run:
        return report
    heal_files(db.layout, source.layout, db.around.who)
    quarantine = Quarantine(db.layout, db.packs)
    _Repair(db, source, plan, quarantine, observer).run(threads)
    report.quarantined = quarantine.files
    _tell_healed(db, report, found, level, threads)
    return report


def check_source(db: LocalDatabase, source: LocalDatabase) -> None:
    """Refuse what is no copy of this repository; see `verify_and_repair`."""
    if source.sealer.repo_id != db.sealer.repo_id:
        raise WrongRepository(
            f"{source.layout.root} is repository {source.sealer.repo_id.hex()}, not {db.sealer.repo_id.hex()}",
            hint="name a copy of this repository: only that holds its objects",
        )
    if source.layout.root.resolve() == db.layout.root.resolve():
        raise InvalidInput(f"{source.layout.root} is the repository that is to be repaired", hint="name a copy of it")


def _tell_healed(db: LocalDatabase, report: VerifyReport, before: Examination, level: Level, threads: int) -> None:
    """Look again at what was damaged, and move what is whole now from `damaged` to `healed`."""
    sample = Only(frozenset(before.bad)) if level == "data" else None
    left = examine(db, level, threads=threads, observer=silent, sample=sample).report.damaged
    still = {damage.key for damage in left}
    report.healed = [damage for damage in report.damaged if damage.key not in still]
    report.damaged = left


def _make_plan(db: LocalDatabase, source: LocalDatabase, found: Examination, threads: int, observer: Observer) -> _Plan:
    """Find out what reads where: of what is damaged, and of everything in packs that are missing or cut off."""
    plan = _Plan()
    with db.view() as view:
        plan.short = dict(short_packs(db.packs, view))
        stranded = [id for id, place in view.objects() if place.pack in plan.short] if plan.short else []
    wanted = list(dict.fromkeys([*_damaged_below(db, found), *_bottom_up(found), *stranded]))
    lock, done = threading.Lock(), 0

    def look(id: ObjectId) -> None:
        nonlocal done
        here = _length(db, id)
        length = here if here >= 0 else _length(source, id)
        with lock:
            done += 1
            observer(Progress("verify copy", done, len(wanted)))
            if length < 0:
                plan.lost.add(id)
            else:
                plan.good[id], plan.sizes[id] = here >= 0, length

    run(wanted, look, threads=threads)
    plan.good = {id: plan.good[id] for id in wanted if id in plan.good}
    unseen = any(found.bad[id].check != "chunks" for id in plan.lost & found.bad.keys())
    needed = plan.lost if unseen else plan.lost & found.bad.keys()  # what a page that is lost names, nobody knows
    with db.view() as view:
        for id in needed:
            place = view.place(id)
            if place is not None:
                plan.short.pop(place.pack, None)  # it may come back: a disk that is mounted again
    return plan


def _damaged_below(db: LocalDatabase, found: Examination) -> list[ObjectId]:
    """Return what damaged objects build on, where that is damaged itself and no commit names it."""
    try:
        below = [id for id in db.lay_out(found.bad) if id not in found.bad]
    except Damaged:
        return []  # the index does not tell; everything is stored whole anyway
    return [id for id in below if _length(db, id) < 0]


def _bottom_up(found: Examination) -> list[ObjectId]:
    """Return what is damaged, chunks before the pages that name them, those before commits."""
    order = ("chunks", "pages", "commits")
    return sorted(found.bad, key=lambda id: order.index(found.bad[id].check))


def _length(db: LocalDatabase, id: ObjectId) -> int:
    """Return the plain bytes of an object that reads, -1 where it does not."""
    try:
        return len(db.read(id))
    except (Damaged, StorageError):
        return -1


class _Repair:
    """Stores what a plan names, a line of the log for every so many objects."""

    def __init__(
        self, db: LocalDatabase, source: LocalDatabase, plan: _Plan, quarantine: Quarantine, observer: Observer
    ) -> None:
        self._db, self._source, self._plan = db, source, plan
        self._quarantine, self._observer = quarantine, observer
        self._lock = threading.Lock()
        self._done = 0

    def run(self, threads: int) -> None:
        """Store everything; each line of the log takes what it replaces out of force."""
        for line in self._plan.short.values():
            self._quarantine.pack(line)
        for ids in self._parts():
            self._store(ids, threads)
        gone: list[Change] = []
        with self._db.view() as view:
            for line in self._plan.short.values():
                if view.pack_number(line.pack) is not None:  # else gc was quicker
                    gone += [Dead(line.pack, ((0, line.length),)), Retired(line.pack)]
        if gone:
            self._db.publish(None, gone)

    def _parts(self) -> Iterator[list[ObjectId]]:
        part: list[ObjectId] = []
        nbytes = 0
        for id in self._plan.good:
            part.append(id)
            nbytes += self._plan.sizes[id]
            if len(part) >= _OBJECTS_PER_LINE or nbytes >= _BYTES_PER_LINE:
                yield part
                part, nbytes = [], 0
        if part:
            yield part

    def _store(self, ids: Sequence[ObjectId], threads: int) -> None:
        batch = self._db.batch()
        try:
            self._db.suspect(ids)  # else what still reads from the index would count as stored
            run(ids, lambda id: self._append(batch, id), threads=threads, tend=batch.sync_some)
            self._db.publish(batch, list(self._replaced(ids)))
        finally:
            self._db.retire_batch(batch)

    def _append(self, batch: LocalBatch, id: ObjectId) -> None:
        origin = self._db if self._plan.good[id] else self._source
        plain = origin.read(id)
        record = _whole_record(origin, id)
        if record is not None and record[0].generation <= self._db.sealer.generation:
            batch.append_record(*record)
        else:
            batch.append(Kind(_kind(origin, id)), plain)
        with self._lock:
            self._done += self._plan.sizes[id]
            self._observer(Progress("repair", self._done, sum(self._plan.sizes.values())))

    def _replaced(self, ids: Iterable[ObjectId]) -> Iterator[Dead]:
        """Yield the places of records that are replaced, each set aside before; short packs are dealt with whole."""
        ranges: dict[bytes, list[tuple[int, int]]] = {}
        with self._db.view() as view:
            places = [(place, view.pack(place.pack)) for id in ids if (place := view.place(id)) is not None]
        for place, line in places:
            if place.pack not in self._plan.short and not line.retired:
                self._quarantine.record(line, place)
                ranges.setdefault(line.pack, []).append((place.offset, place.offset + place.length))
        for pack, found in ranges.items():
            yield Dead(pack, tuple(sorted(found)))


def _kind(db: LocalDatabase, id: ObjectId) -> int:
    with db.view() as view:
        place = view.place(id)
    if place is None:
        raise Damaged(f"object {id.short} vanished while it was taken")
    return place.kind


def _whole_record(db: LocalDatabase, id: ObjectId) -> tuple[Header, bytes] | None:
    """Return the record of an object that just read well, as it is stored; None where it builds on others."""
    with db.view() as view:
        place, small = view.place(id), view.inline(id)
        if place is None or place.depth:
            return None
        pack = view.pack(place.pack).pack
    try:
        header, payload = split_record(memoryview(small if small is not None else _raw(db, pack, place)), "record")
    except Malformed:
        return None  # its checksum alone is wrong
    return (header, bytes(payload)) if header.id == id and not header.depth else None


def _raw(db: LocalDatabase, pack: bytes, place: Place) -> bytes:
    data = bytearray(place.length)
    filled = db.packs.read_into(pack, place.offset, memoryview(data))
    return bytes(data[:filled])
