import tracemalloc
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.codecs.base import EFFORTS, NO_HINT, NOT_SHORTER
from chainstore.codecs.plane_codec import Form, Planes, make, word_of
from chainstore.errors import Malformed
from chainstore.model.spec import DTYPES, Spec

RANDOM = np.random.default_rng(7)
SPECS = [Spec(dtype, (1,)) for dtype in sorted(DTYPES)] + [Spec(f"raw{size}", (1,)) for size in range(1, 19)]
NORMAL = RANDOM.standard_normal(20_000).astype(np.float32)
AUTO = make(EFFORTS["auto"])


def coded(data: bytes, spec: Spec, codec: Planes = AUTO) -> bytes | None:
    out = bytearray(len(data))
    length = codec.encode(memoryview(data), spec, (), NO_HINT, memoryview(out))
    return None if length == NOT_SHORTER else bytes(out[:length])


def decoded(payload: bytes, length: int, codec: Planes = AUTO) -> bytes:
    out = bytearray(length)
    codec.decode(memoryview(payload), None, (), memoryview(out))
    return bytes(out)


def masked(values: np.ndarray, share: float) -> np.ndarray:
    return np.where(RANDOM.random(values.size) < share, values, values.dtype.type(0))


# One chunk for each coding a stream can have, and for each form of a payload.
CASES = {
    "dense": (NORMAL.tobytes(), "float32"),
    "dense half": (NORMAL.astype(np.float16).tobytes(), "float16"),
    "double from float": (NORMAL.astype(np.float64).tobytes(), "float64"),
    "complex": (NORMAL.tobytes(), "complex64"),
    "squares": (np.square(NORMAL).tobytes(), "float32"),
    "zeros": (bytes(1 << 16), "float32"),
    "one set": (bytes(9999) + b"x" + bytes(10000), "float32"),
    "half zeros": (masked(NORMAL, 0.5).tobytes(), "float32"),
    "few set": (masked(NORMAL, 0.02).tobytes(), "float32"),
    "few changes": (masked(RANDOM.integers(1, 5, 40_000).astype(np.uint16), 0.05).tobytes(), "uint16"),
    "flags": ((RANDOM.random(30_000) < 0.5).tobytes(), "bool"),
    "rare flags": ((RANDOM.random(30_000) < 0.01).tobytes(), "bool"),
    "counting": (np.arange(10_000).tobytes(), "int64"),
    "long doubles": (NORMAL[:4000].astype(np.longdouble).tobytes(), "raw16"),
    "triples": (NORMAL[:6000].tobytes(), "raw12"),
    "tail": (NORMAL.tobytes() + b"abc", "float32"),
}


@pytest.mark.parametrize("effort", EFFORTS.values(), ids=EFFORTS)
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_chunk_shrinks_and_comes_back(case, effort):
    data, dtype = CASES[case]
    codec = make(effort)
    payload = coded(data, Spec(dtype, (1,)), codec)
    assert payload is not None and len(payload) < len(data)
    assert decoded(payload, len(data), codec) == data


@given(st.sampled_from(SPECS), st.binary(max_size=600), st.integers(1, 60), st.sampled_from(list(EFFORTS.values())))
def test_any_bytes_of_any_dtype_come_back_or_are_left_raw(spec, data, repeat, effort):
    data = data * repeat
    payload = coded(data, spec, make(effort))
    if payload is not None:
        assert len(payload) < len(data)
        assert decoded(payload, len(data)) == data


@given(
    st.sampled_from(SPECS),
    st.integers(0, 9000),
    st.floats(0, 1),
    st.integers(1, 255),
    st.integers(0, 1 << 30),
)
def test_sparse_bytes_of_any_dtype_come_back(spec, size, share, most, seed):
    random = np.random.default_rng(seed)
    data = ((random.random(size) < share) * random.integers(0, most + 1, size)).astype(np.uint8).tobytes()
    payload = coded(data, spec)
    assert payload is None or decoded(payload, size) == data


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.dtype)
def test_a_mebibyte_of_zeros_takes_less_than_200_bytes_whatever_the_dtype(spec):
    payload = coded(bytes(1 << 20), spec)
    assert payload is not None and len(payload) < 200
    assert decoded(payload, 1 << 20) == bytes(1 << 20)


