"""Measuring: how far apart two arrays are, chunk by chunk, in bounded memory.

The one module of the verbs that needs numpy; `comparison` loads it when the first array has to be read.  Elements
become doubles a block at a time, small enough for the processor's cache; integers beyond 2**53 lose digits there, but
their differences do not.  bfloat16 is the upper half of a float32, and the floats of one byte go through a table.
"""

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from chainstore.errors import IdMismatch
from chainstore.ids import ObjectId
from chainstore.model.minifloats import MINIFLOATS, minifloat_values
from chainstore.model.paths import format_path
from chainstore.model.tree import Extent
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.ops.pairing import Pair
from chainstore.ops.parts import Part, batches, parts_of
from chainstore.ops.pipeline import run, worker_count
from chainstore.ops.sums import Sums

Array = npt.NDArray[Any]

# Doubles of one block: three buffers of 128 KiB.  Sums by einsum, since a BLAS starts threads of its own for vectors
# of this length, which then fight with ours (`dot` of 16384 doubles: 3 us alone, 1500 us with both cores busy).
_BLOCK: Final = 1 << 14
_REPORT_BYTES: Final = 8 << 20
_NATIVE: Final = {
    "bool": "u1",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex32": "<f2",  # real and imaginary parts, one after the other
    "complex64": "<f4",
    "complex128": "<f8",
    **{f"{sign}int{8 * size}": f"<{kind}{size}" for sign, kind in (("", "i"), ("u", "u")) for size in (1, 2, 4, 8)},
}


def measure(
    db: LocalDatabase, pairs: Sequence[Pair], *, threads: int, max_memory_bytes: int, observer: Observer
) -> tuple[list[Sums | None], int]:
    """Return what is to be known of each pair (None of what needs no read), and how many bytes of chunks were read.

    Raises:
        IdMismatch: a chunk is damaged; `path` says whose.

    Cost: per thread one chunk of each side and three blocks of doubles; 0.7 ms per MiB of float32 next to another.
    """
    work = _Measuring(db, pairs, observer)
    run(
        batches(work.parts, pairs),
        work.measure,
        threads=worker_count(threads, max_memory_bytes, work.total),
    )
    return work.totals, work.read_bytes


class _Measuring:
    """One run of `measure`: the parts of each pair, in whatever order threads come to them."""

    def __init__(self, db: LocalDatabase, pairs: Sequence[Pair], observer: Observer) -> None:
        self._db, self._pairs, self._observer = db, pairs, observer
        self._own = threading.local()
        self._lock = threading.Lock()
        self.parts = [parts_of(number, pair) for number, pair in enumerate(pairs)]
        self._found: list[list[Sums | None]] = [[None] * len(parts) for parts in self.parts]
        self._missing = [len(parts) for parts in self.parts]
        self.totals: list[Sums | None] = [Sums() if pair.reading != "nothing" else None for pair in pairs]
        self.total = sum(_nbytes(part) for parts in self.parts for part in parts)
        self._done = self._told = self.read_bytes = 0

    def measure(self, parts: Sequence[Part]) -> None:
        """Measure some parts, in a thread of the pipeline."""
        if not hasattr(self._own, "bench"):
            self._own.bench = (_Reader(self._db), Meter())
        reader, meter = self._own.bench
        for part in parts:
            before = reader.read_bytes
            try:
                sums = _measure(part, self._pairs[part.pair], reader, meter)
            except IdMismatch as error:
                path = format_path(self._pairs[part.pair].path)
                raise IdMismatch(error.id, error.why, path=path) from error
            self._keep(part, sums, reader.read_bytes - before)

    def _keep(self, part: Part, sums: Sums, read_bytes: int) -> None:
        """Put the result of a part in its place; a finished pair is added up in order, so results repeat exactly."""
        with self._lock:
            self._found[part.pair][part.slot] = sums
            self._missing[part.pair] -= 1
            self.read_bytes += read_bytes
            if not self._missing[part.pair]:
                total = Sums()
                for each in self._found[part.pair]:
                    assert each is not None
                    total.add(each)
                self.totals[part.pair], self._found[part.pair] = total, []
            self._done += _nbytes(part)
            if self._done - self._told >= _REPORT_BYTES or self._done == self.total:
                self._told = self._done
                self._observer(Progress("diff", self._done, self.total))


class _Reader:
    """Reads chunks of both sides into memory that it reuses; for one thread."""

    def __init__(self, db: LocalDatabase) -> None:
        self._db = db
        self._rooms = [bytearray(), bytearray()]
        self._held: list[ObjectId | None] = [None, None]
        self._lengths = [0, 0]
        self.read_bytes = 0

    def read(self, extent: Extent | None, side: int) -> "_Bytes | None":
        """Return the bytes of an extent, valid until the next read of this side; None where there are none to read."""
        if extent is None:
            return None
        if self._held[side] != extent.chunk:
            self._fetch(extent.chunk, side)
        stop, nbytes = extent.offset + extent.length, self._lengths[side]
        if stop > nbytes:
            raise IdMismatch(str(extent.chunk), "it is shorter than what refers to it")
        return _Bytes(np.frombuffer(self._rooms[side], np.uint8)[extent.offset : stop], extent.length == nbytes)

    def _fetch(self, chunk: ObjectId, side: int) -> None:
        self._held[side] = None
        nbytes = max(0, self._db.length(chunk))  # a chunk that is missing is told of by the read
        if len(self._rooms[side]) < nbytes:
            self._rooms[side] = bytearray(nbytes)
        self._db.read(chunk, memoryview(self._rooms[side])[:nbytes])
        self._held[side], self._lengths[side] = chunk, nbytes
        self.read_bytes += nbytes


