"""What every object database must do; see `odb.database.ObjectDatabase`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from chainstore.errors import ChainError, Damaged, RefConflict
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import SetRef
from chainstore.odb.database import ObjectDatabase

_REF = "heads/main"
_SIZES = (0, 1, 31, 4080, 4081, 70_000)


class DatabaseConformance:
    """Tests of one kind of object database."""

    def make(self, path: Path) -> ObjectDatabase:
        """Return the database at `path`, opened for writing; made if there is none."""
        raise NotImplementedError

    @pytest.fixture
    def db(self, tmp_path: Path) -> Iterator[ObjectDatabase]:
        """An empty one."""
        with closing(self.make(tmp_path / "db")) as db:
            yield db

    def put(self, db: ObjectDatabase, *chunks: bytes) -> list[ObjectId]:
        """Publish chunks and return their ids."""
        batch = db.batch()
        try:
            ids = [batch.append(Kind.CHUNK, chunk).id for chunk in chunks]
            db.publish(batch, [])
            return ids
        finally:
            batch.close()

    def move(self, db: ObjectDatabase, old: ObjectId | None, new: ObjectId | None) -> int:
        return db.publish(None, [SetRef(_REF, old, new, "a reason")])

    def where(self, db: ObjectDatabase) -> object:
        return {row.name: row.target for row in db.refs()}.get(_REF)

    def test_what_was_published_is_there_also_after_opening_again(self, tmp_path: Path) -> None:
        chunks = [bytes([size % 251]) * size for size in _SIZES]
        with closing(self.make(tmp_path / "db")) as db:
            ids = self.put(db, *chunks)
            for _ in range(2):
                assert [bytes(db.read(id)) for id in ids] == chunks
                assert all(db.has(id) for id in ids)
        with closing(self.make(tmp_path / "db")) as db:
            assert [bytes(db.read(id)) for id in ids] == chunks
            assert set(db.scan()) >= set(ids)

    def test_it_reads_into_memory_that_is_given(self, db: ObjectDatabase) -> None:
        (id,) = self.put(db, b"some bytes" * 1000)
        out = bytearray(10_000)
        assert bytes(db.read(id, memoryview(out))) == bytes(out) == b"some bytes" * 1000

    def test_what_was_not_published_is_not_there(self, db: ObjectDatabase) -> None:
        batch = db.batch()
        id = batch.append(Kind.CHUNK, b"abandoned").id
        assert not db.has(id) and id not in set(db.scan())
        batch.close()
        with pytest.raises(Damaged):
            db.read(id)

    def test_an_object_that_is_known_takes_no_bytes(self, db: ObjectDatabase) -> None:
        (id,) = self.put(db, b"twice")
        batch = db.batch()
        again = batch.append(Kind.CHUNK, b"twice")
        new = batch.append(Kind.CHUNK, b"once")
        db.publish(batch, [])
        batch.close()
        assert again.id == id and again.stored == 0 and new.stored > 0

    def test_the_kind_is_part_of_what_an_object_is(self, db: ObjectDatabase) -> None:
        batch = db.batch()
        chunk, tree = (batch.append(kind, b"\x80") for kind in (Kind.CHUNK, Kind.TREE))
        batch.close()
        assert chunk.id != tree.id

    def test_a_ref_moves_from_where_it_is_and_from_nowhere_else(self, db: ObjectDatabase) -> None:
        first, second = self.put(db, b"first", b"second")
        seq = self.move(db, None, first)
        assert self.where(db) == first
        for wrong in (None, second):
            with pytest.raises(RefConflict):
                self.move(db, wrong, second)
            assert self.where(db) == first
        assert self.move(db, first, second) > seq
        assert self.where(db) == second

    def test_what_comes_with_a_refused_move_is_not_published(self, db: ObjectDatabase) -> None:
        (first,) = self.put(db, b"first")
        self.move(db, None, first)
        batch = db.batch()
        id = batch.append(Kind.CHUNK, b"with the move").id
        with pytest.raises(RefConflict):
            db.publish(batch, [SetRef("heads/other", None, id, ""), SetRef(_REF, None, id, "")])
        batch.close()
        assert not db.has(id) and {row.name for row in db.refs()}.isdisjoint({"heads/other"})

    def test_one_of_many_that_move_a_ref_at_once_wins(self, db: ObjectDatabase) -> None:
        ids = self.put(db, *(b"%d" % number for number in range(8)))

        def try_it(id: ObjectId) -> bool:
            try:
                self.move(db, None, id)
            except RefConflict:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(try_it, ids))
        assert won.count(True) == 1 and self.where(db) == ids[won.index(True)]

    def test_threads_append_and_read_together(self, db: ObjectDatabase) -> None:
        with ThreadPoolExecutor(4) as pool:
            chunks = [[b"%d %d" % (thread, number) * 200 for number in range(10)] for thread in range(4)]
            found = list(pool.map(lambda some: self.put(db, *some), chunks))
            for ids, some in zip(found, chunks, strict=True):
                assert list(pool.map(lambda id: bytes(db.read(id)), ids)) == some

    def test_closing_twice_is_fine_and_nothing_is_read_afterwards(self, tmp_path: Path) -> None:
        db = self.make(tmp_path / "db")
        (id,) = self.put(db, b"x" * 9000)
        db.close()
        db.close()
        with pytest.raises(ChainError):
            db.read(id)
