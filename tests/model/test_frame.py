"""Frames: what is framed comes back, and no bytes whatever lead anywhere but to Malformed or FormatTooNew."""

import contextlib
import dataclasses
import struct
import tracemalloc
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import FormatTooNew, InvalidInput, Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model import frame
from chainstore.model.frame import (
    ALIGNMENT,
    KIND_CONTENTS,
    LINE_OVERHEAD,
    MAX_HEADER_BYTES,
    Header,
    Line,
    as_listed,
    contents_record,
    crc32c,
    frame_record,
    is_record_kind,
    line_bytes,
    list_contents,
    parse_contents,
    parse_header,
    parse_line,
    split_record,
)

QUICK = settings(deadline=None, max_examples=100)
REPO = b"R" * 16

ids = st.binary(min_size=32, max_size=32).map(ObjectId)
headers = st.builds(
    Header,
    kind=st.integers(0, 255),
    flags=st.integers(0, 65535),
    generation=st.integers(0, 2**32 - 1),
    codecs=st.binary(min_size=4, max_size=4),
    stored_len=st.just(0),
    plain_len=st.integers(0, frame.MAX_PAYLOAD),
    id=ids,
    depth=st.integers(0, frame.MAX_DEPTH),
    bases=st.lists(ids, max_size=4).map(tuple),
    repo_id=st.binary(min_size=16, max_size=16),
)
lines = st.builds(
    Line,
    generation=st.integers(0, 2**32 - 1),
    seq=st.integers(0, 2**64 - 1),
    previous=st.binary(min_size=32, max_size=32),
    body=st.binary(max_size=200),
)


def record_of(header: Header, payload: bytes) -> tuple[Header, bytes]:
    header = dataclasses.replace(header, stored_len=len(payload))
    return header, b"".join(frame_record(header, payload))


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_the_checksum_of_parts_is_that_of_all_of_them_whatever_their_type(parts):
    expected = google_crc32c.value(b"".join(parts))
    assert crc32c(*parts) == expected
    assert crc32c(*(memoryview(bytearray(part)) for part in parts)) == expected


def test_the_checksum_of_a_large_buffer_is_taken_piece_by_piece():
    data = bytes(range(256)) * 2000
    assert crc32c(bytearray(data)) == google_crc32c.value(data)


@QUICK
@given(headers, st.binary(max_size=300))
def test_a_record_comes_back_and_ends_on_a_boundary(header, payload):
    header, data = record_of(header, payload)
    assert len(data) == header.record_bytes
    assert len(data) % ALIGNMENT == 0
    assert parse_header(data[:MAX_HEADER_BYTES], "pack") == header
    found, inside = split_record(memoryview(data), "pack")
    assert (found, bytes(inside)) == (header, payload)


@QUICK
@given(headers, st.binary(max_size=80), st.data())
def test_no_flipped_bit_of_a_record_goes_unseen(header, payload, data):
    _, record = record_of(header, payload)
    damaged = bytearray(record)
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Malformed, FormatTooNew)):
        split_record(memoryview(damaged), "pack")


@QUICK
@given(headers, st.binary(max_size=80), st.data())
def test_a_record_that_is_cut_anywhere_before_its_padding_is_malformed(header, payload, data):
    header, record = record_of(header, payload)
    length = data.draw(st.integers(0, header.header_bytes + len(payload) + 3))
    with pytest.raises(Malformed):
        split_record(memoryview(record)[:length], "pack")


def with_checksum(head: bytes) -> bytes:
    return head + struct.pack("<I", crc32c(head))


def test_a_record_of_a_newer_version_is_too_new_and_not_malformed():
    head = Header(3, 0, 0, bytes(4), 0, 0, ObjectId(bytes(32)), 0, (), REPO).to_bytes()[:-4]
    newer = bytearray(head)
    newer[8] = 2
    with pytest.raises(FormatTooNew):
        parse_header(with_checksum(bytes(newer)), "pack")


