"""Signals that announce the end: a snapshot before it, and whoever relied on the signal still sees it."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import torch

from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository
from tests.faults.children import Child, succeed
from tests.manager.runs import Run

NEVER = "1000000 steps"
LONG_SECONDS = 60.0  # what is waited for takes less


class Pipe:
    """What a child says, a line at a time."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def say(self, word: str) -> None:
        os.write(self._writing, f"{word}\n".encode())

    def hear(self) -> str:
        word = b""
        while not word.endswith(b"\n"):
            word += os.read(self._reading, 1)
        return word.decode().strip()

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@contextmanager
def handled(number: int, handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Have a handler for a signal inside the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def manage(root: Path, mode: str = "process", *, interval: str = NEVER, grace: str = "60s") -> SnapshotManager:
    return SnapshotManager(root, interval=interval, mode=mode, grace=grace, when_full="wait")


def train(root: Path, pipe: Pipe, mode: str, steps: int = 10_000) -> None:
    """Train, with no snapshot due; say when that goes on, and which steps are done."""
    torch.set_num_threads(1)
    run = Run()
    with manage(root, mode) as manager:
        for step in range(1, steps):
            run.step()
            manager.step(step, run.model, run.optimizer)
            if step == 3:
                pipe.say("on my way")
            time.sleep(0.002)


def steps_of(root: Path) -> list[int | None]:
    with open_repository(root) as repo, repo.hold_branch("main", wait_seconds=30):  # a writer process goes on by itself
        assert repo.verify("links").ok
        return [commit.step for commit in repo.log()]


@pytest.mark.parametrize("mode", ["process", "thread", "sync"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_next_step_makes_a_snapshot_and_the_signal_does_its_work(
    tmp_path: Path, pipe: Pipe, mode: str, number: int
) -> None:
    child = Child(lambda: train(tmp_path / "run", pipe, mode))
    assert pipe.hear() == "on my way"
    os.kill(child.pid, number)
    assert child.join().signal == number
    (step,) = steps_of(tmp_path / "run")
    assert step is not None and step > 3
    with open_repository(tmp_path / "run") as repo:
        run, straight = Run(seed=1), Run()
        straight.train(0, step)
        repo["main"].load_into(run.model, run.optimizer, rng=True)
    assert run.bits() == straight.bits()


def test_the_handler_before_is_called_once_everything_is_durable(tmp_path: Path) -> None:
    durable: list[list[int | None]] = []
    run = Run()

    def handler(number: int, frame: FrameType | None) -> None:
        with open_repository(tmp_path / "run") as repo:
            durable.append([commit.step for commit in repo.log()])

    with (
        handled(signal.SIGTERM, handler),
        manage(tmp_path / "run", "thread") as manager,
    ):
        before = signal.getsignal(signal.SIGTERM)
        assert not manager.step(1, run.model, run.optimizer) and not manager.preempted
        os.kill(os.getpid(), signal.SIGTERM)
        assert manager.preempted and durable == []
        assert manager.step(2, run.model, run.optimizer)
        assert durable == [[2]] and not manager.preempted
        assert signal.getsignal(signal.SIGTERM) != before
        manager.step(3, run.model, run.optimizer)
    assert durable == [[2]]


def test_a_second_signal_ends_at_once(tmp_path: Path, pipe: Pipe) -> None:
    def stuck() -> None:
        with manage(tmp_path / "run") as manager:
            pipe.say("stuck")
            while not manager.preempted:
                time.sleep(0.001)
            pipe.say("noted")
            time.sleep(LONG_SECONDS)

    child = Child(stuck)
    assert pipe.hear() == "stuck"
    os.kill(child.pid, signal.SIGTERM)
    assert pipe.hear() == "noted"
    os.kill(child.pid, signal.SIGTERM)
    assert child.join(LONG_SECONDS / 2).signal == signal.SIGTERM


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_where_no_step_comes_within_the_grace_what_was_captured_is_durable(
    tmp_path: Path, pipe: Pipe, mode: str
) -> None:
    def stuck() -> None:
        torch.set_num_threads(1)
        run = Run()
        with manage(tmp_path / "run", mode, interval="1 step", grace="0.3s") as manager:
            assert manager.step(1, run.model, run.optimizer)
            pipe.say("stuck")
            time.sleep(LONG_SECONDS)
            pipe.say("the sleep was over")

    child = Child(stuck)
    assert pipe.hear() == "stuck"
    os.kill(child.pid, signal.SIGTERM)
    assert child.join(LONG_SECONDS / 2).signal == signal.SIGTERM
    assert steps_of(tmp_path / "run") == [1]


def test_a_loop_that_never_comes_back_to_python_ends_after_the_grace(tmp_path: Path) -> None:
    def stuck() -> None:
        torch.set_num_threads(1)
        run = Run()
        lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)  # zeros are a mutex that nobody has
        with manage(tmp_path / "run", "thread", interval="1 step", grace="0.3s") as manager:
            assert manager.step(1, run.model, run.optimizer)
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(2):
                libc.pthread_mutex_lock(lock)

    assert Child(stuck).join(LONG_SECONDS / 2).signal == signal.SIGTERM
    assert steps_of(tmp_path / "run") == [1]


def test_a_writer_that_hangs_holds_the_end_up_no_longer_than_the_grace(tmp_path: Path, pipe: Pipe) -> None:
    def train() -> None:
        torch.set_num_threads(1)
        run = Run()
        with manage(tmp_path / "run", grace="0.3s") as manager:
            pipe.say(str(children(os.getpid())[0]))
            for step in range(1, 10_000):
                manager.step(step, run.model, run.optimizer)
                time.sleep(0.002)

    child = Child(train)
    writer = int(pipe.hear())
    os.kill(writer, signal.SIGSTOP)
    try:
        os.kill(child.pid, signal.SIGTERM)
        assert child.join(LONG_SECONDS / 2).signal == signal.SIGTERM
    finally:
        os.kill(writer, signal.SIGCONT)
    with open_repository(tmp_path / "run") as repo, repo.hold_branch("main", wait_seconds=30):
        assert len(list(repo.log())) == 1  # it goes on, and finishes what it was given


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_a_signal_after_the_last_step_is_not_lost(tmp_path: Path) -> None:
    def train() -> None:
        torch.set_num_threads(1)
        run = Run()
        with manage(tmp_path / "run", interval="1 step") as manager:
            manager.step(1, run.model, run.optimizer)
            os.kill(os.getpid(), signal.SIGTERM)

    child = Child(train)
    assert child.join().signal == signal.SIGTERM
    assert steps_of(tmp_path / "run") == [1]


def test_close_puts_the_handlers_back(tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with manage(tmp_path / "run", "thread"):
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_handler_that_came_later_stays(tmp_path: Path) -> None:
    def later(*_: object) -> None:
        raise AssertionError("nobody sends it")

    with handled(signal.SIGTERM, signal.SIG_DFL):
        with manage(tmp_path / "run", "thread"):
            signal.signal(signal.SIGTERM, later)
        assert signal.getsignal(signal.SIGTERM) is later


def test_a_closed_manager_that_a_later_handler_passes_signals_to_holds_nothing_up(tmp_path: Path) -> None:
    def train() -> None:
        first = manage(tmp_path / "first", "thread")
        second = manage(tmp_path / "second", "thread")
        first.close()  # whose handler is below the second's
        second.close()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LONG_SECONDS)

    assert Child(train).join(LONG_SECONDS / 2).signal == signal.SIGTERM


def test_nothing_is_installed_off_the_main_thread(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    seen: list[object] = []

    def work() -> None:
        with manage(tmp_path / "run", "thread"):
            seen.extend(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before


def test_sigusr1_that_somebody_uses_is_left_alone(tmp_path: Path) -> None:
    heard: list[int] = []
    with handled(signal.SIGUSR1, lambda number, _: heard.append(number)), manage(tmp_path / "run", "thread") as manager:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] and not manager.preempted


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_forked_child_dies_of_the_signal_and_the_manager_goes_on(tmp_path: Path, pipe: Pipe, mode: str) -> None:
    run = Run()
    with manage(tmp_path / "run", mode, interval="1 step") as manager:
        assert manager.step(1, run.model, run.optimizer)
        child = Child(lambda: (pipe.say("here"), time.sleep(LONG_SECONDS)))
        assert pipe.hear() == "here"  # Python forgets signals that come during a fork
        os.kill(child.pid, signal.SIGTERM)
        assert child.join(LONG_SECONDS / 2).signal == signal.SIGTERM
        assert succeed(lambda: manager.preempted) is False
        assert not manager.preempted and manager.step(2, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [2, 1]


def test_a_worker_of_a_loader_dies_of_the_signal_and_the_manager_goes_on(tmp_path: Path) -> None:
    data = torch.arange(1000.0)
    loader = torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="fork")
    run = Run()
    with manage(tmp_path / "run", "thread", interval="1 step") as manager:
        batches = iter(loader)
        next(batches)
        (worker,) = batches._workers  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises((RuntimeError, OSError, EOFError)):  # torch says it in one of several ways
            for _ in batches:
                time.sleep(0.001)
        worker.join(LONG_SECONDS / 2)
        assert worker.exitcode in (0, -signal.SIGTERM)  # torch's own handler: 0 where the parent sent it
        assert not manager.preempted and manager.step(1, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [1]


@pytest.mark.parametrize(("leave", "status"), [(SystemExit(75), 75), (ValueError("a peer is gone"), -signal.SIGTERM)])
def test_a_script_that_leaves_with_a_status_of_its_own_does_so(
    tmp_path: Path, leave: BaseException, status: int
) -> None:
    script = f"""
import os, signal
from chainstore import SnapshotManager
with SnapshotManager({str(tmp_path / "run")!r}, mode="thread") as manager:
    os.kill(os.getpid(), signal.SIGTERM)
    if manager.preempted:
        raise {leave!r}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG_SECONDS)
    assert done.returncode == status
    assert ("a peer is gone" in done.stderr) == isinstance(leave, ValueError)
