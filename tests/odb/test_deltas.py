"""Records with bases: read through them, bounded, never in a circle, and put in order by a rebuild."""

import struct
from contextlib import closing

import pytest

from chainstore.codecs import chain
from chainstore.errors import FormatTooNew, IdMismatch, Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Dead, Retired
from chainstore.model.frame import Header, frame_record
from chainstore.odb.conflicts import GoneMeanwhile
from chainstore.odb.editor import Editor
from chainstore.odb.local import LocalDatabase
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed
from tests.odb.stores import Store, logical, put

TAG = 200
FIRST = bytes(range(256)) * 20


class Xor:
    """The difference to one base, byte by byte."""

    tag, bases = TAG, 1

    def encode(self, data, spec, bases, hint, out):
        out[: len(data)] = difference(data, bases[0])
        return len(data)

    def decode(self, payload, spec, bases, out):
        if len(bases) != 1 or not len(bases[0]) == len(payload) == len(out):
            raise Malformed("xor", "lengths differ")
        out[:] = difference(payload, bases[0])


def difference(a, b) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def xor_is_known():
    chain.register(TAG, lambda effort: Xor(), delta=True)
    yield
    chain.unregister(TAG)


def delta(sealer: Sealer, plain: bytes, base: bytes, depth: int) -> tuple[Header, bytes]:
    """Return a record of `plain` as a difference to `base`."""
    coded = difference(plain, base)
    ids = [sealer.id(Kind.CHUNK, data) for data in (plain, base)]
    room = bytearray(sealer.sealed_bytes(len(coded)))
    tags = bytes([TAG, 0, 0, 0])
    header, payload = sealer.seal(Kind.CHUNK, ids[0], len(plain), tags, coded, room, depth=depth, bases=(ids[1],))
    return header, bytes(payload)


def version(number: int) -> bytes:
    return bytes([number]) + FIRST[1:]


def put_delta(db: LocalDatabase, plain: bytes, base: bytes, depth: int) -> ObjectId:
    batch = db.batch("none")
    try:
        id = batch.append_record(*delta(db.sealer, plain, base, depth)).id
        db.publish(batch, [])
        return id
    finally:
        db.retire_batch(batch)


def line_of(db: LocalDatabase, length: int) -> list[ObjectId]:
    """Publish a chunk and `length` that build on each other."""
    ids = put(db, version(0))
    for number in range(1, length + 1):
        ids.append(put_delta(db, version(number), version(number - 1), number))
    return ids


def test_a_line_of_bases_is_read_to_its_end(either_store):
    with closing(either_store.create()) as db:
        ids = line_of(db, 10)
        assert [bytes(db.read(id)) for id in ids] == [version(n) for n in range(11)]
        with db.view() as view:
            assert [view.place(id).depth for id in ids] == list(range(11))
            assert view.bases(ids[5]) == (ids[4],)
        before = logical(db)
    assert either_store.rebuild().problems == []
    with closing(either_store.open()) as db:
        assert logical(db) == before
        assert bytes(db.read(ids[-1])) == version(10)


def test_a_whole_batch_of_them_is_put_in_the_order_of_depth(store):
    with closing(store.create()) as db:
        batch = db.batch("none")
        for number in (3, 1, 2):  # by several threads, in any order
            batch.append_record(*delta(db.sealer, version(number), version(number - 1), number))
        batch.append(Kind.CHUNK, version(0))
        db.publish(batch, [])
        db.retire_batch(batch)
        assert len(list(db.scan())) == 4
        before = logical(db)
    store.rebuild()
    with closing(store.open()) as db:
        assert logical(db) == before


@pytest.mark.parametrize("depth", [0, 1])
def test_a_record_whose_base_is_missing_or_not_less_deep_is_not_published(store, depth):
    with closing(store.create()) as db:
        ids = line_of(db, 1)
        with pytest.raises(GoneMeanwhile):
            put_delta(db, version(9), version(8), 1)  # nobody stored version 8
        with pytest.raises(GoneMeanwhile):
            put_delta(db, version(9), version(1), depth)
        assert set(db.scan()) == set(ids)


def test_a_known_object_is_not_stored_as_a_difference(store):
    with closing(store.create()) as db:
        line_of(db, 1)
        batch = db.batch("none")
        assert batch.append_record(*delta(db.sealer, version(1), version(0), 1)).stored == 0
        db.retire_batch(batch)


def test_rows_are_never_put_over_others_of_less_depth_nor_without_their_base(store):
    with closing(store.create()) as db:
        ids = line_of(db, 2)
        before = logical(db)
        with db._index.write() as rows:
            editor = Editor(rows, db.sealer)
            for plain, base, depth in [
                (version(0), version(2), 3),  # deeper than what is known
                (version(1), version(2), 1),  # on what is no less deep
                (version(7), version(6), 1),  # on nothing
            ]:
                editor.put_record(1, Placed(0, delta(db.sealer, plain, base, depth)[0], None))
        assert logical(db) == before
        with db._index.write() as rows:  # less deep: it takes the place, and is no difference any more
            whole = db.sealer.seal(Kind.CHUNK, ids[2], len(FIRST), bytes(4), version(2), bytearray(1 << 16))[0]
            Editor(rows, db.sealer).put_record(1, Placed(0, whole, None))
        with db.view() as view:
            assert (view.place(ids[2]).depth, view.bases(ids[2])) == (0, ())


