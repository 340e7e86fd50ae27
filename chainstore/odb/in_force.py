"""The index in force: the one that the owner file names, followed when a rebuild puts another in its place.

What the log knows and this index does not is laid over it for readers that may not settle (`overlay`).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from chainstore.errors import Damaged, IndexElsewhere
from chainstore.model.frame import Line
from chainstore.odb.growth import read_growth
from chainstore.odb.identity import check_repository
from chainstore.odb.layout import Layout, Owner
from chainstore.odb.overlay import Overlay
from chainstore.odb.private import PrivateIndex
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Rows
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.take_over import is_elsewhere
from chainstore.odb.view import View
from chainstore.storage.index import Index, Reader, Writer
from chainstore.storage.log import Log, Position
from chainstore.storage.pack import PackDir


class IndexInForce:
    """Stands for one `Index` after the other; any thread may read, who publishes holds `lock` and writes.

    Args:
        private: what `index` is, where it is not the one in force.

    Attributes:
        lock: held while another index is put in this one's place, and while publishing.
    """

    def __init__(
        self,
        layout: Layout,
        sealer: Sealer,
        index: Index,
        owner: Owner,
        lock: threading.RLock,
        around: Surroundings,
        private: PrivateIndex | None = None,
    ) -> None:
        self.lock = lock
        self._layout, self._sealer, self._around = layout, sealer, around
        self._private = private
        self._log = Log(layout.log)
        self._index, self._owner = index, owner
        self._left: list[Index] = []
        self._overlay: Overlay | None = None
        self._refs_checked_at = b""
        self._stamp: object = None

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._index.path

    @property
    def private(self) -> bool:
        """Whether the index in force is elsewhere, and this is one that only readers here use."""
        return self._private is not None

    @property
    def host(self) -> str:
        """The machine whose index is in force, by the name it gave itself; "" where nothing says so."""
        try:
            return self._layout.read_owner().host
        except Damaged:
            return ""

    def read(self) -> Reader:
        """Return a transaction to read in, of what the index itself holds."""
        return self._index.read()

    def write(self) -> Writer:
        """Return a transaction to write in; the caller holds the publish lock."""
        return self._index.write()

    def ensure_room(self, nbytes: int) -> None:
        """See `Index.ensure_room`."""
        self._index.ensure_room(nbytes)

    def drop_dead_readers(self) -> int:
        """See `Index.drop_dead_readers`."""
        return self._index.drop_dead_readers()

    def seen(self, rows: Rows) -> Rows:
        """Return `rows` of a transaction with what only the log knows in front."""
        overlay = self._overlay  # another thread may drop it
        if overlay is None:
            return rows
        if View(rows, self._sealer).position().seq >= overlay.seq:
            self._overlay = None
            return rows
        return overlay.over(rows)

    @contextmanager
    def view(self) -> Iterator[View]:
        """Give typed look-ups, the table of refs verified.

        Raises:
            Damaged: the table of refs is not whole.
        """
        with self.read() as rows:
            view = View(self.seen(rows), self._sealer)
            position = view.position()
            if position.hash != self._refs_checked_at:
                view.check_refs()
                self._refs_checked_at = position.hash
            yield view

    def position(self) -> Position:
        """Return the last line of the log that the index itself knows."""
        with self.read() as rows:
            return View(rows, self._sealer).position()

    def lay_over(self, rows: Rows, ahead: Sequence[tuple[Position, Line]], packs: PackDir) -> None:
        """Show readers lines of the log that come after what `rows` know."""
        records = partial(read_growth, packs)
        self._overlay = Overlay.of(rows, self._sealer, ahead, records) if ahead else None

    def catch_up(self) -> bool:
        """Go over to the index in force where the owner file was written since the last look; cheap where not.

        A private one is brought up to the end of the log.  Returns whether anything changed.
        """
        private = self._private
        stamp = self._log.stamp() if private is not None else self._layout.owner_stamp()
        if stamp is not None and stamp == self._stamp:
            return False
        with self.lock:
            if private is not None:
                self._keep_up(private)
            else:
                self.follow()
        self._stamp = stamp
        return True

    def follow(self) -> None:
        """Go over to the index that is in force, if it is another than ours; the caller holds `lock`.

        Raises:
            IndexElsewhere: another machine took over; whoever only reads goes over to a private index instead.
            WrongRepository: it belongs to another repository.
        """
        if self._private is not None:
            return
        owner = self._layout.read_owner()
        if owner.uuid == self._owner.uuid:
            return
        if is_elsewhere(self._layout, owner):
            if not self._index.readonly:
                since = self._layout.owned_since()
                raise IndexElsewhere(str(self._layout.root), owner.host, since, taken_over=True)
            private = PrivateIndex(self._layout, self._sealer, self._around)
            self._keep_up(private)
            self._private = private
            return
        index = Index.open(self._layout.index(owner.uuid), readonly=self._index.readonly)
        try:
            check_repository(index, self._layout, self._sealer)
        except BaseException:
            index.close()
            raise
        self._go_over(index, owner)

    def _keep_up(self, private: PrivateIndex) -> None:
        index, owner = private.open()
        if owner.uuid == self._owner.uuid:
            index.close()  # one of two handles
        else:
            self._go_over(index, owner)

    def _go_over(self, index: Index, owner: Owner) -> None:
        self._left.append(self._index)  # other threads may be reading it
        self._index, self._owner, self._overlay, self._refs_checked_at = index, owner, None, b""

    def close(self) -> None:
        """Give up this index and those before it; again is fine."""
        for index in (*self._left, self._index):
            index.close()
        self._left.clear()
