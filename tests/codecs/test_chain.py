import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs import chain
from chainstore.codecs.base import (
    ADAM,
    DIFFERENCE,
    GENERAL,
    PLANES,
    RAW_TAGS,
    XOR,
    Against,
    Codec,
    Effort,
    Hint,
    ItemSpec,
)
from chainstore.codecs.chain import Decoder, Encoder
from chainstore.errors import ConfigError, FormatTooNew, Malformed
from chainstore.model.spec import DTYPES, Spec

TOY = 250
SPECS = [None, Spec("raw20", (1,)), *(Spec(dtype, (1,)) for dtype in sorted(DTYPES))]
FLOAT = Spec("float32", (1,))
RANDOM = np.random.default_rng(11)
NOISE = RANDOM.bytes(1 << 16)


class Xor:
    """The bitwise difference from one base."""

    tag = TOY
    bases = 1

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        self._xor(data, bases, out[: len(data)])
        return len(data)

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        self._xor(payload, bases, out)

    def _xor(self, data: memoryview, bases: Sequence[memoryview], out: memoryview) -> None:
        if len(bases) != 1 or len(bases[0]) != len(data) or len(data) != len(out):
            raise Malformed("xor", "it needs one base as long as the chunk")
        out[:] = np.bitwise_xor(np.frombuffer(data, np.uint8), np.frombuffer(bases[0], np.uint8)).data


def make_xor(effort: Effort) -> Codec:
    return Xor()


@pytest.fixture
def xor() -> Iterator[None]:
    chain.register(TOY, make_xor, delta=True)
    yield
    chain.unregister(TOY)


def decode(tags: bytes, payload: memoryview, length: int, bases: Sequence[memoryview] = ()) -> bytes:
    out = bytearray(length)
    Decoder().decode(tags, payload, memoryview(out), bases)
    return bytes(out)


@given(
    st.sampled_from(["none", "fast", "auto", "small"]),
    st.sampled_from(SPECS),
    st.binary(max_size=500),
    st.integers(1, 99),
)
def test_whatever_is_encoded_comes_back_and_is_never_longer(choice, spec, data, repeat):
    data = data * repeat
    tags, payload, _ = Encoder(choice).encode(memoryview(data), spec)
    assert len(tags) == 4 and len(payload) <= len(data)
    assert decode(tags, payload, len(data)) == data


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4095])
def test_short_and_odd_lengths_come_back(length):
    for data in (bytes(length), NOISE[:length]):
        tags, payload, _ = Encoder("auto").encode(memoryview(data), FLOAT)
        assert decode(tags, payload, length) == data


def test_noise_is_handed_back_itself_without_a_copy():
    data = memoryview(NOISE)
    for spec in (FLOAT, None, Spec("uint8", (1,))):
        tags, payload, _ = Encoder("auto").encode(data, spec)
        assert tags == RAW_TAGS and payload is data


def test_none_stores_everything_as_it_is():
    assert Encoder("none").encode(memoryview(bytes(1 << 16)), FLOAT)[0] == RAW_TAGS


def test_arrays_go_by_planes_and_other_bytes_by_zstd():
    zeros = memoryview(bytes(1 << 16))
    assert Encoder("auto").encode(zeros, FLOAT)[0] == bytes((PLANES, 0, 0, 0))
    assert Encoder("auto").encode(zeros, None)[0] == bytes((GENERAL, 0, 0, 0))
    assert Encoder("auto").encode(zeros, Spec("raw40", (1,)))[0] == bytes((GENERAL, 0, 0, 0))


def test_an_unknown_choice_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="auto"):
        Encoder("best")


def test_buffers_of_other_formats_are_taken_as_bytes():
    numbers = np.zeros((64, 64), np.float32)
    tags, payload, _ = Encoder("auto").encode(memoryview(numbers), FLOAT)
    back = np.ones((64, 64), np.float32)
    Decoder().decode(tags, payload, memoryview(back))
    assert not back.any()


def test_an_unknown_tag_says_that_the_format_is_too_new():
    with pytest.raises(FormatTooNew, match="codec 77"):
        decode(b"\x4d\0\0\0", memoryview(b"x"), 1)


