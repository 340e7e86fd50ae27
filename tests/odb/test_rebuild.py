"""Rebuilding: the index that comes out says what the one before said, and the log is healed from the index."""

import os
import shutil
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from chainstore.errors import Damaged, IdMismatch, StaleKeyring
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Dead, Mark, Retired, SetConfig, SetKeyring, SetRef, Swept, Unmark
from chainstore.model.frame import frame_record, split_record
from chainstore.observe import silent
from chainstore.odb.layout import Layout
from chainstore.odb.rebuild import rebuild_index
from chainstore.storage import fs, index, log
from tests.odb.stores import MAIN, Store, commit, logical, put, surroundings, tip

BIG = bytes(range(256)) * 40


def busy(store: Store) -> dict[str, object]:
    """Fill a store with everything a log can say, and return what its index says then."""
    with closing(store.create()) as db:
        first = commit(db, b"1", BIG)
        second = commit(db, b"2", BIG + b"2", ref="heads/other")
        third = commit(db, b"3", BIG + b"3")
        commit(db, b"4", ref="heads/other")
        db.publish(None, [SetRef("tags/v1", None, third), SetConfig("codec", "fast"), SetConfig("gone", "x")])
        db.publish(None, [SetConfig("gone", None), Mark((first, second), "last:1")])
        db.publish(None, [Unmark((first,)), Swept((second,)), SetRef("tags/v1", third, None)])
        return logical(db)


def pack_paths(store: Store) -> list:
    return sorted(path for path in store.layout.packs.rglob("*") if path.is_file())


def test_the_new_index_says_what_the_old_one_said(either_store):
    before = busy(either_store)
    old = {path.name for path in (either_store.root / "index").iterdir()}
    report = either_store.rebuild()
    assert (report.problems, report.log_healed, report.lost_lines, report.moved) == ([], False, False, {})
    with closing(either_store.open()) as db:
        assert logical(db) == before
        assert report.objects == len(before["objects"])
    assert old.isdisjoint(path.name for path in (either_store.root / "index").iterdir())


def test_rebuilding_without_any_index_gives_the_same(either_store):
    before = busy(either_store)
    shutil.rmtree(either_store.root / "index")
    (either_store.root / "index.owner").unlink()
    either_store.layout.create()
    either_store.rebuild()
    with closing(either_store.open()) as db:
        assert logical(db) == before


def test_a_rebuild_from_the_last_checkpoint_alone_gives_the_same(either_store, monkeypatch):
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    before = busy(either_store)
    assert fs.list_dir(either_store.layout.log) != ["00000001"]
    shutil.rmtree(either_store.root / "index")
    either_store.layout.create()
    assert either_store.rebuild().problems == []
    with closing(either_store.open()) as db:
        assert logical(db) == before


def test_a_handle_that_was_open_goes_over_to_the_new_index(store):
    with closing(store.create()) as db:
        commit(db, b"1")
        store.rebuild()
        commit(db, b"2")
        with closing(store.open()) as other:
            assert logical(other) == logical(db)


def test_a_look_that_is_under_way_goes_on_in_the_old_index(store):
    with closing(store.create()) as db:
        first = commit(db, b"1")
        with db.view() as view:
            store.rebuild()
            other = threading.Thread(target=commit, args=(db, b"2"))
            other.start()
            other.join()
            assert view.ref(MAIN).target == first
        assert tip(db) != first


