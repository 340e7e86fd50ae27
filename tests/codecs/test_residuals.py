import threading
from contextlib import suppress
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.codecs import plane_codec
from chainstore.codecs.base import DIFFERENCE, EFFORTS, NO_HINT, NOT_SHORTER, XOR, residual_tag
from chainstore.codecs.residuals import FACTORIES, Difference, Xor, add, difference_width, subtract
from chainstore.errors import Malformed
from chainstore.model.spec import DTYPES, Spec

MIB = 1 << 20
AUTO = EFFORTS["auto"]
SPECS = [None, *(Spec(dtype, (1,)) for dtype in sorted(DTYPES)), *(Spec(f"raw{size}", (1,)) for size in range(1, 19))]
CODECS = {tag: make(AUTO) for tag, make in FACTORIES.items()}
TAGS = pytest.mark.parametrize("tag", [XOR, DIFFERENCE], ids=["xor", "difference"])


def coded(tag: int, data: bytes, base: bytes, spec: Spec | None) -> bytes | None:
    out = bytearray(len(data))
    length = CODECS[tag].encode(memoryview(data), spec, [memoryview(base)], NO_HINT, memoryview(out))
    return None if length == NOT_SHORTER else bytes(out[:length])


def size_of(tag: int, data: np.ndarray, base: np.ndarray, dtype: str) -> int:
    payload = coded(tag, data.tobytes(), base.tobytes(), Spec(dtype, (1,)))
    assert payload is not None and decoded(tag, payload, base.tobytes()) == data.tobytes()
    return len(payload)


