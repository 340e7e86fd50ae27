"""The local database: what was published is there, also after a crash; what was not is all there or not at all."""

import errno
import multiprocessing
import os
import threading
from contextlib import closing, contextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainstore.errors import (
    Damaged,
    ForkedHandle,
    IdMismatch,
    ReadOnly,
    RefConflict,
    SnapshotForgotten,
    StorageError,
    StoreFull,
)
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Incident, Mark, SetConfig, SetRef, Swept
from chainstore.model.frame import parse_contents, split_record
from chainstore.odb.batch import LocalBatch
from chainstore.odb.conflicts import GoneMeanwhile
from chainstore.odb.editor import Editor
from chainstore.storage import fs, index, log
from chainstore.storage.pack import scan
from tests.odb.stores import MAIN, Store, commit, logical, put, tip

BIG = bytes(range(256)) * 40  # not held in the index
FORK = multiprocessing.get_context("fork")


def files(store: Store) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(store.root.rglob("*")) if p.is_file() and p.name != "lock.mdb"}


def in_child(work, *args) -> int:
    """Run `work` in a process of its own and return how it ended."""
    child = FORK.Process(target=work, args=args)
    child.start()
    child.join(30)
    assert child.exitcode is not None
    return child.exitcode


@contextmanager
def failing(monkeypatch, *failing_on: tuple[str, str], code: int = errno.ENOSPC):
    """Let operations of these names fail in these folders."""

    def fail(name, path):
        if any(name == operation and folder in str(path) for operation, folder in failing_on):
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(fs, "failpoint", fail)
        yield


@contextmanager
def failing_index(monkeypatch, error: BaseException, *, after: bool = False):
    """Let commits of the index fail, before or after they happened."""

    def end(self, kind, value, trace):
        self._environment.end(self, commit=kind is None and after)
        if kind is None:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(index.Writer, "__exit__", end)
        yield


# ---- what is published is there ----


def test_objects_come_back_from_the_same_handle_another_and_a_later_one(either_store):
    with closing(either_store.create()) as db, closing(either_store.open(readonly=True)) as reader:
        small, large = put(db, b"small", BIG)
        for handle in (db, reader):
            assert bytes(handle.read(small)) == b"small"
            assert bytes(handle.read(large)) == BIG
            out = bytearray(len(BIG))
            handle.read(large, memoryview(out))
            assert out == BIG
            assert (handle.length(large), handle.length(ObjectId(bytes(32)))) == (len(BIG), -1)
    with closing(either_store.open()) as db:
        assert bytes(db.read(large)) == BIG
        assert set(db.scan()) == {small, large}


def test_nothing_is_there_before_it_is_published(store):
    with closing(store.create()) as db:
        batch = db.batch("none")
        id = batch.append(Kind.CHUNK, BIG).id
        assert not db.has(id)
        with pytest.raises(IdMismatch):
            db.read(id)
        db.publish(batch, [])
        db.retire_batch(batch)
        assert bytes(db.read(id)) == BIG


def test_a_ref_that_moved_meanwhile_is_a_conflict_and_nothing_is_published(store):
    with closing(store.create()) as db, closing(store.open()) as other:
        first = commit(db, b"1")
        commit(other, b"2")
        before = logical(db)
        with pytest.raises(RefConflict):
            put(db, b"3", changes=(SetRef(MAIN, first, first),))
        assert logical(db) == before


def test_a_ref_cannot_be_moved_twice_at_once(store):
    with closing(store.create()) as db:
        a, b = commit(db, b"1"), commit(db, b"2")
        with pytest.raises(RefConflict):
            db.publish(None, [SetRef("tags/x", None, a), SetRef("tags/x", None, b)])
        db.publish(None, [SetRef("tags/x", None, a)])
        db.publish(None, [SetRef("tags/x", a, None)])
        assert tip(db, "tags/x") is None
        with db.view() as view:
            assert [line.new for line in view.reflog("tags/x")] == [None, a]


def test_a_database_that_was_opened_for_reading_refuses_every_change(store):
    store.create().close()
    with closing(store.open(readonly=True)) as db:
        for change in (db.batch, lambda: db.publish(None, []), db.settle):
            with pytest.raises(ReadOnly):
                change()


