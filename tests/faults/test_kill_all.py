"""Writers, readers and a collector of garbage at work in one repository, and any one of them killed at any moment."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chainstore.crypto.keys import generate_key_file
from chainstore.errors import Locked, SnapshotForgotten
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import Child
from tests.faults.chronicle import Actor, Chronicle, Refs, same, state
from tests.faults.seeds import base_seed, replayable

WRITERS, READERS = 3, 2
STEP = 1 << 20  # between the numbers of two writers' commits
ROUND = 10  # kills between two looks at everything
LONGEST_LIFE_SECONDS = 0.15
MOST_CHANGES = 60  # of a writer in a round, so that the looks at it stay short


def write(repo: Repository, chronicle: Chronicle, source: random.Random, number: int, stop: Path) -> int:
    """Commit, name, forget and bring back, and sometimes rebuild and collect; return how many changes that were."""
    actor = Actor(repo, chronicle, source, number, upkeep=True)
    while not stop.exists() and actor.number < number + MOST_CHANGES:
        actor.act()
        time.sleep(source.uniform(0, 0.01))
    return actor.number - number


def read(repo: Repository, source: random.Random, stop: Path) -> tuple[int, set[int]]:
    """Load any snapshot there is; return how many came back, and which were refused as forgotten."""
    whole, refused = 0, set()
    while not stop.exists():
        commits = list(repo.log(all_refs=True))
        for commit in source.sample(commits, min(5, len(commits))):
            try:
                found = repo.checkout(commit)
            except SnapshotForgotten:
                refused.add(int(commit.message))
            else:
                assert same(found, state(int(commit.message))), f"commit {commit.message} came back otherwise"
                whole += 1
        time.sleep(0.002)
    return whole, refused


def collect(repo: Repository, stop: Path) -> int:
    """Collect garbage again and again; return how often."""
    turns = 0
    while not stop.exists():
        try:
            repo.gc(forget=False)
            turns += 1
        except Locked as error:  # a writer does
            assert error.what == "garbage collection", error
            time.sleep(0.005)
    return turns


class Fray:
    """A repository and the six at work in it.

    Attributes:
        whole: how many snapshots readers were given.  refused: the numbers of those that were said to be forgotten.
        deaths: by what the killed one did.
    """

    def __init__(self, ground: Path, source: random.Random) -> None:
        ground.mkdir()
        self.ground, self.path, self.source = ground, ground / "repo", source
        self.key = generate_key_file(ground / "key", random.Random(1).randbytes)
        self.refs = [Refs() for _ in range(WRITERS)]
        self.numbers = [writer * STEP for writer in range(WRITERS)]
        self.rounds = self.whole = self.acknowledged = 0
        self.refused: set[int] = set()
        self.ever_forgotten: set[int] = set()
        self.deaths: dict[str, int] = {}
        init(self.path, key=self.key).close()

    def round(self, kills: int) -> None:
        """Kill somebody, put another in his place, and so on; then look at every byte."""
        self.rounds += 1
        self.stop = self.ground / f"stop-{self.rounds}"
        self.chronicles = [self._chronicle(writer) for writer in range(WRITERS)]
        jobs = [("writer", n) for n in range(WRITERS)] + [("reader", n) for n in range(READERS)] + [("collector", 0)]
        at_work = {job: self._start(*job) for job in jobs}
        try:
            for _ in range(kills):
                time.sleep(self.source.uniform(0.01, LONGEST_LIFE_SECONDS))
                job = self.source.choice(jobs)
                at_work[job].kill()
                ending = at_work.pop(job).join()
                assert not ending.error, f"{job}: {ending.error}"
                self.deaths[job[0]] = self.deaths.get(job[0], 0) + bool(ending.signal)
                if job[0] == "writer":  # what it had in flight must be known before the next one adds to it
                    self._look(job[1])
                at_work[job] = self._start(*job)
        finally:
            self.stop.touch()
            endings = {job: child.join() for job, child in at_work.items()}
        for job, ending in endings.items():
            assert not ending.error, f"{job}: {ending.error}"
            if job[0] == "reader":
                self.whole += ending.answer[0]
                self.refused |= ending.answer[1]
        for writer in range(WRITERS):
            self._look(writer)
        assert self.refused <= self.ever_forgotten, "a reader was told of forgetting what nobody forgot"
        self._finish()

    def _look(self, writer: int) -> None:
        """Check what one writer acknowledged since it began, and take what is there for where the next one begins."""
        chronicle = self.chronicles[writer]
        done, begun = chronicle.read()
        self.acknowledged += len(done)
        self.ever_forgotten |= {n for change in [*done, begun or {}] if (ns := change.get("numbers")) for n in ns}
        with self._open() as repo:
            self.refs[writer] = chronicle.check_ours(repo, self.refs[writer])
        self.chronicles[writer] = self._chronicle(writer)

    def _finish(self) -> None:
        """The next collection finishes what was begun; then every byte of everybody's is looked at."""
        with self._open() as repo:
            repo.gc()
            assert repo.gc().nothing_to_do
            for writer, chronicle in enumerate(self.chronicles):
                assert chronicle.check(repo, self.refs[writer]).of(chronicle.owner) == self.refs[writer].of(
                    chronicle.owner
                )
            for commit in repo.log(all_refs=True):
                if commit.id not in repo.marks():
                    assert same(repo.checkout(commit), state(int(commit.message)))

    def _open(self) -> Repository:
        return open_repository(self.path, key=self.key, threads=1)

    def _chronicle(self, writer: int) -> Chronicle:
        """A new one for each life."""
        return Chronicle(self.ground / f"chronicle-{writer}-{self.numbers[writer]}", f"w{writer}")

    def _start(self, job: str, number: int) -> Child:
        source, stop = random.Random(self.source.getrandbits(32)), self.stop
        work: Callable[[Repository], object]
        if job == "writer":
            chronicle, first = self.chronicles[number], self.numbers[number]
            self.numbers[number] += MOST_CHANGES

            def work(repo: Repository) -> object:
                return write(repo, chronicle, source, first, stop)

        elif job == "reader":

            def work(repo: Repository) -> object:
                return read(repo, source, stop)

        else:

            def work(repo: Repository) -> object:
                return collect(repo, stop)

        def live() -> object:
            with self._open() as repo:
                return work(repo)

        return Child(live)


def kill(ground: Path, kills: int, rounds: int) -> None:
    """Kill so often, in several repositories: the looks at a large one take their time."""
    seed = base_seed()
    source = random.Random(seed)
    deaths: dict[str, int] = {}
    whole = refused = acknowledged = 0
    for number in range(kills // (rounds * ROUND)):
        with replayable(seed, ground / str(number)):
            fray = Fray(ground / str(number), source)
            for _ in range(rounds):
                fray.round(ROUND)
        deaths = {job: deaths.get(job, 0) + fray.deaths.get(job, 0) for job in ("writer", "reader", "collector")}
        whole, refused = whole + fray.whole, refused + len(fray.refused)
        acknowledged += fray.acknowledged
    assert sum(deaths.values()) > 0.8 * kills and all(deaths.values()), deaths  # they were at work when it came
    assert whole > 0 and refused > 0 and acknowledged > kills  # and there was something to read, and to lose


def test_40_kills_of_writers_readers_and_collectors_lose_nothing_and_show_nothing_wrong(ground: Path) -> None:
    kill(ground, 40, rounds=2)


@pytest.mark.long
def test_1000_kills_of_writers_readers_and_collectors_lose_nothing_and_show_nothing_wrong(ground: Path) -> None:
    kill(ground, 1000, rounds=2)
