"""A full disk: changes fail with StoreFull and leave no trace, everything acknowledged reads throughout, and once there
is space again work goes on.
"""

import random
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.errors import StoreFull
from chainstore.policies import Retention
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import succeed
from tests.faults.chronicle import BULKY, Actor, Chronicle, Refs, same, state
from tests.faults.needs import needs_root_loop
from tests.faults.seeds import base_seed, replayable
from tests.faults.small_disks import KINDS, Ballast, small_disk

LEVELS_BYTES = (0, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
LIMITS_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)  # no smaller: the chronicle is a file too
MANY_LEVELS_BYTES = (0, *(int(4096 * 1.5**power) for power in range(19)))  # to 6 MiB
FAILURES, MOST_CHANGES = 6, 300


@pytest.fixture
def key(ground: Path) -> KeyFile:
    return generate_key_file(ground / "key", random.Random(1).randbytes)


class Trial:
    """A repository that grows until it cannot, with a chronicle of what it acknowledged.

    Attributes:
        refused: how many changes failed for want of space.
    """

    def __init__(self, path: Path, key: KeyFile, chronicle: Chronicle, seed: int, room_bytes: int) -> None:
        self.path, self.key, self.chronicle = path, key, chronicle
        self._source = random.Random(seed)
        self._number = BULKY if room_bytes >= 256 << 10 else 0
        self.refused = 0

    def create(self, commits: int = 5) -> None:
        """Make the repository and put something into it."""
        init(self.path, key=self.key).close()
        with open_repository(self.path, key=self.key) as repo:
            self._change(repo, changes=commits, failures=0)

    def grow(self) -> None:
        """Change it until some changes failed; a failed one leaves no trace."""
        with open_repository(self.path, key=self.key, threads=1) as repo:
            self._change(repo, MOST_CHANGES, FAILURES)
            self.chronicle.check(repo, Refs())
        self.read()

    def read(self) -> None:
        """Read everything, also without writing."""
        for readonly in (False, True):
            with open_repository(self.path, key=self.key, readonly=readonly) as repo:
                self.chronicle.check(repo, Refs())

    def go_on(self) -> None:
        """Change it some more, which must work."""
        with open_repository(self.path, key=self.key) as repo:
            self._change(repo, changes=5, failures=0)
            self.chronicle.check(repo, Refs())

    def _change(self, repo: Repository, changes: int, failures: int) -> None:
        actor = Actor(repo, self.chronicle, self._source, self._number, upkeep=True)
        for _ in range(changes):
            try:
                actor.act()
            except StoreFull:
                self.chronicle.deny()
                actor.number += 1
                self.refused += 1
                if self.refused > failures:
                    raise
                if self.refused == failures:
                    break
        self._number = actor.number


def fill(trial: Trial, make_full: Callable[[], None], make_room: Callable[[], None]) -> int:
    """Go through all of it; return how many changes were refused."""
    trial.create()
    make_full()
    trial.grow()
    make_room()
    trial.read()
    trial.go_on()
    return trial.refused


def fill_a_disk(ground: Path, key: KeyFile, kind: str, left_bytes: int) -> None:
    seed = base_seed()
    with replayable(seed), small_disk(kind, ground, mebibytes=64) as disk:
        ballast = Ballast(disk)
        trial = Trial(disk / "repo", key, Chronicle(ground / "chronicle", "work-"), seed, left_bytes)
        assert succeed(lambda: fill(trial, lambda: ballast.leave(left_bytes), ballast.drop)) == FAILURES