@pytest.mark.parametrize("tags", [b"", b"\1", b"\0\1\0\0", b"\1\0\1\0", b"\1\0\0\0\0"])
def test_tags_that_are_no_padded_run_are_refused(tags):
    with pytest.raises(Malformed):
        decode(tags, memoryview(b"x"), 1)


@pytest.mark.parametrize("length", [0, 9, 11])
def test_a_raw_payload_of_another_length_is_refused(length):
    with pytest.raises(Malformed):
        decode(RAW_TAGS, memoryview(bytes(10)), length)


@given(
    st.lists(st.sampled_from([0, PLANES, GENERAL]), min_size=4, max_size=4), st.binary(max_size=80), st.integers(0, 200)
)
def test_hostile_tags_and_payloads_are_read_or_refused(tags, payload, length):
    with suppress(Malformed):
        decode(bytes(tags), memoryview(payload), length)


def against(*bases: bytes, tag: int = TOY, parameters: bytes = b"") -> list[Against]:
    return [Against(tag, tuple(memoryview(base) for base in bases), parameters)]


def changed(data: bytes) -> bytes:
    words = np.frombuffer(data, np.uint32).copy()
    words[::3] += 1
    return words.tobytes()


def test_a_registered_delta_codec_is_used_where_a_base_helps(xor):
    base, data = NOISE, changed(NOISE)
    tags, payload, _ = Encoder("auto").encode(memoryview(data), FLOAT, against(base))
    assert tags == bytes((TOY, PLANES, 0, 0)) and chain.uses_bases(tags)
    assert len(payload) < len(data) / 4
    assert decode(tags, payload, len(data), [memoryview(base)]) == data
    assert decode(tags, payload, len(data), [memoryview(bytes(len(base)))]) != data


def test_a_base_that_does_not_help_is_not_used(xor):
    zeros = memoryview(bytes(1 << 16))
    tags, payload, _ = Encoder("auto").encode(zeros, FLOAT, against(NOISE))
    assert not chain.uses_bases(tags)
    assert decode(tags, payload, len(zeros)) == zeros


def test_a_smaller_payload_survives_the_candidates_tried_after_it(xor):
    chain.register(TOY + 1, make_xor, delta=True)
    try:
        data = changed(NOISE)
        tags, payload, _ = Encoder("auto").encode(memoryview(data), FLOAT, against(NOISE))
        assert decode(tags, payload, len(data), [memoryview(NOISE)]) == data
        halves = np.abs(RANDOM.standard_normal(1 << 14)).astype(np.float32).tobytes()
        tags, payload, _ = Encoder("auto").encode(memoryview(halves), FLOAT, against(NOISE))
        assert tags[0] == PLANES and decode(tags, payload, len(halves)) == halves
    finally:
        chain.unregister(TOY + 1)


def test_missing_foreign_and_surplus_bases_are_refused(xor):
    data = changed(NOISE)
    tags, payload, _ = Encoder("auto").encode(memoryview(data), FLOAT, against(NOISE))
    for bases in ([], [memoryview(NOISE[:-4])], [memoryview(NOISE)] * 2):
        with pytest.raises(Malformed):
            decode(tags, payload, len(data), bases)
    with pytest.raises(Malformed):
        decode(RAW_TAGS, memoryview(data), len(data), [memoryview(NOISE)])


def test_without_the_codec_its_records_are_too_new(xor):
    data = changed(NOISE)
    tags, payload, _ = Encoder("auto").encode(memoryview(data), FLOAT, against(NOISE))
    chain.unregister(TOY)
    try:
        with pytest.raises(FormatTooNew):
            decode(tags, payload, len(data), [memoryview(NOISE)])
    finally:
        chain.register(TOY, make_xor, delta=True)


def view(*bases: bytes) -> list[memoryview]:
    return [memoryview(base) for base in bases]


WEIGHTS = RANDOM.standard_normal(50_000).astype(np.float32)
MOVED = (WEIGHTS + RANDOM.standard_normal(50_000) * 1e-3).astype(np.float32)


