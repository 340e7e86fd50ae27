"""The pack hold: packs that this process may append to, its flock on each.

A batch takes one when it needs room and gives it back when it is done; one that another process left is taken over
before a new one is made, so that a run that is started a hundred times does not leave a hundred packs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from chainstore.odb.batch import LocalBatch
from chainstore.odb.publisher import Publisher
from chainstore.odb.view import View
from chainstore.storage import fs
from chainstore.storage.pack import PackDir, PackWriter, is_crowded

_TAKE_OVER_TRIES = 8


class PackHold:
    """Hands packs out to batches; the caller holds the database's lock where it says so.

    Args:
        view: gives verified look-ups in the index.
        random: n -> n random bytes, for names of packs.
    """

    def __init__(
        self,
        packs: PackDir,
        publisher: Publisher,
        view: Callable[[], AbstractContextManager[View]],
        random: Callable[[int], bytes],
    ) -> None:
        self._packs, self._publisher, self._view, self._random = packs, publisher, view, random
        self._idle: list[PackWriter] = []

    def take(self) -> PackWriter:
        """Return a pack to append to: one that this process used before, one that rests, or a new one."""
        with self._publisher.turn(), self._view() as view:
            while self._idle:
                idle = self._idle.pop()
                writer = self._resume(view, idle.name, idle.file) if self._relock(idle) else None
                if writer is not None:
                    return writer
                idle.close()  # somebody else has it now, or it is full
            for name in _resting(view):
                file = self._packs.take_over(name)
                writer = self._resume(view, name, file) if file is not None else None
                if writer is not None:
                    return writer
            return self._packs.create(self._random(16))

    def take_back(self, batch: LocalBatch) -> None:
        """Take back the packs of a batch, published or not, for the next one; the caller holds the lock."""
        for pack in batch.packs:
            if pack.crowded or not pack.file.trusted:
                pack.close()
            else:
                pack.rest()
                self._idle.append(pack)
        batch.forget_packs()

    def close(self) -> None:
        """Let all packs go; again is fine."""
        for pack in self._idle:
            pack.close()
        self._idle.clear()

    def _relock(self, idle: PackWriter) -> bool:
        return idle.file.flock(exclusive=True) and idle.file.is_at(self._packs.path(idle.name))

    def _resume(self, view: View, name: bytes, file: fs.File) -> PackWriter | None:
        number = view.pack_number(name)
        line = view.pack(number) if number is not None else None
        if line is not None and (line.contents or line.retired or is_crowded(line.length)):
            file.close()
            return None
        return self._packs.resume(name, file, line.length if line is not None else 0)


def _resting(view: View) -> list[bytes]:
    """Return the names of the newest packs that may be taken over."""
    open_ones = [
        line.pack for _, line in view.packs() if not (line.contents or line.retired or is_crowded(line.length))
    ]
    return open_ones[: -_TAKE_OVER_TRIES - 1 : -1]
