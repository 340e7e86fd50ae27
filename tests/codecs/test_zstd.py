import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chainstore.codecs.base import EFFORTS, NO_HINT, NOT_SHORTER
from chainstore.codecs.zstd import Frames, make
from chainstore.errors import Malformed

FRAMES = Frames(3)
TEXT = b"a snapshot is data, never code; " * 40


@pytest.mark.parametrize("way", [FRAMES.huffman, FRAMES.match, FRAMES.quick])
def test_frames_do_not_state_their_content_size(way):
    assert zstandard.frame_content_size(way(TEXT)) == -1
    assert FRAMES.read(memoryview(way(TEXT)), len(TEXT)) == TEXT


@given(st.binary(min_size=1, max_size=3000))
def test_any_bytes_survive_each_kind_of_frame(data):
    for way in (FRAMES.huffman, FRAMES.match, FRAMES.quick):
        assert FRAMES.read(memoryview(way(data)), len(data)) == data


@pytest.mark.parametrize("claim", [len(TEXT) - 1, len(TEXT) + 1, 1, 0])
def test_a_frame_of_another_length_is_refused(claim):
    with pytest.raises(Malformed):
        FRAMES.read(memoryview(FRAMES.match(TEXT)), claim)


def test_a_frame_that_claims_a_large_content_is_refused_before_anything_is_allocated():
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(Malformed, match="claims"):
        FRAMES.read(memoryview(bomb), 1000)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_frame_that_hides_a_large_content_stops_at_the_expected_length():
    bomb = FRAMES.match(bytes(64 << 20))
    with pytest.raises(Malformed):
        FRAMES.read(memoryview(bomb), 1000)


def test_a_frame_that_wants_a_large_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=0)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(TEXT) + stream.flush()
    with pytest.raises(Malformed):
        FRAMES.read(memoryview(frame), len(TEXT))


@pytest.mark.parametrize("more", [b"\0", FRAMES.match(b"more"), b"\x50\x2a\x4d\x18\x01\0\0\0x"])
def test_bytes_after_a_frame_are_refused(more):
    with pytest.raises(Malformed):
        FRAMES.read(memoryview(FRAMES.match(TEXT) + more), len(TEXT))


def test_a_reader_works_on_after_a_broken_frame():
    frame = FRAMES.match(TEXT)
    with pytest.raises(Malformed):
        FRAMES.read(memoryview(frame[:-3]), len(TEXT))
    assert FRAMES.read(memoryview(frame), len(TEXT)) == TEXT


def test_the_general_codec_gives_up_on_noise_and_keeps_repeated_noise():
    out = memoryview(bytearray(1 << 20))
    noise = np.random.default_rng(0).bytes(1 << 20)
    codec = make(EFFORTS["auto"])
    assert codec.encode(memoryview(noise), None, (), NO_HINT, out) == NOT_SHORTER
    assert codec.encode(memoryview(TEXT * 100), None, (), NO_HINT, out) < 500
