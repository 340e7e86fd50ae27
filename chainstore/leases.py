"""Leases: who may publish now, who collects, who reads, whose snapshots a branch gets.

Every lease is a `flock`: it ends with the process that holds it, so there is nothing to unlock after a crash.  What
is written into the file is for people; it decides nothing, because two containers that share a volume do not share
process numbers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chainstore.errors import Locked, ReadOnly, RepositoryNotFound, StorageError
from chainstore.ids import ID_BYTES, ObjectId
from chainstore.storage import fs

WAIT_SECONDS = 60.0
_POLL_SECONDS = (0.0005, 0.004, 0.02)  # pause between two tries: the first, the longest at first, the longest later
_AT_FIRST_SECONDS = 1.0  # who just came asks more often, so with 0.02 s whoever waits waits on: p99 110 ms, not 75
_NOTE_BYTES = 200
_READER = ".reader"
_BRANCH, _KEY_BYTES = ".branch", 8
_LEASE_POLLS = 250  # of 20 ms, while a reader writes down what it reads


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
    with _opened(directory, "publish") as file:
        _wait(file, "the right to publish", wait_seconds, clock, sleep)
        unclean = bool(file.pread(0, _NOTE_BYTES).strip(b"\0 \n"))
        _leave_note(file, who)
        try:
            yield unclean
        finally:
            _leave_note(file, "")
            file.unlock()


@contextmanager
def collector_lock(directory: Path, who: str, since: str) -> Iterator[None]:
    """Be the only one who collects garbage.

    Args:
        who, since: shown to whoever comes meanwhile.

    Raises:
        Locked: somebody else collects; says who, where, and since when.
    """
    with _opened(directory, "gc") as file:
        if not file.flock(exclusive=True):
            raise Locked("garbage collection", _holder(file), 0.0)
        _leave_note(file, f"{who}, since {since}")
        try:
            yield
        finally:
            _leave_note(file, "")
            file.unlock()


def branch_lock(
    directory: Path,
    key: bytes,
    what: str,
    who: str,
    since: str,
    *,
    wait_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[fs.File, str]:
    """Return a file whose lock makes its holder the only one that lets snapshots of a run go to a branch.

    Plain commits ask nobody.  The file stays when the lock ends: that is with the last process that has its descriptor.
    With it comes what the holder before left in it, "" where there was none.

    Args:
        key: what the branch is kept under; shows no name.
        what: the branch, as the error calls it.
        who, since: shown to whoever comes meanwhile.
        wait_seconds: how long to poll before giving up.

    Raises:
        Locked: somebody else held it all the time; says who, where, and since when.
        RepositoryNotFound: the directory is gone.  ReadOnly: nothing can be written there.
    """
    file = _opened(directory, f"{key[:_KEY_BYTES].hex()}{_BRANCH}")
    try:
        _wait(file, what, wait_seconds, clock, sleep)
        before = _note(file)
        _leave_note(file, f"{who}, since {since}")
    except BaseException:
        file.close()
        raise
    return file, before


def leave_last_words(file: fs.File, text: str) -> None:
    """Say in a file of `branch_lock` how its holder ended, for whoever comes next."""
    with suppress(ReadOnly):
        _leave_note(file, text)


@contextmanager
def reader_lease(
    directory: Path, name: Callable[[], str], snapshots: Sequence[tuple[ObjectId, ObjectId]]
) -> Iterator[bool]:
    """Keep gc from taking snapshots inside the block.

    Whether their commits were still there has to be looked at inside, in a fresh transaction.

    Args:
        name: gives hex digits that nobody else uses.
        snapshots: commits and their trees: gc may have taken the commit itself when it finds out.

    Yields:
        Whether the lease could be taken: not where the repository cannot be written to.
    """
    try:
        file = _leased(directory, name, b"".join(commit + tree for commit, tree in snapshots))
    except (FileNotFoundError, StorageError, ReadOnly):
        yield False
        return
    with file:
        try:
            yield True
        finally:
            with suppress(StorageError, ReadOnly):  # gc removes what is left
                fs.unlink(file.path, missing_ok=True)


def _leased(directory: Path, name: Callable[[], str], text: bytes) -> fs.File:
    """Return a new lease; gc may remove one that is not locked yet, then it is made again."""
    while True:
        file = fs.open_file(directory / f"{name()}{_READER}", create=True, new=True)
        try:
            if file.flock(exclusive=True):
                file.pwrite(0, text)
                if file.is_at(file.path):
                    return file
        except BaseException:
            file.close()
            with suppress(StorageError, ReadOnly):
                fs.unlink(file.path, missing_ok=True)
            raise
        file.close()


def leased_snapshots(directory: Path, *, sleep: Callable[[float], None] = time.sleep) -> dict[ObjectId, ObjectId]:
    """Return commit -> tree of what readers at work hold; leases that the dead left are removed.

    Raises:
        Locked: a reader stopped just when it took its lease, so that nobody knows what it reads.
    """
    found: dict[ObjectId, ObjectId] = {}
    for name in fs.list_dir(directory):
        if name.endswith(_READER):
            found |= _held_by(directory / name, sleep)
    return found


def _held_by(path: Path, sleep: Callable[[float], None]) -> dict[ObjectId, ObjectId]:
    for _ in range(_LEASE_POLLS):
        try:
            with fs.open_file(path, write=True) as file:
                if file.flock(exclusive=True):
                    if file.is_at(path):
                        fs.unlink(path, missing_ok=True)
                    return {}
                data = file.pread(0, file.size())
        except FileNotFoundError:
            return {}
        if data and len(data) % (2 * ID_BYTES) == 0:
            ids = [ObjectId(data[at : at + ID_BYTES]) for at in range(0, len(data), ID_BYTES)]
            return dict(zip(ids[::2], ids[1::2], strict=True))
        sleep(_POLL_SECONDS[-1])
    raise Locked("what a reader is about to read", f"the reader of {path.name}", _LEASE_POLLS * _POLL_SECONDS[-1])


def _leave_note(file: fs.File, text: str) -> None:
    """Say who holds the lease, if the disk takes it: what was published does not fail for want of a note."""
    with suppress(StorageError):
        file.pwrite(0, text.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES))


def _holder(file: fs.File) -> str:
    return _note(file) or "another process"


def _note(file: fs.File) -> str:
    return file.pread(0, _NOTE_BYTES).strip(b"\0 \n").decode(errors="replace")


def _opened(directory: Path, name: str) -> fs.File:
    try:
        return fs.open_file(directory / name, write=True, create=True)
    except FileNotFoundError:
        raise RepositoryNotFound(str(directory.parent)) from None


def _wait(
    file: fs.File, what: str, wait_seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    started = clock()
    pause = _POLL_SECONDS[0]
    while not file.flock(exclusive=True):
        waited = clock() - started
        if waited >= wait_seconds:
            raise Locked(what, _holder(file), waited)
        sleep(pause)
        pause = min(pause * 1.5, _POLL_SECONDS[1 if waited < _AT_FIRST_SECONDS else -1])
