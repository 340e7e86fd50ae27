"""Following: what others publish is looked at before anything of ours is published, as little of it as can be under the
lock.

Upkeep works for seconds or minutes on what it found out at the beginning, while others commit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from chainstore.observe import Observer
from chainstore.odb.local import LocalDatabase
from chainstore.odb.standing import Standing
from chainstore.odb.turn import Turn
from chainstore.ops.reach import Reach
from chainstore.storage.log import Position

_FEW_LINES = 1  # of the log that may be left to be looked at under the lock: 2 to 4 ms each
_MOST_LOOKS = 20  # before it is taken anyway: others may publish faster than we can follow


class Follower:
    """Somebody at work who keeps up with what is published.

    Attributes:
        standing: what the log says, up to what was looked at.
        complete: whether nothing was left for want of a lock, of space, or of health.
    """

    def __init__(self, db: LocalDatabase, observer: Observer) -> None:
        self._db, self._index = db, db.index_path
        self.standing = Standing(db.log, db.sealer)
        self._reach = Reach(db, self.standing, observer)
        self.complete = True

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        """Publish with everything seen that was published before; little of it is looked at under the lock."""
        for look in range(_MOST_LOOKS):
            self._follow_from_outside()
            with self._db.turn(self._index) as turn:
                if self._is_far_behind(turn.position) and look < _MOST_LOOKS - 1:
                    continue  # others published while we waited: their turn again, until we have seen that
                self._follow(turn.position)
                yield turn
                self.standing.advance(turn.position)  # past our own line: it leads to nothing new
                return

    def _follow_from_outside(self) -> None:
        """Look at what was published meanwhile while others go on, until little is left for under the lock."""
        for _ in range(_MOST_LOOKS):
            position = self._db.position()
            if not self._is_far_behind(position):
                return
            self._follow(position)

    def _is_far_behind(self, position: Position) -> bool:
        return position.seq - self.standing.position.seq > _FEW_LINES

    def _follow(self, position: Position) -> None:
        """Look at what others published up to a line of the log."""
        changes = self.standing.advance(position)
        self.complete &= not changes  # what they left behind is for the next run
        self._reach.follow(changes)
