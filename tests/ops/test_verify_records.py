"""Without a key: every record, the index and the log are checked, and what is damaged is named by pack and offset."""

import os
import shutil
from pathlib import Path

import pytest

from chainstore.ids import Kind
from chainstore.model.change import Dead, Retired
from chainstore.model.frame import FIXED_BYTES
from chainstore.observe import silent
from chainstore.ops.verify_records import verify_records
from chainstore.ops.verify_report import VerifyReport
from tests.odb.stores import Store, commit, put, tip
from tests.ops.damage import BIG, flip, opened, packs_of, place_of, spoil, told


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    made = Store(tmp_path / "store", encrypted=request.param)
    db = made.create()
    for number in range(3):
        commit(db, BIG, BIG + bytes([number]), b"%d" % number)
    db.close()
    return made


def records(store: Store) -> VerifyReport:
    return verify_records(store.layout, silent)


def test_an_intact_store_has_nothing_to_report_and_is_not_touched(store: Store):
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    report = records(store)
    with opened(store) as (db,), db.view() as view:
        assert report.records == view.object_count()
    assert told(report) == [] and report.lines == 4
    assert report.read_bytes == sum(path.stat().st_size for path in packs_of(store))
    unchanged = {path for path, data in before.items() if path.read_bytes() == data}
    assert {path for path in before if path.name not in ("lock.mdb", "publish")} <= unchanged


@pytest.mark.parametrize("at", [3, 40, 110, 2000])
def test_a_flipped_bit_is_named_by_pack_offset_and_object(store: Store, at: int):
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, BIG + b"\x01")
        path, place = place_of(db, id)
    flip(path, place.offset + at)
    (damage,) = told(records(store))
    assert (damage.id, damage.pack, damage.offset) == (str(id), path.name, place.offset)
    assert damage.check == "records" and f"byte {place.offset}" in damage.what and path.name in damage.what


def test_records_that_the_index_holds_too_are_checked_in_their_pack(store: Store):
    with opened(store) as (db,):
        newest = tip(db)
        spoil(db, newest, at=FIXED_BYTES + 6)
    (damage,) = told(records(store))
    assert damage.id == str(newest)


def test_several_records_without_headers_are_each_named(store: Store):
    with opened(store) as (db,):
        ids = [db.sealer.id(Kind.CHUNK, BIG + bytes([number])) for number in (0, 2)]
        for id in ids:
            spoil(db, id, at=0)
    assert {damage.id for damage in told(records(store))} == {str(id) for id in ids}


def test_a_pack_that_is_lost_or_cut_off_is_told_once_and_with_what_was_in_it(store: Store):
    (path,) = packs_of(store)
    size = path.stat().st_size
    os.truncate(path, size - 64)
    cut = told(records(store))
    assert [damage.check for damage in cut] == ["packs", "records"]
    path.unlink()
    lost = told(records(store))
    assert lost[0].check == "packs" and len(lost) > 10 and all(damage.pack == path.name for damage in lost)


def test_what_was_put_in_the_place_of_another_is_found(store: Store):
    with opened(store) as (db,):
        first, second = (place_of(db, db.sealer.id(Kind.CHUNK, BIG + bytes([number])))[1] for number in (0, 1))
        path, _ = place_of(db, db.sealer.id(Kind.CHUNK, BIG))
    assert first.length == second.length
    data = bytearray(path.read_bytes())
    a, b = (slice(place.offset, place.offset + place.length) for place in (first, second))
    data[a], data[b] = data[b], data[a]
    path.write_bytes(data)
    assert len(told(records(store))) == 2 and all("another" in damage.why for damage in told(records(store)))


def test_bytes_that_are_declared_dead_may_be_anything(store: Store):
    with opened(store) as (db,):
        (gone,) = put(db, b"gone" * 3000)
        commit(db, b"after")
        path, place = place_of(db, gone)
        with db.view() as view:
            name = view.pack(place.pack).pack
        db.publish(None, [Dead(name, ((place.offset, place.offset + place.length),))])
    data = bytearray(path.read_bytes())
    data[place.offset : place.offset + place.length] = bytes(place.length)
    path.write_bytes(data)
    assert told(records(store)) == []


def test_a_retired_pack_may_be_gone(store: Store):
    with opened(store) as (db,):
        path, place = place_of(db, tip(db))
        with db.view() as view:
            line = view.pack(place.pack)
        db.publish(None, [Dead(line.pack, ((0, line.length),)), Retired(line.pack)])
    path.unlink()
    assert told(records(store)) == []


def test_what_was_replaced_may_be_damaged_since_nobody_reads_it(store: Store):
    with opened(store) as (db,):
        id = db.sealer.id(Kind.CHUNK, BIG)
        spoil(db, id)
        db.suspect([id])
        put(db, BIG)
    assert told(records(store)) == []


def test_what_nobody_committed_is_not_looked_at(store: Store):
    (path,) = packs_of(store)
    with path.open("ab") as file:
        file.write(b"left by a crash")
    assert told(records(store)) == []


def test_a_rotten_log_is_found(store: Store):
    log = store.layout.log / "00000001"
    flip(log, log.stat().st_size // 2)
    assert "log" in {damage.check for damage in told(records(store))}


def test_a_rotten_row_of_the_index_is_found(store: Store):
    with opened(store) as (db,):
        key = bytes(db.sealer.id(Kind.CHUNK, BIG))
        with db.index.write() as rows:  # a recent one stays in its run until it is changed
            row = rows.get("objects", key)
            rows.delete("objects", key)
            rows.put("objects", key, row)
    (path,) = store.layout.index_root.glob("*/data.mdb")
    data = bytearray(path.read_bytes())
    at = data.find(key)
    while at >= 0:  # pages of older transactions hold the row as well
        data[at + len(key) + 2] ^= 1
        at = data.find(key, at + 1)
    path.write_bytes(data)
    assert any("objects" in damage.what for damage in told(records(store)))


def test_a_rotten_run_of_recent_rows_is_found(store: Store):
    with opened(store) as (db,), db.index.read() as rows:
        run = rows._stored("recent", bytes(7) + b"\x01")
    (path,) = store.layout.index_root.glob("*/data.mdb")
    data = path.read_bytes()
    assert run in data
    path.write_bytes(data.replace(run, run[:40] + bytes([run[40] ^ 1]) + run[41:]))
    assert any("recent" in damage.what for damage in told(records(store)))


def test_an_index_that_is_cut_off_is_found(store: Store):
    (path,) = store.layout.index_root.glob("*/data.mdb")
    os.truncate(path, 3 * 4096)
    assert told(records(store))[0].check == "index"


def test_the_pack_of_another_repository_is_found(store: Store, tmp_path: Path):
    class Other(Store):
        @property
        def format(self):
            return type(super().format)(b"S" * 16, super().format.suite)

    stranger = Other(tmp_path / "stranger", encrypted=store.encrypted)
    db = stranger.create()
    for number in range(3):
        commit(db, BIG, BIG + bytes([number]), b"%d" % number)
    db.close()
    shutil.copy(packs_of(stranger)[0], packs_of(store)[0])
    assert told(records(store))
