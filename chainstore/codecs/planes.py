"""Words taken apart into planes and put together again, in numpy, without allocating.

A word is one item, or one half of a complex one.  Its bytes are numbered from the least significant; a *field* is
1, 2, 4 or 8 neighbouring bytes of every word, side by side.  A field of one byte is a byte plane: the bytes of like
significance of similar numbers resemble each other, and a byte-oriented coder sees that only when they are neighbours.

In *rotated* words (floating point) the two top bytes are first rotated left by one bit as a unit, which moves the sign
out of the way: the top plane of a float32 or bfloat16 is then its exponent, and nothing else.

Casts of contiguous words (`np.right_shift` with a narrower `out`) run at 40-80 GB/s, strided byte copies at 17
(benchmarks/micro/codecs.py); only items whose size is no power of two take the strided way.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.unsignedinteger[Any]]

WORD_TYPES: Final[dict[int, np.dtype[np.unsignedinteger[Any]]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
MAX_WIDTH: Final = 16


def width_of(words: Array) -> int:
    """Return the bytes of a word of an array from `words_of`."""
    return words.itemsize if words.ndim == 1 else words.shape[1]


class Scratch:
    """Aligned arrays by name, grown to the largest asked for and reused; for one thread."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, count: int, width: int = 1) -> Array:
        """Return `count` words of `width` bytes with undefined content, the same memory for the same name."""
        held = self._held.get(name)
        if held is None or held.nbytes < count * width:
            held = self._held[name] = np.empty(count * width, np.uint8)
        return held[: count * width].view(WORD_TYPES[width])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held.nbytes for held in self._held.values())


def words_of(data: memoryview, width: int, count: int) -> Array:
    """Return the first `count` words of `data` as they lie: an array of words, or of rows of bytes for other widths."""
    if width in WORD_TYPES:
        return np.frombuffer(data, WORD_TYPES[width], count)
    return np.frombuffer(data, np.uint8, count * width).reshape(count, width)


def aligned(words: Array, scratch: Scratch, name: str) -> Array:
    """Return `words`, or a copy where numpy would be slow on them because of where they lie."""
    if words.flags.aligned:
        return words
    copy = scratch.take(name, words.size, words.itemsize)
    np.copyto(copy.view(np.uint8), np.frombuffer(words.data.cast("B"), np.uint8))
    return copy


def rotate_left(words: Array, out: Array, scratch: Array) -> None:
    """Rotate every word left by one bit into `out`; `scratch` is like it, `out` may be `words`."""
    np.right_shift(words, words.itemsize * 8 - 1, out=scratch)
    np.left_shift(words, 1, out=out)
    np.bitwise_or(out, scratch, out=out)


def rotate_right(words: Array, out: Array, scratch: Array) -> None:
    """Undo `rotate_left`."""
    np.left_shift(words, words.itemsize * 8 - 1, out=scratch)
    np.right_shift(words, 1, out=out)
    np.bitwise_or(out, scratch, out=out)


def read_field(words: Array, offset: int, out: Array) -> None:
    """Copy the field of `out.itemsize` bytes at byte `offset` of every word into `out`."""
    if words.ndim == 2:
        np.copyto(out, words[:, offset])
    elif offset == 0:
        np.copyto(out, words, casting="unsafe")
    else:
        np.right_shift(words, 8 * offset, out=out, casting="unsafe", dtype=words.dtype)


def write_field(words: Array, offset: int, field: Array | int, scratch: Array) -> None:
    """Set the field at byte `offset` of every word; fields go in ascending order and the first is at offset 0.

    Args:
        field: one value a word, or the value that all have.
        scratch: like `words`; unused where those are rows of bytes.
    """
    if words.ndim == 2:
        words[:, offset] = field
    elif offset == 0:
        np.copyto(words, field, casting="unsafe")
    elif isinstance(field, int):
        if field:
            np.bitwise_or(words, words.dtype.type(field << 8 * offset), out=words)
    else:
        np.left_shift(field, 8 * offset, out=scratch, dtype=words.dtype)
        np.bitwise_or(words, scratch, out=words)


class Fields:
    """The fields of `words`, whose two top bytes are rotated where asked.

    Args:
        words: from `words_of`, aligned; only rows of 2, 4 or 8 byte words can be rotated.
        rotated: see the module.
        scratch: where the rotated halves are kept, until the next `Fields` or `Joiner` on it.
    """

    def __init__(self, words: Array, rotated: bool, scratch: Scratch) -> None:
        self.count = len(words)
        self._words, self._boundary = words, MAX_WIDTH
        if rotated:
            self._boundary = words.itemsize - 2
            self._top = scratch.take("top", self.count, 2)
            spare = scratch.take("spare", self.count, 2)
            read_field(words, self._boundary, self._top)
            rotate_left(self._top, self._top, spare)

    def read(self, offset: int, out: Array) -> None:
        """Copy the field at byte `offset` into `out`."""
        if offset >= self._boundary:
            read_field(self._top, offset - self._boundary, out)
        else:
            read_field(self._words, offset, out)


class Joiner:
    """Puts words together from their fields, a stretch of them at a time so that it stays in cache; undoes `Fields`.

    Args:
        fields: with the byte of a word that each begins at, ascending from 0 on; arrays of one value a word, or the
            value that all words have.
        width: of a word in bytes.
        rotated: see the module.
        most: words in a stretch.
    """

    def __init__(
        self, fields: Sequence[tuple[int, Array | int]], width: int, rotated: bool, most: int, scratch: Scratch
    ) -> None:
        self._scratch = scratch
        boundary = width - 2 if rotated else width
        self._boundary, self._rotated = boundary, rotated
        self._below = [(offset, field) for offset, field in fields if offset < boundary]
        self._above = [(offset - boundary, field) for offset, field in fields if offset >= boundary]
        self._spare = scratch.take("spare", most, width) if width in WORD_TYPES else np.empty(0, np.uint8)
        # two-byte words are rotated where they are
        self._top = scratch.take("top", most, 2) if rotated and boundary else None

    def join(self, start: int, words: Array) -> None:
        """Set `words`, aligned, at most as many as a stretch has, to those from number `start` on."""
        count = len(words)
        spare = words if words.ndim == 2 else self._spare[:count]
        for offset, field in self._below:
            write_field(words, offset, self._part(field, start, count), spare)
        if not self._rotated:
            return
        top = words if self._top is None else self._top[:count]
        top_spare = spare.view(np.uint8)[: 2 * count].view(WORD_TYPES[2])
        for offset, field in self._above:
            write_field(top, offset, self._part(field, start, count), top_spare)
        rotate_right(top, top, top_spare)
        if self._top is not None:
            write_field(words, self._boundary, top, spare)

    def _part(self, field: Array | int, start: int, count: int) -> Array | int:
        return field if isinstance(field, int) else aligned(field[start : start + count], self._scratch, "part")
