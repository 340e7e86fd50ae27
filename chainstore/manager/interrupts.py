"""Interrupts: signals that announce the end of a process, and what is still done before it.

The first signal only leaves a note: the next `step` makes a snapshot, waits until it is durable, puts the handler
before ours back and sends the signal again, so that whoever relied on it sees it.  Where no step comes within the
grace period (a loop that is stuck), what was captured is made durable and the signal is sent again from a timer.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from chainstore.errors import InvalidInput

_libc = ctypes.CDLL(None)
_libc.signal.argtypes, _libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


class Interrupts:
    """Watches signals; one at a time for a process.

    Args:
        names: such as "SIGTERM".
        grace_seconds: how long after a signal a `step` is waited for.
        flush: makes durable what was captured, within the seconds it is given.
    """

    def __init__(self, names: Iterable[str], grace_seconds: float, flush: Callable[[float], object]) -> None:
        self._numbers = [_number(name) for name in names]
        self._grace, self._flush = grace_seconds, flush
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self._timer: threading.Timer | None = None
        self._over = False
        self.signalled = 0
        """Number of the signal that came; 0 while none did."""

    def install(self) -> None:
        """Take the handlers over: only on the main thread, and no SIGUSR1 that somebody uses."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._numbers:
            now = signal.getsignal(number)
            if number == signal.SIGUSR1 and now not in (signal.SIG_DFL, signal.SIG_IGN):
                continue
            if now is not None:  # a handler that C installed cannot be put back
                self._before[number] = now
                signal.signal(number, self._handle)

    def uninstall(self) -> None:
        """Put the handlers before ours back, where nobody else took ours over."""
        self._stop_timer()
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number in [number for number in self._before if signal.getsignal(number) == self._handle]:
            signal.signal(number, self._before.pop(number))

    def pass_on(self) -> None:
        """Send the signal that came again, to the handler before ours."""
        number, self.signalled = self.signalled, 0
        self.uninstall()
        os.kill(os.getpid(), number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._over or os.getpid() != self._pid:  # passed on by a later handler; a forked child: not our business
            signal.signal(number, self._before.get(number, signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        if self.signalled:  # whoever asks twice means now
            self._stop_timer()
            self.pass_on()
            return
        self.signalled = number
        self._timer = threading.Timer(self._grace, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self) -> None:
        """No step came: make durable what there is, and let the signal do what it does."""
        try:
            self._flush(self._grace)
        finally:
            number = self.signalled
            if number and self._before.get(number) == signal.SIG_DFL:
                _libc.signal(number, None)  # Python's own `signal` needs the main thread, which may never come back
                os.kill(os.getpid(), number)
            elif number:
                signal.pthread_kill(threading.main_thread().ident or 0, number)  # whose handler the one before ours is

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _number(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise InvalidInput(f"no signal is called {name!r}", hint="such as SIGTERM or SIGUSR1") from None
