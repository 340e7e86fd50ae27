"""Lines of gc applied: at commit with what gc knows, at redo and in memory without; the outcome is the same."""

from contextlib import closing

import pytest

from chainstore.model.change import Dead, Expired, Retired, SetRef
from chainstore.storage import log as log_module
from tests.odb.stores import MAIN, Store, commit, logical, put, tip
from tests.ops.rubbish import Clock, blob, drop_ref, forget, gc, line_of_commits, open_at

SIDE = "heads/side"


def full_of_garbage(store: Store, clock: Clock) -> None:
    """Fill a store so that a gc drops reflogs, sweeps, removes, retires and moves."""
    store.create().close()
    with closing(open_at(store, clock)) as db:
        batch = db.batch("none")
        for number in range(3):
            batch.append(3, blob(900 + number))
        made = line_of_commits(db, 8, 30_000)
        for number in range(10):
            put(db, blob(number, 30_000))
            commit(db, blob(100 + number, 3_000))
        line_of_commits(db, 2, 30_000, SIDE)
        db.publish(batch, [])
        db.retire_batch(batch)
        drop_ref(db, SIDE)
        forget(db, made[:6])
        clock.pass_days(20)
        commit(db, b"newest")


def set_back(store: Store, before: dict) -> None:
    """Put the files of an index back as they were, so that it lags behind the log."""
    for path, data in before.items():
        path.write_bytes(data)  # the inode stays, or the index would count as a copy


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "sealed"])
def test_every_line_of_gc_is_redone_to_the_same_rows(tmp_path, encrypted):
    store, clock = Store(tmp_path / "store", encrypted=encrypted), Clock()
    full_of_garbage(store, clock)
    before = {path: path.read_bytes() for path in store.root.glob("index/*/data.mdb")}
    with closing(open_at(store, clock)) as db:
        first = db.position().seq
        report = gc(db)
        assert min(report.commits, report.moved_bytes, report.packs_removed, report.reflog_lines, report.swept) > 0
        assert db.position().seq > first + 4
        expected = logical(db)
    set_back(store, before)
    with closing(store.open(readonly=True)) as db:  # in memory
        shown = logical(db)
        assert {key: shown[key] for key in shown if key not in ("log", "position")} == {
            key: expected[key] for key in expected if key not in ("log", "position")
        }
    with closing(open_at(store, clock)) as db:  # on disk
        assert logical(db) == expected
        assert gc(db).objects == 0


def test_a_dead_range_takes_the_rows_of_what_lies_in_it_and_no_other(store):
    with closing(store.create()) as db:
        ids = put(db, *(blob(number, 5000) for number in range(4)))
        with db.view() as view:
            places = [view.place(id) for id in ids]
            pack = view.pack(places[0].pack).pack
        ends = [place.offset + place.length for place in places]
        with db.turn() as turn:  # as at redo: nobody says which objects lie there
            turn.publish([Dead(pack, ((places[1].offset, ends[1]), (places[2].offset + 64, ends[2])))])
        with db.view() as view:
            assert [view.place(id) is not None for id in ids] == [True, False, True, True]
        with db.turn() as turn:  # at commit: only those that are named are looked at
            turn.publish([Dead(pack, ((places[2].offset, ends[3]),))], lost=lambda change: [ids[0], ids[3]])
        with db.view() as view:
            assert [view.place(id) is not None for id in ids] == [True, False, True, False]
            assert view.pack(places[0].pack).dead == ((places[1].offset, ends[3]),)


def test_a_checkpoint_drops_the_rows_of_retired_packs_and_a_rebuild_never_reads_them(store, monkeypatch):
    with closing(store.create()) as db:
        (id,) = put(db, blob(1))
        with db.view() as view:
            place = view.place(id)
            pack = view.pack(place.pack).pack
        with db.turn() as turn:
            turn.publish([Dead(pack, ((0, place.length),)), Retired(pack)])
        with db.view() as view:
            assert view.pack(place.pack).retired and view.place(id) is None
        assert store.layout.packs.joinpath(pack.hex()[:2], pack.hex()).exists()  # killed before it could remove it
        monkeypatch.setattr(log_module, "SEGMENT_BYTES", 0)
        kept = put(db, blob(2))
        with db.view() as view:
            assert view.pack_number(pack) is None
            assert pack not in {line.pack for _, line in view.packs()}
        before = logical(db)
    assert store.rebuild().problems == []
    with closing(store.open()) as db:
        assert logical(db) == before and set(db.scan()) == set(kept)
        assert gc(db).packs_removed == 2  # it is a leftover now; and what was put since is garbage too


def test_expired_lines_go_and_the_newest_of_each_ref_that_exists_stays(store):
    with closing(store.create()) as db:
        made = [commit(db, bytes([number])) for number in range(3)]
        commit(db, b"side", ref=SIDE)
        drop_ref(db, SIDE)
        db.publish(None, [SetRef("heads/idle", None, made[0])])
        middle = db.position().seq
        commit(db, b"main")
        drop_ref(db, "heads/idle")
        with db.turn() as turn:
            turn.publish([Expired(middle + 1)])
        with db.view() as view:
            view.check_refs()
            assert [line.new for line in view.reflog(MAIN)] == [tip(db)]
            assert [line.ordinal for line in view.reflog(MAIN)] == [4]
            assert view.ref(SIDE) is None and view.reflog(SIDE) == []
            assert view.ref("heads/idle").target is None  # deleted not that long ago
            assert [(line.old, line.new) for line in view.reflog("heads/idle")] == [(made[0], None)]
        with db.turn() as turn:
            turn.publish([Expired(db.position().seq + 1)])
        with db.view() as view:
            view.check_refs()
            assert view.ref("heads/idle") is None and len(view.reflog(MAIN)) == 1
        commit(db, b"again", ref=SIDE)  # a name that was forgotten begins anew
        with db.view() as view:
            assert [line.ordinal for line in view.reflog(SIDE)] == [1]
        before = logical(db)
    assert store.rebuild().problems == []
    with closing(store.open()) as db:
        assert logical(db) == before
