"""Whatever a repository acknowledged survives SIGKILL at any moment, and the next change works."""

import random
import time
from pathlib import Path

import pytest

from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from tests.faults.children import Child, succeed
from tests.faults.chronicle import Actor, Chronicle, Refs
from tests.faults.seeds import base_seed, replayable

KILLS_PER_REPOSITORY = 10
LONGEST_LIFE_SECONDS = 0.06
STEADY_FROM = 1 << 20  # numbers of the commits of a second writer


def work(repo_path: Path, key: KeyFile, chronicle: Chronicle, seed: int, number: int, seconds: float) -> int:
    """Open a repository and change it until the time is over; return how many changes that were."""
    source = random.Random(seed)
    end = time.monotonic() + seconds
    with open_repository(repo_path, key=key, threads=source.choice([1, 2])) as repo:
        actor = Actor(repo, chronicle, source, number)
        count = 0
        while time.monotonic() < end:
            actor.act()
            count += 1
    return count


class Victim:
    """One repository, and the writers that are killed in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path, self.folder = folder / "repo", folder
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        self.refs = Refs()
        self.number = 0
        self.acknowledged = 0
        init(self.path, key=self.key).close()

    def survive(self, source: random.Random) -> None:
        """Kill a writer at a random moment, sometimes beside another that goes on, and look at what is left."""
        self.number += 1000
        chronicles = [Chronicle(self.folder / f"{self.number}", "a")]
        delay = source.uniform(0, LONGEST_LIFE_SECONDS)
        beside = source.random() < 0.25
        child = self._start(chronicles[0], source.getrandbits(32), self.number, seconds=30)
        if beside:
            chronicles.append(Chronicle(self.folder / f"{self.number}-steady", "s"))
            steady = self._start(chronicles[1], source.getrandbits(32), STEADY_FROM + self.number, delay + 0.03)
        time.sleep(delay)
        child.kill()
        ending = child.join()
        assert ending.signal == 9, ending.error
        if beside:
            assert not (ending := steady.join()).error, ending.error
        self._look(chronicles)

    def _start(self, chronicle: Chronicle, seed: int, number: int, seconds: float) -> Child:
        return Child(lambda: work(self.path, self.key, chronicle, seed, number, seconds))

    def _look(self, chronicles: list[Chronicle]) -> None:
        before = self.refs
        with open_repository(self.path, key=self.key) as repo:
            for chronicle in chronicles:
                self.refs = chronicle.check(repo, before)
                self.acknowledged += len(chronicle.read()[0])
            self._go_on(repo)

    def _go_on(self, repo: Repository) -> None:
        after = Chronicle(self.folder / f"{self.number}-after", "a")
        actor = Actor(repo, after, random.Random(self.number), self.number + 999)
        actor.commit(next(iter(self.refs.of("a").branches), "a"))
        self.refs = after.check(repo, self.refs)


def kill(ground: Path, kills: int) -> None:
    seed = base_seed()
    source = random.Random(seed)
    acknowledged = 0
    for number in range(kills):
        if number % KILLS_PER_REPOSITORY == 0:
            victim = Victim(ground / f"{number}")
        with replayable(seed, f"kill {number}", victim.path):
            victim.survive(source)
        acknowledged += victim.acknowledged
        victim.acknowledged = 0
    assert acknowledged > kills  # the kills came while there was work to lose


def test_200_kills_at_random_moments_lose_nothing_that_was_acknowledged(ground: Path) -> None:
    kill(ground, 200)


@pytest.mark.long
def test_2000_kills_at_random_moments_lose_nothing_that_was_acknowledged(ground: Path) -> None:
    kill(ground, 2000)


def test_a_child_that_opens_what_its_parent_has_open_sees_and_changes_it(ground: Path) -> None:
    victim = Victim(ground / "repo")
    chronicle = Chronicle(ground / "chronicle", "a")
    with open_repository(victim.path, key=victim.key) as repo:
        Actor(repo, chronicle, random.Random(1), 1).commit("a")
        succeed(lambda: Actor(repo, chronicle, random.Random(1), 2).commit("a"))
        Actor(repo, chronicle, random.Random(1), 3).commit("a")
        assert chronicle.check(repo, Refs()).branches == {"a": (1, 2, 3)}