@pytest.mark.parametrize("tag", [XOR, DIFFERENCE])
@pytest.mark.parametrize("spec", [FLOAT, Spec("raw3", (1,)), Spec("raw40", (1,)), None], ids=str)
def test_what_was_coded_against_a_base_is_a_whole_chain_and_says_so(tag, spec):
    base, data = NOISE, changed(NOISE)
    (way,) = against(base, tag=tag)
    coded = Encoder("auto").encode(memoryview(data), spec, [way])
    assert coded.tags == bytes((tag, 0, 0, 0)) and coded.against is way
    assert chain.uses_bases(coded.tags) and len(coded.payload) < len(data) / 2
    assert decode(coded.tags, coded.payload, len(data), view(base)) == data


def test_the_smallest_of_the_ways_that_are_offered_wins_in_any_order():
    data, base, ways = (
        MOVED.tobytes(),
        WEIGHTS.tobytes(),
        [*against(NOISE * 4, tag=XOR), *against(NOISE, tag=DIFFERENCE)],
    )
    ways += [*against(base, tag=XOR), *against(base, tag=DIFFERENCE), *against(bytes(len(base)), tag=DIFFERENCE)]
    sizes = [len(Encoder("auto").encode(memoryview(data), FLOAT, [way]).payload) for way in ways]
    assert min(sizes) == sizes[3]
    for order in (ways, ways[::-1]):
        coded = Encoder("auto").encode(memoryview(data), FLOAT, order)
        assert coded.against is ways[3] and len(coded.payload) == sizes[3]
        assert decode(coded.tags, coded.payload, len(data), view(base)) == data


@pytest.mark.parametrize(
    "spec", [FLOAT, Spec("int32", (1,)), Spec("bfloat16", (1,)), Spec("bool", (1,)), None], ids=str
)
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_what_needs_bases_is_never_larger_than_what_needs_none_nor_only_a_little_smaller(spec, share):
    random = np.random.default_rng(int(share * 100))
    half = random.standard_normal(30_000).astype(np.float32) * (random.random(30_000) < 0.5)
    chunks = [half, np.zeros(30_000, np.float32), np.arange(30_000, dtype=np.int32), random.bytes(120_000)]
    chunks += [random.integers(0, 2, 120_000).astype(np.uint8), np.repeat(half[:300], 100)]
    for chunk in chunks:
        data = memoryview(chunk).cast("B")
        moved = np.frombuffer(data, np.uint8) + (random.random(120_000) < share)
        base = moved.astype(np.uint8).tobytes()
        alone = len(Encoder("auto").encode(data, spec).payload)
        for tag in (XOR, DIFFERENCE):
            coded = Encoder("auto").encode(data, spec, against(base, tag=tag))
            if coded.against is None:
                assert len(coded.payload) == alone
            else:
                assert len(coded.payload) + len(data) // 128 <= alone
                assert decode(coded.tags, coded.payload, len(data), view(base)) == data


def test_a_base_of_another_length_and_a_base_too_many_are_passed_over():
    data = changed(NOISE)
    for bases in ([NOISE[:-4]], [NOISE + b"more"], [b""], [NOISE, NOISE]):
        coded = Encoder("auto").encode(memoryview(data), FLOAT, against(*bases, tag=XOR))
        assert coded.against is None
        assert Encoder("auto").choose(memoryview(data), FLOAT, against(*bases, tag=XOR)) is None


@pytest.mark.parametrize("tag", [XOR, DIFFERENCE])
def test_bases_of_another_length_or_number_are_refused(tag):
    data = changed(NOISE)
    coded = Encoder("auto").encode(memoryview(data), FLOAT, against(NOISE, tag=tag))
    for bases in ([], [NOISE[:-4]], [NOISE + b"more"], [NOISE, NOISE]):
        with pytest.raises(Malformed):
            decode(coded.tags, coded.payload, len(data), view(*bases))


def test_none_is_coded_against_nothing():
    encoder, ways = Encoder("none"), against(NOISE, tag=XOR)
    assert encoder.encode(memoryview(NOISE), FLOAT, ways).tags == RAW_TAGS
    assert encoder.choose(memoryview(NOISE), FLOAT, ways) is None


