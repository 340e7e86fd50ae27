"""Verify: nothing to say of an intact store, everything of a damaged one, and never a crash."""

import os
from contextlib import closing

import pytest

from chainstore.errors import InvalidInput, StorageError
from chainstore.ids import Kind
from chainstore.model.change import Mark, SetRef, Swept
from chainstore.model.commit import Note, Stats
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Entry, Extent, Root, read_tree, tree_pages
from chainstore.observe import silent
from chainstore.ops import verify as verify_module
from chainstore.ops.commit import write_commit, write_trees
from chainstore.ops.history import read_commit
from chainstore.ops.sampling import Part
from chainstore.ops.verify import LEVELS, VerifyReport, verify
from chainstore.ops.verify_report import grouped
from chainstore.storage import fs, log
from chainstore.storage.index import Index
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
            assert [(damage.id, damage.paths) for damage in found] == [(str(gone), ("**",))]


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


def rows_gone(db, *ids) -> None:
    with db._index.write() as rows:
        for id in ids:
            rows.delete("objects", id)
            rows.delete("inline", id)


def pages_of(db, id) -> list:
    """Return the pages that list the state of a commit: the topmost first."""
    root = Root.from_bytes(bytes(db.read(read_commit(db, id).tree)))
    return list(tree_pages(root.state, lambda page: bytes(db.read(page))))


def test_a_lost_page_says_between_which_names_its_entries_are(store):
    with closing(store.create()) as db:
        first = commit(db, *(b"%d" % n for n in range(1000)))
        second = commit(db, *(b"%d" % n for n in range(1000)), message="again")
        top, *leaves = pages_of(db, first)
        whole = {page: [e.path[0] for e in read_tree(page, lambda id: bytes(db.read(id)))] for page in leaves}
        lost = next(page for page in leaves if "k0" not in whole[page] and "k999" not in whole[page])
        rows_gone(db, lost)
        (damage,) = without_keyring(look(db, "links"))
        assert damage.id == str(lost) and damage.check == "pages" and damage.paths == ("**",)
        assert set(damage.commits) == {str(first), str(second)}
        names = whole[lost]
        before, after = int(names[0][1:]) - 1, int(names[-1][1:]) + 1
        assert f"({len(names)} entries, after k{before}, before k{after})" in damage.what
        rows_gone(db, top)
        assert {damage.id for damage in without_keyring(look(db, "links"))} == {str(top)}


def test_what_a_lost_extent_page_hits_is_one_path(store):
    with closing(store.create()) as db:
        batch = db.batch("none")
        extents = tuple(Extent(batch.append(Kind.CHUNK, bytes([n, n])).id, 0, 1) for n in range(200)) * 2
        entries = [Entry(("a",), ["x"], None, extents[:1]), Entry(("big",), ["x"], None, extents)]
        root, _ = write_trees(batch, Manifest([*entries, Entry(("z",), ["x"], None, extents[1:2])]), Manifest())
        id = write_commit(batch, root, (), Note(""), 1, Stats())
        db.publish(batch, [SetRef("heads/main", None, id, "")])
        db.retire_batch(batch)
        (_, lost, *_) = pages_of(db, id)
        rows_gone(db, lost)
        (damage,) = without_keyring(look(db))
        assert (damage.id, damage.paths, damage.commits) == (str(lost), ("big",), (str(id),))
        rows_gone(db, extents[0].chunk)
        assert all("a" in damage.paths for damage in without_keyring(look(db)) if damage.check == "chunks")
        assert {damage.check for damage in without_keyring(look(db))} == {"pages", "chunks"}


def test_of_a_lost_pack_every_object_is_named_and_one_sentence_says_it(store):
    with closing(store.create()) as db:
        ids = [commit(db, BIG, BIG + bytes([n])) for n in range(5)]
        (path,) = (p for p in store.layout.packs.rglob("*") if p.is_file())
        path.unlink()
        damaged = without_keyring(look(db))
        with db.view() as view:
            assert {damage.id for damage in damaged} >= {str(id) for id, _ in view.objects()}
        shared = next(damage for damage in damaged if damage.id == str(db.sealer.id(3, BIG)))
        assert set(shared.commits) == {str(id) for id in ids} and shared.paths == ("k0",)
        groups = grouped(damaged)
        assert len(groups) == 4 and sum(group.size for group in groups) == len(damaged)
        assert all(set(group.commits) == {str(id) for id in ids} for group in groups[1:])