def test_a_base_in_a_later_pack_than_what_builds_on_it_is_found_by_a_rebuild(store):
    with closing(store.create()) as db:
        one, two = db.batch("none"), db.batch("none")
        one.append(Kind.CHUNK, version(0))
        db.publish(one, [])
        two.append_record(*delta(db.sealer, version(1), version(0), 1))
        db.publish(two, [])
        base, top = (db.sealer.id(Kind.CHUNK, version(n)) for n in (0, 1))
        with db.view() as view:
            place = view.place(base)
            pack = view.pack(place.pack).pack
        # what gc does: copy the base forward, then give the first pack up
        db._reader.suspects.add(base)
        db._hold._idle.clear()
        three = db.batch("none")
        three.append(Kind.CHUNK, version(0))
        db.publish(three, [Dead(pack, ((place.offset, place.offset + place.length),)), Retired(pack)])
        for batch in (one, two, three):
            db.retire_batch(batch)
        assert bytes(db.read(top)) == version(1)
        before = logical(db)
        db.packs.path(pack).unlink()
    assert store.rebuild().problems == []
    with closing(store.open()) as db:
        assert bytes(db.read(top)) == version(1)
        assert logical(db)["objects"] == before["objects"]


def test_a_rebuild_leaves_out_what_lost_its_base(store):
    with closing(store.create()) as db:
        ids = line_of(db, 3)
        with db.view() as view:
            place = view.place(ids[1])
            path = db.packs.path(view.pack(place.pack).pack)
    raw = bytearray(path.read_bytes())
    raw[place.offset + 8] ^= 1
    path.write_bytes(raw)
    assert len(store.rebuild().problems) == 1
    with closing(store.open()) as db:
        assert set(db.scan()) == {ids[0]}
        put(db, version(3))
        assert bytes(db.read(ids[3])) == version(3)


def test_bases_in_a_circle_are_damage_and_not_endless(store):
    """Only a forged index leads there: rows with bases of less depth make no circle."""
    with closing(store.create()) as db:
        ids = line_of(db, 1)
        header, payload = delta(db.sealer, version(0), version(1), 1)
        (pack,) = (path for path in store.layout.packs.rglob("*") if path.is_file())
        with db.view() as view:
            place = view.place(ids[0])
        raw = pack.read_bytes()
        record = b"".join(frame_record(header, payload))
        pack.write_bytes(raw + record)
        with db._index.write() as rows:
            editor = Editor(rows, db.sealer)
            editor._out.delete("objects", ids[0])
            row = struct.pack("<IQQQIHBBB", place.pack, len(raw), len(record), len(FIRST), 0, 0, 3, 1, 1)
            editor._out.put("objects", ids[0], row)
        for id in ids:
            with pytest.raises(IdMismatch):
                db.read(id)


def test_a_damaged_base_makes_everything_on_it_unknown(store):
    with closing(store.create()) as db:
        ids = line_of(db, 2)
        with db.view() as view:
            place = view.place(ids[0])
            path = db.packs.path(view.pack(place.pack).pack)
        raw = bytearray(path.read_bytes())
        raw[place.offset + 500] ^= 1
        path.write_bytes(raw)
        with pytest.raises(IdMismatch):
            db.read(ids[2])
        assert [db.has(id) for id in ids] == [False, False, False]
        put(db, version(0))
        put(db, version(2))
        assert [bytes(db.read(id)) for id in ids] == [version(n) for n in range(3)]


def test_each_base_is_read_once_however_often_it_is_needed(store, monkeypatch):
    """Four bases a record and twelve levels would be sixteen million reads otherwise."""

    class Sum(Xor):
        bases = 4

        def decode(self, payload, spec, bases, out):
            for base in bases:
                payload = difference(payload, base)
            out[:] = payload

    chain.register(TAG + 1, lambda effort: Sum(), delta=True)
    try:
        with closing(store.create()) as db:
            plains = [version(0), version(100), version(101), version(102)]
            put(db, *plains)
            for depth in range(1, 13):
                bases, plain = plains[-4:], version(depth)
                coded = plain
                for base in bases:
                    coded = difference(coded, base)
                ids = [db.sealer.id(Kind.CHUNK, data) for data in (plain, *bases)]
                tags = bytes([TAG + 1, 0, 0, 0])
                sealed = db.sealer.seal(
                    Kind.CHUNK, ids[0], len(plain), tags, coded, bytearray(1 << 16), depth=depth, bases=tuple(ids[1:])
                )
                batch = db.batch("none")
                batch.append_record(*sealed)
                db.publish(batch, [])
                db.retire_batch(batch)
                plains.append(plain)
            reads = []
            fetch = db._reader._fetch
            monkeypatch.setattr(db._reader, "_fetch", lambda bench, id: (reads.append(id), fetch(bench, id))[1])
            assert bytes(db.read(db.sealer.id(Kind.CHUNK, plains[-1]))) == plains[-1]
            assert len(reads) == len(plains)
    finally:
        chain.unregister(TAG + 1)


def test_a_reader_without_the_codec_says_so(store: Store):
    with closing(store.create()) as db:
        ids = line_of(db, 1)
    chain.unregister(TAG)
    try:
        with closing(store.open()) as db, pytest.raises(FormatTooNew, match="codec 200"):
            db.read(ids[1])
    finally:
        chain.register(TAG, lambda effort: Xor(), delta=True)
