"""Repack: bases and codecs of all history chosen anew, with the effort for which a commit has no time.

Snapshots are gone through from the oldest on, and each chunk is coded as a difference to the one in its place in the
snapshot before, by the rules of `ops.deltas`, or whole.  What is smaller than what is there takes its place, batch by
batch: whatever was done when it ends stays done, and the next run finds nothing to gain there.

What branches are at is left as deep as it is: whoever commits meanwhile builds on it, and would have to begin anew.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from chainstore.display import count, size, table
from chainstore.ids import ObjectId
from chainstore.leases import collector_lock
from chainstore.model.change import Checkpoint, PackGrown
from chainstore.model.commit import Commit
from chainstore.model.manifest import Manifest
from chainstore.model.spec import Spec
from chainstore.model.tree import Root, read_tree
from chainstore.observe import Observer, Progress
from chainstore.odb.growth import read_growth
from chainstore.odb.local import LocalDatabase
from chainstore.ops.following import Follower
from chainstore.ops.garbage import PackContent
from chainstore.ops.history import ancestors, read_commit
from chainstore.ops.moving import Target
from chainstore.ops.recoding import LINE_BYTES, Recoder
from chainstore.refs import HEADS
from chainstore.storage.log import Position

_GAIN_SHIFT: Final = 7  # 1/128 of a record: what gains less is left as it is
_SMALL_BYTES: Final = 512  # a record of this length is hardly more than its header
_MOST_PLANNED: Final = 1000
_MANIFESTS: Final = 4  # of snapshots before, which are wanted again where branches part


@dataclass(slots=True)
class RepackReport:
    """What choosing anew did, or would do (`dry_run`).

    Attributes:
        commits: how many snapshots were gone through.
        chunks: how many chunks they hold.
        recoded: how many of these were coded anew.
        before_bytes, after_bytes: of the records of all these chunks.
        freed_bytes: by which the files became smaller on disk, as the file system counts, garbage included.
        left: sentences about what was not looked at or not replaced, and why.
    """

    dry_run: bool = False
    commits: int = 0
    chunks: int = 0
    recoded: int = 0
    before_bytes: int = 0
    after_bytes: int = 0
    freed_bytes: int = 0
    left: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        would = "would become" if self.dry_run else "are now"
        return f"<RepackReport {size(self.before_bytes)} {would} {size(self.after_bytes)}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [("chunks", count(self.chunks, "chunk")), ("coded anew", f"{self.recoded:,}")]
        rows += [("before", size(self.before_bytes)), ("after", size(self.after_bytes))]
        return table("repack" + (" (dry run)" if self.dry_run else ""), rows)


def repack(db: LocalDatabase, report: RepackReport, since: str, observer: Observer) -> None:
    """Choose bases and codecs anew for every snapshot that is not forgotten; fills in `report`.

    What it replaces lies about until the next collection.  The caller has just collected garbage.

    Args:
        since: the time now, for whoever finds us at work.

    Raises:
        Locked: a collection is at work; says who and since when.
        Damaged: a commit or a page of names cannot be read.
        StoreFull: what was done by then stays done.
        RebuiltMeanwhile: likewise.
    """
    with ExitStack() as held:
        if not report.dry_run:
            held.enter_context(collector_lock(db.layout.leases, db.around.who, since))
        _Repacking(db, report, observer).run()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk that was not met before, the one in its place before it, and its items where the chunk is all theirs."""

    id: ObjectId
    near: ObjectId | None
    spec: Spec | None


