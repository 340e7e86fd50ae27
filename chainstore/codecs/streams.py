"""One stream of bytes (a plane, a bitmap, a run of gaps) written in the coding that suits it, and read back.

    stream    = method 1 | body
      RAW       the bytes themselves (times the width of the field)
      CONSTANT  one value
      ZSTD      frame length 4 | frame
      SPARSE    the common value 1 | positions of the other bytes | stream of these
      PAIRS     values of the digits 16 | stream of ceil(n / 2) bytes, two digits each | stream of the bytes of digit 15
    positions = MASK 1 | count 4 | stream of ceil(n / 8) bytes, one bit an item
              | GAPS 1 | count 4 | length 4 | stream of that many bytes
              | BITS 1 | count 4 | k 1 | length 4 | low bits of the gaps | that many bytes with what is above them

The high four bits of a RAW or CONSTANT method are log2 of the field's width in bytes.  For gaps see `positions` and
`rice`; count is then below an eighth of n.  Numbers are little-endian.

A Huffman coder spends whole bits, at least one on every byte: with signs folded into small differences (two common
values, a few rare ones) that is a quarter more than the entropy.  Coding pairs of digits halves that.
"""

from typing import Final

import numpy as np

from chainstore.codecs.base import Effort
from chainstore.codecs.pairs import DIGITS, digits_of, values_of
from chainstore.codecs.planes import WORD_TYPES, Array
from chainstore.codecs.positions import (
    GAPS_SHARE,
    Indices,
    Mask,
    gaps_of,
    gather,
    indices_of,
    most_gap_bytes,
    scatter,
)
from chainstore.codecs.rice import MOST_K, best_k, bits_of, gaps_in, nbytes_of
from chainstore.codecs.sampling import SAMPLE, Histogram, sample_of
from chainstore.codecs.zstd import Frames
from chainstore.errors import Malformed

RAW, CONSTANT, ZSTD, SPARSE, PAIRS = range(5)
MASK, GAPS, BITS = range(3)

_REPEATS_BITS: Final = 2.6  # of a float's plane: below, repetitions are worth a trial
_ONE_BIT: Final = 1.2  # of entropy: less than a Huffman coder can get near
_GAPS_HEAD, _BITS_HEAD = 4, 5  # bytes between the count and the gaps
_GAPS_BELOW: Final = 0.07  # share of items chosen below which gaps beat a bitmap (bf16 k=1: 40.9x against 35.9x)
_TRIAL: Final = 16 << 10  # bytes on which looking for repetitions must gain a tenth before all are searched
_TRIAL_GAIN: Final = 0.9
_TRIAL_GAIN_THOROUGH: Final = 0.99  # without a trial: a tenth to a third more time, 0.2 % fewer bytes at most
# Pairs of digits are tried where the coding found so far is this much longer than the entropy of a sample (1.02 to 1.06
# where no value dominates, 1.1 and more where one does) and that is more than a little of the payload so far.
_PAIRS_FROM: Final = 4096  # bytes: below, the values of the digits and one more table eat the gain
_PAIRS_ABOVE: Final = 1.07
_PAIRS_SHARE: Final = 0.02
_PAIRS_GAIN: Final = 0.97

Coded = list[bytes | Array]
"""A stream, in pieces."""


class Overflow(Exception):
    """The payload would be no shorter than the data; never leaves this package."""


class Sink:
    """Writes a payload, or a part of one, into `room`; Overflow when it is full.

    Attributes:
        before: bytes of the payload before this part.
        length: bytes written.
    """

    def __init__(self, room: memoryview, before: int = 0) -> None:
        self._room, self.before, self.length = room, before, 0

    def put(self, piece: bytes | Array) -> None:
        """Append the bytes of `piece`."""
        raw: bytes | memoryview = b""
        if len(piece):
            raw = piece if isinstance(piece, bytes) else piece.data.cast("B")
        end = self.length + len(raw)
        if end > len(self._room):
            raise Overflow
        self._room[self.length : end] = raw
        self.length = end

    def number(self, value: int, width: int) -> None:
        """Append a number of `width` bytes."""
        self.put(value.to_bytes(width, "little"))

    def pieces(self, coded: Coded) -> None:
        """Append a stream."""
        for piece in coded:
            self.put(piece)


class Source:
    """Reads a payload; Malformed when it ends too soon."""

    def __init__(self, payload: memoryview) -> None:
        self._payload, self.offset = payload, 0
        self._length = len(payload)

    def take(self, length: int) -> memoryview:
        """Return the next `length` bytes without copying them."""
        start, self.offset = self.offset, self.offset + length
        if self.offset > self._length:
            raise Malformed("planes", f"{length} bytes announced, {self._length - start} left", start)
        return self._payload[start : self.offset]

    def number(self, width: int) -> int:
        """Read a number of `width` bytes."""
        if width == 1 and self.offset < self._length:  # most are
            self.offset += 1
            return self._payload[self.offset - 1]
        return int.from_bytes(self.take(width), "little")

    def at_most(self, width: int, limit: int, what: str) -> int:
        """Read a number that cannot be above `limit`."""
        value = self.number(width)
        if value > limit:
            raise Malformed("planes", f"{what} is {value}, above {limit}", self.offset - width)
        return value


