import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs import chain
from chainstore.codecs.base import GENERAL, PLANES, RAW_TAGS, Codec, Effort, Hint, ItemSpec
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
    tags, payload = Encoder(choice).encode(memoryview(data), spec)
    assert len(tags) == 4 and len(payload) <= len(data)
    assert decode(tags, payload, len(data)) == data


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4095])
def test_short_and_odd_lengths_come_back(length):
    for data in (bytes(length), NOISE[:length]):
        tags, payload = Encoder("auto").encode(memoryview(data), FLOAT)
        assert decode(tags, payload, length) == data


def test_noise_is_handed_back_itself_without_a_copy():
    data = memoryview(NOISE)
    for spec in (FLOAT, None, Spec("uint8", (1,))):
        tags, payload = Encoder("auto").encode(data, spec)
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
    tags, payload = Encoder("auto").encode(memoryview(numbers), FLOAT)
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


def changed(data: bytes) -> bytes:
    words = np.frombuffer(data, np.uint32).copy()
    words[::3] += 1
    return words.tobytes()


def test_a_registered_delta_codec_is_used_where_a_base_helps(xor):
    base, data = NOISE, changed(NOISE)
    tags, payload = Encoder("auto").encode(memoryview(data), FLOAT, [memoryview(base)])
    assert tags == bytes((TOY, PLANES, 0, 0)) and chain.uses_bases(tags)
    assert len(payload) < len(data) / 4
    assert decode(tags, payload, len(data), [memoryview(base)]) == data
    assert decode(tags, payload, len(data), [memoryview(bytes(len(base)))]) != data


def test_a_base_that_does_not_help_is_not_used(xor):
    zeros = memoryview(bytes(1 << 16))
    tags, payload = Encoder("auto").encode(zeros, FLOAT, [memoryview(NOISE)])
    assert not chain.uses_bases(tags)
    assert decode(tags, payload, len(zeros)) == zeros


def test_a_smaller_payload_survives_the_candidates_tried_after_it(xor):
    chain.register(TOY + 1, make_xor, delta=True)
    try:
        data = changed(NOISE)
        tags, payload = Encoder("auto").encode(memoryview(data), FLOAT, [memoryview(NOISE)])
        assert decode(tags, payload, len(data), [memoryview(NOISE)]) == data
        halves = np.abs(RANDOM.standard_normal(1 << 14)).astype(np.float32).tobytes()
        tags, payload = Encoder("auto").encode(memoryview(halves), FLOAT, [memoryview(NOISE)])
        assert tags[0] == PLANES and decode(tags, payload, len(halves)) == halves
    finally:
        chain.unregister(TOY + 1)


def test_missing_foreign_and_surplus_bases_are_refused(xor):
    data = changed(NOISE)
    tags, payload = Encoder("auto").encode(memoryview(data), FLOAT, [memoryview(NOISE)])
    for bases in ([], [memoryview(NOISE[:-4])], [memoryview(NOISE)] * 2):
        with pytest.raises(Malformed):
            decode(tags, payload, len(data), bases)
    with pytest.raises(Malformed):
        decode(RAW_TAGS, memoryview(data), len(data), [memoryview(NOISE)])


def test_without_the_codec_its_records_are_too_new(xor):
    data = changed(NOISE)
    tags, payload = Encoder("auto").encode(memoryview(data), FLOAT, [memoryview(NOISE)])
    chain.unregister(TOY)
    try:
        with pytest.raises(FormatTooNew):
            decode(tags, payload, len(data), [memoryview(NOISE)])
    finally:
        chain.register(TOY, make_xor, delta=True)


@pytest.mark.parametrize("tag", [0, 256, PLANES, TOY])
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
