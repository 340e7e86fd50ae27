"""Rows: lines of the log become rows, and rows that make no sense are Malformed."""

from contextlib import closing, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainstore.errors import ChainError, Damaged, SnapshotForgotten
from chainstore.model.change import Dead, Mark, Retired, SetConfig, SetKeyring, Swept, Unmark
from chainstore.odb.rows import is_within
from chainstore.odb.view import View
from tests.odb.stores import commit, logical, put


def test_settings_come_and_go(either_store):
    with closing(either_store.create()) as db:
        db.publish(None, [SetConfig("a", "1"), SetConfig("b", "2")])
        db.publish(None, [SetConfig("a", "3"), SetConfig("b", None)])
        with db.view() as view:
            assert view.config() == {"a": "3"}


def test_a_mark_is_set_swept_and_taken_back_only_before_that(either_store):
    with closing(either_store.create()) as db:
        ids = [commit(db, b"%d" % n) for n in range(3)]
        db.publish(None, [Mark(tuple(ids[:2]), "last:1")])
        db.publish(None, [Unmark((ids[0],)), Swept((ids[1],))])
        with db.view() as view:
            assert view.mark(ids[0]) is None
            mark = view.mark(ids[1])
            assert (mark.policy, mark.swept) == ("last:1", True)
            assert [line.commit for line in view.marks()] == [ids[1]]
        with pytest.raises(SnapshotForgotten):
            db.publish(None, [Unmark((ids[1],))])
        db.publish(None, [Mark((ids[1],), "again")])
        with db.view() as view:
            assert view.mark(ids[1]).swept  # what was begun stays begun


def test_dead_ranges_add_up_and_a_retired_pack_stays_known(store):
    with closing(store.create()) as db:
        put(db, b"1", b"2")
        with db.view() as view:
            ((number, line),) = view.packs()
        db.publish(None, [Dead(line.pack, ((0, 64),))])
        db.publish(None, [Dead(line.pack, ((128, 192),)), Retired(line.pack)])
        with db.view() as view:
            found = view.pack(number)
            assert (found.dead, found.retired, found.length) == (((0, 64), (128, 192)), True, line.length)
            assert view.pack_number(line.pack) == number
            assert view.pack_number(bytes(16)) is None
            with pytest.raises(Damaged):
                view.pack(77)


def test_a_change_of_a_pack_that_nobody_knows_is_damage_and_changes_nothing(store):
    with closing(store.create()) as db:
        before = logical(db)
        with pytest.raises(Damaged):
            db.publish(None, [SetConfig("a", "1"), Retired(bytes(16))])
        assert logical(db) == before


def test_the_number_of_the_keyring_is_kept(store):
    with closing(store.create()) as db:
        db.publish(None, [SetKeyring(4)])
        with db.view() as view:
            assert view.identity()[2] == 4


def test_a_lost_line_of_a_reflog_is_noticed(store):
    with closing(store.create()) as db:
        for number in range(3):
            commit(db, b"%d" % number)
        with db._index.write() as rows:
            keys = [key for key, _ in rows.scan("reflog")]
            rows.delete("reflog", keys[1])
        with db.view() as view, pytest.raises(Damaged, match="reflog"):
            view.reflog("heads/main")


def test_the_oldest_lines_of_a_reflog_may_expire(store):
    with closing(store.create()) as db:
        for number in range(3):
            commit(db, b"%d" % number)
        with db._index.write() as rows:
            rows.delete("reflog", min(key for key, _ in rows.scan("reflog", db.sealer.ref_key("heads/main"))))
        with db.view() as view:
            assert [line.ordinal for line in view.reflog("heads/main")] == [3, 2]


def test_ranges_begin_inside_and_end_outside():
    assert [is_within(n, [(2, 4), (6, 7)]) for n in range(8)] == [False, False, True, True, False, False, True, False]


LOOKS = [
    lambda view, id: view.position(),
    lambda view, id: view.identity(),
    lambda view, id: view.place(id),
    lambda view, id: view.bases(id),
    lambda view, id: list(view.objects()),
    lambda view, id: list(view.packs()),
    lambda view, id: view.refs(),
    lambda view, id: view.reflog("heads/main"),
    lambda view, id: list(view.reflogs()),
    lambda view, id: view.mark(id),
    lambda view, id: list(view.marks()),
    lambda view, id: view.config(),
    lambda view, id: view.checkpoint(),
    lambda view, id: view.check_refs(),
]
TABLES = ["objects", "bases", "packs", "refs", "reflog", "marks", "config", "meta"]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_rows_of_any_bytes_lead_to_chain_errors_only(either_store, tmp_path_factory, data):
    if not either_store.root.exists():
        with closing(either_store.create()) as db:
            id = commit(db, b"1")
            commit(db, b"2")
            db.publish(None, [Mark((id,), "p"), SetConfig("a", "b")])
    with closing(either_store.open()) as db:
        with db.view() as view:
            (id,) = [mark.commit for mark in view.marks()]
        try:
            with db._index.write() as rows:
                table = data.draw(st.sampled_from(TABLES))
                key, value = data.draw(st.sampled_from(sorted(rows.scan(table)) or [(b"k", b"v")]))
                length = data.draw(st.integers(0, len(value)))
                rows.put(table, key, data.draw(st.binary(max_size=60)) + value[length:])
                view = View(rows, db.sealer)
                for look in LOOKS:
                    with suppress(ChainError):
                        look(view, id)
                raise ZeroDivisionError  # so that nothing of it stays
        except ZeroDivisionError:
            pass
