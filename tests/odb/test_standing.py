"""What the log says stands, read from the log alone, is what the index shows; and nothing that may be undone counts."""

import random
from contextlib import closing

import pytest

from chainstore.errors import Damaged
from chainstore.model.change import Expired, Mark, SetRef, Swept, Unmark
from chainstore.odb.local import LocalDatabase
from chainstore.odb.standing import Standing
from chainstore.storage import log as log_module
from chainstore.storage.log import BEGINNING
from tests.faults.seeds import base_seed, replayable
from tests.odb.stores import Store, commit, put, tip

STEPS = 60


def standing_of(db: LocalDatabase) -> Standing:
    standing = Standing(db.log, db.sealer)
    standing.advance(db.position())
    return standing


def assert_same(standing: Standing, db: LocalDatabase) -> None:
    """Compare what the log says with what the index shows."""
    with db.view() as view:
        position = view.position()
        assert (standing.position.seq, standing.position.hash) == (position.seq, position.hash)
        assert standing.refs == {row.name: row.target for row in view.refs()}
        assert standing.marks == {mark.commit: mark for mark in view.marks()}
        kept = {line.pack: 0 if line.retired else line.length for _, line in view.packs()}
        assert {name: length for name, length in standing.packs.items() if length} == {
            name: length for name, length in kept.items() if length
        }
        lines = sorted(view.reflogs(), key=lambda line: (line.seq, line.ordinal))
        assert standing.past().keys() == {
            target for line in lines for target in (line.old, line.new) if isinstance(target, bytes)
        }
        assert len(standing._reflog) == len(lines)
        for row in view.refs():
            if row.moves:  # none is missing in between, and the newest is there
                assert view.reflog(row.name)[0].new == row.target


def change(db: LocalDatabase, source: random.Random) -> None:
    """Publish something at random."""
    ref = f"heads/{source.choice('abc')}"
    kind = source.choice(["commit", "commit", "put", "delete", "mark", "unmark", "sweep", "expire", "back"])
    with db.view() as view:
        marks = list(view.marks())
        refs = [row for row in view.refs() if row.name != "HEAD"]
        newest = view.position().seq
    named = {row.target for row in refs}
    past = sorted(standing_of(db).past().keys() - named)
    if kind == "commit":
        commit(db, source.randbytes(50), ref=ref)
    elif kind == "put":
        put(db, source.randbytes(50))
    elif kind == "delete" and tip(db, ref) is not None:
        db.publish(None, [SetRef(ref, tip(db, ref), None)])
    elif kind == "mark" and past:
        db.publish(None, [Mark(tuple(source.sample(past, min(2, len(past)))), "last:1")])
    elif kind == "unmark" and (able := [mark.commit for mark in marks if not mark.swept]):
        db.publish(None, [Unmark((able[0],))])
    elif kind == "sweep" and past:
        with db.turn() as turn:
            turn.publish([Swept((source.choice(past),))])
    elif kind == "expire":
        with db.turn() as turn:
            turn.publish([Expired(source.randint(0, newest))])
    elif kind == "back" and past and not any(mark.commit == past[0] and mark.swept for mark in marks):
        db.publish(None, [SetRef(ref, tip(db, ref), past[0])])


@pytest.mark.parametrize("segments", ["one", "many"])
def test_it_equals_what_the_index_shows_after_every_change(tmp_path, monkeypatch, segments):
    seed = base_seed()
    with replayable(seed, tmp_path):
        source = random.Random(seed)
        if segments == "many":
            monkeypatch.setattr(log_module, "SEGMENT_BYTES", 2000)
        with closing(Store(tmp_path / "store").create()) as db:
            followed = standing_of(db)
            for _ in range(STEPS):
                change(db, source)
                if source.random() < 0.3:  # it may lag behind, by more than a segment
                    followed.advance(db.position())
                    assert_same(followed, db)
            assert_same(standing_of(db), db)
            followed.advance(db.position())
            assert_same(followed, db)
            assert (len(db.log.segments()) > 0) and (db.log.segments()[-1] > 1) == (segments == "many")


def test_a_line_that_may_be_undone_is_not_read(store):
    with closing(store.create()) as db:
        first = commit(db, b"one")
        standing = standing_of(db)
        position = db.position()
        line = db.sealer.seal_line(position.seq + 1, position.hash, b"never acknowledged")
        db.log.append(line, position)
        assert standing.advance(position) == []
        assert standing.refs["heads/main"] == first
        fresh = Standing(db.log, db.sealer)
        fresh.advance(position)  # it stops before the line, which nobody could decode
        assert fresh.refs == standing.refs


def test_a_log_that_does_not_lead_there_is_damaged(store):
    with closing(store.create()) as db:
        commit(db, b"one")
        behind = db.position()
        commit(db, b"two")
        standing = standing_of(db)
        db.log.cut(behind)
        with pytest.raises(Damaged):
            Standing(db.log, db.sealer).advance(standing.position)


def test_it_catches_up_over_segments_that_were_dropped_and_says_so_with_their_checkpoint(store, monkeypatch):
    with closing(store.create()) as db:
        standing = standing_of(db)
        monkeypatch.setattr(log_module, "SEGMENT_BYTES", 0)
        ids = [commit(db, bytes([n])) for n in range(4)]
        told = standing.advance(db.position())
        assert type(told[0]).__name__ == "Checkpoint"
        assert standing.refs["heads/main"] == ids[-1]
        assert BEGINNING.seq < standing.position.seq == db.position().seq


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], 0),
        ([5, 15, 25], 2),
        ([5, 6, 7], 4),
        ([15, 25], 1),
        ([15, 5, 25], 1),  # the clock went back once: what came before is younger than it says
        ([5, 999, 6, 15], 4),  # one from the future says nothing
        ([5, 15, 999], 2),
    ],
)
def test_where_reflogs_begin_to_count_when_clocks_are_wrong(store, times, expected):
    with closing(store.create()) as db:
        standing = standing_of(db)
        standing._reflog = [(seq, time, "heads/a", None, None) for seq, time in enumerate(times, start=1)]
        assert standing.first_line_since(10, 30) == expected
