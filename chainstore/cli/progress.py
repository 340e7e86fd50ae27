"""Progress: one line on a terminal that says how far a long operation is.

commit  1.2 GB of 4.8 GB  25%  410 MB/s  9 s left  310 MB new
"""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from chainstore.cli.wording import duration, size
from chainstore.observe import Progress

DELAY_SECONDS = 0.5  # what is faster is not worth a line
EVERY_SECONDS = 0.1
_ERASE = "\r\x1b[K"
_COUNTED = {
    "verify names": "commits",
    "verify copy": "objects",
    "gc mark": "commits",
    "repack": "commits",
}  # verbs whose progress is in things, not in bytes


class ProgressLine:
    """Draws the last thing that was told of the work under way; not for several threads at once.

    Args:
        stream: a terminal.
        clock: seconds, ever growing.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._verb = ""
        self._started = self._drawn_at = 0.0
        self._first = 0
        self._shown = False

    def update(self, event: Progress) -> None:
        """Take note of how far the work is, and draw it if it is time."""
        now = self._clock()
        if event.verb != self._verb or event.done < self._first:
            self._verb, self._started, self._first = event.verb, now, event.done
        if now - self._started >= DELAY_SECONDS and now - self._drawn_at >= EVERY_SECONDS:
            self._drawn_at, self._shown = now, True
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_ERASE + describe(event, now - self._started)[:width])
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._shown:
            self._shown = False
            self._stream.write(_ERASE)
            self._stream.flush()


def describe(event: Progress, seconds: float) -> str:
    """Return one line about work that has been going on for `seconds`."""
    if event.verb in _COUNTED:
        share = f" of {event.total:,}" if event.total else ""
        return f"{event.verb}  {event.done:,}{share} {_COUNTED[event.verb]}{_left(event, seconds)}"
    share = f" of {size(event.total)}  {event.done / event.total:.0%}" if event.total else ""
    rate = f"  {size(event.done / seconds)}/s" if seconds > 0 else ""
    news = f"  {size(event.new)} new" if event.new else "  nothing new" if event.reused else ""
    return f"{event.verb}  {size(event.done)}{share}{rate}{_left(event, seconds)}{news}"


def _left(event: Progress, seconds: float) -> str:
    if not event.done or not event.total or event.done >= event.total:
        return ""
    return f"  {duration((event.total - event.done) * seconds / event.done)} left"
