"""Several captures on their way: the next one waits until there is a place for it, not until there are none."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.manager.manager import SnapshotManager
from chainstore.manager.messages import Durable, Request
from chainstore.manager.writers import Writer, make_writer
from chainstore.observe import Event, Progress
from chainstore.repository import init
from chainstore.repository import open as open_repository
from tests.manager.captures import Camera, state_of

PATIENCE = 30.0
_LARGE = 4_000_000  # bytes of the state that is held up


class Held:
    """An object whose state is an array."""

    def __init__(self, nbytes: int, number: int) -> None:
        self.array = np.full(nbytes, number, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"array": self.array}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nobody asked for it")


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """Let everybody who opens a file wait, in the kernel, until the block ends (45 s at most)."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel tells that somebody waits
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_draining_leaves_as_many_as_it_is_told(mode: str, tmp_path: Path) -> None:
    """The second of three captures cannot be stored: it goes with a file that cannot be opened for the time being."""
    beside = tmp_path / "beside"
    beside.write_bytes(b"x" * 100)
    with init(tmp_path / "repo", encrypt=False) as repo:
        writer: Writer = make_writer(mode, repo)  # type: ignore[arg-type]
        try:
            with leased(beside):
                cameras = [Camera() for _ in range(3)]
                for step, camera in enumerate(cameras, 1):
                    files = {"beside": beside} if step == 2 else {}
                    writer.submit(camera.take(state_of(step)), camera.buffer, Request(step=step, files=files))
                assert writer.drain(0, leave=3)
                assert writer.drain(PATIENCE, leave=2)
                assert writer.pending == 2
                assert not writer.drain(0.05, leave=1)
                assert writer.pending == 2
                assert [type(told) for told in writer.poll()] == [Durable]
            assert writer.drain(PATIENCE)
            assert writer.pending == 0
            assert [type(told) for told in writer.poll()] == [Durable, Durable]
        finally:
            writer.close(PATIENCE)
        assert [commit.step for commit in repo.log()] == [3, 2, 1]


@pytest.mark.parametrize("by_name", [False, True], ids=["due", "asked for"])
def test_a_third_snapshot_begins_while_the_second_is_on_its_way(tmp_path: Path, by_name: bool) -> None:
    go_on, late = threading.Event(), []

    def observe(event: Event) -> None:
        """Hold the second snapshot up while it is stored."""
        if isinstance(event, Progress) and event.verb == "commit" and event.total > _LARGE and not go_on.wait(PATIENCE):
            late.append(event)

    options: dict[str, Any] = {} if by_name else {"when_full": "wait"}
    with SnapshotManager(
        tmp_path / "run", interval=1, mode="thread", on_signal=(), max_pending=2, observer=observe, **options
    ) as manager:
        assert manager.step(1, held=Held(1000, 1))
        assert manager.step(2, held=Held(_LARGE, 2))
        third = manager.save if by_name else manager.step
        assert third(3, held=Held(1000, 3))
        stats = manager.stats()
        assert (stats.durable, stats.pending, stats.last_step) == (1, 2, 1)
        go_on.set()
        assert manager.wait(PATIENCE)
        assert manager.stats().durable == 3
    assert late == []
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log()] == [3, 2, 1]
