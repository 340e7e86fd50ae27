"""Holding: the right of one run to let its snapshots go to a branch.

Two runs that took turns on one branch would bury each other.  The right is a lock that the process which writes in
the background shares: it outlives the one that trains for as long as there are snapshots to be made durable, so that
whoever comes next waits for them.
"""

import os
from types import TracebackType
from typing import Self

from chainstore import config
from chainstore.errors import ReadOnly
from chainstore.leases import branch_lock, leave_last_words
from chainstore.refs import branch_ref
from chainstore.repository.handles import Handle
from chainstore.storage import fs

_ENDED = "; ended "


class BranchHold:
    """A branch that is held; see `Repository.hold_branch`.

    Attributes:
        branch: its name.
        before: who held it before, since when, and what `say_ended` said last; "" where nobody did.
    """

    def __init__(self, branch: str, file: fs.File, who: str, before: str) -> None:
        self.branch, self.before, self._who = branch, before, who
        self._file, self._pid = file, os.getpid()
        self._shared = False

    def __enter__(self) -> Self:
        """Return the hold itself; it is given back when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor of the lock, to be sent to a process that holds the branch, too, until it ends.

        Raises:
            ForkedHandle: a forked child asks.  StorageError: the hold was given back.
        """
        fd = self._file.fileno()
        self._shared = True
        return fd

    def say_ended(self, how: str) -> None:
        """Leave word of how the run ended, such as "well", for whoever holds the branch next; "" takes it back.

        Nothing promises that it is found: whoever is killed leaves none, and it goes with the power.
        """
        if os.getpid() == self._pid:
            leave_last_words(self._file, f"{self._who}{_ENDED}{how}" if how else self._who)

    def close(self) -> None:
        """Give it back, for this process; again is fine, and does nothing in a forked child."""
        if os.getpid() == self._pid:
            self._file.close(unlock=not self._shared)


def hold(handle: Handle, branch: str, wait_seconds: float) -> BranchHold:
    """Hold a branch; see `Repository.hold_branch`."""
    db, full = handle.db, branch_ref(branch)
    if db.readonly:
        raise ReadOnly(f"{handle.settings.root} was opened for reading", hint="open it without readonly=True")
    since = f"{config.now():%Y-%m-%d %H:%M:%S} UTC"
    key, what = db.sealer.ref_key(full), f"branch {branch!r}"
    who = db.around.who
    file, before = branch_lock(db.layout.leases, key, what, who, since, wait_seconds=wait_seconds)
    return BranchHold(branch, file, f"{who}, since {since}", before)


def how_ended(before: str) -> str | None:
    """Return what `say_ended` said in `BranchHold.before`; None where it said nothing, as when it was killed."""
    _, said, how = before.rpartition(_ENDED)
    return how if said else None