@pytest.mark.parametrize("hurt", ["cut", "rot", "gone"])
def test_a_damaged_log_is_healed_from_the_index(either_store, hurt):
    before = busy(either_store)
    path = either_store.layout.log / "00000001"
    intact = path.read_bytes()
    if hurt == "cut":
        os.truncate(path, len(intact) // 2)
    elif hurt == "rot":
        path.write_bytes(intact[:300] + bytes([intact[300] ^ 1]) + intact[301:])
    else:
        path.unlink()
    report = either_store.rebuild()
    assert report.log_healed
    assert not report.lost_lines
    assert path.read_bytes() == intact
    with closing(either_store.open()) as db:
        assert logical(db) == before


def test_with_both_damaged_what_is_lost_is_said(store):
    with closing(store.create()) as db:
        first = commit(db, b"1")
        position = db._index.position()
        commit(db, b"2")
        commit(db, b"3")
    path = store.layout.log / "00000001"
    raw = bytearray(path.read_bytes())
    raw[position.end + 70] ^= 1  # the second commit's line
    path.write_bytes(raw)
    shutil.rmtree(store.root / "index")
    store.layout.create()
    report = store.rebuild()
    assert report.lost_lines
    assert report.problems
    with closing(store.open()) as db:
        assert tip(db) == first


def test_with_nothing_left_it_says_so(store):
    busy(store)
    shutil.rmtree(store.root / "index")
    (store.layout.log / "00000001").unlink()
    store.layout.create()
    with pytest.raises(Damaged, match="refs are lost"):
        store.rebuild()


def test_a_rebuild_that_was_cut_off_is_begun_anew(store, monkeypatch):
    before = busy(store)
    for operation in ("create", "rename", "unlink"):

        def die(name, path, operation=operation):
            if name == operation and "publish" not in path.name:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(fs, "failpoint", die)
            with pytest.raises(KeyboardInterrupt):
                store.rebuild()
        store.rebuild()
        with closing(store.open()) as db:
            assert logical(db) == before
        assert len(list((store.root / "index").iterdir())) == 1


def test_only_indexes_are_removed_from_a_folder_that_the_user_named(store, tmp_path):
    busy(store)
    mine = tmp_path / "elsewhere"
    mine.mkdir()
    others = ["notes", "0" * 32]
    for name in others:
        (mine / name).mkdir()
        (mine / name / "data.mdb").write_text("somebody else's")
    layout = Layout(store.root, mine)
    for _ in range(2):
        rebuild_index(layout, store.format, store.sealer, 0, surroundings(), silent)
    assert all((mine / name / "data.mdb").read_text() == "somebody else's" for name in others)
    assert len(list(mine.iterdir())) == len(others) + 1


# ---- packs ----


def test_a_record_whose_header_is_damaged_is_left_out_and_said(store):
    with closing(store.create()) as db:
        lost, kept = put(db, BIG, BIG[::-1])
        with db.view() as view:
            place = view.place(lost)
    (path,) = pack_paths(store)
    raw = bytearray(path.read_bytes())
    raw[place.offset + 9] ^= 1
    path.write_bytes(raw)
    assert len(store.rebuild().problems) == 1
    with closing(store.open()) as db:
        assert not db.has(lost)
        assert bytes(db.read(kept)) == BIG[::-1]
        put(db, BIG)
        assert bytes(db.read(lost)) == BIG


def test_a_missing_pack_is_said_and_its_refs_go_back_to_what_is_complete(store, monkeypatch):
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 25_000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 5_000)
    with closing(store.create()) as db:
        first = commit(db, BIG)
        names = set(pack_paths(store))
        second = commit(db, BIG + b"2", BIG + b"3")
        new = set(pack_paths(store)) - names
        assert new
    for path in new:
        path.unlink()
    report = store.rebuild()
    assert report.moved == {MAIN: (str(second), str(first))}
    assert any("missing" in problem or "committed" in problem for problem in report.problems)
    with closing(store.open()) as db:
        assert tip(db) == first
        assert bytes(db.read(first)) != b""
        commit(db, b"on it goes")


def test_a_commit_that_lacks_only_a_chunk_is_not_complete(store, monkeypatch):
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 25_000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 5_000)
    with closing(store.create()) as db:
        first = commit(db, BIG)
        before = set(pack_paths(store))
        put(db, BIG + b"2", BIG + b"3")
        new = set(pack_paths(store)) - before
        commit(db, BIG + b"2", BIG + b"3")
        assert len(new) == 1
    new.pop().unlink()
    assert set(store.rebuild().moved) == {MAIN}
    with closing(store.open()) as db:
        assert tip(db) == first


