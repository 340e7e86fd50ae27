"""The index in force: the one that the owner file names, followed when a rebuild puts another in its place.

What the log knows and this index does not is laid over it for readers that may not settle (`overlay`).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from chainstore.errors import WrongRepository
from chainstore.model.frame import Line
from chainstore.odb.growth import read_growth
from chainstore.odb.layout import Layout, Owner
from chainstore.odb.overlay import Overlay
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Rows
from chainstore.odb.view import View
from chainstore.storage.index import Index, Reader, Writer
from chainstore.storage.log import Position
from chainstore.storage.pack import PackDir


class IndexInForce:
    """Stands for one `Index` after the other; any thread may read, who publishes holds `lock` and writes.

    Attributes:
        lock: held while another index is put in this one's place, and while publishing.
    """

    def __init__(self, layout: Layout, sealer: Sealer, index: Index, owner: Owner, lock: threading.RLock) -> None:
        self.lock = lock
        self._layout, self._sealer = layout, sealer
        self._index, self._owner = index, owner
        self._left: list[Index] = []
        self._overlay: Overlay | None = None
        self._refs_checked_at = b""
        self._stamp: object = None

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._layout.index(self._owner.uuid)

    def read(self) -> Reader:
        """Return a transaction to read in, of what the index itself holds."""
        return self._index.read()

    def write(self) -> Writer:
        """Return a transaction to write in; the caller holds the publish lock."""
        return self._index.write()

    def ensure_room(self, nbytes: int) -> None:
        """See `Index.ensure_room`."""
        self._index.ensure_room(nbytes)

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

    def catch_up(self) -> None:
        """Go over to the index in force where the owner file was written since the last look; cheap where not."""
        stamp = self._layout.owner_stamp()
        if stamp != self._stamp:
            with self.lock:
                self.follow()
            self._stamp = stamp

    def follow(self) -> None:
        """Go over to the index that is in force, if it is another than ours; the caller holds `lock`.

        Raises:
            WrongRepository: it belongs to another repository.
        """
        owner = self._layout.read_owner()
        if owner.uuid == self._owner.uuid:
            return
        index = Index.open(self._layout.index(owner.uuid), readonly=self._index.readonly)
        try:
            check_repository(index, self._layout, self._sealer)
        except BaseException:
            index.close()
            raise
        self._left.append(self._index)  # other threads may be reading it
        self._index, self._owner, self._overlay, self._refs_checked_at = index, owner, None, b""

    def close(self) -> None:
        """Give up this index and those before it; again is fine."""
        for index in (*self._left, self._index):
            index.close()
        self._left.clear()


def check_repository(index: Index | IndexInForce, layout: Layout, sealer: Sealer) -> tuple[bytes, int]:
    """Return what an index says of (hash of the format file, keyring number), if it belongs to this repository.

    Raises:
        WrongRepository: it belongs to another.
    """
    with index.read() as rows:
        repo_id, format_hash, keyring = View(rows, sealer).identity()
    if repo_id != sealer.repo_id:
        raise WrongRepository(
            f"the index in {layout.root} belongs to repository {repo_id.hex()}, not {sealer.repo_id.hex()}",
            hint="put the right index back, or make one with `chain rebuild-index`",
        )
    return format_hash, keyring
