"""The latest good: the newest commit of a branch that is whole, to the last byte."""

from collections.abc import Iterator

from chainstore.errors import Damaged, StorageError
from chainstore.ids import ObjectId
from chainstore.model.commit import Commit
from chainstore.model.tree import Root, page_links
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import read_commit
from chainstore.ops.pipeline import run


def latest_good(db: LocalDatabase, ref: str, *, threads: int, observer: Observer) -> Commit | None:
    """Return the newest commit of a ref whose snapshot reads completely, or None.

    From the tip by first parents; where a commit itself is damaged, on from what the reflog says came before.

    Cost: every byte of the tip if that is good; of each ancestor only what its descendants do not have.
    """
    search = _Search(db, threads, observer)
    return next((commit for commit in _candidates(db, ref) if search.is_good(commit)), None)


def _candidates(db: LocalDatabase, ref: str) -> Iterator[Commit]:
    with db.view() as view:
        row = view.ref(ref)
        starts = [row.target if row is not None else None, *(line.old for line in view.reflog(ref))]
    seen: set[ObjectId] = set()
    for start in starts:
        current = start if isinstance(start, ObjectId) else None
        while current is not None and current not in seen:
            seen.add(current)
            try:
                commit = read_commit(db, current)
            except (Damaged, StorageError):
                break
            yield commit
            current = commit.parents[0] if commit.parents else None


class _Search:
    """What was read so far: good pages and chunks are not read again, and one bad thing spoils all that name it."""

    def __init__(self, db: LocalDatabase, threads: int, observer: Observer) -> None:
        self._db, self._threads, self._observer = db, threads, observer
        self._good: set[ObjectId] = set()
        self._bad: set[ObjectId] = set()
        self._done = 0

    def is_good(self, commit: Commit) -> bool:
        """Whether a snapshot is kept and everything in it reads."""
        with self._db.view() as view:
            if view.mark(commit.id) is not None:
                return False
        try:
            pages, chunks = self._names(commit.tree)
            run(chunks, self._read, threads=self._threads)
        except (Damaged, StorageError):
            return False
        self._good.update(pages)
        return True

    def _names(self, tree: ObjectId) -> tuple[set[ObjectId], list[ObjectId]]:
        """Return the pages of a snapshot and the chunks that they name, less what is known to be good."""
        pages: set[ObjectId] = set()
        chunks: dict[ObjectId, None] = {}
        if tree in self._good:
            return pages, []
        pages.add(tree)
        root = Root.from_bytes(bytes(self._checked(tree)))
        stack = [page for page in (root.state, root.files, root.ranks) if page is not None]
        while stack:
            page = stack.pop()
            if page in pages or page in self._good:
                continue
            pages.add(page)
            links = page_links(bytes(self._checked(page)))
            chunks.update(dict.fromkeys(links.chunks))
            stack += links.pages
        if not self._bad.isdisjoint(chunks):
            raise Damaged("a chunk is known to be damaged")
        return pages, [chunk for chunk in chunks if chunk not in self._good]

    def _read(self, chunk: ObjectId) -> None:
        self._checked(chunk)
        self._good.add(chunk)

    def _checked(self, id: ObjectId) -> memoryview:
        try:
            data = self._db.read(id)
        except (Damaged, StorageError):
            self._bad.add(id)
            raise
        self._done += len(data)
        self._observer(Progress("latest-good", self._done, 0))
        return data
