"""Reading: names and bytes of one commit from the store, every one verified.

Damage is found deep below, where only an object's id is known.  Here it gets its place: the path, the commit, and the
nearest ancestor where other bytes stand at that path and read well, which is what somebody who has lost a tensor asks
for next.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from chainstore.errors import Damaged, IdMismatch, InvalidInput
from chainstore.ids import ObjectId
from chainstore.leases import reader_lease
from chainstore.model.commit import Commit
from chainstore.model.paths import Path, parse_path
from chainstore.model.tree import Entry, Root, read_tree
from chainstore.observe import Observer
from chainstore.odb.forgotten import forgotten, gone
from chainstore.odb.local import LocalDatabase
from chainstore.ops.checkout import fill
from chainstore.ops.forget import nearest_kept
from chainstore.ops.history import first_parents
from chainstore.state.leaf import Destination


@dataclass(frozen=True, slots=True)
class Reading:
    """How snapshots read: the store, and what a read may use."""

    db: Callable[[], LocalDatabase]
    threads: int
    max_memory_bytes: int
    observer: Observer

    @contextmanager
    def held(self, commit: Commit) -> Iterator[None]:
        """Keep gc from taking the snapshot of a commit while it is read: nothing that was begun ends half-way.

        Raises:
            SnapshotForgotten: gc was there before us.
        """
        db = self.db()
        with reader_lease(db.layout.leases, lambda: db.around.random(16).hex(), [(commit.id, commit.tree)]):
            _check_there(db, commit)
            yield

    def entries(self, commit: Commit, which: str) -> list[Entry]:
        """Return the entries of a commit's state ("state") or of the files beside it ("files").

        Raises:
            SnapshotForgotten: the commit is there, its snapshot was dropped; says when and by which policy.
            IdMismatch: its trees are damaged; names the nearest ancestor whose trees are not.
        """
        db = self.db()
        with db.view() as view:
            mark = view.mark(commit.id)
        if mark is not None:
            raise forgotten(mark, nearest_kept(db, commit) if mark.swept else "")
        try:
            return _read_names(db, commit, which)
        except IdMismatch as error:
            _check_not_swept(db, commit)
            ancestor = self._good_ancestor(commit, None, which)
            raise _placed(error, f"the names in {commit.short}", commit, ancestor) from error

    def fill(self, commit: Commit, destinations: Sequence[Destination], which: str = "state") -> int:
        """Fill destinations with bytes of a commit, and return how many raw bytes had to be read for that.

        Raises:
            IdMismatch: a chunk is damaged; names path, commit and the nearest ancestor with other bytes there.
        """
        try:
            return fill(
                self.db(),
                destinations,
                threads=self.threads,
                max_memory_bytes=self.max_memory_bytes,
                observer=self.observer,
            )
        except IdMismatch as error:
            _check_not_swept(self.db(), commit)
            path = error.path or ""
            raise _placed(error, path, commit, self._good_ancestor(commit, path, which)) from error

    def _good_ancestor(self, start: Commit, path: str | None, which: str) -> ObjectId | None:
        """Return the nearest ancestor whose bytes at `path` read well; None asks for its names alone."""
        db = self.db()
        try:
            keys = parse_path(path) if path is not None else None
            for commit in first_parents(db, start.id):
                if commit.id != start.id and _reads_well(db, commit, keys, which):
                    return commit.id
        except (Damaged, InvalidInput):
            return None  # the chain below is damaged too
        return None


def _check_not_swept(db: LocalDatabase, commit: Commit) -> None:
    with db.view() as view:
        mark = view.mark(commit.id)
    if mark is not None and mark.swept:
        raise forgotten(mark, nearest_kept(db, commit))


def _check_there(db: LocalDatabase, commit: Commit) -> None:
    """Refuse to begin with a snapshot that gc has begun to take; one that a lease holds before that is left whole."""
    _check_not_swept(db, commit)
    with db.view() as view:
        if view.place(commit.id) is None:
            raise gone(commit.id)


def _read_names(db: LocalDatabase, commit: Commit, which: str, under: Path = ()) -> list[Entry]:
    def load(id: ObjectId) -> bytes:
        return bytes(db.read(id))

    root = Root.from_bytes(load(commit.tree))
    tree = root.files if which == "files" else root.state
    return list(read_tree(tree, load, under)) if tree is not None else []


def _reads_well(db: LocalDatabase, commit: Commit, keys: Path | None, which: str) -> bool:
    try:
        entries = _read_names(db, commit, which, keys or ())
        if keys is None:
            return bool(entries)
        for entry in entries:
            if entry.path == keys:
                for extent in entry.extents:
                    db.read(extent.chunk)
                return True
    except Damaged:
        return False
    return False


def _placed(error: IdMismatch, path: str, commit: Commit, ancestor: ObjectId | None) -> IdMismatch:
    nearest = str(ancestor) if ancestor else None
    return IdMismatch(error.id, error.why, path=path, commit=str(commit.id), ancestor=nearest, base=error.base)