@pytest.mark.parametrize("count", [50_000, 10_000, 20])
def test_the_way_that_is_chosen_is_the_one_that_is_taken(count):
    data, base = MOVED[:count].tobytes(), WEIGHTS[:count].tobytes()
    ways = [*against(base, tag=XOR), *against(base, tag=DIFFERENCE), *against(bytes(len(base)), tag=XOR)]
    chosen = Encoder("auto").choose(memoryview(data), FLOAT, ways)
    assert chosen is ways[1]
    assert Encoder("auto").encode(memoryview(data), FLOAT, ways).against is chosen
    assert Encoder("auto").choose(memoryview(data), FLOAT, ways[2:]) is None
    assert Encoder("auto").choose(memoryview(data), FLOAT, []) is None


@pytest.mark.parametrize("dtype", ["float32", "complex128", "raw3", "raw40"])
def test_it_is_chosen_by_whole_items_from_the_middle(dtype):
    item = Spec(dtype, (1,)).itemsize if dtype != "raw40" else 1
    size = 200_000 // item * item
    start = (size - (64 << 10)) // 2 // item * item
    stop = start + (64 << 10) // item * item
    near, far = np.frombuffer(NOISE * 4, np.uint8)[:size].copy(), RANDOM.integers(0, 256, size).astype(np.uint8)
    far[start:stop] = near[start:stop]
    ways = against(far.tobytes(), tag=XOR)
    seen: list[bytes] = []

    class Seen(Xor):
        tag = TOY + 1

        def encode(self, data, spec, bases, hint, out):
            seen.append(bytes(data))
            return super().encode(data, spec, bases, hint, out)

    chain.register(TOY + 1, lambda effort: Seen(), delta=True)
    try:
        ways += against(far.tobytes(), tag=TOY + 1)
        assert Encoder("auto").choose(memoryview(near), Spec(dtype, (1,)), ways) is not None
    finally:
        chain.unregister(TOY + 1)
    assert seen == [near[start:stop].tobytes()]


def test_parameters_reach_the_codec_that_they_are_for(xor):
    hints: list[Hint] = []

    class Told(Xor):
        tag = TOY + 1

        def encode(self, data, spec, bases, hint, out):
            hints.append(hint)
            return super().encode(data, spec, bases, hint, out)

    chain.register(TOY + 1, lambda effort: Told(), delta=True)
    try:
        ways = [*against(NOISE, tag=TOY + 1, parameters=b"abc"), *against(NOISE, tag=TOY)]
        coded = Encoder("auto").encode(memoryview(changed(NOISE)), FLOAT, ways)
    finally:
        chain.unregister(TOY + 1)
    assert [hint.parameters for hint in hints] == [b"abc"]
    assert coded.against is ways[0]


def test_which_tags_need_their_bases_read_is_known(xor):
    for tag in (XOR, DIFFERENCE, ADAM, TOY):
        assert chain.uses_bases(bytes((tag, PLANES, 0, 0)))
    assert not chain.uses_bases(RAW_TAGS) and not chain.uses_bases(bytes((PLANES, 0, 0, 0)))
    assert chain.registered_deltas() == (TOY,)


@given(
    st.lists(st.sampled_from([0, PLANES, GENERAL, XOR, DIFFERENCE]), min_size=4, max_size=4),
    st.binary(max_size=80),
    st.sampled_from([0, 1, 7, 32, 200]),
    st.integers(0, 2),
)
def test_hostile_tags_with_bases_are_read_or_refused(tags, payload, length, bases):
    with suppress(Malformed):
        decode(bytes(tags), memoryview(payload), length, [memoryview(bytes(length))] * bases)


@pytest.mark.parametrize("tag", [0, 256, PLANES, XOR, TOY])
def test_a_tag_is_given_once(xor, tag):
    with pytest.raises(ConfigError):
        chain.register(tag, make_xor, delta=True)


def test_the_chain_loads_neither_numpy_nor_zstandard_before_a_tag_is_used():
    script = """if True:
        import sys
        from chainstore.codecs.chain import Decoder, Encoder
        Encoder("auto")
        Decoder().decode(bytes(4), memoryview(b"abc"), memoryview(bytearray(3)))
        print({"numpy", "zstandard"} & set(sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
