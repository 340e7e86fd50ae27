"""Whatever a repository acknowledged survives a power cut at any moment, under a file system that keeps no promise
that POSIX does not make; the index's own C code included.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.errors import ChainError
from chainstore.repository import init
from chainstore.repository import open as open_repository
from chainstore.storage import fs
from tests.faults.children import Child, Ending
from tests.faults.chronicle import Actor, Chronicle, Refs, observe
from tests.faults.fuse_mount import cut_power, mounted
from tests.faults.needs import needs_fuse
from tests.faults.seeds import base_seed, replayable

CHANGES_PER_LIFE = 12
STEPS_PER_LIFE = 400  # changes and syncs of the file system; most lives would pass more
STEPS_OF_A_RECOVERY = 30
BUS_ERROR = 7  # a page of the index that cannot be read any more

Mistake = Callable[[], None]
"""Breaks something in the process that calls it."""


def no_mistake() -> None:
    """Break nothing."""


def packs_not_synced() -> None:
    _leave_out_syncs("packs")


def log_not_synced() -> None:
    _leave_out_syncs("log")


def _leave_out_syncs(folder: str) -> None:
    really = fs.File.fdatasync

    def sync(file: fs.File) -> None:
        if folder not in file.path.parts:
            really(file)

    fs.File.fdatasync = sync  # type: ignore[method-assign]


def names_not_synced() -> None:
    fs.sync_dir = lambda path: None


def index_not_synced() -> None:
    really = lmdb.open
    lmdb.open = lambda *where, **how: really(*where, **how, sync=False)


@dataclass(slots=True)
class Machine:
    """A repository on a file system that forgets, the machine it is on, and what is known of it.

    Attributes:
        refs: what must be there.
        created: whether `init` was acknowledged.
        mistake: made in every process that works there.
    """

    folder: Path
    source: random.Random
    mistake: Mistake = no_mistake
    refs: Refs = field(default_factory=Refs)
    created: bool = False
    key: KeyFile = field(init=False)
    lives: int = 0
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.key = generate_key_file(self.folder / "key", random.Random(1).randbytes)

    @property
    def disk(self) -> Path:
        """The folder that holds what is durable once the power is off."""
        return self.folder / "disk"

    def live_and_die(self) -> None:
        """Work until the power is cut, and look at a copy of what is left, as the repository there does not know yet
        that it was.
        """
        self.lives += 1
        at, off = self.folder / "at", self.folder / f"{self.lives}.off"
        chronicle = Chronicle(self.folder / f"{self.lives}.chronicle")
        most = self.source.choice([STEPS_OF_A_RECOVERY, STEPS_PER_LIFE]) if self.created else STEPS_PER_LIFE
        after, seed = self.source.randint(1, most), self.source.getrandbits(32)
        with mounted(self.disk, at, forgetful=True):
            cut_power(at, off, seed=seed, after=after)
            work = self._work(at / "repo", chronicle, self.source.getrandbits(32))
            ending = Child(work).join()
            self._judge(ending, off)
            if not off.exists():
                cut_power(at, off, seed=seed)
        self._look(chronicle)

    def _work(self, path: Path, chronicle: Chronicle, seed: int) -> Callable[[], None]:
        create, number = not self.created, self.lives * 100

        def work() -> None:
            if create:
                with chronicle.change("init"):
                    init(path, key=self.key).close()
            self.mistake()
            with open_repository(path, key=self.key, threads=1) as repo:
                actor = Actor(repo, chronicle, random.Random(seed), number, upkeep=True)
                for _ in range(CHANGES_PER_LIFE):
                    actor.act()

        def work_until_it_fails() -> str:
            try:
                work()
            except ChainError as error:
                return repr(error)
            return ""

        return work_until_it_fails

    @staticmethod
    def _judge(ending: Ending, off: Path) -> None:
        assert ending.signal in (0, BUS_ERROR), f"killed by signal {ending.signal}"
        assert not ending.error, ending.error
        assert off.exists() or not (ending.answer or ending.signal), f"failed before the cut: {ending}"

    def _look(self, chronicle: Chronicle) -> None:
        done, _ = chronicle.read()
        self.acknowledged += len(done)
        self.created = self.created or any(change["what"] == "init" for change in done)
        if not self.created:
            shutil.rmtree(self.disk)  # half a new repository, promised to nobody
            return
        copy = self.folder / "copy"
        shutil.copytree(self.disk, copy)
        with open_repository(copy / "repo", key=self.key) as repo:
            self.refs = chronicle.check(repo, self.refs)
        shutil.rmtree(copy)

    def recover(self) -> None:
        """Open what was only looked at as a copy, every time with the same outcome, and go on: commit, collect."""
        self.disk.mkdir(exist_ok=True)
        path = self.disk / "repo"
        if not self.created:
            init(path, key=self.key).close()
        for _ in range(2):
            with open_repository(path, key=self.key) as repo:
                assert observe(repo) == self.refs
        chronicle = Chronicle(self.folder / "after")
        with open_repository(path, key=self.key) as repo:
            actor = Actor(repo, chronicle, self.source, self.lives * 100 + 99)
            actor.commit(next(iter(self.refs.branches), "main"))
            repo.gc()
            chronicle.check(repo, self.refs)


def survive(folder: Path, seed: int, mistake: Mistake = no_mistake) -> int:
    """Let one repository live through one power cut or several; return how many changes it acknowledged."""
    source = random.Random(seed)
    machine = Machine(folder, source, mistake)
    for _ in range(source.choice([1, 2, 3])):  # the later ones interrupt the recovery too
        machine.live_and_die()
    machine.recover()
    shutil.rmtree(folder)
    return machine.acknowledged


def cut(ground: Path, seeds: int) -> None:
    base = base_seed()
    acknowledged = 0
    for number in range(seeds):
        with replayable(base + number, f"power cut {number}, seed {base + number}"):
            acknowledged += survive(ground / f"{number}", base + number)
    assert acknowledged > seeds  # the cuts came while there was something to lose


@needs_fuse
def test_60_power_cuts_lose_nothing_that_was_acknowledged(ground: Path) -> None:
    cut(ground, 60)


@needs_fuse
@pytest.mark.long
def test_1000_power_cuts_lose_nothing_that_was_acknowledged(ground: Path) -> None:
    cut(ground, 1000)


ENOUGH_FOR_A_MISTAKE = 15


@needs_fuse
@pytest.mark.parametrize("mistake", [packs_not_synced, log_not_synced, names_not_synced, index_not_synced])
def test_a_sync_that_is_left_out_is_found(ground: Path, mistake: Mistake) -> None:
    for seed in range(ENOUGH_FOR_A_MISTAKE):
        try:
            survive(ground / f"{seed}", seed, mistake)
        except (AssertionError, ChainError):
            return
    pytest.fail(f"{ENOUGH_FOR_A_MISTAKE} power cuts did not show that {mistake.__name__.replace('_', ' ')}")