def decoded(tag: int, payload: bytes, base: bytes, shift: int = 0) -> bytes:
    room = bytearray(b"\xaa" * (len(base) + 64))
    inside = memoryview(room)[32 + shift :][: len(base)]
    try:
        CODECS[tag].decode(memoryview(payload), None, [memoryview(base)], inside)
    finally:
        assert room[: 32 + shift] == b"\xaa" * (32 + shift) and room[32 + shift + len(base) :] == b"\xaa" * (32 - shift)
    return bytes(inside)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Data and its base: equal, alike here and there, near everywhere, or unrelated; any length."""
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    length = draw(st.integers(0, 3000) | st.integers(0, 40))
    base = random.integers(0, draw(st.sampled_from([1, 2, 17, 256])), length)
    share, most = draw(st.sampled_from([0, 0.01, 0.3, 1])), draw(st.sampled_from([1, 3, 255]))
    moved = base + (random.random(length) < share) * random.integers(-most, most + 1, length)
    return moved.astype(np.uint8).tobytes(), base.astype(np.uint8).tobytes()


@settings(max_examples=400)
@given(st.sampled_from([XOR, DIFFERENCE]), st.sampled_from(SPECS), chunks(), st.tuples(*[st.integers(0, 9)] * 4))
def test_any_two_chunks_of_any_dtype_at_any_address_come_back(tag, spec, pair, shifts):
    data, base = pair
    moved = [memoryview(bytes(shift) + part)[shift:] for shift, part in zip(shifts[:2], pair, strict=True)]
    room = memoryview(bytearray(len(data) + 9))[shifts[2] :][: len(data)]
    length = CODECS[tag].encode(moved[0], spec, moved[1:], NO_HINT, room)
    assert length == NOT_SHORTER or length < len(data)
    if length != NOT_SHORTER:
        assert room[:length] == coded(tag, data, base, spec)
        assert decoded(tag, bytes(room[:length]), base, shifts[3]) == data


@TAGS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "raw12"])
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
def test_chunks_of_several_blocks_come_back_wherever_they_lie(tag, dtype, shift):
    random = np.random.default_rng(5)
    base = random.bytes(700_001)
    words = np.frombuffer(base, np.uint8) + (random.random(700_001) < 0.1)
    data = memoryview(bytes(shift) + words.astype(np.uint8).tobytes())[shift:]
    other = memoryview(bytes(3) + base)[3:]
    out = memoryview(bytearray(700_001))
    length = CODECS[tag].encode(data, Spec(dtype, (1,)), [other], NO_HINT, out)
    assert 0 < length < 600_000
    assert decoded(tag, bytes(out[:length]), base, shift) == data


@TAGS
@pytest.mark.parametrize("share", [0.0, 0.01, 0.08, 0.3, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "raw3", "raw12"])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_base_moves_on_where_it_lies_to_what_a_decoder_makes_of_it_elsewhere(tag, share, dtype, shift):
    random = np.random.default_rng(6)
    base = random.integers(0, 255, 700_003).astype(np.uint8)
    items = random.random(700_003 // 4) < share
    data = (base + np.append(np.repeat(items, 4), [1, 1, 1])).astype(np.uint8)
    payload = coded(tag, data.tobytes(), base.tobytes(), Spec(dtype, (1,)))
    if payload is None:
        assert share == 0.9
        return
    room = memoryview(bytearray(bytes(shift) + base.tobytes()))[shift:]
    CODECS[tag].decode(memoryview(payload), None, [room], room)
    assert bytes(room) == data.tobytes() == decoded(tag, payload, base.tobytes(), shift)


def test_subtracting_folds_the_sign_and_adding_undoes_it():
    data, base = (part.ravel() for part in np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8)))
    folded, spare = np.empty_like(data), np.empty_like(data)
    subtract(data, base, folded, spare)
    step = (data.astype(int) - base + 128) % 256 - 128
    assert (folded == np.where(step < 0, -2 * step - 1, 2 * step)).all()
    add(folded, base, folded, spare)
    assert (folded == data).all()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_largest_steps_of_every_width_wrap_around(width):
    most = (1 << 8 * width) - 1
    dtype = f"<u{width}"
    ends = np.array([0, 1, most // 2, most // 2 + 1, most - 1, most], dtype)
    data, base = (part.ravel() for part in np.meshgrid(ends, ends))
    folded, spare = np.empty_like(data), np.empty_like(data)
    subtract(data, base, folded, spare)
    assert (folded[data == base] == 0).all() and (folded[data != base] != 0).all()
    add(folded, base, folded, spare)
    assert (folded == data).all()


def test_what_is_subtracted_are_the_largest_whole_words_of_an_item():
    widths = {
        "bfloat16": 2,
        "float32": 4,
        "complex64": 4,
        "complex128": 8,
        "raw12": 4,
        "raw3": 1,
        "raw16": 8,
        "raw40": 1,
    }
    assert {dtype: difference_width(Spec(dtype, (1,))) for dtype in widths} == widths
    assert difference_width(None) == 1


def test_flags_are_better_off_with_an_exclusive_or_and_numbers_with_a_difference():
    random = np.random.default_rng(6)
    before, flip = random.random(200_000) < 0.3, random.random(200_000) < 0.02
    assert size_of(XOR, before ^ flip, before, "bool") < 0.9 * size_of(DIFFERENCE, before ^ flip, before, "bool")
    assert residual_tag(Spec("bool", (1,))) == residual_tag(Spec("bits8", (1,))) == XOR
    weights = random.standard_normal(200_000).astype(np.float32)
    moved = (weights + random.standard_normal(200_000) * 1e-4).astype(np.float32)
    assert size_of(DIFFERENCE, moved, weights, "float32") < 0.98 * size_of(XOR, moved, weights, "float32")
    assert residual_tag(Spec("float32", (1,))) == residual_tag(Spec("int64", (1,))) == residual_tag(None) == DIFFERENCE


def test_floats_are_rotated_after_an_exclusive_or_and_never_after_a_subtraction():
    zeros = bytes(4096)
    for dtype, rotated in (
        ("float32", 0x80),
        ("bfloat16", 0x80),
        ("complex64", 0x80),
        ("int32", 0),
        ("float8_e5m2", 0),
    ):
        forms = {tag: (coded(tag, zeros, zeros, Spec(dtype, (1,))) or b"")[0] & 0x80 for tag in (XOR, DIFFERENCE)}
        assert forms == {XOR: rotated, DIFFERENCE: 0}


# -- sizes


@TAGS
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_mebibyte_that_equals_its_base_takes_a_few_bytes(tag, spec):
    base = np.random.default_rng(1).bytes(MIB)
    payload = coded(tag, base, base, spec)
    assert payload is not None and len(payload) <= 48  # two bytes a plane, and a tail of up to 12
    assert decoded(tag, payload, base) == base


@TAGS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64"])
def test_one_item_in_a_mebibyte_costs_less_than_an_id(tag, dtype):
    base = np.random.default_rng(2).integers(0, 1 << 62, MIB // 8)
    data = base.copy()
    data.view(np.uint8)[700_001] += 1
    assert size_of(tag, data, base, dtype) <= 56


def entropy(values: np.ndarray) -> float:
    """Bits per value."""
    counts = np.unique(values, return_counts=True)[1]
    return float(np.log2(values.size) - (counts * np.log2(counts)).sum() / values.size)


@TAGS
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_few_steps_of_one_unit_take_what_their_entropy_says(tag, share, dtype):
    random = np.random.default_rng(3)
    width = Spec(dtype, (1,)).itemsize
    base = random.integers(0, 1 << 8 * width, MIB // width).astype(f"u{width}")
    step = (random.random(base.size) < share) * random.choice([-1, 1], base.size)
    data = base + step.astype(base.dtype)
    residual = step if tag == DIFFERENCE else data ^ base
    assert size_of(tag, data, base, dtype) < 1.08 * base.size * entropy(residual) / 8 + 250


@TAGS
@pytest.mark.parametrize("scale", [3, 100, 30_000])
def test_steps_everywhere_take_what_the_entropy_of_their_planes_says(tag, scale):
    random = np.random.default_rng(4)
    base = random.integers(0, 1 << 32, MIB // 4).astype(np.uint32)
    step = (random.standard_normal(base.size) * scale).astype(np.int64)
    data = base + step.astype(np.uint32)
    words = np.where(step < 0, -2 * step - 1, 2 * step).astype(np.uint32) if tag == DIFFERENCE else base ^ data
    bits = sum(entropy(plane) for plane in words.view(np.uint8).reshape(-1, 4).T)
    assert size_of(tag, data, base, "uint32") < 1.06 * base.size * bits / 8


# -- what must be refused


def near(length: int = 6007) -> tuple[bytes, bytes]:
    random = np.random.default_rng(8)
    base = random.integers(0, 256, length).astype(np.uint8)
    return (base + (random.random(length) < 0.1)).astype(np.uint8).tobytes(), base.tobytes()


@TAGS
def test_it_gives_up_without_exactly_one_base_of_its_length(tag):
    data, base = near()
    out = memoryview(bytearray(len(data)))
    for bases in ([], [memoryview(base)[1:]], [memoryview(base)] * 2, [memoryview(bytes(base) + b"x")]):
        assert CODECS[tag].encode(memoryview(data), None, bases, NO_HINT, out) == NOT_SHORTER


@TAGS
def test_missing_surplus_and_foreign_bases_are_refused(tag):
    data, base = near()
    payload = memoryview(coded(tag, data, base, Spec("float32", (1,))) or b"")
    for bases in ([], [memoryview(base)[1:]], [memoryview(base)] * 2, [memoryview(bytes(base) + b"x")]):
        with pytest.raises(Malformed, match="one base of 6007 bytes"):
            CODECS[tag].decode(payload, None, bases, memoryview(bytearray(len(data))))


@TAGS
def test_a_payload_cut_short_or_with_bytes_after_it_is_refused(tag):
    data, base = near()
    payload = coded(tag, data, base, Spec("float32", (1,)))
    assert payload is not None
    cuts = {0, 1, len(payload) - 1, *(Random(tag).randrange(len(payload)) for _ in range(20))}
    for wrong in (payload + b"\0", *(payload[:cut] for cut in cuts)):
        with pytest.raises(Malformed):
            decoded(tag, wrong, base)


def test_differences_of_words_that_no_number_has_are_refused():
    out = bytearray(6000)
    for width in range(1, 17):
        spec = Spec(f"raw{width}", (1,))
        length = plane_codec.make(AUTO).encode(memoryview(bytes(6000)), spec, (), NO_HINT, memoryview(out))
        if width in (1, 2, 4, 8):
            assert decoded(DIFFERENCE, bytes(out[:length]), bytes(6000)) == bytes(6000)
        else:
            with pytest.raises(Malformed, match=f"words of {width} bytes"):
                decoded(DIFFERENCE, bytes(out[:length]), bytes(6000))


@settings(max_examples=300)
@given(
    st.sampled_from([XOR, DIFFERENCE]), st.sampled_from(["float32", "bfloat16", "int64", "raw3", "uint8"]), st.data()
)
def test_a_payload_with_changed_bits_is_read_or_refused_and_writes_nowhere_else(tag, dtype, draw):
    data, base = near(draw.draw(st.sampled_from([6007, 1000, 40])))
    payload = bytearray(coded(tag, data, base, Spec(dtype, (1,))) or b"\x04")
    places = st.integers(0, min(40, len(payload) - 1)) | st.integers(0, len(payload) - 1)
    for place, bit in draw.draw(st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=4)):
        payload[place] ^= 1 << bit
    with suppress(Malformed):
        decoded(tag, bytes(payload), base, draw.draw(st.integers(0, 9)))


@settings(max_examples=300)
@given(st.sampled_from([XOR, DIFFERENCE]), st.binary(max_size=100), st.sampled_from([0, 1, 3, 8, 33, 1000]))
def test_random_payloads_are_read_or_refused(tag, payload, length):
    with suppress(Malformed):
        decoded(tag, payload, bytes(length))


# -- memory and modes


@TAGS
def test_scratch_memory_stays_near_four_times_the_chunk_and_is_kept(tag):
    codec, held = Difference(AUTO) if tag == DIFFERENCE else Xor(AUTO), 0
    base = np.random.default_rng(9).bytes(MIB)
    out, back = memoryview(bytearray(MIB)), memoryview(bytearray(MIB))
    for _ in range(2):
        random = np.random.default_rng(10)
        for share in (0, 0.01, 0.5, 1):
            data = (np.frombuffer(base, np.uint8) + (random.random(MIB) < share)).astype(np.uint8).data
            length = codec.encode(data, Spec("float32", (1,)), [memoryview(base)], NO_HINT, out)
            codec.decode(out[:length], None, [memoryview(base)], back)
            assert back == data
        held = held or codec.scratch_nbytes
    assert 0 < codec.scratch_nbytes == held < 5 * MIB


@TAGS
def test_denormal_numbers_come_back_where_they_are_flushed_to_zero(tag):
    base = np.arange(1, 3000, dtype=np.uint32)  # as float32: denormal, every one
    data = base + np.uint32(3)
    flushed, came_back = [], []

    def work() -> None:
        assert torch.set_flush_denormal(True)
        flushed.append(not (base.view(np.float32) * np.float32(0.5)).any())
        came_back.append(
            decoded(tag, coded(tag, data.tobytes(), base.tobytes(), Spec("float32", (1,))) or b"", base.tobytes())
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flushed == [True] and came_back == [data.tobytes()]
