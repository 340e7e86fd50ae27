"""Threads around a memory map: a gate (many inside at once, or one alone), and a pause for the moment of a fork.

Transactions of one process pass through the gate, so that the map under them is exchanged only while none is open.

    gate.enter(); ...; gate.leave()
    with gate.alone(): ...
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chainstore.errors import StorageError

PATIENCE_SECONDS = 60.0  # what a transaction of one publish or look-up never takes


class Gate:
    """Count who is inside, by thread; let one in alone when all others have left.

    A thread that is inside already may enter again at any time, also while another waits to be alone: it could
    not leave otherwise.  Cost: 0.5 us to enter and leave.
    """

    def __init__(self) -> None:
        self._moved = threading.Condition(threading.Lock())
        self._inside: dict[int, int] = {}  # thread -> how often it entered
        self._alone: int | None = None  # the thread that is, or waits to be, or holds newcomers up
        self._holder: int | None = None

    def enter(self) -> int:
        """Come in, waiting while somebody is alone, and return what `leave` must be given.

        Raises:
            StorageError: somebody has been alone for PATIENCE_SECONDS.
        """
        me = threading.get_ident()
        with self._moved:
            if self._alone is not None and self._alone != me and me not in self._inside:
                self._wait(lambda: self._alone is None)
            self._inside[me] = self._inside.get(me, 0) + 1
        return me

    def leave(self, thread: int) -> None:
        """Go out again; any thread may do it for the one that came in."""
        with self._moved:
            left = self._inside.get(thread, 1) - 1
            if left:
                self._inside[thread] = left
            else:
                self._inside.pop(thread, None)
                if self._alone is not None:
                    self._moved.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one inside.

        Raises:
            StorageError: this thread is inside already, or others did not leave for PATIENCE_SECONDS.
        """
        me = threading.get_ident()
        with self._moved:
            if me in self._inside:
                raise StorageError("the index cannot be reopened while this thread has a transaction open on it")
            self._wait(lambda: self._alone is None)
            self._alone = me
        try:
            with self._moved:
                self._wait(lambda: not self._inside)
            yield
        finally:
            with self._moved:
                self._alone = None
                self._moved.notify_all()

    def hold(self, busy: Callable[[int], bool], patience_seconds: float) -> None:
        """Keep newcomers out until `release`, and return when nobody inside is `busy` (or patience ends).

        For the moment before a fork: the child cannot let go of what a call that is under way in another thread
        holds, since that thread does not exist there and never returns from it.
        """
        me, deadline = threading.get_ident(), time.monotonic() + patience_seconds
        with self._moved:
            if self._moved.wait_for(lambda: self._alone is None, patience_seconds):
                self._alone = self._holder = me
            while any(thread != me and busy(thread) for thread in self._inside) and time.monotonic() < deadline:
                self._moved.wait(0.0005)

    def release(self) -> None:
        """Let newcomers in again."""
        with self._moved:
            if self._holder is not None:
                self._alone = self._holder = None
                self._moved.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._moved.wait_for(condition, PATIENCE_SECONDS):
            raise StorageError(f"a transaction on the index has been open for {PATIENCE_SECONDS:.0f} s in this process")


def is_in(thread: int, file: str) -> bool:
    """Whether a thread is in the middle of a call into the module `file` now; asking costs such calls nothing."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False
