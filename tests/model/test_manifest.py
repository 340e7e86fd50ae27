"""The manifest: entries by path, in the order of the walk."""

import pytest

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Entry, Extent


def entry(path: tuple, *chunks: int) -> Entry:
    return Entry(path, ["t"], None, tuple(Extent(ObjectId(bytes([n]) * 32), 0, 10) for n in chunks))


def test_entries_are_found_by_path_and_iterated_in_order():
    manifest = Manifest([entry(("b",), 1), entry(("a",), 2), entry((), 3)])
    assert list(manifest) == [("b",), ("a",), ()]
    assert manifest[("a",)].extents[0].chunk == ObjectId(bytes([2]) * 32)
    assert len(manifest) == 3


def test_paths_that_python_holds_equal_are_different_here():
    keys = (1, True, 1.0, "1", b"1")
    manifest = Manifest([entry((key,), number) for number, key in enumerate(keys)])
    assert [manifest[(key,)].extents[0].chunk[0] for key in keys] == [0, 1, 2, 3, 4]
    assert (2,) not in manifest
    assert "1" not in manifest


def test_a_path_that_is_not_there_is_a_key_error():
    with pytest.raises(KeyError):
        Manifest()[("a",)]


def test_a_path_that_stands_twice_is_malformed():
    with pytest.raises(Malformed):
        Manifest([entry(("a",), 1), entry(("a",), 2)])


def test_chunks_count_once_and_bytes_as_often_as_they_are_shown():
    manifest = Manifest([entry(("a",), 1, 2), entry(("b",), 1)])
    assert len(manifest.chunks()) == 2
    assert manifest.raw_bytes() == 30


def test_other_entries_under_the_same_paths_make_another_manifest():
    first = Manifest([entry(("a",), 1), entry((True,), 2)])
    assert {chunk[0] for chunk in first.chunks()} == {1, 2}
    second = first.with_entries([first.entries[0], entry((True,), 3)])
    assert second[(True,)].extents[0].chunk[0] == 3 and (1,) not in second
    assert {chunk[0] for chunk in second.chunks()} == {1, 3}
    assert first[(True,)].extents[0].chunk[0] == 2