def test_no_ref_and_no_commit_may_lead_to_what_gc_takes(store):
    with closing(store.create()) as db:
        first = commit(db, b"1")
        commit(db, b"2")
        db.publish(None, [Mark((first,), "last:1")])
        db.publish(None, [SetRef("tags/kept", None, first)])  # only marked: it may still be rescued, and is
        with db.view() as view:
            assert view.mark(first) is None
        with pytest.raises(RefConflict, match="tags/kept"):
            db.publish(None, [Mark((first,), "last:1")])
        db.publish(None, [SetRef("tags/kept", first, None), Mark((first,), "last:1")])
        db.publish(None, [Swept((first,))])
        with pytest.raises(SnapshotForgotten):
            db.publish(None, [SetRef("tags/late", None, first)])
        with pytest.raises(SnapshotForgotten):
            db.publish(None, [], parents=[first])


def test_a_commit_that_relies_on_a_collected_object_is_refused(store):
    with closing(store.create()) as db:
        (id,) = put(db, BIG)
        batch = db.batch("none")
        assert batch.append(Kind.CHUNK, BIG).stored == 0
        assert batch.relied == {id}
        with db._index.write() as rows:
            rows.delete("objects", id)
        with pytest.raises(GoneMeanwhile):
            db.publish(batch, [])
        db.retire_batch(batch)