def test_dead_ranges_and_retired_packs_are_skipped(store):
    with closing(store.create()) as db:
        kept, dead = put(db, BIG, BIG[::-1])
        with db.view() as view:
            place = view.place(dead)
            (line,) = (line for _, line in view.packs())
        end = place.offset + place.length
        db.publish(None, [Dead(line.pack, ((place.offset, end),))])
    path = pack_paths(store)[0]
    store.rebuild()  # the bytes are still there
    with closing(store.open()) as db:
        assert set(db.scan()) == {kept}
    raw = bytearray(path.read_bytes())
    raw[place.offset : end] = bytes(end - place.offset)  # punched
    path.write_bytes(raw)
    assert store.rebuild().problems == []  # nothing is wrong with what is not there any more
    with closing(store.open()) as db:
        assert set(db.scan()) == {kept}
        db.publish(None, [Retired(line.pack)])
        (again,) = put(db, BIG)
        assert again == kept
    path.unlink()
    report = store.rebuild()
    assert report.problems == []


def test_of_two_equal_records_the_intact_one_wins_whatever_the_order(store, monkeypatch):
    monkeypatch.setattr(log, "SEGMENT_BYTES", 300)  # then only the packs' numbers say which came first
    with closing(store.create()) as db:
        one, two = db.batch("none"), db.batch("none")
        one.append(Kind.CHUNK, b"in the first pack")
        two.append(Kind.CHUNK, b"in the second")
        id = two.append(Kind.CHUNK, BIG).id
        db.publish(one, [])
        db.publish(two, [])
        with db.view() as view:
            place = view.place(id)
            path = db.packs.path(view.pack(place.pack).pack)
        raw = bytearray(path.read_bytes())
        raw[place.offset + 500] ^= 1
        path.write_bytes(raw)
        with pytest.raises(IdMismatch):
            db.read(id)
        db.retire_batch(one)
        put(db, BIG)  # again, into the first pack
        db.retire_batch(two)
        assert bytes(db.read(id)) == BIG
        for number in range(5):
            put(db, b"%d" % number)
    store.rebuild()
    with closing(store.open()) as db:
        assert bytes(db.read(id)) == BIG


def test_many_records_go_in_several_transactions(store, monkeypatch):
    monkeypatch.setattr("chainstore.odb.replay._RECORDS_PER_TRANSACTION", 7)
    with closing(store.create()) as db:
        put(db, *(b"%d" % n for n in range(50)))
        before = logical(db)
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before


def test_orphaned_bytes_behind_the_committed_length_are_ignored(store):
    with closing(store.create()) as db:
        put(db, BIG)
        before = logical(db)
        batch = db.batch("none")
        batch.append(Kind.CHUNK, BIG[::-1])
        batch.finish()
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before


def test_records_of_another_repository_are_left_out(store, tmp_path):
    with closing(store.create()) as db:
        put(db, BIG)
    (path,) = pack_paths(store)
    with fs.open_file(path) as file:
        header, payload = split_record(memoryview(file.pread(0, 1 << 20)), "pack")
    foreign = replace(header, repo_id=b"X" * 16, id=ObjectId(b"f" * 32))
    path.write_bytes(b"".join(frame_record(foreign, payload)))
    store.rebuild()
    with closing(store.open()) as db:
        assert list(db.scan()) == []


def test_a_stale_keyring_is_still_stale_after_a_rebuild_from_a_checkpoint(tmp_path, monkeypatch):
    store = Store(tmp_path / "store", encrypted=True, keyring=3)
    store.create().close()
    with closing(store.open()) as db:
        db.publish(None, [SetKeyring(5)])
    with pytest.raises(StaleKeyring):
        store.open()
    newer = Store(store.root, True, 5)
    monkeypatch.setattr(log, "SEGMENT_BYTES", 100)
    with closing(newer.open()) as db:
        put(db, b"1")
        put(db, b"2")
    newer.rebuild()
    newer.open().close()
    with pytest.raises(StaleKeyring):
        store.rebuild()


def test_an_index_full_of_noise_is_not_trusted_and_not_needed(store):
    before = busy(store)
    with closing(store.open()) as db:
        path = db.index_path / "data.mdb"
    raw = bytearray(path.read_bytes())
    raw[2 * 4096 :] = os.urandom(len(raw) - 2 * 4096)
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        store.open()
    assert index.Index.verify_file(path.parent)
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before
