"""A few elements of stored arrays, for those who want to know what became of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainstore.ids import ObjectId
from chainstore.model.tree import Entry


def elements(plain: Callable[[ObjectId], memoryview], entry: Entry, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return the elements of an array of floats at ascending flat indices.

    Args:
        plain: returns the bytes of a chunk; asked for those chunks only that hold one of them.
    """
    assert entry.spec is not None
    itemsize = entry.spec.itemsize
    found, start = [], 0
    for extent in entry.extents:
        stop = start + extent.length // itemsize
        first, last = np.searchsorted(indices, (start, stop))
        if first < last:
            data = plain(extent.chunk)[extent.offset : extent.offset + extent.length]
            found.append(np.frombuffer(data, f"<f{itemsize}")[indices[first:last] - start])
        start = stop
    return np.concatenate(found)
