"""Two codecs that store what a chunk has more than another one: the bits that differ (tag 3), the difference (tag 4).

    payload = planes of the residual, as of `plane_codec`, whose words are those that were combined

Equal items leave zero words either way, and planes squeeze these out.  Where items moved a little, a difference is
smaller than an exclusive or: 1.0 - 1 ulp and 1.0 differ in 24 bits and by 1.  Signs are folded into the lowest bit
(0, -1, 1, -2 become 0, 1, 2, 3), so that the bytes above a small difference are zero whatever its sign.  Bit patterns
are what is subtracted, modulo the size of a word: nothing is rounded, and no floating-point mode matters.

    >>> from chainstore.codecs.base import EFFORTS, NO_HINT
    >>> base, data, out = bytes(4096), bytes(4095) + b"x", memoryview(bytearray(4096))
    >>> make_xor(EFFORTS["auto"]).encode(memoryview(data), None, [memoryview(base)], NO_HINT, out)
    32
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.base import DIFFERENCE, NOT_SHORTER, XOR, Effort, Factory, Hint, ItemSpec
from chainstore.codecs.plane_codec import Form, Planes, width_in
from chainstore.codecs.planes import WORD_TYPES, Array, Scratch, aligned, words_of
from chainstore.codecs.positions import Indices
from chainstore.errors import Malformed

Signed = NDArray[np.signedinteger[Any]]

_BLOCK_BYTES: Final = 128 << 10  # of words in hand: 12 GB/s; with 32 KiB, steps between blocks make that 6
_SIGNED: Final = {width: np.dtype(f"<i{width}") for width in WORD_TYPES}


def subtract(data: Array, base: Array, out: Array, spare: Array) -> None:
    """Set `out` to data - base with the sign folded into the lowest bit; `spare` is like it, `out` may be `data`."""
    np.subtract(data, base, out=out)
    bits = out.itemsize * 8 - 1
    np.right_shift(_signed(out), bits, out=_signed(spare))  # all ones where negative
    np.left_shift(out, 1, out=out)
    np.bitwise_xor(out, spare, out=out)


def unfold(folded: Array, out: Array, spare: Array) -> None:
    """Set `out`, which may be `folded`, to the differences whose signs `subtract` folded; `spare` is like it."""
    np.bitwise_and(folded, 1, out=spare)
    np.negative(_signed(spare), out=_signed(spare))
    np.right_shift(folded, 1, out=out)
    np.bitwise_xor(out, spare, out=out)


def add(folded: Array, base: Array, out: Array, spare: Array) -> None:
    """Undo `subtract`: set `out` to base plus what `folded` stands for; `out` may be `folded`."""
    unfold(folded, out, spare)
    np.add(out, base, out=out)


def difference_width(spec: ItemSpec | None) -> int:
    """Return the width of the words to subtract in items of `spec`: a power of two that divides them."""
    if spec is None:
        return 1
    form = Form.of(spec)
    return next(width for width in (8, 4, 2, 1) if form.width % width == 0)


class Residual:
    """What a chunk has more than its one base, in planes; for one thread."""

    bases = 1
    moves = True

    def __init__(self, effort: Effort) -> None:
        self._planes = Planes(effort)
        self._scratch = Scratch()

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of scratch memory held between calls, about four times the largest chunk."""
        return self._planes.scratch_nbytes + self._scratch.nbytes

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """See `Codec.decode`; `out` may be the base itself, which is then moved on to what builds on it."""
        if len(bases) != 1 or len(bases[0]) != len(out):
            raise Malformed("residual", f"it needs one base of {len(out)} bytes, not {[len(base) for base in bases]}")
        coded, base = self._planes.unpack(payload, len(out)), bases[0]
        if coded.where is not None and base is not out:
            out[:] = base
            base = out
        before, after = (words_of(part, coded.width, coded.count) for part in (base, out))
        for place, words in self._planes.pieces(coded):
            if not isinstance(place, slice):
                self._undo_at(words, after, place)
            elif after.flags.aligned:
                self._undo(words, aligned(before[place], self._scratch, "first"), after[place])
            else:
                self._undo(words, aligned(before[place], self._scratch, "first"), words)
                after[place] = words
        whole = len(out) - len(coded.tail)
        self._end(coded.tail, words_of(base, 1, len(out))[whole:], words_of(out, 1, len(out))[whole:])

    def _undo(self, residual: Array, base: Array, out: Array) -> None:
        """Set `out`, which may be one of the others, to the words that were; `residual` is lost."""
        raise NotImplementedError

    def _undo_at(self, residual: Array, words: Array, places: Indices) -> None:
        """The same in place, where the residuals of some words alone are known."""
        raise NotImplementedError

    def _end(self, tail: memoryview, base: Array, out: Array) -> None:
        """The same for the bytes after the last whole word."""
        raise NotImplementedError


