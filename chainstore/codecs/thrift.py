"""Thrift: whether coding a chunk is worth its time here, where some disks take bytes faster than a coder gives them.

What counts is the time until a commit is durable: coding may make that longer by a fifth, never more.  Three speeds
are measured while commits are made: that of the coder, of all else that a chunk goes through, and of the disk, writes
and syncs together.  The coder's threads are counted one by one, as if nobody worked beside it: the other cores are
training's.  Commits of a dozen megabytes wait for the disk to answer and not for bytes, and say nothing; until more is
known everything is worth it.
"""

import threading
from contextlib import suppress
from typing import Final

ALLOWANCE: Final = 0.2  # of the time that a chunk takes as it is
LEAST_WRITTEN: Final = 16 << 20  # bytes of one commit, before the disk's speed is known
_LEAST_CODED: Final = 1 << 20
_REMEMBERED: Final = 512 << 20  # bytes; what is measured now counts half after as many
_ANYWAY: Final = 64  # of the chunks that are not worth it, one in so many is coded: the coder's speed stays known


def seconds_in_line() -> float:
    """Return how long this thread was ready to run while others had the processor; 0 where the system does not tell.

    Beside training that uses every core this is most of the time that a sync seems to take, and nothing of the disk's.
    """
    with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9  # "time it ran, time it waited for its turn (ns), turns"
    return 0.0


class _Pace:
    """Seconds per byte, of late."""

    def __init__(self, least: int) -> None:
        self._least, self._bytes, self._seconds = least, 0.0, 0.0

    def add(self, nbytes: float, seconds: float) -> None:
        if self._bytes > _REMEMBERED:
            self._bytes, self._seconds = self._bytes / 2, self._seconds / 2
        self._bytes += nbytes
        self._seconds += seconds

    @property
    def known(self) -> bool:
        return self._bytes >= self._least

    @property
    def per_byte(self) -> float:
        return self._seconds / max(1.0, self._bytes)


class Thrift:
    """What is known of the speeds of one repository's disk and of the coder; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coder, self._rest, self._disk = _Pace(_LEAST_CODED), _Pace(_LEAST_CODED), _Pace(LEAST_WRITTEN)
        self._refused = 0

    def coded(self, nbytes: int, seconds: float) -> None:
        """Note that the coder took so long, in seconds of a core, for as many bytes of planes."""
        with self._lock:
            self._coder.add(nbytes, seconds)

    def handled(self, nbytes: int, seconds: float) -> None:
        """Note that everything but coding and writing took so long for a chunk, in seconds of a core."""
        with self._lock:
            self._rest.add(nbytes, seconds)

    def wrote(self, nbytes: int, seconds: float) -> None:
        """Note that so many bytes took so long to be on the disk: seconds of a core, and of waiting for the disk."""
        with self._lock:
            self._disk.add(nbytes, seconds)

    @property
    def known(self) -> bool:
        """Whether coder and disk were measured."""
        with self._lock:
            return self._coder.known and self._disk.known

    def pays(self, nbytes: int, seconds: float, saved: float) -> bool:
        """Return whether so much time of a core for `nbytes` is worth it where that saves about `saved` of them."""
        with self._lock:
            return self._pays(nbytes, seconds, saved)

    def _pays(self, nbytes: int, seconds: float, saved: float) -> bool:
        disk, rest = self._disk.per_byte, self._rest.per_byte
        return seconds <= saved * disk + ALLOWANCE * nbytes * (disk + rest)

    def affords(self, nbytes: int, coded: int, saved: float) -> bool:
        """Return whether to code `coded` bytes of a chunk of `nbytes`, which saves about `saved` bytes of it."""
        with self._lock:
            if not (self._coder.known and self._disk.known):
                return True
            if self._pays(nbytes, coded * self._coder.per_byte, saved):
                return True
            self._refused += 1
            return self._refused % _ANYWAY == 0

    def skips(self) -> bool:
        """Count a chunk as refused without a look at it, and return True; False if its turn is to be coded anyway."""
        with self._lock:
            if (self._refused + 1) % _ANYWAY == 0:
                return False
            self._refused += 1
            return True
