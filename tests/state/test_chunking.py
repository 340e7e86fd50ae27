import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.model.spec import Spec
from chainstore.state.chunking import chunk_length, ranges
from tests.model.test_spec import specs


@given(specs, st.integers(1, 1 << 21))
def test_a_chunk_is_whole_items_and_at_most_the_target_or_one_item(spec, target):
    length = chunk_length(spec, target)

    assert length >= spec.itemsize
    assert length % spec.itemsize == 0
    assert length <= max(target, spec.itemsize)


@given(specs, st.integers(1, 1 << 21))
def test_rows_that_fit_are_not_cut(spec, target):
    row = Spec(spec.dtype, spec.shape[1:]).nbytes

    if 0 < row <= target:
        assert chunk_length(spec, target) % row == 0
        assert chunk_length(spec, target) + row > target


@given(specs, st.integers(64, 1 << 16))
def test_the_length_depends_on_the_row_and_not_on_how_many_there_are(spec, target):
    longer = Spec(spec.dtype, (spec.shape[0] + 5, *spec.shape[1:])) if spec.shape else spec

    assert chunk_length(spec, target) == chunk_length(longer, target)


def test_a_row_longer_than_the_target_is_cut_between_items():
    assert chunk_length(Spec("float32", (4, 1000)), 1001) == 1000


def test_an_item_longer_than_the_target_is_not_cut():
    assert chunk_length(Spec("raw5000", (3,)), 1000) == 5000


def test_bytes_of_unknown_kind_are_cut_at_the_target():
    assert chunk_length(None, 1000) == 1000


def test_a_target_of_nothing_is_refused():
    with pytest.raises(ValueError, match="0 bytes"):
        chunk_length(None, 0)


@given(st.integers(0, 10_000), st.integers(1, 3_000))
def test_ranges_cover_every_byte_once_in_order(nbytes, chunk):
    cuts = list(ranges(nbytes, chunk))

    assert [byte for start, stop in cuts for byte in range(start, stop)] == list(range(nbytes))
    assert all(stop - start == chunk for start, stop in cuts[:-1])
    assert all(start < stop for start, stop in cuts)
