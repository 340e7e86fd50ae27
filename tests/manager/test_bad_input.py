"""What goes wrong with a snapshot: training goes on, a person is told once and why, and the next snapshot is one."""

import errno
import os
import re
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chainstore.errors import ChainError, InvalidInput
from chainstore.manager import capture
from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository
from chainstore.storage import fs
from tests.manager.runs import Run

MODES = ("process", "thread", "sync")
Act = Callable[[], Any]


class Held:
    """An object whose state is what it is given."""

    def __init__(self, **held: Any) -> None:
        self.held: dict[str, Any] = held

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def manage(root: Path, mode: str, **options: Any) -> SnapshotManager:
    return SnapshotManager(root, interval=1, mode=mode, when_full="wait", on_signal=(), **options)


def told(act: Act) -> str:
    """Do something that warns exactly once, and return what was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        act()
    texts = [str(warning.message) for warning in said]
    assert len(texts) == 1, texts
    assert "training goes on" in texts[0]
    return texts[0]


def step_and_wait(manager: SnapshotManager, step: int, run: Run, **named: Any) -> None:
    manager.step(step, run.model, run.optimizer, **named)
    manager.wait()


def steps_of(root: Path) -> list[int | None]:
    with open_repository(root) as repo:
        assert repo.verify("data").ok
        return [commit.step for commit in repo.log()]


def on_meta() -> dict[str, Any]:
    return {"extra": torch.nn.Linear(3, 4, device="meta")}


def freed() -> dict[str, Any]:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(0)
    return {"extra": Held(tensor=tensor)}


def unknown() -> dict[str, Any]:
    return {"extra": Held(odd=object())}


@pytest.mark.parametrize(
    ("bad", "cause"), [(on_meta, "meta"), (freed, "storage|memory"), (unknown, "object")], ids=["meta", "freed", "type"]
)
def test_a_state_that_cannot_be_stored(tmp_path: Path, mode: str, bad: Callable[[], Any], cause: str) -> None:
    run = Run()
    with manage(tmp_path / "run", mode) as manager:
        assert manager.step(1, run.model, run.optimizer)
        manager.wait()
        text = told(lambda: step_and_wait(manager, 2, run, **bad()))
        assert "step 2" in text and "extra" in text
        assert re.search(cause, text), text
        assert manager.step(3, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [3, 1]


@pytest.mark.parametrize("bad", [on_meta, freed, unknown])
def test_a_state_that_cannot_be_stored_raises_at_the_next_step(tmp_path: Path, bad: Callable[[], Any]) -> None:
    run = Run()
    with manage(tmp_path / "run", "process", on_error="raise") as manager:
        assert not manager.step(1, run.model, run.optimizer, **bad())
        with pytest.raises(ChainError, match="step 1"):
            manager.step(2, run.model, run.optimizer)
        assert manager.step(3, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [3]


def test_a_tensor_that_is_freed_while_the_capture_walks(tmp_path: Path, mode: str) -> None:
    victim = torch.ones(5000)

    class Frees:
        def state_dict(self) -> dict[str, Any]:
            victim.untyped_storage().resize_(0)
            return {"late": 1}

        def load_state_dict(self, state: object) -> None:
            raise AssertionError("it was never stored")

    run = Run()
    with manage(tmp_path / "run", mode) as manager:
        assert manager.step(1, run.model, run.optimizer, victim=Held(tensor=victim))
        manager.wait()
        text = told(lambda: step_and_wait(manager, 2, run, victim=Held(tensor=victim), frees=Frees()))
        assert "victim" in text
        assert manager.step(3, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [3, 1]


def test_a_state_whose_structure_changes_at_every_step(tmp_path: Path, mode: str) -> None:
    states: list[dict[str, Any]] = [
        {"a": np.arange(10)},
        {"a": np.arange(10_000), "b": {"c": [1, 2, 3]}},
        {"b": np.arange(7, dtype=np.int16)},
        {"a": np.arange(10).reshape(2, 5), "b": {}},
        {"a": "text"},
        {"a": np.zeros((0, 3))},
        {str(number): np.full(number, number) for number in range(200)},
        {"a": torch.arange(10)},
        {},
    ]
    with manage(tmp_path / "run", mode, on_error="raise") as manager:
        for step, state in enumerate(states, 1):
            assert manager.step(step, held=Held(**state))
    with open_repository(tmp_path / "run") as repo:
        for step, state in enumerate(states, 1):
            got = repo.checkout(f"step:{step}")["held"]
            assert repr(got) == repr(state)


def writer_of(pid: int) -> int:
    """Return the writer process of this one."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"chainstore.manager.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("there is no writer process")


def test_a_writer_process_that_is_killed_with_a_capture(tmp_path: Path) -> None:
    run = Run()
    with manage(tmp_path / "run", "process") as manager:
        step_and_wait(manager, 1, run)
        writer = writer_of(os.getpid())
        os.kill(writer, signal.SIGSTOP)
        assert manager.step(2, run.model, run.optimizer)
        os.kill(writer, signal.SIGKILL)
        text = told(manager.wait)
        assert "step 2" in text and "SIGKILL" in text
        assert manager.step(3, run.model, run.optimizer)
        manager.wait()
        assert writer_of(os.getpid()) != writer
    assert steps_of(tmp_path / "run") == [3, 1]


