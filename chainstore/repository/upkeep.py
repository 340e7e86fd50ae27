"""Upkeep: how much a repository holds, and its index made anew."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chainstore.display import count, size, table
from chainstore.errors import ReadOnly
from chainstore.model.commit import Commit
from chainstore.odb.rebuild import rebuild_index
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.ops.gc import collect
from chainstore.ops.usage import Usage, branch_usage, kind_usage, path_usage
from chainstore.refs import HEADS, TAGS
from chainstore.repository.handles import Handle
from chainstore.repository.refs import refs_below
from chainstore.repository.settings import Settings
from chainstore.repository.slots import unseal
from chainstore.storage import fs


@dataclass(frozen=True, slots=True)
class RepositoryStats:
    """How much a repository holds.

    Attributes:
        commits, objects, packs: how many.
        logical_bytes: all snapshots as they were in memory.
        stored_bytes: what the directory takes on disk: packs, log, index and all.
        reclaimable_bytes: of it, about what gc would give back now; None where nobody asked.
    """

    commits: int
    objects: int
    packs: int
    logical_bytes: int
    stored_bytes: int
    reclaimable_bytes: int | None = None

    def __repr__(self) -> str:
        held = f"{count(self.commits, 'commit')}, {count(self.objects, 'object')} in {count(self.packs, 'pack')}"
        return f"<RepositoryStats {held}; {size(self.logical_bytes)} take {size(self.stored_bytes)}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        counts = [(name, f"{getattr(self, name):,}") for name in ("commits", "objects", "packs")]
        sizes = [("all snapshots", size(self.logical_bytes)), ("on disk", size(self.stored_bytes))]
        if self.reclaimable_bytes is not None:
            sizes.append(("gc would free", size(self.reclaimable_bytes)))
        return table("what the repository holds", [*counts, *sizes])


@dataclass(frozen=True, slots=True)
class Status:
    """Where a repository stands.

    Attributes:
        branches, tags: how many.
        disk_bytes: what the directory takes.  free_bytes: what this user could still store there.
        lines_ahead: lines of the log that the index lacks, as after a crash; the next writer puts that right.
        index_outside: folder of the index that is used, where it does not lie in the repository; else None.
        index_host: which machine's index is in force, by the name it gave itself; "" where that is not said.
        index_private: whether that is another machine's, and the index used here is for reading only.
    """

    branches: int
    tags: int
    disk_bytes: int
    free_bytes: int
    lines_ahead: int
    index_outside: Path | None = None
    index_host: str = ""
    index_private: bool = False


def measure(handle: Handle, every_commit: Iterable[Commit], reclaimable: bool) -> RepositoryStats:
    """Return how much a repository holds; see `Repository.stats`."""
    commits = list(every_commit)
    with handle.db.view() as view:
        objects = view.object_count()
        packs = sum(1 for _ in view.packs())
    logical = sum(commit.stats.raw_bytes for commit in commits)
    useless = reclaimable_bytes(handle) if reclaimable else None
    return RepositoryStats(len(commits), objects, packs, logical, _disk_bytes(handle.settings.root), useless)


def reclaimable_bytes(handle: Handle) -> int:
    """Return how many bytes of packs nothing needs.

    Raises:
        Damaged: something that must be walked for that cannot be read.

    Cost: reads every commit and every page of names.
    """
    return collect(handle.db, dry_run=True, since="", observer=handle.settings.observer).useless_bytes


def look(handle: Handle) -> Status:
    """Return where a repository stands; see `Repository.status`."""
    names = len(refs_below(handle, HEADS)), len(refs_below(handle, TAGS))
    root = handle.settings.root
    db = handle.db
    outside = db.index_path if root not in db.index_path.parents else None
    space = _disk_bytes(root), fs.free_bytes(root)
    return Status(*names, *space, db.lines_ahead(), outside, db.index.host, db.index.private)


def weigh(handle: Handle, commits: Sequence[Commit], reclaimable: bool) -> Usage:
    """Return where the bytes of those snapshots are that were not forgotten, by path; and of everything, by kind."""
    with handle.db.view() as view:
        kept = [commit for commit in commits if view.mark(commit.id) is None]
    ids = tuple(str(commit.id) for commit in kept)
    useless = reclaimable_bytes(handle) if reclaimable else None
    return Usage(ids, tuple(path_usage(handle.db, kept)), (), kind_usage(handle.db), useless)


def weigh_branches(handle: Handle, reclaimable: bool) -> Usage:
    """Return where the bytes of all branches are, and of everything, by kind."""
    useless = reclaimable_bytes(handle) if reclaimable else None
    branches = tuple(branch_usage(handle.db, refs_below(handle, HEADS)))
    return Usage((), (), branches, kind_usage(handle.db), useless)


def _disk_bytes(root: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in root.rglob("*") if file.is_file())


def rebuild_at(settings: Settings) -> RebuildReport:
    """Rebuild the index of a repository that may be too damaged to be opened."""
    layout = settings.layout
    there = unseal(layout, settings)
    there.format.check_extensions(writing=True)
    layout.create()
    return rebuild_index(
        layout,
        there.format,
        there.sealer,
        there.keyring_number,
        settings.around,
        settings.observer,
        take_over=settings.take_over,
    )


def rebuild_open(handle: Handle) -> RebuildReport:
    """Rebuild the index of a repository that is open; see `Repository.rebuild_index`.

    Raises:
        ReadOnly: it was opened for reading.
    """
    if handle.settings.readonly:
        raise ReadOnly(f"{handle.settings.root} was opened for reading", hint="open it without readonly=True")
    with handle.turn():
        report = rebuild_at(handle.settings)
        handle.db.settle()
    return report