def test_threads_that_publish_at_once_all_succeed(either_store):
    with closing(either_store.create()) as db:
        errors = []

        def work(number):
            try:
                for i in range(5):
                    commit(db, b"%d-%d" % (number, i), ref=f"heads/{number}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        with db.view() as view:
            assert [row.moves for row in view.refs() if row.name != "HEAD"] == [5] * 4
            for number in range(4):  # I9: each line begins where the one before ended
                lines = view.reflog(f"heads/{number}")
                assert all(newer.old == older.new for newer, older in pairwise(lines))


def publish_some(store: Store, number: int) -> None:
    with closing(store.open()) as db:
        for i in range(6):
            put(db, b"%d-%d" % (number, i), BIG + bytes([number, i]))


def test_processes_that_publish_at_once_lose_nothing(store):
    store.create().close()
    children = [FORK.Process(target=publish_some, args=(store, n)) for n in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    with closing(store.open()) as db:
        assert len(list(db.scan())) == 36
        assert all(len(db.read(id)) for id in db.scan())
        before = logical(db)
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before


# ---- packs ----


@pytest.fixture
def small_packs(monkeypatch):
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 40_000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 4_000)


def test_a_full_pack_is_closed_with_a_list_of_its_records(store, small_packs):
    with closing(store.create()) as db:
        put(db, *(BIG + bytes([n]) for n in range(2)))
        put(db, *(BIG + bytes([n]) for n in range(10)))
        with db.view() as view:
            lines = [line for _, line in view.packs()]
        assert len(lines) >= 3
        assert [bool(line.contents) for line in lines[:-1]] == [True] * (len(lines) - 1)
        for line in lines[:-1]:
            with fs.open_file(db.packs.path(line.pack)) as file:
                assert file.size() == line.length
                _, payload = split_record(memoryview(file.pread(line.contents, 1 << 20)), "pack")
                assert list(parse_contents(payload, "pack")) == list(scan(file, 0, line.contents, "pack"))


def pack_names(store: Store) -> list[str]:
    return sorted(path.name for path in store.layout.packs.rglob("*") if path.is_file())


def packed_bytes(store: Store) -> int:
    return sum(path.stat().st_size for path in store.layout.packs.rglob("*") if path.is_file())


def test_a_loop_of_short_processes_fills_one_pack(store):
    store.create().close()
    for number in range(5):
        assert in_child(put_once, store, number) == 0
    assert len(pack_names(store)) == 1
    with closing(store.open()) as db:
        assert len(list(db.scan())) == 5


def put_once(store: Store, number: int) -> None:
    with closing(store.open()) as db:
        put(db, b"object %d" % number)


def test_two_batches_at_once_use_two_packs_and_the_next_one_takes_one_of_them(store):
    with closing(store.create()) as db:
        one, two = db.batch("none"), db.batch("none")
        one.append(Kind.CHUNK, b"1")
        two.append(Kind.CHUNK, b"2")
        db.publish(two, [])
        db.publish(one, [])
        db.retire_batch(one)
        db.retire_batch(two)
        put(db, b"3")
        assert len(pack_names(store)) == 2


def test_an_idle_handle_goes_on_behind_what_another_process_appended(store):
    with closing(store.create()) as db:
        (mine,) = put(db, BIG)
        assert in_child(put_once, store, 1) == 0
        (more,) = put(db, BIG + b"more")
        assert len(pack_names(store)) == 1
        assert len(list(db.scan())) == 3
        assert bytes(db.read(mine)) == BIG
        assert bytes(db.read(more)) == BIG + b"more"
        assert [len(db.read(id)) > 0 for id in db.scan()] == [True] * 3


def append_and_die(store: Store) -> None:
    batch = store.open().batch("none")
    batch.append(Kind.CHUNK, BIG + b"never published")
    os._exit(9)


def test_what_a_killed_writer_appended_is_cut_off_by_the_next(store):
    with closing(store.create()) as db:
        put(db, BIG)
        (pack,) = pack_names(store)
        path = store.layout.packs / pack[:2] / pack
        committed = path.stat().st_size
    assert in_child(append_and_die, store) == 9
    assert path.stat().st_size > committed
    with closing(store.open()) as db:
        put(db, b"next")
        assert path.stat().st_size < committed + 1000
        assert pack_names(store) == [pack]
        assert len(list(db.scan())) == 2
    assert not store.rebuild().problems


def test_a_pack_that_lost_its_end_is_left_alone_and_a_new_one_begun(store):
    with closing(store.create()) as db:
        put(db, BIG)
    (pack,) = pack_names(store)
    path = store.layout.packs / pack[:2] / pack
    os.truncate(path, 100)
    with closing(store.open()) as db:
        (id,) = put(db, b"new")
        assert bytes(db.read(id)) == b"new"
        assert len(pack_names(store)) == 2
    assert path.stat().st_size == 100


def test_a_batch_that_could_not_store_something_cannot_be_published(store, monkeypatch):
    with closing(store.create()) as db:
        batch = db.batch("none")
        with failing(monkeypatch, ("pwrite", "packs")), pytest.raises(StoreFull):
            batch.append(Kind.CHUNK, BIG)
        with pytest.raises(StorageError, match="could not be stored"):
            batch.append(Kind.CHUNK, BIG)  # claimed, and not there: it must not count as stored
        with pytest.raises(StorageError, match="could not be stored"):
            db.publish(batch, [])
        db.retire_batch(batch)
        (id,) = put(db, BIG)
        assert bytes(db.read(id)) == BIG
    assert not store.rebuild().problems


def test_a_pack_whose_disk_failed_is_not_used_through_the_same_handle(store, monkeypatch):
    with closing(store.create()) as db:
        put(db, b"1")
        with failing(monkeypatch, ("fdatasync", "packs"), code=errno.EIO), pytest.raises(StorageError):
            put(db, b"2")
        put(db, b"3")
        assert len(list(db.scan())) == 2


# ---- damage ----


def damage(db, id: ObjectId) -> None:
    with db.view() as view:
        place = view.place(id)
        path = db.packs.path(view.pack(place.pack).pack)
    raw = bytearray(path.read_bytes())
    raw[place.offset + 1000] ^= 1
    path.write_bytes(raw)


def test_damaged_bytes_are_never_returned_and_the_object_is_stored_again(either_store):
    with closing(either_store.create()) as db:
        (id,) = put(db, BIG)
        damage(db, id)
        with pytest.raises(IdMismatch) as error:
            db.read(id)
        assert error.value.id == str(id)
        assert not db.has(id)
        before = packed_bytes(either_store)
        put(db, BIG)
        assert bytes(db.read(id)) == BIG
        assert db.has(id)
        put(db, BIG)  # known again: it is not stored a third time
        after = packed_bytes(either_store)
        assert after - before < 1.5 * len(BIG)
    either_store.rebuild()
    with closing(either_store.open()) as db:
        assert bytes(db.read(id)) == BIG


def test_an_object_that_is_small_no_more_is_not_read_from_where_the_small_one_was(store):
    plain = b"a" * 9000  # small with a codec, large without
    with closing(store.create()) as db:
        batch = db.batch("auto")
        id = batch.append(Kind.CHUNK, plain).id
        db.publish(batch, [])
        db.retire_batch(batch)
        with db.view() as view:
            assert view.inline(id) is not None
        db._reader.suspects.add(id)
        put(db, plain)
        with db.view() as view:
            assert view.inline(id) is None
        assert bytes(db.read(id)) == plain


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_happens_to_a_pack_a_read_gives_the_right_bytes_or_none(either_store, data):
    chunks = [b"small", BIG, bytes(20_000), BIG * 3]
    if not either_store.root.exists():
        with closing(either_store.create()) as db:
            batch = db.batch("auto")
            for chunk in chunks:
                batch.append(Kind.CHUNK, chunk)
            db.publish(batch, [])
            db.retire_batch(batch)
        (path,) = (p for p in either_store.layout.packs.rglob("*") if p.is_file())
        (path.parent / "intact").write_bytes(path.read_bytes())
    (path,) = (p for p in either_store.layout.packs.rglob("*") if p.is_file() and p.name != "intact")
    raw = bytearray((path.parent / "intact").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(piece)] = piece
    path.write_bytes(raw[: data.draw(st.integers(len(raw) // 2, len(raw)))])
    with closing(either_store.open(readonly=True)) as db:
        for chunk in chunks:
            with suppress(IdMismatch):
                assert bytes(db.read(db.sealer.id(Kind.CHUNK, chunk))) == chunk


@pytest.mark.parametrize("wanted", [len(BIG) - 1, len(BIG) + 1, 0])
def test_an_object_of_another_length_than_wanted_is_damage(either_store, wanted):
    with closing(either_store.create()) as db:
        (id,) = put(db, BIG)
        with pytest.raises(IdMismatch):
            db.read(id, memoryview(bytearray(wanted)))


def test_a_record_of_another_object_in_its_place_is_damage(either_store):
    with closing(either_store.create()) as db:
        one, two = put(db, BIG, BIG[::-1])
        with db._index.read() as rows:
            other = rows.get("objects", two)
        with db._index.write() as rows:
            rows.put("objects", one, other)
        with pytest.raises(IdMismatch):
            db.read(one)


def test_a_record_of_another_repository_is_damage(store, tmp_path):
    other = Store(tmp_path / "other", encrypted=True)
    with closing(store.create()) as db, closing(other.create()) as elsewhere:
        (id,) = put(db, BIG)
        (foreign,) = put(elsewhere, BIG)
        with db.view() as view:
            (name,) = (line.pack for _, line in view.packs())
        with elsewhere.view() as view:
            (foreign_name,) = (line.pack for _, line in view.packs())
        db.packs.path(name).write_bytes(elsewhere.packs.path(foreign_name).read_bytes())
        with pytest.raises(IdMismatch):
            db.read(id)
        assert foreign != id


def test_a_missing_pack_is_damage(store):
    with closing(store.create()) as db:
        (id,) = put(db, BIG)
        with db.view() as view:
            (name,) = (line.pack for _, line in view.packs())
        db.packs.path(name).unlink()
        with pytest.raises(IdMismatch, match="missing"):
            db.read(id)


# ---- crashes and failures around the commit point ----


def test_an_index_that_is_behind_the_log_is_brought_forward(either_store):
    with closing(either_store.create()) as db:
        commit(db, b"1", BIG)
        before = (db.index_path / "data.mdb").read_bytes()
        commit(db, b"2", BIG + b"2")
        expected = logical(db)
        path = db.index_path
    (path / "data.mdb").write_bytes(before)  # yesterday's, put back
    (path / "lock.mdb").unlink()
    with closing(either_store.open()) as db:
        assert logical(db) == expected
        assert bytes(db.read(tip(db))) != b""


def test_a_reader_sees_what_only_the_log_has_and_changes_no_byte(either_store):
    with closing(either_store.create()) as db:
        commit(db, b"1", BIG)
        before = (db.index_path / "data.mdb").read_bytes()
        commit(db, b"2", BIG + b"2")
        db.publish(None, [SetConfig("a", "b"), SetRef("tags/t", None, tip(db))])
        expected = logical(db)
        path = db.index_path
    (path / "data.mdb").write_bytes(before)
    frozen = files(either_store)
    with closing(either_store.open(readonly=True)) as reader:
        assert logical(reader) == expected
        assert all(len(reader.read(id)) for id in reader.scan())
        with reader.view() as view:
            assert view.object_count() == len(expected["objects"])
        assert files(either_store) == frozen
        with closing(either_store.open()) as db:  # a writer settles; the reader goes on
            commit(db, b"3")
            assert tip(reader) == tip(db)


def die_in_index_commit(store: Store) -> None:
    db = store.open()
    index.Writer.__exit__ = lambda self, *_: os._exit(9)
    commit(db, BIG + b"last words")


def die_in_log(store: Store, operation: str) -> None:
    db = store.open()

    def die(name, path):
        if name == operation and path.parent.name == "log":
            os._exit(9)

    fs.failpoint = die
    commit(db, BIG + b"last words")


def test_a_process_that_died_after_the_commit_point_has_committed(either_store):
    with closing(either_store.create()) as db:
        first = commit(db, BIG)
        assert in_child(die_in_index_commit, either_store) == 9
        db.settle()
        assert tip(db) not in (first, None)
        assert len(db.read(tip(db)))
    assert not either_store.rebuild().problems


def test_a_process_that_died_before_the_line_was_written_has_not_committed(store):
    with closing(store.create()) as db:
        first = commit(db, BIG)
        before = logical(db)
        assert in_child(die_in_log, store, "pwrite") == 9
        db.settle()
        assert logical(db) == before
        assert commit(db, b"next") != first


def test_settling_makes_the_log_and_the_packs_durable_before_the_index_knows(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, b"1")
        assert in_child(die_in_index_commit, store) == 9
        done = []
        monkeypatch.setattr(
            fs, "failpoint", lambda name, path: done.append((name, path.relative_to(store.root).parts[0]))
        )
        applied = Editor.apply
        monkeypatch.setattr(Editor, "apply", lambda *args: (done.append(("apply", "index")), applied(*args)))
        db.settle()
        early = done[: done.index(("apply", "index"))]
        assert ("fdatasync", "log") in early
        assert ("fdatasync", "packs") in early


def test_a_full_disk_at_the_log_undoes_the_line(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, b"1")
        before, frozen = logical(db), store.layout.log.joinpath("00000001").read_bytes()
        with failing(monkeypatch, ("fdatasync", "/log/")), pytest.raises((StoreFull, StorageError)):
            # the first sync fails, and the one after the truncation as well: nobody knows
            commit(db, b"2")
        db.settle()
        assert store.layout.log.joinpath("00000001").read_bytes() == frozen
        with failing(monkeypatch, ("pwrite", "/log/")), pytest.raises(StoreFull):
            commit(db, b"2")
        assert store.layout.log.joinpath("00000001").read_bytes() == frozen
        assert logical(db) == before
        commit(db, b"3")


def test_a_full_disk_at_the_index_cuts_the_log(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, b"1")
        before = logical(db)
        with failing_index(monkeypatch, StoreFull("simulated")), pytest.raises(StoreFull):
            commit(db, b"2")
        assert logical(db) == before
        db.settle()
        assert logical(db) == before
        commit(db, b"3")


def test_when_undoing_fails_too_nobody_knows_and_the_error_says_so(store, monkeypatch):
    with closing(store.create()) as db:
        commit(db, b"1")
        with (
            failing(monkeypatch, ("truncate", "/log/"), code=errno.EIO),
            failing_index(monkeypatch, StoreFull("simulated")),
            pytest.raises(StorageError, match="unknown"),
        ):
            commit(db, b"2")
        db.settle()  # the line is in the log: it happened after all
        with db.view() as view:
            assert len(view.reflog(MAIN)) == 2
        commit(db, b"3")
    assert not store.rebuild().problems


def test_an_error_after_the_index_has_it_is_no_error(store, monkeypatch):
    with closing(store.create()) as db:
        with failing_index(monkeypatch, StorageError("too late"), after=True):
            id = commit(db, b"1")
        assert tip(db) == id


def test_an_interrupt_after_the_index_has_it_leaves_log_and_index_in_step(store, monkeypatch):
    with closing(store.create()) as db:
        with failing_index(monkeypatch, KeyboardInterrupt(), after=True), pytest.raises(KeyboardInterrupt):
            commit(db, b"1")
        assert tip(db) is not None
    store.open().close()


def test_a_log_that_lost_what_was_acknowledged_is_damage_and_rebuilt_from_the_index(either_store):
    with closing(either_store.create()) as db:
        commit(db, b"1", BIG)
        path = either_store.layout.log / "00000001"
        shorter = path.read_bytes()
        commit(db, b"2")
        expected = logical(db)
    path.write_bytes(shorter)
    for readonly in (False, True):
        with pytest.raises(Damaged):
            either_store.open(readonly=readonly)
    report = either_store.rebuild()
    assert report.log_healed
    with closing(either_store.open()) as db:
        assert logical(db) == expected


def test_a_copy_opens_as_it_is_and_goes_its_own_way(either_store, tmp_path):
    with closing(either_store.create()) as db:
        commit(db, b"1", BIG)
        expected = logical(db)
    copy = either_store.copy(tmp_path / "copy")
    with closing(copy.open(readonly=True)) as reader:
        assert logical(reader) == expected
    with closing(copy.open()) as db:
        assert logical(db) == expected
        commit(db, b"2")
    with closing(either_store.open()) as db:
        assert logical(db) == expected


# ---- segments ----


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(log, "SEGMENT_BYTES", 2_000)


def test_a_full_segment_is_followed_by_one_that_sums_it_up(either_store, small_segments):
    with closing(either_store.create()) as db:
        made = [commit(db, b"%d" % number, ref=f"heads/{number % 3}") for number in range(30)]
        db.publish(None, [SetConfig("a", "b"), Mark((made[0],), "last:1"), Incident("all is well")])
        assert len(db.log.segments()) == 1 < db.log.segments()[0]
        expected = logical(db)
    with closing(either_store.open()) as db:
        assert logical(db) == expected
    report = either_store.rebuild()
    assert (report.problems, report.log_healed) == ([], False)
    with closing(either_store.open()) as db:
        assert logical(db) == expected


def test_segments_grow_with_what_they_must_sum_up(store, small_segments):
    with closing(store.create()) as db:
        id = commit(db, b"1")
        db.publish(None, [SetRef(f"tags/{n}", None, id) for n in range(100)])  # its checkpoint alone is too long
        before = db.log.segments()
        for number in range(4):
            put(db, b"%d" % number)
        assert db.log.segments()[-1] - before[-1] <= 1


def test_a_crash_while_a_segment_is_begun_changes_nothing(store, small_segments, monkeypatch):
    for operation in ("create", "pwrite", "fdatasync", "sync_dir", "unlink"):
        place = Store(store.root / operation, encrypted=False)
        with closing(place.create()) as db:
            commit(db, b"first")
            while not db.log.is_full(db._index.position()):
                put(db, os.urandom(10))
            expected = logical(db)
            with failing(monkeypatch, (operation, "/log"), code=errno.EIO), pytest.raises(StorageError):
                put(db, b"next")
            db.settle()
            now = logical(db)
            assert {k: v for k, v in now.items() if k not in ("log", "position")} == {
                k: v for k, v in expected.items() if k not in ("log", "position")
            }
            commit(db, b"last")
        assert not place.rebuild().problems


def test_handles_of_other_processes_follow_to_the_new_segment(store, small_segments):
    with closing(store.create()) as one, closing(store.open()) as two:
        for number in range(20):
            commit((one, two)[number % 2], b"%d" % number)
        assert logical(one) == logical(two)


# ---- the table of refs ----


def test_a_hidden_row_of_the_table_of_refs_is_noticed(either_store):
    with closing(either_store.create()) as db:
        commit(db, b"1")
    with closing(either_store.open()) as db:
        with db._index.write() as rows:
            (key, *_) = [key for key, _ in rows.scan("refs")]
            rows.delete("refs", key)
        with pytest.raises(Damaged, match="refs"), db.view():
            pass


def test_a_forked_child_cannot_go_on_with_its_parents_batch(store):
    with closing(store.create()) as db:
        batch = db.batch("none")
        batch.append(Kind.CHUNK, b"1")
        assert in_child(go_on, batch) == 0
        batch.append(Kind.CHUNK, b"2")
        db.publish(batch, [])
        db.retire_batch(batch)
        assert len(list(db.scan())) == 2


def go_on(batch: LocalBatch) -> None:
    with pytest.raises(ForkedHandle):
        batch.append(Kind.CHUNK, b"3")
