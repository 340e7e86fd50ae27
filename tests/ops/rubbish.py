"""Stores with garbage in them, a clock that can be turned, and a gc that does not pause."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random

import pytest

from chainstore.ids import Kind, ObjectId
from chainstore.lazy.reading import Reading
from chainstore.model.change import Mark, SetRef
from chainstore.model.commit import Commit
from chainstore.model.tree import Root, read_tree
from chainstore.observe import Observer, silent
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import open_local
from chainstore.odb.surroundings import Surroundings
from chainstore.ops.gc import collect
from chainstore.ops.gc_report import GcReport
from chainstore.ops.history import read_commit
from chainstore.storage import fs
from tests.odb.stores import Store, commit, tip

DAY_US = 86_400 * 1_000_000


class Clock:
    """Microseconds since 1970; one passes at every look."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.now_us += 1
        return self.now_us

    def pass_days(self, days: float) -> None:
        self.now_us += int(days * DAY_US)


def open_at(store: Store, clock: Clock) -> LocalDatabase:
    """Open a store whose time is that of `clock`."""
    around = Surroundings(clock, os.urandom, "host", "test")
    return open_local(store.layout, store.format, store.sealer, store.keyring, around, readonly=False)


def gc(
    db: LocalDatabase,
    *,
    dry_run: bool = False,
    observer: Observer = silent,
    sleep: Callable[[float], None] = lambda seconds: None,
) -> GcReport:
    return collect(db, dry_run=dry_run, since="noon", observer=observer, sleep=sleep)


def blob(number: int, nbytes: int = 200_000) -> bytes:
    """Return bytes that `number` decides and no codec shortens."""
    return Random(number).randbytes(nbytes)


def line_of_commits(db: LocalDatabase, count: int, nbytes: int = 200_000, ref: str = "heads/main") -> list[ObjectId]:
    """Publish snapshots, each of a chunk of its own and one that all of them share."""
    first = sum(ord(letter) for letter in ref) * 1000
    return [commit(db, blob(first + n, nbytes), blob(-1, nbytes), ref=ref, message=str(n)) for n in range(count)]


def forget(db: LocalDatabase, commits: list[ObjectId]) -> None:
    db.publish(None, [Mark(tuple(commits), "last:1")])


def drop_ref(db: LocalDatabase, ref: str) -> None:
    db.publish(None, [SetRef(ref, tip(db, ref), None, "deleted")])


def read_back(db: LocalDatabase, id: ObjectId) -> list[bytes]:
    """Return every chunk of a snapshot, in order of path."""
    root = Root.from_bytes(bytes(db.read(read_commit(db, id).tree)))
    assert root.state is not None
    entries = read_tree(root.state, lambda page: bytes(db.read(page)))
    return [bytes(db.read(extent.chunk)) for entry in entries for extent in entry.extents]


def chunk_ids(db: LocalDatabase, *numbers: int, nbytes: int = 200_000) -> list[ObjectId]:
    return [db.sealer.id(Kind.CHUNK, blob(number, nbytes)) for number in numbers]


def holding(db: LocalDatabase, commit: Commit) -> AbstractContextManager[None]:
    """Hold a snapshot as a load does."""
    return Reading(lambda: db, 1, 1 << 30, silent).held(commit)


def disk_bytes(folder: Path) -> int:
    """Return what everything below a folder takes on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@contextmanager
def at_failpoint(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[str, Path], bool], then: Callable[[], object]
) -> Iterator[None]:
    """Do `then` once, right before the first operation on disk for which `when` holds; fails if there was none."""
    done: list[str] = []

    def look(name: str, path: Path) -> None:
        if not done and when(name, path):
            done.append(name)
            then()

    with monkeypatch.context() as patch:
        patch.setattr(fs, "failpoint", look)
        yield
    assert done, "the moment never came"