def test_a_writer_process_that_is_killed_with_nothing_to_do(tmp_path: Path) -> None:
    run = Run()
    with warnings.catch_warnings(), manage(tmp_path / "run", "process") as manager:
        warnings.simplefilter("error")
        step_and_wait(manager, 1, run)
        writer = writer_of(os.getpid())
        os.kill(writer, signal.SIGKILL)
        os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)
        step_and_wait(manager, 2, run)
    assert steps_of(tmp_path / "run") == [2, 1]


def test_a_writer_process_that_is_killed_raises_at_the_next_step(tmp_path: Path) -> None:
    run = Run()
    with manage(tmp_path / "run", "process", on_error="raise") as manager:
        step_and_wait(manager, 1, run)
        writer = writer_of(os.getpid())
        os.kill(writer, signal.SIGSTOP)
        assert manager.step(2, run.model, run.optimizer)
        os.kill(writer, signal.SIGKILL)
        manager.wait()
        with pytest.raises(ChainError, match=r"step 2.*SIGKILL"):
            manager.step(3, run.model, run.optimizer)
        assert manager.step(3, run.model, run.optimizer)
    assert steps_of(tmp_path / "run") == [3, 1]


@contextmanager
def read_only(mode: str) -> Iterator[None]:
    """Let no file of a repository be changed inside the block."""
    before = fs.failpoint

    def refuse(name: str, path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    if mode != "process":
        fs.failpoint = refuse
        try:
            yield
        finally:
            fs.failpoint = before
        return
    writer = writer_of(os.getpid())
    limits = resource.prlimit(writer, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(writer, resource.RLIMIT_FSIZE, limits)


def test_a_repository_that_cannot_be_written_for_a_while(tmp_path: Path, mode: str) -> None:
    run = Run()
    with manage(tmp_path / "run", mode) as manager:
        step_and_wait(manager, 1, run)
        with read_only(mode):
            text = told(lambda: step_and_wait(manager, 2, run))
            assert "step 2" in text
            assert ("File too large" if mode == "process" else "Read-only file system") in text, text
        step_and_wait(manager, 3, run)
    assert steps_of(tmp_path / "run") == [3, 1]


def test_a_repository_that_cannot_be_written_for_long_is_said_louder(tmp_path: Path) -> None:
    run = Run()
    with manage(tmp_path / "run", "thread") as manager:
        step_and_wait(manager, 1, run)
        with read_only("thread"):
            texts = [told(lambda step=step: step_and_wait(manager, step, run)) for step in range(2, 6)]
        step_and_wait(manager, 6, run)
    assert "NEWEST DURABLE SNAPSHOT" in texts[-1] and "NEWEST DURABLE SNAPSHOT" not in texts[0]
    assert steps_of(tmp_path / "run") == [6, 1]


def test_no_descriptor_for_a_capture(tmp_path: Path) -> None:
    run = Run()
    with manage(tmp_path / "run", "process") as manager:
        step_and_wait(manager, 1, run)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            text = told(lambda: manager.step(2, run.model, run.optimizer, big=Held(tensor=torch.ones(2_000_000))))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert "step 2" in text and "open files" in text
        step_and_wait(manager, 3, run)
    assert steps_of(tmp_path / "run") == [3, 1]


def test_a_capture_that_is_interrupted_leaves_the_way_free(tmp_path: Path, mode: str) -> None:
    run = Run()
    with manage(tmp_path / "run", mode) as manager:
        step_and_wait(manager, 1, run)
        with interrupted(), pytest.raises(KeyboardInterrupt):
            manager.step(2, run.model, run.optimizer)
        step_and_wait(manager, 3, run)
    assert steps_of(tmp_path / "run") == [3, 1]


@contextmanager
def interrupted() -> Iterator[None]:
    """Let captures be interrupted by Ctrl-C."""
    before = capture.bring

    def bring(*_: int) -> int:
        raise KeyboardInterrupt

    capture.bring = bring
    try:
        yield
    finally:
        capture.bring = before


@pytest.mark.parametrize("interval", [0, -3, True, 1.5, "", "soon", "-5m", "0s", "every 0 steps", "5 parsecs", "nan s"])
def test_an_interval_that_makes_no_sense(tmp_path: Path, interval: Any) -> None:
    with pytest.raises(InvalidInput):
        SnapshotManager(tmp_path / "run", interval=interval, mode="thread")
    assert not (tmp_path / "run").exists()


def test_a_metric_that_is_no_number(tmp_path: Path) -> None:
    run = Run()
    with manage(tmp_path / "run", "thread") as manager:
        with pytest.raises(InvalidInput, match="loss"):
            manager.step(1, run.model, run.optimizer, metrics={"loss": "low"})
        assert manager.step(2, run.model, run.optimizer, metrics={"loss": torch.tensor(float("nan"))})
    assert steps_of(tmp_path / "run") == [2]


def test_a_file_to_store_that_is_gone(tmp_path: Path, mode: str) -> None:
    run, beside = Run(), tmp_path / "config.yaml"
    beside.write_text("lr: 1")
    with manage(tmp_path / "run", mode, track_files=[beside]) as manager:
        step_and_wait(manager, 1, run)
        beside.unlink()
        assert "config.yaml" in told(lambda: step_and_wait(manager, 2, run))
        beside.write_text("lr: 2")
        step_and_wait(manager, 3, run)
    assert steps_of(tmp_path / "run") == [3, 2, 1]