class Xor(Residual):
    """Store the bits that differ, bytes after the last whole word included."""

    tag = XOR

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """See `Codec.encode`.  Cost: that of the planes and one pass."""
        if len(bases) != 1 or len(bases[0]) != len(data):
            return NOT_SHORTER
        residual = self._scratch.take("residual", len(data))
        np.bitwise_xor(words_of(data, 1, len(data)), words_of(bases[0], 1, len(data)), out=residual)
        return self._planes.pack(residual.data, replace(Form.of(spec), residual=True), out)

    def _undo(self, residual: Array, base: Array, out: Array) -> None:
        np.bitwise_xor(residual, base, out=out)

    def _undo_at(self, residual: Array, words: Array, places: Indices) -> None:
        base = words.take(places, mode="wrap") if words.flags.aligned else words[places]
        words[places] = np.bitwise_xor(residual, base, out=residual)

    def _end(self, tail: memoryview, base: Array, out: Array) -> None:
        np.bitwise_xor(base, words_of(tail, 1, len(tail)), out=out)


class Difference(Residual):
    """Store the difference of words, and bytes after the last whole word as they are."""

    tag = DIFFERENCE

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """See `Codec.encode`.  Cost: that of the planes and four passes in the innermost cache."""
        if len(bases) != 1 or len(bases[0]) != len(data):
            return NOT_SHORTER
        width = difference_width(spec)
        whole = len(data) // width * width
        residual = self._scratch.take("residual", len(data))
        self._subtract(data, bases[0], residual, width)
        residual[whole:] = words_of(data, 1, len(data))[whole:]
        form = Form(width, seek_repeats=Form.of(spec).seek_repeats, residual=True)
        return self._planes.pack(residual.data, form, out)

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """See `Codec.decode`; `out` may be the base itself."""
        width = width_in(payload)
        if width not in WORD_TYPES:
            raise Malformed("difference", f"of words of {width} bytes", 0)
        super().decode(payload, spec, bases, out)

    def _undo(self, residual: Array, base: Array, out: Array) -> None:
        self._unfold(residual)
        np.add(residual, base, out=out)

    def _undo_at(self, residual: Array, words: Array, places: Indices) -> None:
        self._unfold(residual)
        np.add.at(words, places, residual)  # half the time of reading and writing, which holds the GIL too

    def _unfold(self, residual: Array) -> None:
        unfold(residual, residual, self._scratch.take("spare", residual.size, residual.itemsize))

    def _end(self, tail: memoryview, base: Array, out: Array) -> None:
        out[:] = words_of(tail, 1, len(tail))

    def _subtract(self, data: memoryview, base: memoryview, out: Array, width: int) -> None:
        """Write the folded differences of the words of `data` and `base` into `out`, some at a time."""
        count, size = len(data) // width, _BLOCK_BYTES // width
        first, second, result = words_of(data, width, count), words_of(base, width, count), out[: count * width]
        spare, words = self._scratch.take("spare", min(size, count), width), result.view(first.dtype)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            every = aligned(first[part], self._scratch, "first"), aligned(second[part], self._scratch, "second")
            subtract(*every, words[part], spare[: part.stop - start])


def _signed(words: Array) -> Signed:
    return words.view(_SIGNED[words.itemsize])


def make_xor(effort: Effort) -> Xor:
    """Return the codec of exclusive ors for one thread."""
    return Xor(effort)


def make_difference(effort: Effort) -> Difference:
    """Return the codec of differences for one thread."""
    return Difference(effort)


FACTORIES: Final[Mapping[int, Factory]] = {XOR: make_xor, DIFFERENCE: make_difference}
