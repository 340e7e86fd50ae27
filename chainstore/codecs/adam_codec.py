"""The codec of what an optimizer made (tag 5): the difference to what `adam` predicts from the bases, in planes.

    payload = parameters | planes of the difference, with its sign folded in, as of `residuals`

Parameters (`adam_parameters`) say what is predicted and how.  Planes say how wide an item is: 4 or 8 bytes.  Bytes
after the last whole item are stored as they are.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from chainstore.codecs.adam import FLOAT_TYPES, Optimizer
from chainstore.codecs.adam_parameters import MOST_BASES, Parameters, parse
from chainstore.codecs.base import ADAM, NOT_SHORTER, Effort, Hint, ItemSpec
from chainstore.codecs.floating import same_everywhere
from chainstore.codecs.plane_codec import Coded, Form, Planes, width_in
from chainstore.codecs.planes import Array, Scratch, aligned, words_of
from chainstore.codecs.residuals import add, subtract, unfold
from chainstore.errors import FormatTooNew, Malformed

_BLOCK_BYTES: Final = 128 << 10  # of items: with bases and what comes in between they stay in the second cache
_WHOLE_BYTES: Final = 256 << 10  # the same where there is nothing else to be done with them: fewer calls


class Adam:
    """Store what an optimizer made as the difference to a prediction; for one thread."""

    tag = ADAM
    bases = MOST_BASES

    def __init__(self, effort: Effort) -> None:
        self._planes = Planes(effort)
        self._scratch = Scratch()

    def encode(
        self, data: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], hint: Hint, out: memoryview
    ) -> int:
        """See `Codec.encode`; gives up on items that are no float32 or float64, alone or in pairs."""
        width = _float_width(spec)
        parameters = _known(hint.parameters)
        if width is None or parameters is None or not _fits(bases, parameters, len(data)):
            return NOT_SHORTER
        count = len(data) // width
        if not count:
            return NOT_SHORTER
        residual = self._scratch.take("residual", len(data))
        residual[count * width :] = np.frombuffer(data, np.uint8)[count * width :]
        words, folded = words_of(data, width, count), words_of(residual.data, width, count)
        for block, predicted, spare in self._predictions(parameters, bases, width, count):
            subtract(aligned(words[block], self._scratch, "items"), predicted, folded[block], spare)
        head = parameters.nbytes
        length = self._planes.pack(residual.data, Form(width, residual=True), out[head:])
        if length == NOT_SHORTER or head + length >= len(data):
            return NOT_SHORTER
        out[:head] = hint.parameters
        return head + length

    def decode(self, payload: memoryview, spec: ItemSpec | None, bases: Sequence[memoryview], out: memoryview) -> None:
        """See `Codec.decode`; FormatTooNew where there is no such predictor here."""
        parameters = parse(payload)
        if not _fits(bases, parameters, len(out)):
            lengths = [len(base) for base in bases]
            raise Malformed("predictor", f"it needs {parameters.bases} bases of {len(out)} bytes, not {lengths}")
        planes = payload[parameters.nbytes :]
        width = width_in(planes)
        if width not in FLOAT_TYPES:
            raise Malformed("predictor", f"items of {width} bytes", parameters.nbytes)
        coded = self._planes.unpack(planes, len(out))
        words = words_of(out, width, coded.count)
        if coded.where is not None and words.flags.aligned:
            self._correct(coded, parameters, bases, words)
            out[len(out) - len(coded.tail) :] = coded.tail
            return
        self._planes.fill(coded, out)
        for block, predicted, spare in self._predictions(parameters, bases, width, coded.count):
            place = words[block]
            items = aligned(place, self._scratch, "items")
            add(items, predicted, items, spare)
            if items is not place:
                np.copyto(place, items)

    def _correct(self, coded: Coded, parameters: Parameters, bases: Sequence[memoryview], words: Array) -> None:
        """Predict all words where they belong, and correct those few that came otherwise."""
        sources = [words_of(base, coded.width, coded.count) for base in bases]
        every = [aligned(source, self._scratch, f"whole {place}") for place, source in enumerate(sources)]
        with same_everywhere():
            optimizer = Optimizer(parameters, coded.width, self._scratch)
            optimizer.predict_all(every, words, _WHOLE_BYTES // coded.width)
        for place, residual in self._planes.pieces(coded):
            assert not isinstance(place, slice)
            unfold(residual, residual, self._scratch.take("fold", residual.size, coded.width))
            np.add.at(words, place, residual)

    def _predictions(
        self, parameters: Parameters, bases: Sequence[memoryview], width: int, count: int
    ) -> Iterator[tuple[slice, Array, Array]]:
        """Yield which items, what is predicted of them, and as much memory again; both valid until the next."""
        with same_everywhere():
            optimizer = Optimizer(parameters, width, self._scratch)
        sources = [words_of(base, width, count) for base in bases]
        step = _BLOCK_BYTES // width
        for start in range(0, count, step):
            block = slice(start, min(start + step, count))
            length = block.stop - start
            predicted = self._scratch.take("prediction", length, width)
            pieces = [aligned(source[block], self._scratch, f"base {place}") for place, source in enumerate(sources)]
            with same_everywhere():
                optimizer.predict(pieces, predicted)
            yield block, predicted, self._scratch.take("fold", length, width)


def _float_width(spec: ItemSpec | None) -> int | None:
    """Return the bytes of the numbers that items of `spec` are or are made of; None if no optimizer counts in them."""
    if spec is None or spec.kind not in ("float", "complex"):
        return None
    width = spec.itemsize // 2 if spec.kind == "complex" else spec.itemsize
    return width if width in FLOAT_TYPES else None


def _known(parameters: bytes) -> Parameters | None:
    """Return what `parameters` say, None where that makes no sense here."""
    try:
        parsed = parse(parameters)
    except (FormatTooNew, Malformed):
        return None
    return parsed if parsed.nbytes == len(parameters) else None


def _fits(bases: Sequence[memoryview], parameters: Parameters, length: int) -> bool:
    return len(bases) == parameters.bases and all(len(base) == length for base in bases)


def make(effort: Effort) -> Adam:
    """Return the codec for one thread."""
    return Adam(effort)