def test_a_snapshot_that_gc_swept_meanwhile_is_no_damage(store, monkeypatch):
    with closing(store.create()) as db:
        first = commit(db, b"1", BIG)
        newest = commit(db, b"2")
        gone = db.sealer.id(3, BIG)
        read = db.read

        def read_while_gc_runs(id, out=None):
            if id == newest and gone_yet.count(None) == 1:
                gone_yet.clear()
                db.publish(None, [Mark((first,), "last:1")])
                db.publish(None, [Swept((first,))])
                rows_gone(db, gone, read_commit(db, first).tree)
            return read(id, out)

        gone_yet = [None]
        monkeypatch.setattr(db, "read", read_while_gc_runs)
        walk_pages = verify_module.walk_pages

        def walk_after_the_marks_were_read(fetch, reach, observer):
            gone_yet[:] = [None]
            db.read(newest)
            walk_pages(fetch, reach, observer)

        gone_yet.clear()
        monkeypatch.setattr(verify_module, "walk_pages", walk_after_the_marks_were_read)
        report = look(db)
        assert db.length(gone) < 0 and without_keyring(report) == []


def test_damage_that_hits_a_kept_commit_beside_a_swept_one_names_only_the_kept(store):
    with closing(store.create()) as db:
        first = commit(db, BIG)
        second = commit(db, BIG, b"2")
        db.publish(None, [Mark((first,), "last:1")])
        rows_gone(db, db.sealer.id(3, BIG))
        (damage,) = without_keyring(look(db))
        assert damage.commits == (str(second),)


def test_a_commit_of_which_only_the_index_holds_the_record_is_told_when_data_is_read(store):
    with closing(store.create()) as db:
        id = commit(db, BIG)
        with db.view() as view:
            place = view.place(id)
            path = db.packs.path(view.pack(place.pack).pack)
        flip(path, place.offset + 120)
        assert without_keyring(look(db, "links")) == []
        (damage,) = without_keyring(look(db))
        assert damage.id == str(id) and "the index still holds it whole" in damage.what


def test_a_sample_reads_what_it_says_and_the_names_are_still_walked(store):
    with closing(store.create()) as db:
        for number in range(30):
            commit(db, BIG + bytes([number]))
        reports = [verify(db, "data", threads=1, observer=silent, sample=Part(number, 3)) for number in (1, 2, 3)]
        assert sum(report.chunks_read for report in reports) == 30
        assert all(0 < report.chunks_read < 30 and report.commits == 30 for report in reports)
        with pytest.raises(InvalidInput, match="links"):
            verify(db, "links", threads=1, observer=silent, sample=Part(1, 3))


def test_progress_counts_bytes_and_ends_at_all_of_them(store):
    with closing(store.create()) as db:
        for number in range(5):
            commit(db, BIG + bytes([number]))
        seen = []
        verify(db, "data", threads=2, observer=seen.append)
        last = [event for event in seen if event.verb == "verify"][-1]
        assert last.done == last.total > 5 * len(BIG) // 100
        assert any(event.verb == "verify names" for event in seen)


def test_an_index_that_looks_torn_is_looked_at_again_while_nobody_publishes(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, BIG)
        looks = []

        def torn_at_first(path):
            with fs.open_file(store.layout.leases / "publish", write=True) as file:
                looks.append(file.flock(exclusive=True))
            return ["page 7 is torn"] if len(looks) == 1 else []

        monkeypatch.setattr(Index, "verify_file", staticmethod(torn_at_first))
        before = (store.layout.leases / "publish").read_bytes()
        assert without_keyring(look(db)) == []
        assert looks == [True, False]  # the second time it was held
        assert (store.layout.leases / "publish").read_bytes() == before
        monkeypatch.setattr(Index, "verify_file", staticmethod(lambda path: ["page 7 is torn"]))
        assert "page 7 is torn" in without_keyring(look(db))[0].what
