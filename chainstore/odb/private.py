"""Private: an index that only readers of this machine use, where the one in force is out of their reach.

It is made from the log and the packs like any other, but never put in force: the repository is not touched.  It lies
on a local disk with an owner file of its own, stays there, and catches up with the log at every look.
"""

from pathlib import Path

from chainstore.errors import ChainError, Damaged, Denied, StorageError
from chainstore.leases import publish_lock
from chainstore.odb.identity import check_repository
from chainstore.odb.layout import Format, Layout, Owner
from chainstore.odb.places import place_private, tell
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.replay import build_index, extend_index
from chainstore.odb.surroundings import Surroundings
from chainstore.odb.take_over import drop_other_indexes, tell_problems
from chainstore.storage import fs
from chainstore.storage.index import Index

_PATIENCE_SECONDS = 600.0  # while another reader of this machine makes it


class PrivateIndex:
    """The index of this machine's readers of one repository.

    Attributes:
        layout: says where it is, and which one is in use.
    """

    def __init__(self, layout: Layout, sealer: Sealer, around: Surroundings) -> None:
        self.layout = place_private(layout, sealer.repo_id)
        self._sealer, self._around = sealer, around

    def open(self) -> tuple[Index, Owner]:
        """Return the index, brought up to the end of the log; made where there is none that fits.

        Raises:
            Damaged: the log cannot be read.
            UnsuitablePlace: there is no local disk for it.
        """
        root = self.layout.index_root
        fs.make_dirs(root, 0o700)
        with publish_lock(root, self._around.who, wait_seconds=_PATIENCE_SECONDS) as unclean:
            format = self.layout.read_format()
            return self._usable(format, unclean) or self._made(format)

    def _usable(self, format: Format, unclean: bool) -> tuple[Index, Owner] | None:
        """Return the index that is there, or None where it is not what it was or does not fit the log."""
        try:
            owner = self.layout.read_owner()
            path = self.layout.index(owner.uuid)
            moved = _inode(path) != owner.inode
            if (unclean or moved) and Index.verify_file(path):
                return None
            index = Index.open(path)
        except (Damaged, StorageError):
            return None
        try:
            if check_repository(index, self.layout, self._sealer)[0] == format.hash:
                extend_index(self.layout, self._sealer, index)
                return index, owner
        except (Damaged, Denied, StorageError):
            pass  # keys that sealed it may be gone; it is made anew, and what hinders that is told then
        except BaseException:
            index.close()
            raise
        index.close()
        return None

    def _made(self, format: Format) -> tuple[Index, Owner]:
        before = self._before()
        report = RebuildReport()
        observer = self._around.observer
        owner = build_index(self.layout, format, self._sealer, self._around, report, observer, old=False)
        self.layout.write_owner(owner)
        drop_other_indexes(self.layout, before, owner.uuid)
        tell(self._around, self.layout, f"the index in force of {self.layout.root} is not on this machine")
        tell_problems(observer, report)
        return Index.open(self.layout.index(owner.uuid)), owner

    def _before(self) -> str | None:
        try:
            return self.layout.read_owner().uuid
        except ChainError:
            return None


def _inode(path: Path) -> int:
    try:
        return fs.inode_of(path / "data.mdb")[1]
    except FileNotFoundError:
        raise Damaged(f"there is no index at {path}") from None
