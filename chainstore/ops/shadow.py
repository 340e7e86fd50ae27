"""The shadow: plain bytes of the last snapshot, kept in the process that stored it.

What has not changed since is then known without a hash, and what has is coded against memory instead of what would
have to be read, opened and decoded first.  It is a cache of immutable things, bytes by the id of their chunk: it may
lose any of them at any time, and nobody else needs to know.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Container

from chainstore.ids import ObjectId
from chainstore.limits import memory_left

_SHARE = 4  # of the memory that is left: what others may want is left to them


class Shadow:
    """Chunks by id, within a budget; for any number of threads.

    Args:
        most_bytes: returns how many bytes it may hold.
    """

    def __init__(self, most_bytes: Callable[[], int] = lambda: memory_left() // _SHARE) -> None:
        self._most_bytes, self._lock = most_bytes, threading.Lock()
        self._held: dict[ObjectId, bytearray] = {}
        self._free: dict[int, list[bytearray]] = defaultdict(list)  # by length: fresh pages cost several copies
        self._nbytes = 0  # of both
        self._most: int | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it has."""
        return self._nbytes

    def get(self, id: ObjectId) -> memoryview | None:
        """Return the bytes of a chunk, valid until `settle`; None where they are not held."""
        held = self._held.get(id)
        return memoryview(held) if held is not None else None

    def equals(self, id: ObjectId, data: memoryview) -> bool:
        """Return whether a chunk is held and has these bytes."""
        held = self._held.get(id)
        return (
            held is not None and len(held) == len(data) and held == data  # (of a bytearray and a view: memcmp)
        )

    def keep(self, id: ObjectId, data: memoryview) -> None:
        """Hold a copy of a chunk, if there is room for it."""
        with self._lock:
            if id in self._held:
                return
            free = self._free.get(len(data))
            room = free.pop() if free else self._new(len(data))
        if room is None:
            return
        room[:] = data
        with self._lock:
            other = self._held.setdefault(id, room)
            if other is not room:
                self._free[len(room)].append(room)

    def settle(self, ids: Container[ObjectId]) -> None:
        """Let go of all chunks but these; their memory is for the next ones."""
        with self._lock:
            for id in [id for id in self._held if id not in ids]:
                room = self._held.pop(id)
                self._free[len(room)].append(room)
            self._most = None
            if self._nbytes > self._limit():
                self._nbytes -= sum(len(room) for rooms in self._free.values() for room in rooms)
                self._free.clear()
            if self._nbytes > self._limit():
                self._held.clear()
                self._nbytes = 0

    def clear(self) -> None:
        """Let go of everything, and of the memory."""
        with self._lock:
            self._held.clear()
            self._free.clear()
            self._nbytes, self._most = 0, None

    def _new(self, length: int) -> bytearray | None:
        if self._nbytes + length > self._limit():
            return None
        self._nbytes += length
        return bytearray(length)

    def _limit(self) -> int:
        if self._most is None:
            self._most = self._nbytes + self._most_bytes()
        return self._most
