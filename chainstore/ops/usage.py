"""Usage: where the bytes are, by path, by branch and by kind of object.

Logical bytes are a state as it was in memory, once for every snapshot that holds it.  Stored bytes are records in
packs, their headers and seals included, each counted once; log, index and free space in packs are not in them.  A
record that is stored as a difference counts what it takes itself, its base counts where that is used.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from chainstore.ids import Kind, ObjectId
from chainstore.model.commit import Commit
from chainstore.model.paths import format_path
from chainstore.model.tree import Entry, Root, page_links, read_tree
from chainstore.odb.local import LocalDatabase
from chainstore.ops.history import ancestors

FILES = "(files)"  # the row for what was committed beside the state


@dataclass(frozen=True, slots=True)
class PathUsage:
    """What lies at and below one top-level path of some snapshots.

    Attributes:
        path: as printed; `(files)` stands for the files beside the state.
        logical_bytes: of all those snapshots.
        stored_bytes: of the chunks it needs; a chunk that several paths need counts for the first of them.
    """

    path: str
    logical_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class BranchUsage:
    """What the commits of one branch take.

    Attributes:
        branch: its name.  commits: how many of them have their snapshot.
        logical_bytes: of all their snapshots.
        stored_bytes: of every object that they need.
        own_bytes: of it, what no other branch needs: about what deleting the branch would free.
    """

    branch: str
    commits: int
    logical_bytes: int
    stored_bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class KindUsage:
    """What all objects of one kind take.

    Attributes:
        kind: "commit", "tree" or "chunk".  objects: how many.
        logical_bytes: before coding.  stored_bytes: their records.
    """

    kind: str
    objects: int
    logical_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the bytes of a repository are.

    Attributes:
        commits: ids of the commits that `paths` covers, newest first.
        paths, branches: one of the two, the other is empty.
        kinds: every object of the repository.
        reclaimable_bytes: of packs, about what gc would give back now; None where nobody asked.
    """

    commits: tuple[str, ...]
    paths: tuple[PathUsage, ...]
    branches: tuple[BranchUsage, ...]
    kinds: tuple[KindUsage, ...]
    reclaimable_bytes: int | None = None


def path_usage(db: LocalDatabase, commits: Iterable[Commit]) -> list[PathUsage]:
    """Return what each top-level path of the snapshots of `commits` takes, in the order of the newest.

    Cost: reads the pages of names, and no data.
    """
    logical: dict[str, int] = {}
    stored: dict[str, int] = {}
    counted: set[ObjectId] = set()
    for commit in commits:
        for name, entry in _entries(db, commit):
            fresh = {extent.chunk for extent in entry.extents} - counted
            counted |= fresh
            logical[name] = logical.get(name, 0) + entry.nbytes
            stored[name] = stored.get(name, 0) + _record_bytes(db, fresh)
    return [PathUsage(name, logical[name], stored[name]) for name in logical if logical[name] or stored[name]]


def branch_usage(db: LocalDatabase, tips: Mapping[str, ObjectId]) -> list[BranchUsage]:
    """Return what each branch takes.

    Cost: reads every commit and every page of names that a branch leads to, once for each branch.
    """
    needed = {name: _reach(db, tip) for name, tip in tips.items()}
    rows = []
    for name, (commits, objects) in needed.items():
        others = (objects for other, (_, objects) in needed.items() if other != name)
        own = objects.difference(*others)
        logical = sum(commit.stats.raw_bytes for commit in commits)
        rows.append(BranchUsage(name, len(commits), logical, _record_bytes(db, objects), _record_bytes(db, own)))
    return rows


def kind_usage(db: LocalDatabase) -> tuple[KindUsage, ...]:
    """Return what the objects of each kind take, those that nothing leads to any more included."""
    sums = {kind: [0, 0, 0] for kind in Kind}
    with db.view() as view:
        for _, place in view.objects():
            row = sums[Kind(place.kind)]
            row[0] += 1
            row[1] += place.plain_len
            row[2] += place.length
    return tuple(KindUsage(kind.name.lower(), *row) for kind, row in sums.items())


def _entries(db: LocalDatabase, commit: Commit) -> Iterator[tuple[str, Entry]]:
    root = Root.from_bytes(bytes(db.read(commit.tree)))
    if root.state is not None:
        for entry in read_tree(root.state, lambda id: bytes(db.read(id))):
            yield format_path(entry.path[:1]) or "(root)", entry
    if root.files is not None:
        yield from ((FILES, entry) for entry in read_tree(root.files, lambda id: bytes(db.read(id))))


def _reach(db: LocalDatabase, tip: ObjectId) -> tuple[list[Commit], set[ObjectId]]:
    """Return the commits from `tip` back that have their snapshot, and every object that they need."""
    commits: list[Commit] = []
    needed: set[ObjectId] = set()
    for commit in ancestors(db, tip):
        needed.add(commit.id)
        with db.view() as view:
            forgotten = view.mark(commit.id) is not None
        if forgotten:
            continue
        commits.append(commit)
        if commit.tree not in needed:
            needed.add(commit.tree)
            root = Root.from_bytes(bytes(db.read(commit.tree)))
            _walk(db, [page for page in (root.state, root.files) if page is not None], needed)
    return commits, needed


def _walk(db: LocalDatabase, pages: list[ObjectId], needed: set[ObjectId]) -> None:
    while pages:
        page = pages.pop()
        if page not in needed:
            needed.add(page)
            links = page_links(bytes(db.read(page)))
            pages += links.pages
            needed.update(links.chunks)


def _record_bytes(db: LocalDatabase, ids: Iterable[ObjectId]) -> int:
    with db.view() as view:
        places = (view.place(id) for id in ids)
        return sum(place.length for place in places if place is not None)
