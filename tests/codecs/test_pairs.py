"""Pairs of digits: what they stand for comes back, they are taken where they pay, and hostile ones are refused."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.codecs.base import EFFORTS, NO_HINT
from chainstore.codecs.pairs import DIGITS, digits_of, values_of
from chainstore.codecs.plane_codec import make
from chainstore.codecs.positions import scatter
from chainstore.codecs.streams import PAIRS, RAW, ZSTD
from chainstore.codecs.zstd import Frames
from chainstore.errors import Malformed
from chainstore.model.spec import Spec

RANDOM = np.random.default_rng(11)
SMALL = make(EFFORTS["small"])
SPEC = Spec("uint8", (1,))
# signs folded into small differences: two values have most of it, some others the rest
FOLDED = np.where(RANDOM.random(40_001) < 0.04, RANDOM.integers(3, 200, 40_001), RANDOM.integers(1, 3, 40_001))
DATA = FOLDED.astype(np.uint8).tobytes()


def coded(data: bytes) -> bytes:
    out = bytearray(len(data))
    return bytes(out[: SMALL.encode(memoryview(data), SPEC, (), NO_HINT, memoryview(out))])


def decoded(payload: bytes, length: int) -> bytes:
    out = bytearray(length)
    SMALL.decode(memoryview(payload), None, (), memoryview(out))
    return bytes(out)


def entropy(data: bytes) -> float:
    counts = np.bincount(np.frombuffer(data, np.uint8))
    share = counts[counts > 0] / len(data)
    return float(-(share * np.log2(share)).sum()) * len(data) / 8


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(1, 256), st.integers(0, 2**32 - 1), st.booleans())
def test_any_bytes_come_back_whatever_the_sample_said(count: int, kinds: int, seed: int, misled: bool):
    source = np.random.default_rng(seed)
    stream = (source.integers(0, kinds, count) * 5 % 256).astype(np.uint8)
    counts = np.bincount(stream[:1] if misled else stream, minlength=256)
    packed, values, others = digits_of(stream, counts)
    assert packed.size == (count + 1) // 2 and len(set(values.tolist())) == DIGITS
    found, elsewhere = values_of(packed, values.tobytes(), count)
    scatter(others, elsewhere, found)
    assert found.tobytes() == stream.tobytes()


def test_folded_signs_take_little_more_than_their_entropy():
    payload = coded(DATA)
    assert payload[1] == PAIRS and decoded(payload, len(DATA)) == DATA
    assert len(payload) < 1.08 * entropy(DATA)
    assert len(Frames(6).huffman(memoryview(DATA))) > 1.2 * entropy(DATA)


@pytest.mark.parametrize("kinds", [2, 15, 16, 17])
def test_as_many_values_as_there_are_digits_and_some_more(kinds: int):
    rare = np.concatenate((np.arange(kinds), RANDOM.integers(0, kinds, 400), np.zeros(20_000, np.int64)))
    data = (RANDOM.permutation(rare) * 3).astype(np.uint8).tobytes()
    assert decoded(coded(data), len(data)) == data


def test_what_a_huffman_code_suits_is_left_to_it():
    even = RANDOM.integers(0, 16, 40_000).astype(np.uint8).tobytes()
    assert coded(even)[1] == ZSTD


def test_a_last_digit_with_another_ones_value_is_refused():
    payload = bytearray(coded(DATA))
    assert payload[1] == PAIRS
    payload[2 + DIGITS - 1] = payload[2]
    with pytest.raises(Malformed, match="two digits"):
        decoded(bytes(payload), len(DATA))


def test_pairs_within_pairs_are_refused():
    values = bytes(range(DIGITS))
    inner = bytes((PAIRS,)) + values + bytes((RAW,)) + bytes(1) + bytes((RAW,))
    good = bytes((1, PAIRS)) + values + bytes((RAW,)) + b"\x10\x32" + bytes((RAW,))
    assert decoded(good, 4) == bytes((0, 1, 2, 3))
    for bad in (bytes((1, PAIRS)) + values + inner + bytes((RAW,)), good[:-1] + inner):
        with pytest.raises(Malformed):
            decoded(bad, 4)


def test_digits_say_how_many_bytes_come_elsewhere():
    head = bytes((1, PAIRS)) + bytes(range(DIGITS)) + bytes((RAW,)) + b"\xf0\x0f"
    assert decoded(head + bytes((RAW,)) + b"ab", 4) == b"\x00ab\x00"
    for bad in (head, head + bytes((RAW,)) + b"a", head + bytes((RAW,)) + b"abc"):
        with pytest.raises(Malformed):
            decoded(bad, 4)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_payload_with_changed_bits_is_read_or_refused(draw):
    payload = bytearray(coded(DATA))
    assert payload[1] == PAIRS
    near_the_head = draw.draw(st.booleans())
    for _ in range(draw.draw(st.integers(1, 3))):
        bit = draw.draw(st.integers(0, 8 * (40 if near_the_head else len(payload)) - 1))
        payload[bit // 8] ^= 1 << bit % 8
    with suppress(Malformed):
        assert len(decoded(bytes(payload), len(DATA))) == len(DATA)
