"""gc and records that are differences: a base stays as long as something kept builds on it, and no longer.

What is coded anew so that bases can go is in `test_repack.py`.
"""

from contextlib import closing

import pytest

from chainstore.codecs import chain
from chainstore.ids import Kind, ObjectId
from chainstore.odb.local import LocalDatabase
from tests.odb.stores import Store, commit, commit_in, logical
from tests.odb.test_deltas import TAG, Xor, delta
from tests.ops.rubbish import forget, gc, read_back

SIDE = "heads/side"


@pytest.fixture(autouse=True)
def xor_is_known():
    chain.register(TAG, lambda effort: Xor(), delta=True)
    yield
    chain.unregister(TAG)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store", encrypted=False)


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def either_store(tmp_path, request) -> Store:
    return Store(tmp_path / "store", encrypted=request.param)


def version(number: int) -> bytes:
    return bytes([number]) * 30_000


def commit_delta(db: LocalDatabase, number: int, base: int, depth: int) -> ObjectId:
    """Publish a snapshot of one chunk that is stored as a difference."""
    batch = db.batch("none")
    try:
        batch.append_record(*delta(db.sealer, version(number), version(base), depth))
        return commit_in(db, batch, version(number))
    finally:
        db.retire_batch(batch)


def chunks(db: LocalDatabase) -> set[int]:
    """Return which versions are stored."""
    ids = {db.sealer.id(Kind.CHUNK, version(number)): number for number in range(20)}
    with db.view() as view:
        return {ids[id] for id, _ in view.objects() if id in ids}


def test_what_is_kept_is_read_through_others_until_it_is_coded_anew(either_store):
    with closing(either_store.create()) as db:
        made = [commit(db, version(0))]
        made += [commit_delta(db, number, number - 1, number) for number in (1, 2, 3)]
        made += [commit(db, version(10))]
        forget(db, made[:3])
        assert [kept.objects for kept in gc(db, dry_run=True).kept if kept.why == "base"] == [3]
        assert read_back(db, made[3]) == [version(3)]  # through all the others
        report = gc(db)
        assert chunks(db) == {3, 10}
        assert read_back(db, made[3]) == [version(3)]
        assert report.recoded_bytes > 0 and not [kept for kept in report.kept if kept.why == "base"]
        assert gc(db).nothing_to_do
        forget(db, made[3:4])
        gc(db)
        assert chunks(db) == {10}
        with db.view() as view:
            assert all(place.n_bases == 0 for _, place in view.objects())


def test_a_base_may_be_moved_and_an_index_made_anew_afterwards_is_the_same(either_store):
    with closing(either_store.create()) as db:
        made = []
        for number in range(0, 12, 2):  # garbage between what is kept
            made += [commit(db, bytes([100 + number]) * 30_000), commit(db, version(number))]
            made += [commit_delta(db, number + 1, number, 1)]
        forget(db, [id for at, id in enumerate(made[:-1]) if at % 3 == 0])
        report = gc(db)
        assert report.moved_bytes > 12 * 30_000
        assert chunks(db) == set(range(12))
        before = logical(db)
    assert either_store.rebuild().problems == []
    with closing(either_store.open()) as db:
        assert logical(db) == before
        assert [read_back(db, id) for id in made[2::3]] == [[version(number)] for number in range(1, 12, 2)]


def test_what_builds_meanwhile_on_a_base_that_was_garbage_is_readable(store: Store):
    with closing(store.create()) as db, closing(store.open()) as other:
        made = [commit(db, version(0)), commit(db, version(10))]
        forget(db, made[:1])
        late = []

        def build_on_it(seconds: float) -> None:
            if not late:
                late.append(commit_delta(other, 1, 0, 1))

        gc(db, sleep=build_on_it)
        assert read_back(db, late[0]) == [version(1)]
        assert chunks(db) == {1, 10}  # coded anew as well; `tests/faults/test_gc_chains.py` publishes at every moment
