"""Verify: nothing to say of an intact store, everything of a damaged one, and never a crash."""

import os
from contextlib import closing

import pytest

from chainstore.errors import InvalidInput, StorageError
from chainstore.model.change import Mark
from chainstore.observe import silent
from chainstore.ops.history import read_commit
from chainstore.ops.verify import LEVELS, VerifyReport, verify
from chainstore.storage import log
from tests.odb.stores import Store, commit, logical, put

BIG = bytes(range(256)) * 40


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def store(tmp_path, request) -> Store:
    return Store(tmp_path / "store", encrypted=request.param)


def look(db, level="data", threads=1) -> VerifyReport:
    return verify(db, level, threads=threads, observer=silent)


def without_keyring(report: VerifyReport) -> list:
    """Leave out what the stores of these tests lack: their keys are made from a number."""
    return [damage for damage in report.damaged if "keyring" not in damage.what]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_an_intact_store_has_nothing_to_report(store, level, threads):
    with closing(store.create()) as db:
        for number in range(4):
            commit(db, b"%d" % number, BIG, BIG + bytes([number]))
        before = logical(db)
        report = look(db, level, threads)
        assert without_keyring(report) == []
        assert (report.lines, report.refs) == (5, 2)
        if level != "quick":
            assert (report.commits, report.chunks) == (4, 9)
        assert report.read_bytes == (5 * len(BIG) + 4 + 4 if level == "data" else 0)
        assert logical(db) == before


def test_a_level_that_does_not_exist_is_refused(store):
    with closing(store.create()) as db, pytest.raises(InvalidInput):
        look(db, "everything")


def flip(path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_damaged_bytes_of_a_chunk_are_found_with_their_commits_and_paths(store):
    with closing(store.create()) as db:
        first = commit(db, b"1", BIG)
        second = commit(db, b"2", BIG)
        commit(db, b"3")
        id = db.sealer.id(3, BIG)
        with db.view() as view:
            place = view.place(id)
            path = db.packs.path(view.pack(place.pack).pack)
        flip(path, place.offset + 1000)
        assert without_keyring(look(db, "links")) == []
        (damage,) = without_keyring(look(db))
        assert (damage.id, damage.paths) == (str(id), ("k1",))
        assert set(damage.commits) == {str(first), str(second)}


def test_a_pack_that_is_cut_short_or_gone_is_found_by_the_quick_look(store):
    with closing(store.create()) as db:
        commit(db, b"1", BIG)
        (path,) = (p for p in store.layout.packs.rglob("*") if p.is_file())
        for hurt in (lambda: os.truncate(path, 200), path.unlink):
            hurt()
            assert any("pack" in damage.what for damage in look(db, "quick").damaged)
            assert len(without_keyring(look(db, "links"))) >= 2


def test_a_lost_row_is_found(store):
    with closing(store.create()) as db:
        commit(db, b"1", BIG)
        with db._index.write() as rows:
            rows.delete("objects", db.sealer.id(3, BIG))
        (damage,) = without_keyring(look(db, "links"))
        assert "not in the store" in damage.what
        assert damage.paths == ("k1",)


def test_a_lost_page_and_a_lost_commit_are_found(store):
    for which in ("tree", "commit"):
        place = Store(store.root / which, store.encrypted)
        with closing(place.create()) as db:
            first = commit(db, b"1", BIG)
            commit(db, b"2", BIG)
            gone = first if which == "commit" else read_commit(db, first).tree
            with db._index.write() as rows:
                rows.delete("objects", gone)
            found = without_keyring(look(db, "links"))
            assert [damage.id for damage in found] == [str(gone)]


def test_a_rotten_log_is_found(store):
    with closing(store.create()) as db:
        commit(db, b"1")
        position = db._index.position()
        commit(db, b"2")
        flip(store.layout.log / "00000001", position.start + 70)
        assert without_keyring(look(db, "quick"))


def test_a_log_that_is_shorter_than_the_index_is_found(store):
    with closing(store.create()) as db:
        position = db._index.position()
        commit(db, b"1")
        db.log.cut(position)
        assert any("ends at line" in damage.what for damage in look(db, "quick").damaged)


def test_a_damaged_format_or_backup_is_found_while_either_still_works(store):
    with closing(store.create()) as db:
        for name in ("format", "format.bak"):
            intact = (store.root / name).read_bytes()
            (store.root / name).write_bytes(intact.replace(b"1048576", b"1048577"))
            assert any("checksum" in damage.what for damage in look(db, "quick").damaged)
            (store.root / name).unlink()
            assert any("missing" in damage.what for damage in look(db, "quick").damaged)
            (store.root / name).write_bytes(intact)


def test_segments_that_a_crash_left_behind_are_no_damage(store, monkeypatch):
    monkeypatch.setattr(log, "SEGMENT_BYTES", 300)
    monkeypatch.setattr(log.Log, "drop_before", lambda self, segment: None)
    with closing(store.create()) as db:
        for number in range(10):
            put(db, b"%d" % number)
        assert len(db.log.segments()) > 1
        assert without_keyring(look(db, "quick")) == []


def test_of_a_forgotten_snapshot_anything_may_be_gone(store):
    with closing(store.create()) as db:
        first = commit(db, b"1", BIG)
        commit(db, b"2")
        db.publish(None, [Mark((first,), "last:1")])
        with db._index.write() as rows:
            rows.delete("objects", db.sealer.id(3, BIG))
        report = look(db)
        assert without_keyring(report) == []
        assert report.commits == 2


def test_a_disk_that_cannot_be_read_is_reported_and_not_raised(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, b"1", BIG)

        def fail(*_):
            raise StorageError("cannot read: input/output error")

        monkeypatch.setattr(db.packs, "read_into", fail)
        assert any("input/output" in damage.what for damage in look(db).damaged)


def test_pages_are_read_once_however_many_commits_share_them(store, monkeypatch):
    with closing(store.create()) as db:
        for number in range(20):
            commit(db, *(b"%d" % n for n in range(300)), message=str(number))
        reads = []
        read = db.read
        monkeypatch.setattr(db, "read", lambda id, out=None: (reads.append(id), read(id, out))[1])
        report = look(db, "links")
        assert report.pages < 20
        assert len(reads) <= report.pages + 2 * report.commits + 2
