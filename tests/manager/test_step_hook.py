"""An optimizer that another thread steps does not begin a step while a snapshot is captured."""

import copy
import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from chainstore.manager.manager import SnapshotManager
from chainstore.repository import open as open_repository

PATIENCE = 30.0
_LONG = 0.2  # seconds in which a step that nobody holds up is done many times over
_SNAPSHOTS = 4


def make(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model with gradients that stay the same, and its optimizer, which has made no step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Stepper:
    """A thread that makes a step of an optimizer whenever it is told to.

    Attributes:
        done: how many it made.  idle: set while it makes none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.done, self.idle = 0, threading.Event()
        self._optimizer, self._go = optimizer, threading.Semaphore(0)
        self._ends = False
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self.idle.set()
        self._thread.start()

    def go(self) -> None:
        """Have a step made."""
        self.idle.clear()
        self._go.release()

    def end(self) -> None:
        """End the thread, which must not be held up."""
        self._ends = True
        self._go.release()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._ends:
                return
            self._optimizer.step()
            self.done += 1
            self.idle.set()


class Meanwhile:
    """An object that has a step made while its state is captured, and says how many there were before."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def state_dict(self) -> dict[str, Any]:
        done = self._stepper.done
        self._stepper.go()
        self._stepper.idle.wait(_LONG)
        return {"done": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("nobody asked for it")


@contextmanager
def managing(root: Path, **options: Any) -> Iterator[SnapshotManager]:
    with SnapshotManager(root, interval=1, mode="sync", on_signal=(), **options) as manager:
        yield manager


def waits(manager: SnapshotManager, optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer waits for a capture before it makes a step."""
    done = threading.Event()

    def step() -> None:
        optimizer.step()
        done.set()

    with manager.lock():
        threading.Thread(target=step, daemon=True).start()
        waited = not done.wait(_LONG)
    assert done.wait(PATIENCE)
    return waited


@pytest.mark.parametrize("tracked", [True, False], ids=["tracked", "given"])
def test_no_snapshot_holds_a_part_of_a_step_of_another_thread(tmp_path: Path, tracked: bool) -> None:
    expected = []
    model, optimizer = make()
    for _ in range(_SNAPSHOTS):
        expected.append(copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"])))
        optimizer.step()
    model, optimizer = make()
    stepper = Stepper(optimizer)
    with managing(tmp_path / "run") as manager:
        given: tuple[Any, ...] = (model, optimizer)
        if tracked:
            manager.track(model=model, optimizer=optimizer)
            given = ()
        for step in range(_SNAPSHOTS):
            assert manager.step(step + 1, *given, meanwhile=Meanwhile(stepper))
            assert stepper.idle.wait(PATIENCE)
        stepper.end()
    with open_repository(tmp_path / "run") as repo:
        for step, (weights, moments) in enumerate(expected):
            got = repo.checkout(f"step:{step + 1}")
            assert got["meanwhile"]["done"] == step
            for name, value in weights.items():
                assert torch.equal(got["model"][name], value), (step, name)
            assert got["optimizer"]["state"].keys() == moments.keys()
            for number, each in moments.items():
                for name, value in each.items():
                    assert torch.equal(got["optimizer"]["state"][number][name], value), (step, number, name)


class Counting(torch.optim.SGD):
    """An optimizer that counts its hooks."""

    hooks = 0

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        self.hooks += 1
        return super().register_step_pre_hook(hook)


def test_an_optimizer_gets_one_hook_until_the_manager_is_closed(tmp_path: Path) -> None:
    model, _ = make()
    optimizer = Counting(model.parameters())
    with managing(tmp_path / "run") as manager:
        manager.resume(model, optimizer)
        assert optimizer.hooks == 1 and waits(manager, optimizer)
        manager.track(optimizer=optimizer)
        manager.step(1, model, optimizer)
        manager.save(2, model)
        assert optimizer.hooks == 1
    assert not waits(manager, optimizer)


def test_the_thread_that_snapshots_steps_as_before(tmp_path: Path) -> None:
    model, optimizer = make()
    with managing(tmp_path / "run") as manager:
        manager.track(model=model, optimizer=optimizer)
        with manager.lock():
            optimizer.step()
        assert manager.step(1)


def test_copies_and_states_of_an_optimizer_know_nothing_of_it(tmp_path: Path) -> None:
    model, optimizer = make()
    with managing(tmp_path / "run") as manager:
        before = optimizer.state_dict()
        manager.track(model=model, optimizer=optimizer)
        assert optimizer.state_dict() == before
        copied = copy.deepcopy(optimizer)
        for other in (copied, pickle.loads(pickle.dumps(optimizer))):
            assert not waits(manager, other)
        assert waits(manager, optimizer)


def test_an_optimizer_goes_when_nobody_else_holds_it(tmp_path: Path) -> None:
    model, optimizer = make()
    gone = weakref.ref(optimizer)
    with managing(tmp_path / "run") as manager:
        assert manager.step(1, model, optimizer)
        del optimizer
        gc.collect()
        assert gone() is None
        assert manager.step(2, model)


def test_what_only_looks_like_an_optimizer_is_left_alone(tmp_path: Path) -> None:
    class Wrapper(torch.optim.SGD):
        """An optimizer by its type, without anything that one has, as some libraries wrap them."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        def state_dict(self) -> Any:
            return self.optimizer.state_dict()

    class Slotted:
        """Nothing can refer to it weakly."""

        __slots__ = ("hooks",)

        def __init__(self) -> None:
            self.hooks: list[Any] = []

        def register_step_pre_hook(self, hook: Any) -> None:
            self.hooks.append(hook)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("nobody asked for it")

    _, optimizer = make()
    slotted = Slotted()
    with managing(tmp_path / "run", on_error="raise") as manager:
        for step in (1, 2):
            assert manager.step(step, wrapped=Wrapper(optimizer), slotted=slotted)
    assert slotted.hooks == []


def test_in_a_forked_child_nobody_waits_for_a_thread_that_is_not_there(tmp_path: Path) -> None:
    model, optimizer = make()
    held, go_on = threading.Event(), threading.Event()
    with managing(tmp_path / "run") as manager:
        manager.track(model=model, optimizer=optimizer)

        def hold() -> None:
            with manager.lock():
                held.set()
                go_on.wait(PATIENCE)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE)
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(PATIENCE))
            optimizer.step()
            os._exit(0)
        try:
            assert os.waitpid(pid, 0)[1] == 0
        finally:
            go_on.set()
            thread.join(PATIENCE)
