"""Reach: what refs, reflogs and readers lead to, and why each object of it is kept.

Everything that was found stays found: what a later look finds in addition is added.  An object counts for the first
reason that leads to it, in the order of `Why`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import IntEnum

from chainstore.errors import Damaged
from chainstore.ids import ObjectId
from chainstore.model.change import Change, Checkpoint, PackGrown, SetRef, Unmark
from chainstore.model.tree import Root, page_links
from chainstore.observe import Observer, Progress
from chainstore.odb.growth import read_growth
from chainstore.odb.local import LocalDatabase
from chainstore.odb.standing import Standing
from chainstore.ops.history import read_commit
from chainstore.refs import TAGS

_TELL_EVERY = 64  # commits


class Why(IntEnum):
    """Why an object is kept; the first that applies."""

    BRANCH = 1
    TAG = 2
    REFLOG = 3
    READER = 4


class Reach:
    """The objects that may not go, filled by `mark` and kept up to date by `follow`.

    Attributes:
        found: id -> why; 130 bytes of memory each.
        bases: ids of what kept records are differences to; what such an object leads to is not kept for its sake.
        kept, forgotten: how many commits have their snapshot, and how many only themselves.
        problems: reflogs that lead to commits which are not there any more.

    Raises, all of it: Damaged, where what should be walked cannot be read: then nothing below is proven unreachable.
    """

    def __init__(self, db: LocalDatabase, standing: Standing, observer: Observer) -> None:
        self._db, self._standing, self._observer = db, standing, observer
        self.found: dict[bytes, Why] = {}
        self.bases: set[bytes] = set()
        self.kept = self.forgotten = 0
        self.problems: list[str] = []
        self._tips: set[ObjectId] = set()
        self._bare: dict[ObjectId, Why] = {}  # forgotten commits: themselves are kept, nothing below them
        self._fresh: list[bytes] = []  # found since their bases were last looked for
        self._marked = self._following = False

    def __contains__(self, id: bytes) -> bool:
        return id in self.found or id in self.bases

    def __len__(self) -> int:
        return len(self.found) + len(self.only_bases)

    def mark(self) -> None:
        """Find everything that refs and unexpired reflogs lead to."""
        self._marked = True
        targets = self._standing.targets()
        self._tips |= set(targets)
        for why in (Why.BRANCH, Why.TAG):
            for id, name in targets.items():
                if name.startswith(TAGS) == (why is Why.TAG):
                    self._add_history(id, why, name)
        past = self._standing.past()
        with self._db.view() as view:
            gone = [id for id in past if id not in self.found and view.place(id) is None]
        for id, name in past.items():
            if id in gone:
                self.problems.append(f"the reflog of {name} leads to {id.short}, which is not there")
            else:
                self._add_history(id, Why.REFLOG, f"the reflog of {name}")

    def follow(self, changes: Iterable[Change]) -> None:
        """Add what lines of the log lead to that were published since; `mark`, which comes first, looks at all."""
        if not self._marked:
            return  # or whoever holds the publish lock would walk every history now
        for change in changes:
            match change:
                case SetRef(name, _, ObjectId() as target):
                    self._tips.add(target)
                    self._add_history(target, Why.TAG if name.startswith(TAGS) else Why.BRANCH, name)
                    self._take_back(target, None)
                case Unmark(commits):
                    for id in commits:
                        self._take_back(id, None)
                case PackGrown():
                    self._fresh += [placed.header.id for placed in read_growth(self._db.packs, change)]
                case Checkpoint():
                    self._catch_up()
        self._add_bases(self._fresh)

    def _catch_up(self) -> None:
        """Look at everything again: a checkpoint may stand for lines of a segment that went before we read them."""
        self.mark()
        marked = self._standing.marks
        for id in [id for id in self._bare if id in self._tips or id not in marked]:
            self._take_back(id, None)
        if self._following:
            self.add_all_bases()

    def add_snapshots(self, held: Mapping[ObjectId, ObjectId]) -> None:
        """Add the snapshots that readers hold, forgotten or not, whether or not their commits are still there.

        Args:
            held: commit -> tree.
        """
        for id, tree in held.items():
            with self._db.view() as view:
                there = view.place(id) is not None
            mark = self._standing.marks.get(id)
            if there and (mark is None or not mark.swept):
                self._add_history(id, Why.READER, "a reader")
                self._take_back(id, Why.READER)
                continue
            with suppress(Damaged):  # it began after gc did, and is being told so
                self._add_snapshot(id, tree, Why.READER)
        if self._following:
            self._add_bases(self._fresh)

    def add_all_bases(self) -> None:
        """Add what kept records are differences to, whether it is reachable or not; from here on they are followed."""
        self._following = True
        with self._db.view() as view:
            self._add_bases([id for id, place in view.objects() if place.n_bases and id in self])

    def keep_bases_of(self, ids: Iterable[bytes]) -> None:
        """Add what records are differences to although nothing leads to them: they could not be removed."""
        self._add_bases([*ids, *self._fresh])

    def look_for_bases_anew(self) -> None:
        """Let go of bases that nothing builds on any more."""
        self.bases.clear()
        self.add_all_bases()

    @property
    def only_bases(self) -> set[bytes]:
        """Ids of bases that nothing leads to by their own names."""
        return self.bases - self.found.keys()

    def _add_bases(self, ids: Iterable[bytes]) -> None:
        queue = list(ids)
        self._fresh = []
        with self._db.view() as view:
            while queue:
                id = queue.pop()
                place = view.place(id)
                if place is None or not place.n_bases:
                    continue
                bases = view.bases(id)
                if len(bases) != place.n_bases:
                    raise Damaged(f"the index does not name the bases of object {id.hex()[:12]}")
                queue += [base for base in bases if base not in self.bases]
                self.bases.update(bases)

    def _add_history(self, start: ObjectId, why: Why, name: str) -> None:
        """Add a commit and its ancestors, with the snapshots of those that are not forgotten."""
        queue = [start]
        while queue:
            id = queue.pop()
            if id in self.found:
                continue
            try:
                commit = read_commit(self._db, id)
            except Damaged as error:
                raise Damaged(f"{name} leads to commit {id.short}, which is damaged: {error}") from error
            self._find(id, why)
            queue += commit.parents
            mark = self._standing.marks.get(id)
            if mark is not None and (mark.swept or id not in self._tips):
                self.forgotten += 1
                self._bare[id] = why
            else:
                self._add_snapshot(id, commit.tree, why)
            if (self.kept + self.forgotten) % _TELL_EVERY == 0:
                self._observer(Progress("gc mark", self.kept + self.forgotten, 0))

    def _take_back(self, id: ObjectId, by: Why | None) -> None:
        """Add the snapshot of a commit that counted as forgotten; it counts for `by`, or for what led to the commit."""
        why = self._bare.pop(id, None)
        if why is not None:
            self.forgotten -= 1
            self._add_snapshot(id, read_commit(self._db, id).tree, by or why)

    def _add_snapshot(self, commit: ObjectId, tree: ObjectId, why: Why) -> None:
        if tree in self.found:
            self.kept += 1
            return
        new: set[bytes] = {tree}
        try:
            root = Root.from_bytes(bytes(self._db.read(tree)))
            stack = [page for page in (root.state, root.files, root.ranks) if page is not None]
            while stack:
                page = stack.pop()
                if page in new or page in self.found:
                    continue
                new.add(page)
                links = page_links(bytes(self._db.read(page)))
                stack += links.pages
                new.update(links.chunks)
        except Damaged as error:
            raise Damaged(f"the names in commit {commit.short} are damaged: {error}") from error
        self.kept += 1
        for id in new - self.found.keys():  # all of it at once: what was found has everything below it found
            self._find(id, why)

    def _find(self, id: bytes, why: Why) -> None:
        self.found[id] = why
        if self._following:
            self._fresh.append(id)
