"""Blocks: bytes brought to where other bytes are, writing only where they differ.

Nothing but comparing bytes proves that they are equal (a tensor's `_version` does not count writes through numpy or
`.data`).  Comparing equal bytes takes as long as copying them; bytes that differ mostly do so at once, and then a look
at the first of each block is all it costs.

The GIL is held for what takes microseconds, and free while more than one block is copied: whoever gives it up for each
of a thousand small tensors waits a thousand times for every other thread.  A second thread was tried: where one fills
the bandwidth of the memory (19 GB/s on the machine this was measured on), two copy no faster.
"""

import ctypes
from typing import Final

import numpy as np

from chainstore.model.spec import Spec, find_dtype
from chainstore.repository import Source

_BLOCK: Final = 256 << 10  # compared and copied in one go: both copies fit the second-level cache
_PROBE: Final = 4 << 10  # what is compared first

_free = ctypes.CDLL(None)  # without the GIL
_held = ctypes.PyDLL(None)  # with it
for _library in (_free, _held):
    _library.memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    _library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    _library.memmove.restype = None
_move, _move_held, _differ = _free.memmove, _held.memmove, _held.memcmp


def bring(to: int, source: int, nbytes: int) -> int:
    """Make bytes at `to` those at `source`, writing only blocks that differ, and return how many were written."""
    if nbytes <= _PROBE:
        if not _differ(to, source, nbytes):
            return 0
        _move_held(to, source, nbytes)
        return nbytes
    copied = 0
    begin = -1  # of blocks in a row that differ
    for start in range(0, nbytes, _BLOCK):
        size = min(_BLOCK, nbytes - start)
        if _differ(to + start, source + start, min(size, _PROBE)):
            begin = start if begin < 0 else begin
            continue
        if begin >= 0:
            copied += _copy(to + begin, source + begin, start - begin)
            begin = -1
        if size > _PROBE and _differ(to + start, source + start, size):
            copied += _copy(to + start, source + start, size)  # now, while both are in the cache
    return copied + _copy(to + begin, source + begin, nbytes - begin) if begin >= 0 else copied


def _copy(to: int, source: int, nbytes: int) -> int:
    (_move if nbytes > _BLOCK else _move_held)(to, source, nbytes)
    return nbytes


def bring_bytes(to: int, data: bytes) -> int:
    return bring(to, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data))


def bring_read(to: int, source: Source, spec: Spec | None) -> int:
    """Bring bytes that have to be put in order: what has gaps, or is computed while it is read."""
    itemsize = find_dtype(spec.dtype).itemsize if spec is not None else 1
    step = max(1, _BLOCK // itemsize) * itemsize
    copied = 0
    for start in range(0, source.nbytes, step):
        data = source.read(start, min(start + step, source.nbytes))
        copied += bring(to + start, np.frombuffer(data, np.uint8).ctypes.data, len(data))
    return copied