class StreamWriter:
    """Chooses codings and writes streams; for one thread."""

    def __init__(self, effort: Effort, frames: Frames) -> None:
        self._effort, self._frames = effort, frames

    def suits_raw(self, sample: Histogram) -> bool:
        """Return whether a float's plane with this sample is not worth coding."""
        return sample.size >= SAMPLE // 2 and sample.bits > self._effort.raw_bits

    def plane(self, plane: Array, sample: Histogram, seek_repeats: bool, sink: Sink) -> None:
        """Append the bytes `plane` in the coding that `sample` recommends.

        Args:
            seek_repeats: also try codings that find repetitions; they rarely pay on floating point numbers.
        """
        if sample.share == 1 and self._constant(plane, sink):
            return
        dominated = sample.share >= self._effort.sparse_share or sample.bits < _ONE_BIT
        if dominated and not self._effort.thorough and self._sparse(plane, sample.common, plane.size, sink):
            return  # repetitions are found in the positions then
        coded = self._coded(plane, seek_repeats or sample.bits < _REPEATS_BITS, sink)
        if not dominated or not self._sparse(plane, sample.common, _length(coded) - 1, sink):
            sink.pieces(coded)

    def simple(self, stream: Array, sink: Sink) -> None:
        """Append `stream` by the shortest of all codings but SPARSE."""
        if not self._constant(stream, sink):
            sink.pieces(self._coded(stream, True, sink))

    def positions(self, chosen: Mask, count: int, sink: Sink) -> None:
        """Append where the `count` set items of `chosen` are; at least one is."""
        mask = np.packbits(chosen, bitorder="little")
        best, kind = self._coded(mask, True, sink), MASK
        if count < _GAPS_BELOW * chosen.size:
            gaps = gaps_of(chosen)
            coded = self._coded(gaps, True, sink)
            if _length(coded) < _length(best):
                best, kind = coded, GAPS
        if count < GAPS_SHARE * chosen.size:
            distances = np.diff(np.flatnonzero(chosen), prepend=-1) - 1
            k = best_k(distances)
            if nbytes_of(distances, k) + _BITS_HEAD < _length(best) + _GAPS_HEAD * kind:  # (MASK is 0, GAPS 1)
                low, above = bits_of(distances, k)
                best, kind = [bytes((k,)), above.size.to_bytes(4, "little"), low, above], BITS
        sink.number(kind, 1)
        sink.number(count, 4)
        if kind == GAPS:
            sink.number(gaps.size, 4)
        sink.pieces(best)

    def _frame(self, plane: Array, seek_repeats: bool) -> bytes:
        if not seek_repeats or not self._repeats(plane):
            return self._frames.huffman(plane.data)
        frame = self._frames.match(plane.data)
        return min(self._frames.huffman(plane.data), frame, key=len) if self._effort.thorough else frame

    def _repeats(self, plane: Array) -> bool:
        gain = _TRIAL_GAIN
        if self._effort.thorough:
            if plane.size <= _TRIAL:
                return True
            gain = _TRIAL_GAIN_THOROUGH
        middle = max(0, plane.size - _TRIAL) // 2
        trial = plane[middle : middle + _TRIAL].data
        return len(self._frames.quick(trial)) < gain * len(self._frames.huffman(trial))

    def _constant(self, stream: Array, sink: Sink) -> bool:
        if stream[0] != stream[-1] or stream.min() != stream.max():
            return False
        sink.number(CONSTANT, 1)
        sink.number(int(stream[0]), 1)
        return True

    def _coded(self, stream: Array, seek_repeats: bool, sink: Sink) -> Coded:
        """Return a stream for `sink` in the shortest of RAW, ZSTD and, where that pays for its time, PAIRS."""
        best = self._plain(stream, seek_repeats)
        if not self._effort.thorough or stream.size < _PAIRS_FROM:
            return best
        sample, length = sample_of(stream), _length(best)
        least = Histogram.of(sample).bits * stream.size / 8
        if length < _PAIRS_ABOVE * least or length - least < _PAIRS_SHARE * (sink.before + sink.length + length):
            return best
        packed, values, others = digits_of(stream, np.bincount(sample, minlength=256))
        pairs = [bytes((PAIRS,)), values, *self._plain(packed, False), *self._plain(others, False)]
        return pairs if _length(pairs) < _PAIRS_GAIN * length else best

    def _plain(self, stream: Array, seek_repeats: bool) -> Coded:
        if not stream.size:
            return [bytes((RAW,))]
        frame = self._frame(stream, seek_repeats)
        if len(frame) + 4 >= stream.size:
            return [bytes((RAW,)), stream]
        return [bytes((ZSTD,)), len(frame).to_bytes(4, "little"), frame]

    def _sparse(self, plane: Array, common: int, rival: int, sink: Sink) -> bool:
        others = plane != common
        count = int(np.count_nonzero(others))
        room = bytearray(min(rival, plane.size))
        attempt = Sink(memoryview(room), sink.before + sink.length)
        try:
            attempt.number(SPARSE, 1)
            attempt.number(common, 1)
            self.positions(others, count, attempt)
            kept = np.empty(count, np.uint8)
            gather(plane, others, kept)
            self.simple(kept, attempt)
        except Overflow:
            return False
        sink.put(bytes(room[: attempt.length]))
        return True


