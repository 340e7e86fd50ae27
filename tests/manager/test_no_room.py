"""Where there is no memory for a copy of the state: snapshots are made all the same, and training waits for them.

The limit is the one of the system for addresses (`ulimit -v`): who takes more than is left gets an error.
"""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from chainstore.manager import memory
from chainstore.manager.checksums import checksums
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.messages import Durable, Failed, Request
from chainstore.manager.storing import store_leaves
from chainstore.observe import Event, Notice
from chainstore.repository import flatten, init
from chainstore.repository import open as open_repository
from chainstore.storage import fs

MODES = ("process", "thread", "sync")
MB = 1_000_000


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


class Held:
    """An object whose state is so many megabytes of one number."""

    def __init__(self, size_mb: int, number: int) -> None:
        self.tensor = torch.full((size_mb * MB // 8,), number)

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "number": int(self.tensor[0])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nobody asked for it")


@contextmanager
def room(size_mb: int) -> Iterator[None]:
    """Let this process take so many megabytes more, whatever it has by now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + size_mb * MB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def manage(root: Path, mode: str, **options: Any) -> SnapshotManager:
    return SnapshotManager(root, interval=1, mode=mode, when_full="wait", on_signal=(), **options)


def warned(act: Callable[[], object]) -> list[str]:
    """Do something, and return what was warned of meanwhile."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in said]


def check(root: Path, steps: list[int]) -> None:
    """Check that there are snapshots of these steps, the newest first, and that each is whole."""
    with open_repository(root) as repo:
        assert [commit.step for commit in repo.log()] == steps
        assert repo.verify("data").ok
        for step in steps:
            held = repo.checkout(f"step:{step}")["held"]
            assert held["number"] == step
            assert bool((held["tensor"] == step).all())


def writer_of(pid: int) -> int:
    """Return the writer process of this one."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"chainstore.manager.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("there is no writer process")


def test_training_waits_where_there_is_no_room_for_a_copy(tmp_path: Path, mode: str) -> None:
    told: list[str] = []

    def observe(event: Event) -> None:
        if isinstance(event, Notice):
            told.append(event.code)

    sizes_mb = {1: 1, 2: 96, 3: 97, 4: 96, 5: 96, 6: 256}
    states = {step: Held(size_mb, step) for step, size_mb in sizes_mb.items()}
    with manage(tmp_path / "run", mode, observer=observe, on_error="raise") as manager:

        def snapshot(step: int) -> None:
            assert manager.step(step, held=states[step])

        assert warned(lambda: snapshot(1)) == []
        manager.wait()
        with room(64):
            (text,) = warned(lambda: snapshot(2))
            assert "a capture takes 97 MB of memory" in text and "TRAINING WAITS" in text and "--mem" in text
            assert (manager.stats().durable, manager.stats().pending) == (2, 0)
            assert manager.stats().last_step == 2
            assert warned(lambda: snapshot(3)) == []  # it was said
            assert manager.stats().durable == 3
        assert warned(lambda: snapshot(4)) == []  # there is room again: captured
        manager.wait()
        with room(64):
            assert warned(lambda: snapshot(5)) == []  # into the memory that is there
            manager.wait()
            (text,) = warned(lambda: snapshot(6))
            assert "TRAINING WAITS" in text
        assert manager.stats().failed == 0
    assert told.count("memory-short") == 2
    check(tmp_path / "run", [6, 5, 4, 3, 2, 1])


def test_what_the_limit_leaves_is_said(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with manage(tmp_path / "run", mode) as manager:
        with monkeypatch.context() as patch:
            patch.setattr(memory, "memory_left", lambda: memory.HEADROOM + 3 * MB)
            (text,) = warned(lambda: manager.step(1, held=Held(10, 1)))
        assert "takes 11 MB of memory and 3 MB are left" in text and "by 8 MB or more" in text
        assert manager.stats().durable == 1
        assert manager.step(2, held=Held(10, 2))
    check(tmp_path / "run", [2, 1])


def test_the_stall_is_said_to_be_all_of_it(tmp_path: Path, mode: str) -> None:
    held = Held(96, 1)
    with manage(tmp_path / "run", mode) as manager, room(64):
        assert warned(lambda: manager.step(1, held=held))
        stats = manager.stats()
        assert stats.time_to_durable_s / 2 < stats.stall_s
        assert stats.raw_bytes > 96 * MB


def test_what_was_captured_before_becomes_durable_before(tmp_path: Path) -> None:
    def observe(event: Event) -> None:
        if isinstance(event, Notice) and event.code == "memory-short":
            os.kill(writer_of(os.getpid()), signal.SIGCONT)

    large = Held(96, 3)
    with manage(tmp_path / "run", "process", observer=observe, max_pending=2) as manager:
        assert manager.step(1, held=Held(1, 1))
        manager.wait()
        os.kill(writer_of(os.getpid()), signal.SIGSTOP)
        assert manager.step(2, held=Held(1, 2))
        with room(64):
            assert len(warned(lambda: manager.step(3, held=large))) == 2  # one at a time; not even one
        assert manager.stats().durable == 3
    check(tmp_path / "run", [3, 2, 1])


def test_where_there_is_room_for_one_copy_one_is_on_its_way_at_a_time(tmp_path: Path) -> None:
    def observe(event: Event) -> None:
        if isinstance(event, Notice) and event.code == "memory-short":
            assert "max_pending=1" in event.text
            os.kill(writer_of(os.getpid()), signal.SIGCONT)

    with manage(tmp_path / "run", "process", observer=observe, max_pending=2) as manager:
        states = {step: Held(64, step) for step in range(1, 5)}
        with room(96):
            os.kill(writer_of(os.getpid()), signal.SIGSTOP)
            assert manager.step(1, held=states[1])
            assert len(warned(lambda: manager.step(2, held=states[2]))) == 1
            assert manager.stats().durable == 1 and manager.stats().pending == 1
            assert warned(lambda: manager.step(3, held=states[3])) == []
            assert manager.stats().pending == 1
        manager.step(4, held=states[4])
        assert manager.stats().pending == 1
    check(tmp_path / "run", [4, 3, 2, 1])


def test_one_that_fails_is_an_ordinary_failure(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, path: Path) -> None:
        raise OSError(30, os.strerror(30), str(path))

    large = [Held(96, step) for step in (2, 3)]
    with manage(tmp_path / "run", mode) as manager:
        assert manager.step(1, held=Held(1, 1))
        manager.wait()
        with room(64):
            with monkeypatch.context() as patch:
                patch.setattr(fs, "failpoint", refuse)
                texts = warned(lambda: manager.step(2, held=large[0]))
            assert len(texts) == 2
            assert "step 2" in texts[1] and "Read-only file system" in texts[1] and "training goes on" in texts[1]
            assert (manager.stats().durable, manager.stats().failed) == (1, 1)
            assert manager.step(3, held=large[1])
    check(tmp_path / "run", [3, 1])


def test_old_snapshots_are_dropped_all_the_same(tmp_path: Path, mode: str) -> None:
    states = {step: Held(96, step) for step in range(1, 5)}
    with manage(tmp_path / "run", mode, max_snapshots=2) as manager, room(64):
        for step, held in states.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert manager.step(step, held=held)
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log() if commit.id not in repo.marks()] == [4, 3]


def test_checksums_are_those_of_the_live_leaves(tmp_path: Path) -> None:
    state = {"a": torch.arange(1000), "b": torch.randn(3, 5).T, "c": "text", "d": {}}
    with init(tmp_path / "repo", encrypt=False) as repo:
        told = store_leaves(repo, 7, flatten(state), Request(step=1, checksums=True))
        assert isinstance(told, Durable)
        assert (told.number, told.checksums) == (7, checksums(flatten(state)))
        failed = store_leaves(repo, 8, flatten(state), Request(branch="a..b"))
        assert isinstance(failed, Failed) and failed.number == 8


def test_it_takes_the_memory_of_a_commit_whatever_the_size_of_the_state(tmp_path: Path) -> None:
    program = """
        import sys, warnings
        from pathlib import Path
        import torch
        from chainstore.manager.manager import SnapshotManager
        from tests.manager.test_no_room import Held, room

        def memory(what):
            (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what)]
            return int(line.split()[1]) << 10

        class Random(Held):
            def __init__(self, size_mb):
                self.tensor = torch.empty(size_mb * 125_000, dtype=torch.int64).random_()

        warnings.simplefilter("ignore")
        small, large = Random(1), Random(256)
        with SnapshotManager(sys.argv[1], interval=1, mode=sys.argv[2], on_signal=()) as manager:
            assert manager.step(1, small=small)
            manager.wait()
            Path("/proc/self/clear_refs").write_text("5")
            before = memory("VmRSS")
            with room(128):
                assert manager.step(2, small=small, large=large)
            assert manager.stats().durable == 2
            print(memory("VmHWM") - before, manager.stats().raw_bytes)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path / "run", "process"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    more, raw = map(int, done.stdout.split())
    assert raw > 256 * MB
    assert more < 100 * MB, f"{more / MB:.0f} MB were taken for a state of {raw / MB:.0f} MB"