class _Repacking(Follower):
    """One walk through all snapshots."""

    def __init__(self, db: LocalDatabase, report: RepackReport, observer: Observer) -> None:
        super().__init__(db, observer)
        self._report, self._observer = report, observer
        self._seen: set[ObjectId] = set()
        self._bases: set[bytes] = set()
        self._manifests: dict[ObjectId, Manifest] = {}
        self._target = Target(db, self._turn)

    def run(self) -> None:
        self.standing.advance(self._db.position())
        self._find_bases()
        is_base = self._is_base if self._may_deepen() else None
        recoder = Recoder(self._db, self._turn, self._target, is_base)
        report = self._report
        try:
            commits = self._commits()
            for number, (commit, before) in enumerate(commits):
                for chunk in self._chunks(commit, before):
                    self._look_at(recoder, chunk)
                report.commits += 1
                self._observer(Progress("repack", number + 1, len(commits)))
            if not report.dry_run:
                self._publish(recoder)
        finally:
            recoder.close()
            self._target.close()
            report.freed_bytes -= self._target.taken_bytes
            report.left += recoder.done.problems
            saved = recoder.done.saved_bytes - sum(each.grown_bytes for each in recoder.planned.values())
            report.recoded = recoder.done.chunks + len(recoder.planned)
            report.after_bytes = report.before_bytes - saved

    def _look_at(self, recoder: Recoder, chunk: _Chunk) -> None:
        with self._db.view() as view:
            place = view.place(chunk.id)
        if place is None:
            return
        self._report.chunks += 1
        self._report.before_bytes += place.length
        if place.length <= _SMALL_BYTES:
            return
        items = chunk.spec or recoder.items_of(chunk.id)
        made = recoder.code(chunk.id, (chunk.near,) if chunk.near is not None else (), items)
        if made is None:
            return
        if -made.grown_bytes <= place.length >> _GAIN_SHIFT:
            recoder.drop(chunk.id)
        elif self._report.dry_run:
            recoder.planned[chunk.id] = replace(made, payload=b"")
        elif len(recoder.planned) >= _MOST_PLANNED or recoder.planned_bytes >= LINE_BYTES:
            self._publish(recoder)

    def _publish(self, recoder: Recoder) -> None:
        bases = [base for each in recoder.planned.values() for base in each.header.bases]
        recoder.publish()
        self._bases.update(bases)  # not before: what is planned may build on what is planned with it

    # -- depths

    def _may_deepen(self) -> bool:
        """Return whether no pack holds records that nobody knows of and the log does not call dead.

        A rebuild of the index takes of several records of a chunk the one of least depth; that must not be an old one,
        which may be damaged.
        """
        with self._db.view() as view:
            packs = {number: PackContent(number, line) for number, line in view.packs() if not line.retired}
            for id, place in view.objects():
                packs[place.pack].keep(id, place.offset, place.length)
        if all(pack.useless_bytes() == pack.dead_bytes for pack in packs.values()):
            return True
        self._report.left.append("some packs hold garbage that could not be removed, so no chunk becomes a difference")
        return False

    def _find_bases(self) -> None:
        """Find what records build on, or will in a moment."""
        for tip, name in self.standing.targets().items():
            if name.startswith(HEADS) and self._is_kept(tip):
                self._bases |= self._manifest(tip).chunks()
        with self._db.view() as view:
            for id, place in view.objects():
                if place.n_bases:
                    self._bases.update(view.bases(id))

    def _is_base(self, chunk: ObjectId) -> bool:
        return chunk in self._bases

    def _follow(self, position: Position) -> None:
        """Take note of what others' new records build on."""
        for change in self.standing.advance(position):
            if isinstance(change, PackGrown):
                for placed in read_growth(self._db.packs, change):
                    self._bases.update(placed.header.bases)
            elif isinstance(change, Checkpoint):
                self._find_bases()

    # -- history

    def _commits(self) -> list[tuple[Commit, ObjectId | None]]:
        """Return every commit whose snapshot is kept, oldest first, with the one before it."""
        every = [commit for commit in ancestors(self._db, *self.standing.targets()) if self._is_kept(commit.id)]
        return [(commit, self._before(commit)) for commit in reversed(every)]

    def _is_kept(self, commit: ObjectId) -> bool:
        mark = self.standing.marks.get(commit)
        return mark is None or (not mark.swept and commit in self.standing.targets())

    def _before(self, commit: Commit) -> ObjectId | None:
        """Return the nearest ancestor whose snapshot is kept."""
        while commit.parents:
            if self._is_kept(commit.parents[0]):
                return commit.parents[0]
            commit = read_commit(self._db, commit.parents[0])
        return None

    def _chunks(self, commit: Commit, before: ObjectId | None) -> Iterator[_Chunk]:
        """Yield the chunks of a snapshot that were not met before."""
        earlier = self._manifest(before) if before is not None else Manifest()
        for entry in self._manifest(commit.id).entries:
            old = earlier.get(entry.path)
            alike = old.extents if old is not None and old.spec == entry.spec else ()
            for slot, extent in enumerate(entry.extents):
                if extent.chunk in self._seen:
                    continue
                self._seen.add(extent.chunk)
                near = alike[slot].chunk if slot < len(alike) and alike[slot].chunk != extent.chunk else None
                whole = extent.offset == 0 and self._db.length(extent.chunk) == extent.length
                yield _Chunk(extent.chunk, near, entry.spec if whole else None)

    def _manifest(self, commit: ObjectId) -> Manifest:
        found = self._manifests.pop(commit, None)
        if found is None:
            root = Root.from_bytes(self._load(read_commit(self._db, commit).tree))
            found = Manifest(read_tree(root.state, self._load) if root.state is not None else ())
        self._manifests[commit] = found
        while len(self._manifests) > _MANIFESTS:
            del self._manifests[next(iter(self._manifests))]
        return found

    def _load(self, id: ObjectId) -> bytes:
        return bytes(self._db.read(id))
