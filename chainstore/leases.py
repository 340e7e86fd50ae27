"""Leases: who may publish now, and who is at work.

Every lease is a `flock`: it ends with the process that holds it, so there is nothing to unlock after a crash.  What
is written into the file is for people; it decides nothing, because two containers that share a volume do not share
process numbers.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chainstore.errors import Locked, RepositoryNotFound, StorageError
from chainstore.storage import fs

WAIT_SECONDS = 60.0
_POLL_SECONDS = (0.0005, 0.02)  # first and longest pause between two tries
_NOTE_BYTES = 200


@contextmanager
def publish_lock(
    directory: Path,
    who: str,
    *,
    wait_seconds: float = WAIT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Hold the right to change the log and the index.

    Args:
        directory: the repository's `leases/`.
        who: host and pid, shown to whoever waits.
        wait_seconds: how long to poll before giving up.

    Yields:
        Whether the one who held it before us ended without giving it back.

    Raises:
        Locked: somebody else held it all the time.
        RepositoryNotFound: the directory is gone.
    """
    with _opened(directory) as file:
        _wait(file, who, wait_seconds, clock, sleep)
        unclean = bool(file.pread(0, _NOTE_BYTES).strip(b"\0 \n"))
        _leave_note(file, who)
        try:
            yield unclean
        finally:
            _leave_note(file, "")
            file.unlock()


def _leave_note(file: fs.File, text: str) -> None:
    """Say who holds the lease, if the disk takes it: what was published does not fail for want of a note."""
    with suppress(StorageError):
        file.pwrite(0, text.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES))


def _opened(directory: Path) -> fs.File:
    try:
        return fs.open_file(directory / "publish", write=True, create=True)
    except FileNotFoundError:
        raise RepositoryNotFound(str(directory.parent)) from None


def _wait(
    file: fs.File, who: str, wait_seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    started = clock()
    pause = _POLL_SECONDS[0]
    while not file.flock(exclusive=True):
        if clock() - started >= wait_seconds:
            holder = file.pread(0, _NOTE_BYTES).strip(b"\0 \n").decode(errors="replace")
            raise Locked("the right to publish", holder or "another process", clock() - started)
        sleep(pause)
        pause = min(pause * 1.5, _POLL_SECONDS[1])
