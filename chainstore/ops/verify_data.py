"""Reading: the bytes of chunks against their ids, and what lies in packs of objects that the index holds whole.

Small records are read from the index.  That hides a rotten pack until the index is lost, so they are compared.
"""

import threading
from collections.abc import Iterable, Sequence

from chainstore.errors import Damaged, StorageError
from chainstore.ids import ObjectId
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.ops.grouping import in_jobs
from chainstore.ops.pipeline import run
from chainstore.ops.sampling import Sample
from chainstore.ops.verify_report import VerifyReport
from chainstore.ops.verify_walk import Fetch, Reach, reason

_TELL_BYTES = 4 << 20
_TOGETHER = 1024  # chunks read in one job at most, none of which is kept
ONLY_INDEX = "its record in the pack is not what was stored; the index still holds it whole"


class DataReader:
    """Reads what was chosen, by several threads, and notes what does not read."""

    def __init__(self, fetch: Fetch, reach: Reach, report: VerifyReport, observer: Observer) -> None:
        self._fetch, self._reach, self._report, self._observer = fetch, reach, report, observer
        self._lock = threading.Lock()
        self._done = self._told = self._total = 0

    def run(self, sample: Sample | None, threads: int) -> None:
        """Read the chunks that `sample` picks, and look at the small records of all."""
        whole = {id: length for id, length in self._reach.chunks.items() if id not in self._fetch.bad}
        chosen = sample.pick(whole) if sample is not None else list(whole)
        self._total = sum(whole[id] for id in chosen)
        self._report.chunks_read = len(chosen)
        run(self._jobs(chosen), self._read, threads=threads)
        self._observer(Progress("verify", self._total, self._total))
        for check, ids in (("commits", [id for id, _ in self._reach.commits]), ("pages", list(self._reach.pages))):
            self._compare(check, ids, sample)

    def _jobs(self, chosen: Sequence[ObjectId]) -> list[tuple[ObjectId, ...]]:
        """Return what to read together: everything that builds on each other, so that no base is decoded twice."""
        try:
            return in_jobs(self._fetch.db.lay_out(chosen), chosen, _TOGETHER)
        except Damaged:  # who reads it finds out
            return [(id,) for id in chosen]

    def _read(self, ids: tuple[ObjectId, ...]) -> None:
        db = self._fetch.db
        bad: dict[ObjectId, str] = {}
        try:
            nbytes = db.prove(ids)
        except (Damaged, StorageError):
            nbytes = sum(self._read_one(id, bad) for id in ids)  # to tell which are hit
        for id in ids:
            why = "" if id in bad else small_record_problem(db, id)
            if why:
                bad[id] = why
        with self._lock:
            self._report.read_bytes += nbytes
            self._done += sum(self._reach.chunks[id] for id in ids)
            for id, why in bad.items():
                self._fetch.note(id, "chunks", why)
            if self._done - self._told >= _TELL_BYTES:
                self._told = self._done
                self._observer(Progress("verify", self._done, self._total))

    def _read_one(self, id: ObjectId, bad: dict[ObjectId, str]) -> int:
        try:
            return self._fetch.db.prove([id])
        except (Damaged, StorageError) as error:
            bad[id] = reason(error)
            return 0

    def _compare(self, check: str, ids: Sequence[ObjectId], sample: Sample | None) -> None:
        left = {id: 1 for id in ids if id not in self._fetch.bad}
        for id in sample.pick(left) if sample is not None else left:
            why = small_record_problem(self._fetch.db, id)
            if why:
                self._fetch.note(id, check, why)


def small_record_problem(db: LocalDatabase, id: ObjectId) -> str:
    """Return what is wrong with the record of an object in its pack, where the index holds it too; else ""."""
    try:
        with db.view() as view:
            place, small = view.place(id), view.inline(id)
            if place is None or small is None:
                return ""
            name = view.pack(place.pack).pack
        found = bytearray(place.length)
        db.packs.read_into(name, place.offset, memoryview(found))
    except (Damaged, StorageError) as error:
        return f"{reason(error)}; the index still holds it whole"
    return "" if found == small else ONLY_INDEX


def still_bad(fetch: Fetch, ids: Iterable[ObjectId], *, data: bool) -> set[ObjectId]:
    """Return those of `ids` that do not read now either: gc may have moved one while it was looked at."""
    bad = set()
    for id in ids:
        try:
            fetch.db.read(id)
            with fetch.db.view() as view:
                place = view.place(id)
                name = view.pack(place.pack).pack if place is not None else b""
            there = place is not None and fetch.db.packs.size(name) >= place.offset + place.length
            if not there or (data and small_record_problem(fetch.db, id)):
                bad.add(id)
        except (Damaged, StorageError):
            bad.add(id)
    return bad