class _Bytes(NamedTuple):
    """Bytes of an extent, and whether they are a whole chunk."""

    data: Array
    whole: bool


def _measure(part: Part, pair: Pair, reader: _Reader, meter: "Meter") -> Sums:
    a = reader.read(part.a, 0)
    b = a if part.a == part.b else reader.read(part.b, 1)
    sums = Sums()
    if pair.reading == "numbers":
        dtypes = [
            entry.spec.dtype if entry is not None and entry.spec is not None else "" for entry in (pair.a, pair.b)
        ]
        sums = meter.measure(a.data if a else None, b.data if b else None, *dtypes)
    extent = part.b or part.a
    assert extent is not None
    sums.changed_bytes = extent.length if _differ(a, b) else 0
    return sums


def _differ(a: _Bytes | None, b: _Bytes | None) -> bool:
    if a is None or b is None or (a is not b and a.whole and b.whole):  # whole chunks under two ids
        return True
    return a is not b and not np.array_equal(a.data, b.data)


def _nbytes(part: Part) -> int:
    return sum(extent.length for extent in (part.a, part.b) if extent is not None)


# ---- numbers -------------------------------------------------------------------------------------------------------


class Meter:
    """Measures arrays in blocks of doubles that it reuses; for one thread."""

    def __init__(self) -> None:
        self._a, self._b, self._d = (np.empty(_BLOCK) for _ in range(3))

    def measure(self, a: Array | None, b: Array | None, dtype_a: str, dtype_b: str) -> Sums:
        """Return what is to be known of two arrays with as many elements, or of one alone.

        Args:
            a, b: their bytes, as uint8; may be one and the same object.
            dtype_a, dtype_b: names of their dtypes, in `pairing.NUMERIC`; both complex or none.
        """
        width = 2 if "complex" in (dtype_a if a is not None else dtype_b) else 1
        twins = a is b and dtype_a == dtype_b
        old, new = (items(data, dtype) if data is not None else None for data, dtype in ((a, dtype_a), (b, dtype_b)))
        present = old if old is not None else new
        total = Sums()
        with np.errstate(all="ignore"):  # what overflows or is no number is counted
            for start in range(0, len(present) if present is not None else 0, _BLOCK):
                stop = start + _BLOCK
                total.add(
                    self._block(
                        old[start:stop] if old is not None else None,
                        new[start:stop] if new is not None and not twins else None,
                        width,
                        twins,
                    )
                )
        return total

    def _block(self, old: Array | None, new: Array | None, width: int, twins: bool) -> Sums:
        sums = Sums()
        finite: list[Array] = []
        a = b = None
        if old is not None:
            a = _load(old, self._a)
            sums.aa, sums.max_a, sums.nan_a, sums.inf_a = _alone(a, width, finite)
        if twins and a is not None:
            sums.bb, sums.max_b, sums.nan_b, sums.inf_b, sums.ab = sums.aa, sums.max_a, sums.nan_a, sums.inf_a, sums.aa
            return sums
        if new is not None:
            b = _load(new, self._b)
            sums.bb, sums.max_b, sums.nan_b, sums.inf_b = _alone(b, width, finite)
        if a is not None and b is not None and old is not None and new is not None:
            d = np.subtract(b, a, out=self._d[: len(a)])
            _restore_digits(d, old, new)
            for mask in finite:
                d[~mask] = 0.0
            sums.dd, sums.max_d, sums.ab = _square(d), _peak(d, width), float(np.einsum("i,i->", a, b))
        return sums


@cache
def _table(dtype: str) -> Array:
    return np.array(minifloat_values(dtype))


def items(data: Array, dtype: str) -> Array:
    """Return the elements that bytes stand for as numbers of a type that numpy has; two each where they are complex."""
    if dtype in MINIFLOATS:
        return _table(dtype)[data]
    if dtype == "bfloat16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4")
    return data.view(_NATIVE[dtype])


def _load(numbers: Array, room: Array) -> Array:
    doubles = room[: len(numbers)]
    np.copyto(doubles, numbers, casting="unsafe")
    return doubles


def _alone(x: Array, width: int, finite: list[Array]) -> tuple[float, float, int, int]:
    """Return sum of squares, largest absolute value, and how many elements are NaN and Inf, of one block.

    What is not finite becomes 0 in `x`; where there is such, a mask of the rest is added to `finite`.
    """
    square = _square(x)
    if np.isfinite(square):
        return square, _peak(x, width), 0, 0
    nan, inf = (int(test(x).reshape(-1, width).any(axis=1).sum()) for test in (np.isnan, np.isinf))
    mask = np.repeat(np.isfinite(x).reshape(-1, width).all(axis=1), width)
    x[~mask] = 0.0
    finite.append(mask)
    return _square(x), _peak(x, width), nan, inf


def _square(x: Array) -> float:
    return float(np.einsum("i,i->", x, x))


def _peak(x: Array, width: int) -> float:
    if width == 2:
        return float(np.hypot(x[0::2], x[1::2]).max())
    return float(max(x.max(), -x.min()))


def _restore_digits(d: Array, old: Array, new: Array) -> None:
    """Put exact differences of 64-bit integers in place of those of their doubles, where they fit."""
    if old.dtype == new.dtype and old.dtype.kind in "iu" and old.dtype.itemsize == 8:
        exact = new.view("<i8") - old.view("<i8")  # wraps around, and so is right where the difference fits
        np.copyto(d, exact, where=np.abs(d) < float(1 << 62))
