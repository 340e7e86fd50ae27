"""A capture that was handed to the writer process becomes durable, whenever and however its trainer dies."""

import os
import random
import signal
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

import chainstore as cs
from chainstore.manager.messages import Durable, Request
from chainstore.manager.writers import ProcessWriter
from tests.faults.children import Child
from tests.faults.seeds import base_seed, replayable
from tests.manager.captures import Camera, is_state_of, state_of

DURABLE_SECONDS = 10.0
LONGEST_LIVES_SECONDS = (0.1, 0.8)  # the writer process starts in the first 0.3 or so
NBYTES = 1_000_000


def train(root: Path, first: int, pending: int, told: Path) -> None:
    """Snapshot every step there is, for ever, and tell which were handed to the writer process."""
    os.setsid()
    with cs.open(root) as repo, told.open("wb", buffering=0) as out:
        cameras = [Camera() for _ in range(pending)]
        writer = ProcessWriter(repo, repo.hold_branch("main", wait_seconds=30))
        inodes = " ".join(str(os.fstat(camera.buffer.fd).st_ino) for camera in cameras)
        out.write(f"{writer.pid} {inodes}\n".encode())
        for step in count(first):
            while writer.pending >= pending:
                writer.drain(0.001)
                for result in writer.poll():
                    assert isinstance(result, Durable), result
            camera = cameras[step % pending]
            captured = camera.take(state_of(step, NBYTES + step))
            writer.submit(captured, camera.buffer, Request(branch="main", step=step, metrics={"loss": 1.0}))
            out.write(b"%d\n" % step)


@dataclass(frozen=True, slots=True)
class Death:
    """What a trainer left.

    Attributes:
        writer: pid of its writer process, and id of that one's session.
        memory: inodes of the memory that it captured into.
        submitted: the last step whose `submit` had returned; 0 if none had.
    """

    writer: int
    memory: frozenset[int]
    submitted: int


class Trainer:
    """A process that trains, in a session of its own."""

    def __init__(self, ground: Path, first: int, pending: int) -> None:
        self._told = ground / f"told-{first}-{time.monotonic_ns()}"
        self._child = Child(lambda: train(ground / "repo", first, pending, self._told))
        while not self._lines():
            time.sleep(0.001)

    def die(self, *, writer_too: bool = False) -> Death:
        """Kill its whole session; the writer process has one of its own."""
        writer, *memory = map(int, self._lines()[0].split())
        assert holders(frozenset(memory))
        os.killpg(self._child.pid, signal.SIGKILL)
        if writer_too:
            os.killpg(writer, signal.SIGKILL)
        ending = self._child.join()
        assert ending.signal == signal.SIGKILL, ending.error
        steps = self._lines()[1:]
        return Death(writer, frozenset(memory), int(steps[-1]) if steps else 0)

    def _lines(self) -> list[bytes]:
        """Return what it has told; a line that is not whole is not told yet."""
        return self._told.read_bytes().split(b"\n")[:-1] if self._told.exists() else []


def of_session(session: int) -> list[str]:
    """Return the processes of a session that are more than a line in their parent's book."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(folder.name)
    return found


def holders(memory: frozenset[int]) -> list[str]:
    """Return the processes that have anonymous memory with these inodes open or mapped."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            held = {link.stat().st_ino for link in (folder / "fd").iterdir() if "memfd:" in os.readlink(link)}
            held |= {int(line.split()[4]) for line in (folder / "maps").read_text().splitlines() if "memfd:" in line}
        except OSError:
            continue  # it ended meanwhile
        if held & memory:
            found.append(folder.name)
    return found


def wait_for_nobody(death: Death) -> float:
    """Return after how many seconds nothing was left of a trainer; AssertionError if it took too long."""
    started = time.monotonic()
    while of_session(death.writer):
        assert time.monotonic() - started < DURABLE_SECONDS, f"{of_session(death.writer)} still run"
        time.sleep(0.005)
    assert not holders(death.memory)
    return time.monotonic() - started