class StreamReader:
    """Reads streams back; for one thread."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def field(self, source: Source, count: int, room: Array) -> tuple[int, Array | int]:
        """Return the width of the next field and its `count` values, or the value that all have.

        An array may be read-only, and lie anywhere: in the payload, or in `room`, which has as many bytes.
        """
        start = source.offset
        shift, method = divmod(source.number(1), 16)
        if shift > 3 or (shift and method not in (RAW, CONSTANT)) or method > PAIRS:
            raise Malformed("planes", f"unknown coding {16 * shift + method}", start)
        width = 1 << shift
        if method == CONSTANT:
            return width, source.number(width)
        if method == RAW:
            return width, np.frombuffer(source.take(count * width), WORD_TYPES[width])
        if method == ZSTD:
            return width, self._unpack(source, count)
        if method == PAIRS:
            return width, self._unpair(source, count)
        self._spread(source, room)
        return width, room

    def simple(self, source: Source, count: int, pairs: bool = True) -> Array:
        """Return the `count` bytes of a stream whose coding is not SPARSE, nor PAIRS if so said; perhaps read-only."""
        start = source.offset
        method = source.number(1)
        if method == RAW:
            return np.frombuffer(source.take(count), np.uint8)
        if method == CONSTANT:
            return np.full(count, source.number(1), np.uint8)
        if method == ZSTD:
            return self._unpack(source, count)
        if method == PAIRS and pairs:
            return self._unpair(source, count)
        raise Malformed("planes", f"unknown coding {method}", start)

    def positions(self, source: Source, count: int) -> tuple[Mask | Indices, int]:
        """Return what selects the set ones of `count` items, as a mask or as ascending indices, and how many."""
        start = source.offset
        kind = source.at_most(1, BITS, "kind of positions")
        set_count = source.at_most(4, count, "number of items")
        if kind == MASK:
            packed = self.simple(source, (count + 7) // 8)
            mask = np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)
            if int(np.count_nonzero(mask)) != set_count:
                raise Malformed("planes", f"the mask does not have {set_count} bits", start)
            return mask, set_count
        if set_count >= GAPS_SHARE * count:
            raise Malformed("planes", f"gaps for {set_count} of {count} items", start)
        if kind == GAPS:
            length = source.at_most(4, most_gap_bytes(count, set_count), "number of gap bytes")
            indices = indices_of(self.simple(source, length))
        else:
            indices = self._from_bits(source, count, set_count)
        if indices.size != set_count or (set_count and indices[-1] >= count):
            raise Malformed("planes", f"the gaps do not lead to {set_count} of {count} items", start)
        return indices, set_count

    def _from_bits(self, source: Source, count: int, set_count: int) -> Indices:
        k = source.at_most(1, MOST_K, "number of low bits")
        length = source.at_most(4, (set_count + (count >> k)) // 8 + 1, "number of bytes above them")
        low = np.frombuffer(source.take((set_count * k + 7) // 8), np.uint8)
        gaps = gaps_in(low, np.frombuffer(source.take(length), np.uint8), set_count, k)
        indices: Indices = np.cumsum(gaps + 1) - 1
        return indices

    def _unpack(self, source: Source, count: int) -> Array:
        frame = source.take(source.number(4))
        return np.frombuffer(self._frames.read(frame, count), np.uint8)

    def _unpair(self, source: Source, count: int) -> Array:
        values = bytes(source.take(DIGITS))
        packed = self.simple(source, (count + 1) // 2, pairs=False)
        found, elsewhere = values_of(packed, values, count)
        others = self.simple(source, int(np.count_nonzero(elsewhere)), pairs=False)
        if others.size:
            scatter(others, elsewhere, found)
        return found

    def _spread(self, source: Source, plane: Array) -> None:
        plane.fill(source.number(1))
        where, set_count = self.positions(source, plane.size)
        scatter(self.simple(source, set_count), where, plane)


def _length(coded: Coded) -> int:
    """Return the bytes of a stream."""
    return sum(piece.nbytes if isinstance(piece, np.ndarray) else len(piece) for piece in coded)