def test_numbers_of_random_bits_are_left_raw():
    assert coded(RANDOM.bytes(1 << 18), Spec("float32", (1,))) is None
    assert coded(RANDOM.bytes(1 << 18), Spec("uint8", (1,))) is None


def test_rows_of_zeros_cost_next_to_nothing():
    rows = NORMAL[:19_968].reshape(-1, 64).copy()
    rows[np.arange(312) % 10 != 0] = 0
    payload = coded(rows.tobytes(), Spec("float32", (1,)))
    assert payload is not None and len(payload) < rows.nbytes / 10


def test_the_parts_of_complex_numbers_are_rotated_and_bits_are_not():
    assert word_of(Spec("complex64", (1,))) == (4, True)
    assert word_of(Spec("bfloat16", (1,))) == (2, True)
    assert word_of(Spec("float8_e4m3fn", (1,))) == (1, False)
    assert word_of(Spec("int64", (1,))) == (8, False)
    assert word_of(Spec("raw16", (1,))) == (16, False)


@pytest.mark.parametrize("case", ["dense", "half zeros", "few changes", "double from float"])
def test_data_payload_and_destination_may_lie_at_any_address(case):
    data, dtype = CASES[case]
    payload = coded(data, Spec(dtype, (1,)))
    assert payload is not None
    for shift in range(1, 9):
        moved = memoryview(bytes(shift) + data)[shift:]
        out = bytearray(len(data))
        assert out[: AUTO.encode(moved, Spec(dtype, (1,)), (), NO_HINT, memoryview(out))] == payload
        room = bytearray(len(data) + 16)
        AUTO.decode(memoryview(bytes(shift) + payload)[shift:], None, (), memoryview(room)[shift : shift + len(data)])
        assert room == bytes(shift) + data + bytes(16 - shift)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
def test_what_floats_take_is_foreseen_within_a_fifth_and_never_more(dtype):
    many = RANDOM.standard_normal(1 << 18).astype(np.float32)
    for data in (many, np.square(many), masked(many, 0.3), many.astype(np.float64)):
        payload = coded(data.tobytes(), Spec(dtype, (1,)))
        length = len(payload) if payload is not None else data.nbytes
        assert 0.8 * length < AUTO.at_least(memoryview(data).cast("B"), Spec(dtype, (1,))) <= length


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_floats_that_repeat_themselves_are_seen_through(dtype):
    ramps = [np.arange(50_000, dtype=np.float32), np.linspace(0, 1, 50_000, dtype=np.float32)]
    for data in (np.tile(NORMAL[:256], 200), np.repeat(NORMAL[:500], 100), *ramps):
        payload = coded(data.tobytes(), Spec(dtype, (1,)))
        assert payload is not None
        assert AUTO.at_least(memoryview(data).cast("B"), Spec(dtype, (1,))) <= len(payload)


def test_of_what_may_repeat_itself_nothing_is_foreseen():
    many = memoryview(NORMAL).cast("B")
    for spec in (Spec("int32", (1,)), Spec("raw3", (1,)), None):
        assert AUTO.at_least(many, spec) == 0
    assert AUTO.at_least(memoryview(bytes(1 << 16)), Spec("float32", (1,))) == 0
    assert AUTO.at_least(many[:1000], Spec("float32", (1,))) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_a_residual_with_one_word_in_many_is_told_apart_from_one_of_zeros(dtype):
    form = Form(Spec(dtype, (1,)).itemsize, residual=True)
    out = bytearray(1 << 20)
    for place in (None, 0, 12_345, (1 << 20) - 1):
        data = bytearray(1 << 20)
        if place is not None:
            data[place] = 7
        length = AUTO.pack(memoryview(data), form, memoryview(out))
        assert 0 < length < 60
        assert decoded(bytes(out[:length]), len(data)) == data


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "uint8"])
def test_scratch_memory_stays_near_three_times_the_chunk_and_is_kept(dtype):
    codec, held = make(EFFORTS["auto"]), 0
    for _ in range(2):
        for case in ("dense", "half zeros", "squares", "flags"):
            data = (CASES[case][0] * 60)[: 1 << 20]
            payload = coded(data, Spec(dtype, (1,)), codec)
            assert payload is None or decoded(payload, len(data), codec) == data
        held = held or codec.scratch_nbytes
    assert 0 < codec.scratch_nbytes == held < 4 << 20