@pytest.mark.parametrize(
    "changes", [{"stored_len": 1 << 40}, {"plain_len": 1 << 40}, {"depth": 65}], ids=["stored", "plain", "depth"]
)
def test_sizes_beyond_all_reason_are_refused_though_the_checksum_is_right(changes):
    header = dataclasses.replace(Header(3, 0, 0, bytes(4), 0, 0, ObjectId(bytes(32)), 0, (), REPO), **changes)
    with pytest.raises(Malformed):
        parse_header(header.to_bytes(), "pack")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_are_no_record_no_line_and_no_contents(data, marked):
    for parse, magic in (
        (lambda d: parse_header(d, "x"), frame.RECORD_MAGIC),
        (lambda d: split_record(d, "x"), frame.RECORD_MAGIC),
        (lambda d: parse_line(d, "x"), frame.LINE_MAGIC),
        (lambda d: list(parse_contents(d, "x")), b"\0" * 8 + frame.RECORD_MAGIC),
    ):
        view = memoryview((magic if marked else b"\1") + data)
        with pytest.raises((Malformed, FormatTooNew)):
            parse(view)


@QUICK
@given(st.lists(headers, max_size=6))
def test_the_contents_of_a_pack_come_back(found):
    records = [(64 * number, header) for number, header in enumerate(found)]
    parts = contents_record(records, REPO)
    header, payload = split_record(memoryview(b"".join(parts)), "pack")
    assert header.kind == KIND_CONTENTS
    assert list(parse_contents(payload, "pack")) == records


def test_the_contents_of_a_pack_are_put_together_one_header_after_the_other():
    def records():
        for number in range(20_000):
            yield 64 * number, Header(1, 0, 0, bytes(4), 0, 64, ObjectId(number.to_bytes(32)), 0, (), REPO)

    tracemalloc.start()
    try:
        parts = contents_record(records(), REPO)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * sum(len(part) for part in parts)  # about 5 where they are kept as headers until the end


@QUICK
@given(
    st.lists(
        st.builds(
            replace, headers, kind=st.sampled_from([1, 2, 3, 16]), repo_id=st.sampled_from([REPO, REPO, b"X" * 16])
        ),
        max_size=6,
    )
)
def test_the_fast_way_to_read_contents_gives_what_the_other_gives(found):
    records = [(64 * number, header) for number, header in enumerate(found)]
    _, payload = split_record(memoryview(b"".join(contents_record(records, REPO))), "pack")
    ours = [(offset, header) for offset, header in records if header.repo_id == REPO and is_record_kind(header.kind)]
    assert list_contents(bytes(payload), "pack", REPO) == [as_listed(*each) for each in ours]
    for end in range(len(payload)):
        with contextlib.suppress(Malformed):
            assert len(list_contents(bytes(payload[:end]), "pack", REPO)) < max(len(records), 1)


@QUICK
@given(st.lists(headers, min_size=1, max_size=3), st.data())
def test_contents_with_a_flipped_bit_never_raise_anything_else(found, data):
    records = [(64 * number, header) for number, header in enumerate(found)]
    _, payload = split_record(memoryview(b"".join(contents_record(records, REPO))), "pack")
    damaged = bytearray(payload)
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(Malformed, FormatTooNew):
        assert list(parse_contents(memoryview(damaged), "pack")) != records


@QUICK
@given(lines)
def test_a_line_comes_back_and_its_length_stands_in_its_head(line):
    data = line.to_bytes()
    assert parse_line(memoryview(data + b"more"), "log") == line
    assert len(data) == line.line_bytes == LINE_OVERHEAD + len(line.body) == line_bytes(memoryview(data))


@QUICK
@given(lines, st.data())
def test_no_flipped_bit_of_a_line_goes_unseen(line, data):
    damaged = bytearray(line.to_bytes())
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Malformed):
        parse_line(memoryview(damaged), "log")


@QUICK
@given(lines, lines)
def test_the_hash_of_a_line_covers_all_of_it(one, other):
    assert (one == other) == (one.hash == other.hash)


def test_a_line_longer_than_a_reader_takes_is_never_written(monkeypatch):
    monkeypatch.setattr(frame, "MAX_LINE", 10)
    with pytest.raises(InvalidInput):
        Line(0, 1, bytes(32), bytes(11)).to_bytes()
    assert parse_line(memoryview(Line(0, 1, bytes(32), bytes(10)).to_bytes()), "log").body == bytes(10)


@pytest.mark.parametrize(("kind", "expected"), [(Kind.COMMIT, True), (Kind.CHUNK, True), (0, False), (16, False)])
def test_only_the_three_kinds_are_objects(kind, expected):
    assert frame.is_record_kind(kind) is expected