@needs_root_loop
@pytest.mark.parametrize("left_bytes", LEVELS_BYTES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_refuses_and_forgets_nothing(ground: Path, key: KeyFile, kind: str, left_bytes: int) -> None:
    fill_a_disk(ground, key, kind, left_bytes)


@needs_root_loop
@pytest.mark.long
@pytest.mark.parametrize("left_bytes", MANY_LEVELS_BYTES)
@pytest.mark.parametrize("kind", KINDS * 2)
def test_disks_that_are_more_or_less_full(ground: Path, key: KeyFile, kind: str, left_bytes: int) -> None:
    fill_a_disk(ground, key, kind, left_bytes)


@pytest.mark.parametrize("limit_bytes", LIMITS_BYTES)
def test_files_that_may_not_grow_are_a_full_disk(ground: Path, key: KeyFile, limit_bytes: int) -> None:
    def limit(nbytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    seed = base_seed()
    with replayable(seed):
        trial = Trial(ground / "repo", key, Chronicle(ground / "chronicle", "work-"), seed, limit_bytes)
        refused = succeed(lambda: fill(trial, lambda: limit(limit_bytes), lambda: limit(resource.RLIM_INFINITY)))
        assert refused == FAILURES


def rebuild_on_a_full_disk(disk: Path, key: KeyFile) -> None:
    with init(disk / "repo", key=key) as repo:
        commit = repo.commit(state(1), "1", step=1)
        Ballast(disk).leave(0)
        with pytest.raises(StoreFull):
            repo.rebuild_index()
        assert same(repo.checkout(commit.id), state(1))
    with open_repository(disk / "repo", key=key) as repo:
        assert repo.verify("data").ok


@needs_root_loop
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_index_on_a_full_disk_is_refused_and_kills_nobody(ground: Path, key: KeyFile, kind: str) -> None:
    """LMDB maps its file of locks, and a page that the disk has no space for is a SIGBUS."""
    with small_disk(kind, ground, mebibytes=64) as disk:
        succeed(lambda: rebuild_on_a_full_disk(disk, key))


MIB = 1 << 20


def big_state(number: int) -> dict[str, np.ndarray]:
    """Return 4 MiB that do not compress and that no other number shares."""
    return {"weights": np.frombuffer(np.random.default_rng(number).bytes(4 * MIB), np.uint8)}


def free_what_is_forgotten(disk: Path, key: KeyFile) -> None:
    """Fill a disk to the last byte with one repository beside another; forget, collect, go on."""
    with init(disk / "other", key=key) as other:
        untouched = other.commit(big_state(0), "0").id
    with init(disk / "repo", key=key) as repo:
        number = commit_until_full(repo)
        assert number > 10
        Ballast(disk).leave(0)
        for attempt in range(3):
            with pytest.raises(StoreFull):
                repo.commit(big_state(1000 + attempt), "does not fit")
        read(disk / "other", key, untouched, 0)
        for commit in list(repo.log())[2:]:  # one by one, so that the log needs more than the end of a block
            repo.forget(commits=[commit.id])
        assert len(repo.forget(Retention(last=1)).dropped) == 1
        Ballast(disk).leave(0)  # others may be quicker than whoever frees space
        report = repo.gc()
        read(disk / "other", key, untouched, 0)
        assert report.freed_bytes > (number - 3) * 4 * MIB, report
        for again in range(2000, 2000 + number - 3):
            repo.commit(big_state(again), f"{again}")
        tip = repo.resolve("HEAD")
    read(disk / "repo", key, tip, again)
    read(disk / "other", key, untouched, 0)


def commit_until_full(repo: Repository) -> int:
    """Commit until it fails; return the number of the commit that did."""
    for number in range(1, 1000):
        try:
            repo.commit(big_state(number), f"{number}")
        except StoreFull:
            return number
    raise AssertionError("the disk was not full")


def read(path: Path, key: KeyFile, commit: object, number: int) -> None:
    """Read every byte of a repository."""
    with open_repository(path, key=key) as repo:
        assert repo.verify("data").ok
        assert same(dict(repo.checkout(commit)), big_state(number))


@needs_root_loop
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_free_byte_forget_and_gc_make_room_again(ground: Path, key: KeyFile, kind: str) -> None:
    with small_disk(kind, ground, mebibytes=96) as disk:
        succeed(lambda: free_what_is_forgotten(disk, key))
