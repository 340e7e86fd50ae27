"""A trainer is killed at any moment: what its `step` said was captured becomes durable, and the next one goes on there.

The trainer is a forked process in a session of its own.  It tells a chronicle, synced, of every capture that `step`
returned from.  Its writer process is found from outside, by its environment.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository
from tests.faults.children import Child, succeed
from tests.faults.seeds import base_seed, replayable
from tests.manager.runs import Run

DURABLE_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
MOST_CAPTURES = 15  # in a life
STEP_SECONDS = 0.03
START_SECONDS = 0.3
MARK = "CHAIN_TEST_MARK"


def train(root: Path, told: Path, max_pending: int, mark: str) -> None:
    """Train and snapshot every step for ever, from where the newest snapshot is; tell where that was, and each one."""
    os.setsid()
    os.environ[MARK] = mark
    torch.set_num_threads(1)
    run = Run()
    out = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with SnapshotManager(root, interval=1, max_pending=max_pending, when_full="wait", on_error="raise") as manager:
        start = manager.resume(run.model, run.optimizer)
        tell(out, start)
        for step in count(start):
            run.step()
            if manager.step(step + 1, run.model, run.optimizer):
                tell(out, step + 1)


def tell(out: int, step: int) -> None:
    os.write(out, b"%d\n" % step)
    os.fsync(out)


@dataclass(frozen=True, slots=True)
class Death:
    """What a trainer left.

    Attributes:
        started: the step at which it went on; None if it died before.
        captured: the last step that its `step` had said was captured; 0 if none.
        memory: inodes of anonymous memory that it or its writer process had.
    """

    started: int | None
    captured: int
    memory: frozenset[int]


class Trainer:
    """A process that trains."""

    def __init__(self, ground: Path, number: int, max_pending: int) -> None:
        self.mark = f"{os.getpid()}-{number}-{time.monotonic_ns()}"
        self._told = ground / f"told-{self.mark}"
        self._child = Child(lambda: train(ground / "run", self._told, max_pending, self.mark))

    def wait_for(self, captures: int) -> None:
        """Wait until it has gone on, and told of so many captures."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self._steps()) <= captures and time.monotonic() < deadline and not self._has_ended():
            time.sleep(0.005)

    def die(self, *, writer_too: bool = False) -> Death:
        """Kill its session; the writer process has one of its own."""
        writers = marked(self.mark)
        memory = frozenset(inode for pid in [self._child.pid, *writers] for inode in memory_of(pid))
        os.kill(self._child.pid, signal.SIGKILL)
        if writer_too:
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)
        ending = self._child.join()
        assert ending.signal == signal.SIGKILL, ending.error
        steps = self._steps()
        return Death(steps[0] if steps else None, steps[-1] if len(steps) > 1 else 0, memory)

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _steps(self) -> list[int]:
        """Return what it has told; a line that is not whole is not told yet."""
        return [*map(int, self._told.read_bytes().split(b"\n")[:-1])] if self._told.exists() else []


def processes() -> Iterator[int]:
    return (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))


def marked(mark: str) -> list[int]:
    """Return the processes that have inherited a mark, but for those that have ended."""
    found = []
    for pid in processes():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(pid)
    return found


def memory_of(pid: int) -> set[int]:
    """Return the inodes of anonymous files that a process has open or mapped."""
    folder, found = Path(f"/proc/{pid}"), set()
    try:
        for link in (folder / "fd").iterdir():
            try:
                if "memfd:chainstore" in os.readlink(link):
                    found.add(link.stat().st_ino)
            except OSError:
                continue  # closed meanwhile
        for line in (folder / "maps").read_text().splitlines():
            if "memfd:chainstore" in line:
                found.add(int(line.split()[4]))
    except OSError:
        return found  # it ended meanwhile
    return found


def wait_for_nobody(mark: str, memory: frozenset[int]) -> float:
    """Return after how many seconds no process and no memory of a trainer was left."""
    started = time.monotonic()
    while left := marked(mark) or [pid for pid in processes() if memory & memory_of(pid)]:
        assert time.monotonic() - started < DURABLE_SECONDS, f"{left} still run, or have the memory"
        time.sleep(0.05)
    return time.monotonic() - started


def newest_step(root: Path) -> int:
    if not root.exists():
        return 0
    with open_repository(root) as repo:
        return (repo.head.step or 0) if repo.head is not None else 0


def check_whole(root: Path, newest: int) -> None:
    """Look at every byte; and that the run, through all its deaths, is the one that never died."""
    with open_repository(root) as repo:
        assert [commit.step for commit in repo.log()] == list(range(newest, 0, -1))
        assert repo.branches().keys() == {"main"}
        assert repo.verify("data").damaged == []
        survivor = Run(seed=1)
        repo["main"].load_into(survivor.model, survivor.optimizer, rng=True)
    assert survivor.bits() == succeed(lambda: straight(newest))


def straight(steps: int) -> dict[str, Any]:
    """Return what a run that is never killed comes to."""
    torch.set_num_threads(1)
    run = Run()
    run.train(0, steps)
    return run.bits()


def kill(ground: Path, kills: int) -> None:
    seed = base_seed()
    source = random.Random(seed)
    root = ground / "run"
    newest, at_work, longest = 0, 0, 0.0
    for number in range(kills):
        with replayable(seed, f"kill {number}", root):
            trainer = Trainer(ground, number, source.choice([1, 2]))
            if source.random() < 0.2:
                time.sleep(source.uniform(0, START_SECONDS))  # most often while it starts
            else:
                trainer.wait_for(source.randrange(MOST_CAPTURES))
                time.sleep(source.uniform(0, STEP_SECONDS))
            death = trainer.die()
            longest = max(longest, wait_for_nobody(trainer.mark, death.memory))
            head = newest_step(root)
            assert death.started in (None, newest), f"it went on at {death.started}, and {newest} was durable"
            # one more than was told: it was captured, and the trainer died before it could say so
            captured = max(death.captured, newest)
            assert head in (captured, captured + 1), (head, death)
            at_work += head > newest
            newest = head
    assert at_work > kills // 3  # the kills came while there was something to lose
    check_whole(root, newest)
    print(f"{kills} kills, {newest} snapshots, none lost; the last was durable after {longest:.2f} s at most")


def test_30_kills_of_the_trainer_lose_no_snapshot_that_was_captured(ground: Path) -> None:
    kill(ground, 30)


@pytest.mark.long
def test_100_kills_of_the_trainer_lose_no_snapshot_that_was_captured(ground: Path) -> None:
    kill(ground, 100)


def test_a_kill_of_everything_returns_to_the_last_durable_snapshot(ground: Path) -> None:
    seed = base_seed()
    source = random.Random(seed)
    root = ground / "run"
    newest = lost = 0
    for number in range(6):
        with replayable(seed, f"kill {number}", root):
            trainer = Trainer(ground, number, 2)
            trainer.wait_for(source.randrange(2, 2 * MOST_CAPTURES))
            time.sleep(source.uniform(0, STEP_SECONDS))
            death = trainer.die(writer_too=True)
            wait_for_nobody(trainer.mark, death.memory)
            head = newest_step(root)
            assert death.started == newest
            captured = max(death.captured, newest)
            assert captured - 2 <= head <= captured + 1, (head, death)  # of two on their way none need be durable
            lost += max(0, captured - head)
            newest = head
    assert newest > 6
    check_whole(root, newest)
    print(f"6 kills of everything, {newest} snapshots, {lost} steps lost")