def read_or_refuse(payload: bytes, length: int) -> None:
    guard = bytearray(b"\xaa" * (length + 64))
    with suppress(Malformed):
        AUTO.decode(memoryview(payload), None, (), memoryview(guard)[32 : 32 + length])
    assert guard[:32] == guard[32 + length :] == b"\xaa" * 32


@settings(max_examples=400)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_a_payload_with_changed_bits_is_read_or_refused_and_writes_nowhere_else(case, draw):
    data, dtype = CASES[case]
    payload = bytearray(coded(data, Spec(dtype, (1,))) or b"")
    # Heads lie near the front: half the changes go there.
    places = st.one_of(st.integers(0, min(40, len(payload) - 1)), st.integers(0, len(payload) - 1))
    for place, bit in draw.draw(st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=4)):
        payload[place] ^= 1 << bit
    read_or_refuse(bytes(payload), len(data))


@settings(max_examples=400)
@given(st.binary(max_size=120), st.sampled_from([0, 1, 2, 3, 7, 16, 100, 1000]))
def test_random_payloads_are_read_or_refused(payload, length):
    read_or_refuse(payload, length)


@settings(max_examples=400)
@given(
    st.sampled_from([width | form for width in (1, 2, 3, 4, 8, 16) for form in (0, 0x40, 0x80, 0xC0)]),
    st.lists(st.sampled_from([0, 1, 2, 3, 16, 17, 32, 33, 48, 49, 255]) | st.integers(0, 255), max_size=60),
    st.integers(0, 40),
)
def test_payloads_made_of_plausible_heads_are_read_or_refused(form, body, length):
    read_or_refuse(bytes([form, *body]), length)


@pytest.mark.parametrize("case", CASES)
def test_a_payload_cut_short_or_with_bytes_after_it_is_refused(case):
    data, dtype = CASES[case]
    payload = coded(data, Spec(dtype, (1,)))
    assert payload is not None
    cuts = {0, 1, len(payload) - 1, *(Random(case).randrange(len(payload)) for _ in range(10))}
    for wrong in (payload + b"\0", *(payload[:cut] for cut in cuts)):
        with pytest.raises(Malformed):
            decoded(wrong, len(data))


# Constant planes and gaps fit other lengths too; there it takes the record's length and the chunk's id to tell.
@pytest.mark.parametrize("case", ["dense", "dense half", "squares", "half zeros", "flags", "triples", "tail"])
def test_a_payload_is_refused_for_a_chunk_of_another_length(case):
    data, dtype = CASES[case]
    payload = coded(data, Spec(dtype, (1,)))
    assert payload is not None
    for length in (0, len(data) // 2, len(data) - 1, len(data) + 1):
        with pytest.raises(Malformed):
            decoded(payload, length)


def test_hostile_counts_allocate_no_more_than_a_few_times_the_chunk():
    length = 1 << 20
    huge = b"\xff\xff\xff\xff"
    gaps = (length // 8 - 1).to_bytes(4, "little")
    hostile = [
        b"\x01\x02" + huge + b"x" * 100,
        b"\x41\x00" + huge,
        b"\x41\x01" + gaps + gaps + b"\x01\x00\x01\x07",
        b"\x01\x03\x00\x01" + gaps + gaps + b"\x01\x00\x01\x07",
        b"\x41\x01" + gaps + gaps + b"\x01\xff",
    ]
    out = memoryview(bytearray(length))
    codec = make(EFFORTS["auto"])
    for payload in hostile:
        tracemalloc.start()
        with suppress(Malformed):
            codec.decode(memoryview(payload), None, (), out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * length, payload
