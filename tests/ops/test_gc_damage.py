"""Damage stops gc, or is left where it is: what cannot be read proves nothing, what an index hides is no garbage."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from chainstore.errors import ChainError, Damaged
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import SetConfig
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import read_commit
from chainstore.storage.index import Index
from tests.faults.children import run, succeed
from tests.faults.seeds import base_seed, replayable
from tests.odb.stores import MAIN, Store, commit, commit_in, logical, put
from tests.ops.damage import flip, place_of, spoil
from tests.ops.rubbish import (
    Clock,
    blob,
    chunk_ids,
    disk_bytes,
    drop_ref,
    forget,
    gc,
    line_of_commits,
    open_at,
    read_back,
)

FLIPS = 24
SIDE = "heads/side"


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store(tmp_path / "store", encrypted=False)
    made.create().close()
    return made


@pytest.fixture
def db(store):
    with closing(open_at(store, Clock())) as opened:
        yield opened


def delete_row(db: LocalDatabase, table: str, key: bytes) -> None:
    """Hide a row as a damaged page does: no check tells."""
    with db._index.write() as rows:
        rows.delete(table, key)


def refuses(db: LocalDatabase, *words: str) -> None:
    """Assert that gc stops, says these words, and deletes nothing."""
    before, packs = disk_bytes(db.layout.packs), {path: path.read_bytes() for path in packs_of(db)}
    with db.view() as view:
        objects = {id for id, _ in view.objects()}
    with pytest.raises(Damaged) as error:
        gc(db)
    for word in words:
        assert word in str(error.value)
    assert disk_bytes(db.layout.packs) == before
    assert {path: path.read_bytes() for path in packs_of(db)} == packs
    with db.view() as view:
        assert {id for id, _ in view.objects()} == objects


def packs_of(db: LocalDatabase) -> list[Path]:
    return sorted(path for path in db.layout.packs.rglob("*") if path.is_file())


def unhide(db: LocalDatabase, id: ObjectId) -> None:
    delete_row(db, "inline", id)  # small records lie in the index whole; these tests are about those that do not


@pytest.mark.parametrize("number", [0, 1, 2], ids=["forgotten", "kept", "tip"])
def test_a_damaged_commit_stops_it(db, number):
    made = line_of_commits(db, 3)
    forget(db, made[:1])
    unhide(db, made[number])
    spoil(db, made[number])
    refuses(db, made[number].short, "main")


def test_a_damaged_page_of_names_stops_it_where_it_is_needed_and_not_where_it_is_garbage(db):
    made = line_of_commits(db, 3)
    trees = [read_commit(db, id).tree for id in made]
    forget(db, made[:1])
    unhide(db, trees[0])
    spoil(db, trees[0])
    assert gc(db).objects == 3
    forget(db, made[:2])
    unhide(db, trees[2])
    spoil(db, trees[2])
    refuses(db, made[2].short, "names")


def test_a_chunk_whose_row_is_hidden_stops_it_and_is_named(db):
    made = line_of_commits(db, 3)
    forget(db, made[:1])
    (id,) = chunk_ids(db, -1)
    delete_row(db, "objects", id)
    refuses(db, id.short)


def test_a_base_whose_row_is_hidden_stops_it(db):
    """That deltas keep their bases is in test_gc_deltas; here a row says that there are some, and none is named."""
    made = line_of_commits(db, 2)
    (id,) = chunk_ids(db, -1)
    with db._index.write() as rows:
        row = bytearray(rows.get("objects", id))
        row[-1] = 1  # the number of bases comes last
        rows.put("objects", id, bytes(row))
    forget(db, made[:1])
    refuses(db, "bases", id.short)


def test_an_object_in_a_pack_whose_row_is_hidden_stops_it(db):
    made = line_of_commits(db, 2)
    forget(db, made[:1])
    with db.view() as view:
        ((number, _),) = view.packs()
    delete_row(db, "packs", number.to_bytes(4, "big"))
    with db.view() as view:
        assert list(view.packs()) == []
    refuses(db, "pack")


@pytest.mark.parametrize("table", ["packs", "meta"])
def test_a_pack_that_the_index_hides_is_no_leftover(db, table):
    """The log decides, and it knows the pack; bytes behind what was committed make gc look closer at it."""
    put(db, blob(1))
    with db.view() as view:
        ((number, line),) = view.packs()
    path = db.packs.path(line.pack)
    with open(path, "ab") as file:
        file.write(b"left by somebody who died")
    before = path.read_bytes()[: line.length]
    delete_row(db, table, number.to_bytes(4, "big") if table == "packs" else b"pack" + line.pack)
    with pytest.raises(Damaged):
        gc(db)
    assert path.read_bytes()[: line.length] == before


def test_a_commit_that_only_a_reflog_names_and_the_index_hides_is_not_taken_for_gone(tmp_path, store, db):
    line_of_commits(db, 1)
    side = line_of_commits(db, 1, ref=SIDE)
    drop_ref(db, SIDE)
    db.publish(None, [SetConfig("a", "b")])
    delete_row(db, "objects", side[0])
    told = gc(db, dry_run=True)  # the index itself is whole: so it was lost, and gc says so and goes on
    assert told.left == [f"the reflog of {SIDE} leads to {side[0].short}, which is not there"]
    break_page_with(db, db.sealer.ref_key("config/a"))  # which gc has no reason to look at
    with pytest.raises(Damaged, match=f"{side[0].short}.* the index is damaged"):
        gc(db)
    assert len(packs_of(db)) == 1 and blob(sum(map(ord, SIDE)) * 1000) in packs_of(db)[0].read_bytes()


def break_page_with(db: LocalDatabase, key: bytes) -> None:
    """Damage the page in use that holds a row; bytes of it may be left in others too."""
    path = db.index_path / "data.mdb"
    raw = path.read_bytes()
    at = raw.find(key)
    while at >= 0:
        flags = at // 4096 * 4096 + 10
        with open(path, "r+b") as file:
            file.seek(flags)
            file.write(b"\xff\xff")
            file.flush()
            if Index.verify_file(db.index_path):
                return
            file.seek(flags)
            file.write(raw[flags : flags + 2])
        at = raw.find(key, at + 1)
    raise AssertionError("no page in use holds that row")


def test_a_damaged_record_stays_where_it_is_while_the_rest_moves(store, db):
    with_gaps = db.batch("none")
    small = [blob(number, 20_000) for number in range(20)]
    for chunk in small:
        with_gaps.append(Kind.CHUNK, chunk)
    db.publish(with_gaps, [])
    (old,) = packs_of(db)
    id = commit(db, *small[::2])  # its names are in another pack: this one is held
    db.retire_batch(with_gaps)
    (bad,) = chunk_ids(db, 4, nbytes=20_000)
    assert spoil(db, bad) == old
    report = gc(db)
    assert any(old.name in text and "stays" in text for text in report.left)
    assert report.moved_bytes > 9 * 20_000
    assert place_of(db, bad)[0] == old and place_of(db, chunk_ids(db, 6, nbytes=20_000)[0])[0] != old
    assert old.stat().st_blocks * 512 < 100_000
    before = [path.name for path in packs_of(db)]
    assert gc(db).nothing_to_do
    put(db, b"something new")
    gc(db)
    assert [path.name for path in packs_of(db)] == before  # no pack is made in vain
    flip(old, place_of(db, bad)[1].offset + 110)
    assert read_back(db, id) == small[::2]


def test_where_nothing_reads_nothing_moves_and_no_pack_is_made_in_vain(store, db):
    batch = db.batch("none")
    small = [blob(number, 20_000) for number in range(20)]
    for chunk in small:
        batch.append(Kind.CHUNK, chunk)
    db.publish(batch, [])
    commit(db, *small[::2])
    db.retire_batch(batch)
    for id in chunk_ids(db, *range(0, 20, 2), nbytes=20_000):
        spoil(db, id)
    before = packs_of(db)
    report = gc(db)
    assert len(report.left) == 10 and report.moved_bytes == 0
    assert packs_of(db) == before
    assert gc(db).nothing_to_do


def test_flipped_bits_of_the_index_never_cost_anything_that_is_kept(tmp_path):
    """Whatever gc does with such an index: log and packs still hold everything that is kept."""
    seed = base_seed()
    with replayable(seed, tmp_path):
        source = random.Random(seed)
        ground = Store(tmp_path / "ground", encrypted=False)
        with closing(ground.create()) as db:
            made = line_of_commits(db, 40, 6_000)
            side = line_of_commits(db, 20, 6_000, ref=SIDE)
            for number in range(30):
                put(db, blob(10_000 + number, 6_000))
            drop_ref(db, SIDE)
            forget(db, made[:20])
            kept = [*made[20:], *side]
            expected = {id: read_back(db, id) for id in kept}
        endings = [_flip_and_collect(ground, tmp_path / f"trial-{n}", source, expected) for n in range(FLIPS)]
        assert {"refused", "done"} <= set(endings), endings


def _flip_and_collect(ground: Store, path: Path, source: random.Random, expected: dict[ObjectId, list[bytes]]) -> str:
    trial = ground.copy(path)
    trial.open().close()  # makes the index in force its own: it has another inode
    (index,) = trial.layout.root.glob("index/*/data.mdb")
    for _ in range(source.choice([1, 1, 1, 8])):
        flip(index, source.randrange(index.stat().st_size))

    def work() -> str:
        try:
            with closing(trial.open()) as db:
                gc(db)
        except ChainError:
            return "refused"
        return "done"

    ending = run(work)
    assert not ending.error, ending.error

    def look() -> None:
        trial.rebuild()
        with closing(trial.open()) as db:
            for id, chunks in expected.items():
                assert read_back(db, id) == chunks

    succeed(look)
    return ending.answer or "crashed"  # LMDB may, in its C code; another process then goes on


def test_a_row_that_gc_removed_is_not_there_again_after_a_rebuild(tmp_path):
    for encrypted in (False, True):
        store = Store(tmp_path / f"store-{encrypted}", encrypted=encrypted)
        with closing(store.create()) as db:
            made = line_of_commits(db, 12, 30_000)
            for number in range(10):
                put(db, blob(number, 30_000))
                commit_in_parts(db, number)
            forget(db, [*made[2:5], *made[7:9]])
            report = gc(db)
            assert report.moved_bytes > 0 and report.objects > 20
            before = logical(db)
        assert store.rebuild().problems == []
        with closing(store.open()) as db:
            assert logical(db) == before
            assert gc(db).objects == 0


def commit_in_parts(db: LocalDatabase, number: int) -> None:
    batch = db.batch("none")
    try:
        commit_in(db, batch, blob(500 + number, 3_000), ref=MAIN)
    finally:
        db.retire_batch(batch)
