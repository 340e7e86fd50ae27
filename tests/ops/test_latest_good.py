"""The latest good: the newest commit of a branch of which every byte reads, at the price of what differs."""

from collections import Counter
from pathlib import Path

import pytest

from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Mark, SetRef
from chainstore.model.commit import Commit
from chainstore.observe import silent
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import read_commit
from chainstore.ops.latest_good import latest_good
from tests.odb.stores import MAIN, Store, commit
from tests.ops.damage import BIG, opened, spoil


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store(tmp_path / "store", encrypted=request.param)


def own(number: int) -> bytes:
    return BIG + bytes([number])


@pytest.fixture
def chain(store: Store) -> list[ObjectId]:
    """Four commits, oldest first, each with a chunk of its own and one that all share."""
    db = store.create()
    ids = [commit(db, BIG, own(number), message=str(number)) for number in range(4)]
    db.close()
    return ids


def found(db: LocalDatabase, ref: str = MAIN, threads: int = 2) -> ObjectId | None:
    best: Commit | None = latest_good(db, ref, threads=threads, observer=silent)
    return best.id if best is not None else None


def test_the_tip_of_a_whole_branch_is_good(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        assert found(db) == chain[3]


def test_commits_with_a_damaged_chunk_or_page_are_passed_over(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        spoil(db, db.sealer.id(Kind.CHUNK, own(3)))
        with db._index.write() as rows:
            rows.delete("objects", read_commit(db, chain[2]).tree)
        assert found(db) == chain[1]


def test_a_chunk_that_all_share_spoils_all(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        spoil(db, db.sealer.id(Kind.CHUNK, BIG))
        assert found(db) is None


def test_beyond_a_damaged_commit_the_reflog_leads_on(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        with db._index.write() as rows:
            rows.delete("objects", chain[2])
        spoil(db, db.sealer.id(Kind.CHUNK, own(3)))
        assert found(db) == chain[1]


def test_forgotten_snapshots_are_not_good(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        spoil(db, db.sealer.id(Kind.CHUNK, own(3)))
        db.publish(None, [Mark((chain[2], chain[1]), "last:1")])
        assert found(db) == chain[0]


def test_a_branch_without_commits_has_no_good_one(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        assert found(db, "heads/none") is None


def test_only_first_parents_of_this_branch_are_asked(store: Store, chain: list[ObjectId]):
    with opened(store) as (db,):
        db.publish(None, [SetRef("heads/side", None, chain[1], "")])
        assert found(db, "heads/side") == chain[1]


def test_nothing_is_read_twice(store: Store, chain: list[ObjectId], monkeypatch: pytest.MonkeyPatch):
    with opened(store) as (db,):
        for number in (3, 2, 1):
            spoil(db, db.sealer.id(Kind.CHUNK, own(number)))
        reads: Counter[ObjectId] = Counter()
        read = db.read
        monkeypatch.setattr(db, "read", lambda id, out=None: (reads.update([id]), read(id, out))[1])
        assert found(db, threads=1) == chain[0]
        assert reads[db.sealer.id(Kind.CHUNK, BIG)] == 1
