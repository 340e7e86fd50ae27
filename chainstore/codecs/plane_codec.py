"""The codec for arrays (tag 1): each byte plane stored raw, as a constant, sparse or entropy coded.

    payload = width and form 1 | [positions of the items that are not zero] | streams | tail

The low five bits of the first byte are the width of a word in bytes, 1 to 16; bit 7 says that the two top bytes are
rotated (see `planes`); bit 6 that zero words are left out and the positions of the others come first.  Streams (see
`streams`) cover the bytes of the words from the least significant up; the tail are the bytes after the last whole word.

    >>> from chainstore.codecs.base import EFFORTS, NO_HINT
    >>> out = memoryview(bytearray(1 << 20))
    >>> make(EFFORTS["auto"]).encode(memoryview(bytes(1 << 20)), None, (), NO_HINT, out)
    3
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from chainstore.codecs.base import NOT_SHORTER, PLANES, Effort, Hint, ItemSpec
from chainstore.codecs.planes import MAX_WIDTH, WORD_TYPES, Array, Fields, Joiner, Scratch, aligned, width_of, words_of
from chainstore.codecs.positions import STRETCH, Indices, Mask, gather, stretches
from chainstore.codecs.sampling import SAMPLE, Histogram, sample_of
from chainstore.codecs.streams import RAW, Overflow, Sink, Source, StreamReader, StreamWriter
from chainstore.codecs.zstd import Frames
from chainstore.errors import Malformed

_WIDTH_BITS: Final = 0x1F
_LEFT_OUT: Final = 0x40
_ROTATED: Final = 0x80
# From this share of zero words on, writing once which are zero beats coding that into every plane (5 % at a tenth,
# 30 % at nine tenths, fp32), and pays for the time compacting takes.
_LEFT_OUT_FROM: Final = 0.25
_BLOCK_BYTES: Final = 256 << 10  # of words that are put together at a time on their way elsewhere: stays in cache

_TRIAL_BYTES: Final = 16 << 10
_TRIAL_GAIN: Final = 0.9  # below this share of what the sample says, a trial has found repetitions
_GLANCE: Final = 64  # items; a quarter of them zeros, and none among these: once in 10^8
_ALIKE: Final = 8  # chunks in a row that were not worth coding: then one in as many of their like is sampled
_KINDS: Final = 256  # of chunks that are told apart

_SURELY: Final = 0.95  # floats take at least this share of what a sample says: 0.98 to 1.0 measured, more with zeros


def word_of(spec: ItemSpec | None) -> tuple[int, bool]:
    """Return the width of the words to split `spec`'s items into, in bytes, and whether to rotate them."""
    if spec is None:
        return 1, False
    width = spec.itemsize // 2 if spec.kind == "complex" else spec.itemsize
    if not 1 <= width <= MAX_WIDTH:
        return 1, False
    return width, spec.kind in ("float", "complex") and width in (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Form:
    """What to take bytes for when they are split into planes.

    Attributes:
        width: of a word in bytes, 1 to 16.
        rotated: the two top bytes of a word are; widths 2, 4 and 8 only.
        seek_repeats: also try codings that find repetitions; they rarely pay on what comes of floating point numbers.
        residual: what is left of numbers after a prediction, so that a sample without anything else than zeros says
            little: the few words that are not zero are counted then, and written apart.
    """

    width: int
    rotated: bool = False
    seek_repeats: bool = False
    residual: bool = False

    @classmethod
    def of(cls, spec: ItemSpec | None) -> Self:
        """Return the form in which items of `spec` are stored alone."""
        return cls(*word_of(spec), seek_repeats=spec is None or spec.kind not in ("float", "complex"))


def width_in(payload: memoryview) -> int:
    """Return the width of the words that `payload` was made of; Malformed if it says none that there is."""
    width = payload[0] & _WIDTH_BITS if len(payload) else 0
    if not 1 <= width <= MAX_WIDTH:
        raise Malformed("planes", f"words of {width} bytes", 0)
    return width


class Planes:
    """Split an array's items into byte planes and code each by itself; for one thread."""

    tag = PLANES
    bases = 0

    def __init__(self, effort: Effort) -> None:
        self._scratch, self._thrift = Scratch(), effort.thrift
        frames = Frames(effort.level)
        self._writer = StreamWriter(effort, frames)
        self._refused: dict[tuple[int, Form], int] = {}  # chunks in a row, by items and form
        self._reader = StreamReader(frames)

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """See `Codec.encode`.  Cost: two or three passes in cache, and 200 us for each 256 KiB plane coded."""
        return self.pack(data, Form.of(spec), out)

    def pack(self, data: memoryview, form: Form, out: memoryview) -> int:
        """Write what `decode` reads, with `data` taken for what `form` says; NOT_SHORTER if it would not be shorter."""
        count, tail = divmod(len(data), form.width)
        if not count:
            return NOT_SHORTER
        sink = Sink(out[: len(data) - 1])
        try:
            self._words(aligned(words_of(data, form.width, count), self._scratch, "words"), form, sink)
            sink.put(bytes(data[len(data) - tail :]))
        except Overflow:
            return NOT_SHORTER
        return sink.length

    def at_least(self, data: memoryview, spec: ItemSpec | None) -> int:
        """See `Foresighted`: the entropy of a sample tells, but where a trial shows that floats repeat themselves."""
        form = Form.of(spec)
        count = len(data) // form.width
        if form.seek_repeats or count < SAMPLE:
            return 0
        sample = sample_of(aligned(words_of(data, form.width, count), self._scratch, "words"))
        kept = sample[sample != 0] if sample.ndim == 1 else sample
        if not len(kept):
            return 0
        bits = sum(plane.bits for plane in self._histograms(Fields(kept, form.rotated, self._scratch), form.width))
        foreseen = count * len(kept) / len(sample) * bits / 8
        start = len(data) // 2 // form.width * form.width
        trial = data[start : start + _TRIAL_BYTES]
        length = self.pack(trial, form, self._scratch.take("trial", _TRIAL_BYTES).data)
        if length != NOT_SHORTER and length < _TRIAL_GAIN * foreseen * len(trial) / len(data):
            return 0
        return int(_SURELY * foreseen)

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """See `Codec.decode`."""
        self.fill(self.unpack(payload, len(out)), out)

    def fill(self, coded: "Coded", out: memoryview) -> None:
        """Put together what was unpacked for `out`."""
        every = words_of(out, coded.width, coded.count)
        if coded.where is not None:
            every.fill(0)
        for place, words in self.pieces(coded, every):
            if coded.where is not None or not every.flags.aligned:
                every[place] = words
        out[len(out) - len(coded.tail) :] = coded.tail

    def unpack(self, payload: memoryview, nbytes: int) -> "Coded":
        """Read a payload that stands for `nbytes`, all but putting the words together; valid until the next call."""
        width, source = width_in(payload), Source(payload)
        form = source.number(1)
        rotated = bool(form & _ROTATED)
        if form & 0x20 or (rotated and width not in (2, 4, 8)):
            raise Malformed("planes", f"unknown form {form}", 0)
        count, tail = divmod(nbytes, width)
        where, kept = None, count
        if form & _LEFT_OUT:
            if width not in WORD_TYPES:
                raise Malformed("planes", "zeros are left out of words of an odd width", 0)
            where, kept = self._reader.positions(source, count)
        fields = list(self._fields(source, kept, width, rotated)) if kept else []
        coded = Coded(width, rotated, count, where, kept, fields, source.take(tail))
        if source.offset != len(payload):
            raise Malformed("planes", f"{len(payload) - source.offset} bytes left over", source.offset)
        return coded

    def pieces(self, coded: "Coded", out: Array | None = None) -> Iterator[tuple[Indices | slice, Array]]:
        """Yield the words that are not left out, some at a time, aligned in scratch memory, and where they belong.

        Args:
            out: all words; where it is aligned and none is left out they are put together there instead.
        """
        there = out if out is not None and out.flags.aligned and coded.where is None else None
        most = STRETCH if coded.where is not None else _BLOCK_BYTES // coded.width
        size = max(1, coded.kept if there is not None else min(coded.kept, most))  # whole arrays: fewer calls
        joiner = Joiner(coded.fields, coded.width, coded.rotated, size, self._scratch)
        room = self._scratch.take("words", size * coded.width if there is None else 0)
        start = 0
        for place in _slices(coded.kept, size) if coded.where is None else stretches(coded.where):
            count = place.stop - place.start if isinstance(place, slice) else place.size
            if count:
                words = words_of(room.data, coded.width, count) if there is None else there[place]
                joiner.join(start, words)
                yield place, words
                start += count

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of scratch memory held between calls, about three times the largest chunk."""
        return self._scratch.nbytes

    def _words(self, words: Array, form: Form, sink: Sink) -> None:
        if self._glance(words, form):
            raise Overflow
        width = width_of(words)
        sample = sample_of(words)
        zeros = sample.size - int(np.count_nonzero(sample))
        leave_out = words.ndim == 1 and width > 1 and _LEFT_OUT_FROM * sample.size <= zeros
        if leave_out and zeros == sample.size:
            leave_out = form.residual and bool(words.any())
        sink.number(width | _ROTATED * form.rotated | _LEFT_OUT * leave_out, 1)
        if leave_out:
            nonzero = words != 0
            kept = int(np.count_nonzero(nonzero))
            self._writer.positions(nonzero, kept, sink)
            every, words = words, self._scratch.take("kept", kept, width)
            gather(every, nonzero, words)
            sample = sample_of(words)
        samples = self._histograms(Fields(sample, form.rotated, self._scratch), width)
        raw = [not form.seek_repeats and self._writer.suits_raw(plane) for plane in samples]
        affords = form.seek_repeats or self._affords(words, samples, raw)
        if not affords:
            raw = [plane.share < 1 for plane in samples]
        if all(raw) and not leave_out:
            self._note(words, form, refused=not affords)
            raise Overflow
        self._note(words, form, refused=False)
        self._streams(words, samples, raw, form, sink)

    def _glance(self, words: Array, form: Form) -> bool:
        """Return whether not even to sample these words: many of their like in a row were not worth coding.

        What is worth it on every disk, zeros and constants, shows in a few items.
        """
        kind = (len(words), form)
        refused = self._refused.get(kind, 0)
        if refused < _ALIKE or words.ndim != 1 or self._thrift is None:
            return False
        few = words[:: max(1, len(words) // _GLANCE) | 1]
        if not few.all() or few.min() == few.max():
            return False
        self._refused[kind] = refused + 1
        return bool(refused % _ALIKE) and self._thrift.skips()

    def _note(self, words: Array, form: Form, refused: bool) -> None:
        kind = (len(words), form)
        if not refused:
            self._refused.pop(kind, None)
        elif kind in self._refused or len(self._refused) < _KINDS:
            self._refused[kind] = self._refused.get(kind, 0) + 1

    def _affords(self, words: Array, samples: Sequence[Histogram], raw: Sequence[bool]) -> bool:
        """Return whether coding the planes that are neither stored raw nor constant is worth its time."""
        bits = [plane.bits for plane, is_raw in zip(samples, raw, strict=True) if not is_raw and plane.share < 1]
        if self._thrift is None or not bits:
            return True
        count = len(words)
        saved = count * (len(bits) - sum(bits) / 8)
        return self._thrift.affords(count * len(samples), count * len(bits), saved)

    def _streams(self, words: Array, samples: Sequence[Histogram], raw: Sequence[bool], form: Form, sink: Sink) -> None:
        rotated = form.rotated
        fields = Fields(words, rotated, self._scratch)
        for offset, step in _cut(raw, words.ndim == 1, rotated):
            field = self._scratch.take("field", len(words), step)
            fields.read(offset, field)
            if raw[offset]:
                sink.number(RAW + 16 * (step.bit_length() - 1), 1)
                sink.put(field)
            else:
                started = time.thread_time() if self._thrift is not None else 0.0
                self._writer.plane(field, samples[offset], form.seek_repeats, sink)
                if self._thrift is not None and samples[offset].share < 1:
                    self._thrift.coded(field.size, time.thread_time() - started)

    def _histograms(self, fields: Fields, width: int) -> list[Histogram]:
        histograms = []
        for offset in range(width):
            plane = self._scratch.take("sample plane", fields.count)
            fields.read(offset, plane)
            histograms.append(Histogram.of(plane))
        return histograms

    def _fields(self, source: Source, count: int, width: int, rotated: bool) -> Iterator[tuple[int, Array | int]]:
        boundary, room = width - 2 if rotated else width, self._scratch.take("kept", count * width)
        offset = 0
        while offset < width:
            start = source.offset
            step, field = self._reader.field(source, count, room[offset * count : (offset + 1) * count])
            if offset + step > (boundary if offset < boundary else width) or (width not in WORD_TYPES and step > 1):
                raise Malformed("planes", f"a field of {step} bytes at byte {offset} of {width}", start)
            yield offset, field
            offset += step


@dataclass(frozen=True, slots=True)
class Coded:
    """A payload that was read, its words not yet put together.

    Attributes:
        width, rotated: of the words; see `Form`.
        count: of all words.
        where: those that are not left out; None where none is.
        kept: how many those are.
        fields: of these, with the byte of a word that each begins at.
        tail: bytes after the last whole word.
    """

    width: int
    rotated: bool
    count: int
    where: Mask | Indices | None
    kept: int
    fields: Sequence[tuple[int, Array | int]]
    tail: memoryview


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _cut(raw: Sequence[bool], mergeable: bool, rotated: bool) -> Iterator[tuple[int, int]]:
    """Yield (offset, width) of the fields of a word: planes one by one, neighbours that stay raw together."""
    width = len(raw)
    offset = 0
    while offset < width:
        # A field lies wholly below the two rotated bytes or wholly in them.
        end = width - 2 if rotated and offset < width - 2 else width
        step = 1
        while mergeable and offset % (2 * step) == 0 and offset + 2 * step <= end and all(raw[offset:][: 2 * step]):
            step *= 2
        yield offset, step
        offset += step


def make(effort: Effort) -> Planes:
    """Return the codec for one thread."""
    return Planes(effort)