def kill(ground: Path, kills: int) -> None:
    seed = base_seed()
    source = random.Random(seed)
    root = ground / "repo"
    cs.open(root, create=True).close()
    newest, lives, longest = 0, 0, 0.0
    for number in range(kills):
        with replayable(seed, f"kill {number}", root):
            trainer = Trainer(ground, newest + 1, source.choice([1, 2]))
            time.sleep(source.uniform(0, source.choice(LONGEST_LIVES_SECONDS)))
            death = trainer.die()
            longest = max(longest, wait_for_nobody(death))
            with cs.open(root) as repo:
                head = repo.head.step if repo.head is not None else 0
                submitted = max(death.submitted, newest)
                # one more than was told: it was submitted, and the trainer died before it could say so
                assert head in (submitted, submitted + 1), (head, death)
                if head:
                    assert is_state_of(head, repo.checkout(), NBYTES + head)
                steps = [commit.step for commit in repo.log(max_count=head - newest)]
                assert steps == list(range(head, newest, -1))
                with repo.hold_branch("main"):
                    pass
                if number % 10 == 9:
                    assert repo.verify("links").damaged == []
            lives += head > newest
            newest = head
    assert lives > kills // 4  # the kills came while there was something to lose
    with cs.open(root) as repo:
        assert repo.verify("data").damaged == []
    print(f"{kills} kills, {newest} snapshots, none lost; the last was durable after {longest:.2f} s at most")


def die_while_the_writer_stands_still(root: Path, told: Path) -> None:
    """Leave a snapshot that the writer process has not received, and unread what it said of the one before."""
    with cs.open(root) as repo:
        cameras = [Camera(), Camera()]
        writer = ProcessWriter(repo, repo.hold_branch("main", wait_seconds=30))
        told.write_text(str(writer.pid))
        for step, camera in enumerate(cameras, 1):
            captured = camera.take(state_of(step, NBYTES))
            writer.submit(captured, camera.buffer, Request(branch="main", step=step, metrics={"loss": 1.0}))
            if step == 1:
                assert writer._channel is not None and writer._channel.ready(DURABLE_SECONDS)
                os.kill(writer.pid, signal.SIGSTOP)
                while Path(f"/proc/{writer.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                    time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_snapshot_that_waits_for_the_writer_survives_a_trainer_that_had_not_heard_of_the_one_before(
    ground: Path,
) -> None:
    root, told = ground / "repo", ground / "told"
    cs.open(root, create=True).close()
    ending = Child(lambda: die_while_the_writer_stands_still(root, told)).join()
    assert ending.signal == signal.SIGKILL, ending.error
    writer = int(told.read_text())
    os.kill(writer, signal.SIGCONT)
    wait_for_nobody(Death(writer, frozenset(), 2))
    with cs.open(root) as repo:
        assert [commit.step for commit in repo.log()] == [2, 1]
        assert is_state_of(2, repo.checkout(), NBYTES)


def test_40_kills_of_the_trainer_lose_no_snapshot_that_was_submitted(ground: Path) -> None:
    kill(ground, 40)


@pytest.mark.long
def test_200_kills_of_the_trainer_lose_no_snapshot_that_was_submitted(ground: Path) -> None:
    kill(ground, 200)


def test_a_kill_of_everything_returns_to_the_last_durable_snapshot(ground: Path) -> None:
    seed = base_seed()
    source = random.Random(seed)
    root = ground / "repo"
    cs.open(root, create=True).close()
    newest = lost = kills = 0
    while kills < 10 or newest <= 10:  # on a busy machine a short life leaves nothing durable
        kills += 1
        assert kills < 100
        with replayable(seed, f"kill {kills}", root):
            trainer = Trainer(ground, newest + 1, 2)
            time.sleep(source.uniform(0.1, 0.6) * (1 + kills // 10))
            death = trainer.die(writer_too=True)
            wait_for_nobody(death)
            with cs.open(root) as repo:
                head = repo.head.step if repo.head is not None else 0
                submitted = max(death.submitted, newest)
                assert submitted - 2 <= head <= submitted + 1  # of two that were on their way none need be durable
                lost += max(0, submitted - head)
                if head:
                    assert is_state_of(head, repo.checkout(), NBYTES + head)
                assert repo.verify("links").damaged == []
                newest = head
    print(f"{kills} kills, {newest} snapshots; {lost} that were submitted were not durable yet")
