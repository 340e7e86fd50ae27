"""Which items of an array are meant, as a bitmap or as gaps, and moving those items close together and apart again.

A gap is the number of items left out before one that is not: one byte, or 255 for each whole 255 of them and a byte
for the rest.  Moving goes block by block through explicit indices: numpy's boolean indexing takes ten times as long
on masks without long runs (262 144 items, half of them chosen: 1.1 ms against 0.15), and a block's indices stay in
cache and small.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstore.codecs.planes import Array

Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]

GAPS_SHARE: Final = 1 / 8  # gaps are for fewer items than this; it bounds what a reader of gaps may need: 24 bytes each
STRETCH: Final = 1 << 17  # items that are looked at in one go
_ESCAPE: Final = 255
_MANY_RUNS: Final = 0.03  # of set items, to the items there are
_SAMPLE: Final = 1 << 14
_SET: Final = np.ones(STRETCH // 9 + 1, np.bool_)


def gather(words: Array, mask: Mask, out: Array) -> None:
    """Copy the words that `mask` has set into `out`, which is as long as they are many."""
    done = 0
    for start in range(0, len(words), STRETCH):
        chosen = chosen_in(mask[start : start + STRETCH])
        words[start : start + STRETCH].take(chosen, out=out[done : done + chosen.size], mode="clip")
        done += chosen.size


def stretches(where: Mask | Indices) -> Iterator[Indices]:
    """Yield the indices that `where` names, ascending, some at a time."""
    for start in range(0, len(where), STRETCH):
        part = where[start : start + STRETCH]
        if part.dtype == np.bool_:
            chosen = chosen_in(part.view(np.bool_))
            chosen += start
            yield chosen
        else:
            yield part.view(np.int64)


def chosen_in(mask: Mask) -> Indices:
    """Return the indices of the set items of `mask`, at most a stretch.

    Where fewer than a tenth are set numpy looks for one after another, 15 ns for each run of them; else it goes over
    all without a branch, 0.4 ns each.  Where there are many runs, set ones behind them make it do so.
    """
    count = int(np.count_nonzero(mask))
    if _MANY_RUNS * mask.size < count < mask.size / 10 and _has_many_runs(mask):
        return np.flatnonzero(np.concatenate((mask, _SET[: mask.size // 9 + 1])))[:count]
    return np.flatnonzero(mask)


def _has_many_runs(mask: Mask) -> bool:
    """Return whether a sample has so many runs of set items that looking for each takes longer than a look at all."""
    middle = max(0, mask.size - _SAMPLE) // 2
    some = mask[middle : middle + _SAMPLE]
    return int(np.count_nonzero(some[1:] > some[:-1])) > _MANY_RUNS * some.size


def scatter(values: Array, where: Mask | Indices, out: Array) -> None:
    """Copy `values` to the places of `out` that `where` names, in order; leave the others."""
    done = 0
    for chosen in stretches(where):
        out[chosen] = values[done : done + chosen.size]
        done += chosen.size


def gaps_of(mask: Mask) -> NDArray[np.uint8]:
    """Return the gaps before the set items of `mask`, at least one of which is set."""
    gaps = np.diff(np.flatnonzero(mask), prepend=-1) - 1
    escapes = gaps // _ESCAPE
    ends = np.cumsum(escapes + 1) - 1
    coded = np.full(int(ends[-1]) + 1, _ESCAPE, np.uint8)
    coded[ends] = gaps - _ESCAPE * escapes
    return coded


def most_gap_bytes(count: int, chosen: int) -> int:
    """Return how many gap bytes `chosen` among `count` items can take."""
    return chosen + count // _ESCAPE


def indices_of(gaps: Array) -> Indices:
    """Return the indices that `gaps` lead to, ascending, not negative, with no upper bound."""
    last = gaps < _ESCAPE
    steps = np.add(gaps, last.view(np.uint8), dtype=np.uint8).astype(np.int64)
    if steps.size:
        steps[0] -= 1
    np.cumsum(steps, out=steps)
    indices: Indices = steps[last]
    return indices
