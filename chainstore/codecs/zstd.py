"""zstd frames, and the codec for bytes of which nothing else is known (tag 2: one frame).

Frames carry no content size.  A reader knows the length it wants; a frame that states another is refused before
anything is allocated, because the decompressor would believe the frame rather than the caller.
"""

from collections.abc import Sequence
from typing import Final

import zstandard

from chainstore.codecs.base import GENERAL, NOT_SHORTER, Effort, Hint, ItemSpec
from chainstore.errors import Malformed

_WINDOW_LOG_MAX: Final = 22  # what a reader may have to hold, 4 MiB
_SAMPLE_FROM: Final = 64 << 10
_SAMPLE_SLICE: Final = 4 << 10
_SAMPLE_KEEP: Final = 0.97
_UNKNOWN_SIZE: Final = -1

# zstd as an order-0 Huffman coder: with so small a hash table it hardly looks for matches, which in byte planes cost
# time and, by cutting literals short, ratio: 3.07x against 2.58x of level 1 on AdamW's exponents at several times
# the speed (benchmarks/micro/codecs.py).  A smaller window or target_length > 0 destroys the ratio.
_HUFFMAN: Final = {"min_match": 7, "hash_log": 6, "window_log": 17}


def _compressor(level: int, **changes: int) -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(level, write_content_size=0, **changes)
    return zstandard.ZstdCompressor(compression_params=parameters)


class Frames:
    """Makes and reads zstd frames; for one thread.

    Args:
        level: of `match`.
    """

    def __init__(self, level: int) -> None:
        self._huffman = _compressor(1, **_HUFFMAN)
        self._quick = _compressor(1, window_log=20)
        self._match = _compressor(level, window_log=min(_WINDOW_LOG_MAX, 21))
        self._reader = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)

    def huffman(self, data: memoryview) -> bytes:
        """Return a frame that codes each byte by its frequency; best for planes of floating point numbers."""
        return self._huffman.compress(data)

    def match(self, data: memoryview) -> bytes:
        """Return a frame that also uses repetitions."""
        return self._match.compress(data)

    def quick(self, data: memoryview | bytes) -> bytes:
        """Return a frame made in little time, to learn whether repetitions are there."""
        return self._quick.compress(data)

    def read(self, frame: memoryview, length: int) -> bytes:
        """Return the `length` bytes (at least 1) that `frame` holds, having allocated no more than those.

        Raises:
            Malformed: it is no single whole frame, or holds another number of bytes.
        """
        try:
            stated = zstandard.frame_content_size(frame)
            if length < 1 or stated not in (_UNKNOWN_SIZE, length):
                raise Malformed("zstd frame", f"it claims {stated} bytes where {length} belong")
            plain = self._reader.decompress(frame, max_output_size=length, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise Malformed("zstd frame", str(error)) from error
        if len(plain) != length:
            raise Malformed("zstd frame", f"it holds {len(plain)} bytes where {length} belong")
        return plain


class General:
    """Store a chunk as one zstd frame: trees, commits, plain values, items too wide for planes."""

    tag = GENERAL
    bases = 0

    def __init__(self, effort: Effort) -> None:
        self._frames = Frames(effort.level)

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """See `Codec.encode`.  Large data is first tried on 12 KiB, and given up if that does not shrink."""
        if not len(data) or (len(data) >= _SAMPLE_FROM and not self._shrinks(data)):
            return NOT_SHORTER
        frame = self._frames.match(data)
        if len(frame) >= len(data):
            return NOT_SHORTER
        out[: len(frame)] = frame
        return len(frame)

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """See `Codec.decode`."""
        out[:] = self._frames.read(payload, len(out))

    def _shrinks(self, data: memoryview) -> bool:
        starts = (0, len(data) // 2, len(data) - _SAMPLE_SLICE)
        sample = b"".join(data[start : start + _SAMPLE_SLICE] for start in starts)
        return len(self._frames.quick(sample)) < _SAMPLE_KEEP * len(sample)


def make(effort: Effort) -> General:
    """Return the codec for one thread."""
    return General(effort)
