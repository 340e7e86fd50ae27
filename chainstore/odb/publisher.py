"""The publisher: one line into the log, its rows into the index, and what a crash left between the two settled.

    append the line and sync it     the commit point: from here on it happened
    put its rows into the index     redone from the log where a process died in between
    acknowledge

Where the disk fails before the index has the line, the line is cut off again; where that fails too, nobody knows,
and the error says so.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from chainstore.errors import ChainError, Damaged, Malformed, StorageError
from chainstore.leases import publish_lock
from chainstore.model.change import Change, PackGrown, decode_changes, encode_changes
from chainstore.model.frame import Line, line_generation
from chainstore.odb.editor import Editor, Lost
from chainstore.odb.growth import read_growth
from chainstore.odb.in_force import IndexInForce
from chainstore.odb.layout import Layout
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.view import View
from chainstore.storage.log import Log, Position
from chainstore.storage.pack import PackDir

_ROOM_PER_RECORD = 1024  # index bytes for an object's rows, small records apart
ROOM = 1 << 20  # index bytes for everything else of one line


class Publisher:
    """Keeps log and index of one repository together.

    Attributes:
        around: clock and name for the lines of the log.
        in_doubt: whether the log may hold a line whose publishing failed.
    """

    def __init__(
        self, layout: Layout, sealer: Sealer, around: Surroundings, log: Log, index: IndexInForce, packs: PackDir
    ) -> None:
        self._layout, self._sealer, self.around = layout, sealer, around
        self._log, self._index, self._packs = log, index, packs
        self.in_doubt = False

    @contextmanager
    def turn(self) -> Iterator[Position]:
        """Hold the publish lock, everything settled; gives the position of log and index."""
        with self._index.lock, publish_lock(self._layout.leases, self.around.who):
            position = self._settle()
            self._sealer.keep_up(self._generation(position))
            yield position

    def attach(self) -> None:
        """Bring log and index together after opening.

        Raises:
            Damaged: the log lacks what was acknowledged, or the index is ahead of it.
        """
        with self._index.lock, publish_lock(self._layout.leases, self.around.who):
            self._index.follow()
            self._log.check(self._index.position())
            self._settle()

    def attach_for_reading(self) -> None:
        """Show in memory what the log has and the index has not, without changing a byte.

        Raises:
            Damaged: as `attach`.
        """
        while not self._laid_over():
            pass

    def publish(
        self,
        position: Position,
        changes: Sequence[Change],
        records: Callable[[PackGrown], list[Placed]],
        lost: Lost | None = None,
    ) -> Position:
        """Append one line and put its rows into the index; return where it stands.  Only within `turn`.

        Args:
            position: of log and index.
            records: gives the records of a `PackGrown` among the changes.
            lost: gives the objects that may lie in the ranges of a `Dead` among them; None: all are looked at.

        Raises:
            StoreFull, StorageError: nothing was published, unless the message says that nobody knows.
        """
        if self._log.is_full(position):
            position = self.start_segment(position)
        time_us = self.around.now_us()
        body = encode_changes(time_us, changes)
        line = self._sealer.seal_line(position.seq + 1, position.hash, body)
        grown = [records(change) for change in changes if isinstance(change, PackGrown)]
        self._index.ensure_room(_room_for(grown) + 2 * len(body))
        try:
            at = self._log.append(line, position)
            with self._index.write() as rows:
                Editor(rows, self._sealer).apply(at, line, time_us, changes, records, lost)
        except BaseException as error:
            if not self._index_holds(line.seq):
                self._undo(position)
                raise
            if not isinstance(error, Exception):
                raise  # Ctrl-C, just after it happened
            # the index has it, so it happened, whatever else went wrong
        return at

    def _generation(self, position: Position) -> int:
        """Return the key generation of the last line: nobody may publish with an older one any more."""
        with self._index.read() as rows:
            return line_generation(View(rows, self._sealer).line(position.seq) or b"")

    def start_segment(self, position: Position) -> Position:
        """Begin a new segment of the log with a checkpoint, and drop those before it.  Only within `turn`."""
        with self._index.read() as rows:
            point = View(rows, self._sealer).checkpoint()
        time_us = self.around.now_us()
        line = self._sealer.seal_line(position.seq + 1, position.hash, encode_changes(time_us, [point]))
        self._index.ensure_room(ROOM + 2 * line.line_bytes)
        try:
            at = self._log.append(line, position, new_segment=True)
            with self._index.write() as rows:
                Editor(rows, self._sealer).apply(at, line, time_us, [point], no_records)
        except BaseException:
            if not self._index_holds(line.seq):
                self._undo(position)
            raise
        self._log.drop_before(at.segment)
        return at

    def _index_holds(self, seq: int) -> bool:
        """Whether the line joined the index.

        Raises:
            StorageError: the index cannot be read: the line is left in the log, and nobody knows.
        """
        try:
            return self._index.position().seq >= seq
        except ChainError as error:
            self.in_doubt = True
            raise _unknown(error) from error

    def _undo(self, position: Position) -> None:
        try:
            self._log.cut(position)
        except ChainError as error:
            self.in_doubt = True
            raise _unknown(error) from error

    # -- settling

    def _settle(self) -> Position:
        """Finish or cut off what a process that died left between log and index."""
        self._index.follow()
        position = self._index.position()
        if not self._log.ends_at(position):
            self._log.check(position)
            self._log.sync(position)  # or the index could come to know a line that a power cut takes from the log
            for at, line in list(self._log.after(position)):
                self._redo(at, line)
                position = at
            self._log.cut(position)
        self._log.drop_before(position.segment)
        self.in_doubt = False
        return position

    def _redo(self, at: Position, line: Line) -> None:
        time_us, changes = decode_changes(self._sealer.open_line(line))
        grown = [change for change in changes if isinstance(change, PackGrown)]
        for change in grown:
            self._packs.sync(change.pack)
        placed = {change.pack: read_growth(self._packs, change) for change in grown}
        self._index.ensure_room(_room_for(placed.values()))
        with self._index.write() as rows:
            Editor(rows, self._sealer).apply(at, line, time_us, changes, lambda change: placed[change.pack])

    def _laid_over(self) -> bool:
        """Apply in memory what the log has and the index has not; False: somebody published meanwhile, look again."""
        with self._index.read() as rows:
            position = View(rows, self._sealer).position()
            try:
                self._log.check(position)
                ahead = [] if self._log.ends_at(position) else list(self._log.after(position))
                self._index.lay_over(rows, ahead, self._packs)
            except Damaged:
                if self._index.position() == position:
                    raise
                return False
        return True


def no_records(growth: PackGrown) -> list[Placed]:
    """Stand for the records of changes among which no pack grows."""
    raise Malformed("log line", f"pack {growth.pack.hex()} grew where none can")


def _room_for(groups: Iterable[list[Placed]]) -> int:
    total = ROOM
    for group in groups:
        for placed in group:
            total += _ROOM_PER_RECORD + (2 * len(placed.inline) if placed.inline is not None else 0)
    return total


def _unknown(error: ChainError) -> StorageError:
    return StorageError(
        f"the disk failed while a commit was published, and again while it was undone ({error}): its outcome is "
        "unknown",
        hint="look at `chain log` before you commit again",
    )
