"""Batches: known objects cost a look, each new one is stored once, by however many threads."""

import os
import threading

import pytest

from chainstore.ids import Kind, ObjectId
from chainstore.odb.batch import Bench, Benches, LocalBatch
from chainstore.storage.pack import PackDir, PackWriter, scan
from tests.odb.stores import Store


class Shelf:
    """A place for packs, and what counts as known."""

    def __init__(self, store: Store) -> None:
        self.packs = PackDir(store.layout.packs)
        self.opened: list[PackWriter] = []
        self.known: set[ObjectId] = set()
        self.asked: list[ObjectId] = []

    def open_pack(self) -> PackWriter:
        self.opened.append(self.packs.create(os.urandom(16)))
        return self.opened[-1]

    def knows(self, id: ObjectId) -> bool:
        self.asked.append(id)
        return id in self.known


@pytest.fixture
def shelf(store):
    store.layout.create()
    found = Shelf(store)
    yield found
    for pack in found.opened:
        pack.close()


@pytest.fixture
def batch(store, shelf) -> LocalBatch:
    return LocalBatch(store.sealer, Benches(), "auto", shelf.knows, shelf.open_pack)


def test_no_pack_is_opened_for_nothing(batch, shelf):
    assert batch.growth() == []
    batch.finish()
    assert shelf.opened == []


def test_an_object_is_stored_once_and_grows_a_pack(batch, shelf):
    first = batch.append(Kind.CHUNK, b"chunk" * 100)
    assert first.stored > 0
    assert batch.append(Kind.CHUNK, b"chunk" * 100).stored == 0
    assert batch.append(Kind.TREE, b"chunk" * 100).id != first.id
    (growth,) = batch.growth()
    assert (growth.start, growth.stop) == (0, shelf.opened[0].end)
    assert {placed.header.id for placed in batch.records(growth)} == set(batch.stored)


def test_what_is_trusted_is_not_even_looked_up_and_what_is_known_is_relied_on(store, batch, shelf):
    trusted, known = (store.sealer.id(Kind.CHUNK, data) for data in (b"trusted", b"known"))
    batch.trust([trusted])
    shelf.known = {known}
    for data in (b"trusted", b"known", b"known"):
        assert batch.append(Kind.CHUNK, data).stored == 0
    assert shelf.asked == [known]
    assert batch.relied == {known}
    assert shelf.opened == []


def test_threads_that_append_the_same_objects_store_each_once(batch, shelf):
    chunks = [bytes([n]) * (500 * n + 1) for n in range(50)]
    taken, lock = [], threading.Lock()

    def work():
        for chunk in chunks:
            stored = batch.append(Kind.CHUNK, chunk).stored
            with lock:
                taken.append(stored)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(1 for stored in taken if stored) == len(chunks)
    batch.finish()
    (pack,) = shelf.opened
    found = list(scan(pack.file, 0, pack.end, "pack"))
    assert sorted(header.id for _, header in found) == sorted(batch.stored)
    assert sum(taken) == pack.end


@pytest.fixture
def small_packs(monkeypatch):
    monkeypatch.setattr("chainstore.storage.pack.PACK_BYTES", 3000)
    monkeypatch.setattr("chainstore.storage.pack.CROWDED_BYTES", 500)


def test_a_batch_goes_on_in_another_pack_when_one_is_full(batch, shelf, small_packs):
    for _ in range(20):
        batch.append(Kind.CHUNK, os.urandom(1000))
    batch.finish()
    assert len(shelf.opened) == len(batch.growth()) == 10
    assert [bool(growth.contents) for growth in batch.growth()] == [True] * 9 + [False]
    batch.finish()  # again changes nothing
    assert [growth.stop for growth in batch.growth()] == [pack.end for pack in shelf.opened]


def test_an_object_larger_than_a_pack_has_one_of_its_own(batch, shelf, small_packs):
    batch.append(Kind.CHUNK, os.urandom(100))
    batch.append(Kind.CHUNK, os.urandom(10_000))
    assert len(shelf.opened) == 2


def test_small_records_are_handed_on_whole_and_large_ones_are_not(batch):
    batch.append(Kind.CHUNK, b"small")
    batch.append(Kind.CHUNK, os.urandom(4000))
    (growth,) = batch.growth()
    small, large = batch.records(growth)
    assert small.inline is not None
    assert len(small.inline) == small.header.record_bytes
    assert large.inline is None


def test_an_error_of_the_source_of_packs_breaks_the_batch(store, shelf):
    def fail():
        raise OSError("no pack")

    batch = LocalBatch(store.sealer, Benches(), "auto", shelf.knows, fail)
    with pytest.raises(OSError, match="no pack"):
        batch.append(Kind.CHUNK, b"x")
    assert batch.broken


def test_benches_are_lent_to_one_at_a_time_and_few_are_kept():
    benches = Benches()
    lent = [benches.take("auto") for _ in range(20)]
    assert len(set(map(id, lent))) == 20
    for bench in lent:
        benches.give_back(bench)
    assert len(benches._idle) == 8
    assert benches.take("auto") in lent
    assert benches.take("none") not in lent


def test_a_bench_gives_the_same_memory_as_long_as_it_suffices():
    bench = Bench("auto")
    first = bench.room("a", 100)
    assert bench.room("a", 50).obj is first.obj
    assert bench.room("b", 50).obj is not first.obj
    assert len(bench.room("a", 1 << 20)) == 1 << 20
