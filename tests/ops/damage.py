"""Damage done on purpose: bits flipped, packs lost, copies made."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chainstore.ids import ObjectId
from chainstore.observe import silent
from chainstore.odb.local import LocalDatabase
from chainstore.odb.rows import Place
from chainstore.ops.repair import verify_and_repair
from chainstore.ops.verify import Damage, Level, VerifyReport, verify
from tests.odb.stores import Store

BIG = bytes(range(256)) * 40  # more than a record that the index holds whole


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def packs_of(store: Store) -> list[Path]:
    return sorted(path for path in store.layout.packs.rglob("*") if path.is_file())


def place_of(db: LocalDatabase, id: ObjectId) -> tuple[Path, Place]:
    with db.view() as view:
        place = view.place(id)
        assert place is not None
        return db.packs.path(view.pack(place.pack).pack), place


def spoil(db: LocalDatabase, id: ObjectId, at: int = 110) -> Path:
    """Flip a bit in the record of an object, by default in its payload, and return the pack."""
    path, place = place_of(db, id)
    flip(path, place.offset + at)
    return path


def look(db: LocalDatabase, level: Level = "data", threads: int = 1) -> VerifyReport:
    return verify(db, level, threads=threads, observer=silent)


def told(report: VerifyReport) -> list[Damage]:
    """Leave out what the stores of these tests lack: their keys are made from a number."""
    return [damage for damage in report.damaged if "keyring" not in damage.what]


def healed(report: VerifyReport) -> set[str]:
    return {damage.id for damage in report.healed}


@contextmanager
def opened(*stores: Store) -> Iterator[list[LocalDatabase]]:
    databases = [store.open() for store in stores]
    try:
        yield databases
    finally:
        for db in databases:
            db.close()


def repair(store: Store, source: Store, level: Level = "data", *, dry_run: bool = False) -> VerifyReport:
    """Repair one store from another, as processes of their own would."""
    with opened(store, source) as (db, other):
        return verify_and_repair(db, other, level, threads=2, observer=silent, dry_run=dry_run)
