"""Pairing: what ids tell without a read, and how arrays that are cut differently are read side by side."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import Malformed
from chainstore.ids import ObjectId
from chainstore.model.spec import Spec
from chainstore.model.tree import Entry, Extent
from chainstore.ops.pairing import Pair, is_same_bytes
from chainstore.ops.parts import parts_of


def chunk(number: int) -> ObjectId:
    return ObjectId(bytes((number,)) * 32)


def entry(dtype: str, lengths: list[int], first: int = 0) -> Entry:
    """Return an array of whole chunks of so many bytes, numbered from `first`."""
    spec = Spec(dtype, (sum(lengths) // Spec(dtype, ()).itemsize,))
    extents = tuple(Extent(chunk(first + n), 0, length) for n, length in enumerate(lengths))
    return Entry(("w",), [16], spec, extents)


def lengths_of(*entries: Entry):
    known = {extent.chunk: extent.length for entry in entries for extent in entry.extents}
    return lambda id: known.get(id, -1)


def test_equal_ids_are_equal_bytes_and_whole_chunks_under_other_ids_are_not():
    a, b = entry("uint8", [8, 8]), entry("uint8", [8, 8], 1)
    assert is_same_bytes(a, a, lengths_of(a)) is True
    assert is_same_bytes(a, b, lengths_of(a, b)) is False
    assert is_same_bytes(a, entry("uint8", [8]), lengths_of(a)) is False


def test_only_a_read_tells_of_parts_of_chunks_and_of_other_cuts():
    a, b = entry("uint8", [8, 4, 8]), entry("uint8", [4, 4, 12], 10)
    assert is_same_bytes(a, b, lengths_of(a, b)) is None
    assert is_same_bytes(a, entry("uint8", [8, 4, 8], 10), lambda id: 64) is None


@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_parts_hold_the_same_elements_of_both_sides_in_order(counts, data):
    total = sum(counts)
    cuts = sorted(data.draw(st.sets(st.integers(1, total - 1)), "cuts")) if total > 1 else []
    others = [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]
    a, b = entry("float32", [4 * n for n in counts]), entry("uint16", [2 * n for n in others], 100)
    parts = parts_of(0, Pair(("w",), a, b, a.spec, b.spec, "reshaped", True, "numbers"))
    assert [part.slot for part in parts] == list(range(len(parts)))
    assert all(part.a.length == 2 * part.b.length for part in parts)
    for side, whole in (("a", a), ("b", b)):
        found = [getattr(part, side) for part in parts]
        assert sum(extent.length for extent in found) == whole.nbytes
        starts = {}
        for extent in found:
            assert extent.offset == starts.get(extent.chunk, 0)
            starts[extent.chunk] = extent.offset + extent.length


def test_a_chunk_that_ends_within_an_element_is_malformed():
    a, b = entry("float32", [6, 2]), entry("float32", [8], 9)
    with pytest.raises(Malformed):
        parts_of(0, Pair(("w",), a, b, a.spec, b.spec, "changed", True, "numbers"))
    with pytest.raises(Malformed):
        parts_of(0, Pair(("w",), a, None, a.spec, None, "removed", False, "numbers"))
