"""Memory of this process seen through numpy, by address: how tensors and arrays alike are read and written.

`Tensor.numpy()` would do the first half, but marks the tensor's storage as not resizable for good, knows neither
bfloat16 nor float8, and refuses tensors that require grad.  An address, sizes and strides say enough.

Only the adapters import this module, so that nothing else needs numpy.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final, cast

import numpy as np

from chainstore.state.leaf import Dense, Region
from chainstore.state.sharing import is_packed

_EMPTY: Final = memoryview(bytearray())
_WORDS: Final = {1: "|u1", 2: "=u2", 4: "=u4", 8: "=u8", 16: "=c16"}
_TYPESTR: Final = {size: np.dtype(word).str for size, word in _WORDS.items()}
_MAX_WORK: Final = 100_000  # of the exact overlap search; about 1 ms


class _Memory:
    """What numpy asks for to make an array of an address; keeps the owner of the memory alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self, address: int, typestr: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, owner: object
    ) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "typestr": typestr,
            "shape": shape,
            "strides": strides,
            "version": 3,
        }
        self.owner = owner


def memory_bytes(address: int, nbytes: int, owner: object) -> memoryview:
    """Return `nbytes` writable bytes from `address` on, which keep `owner` alive."""
    if not nbytes:
        return _EMPTY
    return np.asarray(_Memory(address, "|u1", (nbytes,), None, owner)).data


def _items(region: Region, owner: object = None) -> np.ndarray[Any, Any]:
    """Return a region as an array of opaque items, for copying only."""
    typestr = _TYPESTR.get(region.itemsize) or f"|V{region.itemsize}"
    return np.asarray(_Memory(region.address, typestr, region.shape, region.strides, owner))


class HostSource:
    """The items of a region in host memory: as they lie where they fill it, else in C order.

    Args:
        owner: keeps the memory alive.
    """

    __slots__ = ("_owner", "_packed", "_region", "nbytes")

    def __init__(self, region: Region, nbytes: int, packed: bool, owner: object) -> None:
        self._region, self._owner, self._packed, self.nbytes = region, owner, packed, nbytes

    @property
    def address(self) -> int | None:
        """Where the bytes lie if they lie in order, None if a read has to put them in order first."""
        return self._region.address if self._packed else None

    def read(self, start: int, stop: int) -> memoryview:
        if self._packed:
            return memory_bytes(self._region.address + start, stop - start, self._owner)
        if stop <= start:
            return _EMPTY
        size = self._region.itemsize
        first, last = start // size, -(-stop // size)
        items = _items(self._region, self._owner)
        out = np.empty(last - first, items.dtype)
        _copy_items(items, first, last, out)
        return out.view(np.uint8).data[start - first * size : stop - first * size]


def _copy_items(items: np.ndarray[Any, Any], first: int, last: int, out: np.ndarray[Any, Any]) -> None:
    """Copy items [first, last) in C order into `out`, touching only the rows that hold them."""
    if items.ndim < 2:
        out[...] = items.reshape(-1)[first:last] if items.ndim == 0 else items[first:last]
        return
    row = items[0].size
    index, skipped = divmod(first, row)
    done = 0
    if skipped:
        done = min(last, (index + 1) * row) - first
        _copy_items(items[index], skipped, skipped + done, out[:done])
        index += 1
    whole = (last - first - done) // row
    if whole > 0:
        rows = items[index : index + whole]
        out[done : done + whole * row].reshape(rows.shape)[...] = rows
        done += whole * row
    if done < last - first:
        _copy_items(items[index + max(whole, 0)], 0, last - first - done, out[done:])


class HullSource:
    """All bytes that some regions show between two addresses, zeros where they show none; made at the first read."""

    def __init__(self, arrays: Sequence[Dense], start: int, nbytes: int) -> None:
        self._arrays, self._start, self.nbytes = arrays, start, nbytes
        self._lock = Lock()
        self._hull: memoryview | None = None

    def read(self, start: int, stop: int) -> memoryview:
        with self._lock:
            if self._hull is None:
                self._hull = self._make()
        return self._hull[start:stop]

    def _make(self) -> memoryview:
        hull = np.zeros(self.nbytes, np.uint8)
        base = hull.__array_interface__["data"][0]
        for dense in self._arrays:
            shown = dense.region
            if shown is not None:
                moved = Region(base + shown.address - self._start, shown.itemsize, shown.shape, shown.strides)
                _items(moved, hull)[...] = _items(shown, dense.source)
        return hull.data


def gather_host(arrays: Sequence[Dense], start: int, nbytes: int) -> "HostSource | HullSource":
    """Return the bytes that host arrays show in a range of addresses, without a copy if one shows them all."""
    for dense in arrays:
        region = dense.region
        if (
            region is not None
            and region.address == start
            and region.bounds() == (start, start + nbytes)
            and min(region.strides, default=1) > 0
            and is_packed(region.shape, region.strides, region.itemsize)
        ):
            return HostSource(region, nbytes, True, dense.source)
    return HullSource(arrays, start, nbytes)


def overlap(a: Region, b: Region) -> bool:
    """Return whether two regions share a byte (True also where that is too hard to tell); memory is not touched."""
    try:
        return bool(np.shares_memory(_items(a), _items(b), max_work=cast(Any, _MAX_WORK)))
    except np.exceptions.TooHardError:
        return True
