"""Gaps between few items as bits: what a gap has below 2^k as it is, what it has above as so many zeros and a one.

Gaps between items that are where they are by chance are distributed geometrically, for which this is the code of Golomb
and Rice: within one or two hundredths of the entropy, and without the table that a Huffman code of gap bytes begins
with, which is a tenth of all that some hundred gaps take.

    >>> gaps = np.array([5, 0, 70], np.int64)
    >>> k = best_k(gaps)
    >>> k, gaps_in(*bits_of(gaps, k), 3, k).tolist()
    (4, [5, 0, 70])
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from chainstore.errors import Malformed

MOST_K: Final = 15
Bytes = NDArray[np.uint8]
Gaps = NDArray[np.int64]


def best_k(gaps: Gaps) -> int:
    """Return with how many low bits at least one gap takes the fewest bytes, or nearly so."""
    middle = min(MOST_K, int(np.log2(0.69 * (float(gaps.mean()) + 1) + 1)))  # where a gap is as likely below 2^k as not
    return min(range(max(0, middle - 1), min(MOST_K, middle + 1) + 1), key=lambda k: nbytes_of(gaps, k))


def nbytes_of(gaps: Gaps, k: int) -> int:
    """Return how many bytes the two parts take."""
    return (gaps.size * k + 7) // 8 + (gaps.size + int((gaps >> k).sum()) + 7) // 8


def bits_of(gaps: Gaps, k: int) -> tuple[Bytes, Bytes]:
    """Return the low bits of the gaps, k of each one, and what is above them: zeros, and a one that ends them."""
    low = (gaps & ((1 << k) - 1)).astype("<u2").view(np.uint8).reshape(-1, 2)
    bits = np.unpackbits(low, axis=1, bitorder="little")[:, :k]
    ends = np.cumsum((gaps >> k) + 1) - 1
    above = np.zeros(int(ends[-1]) + 1, np.uint8)
    above[ends] = 1
    return np.packbits(bits.reshape(-1), bitorder="little"), np.packbits(above, bitorder="little")


def gaps_in(low: NDArray[np.unsignedinteger[Any]], above: NDArray[np.unsignedinteger[Any]], count: int, k: int) -> Gaps:
    """Return the gaps; Malformed if they are not `count`.  `low` has as many bytes as they take."""
    ends = np.flatnonzero(np.unpackbits(above, bitorder="little"))
    if ends.size != count:
        raise Malformed("planes", f"{ends.size} gaps instead of {count}", 0)
    bits = np.zeros((count, 16), np.uint8)
    bits[:, :k] = np.unpackbits(low, count=count * k, bitorder="little").reshape(count, k)
    rest = np.packbits(bits, axis=1, bitorder="little").view("<u2").reshape(-1)
    gaps: Gaps = ((np.diff(ends, prepend=-1) - 1) << k) | rest
    return gaps
