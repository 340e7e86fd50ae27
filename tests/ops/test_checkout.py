"""Filling: every byte verified before it counts, and memory that holds the bytes already is left alone."""

import os
from dataclasses import replace

import pytest

from chainstore.errors import IdMismatch, Malformed
from chainstore.observe import silent
from chainstore.ops.checkout import fill
from chainstore.state.leaf import Destination
from tests.ops.stores import leaf, load, store

MIB = 1 << 20


def fill_into(db, entry, buffer, live=False) -> int:
    destination = Destination(entry, memoryview(buffer), live)
    return fill(db, [destination], threads=1, max_memory_bytes=1 << 30, observer=silent)


def test_live_memory_that_holds_the_bytes_is_not_read_again(db):
    data = bytearray(os.urandom(3 * MIB))
    manifest, _ = store(db, [leaf(("w",), bytes(data))])
    (entry,) = manifest.entries
    assert fill_into(db, entry, data, live=True) == 0
    changed = bytearray(data)
    changed[MIB + 7] ^= 1
    assert fill_into(db, entry, changed, live=True) == MIB
    assert changed == data
    assert fill_into(db, entry, bytearray(3 * MIB)) == 3 * MIB


@pytest.mark.parametrize("size", [100, 2 * MIB], ids=["small", "large"])
def test_damage_names_the_path(db, size):
    manifest, _ = store(db, [leaf(("model", "w"), os.urandom(size))])
    with db.view() as view:
        path = db.packs.path(next(view.packs())[1].pack)
        for id in list(db.scan()):
            with db._index.write() as rows:
                rows.delete("inline", id)
    raw = bytearray(path.read_bytes())
    raw[150] ^= 1
    path.write_bytes(raw)
    with pytest.raises(IdMismatch) as error:
        load(db, manifest)
    assert error.value.path == "model/w"


@pytest.mark.parametrize("length", [99, 101])
def test_a_destination_of_another_length_than_its_extents_is_refused(db, length):
    manifest, _ = store(db, [leaf(("w",), os.urandom(100))])
    with pytest.raises(Malformed):
        fill_into(db, manifest.entries[0], bytearray(length))


def test_an_extent_beyond_its_chunk_is_damage(db):
    manifest, _ = store(db, [leaf(("w",), os.urandom(100))])
    (entry,) = manifest.entries
    beyond = replace(entry, extents=(entry.extents[0]._replace(offset=50),))
    with pytest.raises(IdMismatch, match="shorter"):
        fill_into(db, beyond, bytearray(100))


def test_a_large_entry_may_use_parts_of_chunks(db):
    data = os.urandom(2 * MIB)
    manifest, _ = store(db, [leaf(("w",), data)])
    (entry,) = manifest.entries
    first, second = entry.extents
    parts = (first._replace(offset=10, length=MIB - 10), second._replace(length=500_000))
    buffer = bytearray(MIB - 10 + 500_000)
    fill_into(db, replace(entry, extents=parts), buffer)
    assert buffer == data[10:MIB] + data[MIB : MIB + 500_000]
