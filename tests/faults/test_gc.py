"""Garbage collection is killed, stopped and continued while others commit and forget: nothing that counts is lost."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import Child
from tests.faults.chronicle import Actor, Chronicle, Refs
from tests.faults.seeds import base_seed, replayable

WRITERS = 3
STEP = 1 << 20  # between the numbers of two writers' commits
LONGEST_LIFE_SECONDS = 0.08
ROUND = 10  # collections that are interrupted between two looks at everything


def commit_and_forget(path: Path, key: KeyFile, chronicle: Chronicle, seed: int, number: int, stop: Path) -> int:
    """Commit to one branch, and forget most of it, until `stop` exists; return the next free number."""
    source = random.Random(seed)
    with open_repository(path, key=key) as repo:
        actor = Actor(repo, chronicle, source, number)
        while not stop.exists():
            if source.random() < 0.25:
                actor.forget([chronicle.owner] if chronicle.owner in repo.branches() else [])
            else:
                actor.commit(chronicle.owner, piecewise=source.random() < 0.2)
            actor.number += 1
            time.sleep(source.uniform(0, 0.01))
    return actor.number


def collect(path: Path, key: KeyFile) -> None:
    """Collect garbage again and again."""
    with open_repository(path, key=key) as repo:
        while True:
            repo.gc()


class Siege:
    """A repository under several writers, and what they acknowledged."""

    def __init__(self, ground: Path, source: random.Random) -> None:
        self.ground, self.path, self.source = ground, ground / "repo", source
        self.key = generate_key_file(ground / "key", random.Random(1).randbytes)
        self.refs = Refs()
        self.numbers = [writer * STEP for writer in range(WRITERS)]
        self.rounds = 0
        self.swept = self.committed = 0
        init(self.path, key=self.key).close()

    def round(self, interruptions: int, *, kill: bool) -> None:
        """Interrupt collections while writers are at work; then look at every byte."""
        self.rounds += 1
        stop = self.ground / f"stop-{self.rounds}"
        chronicles = [Chronicle(self.ground / f"{self.rounds}-{name}", f"w{name}") for name in range(WRITERS)]
        writers = [self._writer(name, chronicle, stop) for name, chronicle in enumerate(chronicles)]
        try:
            for _ in range(interruptions):
                collector = Child(lambda: collect(self.path, self.key))
                time.sleep(self.source.uniform(0.005, LONGEST_LIFE_SECONDS))
                if not kill:
                    os.kill(collector.pid, signal.SIGSTOP)
                    time.sleep(self.source.uniform(0.01, 0.1))
                    os.kill(collector.pid, signal.SIGCONT)
                    time.sleep(self.source.uniform(0, LONGEST_LIFE_SECONDS))
                collector.kill()
                ending = collector.join()
                assert ending.signal == signal.SIGKILL, ending.error
        finally:
            stop.touch()
            endings = [writer.join() for writer in writers]
        for name, ending in enumerate(endings):
            assert not ending.error, ending.error
            self.numbers[name] = ending.answer
        self._look(chronicles)

    def _writer(self, name: int, chronicle: Chronicle, stop: Path) -> Child:
        seed, number = self.source.getrandbits(32), self.numbers[name]
        return Child(lambda: commit_and_forget(self.path, self.key, chronicle, seed, number, stop))

    def _look(self, chronicles: list[Chronicle]) -> None:
        with open_repository(self.path, key=self.key) as repo:
            found = Refs()
            for chronicle in chronicles:
                found = chronicle.check(repo, self.refs)
                self.committed += sum(change["what"] == "commit" for change in chronicle.read()[0])
            self.swept = sum(mark.swept for mark in repo.marks().values())
            self._finish(repo)
            for chronicle in chronicles:
                chronicle.check(repo, self.refs)
            self.refs = found

    @staticmethod
    def _finish(repo: Repository) -> None:
        """The next collection finishes what was begun, and leaves nothing to do."""
        repo.gc()
        assert repo.gc().nothing_to_do
        assert repo.gc(dry_run=True).objects == 0


def besiege(ground: Path, kills: int, stops: int) -> None:
    seed = base_seed()
    with replayable(seed, ground):
        siege = Siege(ground, random.Random(seed))
        for _ in range(kills // ROUND):
            siege.round(ROUND, kill=True)
        for _ in range(stops // ROUND):
            siege.round(ROUND, kill=False)
        assert siege.swept > 0 and siege.committed > kills  # there was something to collect, and to be in the way of


def test_gc_killed_100_times_and_stopped_20_times_beside_three_writers_loses_nothing(ground: Path) -> None:
    besiege(ground, 100, 20)


@pytest.mark.long
def test_gc_killed_2000_times_and_stopped_400_times_beside_three_writers_loses_nothing(ground: Path) -> None:
    besiege(ground, 2000, 400)
